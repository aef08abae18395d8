"""The page of `retries`: deliveries until success, and wasted ones."""

import plotly.graph_objects as go

from duetime_spark.charts.drawing import ROWS_MOST, ResultDict, figure, ramp
from duetime_spark.charts.parts import Chart, ChartPage, Grid, Tile


def retries(found: ResultDict) -> ChartPage:
    share = found["wasted"] / found["deliveries"] if found["deliveries"] else 0.0
    tiles = [
        Tile(f"{found['deliveries']:,}", "deliveries"),
        Tile(f"{found['succeeded']:,}", "succeeded"),
        Tile(f"{found['wasted']:,}", f"wasted, {share:.1%}", "bad" if found["wasted"] else "good"),
        Tile(f"{found['lapsed']:,}", "messages lapsed"),
    ]
    parts: list[Chart | Grid] = []
    rows = sorted(found["groups"], key=lambda row: row["deliveries"])[-ROWS_MOST:]
    attempts = sorted({int(attempt) for row in rows for attempt in row["by_attempt"]})
    if attempts:
        names = [f"{row['group']} · {row['topic']}" for row in rows]
        colours = ramp(attempts)
        bars = [
            go.Bar(
                y=names,
                x=[row["by_attempt"].get(attempt, 0) for row in rows],
                orientation="h",
                name=f"attempt {attempt}",
                marker={"color": colours[attempt], "line": {"width": 0}},
            )
            for attempt in attempts
        ]
        parts.append(
            Chart(
                "Deliveries until success",
                "Messages by their successful attempt.",
                figure(120 + 30 * len(rows), bars, barmode="stack", yaxis={"type": "category"}),
            )
        )
    columns = ("deliveries", "succeeded", "failed", "expired", "dead", "returned", "open", "lapsed")
    heads = ("group", "topic", *(f"#{name}" for name in columns), "#wasted", "#per success")
    table = [
        (
            row["group"],
            row["topic"],
            *(row[name] for name in columns),
            f"{row['wasted_share']:.1%}",
            row["attempts_per_success"],
        )
        for row in sorted(found["groups"], key=lambda row: -row["wasted"])
    ]
    parts.append(Grid("By group and topic", "The most wasted first.", heads, table))
    return ChartPage("Retries", tiles, parts)
