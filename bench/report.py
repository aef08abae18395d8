"""The tables of a run, and which of the targets it met."""

from typing import Any

from rich.console import Console
from rich.table import Table

# Least share of the echo's rate, in the same round.
RATIO_MIN = {"batch": 0.40, "single": 0.50, "delayed": 0.15}
LATE_5000_MS_MAX = {"p50": 5.0, "p99": 20.0}
PENDING_RESIDENT_MB_MAX = 300.0
RESTART_S_MAX = 5.0
TARGET_MODE = "sync"
# Above it the figures say more of the machine than of the cluster.
DISTURBED_SHARE = 0.05


def show(result: dict[str, Any], console: Console) -> None:
    """Prints what `bench.__main__` gathered."""
    console.print(_rates(result))
    console.print(_cpu(result))
    console.print(_lateness(result))
    console.print(_memory(result))
    if "pending" in result:
        console.print(_pending(result["pending"]))
    shares = result["processor_shares"]
    console.print(
        f"{result['cores']} cores; of their time {shares['stolen']:.1%} stolen by other guests of the host, "
        f"{shares['others']:.1%} used by other programs; {result['took_s']:.0f} s; nothing early, doubled or lost"
    )
    if sum(shares.values()) > DISTURBED_SHARE:
        console.print(
            "The machine was not the benchmark's alone: measure again before believing a figure.", style="red"
        )


def _rates(result: dict[str, Any]) -> Table:
    queues = f"{result['queues']} queue{'s' if result['queues'] > 1 else ''} a topic"
    title = f"messages/s, 128-byte bodies, {queues}; share of the echo in the same round"
    table = Table(title=title, title_justify="left")
    for heading in ("what", "messages/s", "of the echo", "target"):
        table.add_column(heading, justify="left" if heading == "what" else "right")
    accepted = result["accepted"]
    titles = {"batch": "batches of 256, 8 in flight", "single": "single, 64 in flight"}
    titles["producer"] = "AsyncProducer.send_many, batches of 256"
    for name, rate in accepted["median"].items():
        who, kind = name.split()
        target = RATIO_MIN.get(kind) if who == TARGET_MODE else None
        ratio = None if who == "echo" else accepted["ratio"][name]
        table.add_row(f"{who}: {titles[kind]}", f"{rate:,.0f}", *_judged(ratio, target))
    for mode, delayed in result["delayed"].items():
        target = RATIO_MIN["delayed"] if mode == TARGET_MODE else None
        table.add_row(
            f"{mode}: delayed 1 s, Send to Pull", f"{delayed['rate']:,.0f}", *_judged(delayed["ratio"], target)
        )
    return table


def _cpu(result: dict[str, Any]) -> Table:
    table = Table(title="processor time per message in microseconds", title_justify="left")
    names = ("client", "echo", "gateway", "store", "scheduler")
    table.add_column("what")
    for name in names:
        table.add_column(name, justify="right")
    delayed = {f"{mode} delayed": one["cpu_us"] for mode, one in result["delayed"].items()}
    for what, used in (result["accepted"]["cpu_us"] | delayed).items():
        table.add_row(what, *(f"{used[name]:.1f}" if name in used else "" for name in names))
    return table


def _judged(ratio: float | None, target: float | None) -> tuple[str, str]:
    if ratio is None:
        return "", ""
    if target is None:
        return f"{ratio:.2f}", ""
    return f"{ratio:.2f}", f">= {target:.2f} {'met' if ratio >= target else 'MISSED'}"


def _lateness(result: dict[str, Any]) -> Table:
    table = Table(title="lateness in ms: received minus due, in brackets durable in its topic minus due")
    for heading in ("flush", "messages/s", "p50", "p99", "p99.9", "max", "target"):
        table.add_column(heading, justify="right")
    for mode, rates in result["lateness"].items():
        for rate, late in rates.items():
            cells = [f"{late[p]:.1f} ({late['stored ' + p]:.0f})" for p in ("p50", "p99", "p99.9")]
            met = all(late[p] <= limit for p, limit in LATE_5000_MS_MAX.items())
            target = f"p50 <= 5, p99 <= 20 {'met' if met else 'MISSED'}" if rate == "5000" else ""
            table.add_row(mode, rate, *cells, f"{late['max']:.1f}", target if mode == TARGET_MODE else "")
    return table


def _memory(result: dict[str, Any]) -> Table:
    table = Table(title="memory in MB after the load: resident, in brackets of that not backed by files")
    table.add_column("flush")
    for name in next(iter(result["memory"].values())):
        table.add_column(name, justify="right")
    for mode, processes in result["memory"].items():
        table.add_row(mode, *(f"{m['resident_mb']:.0f} ({m['anonymous_mb']:.0f})" for m in processes.values()))
    return table


def _pending(pending: dict[str, Any]) -> Table:
    table = Table(title=f"{pending['count']:,} messages pending")
    for heading in ("what", "value", "target"):
        table.add_column(heading, justify="left" if heading == "what" else "right")
    table.add_row("accepted/s while filling", f"{pending['fill_rate']:,.0f}", "")
    for name, title in (("store_before", "before"), ("store_filled", "filled"), ("store_restarted", "restarted")):
        memory = pending[name]
        met = memory["resident_mb"] < PENDING_RESIDENT_MB_MAX
        target = "" if name == "store_before" else f"< {PENDING_RESIDENT_MB_MAX:.0f} {'met' if met else 'MISSED'}"
        cell = f"{memory['resident_mb']:.0f} ({memory['anonymous_mb']:.0f})"
        table.add_row(f"store's memory in MB, {title}", cell, target)
    late = pending["lateness"]
    table.add_row("lateness at 1,000/s beside them, p50 / p99 in ms", f"{late['p50']:.1f} / {late['p99']:.1f}", "")
    for name, recovery, title in (
        ("after_kill_s", "after_kill_recovery_s", "store killed"),
        ("clean_restart_answer_s", "clean_restart_recovery_s", "cluster stopped and started"),
    ):
        met = pending[name] <= RESTART_S_MAX
        cell = f"{pending[name]:.1f} ({pending[recovery]:.1f})"
        target = f"<= {RESTART_S_MAX:.0f} {'met' if met else 'MISSED'}"
        table.add_row(f"{title}: s to the first exact answer (reading the directory)", cell, target)
    return table
