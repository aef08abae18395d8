"""The page of `audit`: the proof line by line, and the ends of accepted messages."""

from collections import Counter, defaultdict
from collections.abc import Iterator

import plotly.graph_objects as go

from duetime_spark.charts.drawing import ResultDict, figure, level_name
from duetime_spark.charts.parts import NOTHING, Cell, Chart, ChartPage, Grid, Tile, moment

_ENDS = {
    "expired": "#98a2b3",
    "pending": "#3b82c4",
    "restored": "#2a9d78",
    "dead": "#d9902f",
    "cancelled": "#8d6fc7",
    "replaced": "#b9a3e3",
    "missing": "#d9432f",
}


_TRANSACTIONS = ("accepted", "expired", "open", "committed", "rolled_back", "given_up", "ended")
_SCHEDULES = ("schedules", "delivered", "unjudged")
_VIOLATION = ("shard", "offset", "state", "position")


def audit(found: ResultDict) -> ChartPage:
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
        "#+ replaced",
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
            _proven(row),
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
    if found["transactions"]:
        parts.append(_transactions(found["transactions"]))
    if wrong := found["transaction_violations"]:
        heads = ("what", "#shard", "#half message", "state", "#position")
        rows = [(Cell(one["kind"], "no"), *(one[name] or NOTHING for name in _VIOLATION)) for one in wrong]
        parts.append(Grid("Violations of transactions", "The first of them.", heads, rows))
    parts += _schedules(found)
    return ChartPage("Audit", tiles, parts)


def _proven(row: ResultDict) -> Cell:
    return Cell("yes", "good") if row["is_proven"] else Cell("NO", "bad")


def _schedules(found: ResultDict) -> Iterator[Grid]:
    if found["schedules"]:
        heads: tuple[str, ...] = ("#shard", *(f"#{name}" for name in _SCHEDULES), "proven")
        rows = [(one["shard"], *(one[name] for name in _SCHEDULES), _proven(one)) for one in found["schedules"]]
        note = "Occurrences, each once and with the next one; those unjudged are planned by a time zone."
        yield Grid("Schedules", note, heads, rows)
    if wrong := found["schedule_violations"]:
        heads = ("what", "#shard", "topic", "schedule", "planned", "#position")
        rows = [
            (
                Cell(one["kind"], "no"),
                *(one[name] for name in ("shard", "topic", "schedule")),
                moment(one["planned_at_ms"]),
                one["position"],
            )
            for one in wrong
        ]
        yield Grid("Violations of schedules", "The first of them.", heads, rows)


def _transactions(proofs: list[ResultDict]) -> Grid:
    heads = ("#shard", *(f"#{name.replace('_', ' ')}" for name in _TRANSACTIONS), "proven")
    rows = [
        (
            row["shard"],
            *(row[name] for name in _TRANSACTIONS),
            _proven(row),
        )
        for row in proofs
    ]
    return Grid("Transactions", "Half messages of each shard by their ends.", heads, rows)


def _shares(lanes: list[ResultDict]) -> Chart:
    """Shares of each level, over all shards."""
    sums: dict[int, Counter[str]] = defaultdict(Counter)
    for lane in lanes:
        sums[lane["level"]].update({end: lane[end] for end in ("accepted", *_ENDS)})
    levels = sorted(sums, reverse=True)
    bars = [
        go.Bar(
            y=[level_name(level, {}) for level in levels],
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
    return Chart("Accepted messages", "Shares of each level, over all shards.", drawn)
