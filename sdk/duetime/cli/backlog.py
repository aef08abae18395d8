"""`duetime backlog`: counts of pending messages by due time."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

import typer
from duetime_format.printing import echo

from duetime.cli.backlog_report import print_report, report_object
from duetime.cli.gateway import CALL_TIMEOUT, call, reach
from duetime.cli.options import DueOptions, Json, OfTopic, Server, given, grouped, watched
from duetime.cli.output import about, iso, local, print_chart, print_json, print_table
from duetime.client.finding.finder import AsyncFinder
from duetime.client.finding.pending import Backlog, DueCount
from duetime.client.message import at_ms
from duetime.client.message import moment as moment_of
from duetime.v1 import backlog_pb2

TOPICS_SHOWN = 20
ROWS_SHOWN = 48
# The rows of the chart: messages due up to each of these lengths from now.
_STEPS_MS = {
    "10 s": 10_000,
    "1 min": 60_000,
    "10 min": 600_000,
    "1 h": 3_600_000,
    "6 h": 6 * 3_600_000,
    "24 h": 86_400_000,
    "7 d": 7 * 86_400_000,
    "30 d": 30 * 86_400_000,
    "1 y": 365 * 86_400_000,
}


class ChartRowWidth(StrEnum):
    """The width of the chart's rows."""

    MINUTE = "minute"
    HOUR = "hour"
    DAY = "day"

    @property
    def width_ms(self) -> int:
        return {"minute": 60_000, "hour": 3_600_000, "day": 86_400_000}[self.value]


@watched
@grouped
def backlog(
    *,
    topic: OfTopic = None,
    due: DueOptions,
    by: Annotated[
        ChartRowWidth | None, typer.Option("--by", help="Rows of equal width. Default: growing widths.")
    ] = None,
    spark: Annotated[
        bool, typer.Option("--spark", help="The latest report of `duetime spark backlog`, and its drift.")
    ] = False,
    server: Server = None,
    as_json: Json = False,
) -> None:
    """Count pending and overdue messages by due time.

    The counts are the shards' own, exact as of now. With --spark: the latest report, counted from the log, by topic,
    and the drift of the live counters from it, allowing for messages that came and went since (0 is right).

    \b
    Examples:
      duetime backlog
      duetime backlog --topic orders --by hour --before 2026-12-25
      duetime backlog --json | jq .pending_count
      duetime backlog --spark
    """
    if spark:
        found = call(server, "GetBacklogReport", backlog_pb2.GetBacklogReportRequest())
        print_json(report_object(found)) if as_json else print_report(found)
        _end(found.unreachable_shards)
        return
    together, by_topic = asyncio.run(_count(server, given("--topic", topic), *due.times()))
    if as_json:
        print_json(_object(together, by_topic))
    else:
        _print(together, by_topic, by)
    _end(together.unreachable_shards)


def _end(unreachable_shards: Sequence[int]) -> None:
    for shard in unreachable_shards:
        echo(f"duetime: shard {shard} does not answer; its messages are missing", err=True)
    if unreachable_shards:
        raise typer.Exit(1)


async def _count(
    server: str | None, topic: str, after: datetime | None, before: datetime | None
) -> tuple[Backlog, Backlog]:
    """Counts for all topics together, with finer buckets for the near future; and by topic."""
    async with AsyncFinder(await reach(server), timeout=CALL_TIMEOUT) as finder:
        together = await finder.backlog(topic, after=after, before=before)
        return together, await finder.backlog(topic, after=after, before=before, by_topic=True)


def _print(together: Backlog, by_topic: Backlog, by: ChartRowWidth | None) -> None:
    parts = [f"{together.pending:,} pending"]
    if together.overdue:
        parts.append(f"{together.overdue:,} overdue")
    later = [count.start + count.width for count in together.counts if count.start > together.at]
    if later:
        parts.append(f"next due by {local(later[0])}")
    echo(", ".join(parts))
    if not together.pending:
        return
    echo()
    print_chart(_growing_rows(together) if by is None else _equal_rows(together, by.width_ms))
    echo()
    print_table(["topic", "#pending", "first due"], _topic_rows(by_topic))


def _growing_rows(found: Backlog) -> list[tuple[str, int]]:
    """Each row begins at the end of the one before. Overdue messages are counted exactly; all others belong to the row
    of the start of their bucket."""
    now = at_ms(found.at)
    rows = [("overdue", found.overdue)]
    counts: dict[str, int] = dict.fromkeys((*_STEPS_MS, "later"), 0)
    for count in found.counts:
        ahead_ms = at_ms(count.start) - now
        counts[next((name for name, step_ms in _STEPS_MS.items() if ahead_ms < step_ms), "later")] += count.count
    # The first row's buckets include overdue messages.
    counts["10 s"] -= found.overdue
    last = max((n for n, count in enumerate(counts.values()) if count), default=0)
    shown = list(counts.items())[: last + 1]
    return rows + [(f"within {name}" if name in _STEPS_MS else name, count) for name, count in shown]


def _equal_rows(found: Backlog, width_ms: int) -> list[tuple[str, int]]:
    """Rows from the first non-empty one, including empty rows; then buckets wider than a row, each with its end; the
    last row has the rest."""
    rows: dict[int, int] = defaultdict(int)
    wide: dict[tuple[int, int], int] = defaultdict(int)
    for count in found.counts:
        start_ms, bucket_ms = at_ms(count.start), round(count.width.total_seconds() * 1000)
        if bucket_ms > width_ms:
            wide[start_ms, start_ms + bucket_ms] += count.count
        else:
            rows[start_ms - start_ms % width_ms] += count.count
    named: list[tuple[str, int]] = []
    if rows:
        starts = list(range(min(rows), max(rows) + 1, width_ms))[:ROWS_SHOWN]
        named = list(zip(_labels(starts), (rows.get(one, 0) for one in starts), strict=True))
    for (start_ms, end_ms), total in sorted(wide.items())[: ROWS_SHOWN - len(named)]:
        named.append((" to ".join(_labels([start_ms, end_ms])), total))
    left = sum(count.count for count in found.counts) - sum(shown for _, shown in named)
    return [*named, ("later", left)] if left else named


def _labels(starts_ms: Sequence[int]) -> list[str]:
    """Local times; with their offset from UTC if a clock change makes two of them equal."""
    times = [moment_of(one).astimezone() for one in starts_ms]
    labels = [f"{one:%Y-%m-%d %H:%M}" for one in times]
    return [
        f"{one:%Y-%m-%d %H:%M %z}" if labels.count(label) > 1 else label
        for one, label in zip(times, labels, strict=True)
    ]


def _topic_rows(found: Backlog) -> list[tuple[str, ...]]:
    """Rows by size, the largest first."""
    topics: dict[str, list[DueCount]] = defaultdict(list)
    for count in found.counts:
        topics[count.topic].append(count)
    sums = sorted(((sum(one.count for one in counts), name) for name, counts in topics.items()), reverse=True)
    rows: list[tuple[str, ...]] = []
    for total, name in sums[:TOPICS_SHOWN]:
        first = topics[name][0]
        end_ms = at_ms(first.start + first.width) - at_ms(found.at)
        rows.append((name or "-", f"{total:,}", f"within {about(end_ms)}" if first.start > found.at else "now"))
    if len(sums) > TOPICS_SHOWN:
        rest = sum(total for total, _ in sums[TOPICS_SHOWN:])
        rows.append((f"{len(sums) - TOPICS_SHOWN} more", f"{rest:,}", ""))
    return rows


def _object(together: Backlog, by_topic: Backlog) -> dict[str, Any]:
    topics: dict[str, int] = defaultdict(int)
    for one in by_topic.counts:
        topics[one.topic] += one.count
    return {
        "at": iso(together.at),
        "pending_count": together.pending,
        "overdue_count": together.overdue,
        "buckets": [
            {"due_from": iso(one.start), "width_ms": round(one.width.total_seconds() * 1000), "count": one.count}
            for one in together.counts
        ],
        "topics": dict(sorted(topics.items())),
        "unreachable_shards": together.unreachable_shards,
    }
