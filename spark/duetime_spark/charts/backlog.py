"""The page of `backlog`: the future as bars, by level."""

from collections import Counter
from typing import Any

import plotly.graph_objects as go

from duetime_spark.charts.drawing import (
    DAY_MS,
    HOUR_MS,
    MINUTE_MS,
    ROWS_MOST,
    ResultDict,
    figure,
    level_name,
    ramp,
    utc,
)
from duetime_spark.charts.parts import NOTHING, Cell, Chart, ChartPage, Grid, Tile, clock, moment
from duetime_spark.pages import span

_OVERDUE = "#d9432f"


def backlog(found: ResultDict) -> ChartPage:
    delays = {lane["level"]: lane["delay_ms"] for lane in found["lanes"]}
    colours = ramp(row["level"] for row in found["pending"])
    forecast = found["forecast"]
    overdue = found["overdue_count"]
    paused = f", {found['paused_count']:,} of paused schedules" if found["paused_count"] else ""
    tiles = [
        Tile(f"{found['pending_count']:,}", f"pending, {_bytes(found['pending_bytes'])}{paused}"),
        Tile(
            f"{overdue:,}",
            f"overdue, by up to {span(found['overdue_by_ms'])}" if overdue else "overdue",
            "bad" if overdue else "good",
        ),
        Tile(
            _ahead(found["next_due_at_ms"], found["now_ms"]),
            f"until the next is due, {clock(found['next_due_at_ms'], found['now_ms'])}",
        ),
        Tile(
            f"{forecast['needed_per_s']:,.1f}/s",
            f"to restore in the fullest minute, {clock(forecast['needed_at_ms'], found['now_ms'])}",
        ),
        Tile(
            f"{forecast['measured_per_s']:,.1f}/s",
            f"restored in the log's last 10 min, {forecast['measured_peak_per_s']:,}/s at most",
        ),
    ]
    parts: list[Chart | Grid] = []
    if found["due_minutes"] or overdue:
        parts.append(_future(found, delays, colours))
    if any(row["at_ms"] > found["now_ms"] + 3 * HOUR_MS for row in found["due_hours"]):
        chart = _due_bars(found["due_hours"], HOUR_MS, delays, colours)
        later = f" {found['later_count']:,} are due later." if found["later_count"] else ""
        parts.append(Chart("Due in the next 30 days", f"Messages an hour.{later}", figure(320, chart, barmode="stack")))
    if found["pending"]:
        parts.append(_by_topic(found, delays, colours))
    own = ("#shard", "level", "topic", "#pending", "#bytes")
    heads = (*own, "oldest due", "#overdue", "by up to", "next due", "#paused")
    rows = [
        (
            row["shard"],
            level_name(row["level"], delays),
            row["topic"] or NOTHING,
            row["count"],
            row["bytes"],
            moment(row["oldest_due_at_ms"]),
            Cell(f"{row['overdue_count']:,}", "number no") if row["overdue_count"] else 0,
            span(row["overdue_by_ms"]) if row["overdue_count"] else NOTHING,
            moment(row["next_due_at_ms"]),
            row["paused_count"],
        )
        for row in sorted(found["pending"], key=lambda row: -row["count"])
    ]
    parts.append(Grid("By shard, level and topic", "The fullest first.", heads, rows))
    return ChartPage("Backlog", tiles, parts)


def _future(found: ResultDict, delays: dict[int, Any], colours: dict[int, str]) -> Chart:
    now_ms = found["now_ms"]
    bars = _due_bars(found["due_minutes"], MINUTE_MS, delays, colours)
    if found["overdue_count"]:
        at = utc(now_ms // MINUTE_MS * MINUTE_MS - MINUTE_MS // 2)
        bars.append(
            go.Bar(
                x=[at],
                y=[found["overdue_count"]],
                width=MINUTE_MS,
                name="overdue",
                marker={"color": _OVERDUE, "line": {"width": 0}},
            )
        )
    last_ms = max((row["at_ms"] for row in found["due_minutes"]), default=now_ms)
    # Up to the last due minute, half an hour at least.
    end_ms = min(max(last_ms + 2 * MINUTE_MS, now_ms + DAY_MS // 48), now_ms + DAY_MS)
    start_ms = now_ms - max((end_ms - now_ms) // 60, 2 * MINUTE_MS)
    axis = {"range": [utc(start_ms), utc(end_ms)], "type": "date"}
    words = f"Messages a minute, for the next {span(end_ms - now_ms)}."
    return Chart("Messages due", words, figure(380, bars, barmode="stack", xaxis=axis))


def _due_bars(rows: list[ResultDict], unit_ms: int, delays: dict[int, Any], colours: dict[int, str]) -> list[Any]:
    """Stacked by level; a bar begins with its minute or hour."""
    levels = sorted({row["level"] for row in rows})
    bars = []
    for level in levels:
        own = [row for row in rows if row["level"] == level]
        bars.append(
            go.Bar(
                x=[utc(row["at_ms"] + unit_ms // 2) for row in own],
                y=[row["count"] for row in own],
                width=unit_ms,
                name=level_name(level, delays),
                marker={"color": colours.get(level, "#888"), "line": {"width": 0}},
            )
        )
    return bars


def _by_topic(found: ResultDict, delays: dict[int, Any], colours: dict[int, str]) -> Chart:
    sums: Counter[str] = Counter()
    cells: Counter[tuple[str, int]] = Counter()
    for row in found["pending"]:
        sums[row["topic"] or "unknown"] += row["count"]
    shown = [topic for topic, _ in sums.most_common(ROWS_MOST)]
    rest = f"{len(sums) - len(shown)} others"
    for row in found["pending"]:
        topic = row["topic"] or "unknown"
        cells[topic if topic in shown else rest, row["level"]] += row["count"]
    topics = [*([rest] if len(sums) > len(shown) else []), *reversed(shown)]
    bars = [
        go.Bar(
            y=topics,
            x=[cells[topic, level] for topic in topics],
            orientation="h",
            name=level_name(level, delays),
            marker={"color": colours[level], "line": {"width": 0}},
        )
        for level in sorted(colours)
    ]
    drawn = figure(110 + 30 * len(topics), bars, barmode="stack", yaxis={"type": "category"})
    return Chart("Pending by topic", "Messages, by delay.", drawn)


def _bytes(count: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1_000:
            return f"{count:,.0f} {unit}" if unit == "bytes" else f"{count:,.1f} {unit}"
        count /= 1_000
    return f"{count:,.1f} TB"


def _ahead(at_ms: int | None, now_ms: int) -> str:
    return NOTHING if at_ms is None else span(max(0, at_ms - now_ms))
