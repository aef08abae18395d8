"""The pages of `audit`, `dead_letters` and `retries`."""

from collections import Counter, defaultdict

import plotly.graph_objects as go
from plotly.colors import sample_colorscale

from duetime_spark.charts.drawing import ROWS_MOST, Found, figure, ramp
from duetime_spark.report import NOTHING, Cell, Chart, Grid, Page, Tile, moment

_ENDS = {
    "expired": "#98a2b3",
    "pending": "#3b82c4",
    "restored": "#2a9d78",
    "dead": "#d9902f",
    "cancelled": "#8d6fc7",
    "missing": "#d9432f",
}


def audit(found: Found) -> Page:
    total = found["total"]
    violations = sum(found["violation_counts"].values())
    tiles = [
        Tile(
            "proven" if found["is_proven"] else "not proven",
            "exactly one end for each, none early",
            "good" if found["is_proven"] else "bad",
        ),
        Tile(f"{total['accepted']:,}", "accepted into lanes"),
        Tile(f"{total['restored']:,}", "restored"),
        Tile(f"{total['pending']:,}", "pending"),
        Tile(f"{violations:,}", "violations", "bad" if violations else "good"),
    ]
    lanes = [row for row in found["lanes"] if row["accepted"]]
    parts: list[Chart | Grid] = []
    if lanes:
        parts.append(_shares(lanes))
    heads: tuple[str, ...] = (
        "#shard",
        "#level",
        "#accepted",
        "#= expired",
        "#+ pending",
        "#+ restored",
        "#+ dead",
        "#+ cancelled",
        "#+ missing",
        "#early",
        "proven",
    )
    columns = ("shard", "level", "accepted", *_ENDS, "early")
    rows = [
        (
            *(
                "all" if row[name] is None and name == "shard" else "" if row[name] is None else row[name]
                for name in columns
            ),
            Cell("yes", "good") if row["is_proven"] else Cell("NO", "bad"),
        )
        for row in [*lanes, total]
    ]
    parts.append(Grid("The proof", "Each line adds up.", heads, rows))
    if found["violations"]:
        heads = ("what", "#shard", "#level", "#entry", "id", "#position", "due", "stored")
        rows = [
            (
                Cell(one["kind"], "no"),
                one["shard"],
                one["level"],
                one["offset"],
                one["id"] or NOTHING,
                one["position"],
                moment(one["due_at_ms"]),
                moment(one["stored_at_ms"]),
            )
            for one in found["violations"]
        ]
        parts.append(Grid("Violations", f"{len(rows):,} of {violations:,}.", heads, rows))
    return Page("Audit", tiles, parts)


def _shares(lanes: list[Found]) -> Chart:
    """Of levels, over all shards."""
    sums: dict[int, Counter[str]] = defaultdict(Counter)
    for lane in lanes:
        sums[lane["level"]].update({end: lane[end] for end in ("accepted", *_ENDS)})
    levels = sorted(sums, reverse=True)
    bars = [
        go.Bar(
            y=[f"level {level}" for level in levels],
            x=[sums[level][end] / sums[level]["accepted"] for level in levels],
            customdata=[f"{sums[level][end]:,}" for level in levels],
            hovertemplate="%{y}: %{customdata} " + end + "<extra></extra>",
            orientation="h",
            name=end,
            marker={"color": colour, "line": {"width": 0}},
        )
        for end, colour in _ENDS.items()
        if any(sums[level][end] for level in levels)
    ]
    axis = {"tickformat": ".0%", "range": [0, 1]}
    drawn = figure(100 + 24 * len(levels), bars, barmode="stack", xaxis=axis, yaxis={"type": "category"})
    return Chart("Where accepted messages are", "Shares of each level, over all shards.", drawn)


def dead_letters(found: Found) -> Page:
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
                "What went wrong",
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
    return Page("Dead letters", tiles, parts)


def _sample(row: Found) -> str:
    sample = next(iter(row["samples"]), None)
    return f"{sample['id'] or sample['offset']}: {sample['error'] or NOTHING}" if sample else NOTHING


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:59] + "…"


def retries(found: Found) -> Page:
    share = found["wasted"] / found["deliveries"] if found["deliveries"] else 0.0
    tiles = [
        Tile(f"{found['deliveries']:,}", "deliveries"),
        Tile(f"{found['succeeded']:,}", "succeeded"),
        Tile(f"{found['wasted']:,}", f"for nothing, {share:.1%}", "bad" if found["wasted"] else "good"),
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
                "Messages by the attempt that succeeded.",
                figure(120 + 30 * len(rows), bars, barmode="stack", yaxis={"type": "category"}),
            )
        )
    columns = ("deliveries", "succeeded", "failed", "expired", "dead", "returned", "open")
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
    return Page("Retries", tiles, parts)
