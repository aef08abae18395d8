"""The buckets of an answer: cells of a snapshot, put together by topic and lane. Pure.

Lanes have grains of their own: if one is counted by hour and another by minute, the answer has buckets of both widths.
"""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from duetime_format.units import Ints

from duetime_store.counting.cells import (
    DAY,
    LATER,
    MINUTE,
    MINUTE_MS,
    SPANS,
    START_BITS,
    TIME_END,
    TOPIC_BITS,
    WIDTH_BITS,
    CellColumn,
    joined,
    lane_keys,
    lanes_of,
    pieces,
    span_keys,
    starts_of,
    summed,
    topics_of,
    widths_of,
)
from duetime_store.counting.counts import CountSnapshot

# The number of all lanes together.
TOGETHER = 0


@dataclass(frozen=True, slots=True)
class CountRequest:
    """The request for counts. Times are Unix ms."""

    # None: all.
    topic: int | None = None
    from_ms: int = 0
    before_ms: int = TIME_END * MINUTE_MS
    topics_together: bool = False
    lanes_together: bool = False


@dataclass(frozen=True, slots=True)
class Buckets:
    """Columns of an answer: in order of due time, wide ones after those that begin with them."""

    starts_ms: Ints
    widths_ms: Ints
    counts: Ints
    # -1: all together.
    topics: Ints
    # TOGETHER: all together.
    lanes: Ints


class Tally:
    """Puts cells together, a piece at a time."""

    def __init__(self, snapshot: CountSnapshot, wanted: CountRequest, buckets_max: int) -> None:
        """If there are more than `buckets_max` buckets, all are made coarser, up to days."""
        self._snapshot = snapshot
        self._wanted = wanted
        self._buckets_max = buckets_max
        # No bucket is finer.
        self.finest = MINUTE
        self._parts: list[CellColumn] = []
        self._row_count = 0
        # The start of LATER, by the lane's number in the answer.
        self._later: dict[int, int] = {}

    def add(self, lanes: Sequence[int], skipped: tuple[int, int] = (0, 0)) -> Iterator[None]:
        """Adds the cells of lanes, in steps.

        Args:
            skipped: first and last minute of a range to leave out while buckets are as fine as minutes.
        """
        while not (yield from self._add_all(lanes, skipped if self.finest == MINUTE else (0, 0))):
            self.finest += 1
            self._parts, self._row_count = [], 0

    def _add_all(self, lanes: Sequence[int], skipped: tuple[int, int]) -> Generator[None, None, bool]:
        """Returns whether the buckets are few enough, or can't be fewer."""
        for lane in lanes:
            grain = self._snapshot.grains.get(lane)
            if grain is None:
                continue
            own = TOGETHER if self._wanted.lanes_together else lane
            self._later[own] = min(self._later.get(own, TIME_END), grain.days_end)
            for piece in pieces(self._snapshot.columns, *lane_keys(lane)):
                self._take(self._chosen(piece, grain.days_end, skipped), own)
                if self._row_count > 2 * self._buckets_max:
                    self._put_together()
                    if self._row_count > self._buckets_max and self.finest < DAY:
                        return False
                yield
        return len(self._put_together().keys) <= self._buckets_max or self.finest == DAY

    def _chosen(self, piece: CellColumn, later: int, skipped: tuple[int, int]) -> CellColumn:
        """The cells of the requested buckets, including buckets that its range cuts."""
        keys, wanted = piece.keys, self._wanted
        widths = np.maximum(widths_of(keys), self.finest)
        spans = SPANS[widths]
        starts = starts_of(keys)
        starts = np.where(widths == LATER, later, starts - starts % spans)
        ends = np.where(widths == LATER, TIME_END, starts + spans)
        chosen = (ends * MINUTE_MS > wanted.from_ms) & (starts * MINUTE_MS < wanted.before_ms)
        chosen &= (starts < skipped[0]) | (starts >= skipped[1])
        if wanted.topic is not None:
            chosen &= topics_of(keys) == wanted.topic
        return CellColumn(keys[chosen], piece.counts[chosen])

    def _take(self, piece: CellColumn, lane: int) -> None:
        keys = piece.keys
        widths = np.maximum(widths_of(keys), self.finest)
        topics = 0 if self._wanted.topics_together else topics_of(keys)
        keys = (lane << WIDTH_BITS) + widths << START_BITS
        keys = (keys + starts_of(piece.keys) // SPANS[widths] << TOPIC_BITS) + topics
        self._parts.append(summed(keys, piece.counts))
        self._row_count += len(self._parts[-1].keys)

    def _put_together(self) -> CellColumn:
        column = joined(self._parts)
        self._parts, self._row_count = [column], len(column.keys)
        return column

    def buckets(self) -> Buckets:
        """The buckets of all added cells."""
        keys, counts = self._put_together()
        lanes, widths, starts = lanes_of(keys), widths_of(keys), starts_of(keys)
        spans = SPANS[widths]
        for lane, later in self._later.items():
            own = (widths == LATER) & (lanes == lane)
            starts[own], spans[own] = later, TIME_END - later
        topics = np.full(len(keys), -1) if self._wanted.topics_together else topics_of(keys)
        order = np.lexsort((topics, lanes, spans, starts))
        columns = (starts * MINUTE_MS, spans * MINUTE_MS, counts, topics, lanes)
        return Buckets(*(column[order] for column in columns))


def due_before(snapshot: CountSnapshot, lane: int, topic: int, minute: int) -> int:
    """Entries of a topic due before a minute that starts a span (cells.span_start)."""
    count = 0
    for width in range(LATER):
        low, high = span_keys(lane, width, 0, minute - minute % int(SPANS[width]))
        for column in snapshot.columns:
            rows = column.between(low, high)
            count += int(rows.counts[topics_of(rows.keys) == topic].sum())
    return count
