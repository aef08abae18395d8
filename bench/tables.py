"""The results of a run as tables of text, for the screen and for docs/benchmarks.md."""

from dataclasses import dataclass, field
from typing import Any

from bench.figures import (
    ANY_TIME,
    BESIDE_BATCHES,
    FIGURES,
    FLOORS,
    LATE_5000_MS_MAX,
    ONE_PROCESS,
    PERCENTILES,
    RATES,
    SDK_FIGURES,
    STOLEN_SHARE_MAX,
    TARGETS,
    TEN_GROUPS_COST_MAX,
    Figure,
    Spread,
    counterpart,
    ratio,
    value,
)
from bench.processes import TOGETHER

PENDING_RESIDENT_MB_MAX = 300.0
RESTART_S_MAX = 5.0
# Limit of p99 beside a burst, in multiples of the usual p99.
BESIDE_BURST_MAX = 3.0
# Above this share, the figures show the machine rather than the measured systems.
DISTURBED_SHARE = 0.05
_LATEST = ("stored", "after", "stalls")


@dataclass
class Table:
    """Rows of text; the first column is aligned left, the others right."""

    title: str
    headings: list[str]
    rows: list[list[str]] = field(default_factory=list)


def tables(result: dict[str, Any]) -> list[Table]:
    """All tables of a run, comparisons first."""
    found = [_beside(result, "echo", "bare echo")]
    found += [_beside(result, name, system["title"]) for name, system in result["systems"].items()]
    found += [_beside(result, "echo", "bare echo", ONE_PROCESS)]
    found += [_beside(result, name, system["title"], ONE_PROCESS) for name, system in result["systems"].items()]
    found += [
        _sdk(result),
        _beside_batches(result),
        _any_time(result),
        _systems(result),
        _flush(result),
        _stored(result),
        _groups(result),
        _cpu(result),
        _memory(result),
    ]
    if "beside_burst" in result:
        found.append(_beside_burst(result["beside_burst"]))
    if "beside_retries" in result:
        found.append(_beside_retries(result["beside_retries"]))
    if "pending" in result:
        found.append(_pending(result["pending"]))
    return [table for table in [*found, _rounds(result)] if table.rows]


def remarks(result: dict[str, Any]) -> list[str]:
    """Notes on the reliability of the figures."""
    said = [f"{name} is skipped: {why}" for name, why in result["missing"].items()]
    said += result["faults"] + _scaled(result)
    said += [
        f"round {number}: {one['stolen']:.0%} of the processor time was stolen by other guests of the host"
        for number, one in enumerate(result["rounds"], 1)
        if one["stolen"] > STOLEN_SHARE_MAX
    ]
    shares = result["processor_shares"]
    said.append(
        f"{result['cores']} cores; of their time {shares['stolen']:.1%} stolen by other guests of the host, "
        f"{shares['others']:.1%} used by other programs; {len(result['rounds'])} rounds in {result['took_s']:.0f} s; "
        "of DueTime's messages none early, doubled or lost"
    )
    if sum(shares.values()) > DISTURBED_SHARE:
        said.append("the machine had other load: repeat the measurement before you rely on a figure")
    return said


def losses(result: dict[str, Any]) -> list[str]:
    """Each figure in which DueTime is behind another system, with the ratio."""
    said = []
    for ours in ("duetime", ONE_PROCESS):
        whose = "" if ours == "duetime" else f" (DueTime in {ours})"
        for name, system in result["systems"].items():
            for figure in FIGURES:
                spread = ratio(result, figure.name, name, ours)
                if spread and (spread.median > 1 if figure.lower_is_better else spread.median < 1):
                    behind = f"{spread.median:.2f} of its figure ({_range(spread)})"
                    said.append(f"{system['title']}{whose}: {figure.title}: {behind}")
    return said


def _scaled(result: dict[str, Any]) -> list[str]:
    """Systems too slow for the full count."""
    said = []
    for name in result["systems"]:
        for figure in ("through", "burst"):
            count = value(result, name, f"{figure} count")
            if count and count.low < result["plan"][f"{figure}_count"]:
                said.append(f"{name}: {count.low:,.0f} instead of {result['plan'][f'{figure}_count']:,} messages")
    return said


def _beside(result: dict[str, Any], other: str, title: str, system: str = "duetime") -> Table:
    """DueTime against one other system, with ratios within each round."""
    whose = "DueTime" if system == "duetime" else f"DueTime in {system}"
    table = Table(f"{whose} beside {title}, synced before answered", ["", whose, title, "ratio", "spread", "target"])
    for figure in FIGURES:
        spread, ours = ratio(result, figure.name, other, system), value(result, system, figure.name)
        if spread is None or ours is None:
            continue
        theirs = value(result, other, counterpart(figure.name, other))
        cells = [_number(figure, ours), _number(figure, theirs), f"{spread.median:.2f}"]
        table.rows.append([figure.title, *cells, _range(spread), _targets(figure, other, spread, system)])
    return table


def _sdk(result: dict[str, Any]) -> Table:
    """The SDK's ways in and out, which no other system has."""
    systems = [name for name in ("duetime", ONE_PROCESS) if value(result, name, SDK_FIGURES[0])]
    headings = [f"{'cluster' if name == 'duetime' else name}{rest}" for name in systems for rest in ("", ", target")]
    table = Table("DueTime by its SDK", ["", *headings])
    for figure in FIGURES:
        if figure.name in SDK_FIGURES and systems:
            cells = [cell for name in systems for cell in _floored(result, name, figure)]
            table.rows.append([figure.title, *cells])
    return table


def _floored(result: dict[str, Any], system: str, figure: Figure) -> tuple[str, str]:
    found = value(result, system, figure.name)
    floors = [floor for floor in FLOORS if (floor.figure, floor.system) == (figure.name, system)]
    bound = floors[0].of(result) if floors else None
    if figure.name == "run" and (spread := ratio(result, figure.name, system, system)):
        target = _targets(figure, system, spread, system)
        return _number(figure, found), f"{spread.median:.2f} of handled, {target}".removesuffix(", ")
    if found is None or bound is None:
        return _number(figure, found), ""
    return _number(figure, found), f">= {bound:,.0f} {'met' if found.median >= bound else 'MISSED'}"


def _any_time(result: dict[str, Any]) -> Table:
    """The lane for any time against the lanes of levels, with ratios within each round."""
    headings = ["", "any time", "levels", "ratio", "spread", "target"]
    table = Table("messages for any time beside those of levels, one cluster", headings)
    for figure in FIGURES:
        spread, ours = ratio(result, figure.name, "duetime", ANY_TIME), value(result, ANY_TIME, figure.name)
        if spread is not None:
            levels = value(result, "duetime", counterpart(figure.name, "duetime"))
            cells = [_number(figure, ours), _number(figure, levels), f"{spread.median:.2f}", _range(spread)]
            table.rows.append([figure.title, *cells, _targets(figure, "duetime", spread, ANY_TIME)])
    return table


def _beside_batches(result: dict[str, Any]) -> Table:
    """Other ways to send against plain batches, with ratios within each round."""
    table = Table("beside batches accepted to be read at once", ["", "DueTime", "batches", "ratio", "spread", "target"])
    for figure in FIGURES:
        spread, ours = ratio(result, figure.name, "duetime"), value(result, "duetime", figure.name)
        if figure.name in BESIDE_BATCHES and spread and ours:
            batches = value(result, "duetime", counterpart(figure.name, "duetime"))
            cells = [_number(figure, ours), _number(figure, batches), f"{spread.median:.2f}", _range(spread)]
            table.rows.append([figure.title, *cells, _targets(figure, "duetime", spread)])
    return table


def _targets(figure: Figure, other: str, spread: Spread, system: str = "duetime") -> str:
    wanted = [
        target for target in TARGETS if (target.figure, target.other, target.system) == (figure.name, other, system)
    ]
    return ", ".join(
        f"{'<=' if target.at_most else '>='} {target.bound:.2f} {'met' if target.met(spread.median) else 'MISSED'}"
        for target in wanted
    )


def _systems(result: dict[str, Any]) -> Table:
    """Medians of all systems, side by side; empty with fewer than two peers."""
    systems = {"duetime": "DueTime"} | {name: system["title"] for name, system in result["systems"].items()}
    table = Table("all systems, medians of the rounds", ["", *systems.values()])
    if len(systems) > 2:
        for figure in FIGURES:
            values = [value(result, name, figure.name) for name in systems]
            if sum(one is not None for one in values) > 1:
                table.rows.append([figure.title, *(_number(figure, one) for one in values)])
    return table


def _flush(result: dict[str, Any]) -> Table:
    table = Table("DueTime's flush modes", ["", "sync", "async"])
    for figure in FIGURES:
        synced, unsynced = value(result, "duetime", figure.name), value(result, "duetime async", figure.name)
        if synced and unsynced:
            table.rows.append([figure.title, _number(figure, synced), _number(figure, unsynced)])
    return table


def _stored(result: dict[str, Any]) -> Table:
    headings = ["", "p50", "p99", "p99.9", "target"]
    table = Table("DueTime's lateness in ms: received minus due, in brackets its store time minus due", headings)
    for rate in RATES:
        late = {name: value(result, "duetime", f"late {rate} {name}") for name in headings[1:4]}
        stored = {name: value(result, "duetime", f"late {rate} stored {name}") for name in headings[1:4]}
        cells = [f"{late[name].median:.1f} ({stored[name].median:.0f})" for name in late]  # type: ignore[union-attr]
        target = ""
        if rate == max(RATES):
            met = all(late[name].median <= limit for name, limit in LATE_5000_MS_MAX.items())  # type: ignore[union-attr]
            limits = ", ".join(f"{name} <= {limit:g}" for name, limit in LATE_5000_MS_MAX.items())
            target = f"{limits} {'met' if met else 'MISSED'}"
        table.rows.append([f"{rate:,}/s", *cells, target])
        before, after, stalls = (value(result, "duetime", f"late {rate} latest {name}") for name in _LATEST)
        if before and after and stalls:
            parts = [f"{before.median:.1f} until stored", f"{after.median:.1f} after", f"in {stalls.median:.0f} stalls"]
            table.rows.append(["  the latest 0.1 %", *parts, ""])
    return table


def _groups(result: dict[str, Any]) -> Table:
    """The cost of a delivery with ten groups on one topic, in multiples of one group's, within each round."""
    table = Table("ten groups on one topic", ["", "cost of a delivery, times one group's", "spread", "target"])
    costs = [
        figures["received"] / figures["received by ten"]
        for figures in (one["figures"].get("duetime", {}) for one in result["rounds"])
        if "received by ten" in figures
    ]
    spread = Spread.of(costs)
    if spread:
        met = "met" if spread.median <= TEN_GROUPS_COST_MAX else "MISSED"
        table.rows.append(["", f"{spread.median:.2f}", _range(spread), f"<= {TEN_GROUPS_COST_MAX:.0f} {met}"])
    return table


def _cpu(result: dict[str, Any]) -> Table:
    names = ["client", "echo", "gateway", "store", "scheduler", TOGETHER]
    table = Table("processor time per message in microseconds", ["", *names[:-1], ONE_PROCESS])
    rows = list(result["cpu_us"].items())
    if "pending" in result:
        rows.append((f"duetime sustained, {result['pending']['count']:,} pending", result["pending"]["cpu_us"]))
    for what, used in rows:
        table.rows.append([what, *(f"{used[name]:.1f}" if name in used else "" for name in names)])
    return table


def _memory(result: dict[str, Any]) -> Table:
    table = Table(
        "memory in MB after the rounds: resident, in brackets of that not backed by files", ["", *result["memory"]]
    )
    cells = [f"{used['resident_mb']:.0f} ({used['anonymous_mb']:.0f})" for used in result["memory"].values()]
    table.rows.append(["DueTime", *cells])
    return table


def _rounds(result: dict[str, Any]) -> Table:
    table = Table("the rounds", ["round", "stolen", ""])
    for number, one in enumerate(result["rounds"], 1):
        mark = f"above {STOLEN_SHARE_MAX:.0%}" if one["stolen"] > STOLEN_SHARE_MAX else ""
        table.rows.append([str(number), f"{one['stolen']:.1%}", mark])
    return table


def _beside_burst(found: dict[str, Any]) -> Table:
    title = f"Lateness in ms at 1,000/s beside {found['count']:,} due at once on another lane"
    table = Table(title, ["", "by itself", "beside the burst", "target"])
    for name in PERCENTILES:
        usual, beside = found["usual"][name], found["beside"][name]
        target = ""
        if name == "p99":
            target = f"<= {BESIDE_BURST_MAX:g} times {'met' if beside <= BESIDE_BURST_MAX * usual else 'MISSED'}"
        table.rows.append([name, f"{usual:.1f}", f"{beside:.1f}", target])
    table.rows.append(["the burst, delivered/s", "", f"{found['restored_per_s']:,.0f}", ""])
    return table


def _beside_retries(found: dict[str, Any]) -> Table:
    title = f"Lateness in ms at 1,000/s beside {found['count']:,} pending retries"
    table = Table(title, ["", "by itself", "beside the retries"])
    for name in PERCENTILES:
        table.rows.append([name, f"{found['usual'][name]:.1f}", f"{found['beside'][name]:.1f}"])
    table.rows.append(["failures/s while filling", "", f"{found['failed_per_s']:,.0f}"])
    return table


def _pending(pending: dict[str, Any]) -> Table:
    table = Table(f"{pending['count']:,} messages pending", ["", "value", "target"])
    table.rows.append(["accepted/s while filling", f"{pending['fill_rate']:,.0f}", ""])
    for name, title in (("store_before", "before"), ("store_filled", "filled"), ("store_restarted", "restarted")):
        memory = pending[name]
        met = memory["resident_mb"] < PENDING_RESIDENT_MB_MAX
        target = "" if name == "store_before" else f"< {PENDING_RESIDENT_MB_MAX:.0f} {'met' if met else 'MISSED'}"
        cell = f"{memory['resident_mb']:.0f} ({memory['anonymous_mb']:.0f})"
        table.rows.append([f"store's memory in MB, {title}", cell, target])
    late = pending["lateness"]
    title = f"lateness at {RATES[0]:,}/s beside them, p50 / p99 in ms"
    table.rows.append([title, f"{late['p50']:.1f} / {late['p99']:.1f}", ""])
    table.rows.append(["messages/s through the delayed path beside them", f"{pending['sustained']:,.0f}", ""])
    for name, recovery, title in (
        ("after_kill_s", "after_kill_recovery_s", "store killed"),
        ("clean_restart_answer_s", "clean_restart_recovery_s", "cluster stopped and started"),
    ):
        met = pending[name] <= RESTART_S_MAX
        cell = f"{pending[name]:.1f} ({pending[recovery]:.1f})"
        target = f"<= {RESTART_S_MAX:.0f} {'met' if met else 'MISSED'}"
        table.rows.append([f"{title}: s to the first exact answer (reading the directory)", cell, target])
    return table


def _number(figure: Figure, spread: Spread | None) -> str:
    if spread is None:
        return "-"
    return f"{spread.median:.2f}" if figure.lower_is_better else f"{spread.median:,.0f}"


def _range(spread: Spread) -> str:
    return f"{spread.low:.2f} to {spread.high:.2f}"
