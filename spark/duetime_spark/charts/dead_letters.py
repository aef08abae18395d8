"""The page of `dead_letters`: errors and their consumer groups."""

from collections import Counter

import plotly.graph_objects as go
from plotly.colors import sample_colorscale

from duetime_spark.charts.drawing import ResultDict, figure
from duetime_spark.charts.parts import NOTHING, Cell, Chart, ChartPage, Grid, Tile, moment


def dead_letters(found: ResultDict) -> ChartPage:
    tiles = [
        Tile(f"{found['count']:,}", "dead letters", "bad" if found["count"] else "good"),
        Tile(f"{found['group_count']:,}", "kinds of failure"),
        Tile(f"{len({row['group'] for row in found['groups']}):,}", "consumer groups"),
    ]
    parts: list[Chart | Grid] = []
    sums: Counter[tuple[str, str]] = Counter()
    for row in found["groups"]:
        sums[row["signature"], row["group"]] += row["count"]
    errors: Counter[str] = Counter()
    for (signature, _), count in sums.items():
        errors[signature] += count
    shown = [signature for signature, _ in errors.most_common(15)][::-1]
    groups = sorted({group for _, group in sums})
    if shown:
        colours = dict(
            zip(
                groups,
                sample_colorscale("Viridis", [0.1 + 0.8 * n / max(len(groups) - 1, 1) for n in range(len(groups))]),
                strict=True,
            )
        )
        bars = [
            go.Bar(
                y=[_short(one) for one in shown],
                x=[sums[one, group] for one in shown],
                customdata=shown,
                hovertemplate="%{customdata}: %{x:,}<extra>" + group + "</extra>",
                orientation="h",
                name=group,
                marker={"color": colours[group], "line": {"width": 0}},
            )
            for group in groups
        ]
        parts.append(
            Chart(
                "Errors",
                "Dead letters by error and consumer group.",
                figure(120 + 30 * len(shown), bars, barmode="stack", yaxis={"type": "category"}),
            )
        )
    heads = ("#letters", "group", "topic", "#attempts", "producer", "newest", "error", "the newest, for example")
    rows = [
        (
            row["count"],
            row["group"],
            row["topic"],
            row["attempts"],
            row["producer"],
            moment(row["last_at_ms"]),
            Cell(row["signature"], "words"),
            Cell(_sample(row), "words"),
        )
        for row in found["groups"]
    ]
    parts.append(Grid("By error, topic, attempts and producer", "", heads, rows))
    return ChartPage("Dead letters", tiles, parts)


def _sample(row: ResultDict) -> str:
    sample = next(iter(row["samples"]), None)
    return f"{sample['id'] or sample['offset']}: {sample['error'] or NOTHING}" if sample else NOTHING


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:59] + "…"
