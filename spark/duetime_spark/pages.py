"""Results as tables, for people."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from duetime.cli.output import length, local, print_table
from duetime_format.printing import echo

_LINES = 40


def print_outcome(job: str, found: dict[str, Any]) -> None:
    """Prints a result; `found`: as `--json` prints it."""
    for shard in found["shards"]:
        moment = local(_moment(shard["at_ms"]))
        echo(f"shard {shard['shard']}, {shard['name']}: log up to {shard['position']:,}, last record {moment}")
    _PRINTERS[job](found)
    for finding in found["findings"]:
        echo(f"damaged: {finding['path']} at {finding['position']}: {finding['words']}")


def _backlog(found: dict[str, Any]) -> None:
    overdue = f", {found['overdue_count']:,} overdue by up to {span(found['overdue_by_ms'])}"
    echo(
        f"{found['pending_count']:,} pending, {found['pending_bytes']:,} bytes"
        f"{overdue if found['overdue_count'] else ', none overdue'}; next due {at(found['next_due_at_ms'])}"
    )
    rows = [
        (
            str(row["shard"]),
            str(row["level"]),
            row["topic"] or "-",
            f"{row['count']:,}",
            f"{row['bytes']:,}",
            at(row["oldest_due_at_ms"]),
            f"{row['overdue_count']:,}",
            span(row["overdue_by_ms"]) if row["overdue_count"] else "-",
            at(row["next_due_at_ms"]),
            f"{row['paused_count']:,}",
        )
        for row in found["pending"]
    ]
    own = ["#shard", "#level", "topic", "#pending", "#bytes"]
    heads = [*own, "oldest due", "#overdue", "#by up to", "next due", "#paused"]
    _table(heads, rows)
    forecast = found["forecast"]
    echo(
        f"fullest minute ahead: {forecast['needed_per_s']:,.1f} restores/s at {at(forecast['needed_at_ms'])}; "
        f"restored in the log's last 10 minutes: {forecast['measured_per_s']:,.1f}/s, "
        f"{forecast['measured_peak_per_s']:,}/s at most"
    )


def _lateness(found: dict[str, Any]) -> None:
    heads = ["#level", "topic", "#restored", "#p50 ms", "#p99 ms", "#p99.9 ms", "#max ms"]
    heads += ["#early", "#late", "#accept", "#scan", "#consumer"]
    whole = [found["total"]] if found["total"] else []
    names = ["count", "p50_ms", "p99_ms", "p999_ms", "max_ms", "early_count", "late_count"]
    names += ["late_accept", "late_scan", "late_consumer"]
    rows = [
        (
            "" if row["level"] is None else str(row["level"]),
            row["topic"] or "all",
            *(f"{row[name]:,}" for name in names),
        )
        for row in found["topics"] + whole
    ]
    _table(heads, rows)
    echo(f"late: more than {found['late_ms']} ms; the last columns count late ones by their slowest stage")
    if found["undated_count"]:
        echo(f"{found['undated_count']:,} were restored by a broker, without a due time")


def _audit(found: dict[str, Any]) -> None:
    heads = ["#shard", "#level", "#accepted", "#expired", "#pending", "#restored", "#dead", "#cancelled"]
    heads += ["#replaced", "#missing", "#early", "proven"]
    names = [head.lstrip("#") for head in heads[2:-1]]
    rows = [
        (
            "all" if row["shard"] is None else str(row["shard"]),
            "" if row["level"] is None else str(row["level"]),
            *(f"{row[name]:,}" for name in names),
            "yes" if row["is_proven"] else "NO",
        )
        for row in [*found["lanes"], found["total"]]
        if row["accepted"] or row["shard"] is None
    ]
    _table(heads, rows)
    for one in found["violations"]:
        echo(
            f"{one['kind']}: shard {one['shard']} level {one['level']} entry {one['offset']}, id {one['id'] or '-'}, "
            f"at {one['position']}, due {at(one['due_at_ms'])}, stored {at(one['stored_at_ms'])}"
        )
    left = sum(found["violation_counts"].values()) - len(found["violations"])
    if left:
        echo(f"and {left:,} more violations")
    if found["transactions"]:
        echo("\nTransactions")
        names = ["accepted", "expired", "open", "committed", "rolled_back", "given_up", "ended"]
        _table(
            ["#shard", *(f"#{name.replace('_', ' ')}" for name in names), "proven"],
            [
                (str(row["shard"]), *(f"{row[name]:,}" for name in names), "yes" if row["is_proven"] else "NO")
                for row in found["transactions"]
            ],
        )
    for one in found["transaction_violations"]:
        echo(f"{one['kind']}: shard {one['shard']} half message {one['offset']}, {one['state']}, at {one['position']}")
    if found["schedules"]:
        echo("\nSchedules")
        names = ["schedules", "delivered", "unjudged"]
        _table(
            ["#shard", *(f"#{name}" for name in names), "proven"],
            [
                (str(row["shard"]), *(f"{row[name]:,}" for name in names), "yes" if row["is_proven"] else "NO")
                for row in found["schedules"]
            ],
        )
    for one in found["schedule_violations"]:
        echo(
            f"{one['kind']}: shard {one['shard']} schedule {one['schedule']} of topic {one['topic']}, "
            f"planned {at(one['planned_at_ms'])}, at {one['position']}"
        )


def _dead_letters(found: dict[str, Any]) -> None:
    rows = [
        (
            f"{row['count']:,}",
            row["group"],
            row["topic"],
            str(row["attempts"]),
            row["producer"],
            at(row["last_at_ms"]),
            row["signature"],
            next((sample["id"] or "-" for sample in row["samples"]), "-"),
        )
        for row in found["groups"]
    ]
    _table(["#letters", "group", "topic", "#attempts", "producer", "newest", "error", "for example"], rows)
    more = f", {found['left_out']:,} of them not shown" if found["left_out"] else ""
    echo(f"{found['count']:,} dead letters in {found['group_count']:,} groups{more}")


def _retries(found: dict[str, Any]) -> None:
    names = ("deliveries", "succeeded", "failed", "expired", "dead", "returned", "open", "lapsed")
    rows = [
        (
            row["group"],
            row["topic"],
            *(f"{row[name]:,}" for name in names),
            f"{row['wasted_share']:.1%}",
            "-" if row["attempts_per_success"] is None else f"{row['attempts_per_success']:.2f}",
            " ".join(f"{attempt}:{count}" for attempt, count in row["by_attempt"].items()),
        )
        for row in found["groups"]
    ]
    heads = ["group", "topic", *(f"#{name}" for name in names), "#wasted", "#per success", "succeeded by attempt"]
    _table(heads, rows)
    echo(f"{found['deliveries']:,} deliveries, {found['wasted']:,} of them wasted; {found['lapsed']:,} messages lapsed")


_PRINTERS: dict[str, Callable[[dict[str, Any]], None]] = {
    "backlog": _backlog,
    "lateness": _lateness,
    "audit": _audit,
    "dead_letters": _dead_letters,
    "retries": _retries,
}


def _table(heads: list[str], rows: Sequence[tuple[str, ...]]) -> None:
    if rows:
        print_table(heads, rows[:_LINES])
    if len(rows) > _LINES:
        echo(f"and {len(rows) - _LINES:,} more rows: --json has all")


def at(at_ms: int | None) -> str:
    return "-" if at_ms is None else local(_moment(at_ms))


def span(length_ms: int) -> str:
    """`2h 5m` of 7,512,345: its two largest units; below a second in ms."""
    if length_ms < 1_000:
        return f"{length_ms}ms"
    parts = []
    rest = length_ms // 1_000 * 1_000
    for unit_ms in (86_400_000, 3_600_000, 60_000, 1_000):
        if rest >= unit_ms:
            parts.append(length(rest // unit_ms * unit_ms))
            rest %= unit_ms
    return " ".join(parts[:2])


def _moment(at_ms: int) -> datetime | None:
    return datetime.fromtimestamp(at_ms / 1000, UTC) if at_ms else None
