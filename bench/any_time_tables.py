"""Results of `bench.any_time` as tables of text."""

import statistics
from collections.abc import Sequence
from typing import Any

from bench.figures import PERCENTILES, RATES
from bench.tables import PENDING_RESIDENT_MB_MAX, RESTART_S_MAX, Table

CANCELS_MIN = 20_000
# Limit of p99 beside many messages due at one instant, in multiples of the usual p99.
BESIDE_INSTANT_MAX = 2.0
PAGE_MS_MAX = 100.0
# Limits of a schedule's occurrence, in multiples of a plain message's processor time, and of p99 beside many due.
OCCURRENCE_MAX = 1.5
BESIDE_SCHEDULES_MAX = 2.0
KINDS = {"message": "plain message", "interval": "occurrence at an interval", "cron": "occurrence by a cron expression"}
# Limits with millions pending: no cost beyond that of a level's lane measured at the same times.
FILLED_RATE_MIN = 0.9


def any_time_tables(found: dict[str, Any]) -> list[Table]:
    """Tables of the measurements; empty ones are omitted."""
    tables = []
    if "cancels" in found:
        tables.append(Table("cancels/s by receipt, batches of 1,024", ["", "value", "target"], _cancels(found)))
    if "instant" in found:
        tables.append(_instant(found["instant"]))
    if "schedules" in found:
        tables += [_occurrences(found["schedules"]), _beside_schedules(found["schedules"])]
    if "pending" in found:
        tables.append(_pending(found["pending"]))
    return tables


def _cancels(found: dict[str, Any]) -> list[list[str]]:
    return [
        [name, f"{rate:,.0f}", f">= {CANCELS_MIN:,} {_met(rate >= CANCELS_MIN)}"]
        for name, rate in found["cancels"].items()
    ]


def _instant(found: dict[str, Any]) -> Table:
    title = f"lateness in ms at 1,000/s on a level beside {found['count']:,} due at one instant, for any time"
    table = Table(title, ["", "by itself", "beside the instant", "target"])
    for name in PERCENTILES:
        usual, beside = found["usual"][name], found["beside"][name]
        target = (
            f"<= {BESIDE_INSTANT_MAX:g} times {_met(beside <= BESIDE_INSTANT_MAX * usual)}" if name == "p99" else ""
        )
        table.rows.append([name, f"{usual:.1f}", f"{beside:.1f}", target])
    table.rows.append(["delivered/s from the instant on, in order", "", f"{found['restored_per_s']:,.0f}", ""])
    return table


def _occurrences(found: dict[str, Any]) -> Table:
    title = f"processor time from the lane to the topic in µs, {found['cost_count']:,} due at one instant"
    table = Table(title, ["", "store", "scheduler", "multiple", "spread", "target"])
    plain = [sum(used.values()) for used in found["cpu_us"]["message"]]
    for kind, name in KINDS.items():
        turns = found["cpu_us"][kind]
        cells = [f"{statistics.median(used[process] for used in turns):.1f}" for process in ("store", "scheduler")]
        multiples = [sum(used.values()) / own for used, own in zip(turns, plain, strict=True)]
        multiple = statistics.median(multiples)
        rest = ["", ""] if kind == "message" else [_spread(multiples), _most(multiple, OCCURRENCE_MAX)]
        table.rows.append([name, *cells, f"{multiple:.2f}", *rest])
    return table


def _beside_schedules(found: dict[str, Any]) -> Table:
    title = f"lateness in ms at 1,000/s on a level beside {found['count']:,} schedules due in a minute"
    table = Table(title, ["", "by itself", "beside them", "multiple", "spread", "target"])
    for name in PERCENTILES:
        cells = [f"{found[kind][name]:.1f}" for kind in ("usual", "beside")]
        multiple = statistics.median(found["multiples"][name])
        target = _most(multiple, BESIDE_SCHEDULES_MAX) if name == "p99" else ""
        table.rows.append([name, *cells, f"{multiple:.2f}", _spread(found["multiples"][name]), target])
    table.rows.append(["schedules put/s", "", f"{found['put_per_s']:,.0f}", "", "", ""])
    return table


def _spread(values: Sequence[float]) -> str:
    return f"{min(values):.2f} to {max(values):.2f}"


def _pending(found: dict[str, Any]) -> Table:
    table = Table(f"{found['count']:,} messages for any time pending", ["", "value", "target"])
    rows = table.rows
    rows.append(["accepted/s while filling", f"{found['fill_rate']:,.0f}", ""])
    before, filled = found["accepted_before"], found["accepted_filled"]
    for name, rates in (("before", before), ("filled", filled)):
        cell = f"{rates['any time']:,.0f} ({rates['levels']:,.0f})"
        rows.append([f"accepted/s at random, in brackets of a level, {name}", cell, ""])
    kept = (filled["any time"] / filled["levels"]) / (before["any time"] / before["levels"])
    rows.append(["kept share of the rate, relative to a level's", f"{kept:.2f}", _least(kept, FILLED_RATE_MIN)])
    for name in ("before", "filled", "used", "restarted"):
        used = found[f"store_{name}"]
        cell = f"{used['resident_mb']:.0f} ({used['anonymous_mb']:.0f})"
        met = _met(used["resident_mb"] < PENDING_RESIDENT_MB_MAX)
        target = "" if name == "before" else f"< {PENDING_RESIDENT_MB_MAX:.0f} {met}"
        rows.append([f"store's memory in MB, {name}; in brackets not backed by files", cell, target])
    late = found["lateness"]
    rows.append([f"lateness at {RATES[0]:,}/s, p50 / p99 in ms", f"{late['p50']:.1f} / {late['p99']:.1f}", ""])
    for name, rate, used in (("before", "sustained_before", "cpu_before_us"), ("filled", "sustained", "cpu_us")):
        cell = f"{found[rate]:,.0f} ({found[used].get('store', 0.0):.1f})"
        rows.append([f"messages/s through the delayed path, in brackets the store's µs each, {name}", cell, ""])
    for name, page in found["pages"].items():
        cell = f"{page['p50']:.1f} / {page['p99']:.1f}"
        target = f"p99 <= {PAGE_MS_MAX:.0f} {_met(page['p99'] <= PAGE_MS_MAX)}"
        rows.append([f"a page of 100, {name}, p50 / p99 in ms ({page['count']:.0f} found)", cell, target])
    rows += [[f"cancels/s, {name}", *cells] for name, *cells in _cancels(found)]
    for name, title in (("after_kill", "store killed"), ("clean_restart_answer", "cluster stopped and started")):
        seconds, reading = found[f"{name}_s"], found[f"{name.removesuffix('_answer')}_recovery_s"]
        target = f"<= {RESTART_S_MAX:.0f} {_met(seconds <= RESTART_S_MAX)}"
        cell = f"{seconds:.1f} ({reading:.1f})"
        rows.append([f"{title}: s to the first exact answer (reading the directory)", cell, target])
    return table


def _most(value: float, bound: float) -> str:
    return f"<= {bound:g} times {_met(value <= bound)}"


def _least(value: float, bound: float) -> str:
    return f">= {bound:g} {_met(value >= bound)}"


def _met(met: bool) -> str:
    return "met" if met else "MISSED"
