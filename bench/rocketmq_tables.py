"""Results of `bench.rocketmq` as tables."""

import statistics
from typing import Any

from bench.tables import Table

TITLES = {
    "sent": ("SendMessage, one message a call, 64 in flight, messages/s", 0.5),
    "received": ("ReceiveMessage of 32 and single AckMessages, messages/s", 0.4),
}
LATE_MS_MAX = {"p50": 5.0, "p99": 20.0}


def rocketmq_tables(found: dict[str, Any]) -> list[Table]:
    """Tables of the measurements."""
    table = Table(
        "RocketMQ's calls beside a bare echo of them", ["", "DueTime", "bare echo", "ratio", "spread", "target"]
    )
    for name, (title, bound) in TITLES.items():
        if pairs := found.get(name):
            ours, theirs = zip(*pairs, strict=True)
            ratios = [a / b for a, b in pairs]
            ratio = statistics.median(ratios)
            rates = [f"{statistics.median(ours):,.0f}", f"{statistics.median(theirs):,.0f}", f"{ratio:.2f}"]
            met = "met" if ratio >= bound else "MISSED"
            table.rows.append([title, *rates, f"{min(ratios):.2f} to {max(ratios):.2f}", f">= {bound:.2f} {met}"])
    late = Table("lateness of a delivery_timestamp at 500/s, in ms", ["", "DueTime", "target"])
    for name, bound in LATE_MS_MAX.items():
        if "late" in found:
            late_ms = found["late"][name]
            late.rows.append([name, f"{late_ms:.1f}", f"<= {bound:g} {'met' if late_ms <= bound else 'MISSED'}"])
    waiting = Table("idle push consumers", ["", "memory, MB", "with them", "of one core, %", "with them"])
    for name, one in found.get("idle", {}).get("processes", {}).items():
        memory = [f"{one[key]:.0f}" for key in ("before_mb", "with_mb")]
        shares = [f"{100 * one[key]:.1f}" for key in ("before_cpu", "with_cpu")]
        waiting.rows.append([f"{name}, {found['idle']['count']:,} consumers", *memory, *shares])
    return [one for one in (table, late, waiting) if one.rows]
