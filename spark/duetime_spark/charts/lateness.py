"""The page of `lateness`: heat maps of minutes by level and by topic, and causes."""

from collections import Counter, defaultdict
from collections.abc import Callable
from math import log10

import plotly.graph_objects as go

from duetime_spark.charts.drawing import MINUTE_MS, ROWS_MOST, ResultDict, figure, utc
from duetime_spark.charts.parts import Chart, ChartPage, Grid, Tile
from duetime_spark.pages import span

_LONG_MS = 10_000
_CAUSES = {"accept": "#8d6fc7", "scan": "#d9902f", "consumer": "#3b82c4"}


def lateness(found: ResultDict) -> ChartPage:
    total = found["total"]
    if total is None:
        return ChartPage("Lateness", [Tile("0", "restored messages with a due time")], [])
    late, early = total["late_count"], total["early_count"]
    tiles = [
        Tile(f"{total['count']:,}", "restored"),
        Tile(f"{_ms(total['p50_ms'])}", "late at the median"),
        Tile(f"{_ms(total['p99_ms'])}", "at p99"),
        Tile(f"{_ms(total['p999_ms'])}", f"at p99.9; {_ms(total['max_ms'])} at most"),
        Tile(f"{late:,}", f"late: over {found['late_ms']} ms in one stage", "bad" if late else "good"),
        Tile(f"{early:,}", "early", "bad" if early else "good"),
    ]
    levels = [(row["at_ms"], f"level {row['level']}", row) for row in found["level_minutes"]]
    parts: list[Chart | Grid] = [_heat("Lateness by level", levels, lambda name: int(name.split()[1]))]
    if len({row["topic"] for row in found["topics"]}) > 1:
        sizes = Counter({row["topic"]: 0 for row in found["topics"]})
        for row in found["topics"]:
            sizes[row["topic"]] += row["count"]
        names = [topic for topic, _ in sizes.most_common(ROWS_MOST)]
        topics = [(row["at_ms"], row["topic"], row) for row in found["minutes"] if row["topic"] in names]
        parts.append(_heat("Lateness by topic", topics, lambda name: -names.index(name)))
    if late:
        parts.append(_causes(found))
    heads = (
        "#level",
        "topic",
        "#restored",
        "#p50 ms",
        "#p99 ms",
        "#p99.9 ms",
        "#max ms",
        "#early",
        "#late",
        "#accept",
        "#scan",
        "#consumer",
    )
    names_of = (
        "level",
        "topic",
        "count",
        "p50_ms",
        "p99_ms",
        "p999_ms",
        "max_ms",
        "early_count",
        "late_count",
        "late_accept",
        "late_scan",
        "late_consumer",
    )
    rows = [tuple(row[name] for name in names_of) for row in sorted(found["topics"], key=lambda row: -row["p99_ms"])]
    parts.append(
        Grid(
            "By level and topic",
            "Most late first. The last columns count late ones by their slowest stage.",
            heads,
            rows,
        )
    )
    return ChartPage("Lateness", tiles, parts)


def _ms(length_ms: int) -> str:
    return f"{length_ms:,} ms" if length_ms < _LONG_MS else span(length_ms)


def _heat(title: str, cells: list[tuple[int, str, ResultDict]], place: Callable[[str], int]) -> Chart:
    """p99 by minute; of several rows in one cell the highest."""
    values: dict[tuple[str, int], ResultDict] = {}
    for at_ms, name, row in cells:
        before = values.get((name, at_ms))
        if before is None or row["p99_ms"] > before["p99_ms"]:
            values[name, at_ms] = row
    names = sorted({name for _, name, _ in cells}, key=place)
    first, last = min(at_ms for at_ms, _, _ in cells), max(at_ms for at_ms, _, _ in cells)
    # Cells of a long log span several minutes, so that each is visible.
    step = max(1, -(-(last - first) // MINUTE_MS // 240)) * MINUTE_MS
    highest: dict[tuple[str, int], tuple[int, int]] = defaultdict(lambda: (0, 0))
    for (name, at_ms), row in values.items():
        key = name, (at_ms - first) // step
        p99, count = highest[key]
        highest[key] = max(p99, row["p99_ms"]), count + row["count"]
    columns = range((last - first) // step + 1)
    grid = [[highest[name, column][0] if (name, column) in highest else None for column in columns] for name in names]
    counts = [[highest[name, column][1] if (name, column) in highest else 0 for column in columns] for name in names]
    ticks = [1, 10, 100, 1_000, 10_000, 100_000]
    heat = go.Heatmap(
        x=[utc(first + column * step) for column in columns],
        y=names,
        z=[[None if value is None else _log(value) for value in line] for line in grid],
        text=[
            [
                f"p99 {value:,} ms of {count:,}" if value is not None else ""
                for value, count in zip(line, sizes, strict=True)
            ]
            for line, sizes in zip(grid, counts, strict=True)
        ],
        hovertemplate="%{y}, %{x}<br>%{text}<extra></extra>",
        colorscale=[[0, "#2a9d78"], [0.3, "#58ad74"], [0.5, "#e9d96a"], [0.7, "#e07b39"], [1, "#b3202a"]],
        zmin=0,
        zmax=max(4.0, _log(max(value for line in grid for value in line if value is not None))),
        colorbar={
            "title": {"text": "p99 ms"},
            "tickvals": [_log(tick) for tick in ticks],
            "ticktext": [f"{tick:,}" for tick in ticks],
            "outlinewidth": 0,
            "thickness": 14,
        },
        xgap=1,
        ygap=2,
    )
    drawn = figure(120 + 30 * len(names), [heat], yaxis={"type": "category"}, xaxis={"type": "date"})
    return Chart(title, f"p99 from due to stored in the topic, by {span(step)} of due times; green is on time.", drawn)


def _log(value: float) -> float:
    return log10(max(value, 1))


def _causes(found: ResultDict) -> Chart:
    sums: dict[int, Counter[str]] = defaultdict(Counter)
    for row in found["level_minutes"]:
        for cause in _CAUSES:
            sums[row["at_ms"]][cause] += row[f"late_{cause}"]
    late = {at_ms: counts for at_ms, counts in sorted(sums.items()) if counts.total()}
    bars = [
        go.Bar(
            x=[utc(at_ms + MINUTE_MS // 2) for at_ms in late],
            y=[counts[cause] for counts in late.values()],
            width=MINUTE_MS,
            name=cause,
            marker={"color": colour, "line": {"width": 0}},
        )
        for cause, colour in _CAUSES.items()
    ]
    words = "Late ones a minute, by their slowest stage: to be accepted, due to stored, to be received."
    axis = {"type": "date", "range": [utc(min(sums)), utc(max(sums) + MINUTE_MS)]}
    return Chart("Causes of lateness", words, figure(300, bars, barmode="stack", xaxis=axis))
