"""Results of `bench.webhooks` as a table of text."""

from typing import Any

from bench.tables import Table


def webhook_tables(found: dict[str, Any]) -> list[Table]:
    """The table of a worker, if it was measured."""
    if not found:
        return []
    many, most, full = found["many_count"], found["most_count"], found["full"]
    table = Table("one webhook worker, plain HTTP to one receiver", ["", "value", "cores of the worker"])
    for title, part in (("1 webhook", found["few"]), (f"{many} webhooks", found["many"])):
        table.rows.append([f"posted/s by {title}", f"{part['per_s']:,.0f}", f"{part['cores']:.2f}"])
    late = found["late_ms"]
    rate = found["rate"]
    table.rows.append([f"due to request at {rate}/s, ms, p50 (p99)", f"{late['p50']:.0f} ({late['p99']:.0f})", ""])
    table.rows.append(["memory in MB with 1 webhook", f"{found['memory_few_mb']:.0f}", ""])
    table.rows.append([f"memory in MB with {most} idle webhooks", f"{found['memory_max_mb']:.0f}", ""])
    table.rows.append([f"{most} idle webhooks", "", f"{found['idle_cores']:.3f}"])
    stored = f"{many} webhooks, whose receiver hangs with {full['stored_mb']:,.0f} MB of messages stored"
    table.rows.append([f"at most, in MB, {stored}", f"{full['memory_mb']:.0f}", ""])
    return [table]
