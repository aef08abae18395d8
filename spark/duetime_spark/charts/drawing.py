"""The style of charts: one figure, colours by level, moments."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import plotly.graph_objects as go
from duetime.cli.output import length
from duetime_format.lanes import TIMER_LANE_FIRST, is_timer_lane
from plotly.colors import sample_colorscale

ResultDict = dict[str, Any]
ROWS_MOST = 20
MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000


def figure(height: int, traces: Iterable[Any], **layout: Any) -> go.Figure:
    made = go.Figure(list(traces))
    made.update_layout(
        template="none",
        height=height,
        margin={"l": 60, "r": 20, "t": 30, "b": 40},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": "system-ui, sans-serif", "size": 13},
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "traceorder": "normal"},
        bargap=0.08,
        **layout,
    )
    made.update_xaxes(automargin=True)
    made.update_yaxes(automargin=True)
    return made


def utc(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def level_name(level: int, delays: dict[int, int | None]) -> str:
    delay_ms = delays.get(level)
    if is_timer_lane(level):
        return "any time" if level == TIMER_LANE_FIRST else f"any time (lane {level})"
    return f"{length(delay_ms)} (level {level})" if delay_ms else f"level {level}"


def ramp(levels: Iterable[int]) -> dict[int, str]:
    """Colours by level, from short delays to long ones."""
    ordered = sorted(set(levels))
    places = [0.18 + 0.74 * number / max(len(ordered) - 1, 1) for number in range(len(ordered))]
    return dict(zip(ordered, sample_colorscale("Viridis", places), strict=True)) if ordered else {}
