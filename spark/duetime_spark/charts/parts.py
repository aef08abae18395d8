"""Parts of a page: figures, charts, tables and moments."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import plotly.graph_objects as go

# Shown instead of a missing value.
NOTHING = "-"


@dataclass(frozen=True)
class Tile:
    """One figure; `mood` is good, bad or nothing."""

    value: str
    words: str
    mood: str = ""


@dataclass(frozen=True)
class Chart:
    title: str
    words: str
    figure: go.Figure


@dataclass(frozen=True)
class Cell:
    """A cell of a table with a style."""

    text: str
    kind: str


@dataclass(frozen=True)
class Grid:
    """A table; heads with a leading `#` are of numbers."""

    title: str
    words: str
    heads: tuple[str, ...]
    rows: list[tuple[Any, ...]]


@dataclass(frozen=True)
class ChartPage:
    heading: str
    tiles: list[Tile]
    parts: list[Chart | Grid]


def moment(at_ms: int | None) -> str:
    if not at_ms:
        return NOTHING
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"


def clock(at_ms: int | None, near_ms: int) -> str:
    """The time alone if it is on the day of `near_ms`."""
    text = moment(at_ms)
    return text.rpartition(" ")[2] if at_ms and text[:10] == moment(near_ms)[:10] else text
