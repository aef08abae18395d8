"""Cells: numbers of messages of one lane and topic due in one span of time; columns of them. Pure.

A cell's key is one number. Keys order cells by lane, then by due time, then by topic:

    bits 62 to 52   lane     its number
         51 to 50   width    of the span: MINUTE, HOUR, DAY or LATER
         49 to 24   start    of the span, in spans since 1970; 0 for LATER
         23 to  0   topic    its number on the shard

A lane is counted by minute up to a time, by hour from there up to another, then by day, then together: its grain. So
the due time alone determines an entry's cell, and within a lane the order of keys is that of time.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from duetime_format.units import Ints

MINUTE_MS = 60_000
MINUTE, HOUR, DAY, LATER = range(4)
# Minutes. All time ends in 2097; later due times count to the last minute.
HOUR_SPAN, DAY_SPAN, TIME_END = 60, 1_440, 1 << 26
SPANS = np.array([1, HOUR_SPAN, DAY_SPAN, TIME_END], np.int64)

TOPIC_BITS, START_BITS, WIDTH_BITS = 24, 26, 2
WIDTH_AT = TOPIC_BITS + START_BITS
LANE_AT = WIDTH_AT + WIDTH_BITS
TOPICS_MAX = 1 << TOPIC_BITS
LANES_MAX = 1 << 63 - LANE_AT
_TOPIC_MASK = TOPICS_MAX - 1
_START_MASK = (1 << START_BITS) - 1

# Approximate number of rows in one piece of a merge: some 0.3 ms.
PIECE_ROWS = 8_192


class CountGrain(NamedTuple):
    """The times up to which a lane is counted by minute, by hour and by day, in minutes since 1970: a multiple of an
    hour and two of a day, in ascending order."""

    minutes_end: int
    hours_end: int
    days_end: int


class CellColumn(NamedTuple):
    """Cells in the order of their keys, each once."""

    keys: Ints
    counts: Ints

    def between(self, low: int, high: int) -> "CellColumn":
        """The cells with low <= key < high."""
        first, stop = np.searchsorted(self.keys, (low, high)).tolist()
        return CellColumn(self.keys[first:stop], self.counts[first:stop])


NOTHING = CellColumn(np.empty(0, np.int64), np.empty(0, np.int64))


def lane_keys(lane: int) -> tuple[int, int]:
    """The range of keys of a lane."""
    return lane << LANE_AT, lane + 1 << LANE_AT


def span_keys(lane: int, width: int, start: int, stop: int) -> tuple[int, int]:
    """The range of keys of all topics, for spans from `start` up to `stop` of one width, in minutes."""
    span = int(SPANS[width])
    head = lane << WIDTH_BITS | width
    return (head << START_BITS | start // span) << TOPIC_BITS, (head << START_BITS | -(-stop // span)) << TOPIC_BITS


def keys_of(lane: int, grain: CountGrain, minutes: Ints, topics: Ints | int) -> Ints:
    """The cells of entries that fall due in these minutes since 1970."""
    if not len(minutes):
        return NOTHING.keys
    if minutes.max() < grain.minutes_end:
        return ((lane << WIDTH_AT - TOPIC_BITS + WIDTH_BITS) + minutes << TOPIC_BITS) + topics
    widths = np.searchsorted(grain, minutes, side="right")
    heads = (lane << WIDTH_BITS) + widths
    keys: Ints = ((heads << START_BITS) + minutes // SPANS[widths] << TOPIC_BITS) + topics
    return keys


def minutes_of(dues_ms: Ints) -> Ints:
    """The minutes since 1970 in which entries fall due, within 0 and TIME_END."""
    # A tenth of the time of numpy's clip.
    return np.minimum(np.maximum(dues_ms // MINUTE_MS, 0), TIME_END - 1)


def keys_due(lane: int, grain: CountGrain, dues_ms: Ints, topics: Ints) -> Ints:
    """The cells of entries with these due times."""
    return keys_of(lane, grain, minutes_of(dues_ms), topics)


def span_start(grain: CountGrain, minute: int) -> int:
    """The start of the span in which entries of a minute are counted."""
    width = bisect_right(grain, minute)
    return grain.days_end if width == LATER else minute - minute % int(SPANS[width])


def span_end(grain: CountGrain, minute: int) -> int:
    """The end of that span."""
    width = bisect_right(grain, minute)
    return TIME_END if width == LATER else span_start(grain, minute) + int(SPANS[width])


def lanes_of(keys: Ints) -> Ints:
    return keys >> LANE_AT


def widths_of(keys: Ints) -> Ints:
    return keys >> WIDTH_AT & LATER


def starts_of(keys: Ints) -> Ints:
    """The start of each span, in minutes since 1970; 0 for LATER."""
    starts: Ints = (keys >> TOPIC_BITS & _START_MASK) * SPANS[widths_of(keys)]
    return starts


def topics_of(keys: Ints) -> Ints:
    return keys & _TOPIC_MASK


def coarser(keys: Ints, lane: int, grain: CountGrain) -> Ints:
    """The cells of a lane that contain these cells, for a grain that is nowhere finer."""
    rekeyed = keys_of(lane, grain, starts_of(keys), topics_of(keys))
    later = span_keys(lane, LATER, 0, 0)[0] + topics_of(keys)
    return np.where(widths_of(keys) == LATER, later, rekeyed)


def summed(keys: Ints, counts: Ints) -> CellColumn:
    """Rows in any order as a column, without cells that sum to 0."""
    if not len(keys):
        return NOTHING
    # Stable is quick if the rows are runs in order.
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    first = np.flatnonzero(np.diff(keys, prepend=-1))
    sums = np.add.reduceat(counts[order], first)
    kept = sums != 0
    return CellColumn(keys[first][kept], sums[kept])


def joined(columns: Sequence[CellColumn]) -> CellColumn:
    """The sum of columns."""
    filled = [column for column in columns if len(column.keys)]
    if len(filled) == 1:
        return filled[0]
    return summed(_joined([one.keys for one in filled]), _joined([one.counts for one in filled]))


def chained(columns: Sequence[CellColumn]) -> CellColumn:
    """Concatenates columns with consecutive keys."""
    return CellColumn(_joined([one.keys for one in columns]), _joined([one.counts for one in columns]))


def pieces(columns: Sequence[CellColumn], low: int, high: int) -> Iterator[CellColumn]:
    """The sum of columns from one key up to another, in consecutive pieces."""
    parts = [column.between(low, high) for column in columns]
    keys = max((part.keys for part in parts), key=len, default=NOTHING.keys)
    step = max(PIECE_ROWS * len(keys) // max(sum(len(part.keys) for part in parts), 1), 1)
    for first, stop in pairwise([low, *keys[step::step].tolist(), high]):
        yield joined([part.between(first, stop) for part in parts])


def _joined(arrays: Sequence[npt.NDArray[Any]]) -> Ints:
    return np.concatenate(arrays) if arrays else NOTHING.keys
