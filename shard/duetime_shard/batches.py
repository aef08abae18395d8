"""Batches in a walk of the log: those torn by a crash are left out.

    all records intact        a batch
    torn                      bytes were never written: the batch was not acknowledged, and none of its records count;
                              at the end of the log, the log ends before it
    damaged                   bytes were written, but are wrong: the batch was once whole, and its other records count

Unwritten bytes read as zeros, in whole sectors or after the end of a write: the log's files are zero beyond their
records. Everything before a checkpoint is durable, so nothing there is torn.
"""

from collections.abc import Iterator

import numpy as np
from duetime_format import batches
from duetime_format.columns import RecordRun

from duetime_shard.walk import DamagedRecord, Item, ScannableLog, SkippedBytes, intact_at, item_end, scan_runs

SECTOR_BYTES = 512
# Shorter runs of zeros at the edge of a damaged place may belong to a record.
_EDGE_BYTES_MIN = 4

Span = tuple[int, int]


class TornBatch(SkippedBytes):
    """The remains of a batch that was not written whole."""


def scan_whole(log: ScannableLog, position: int, settled: int = 0, cut: list[Span] | None = None) -> Iterator[Item]:
    """As `scan_runs`, without the remains of torn batches.

    Args:
        settled: nothing before this position is torn.
        cut: gets the batch that contains the end of the log, if there is one.
    """
    return _BatchWalk(log, max(position, settled), [] if cut is None else cut).from_(position)


class _BatchWalk:
    """Holds back damaged places until their batch is known, and a batch until its end is reached."""

    def __init__(self, log: ScannableLog, first: int, cut: list[Span]) -> None:
        self._log = log
        self._first = first
        self._cut = cut
        self._held: list[Item] = []
        self._open: Span | None = None

    def from_(self, position: int) -> Iterator[Item]:
        """Walks from a position on."""
        more: int | None = position
        while more is not None:
            for item in scan_runs(self._log, more):
                yield from self._take(item)
            more = self._written_since()
        yield from self._settle(at_end=True)

    def _written_since(self) -> int | None:
        """Position at which the open batch continues, if a running store has written more of it meanwhile."""
        if self._open is None:
            return None
        intact = [item_end(item) for item in self._held if not _is_damaged(item)]
        at = max(intact, default=self._open[0])
        segment = self._log.segment_from(at)
        if segment is None or segment.base > at or intact_at(segment, at) is None:
            return None
        self._held = [item for item in self._held if _start_of(item) < at]
        return at

    def _take(self, item: Item) -> Iterator[Item]:
        if self._open is not None and _start_of(item) >= self._open[1]:
            yield from self._settle()
        if _is_damaged(item):
            self._held.append(item)
        elif isinstance(item, RecordRun):
            yield from self._take_run(item)
        else:
            yield from self._pass(item)

    def _pass(self, item: Item) -> Iterator[Item]:
        if self._open is None:
            yield from self._held
            self._held.clear()
            yield item
        else:
            self._held.append(item)

    def _take_run(self, run: RecordRun) -> Iterator[Item]:
        rows, starts, ends = batches.spans_of(run)
        if not len(rows):
            yield from self._pass(run)
            return
        if self._open is None and rows[0] == 0 and starts[0] < _start_of(run):
            # Its first records are damaged, or precede the walk.
            span = int(starts[0]), int(ends[0])
            if self._may_open(span, _start_of(run)):
                yield from self._begin(span)
        if self._open is not None and self._open[1] <= run.end_position:
            inside = int(np.searchsorted(run.positions, self._open[1]))
            self._held.append(_part(run, 0, inside))
            yield from self._settle()
            run = _part(run, inside, run.count)
            rows = rows[rows >= inside] - inside
            starts, ends = starts[len(starts) - len(rows) :], ends[len(ends) - len(rows) :]
        if self._open is None and len(rows) and ends[-1] > run.end_position:
            span = int(starts[-1]), int(ends[-1])
            first = int(np.searchsorted(run.positions, span[0]))
            if first < run.count and run.positions[first] == span[0] >= self._first:
                if first:
                    yield from self._pass(_part(run, 0, first))
                yield from self._begin(span)
                run = _part(run, first, run.count)
        if run.count:
            yield from self._pass(run)

    def _may_open(self, span: Span, position: int) -> bool:
        """Whether a batch with a record at `position` begins here or in the held items."""
        return span[0] >= self._first and (
            span[0] == position or any(_start_of(item) <= span[0] < item_end(item) for item in self._held)
        )

    def _begin(self, span: Span) -> Iterator[Item]:
        """Opens a batch that is incomplete so far; yields the held items before it."""
        while self._held and item_end(self._held[0]) <= span[0]:
            yield self._held.pop(0)
        self._open = span

    def _settle(self, *, at_end: bool = False) -> Iterator[Item]:
        """Decides on the held items."""
        held, self._held, span, self._open = self._held, [], self._open, None
        if span is None:
            yield from held
        elif not self._is_torn(span, held):
            if not at_end and item_end(held[-1]) > span[1]:
                # It may contain the start of the next batch.
                self._held.append(held.pop())
            yield from held
        elif at_end:
            self._cut.append(span)
        else:
            yield TornBatch(span[0], span[1] - span[0], f"a batch of {span[1] - span[0]} bytes was not written whole")
            last = held[-1]
            if item_end(last) > span[1] and isinstance(last, SkippedBytes):
                self._held.append(SkippedBytes(span[1], item_end(last) - span[1], last.damage))

    def _is_torn(self, span: Span, held: list[Item]) -> bool:
        """Whether bytes were never written in a part of the batch without intact records."""
        at, gaps = span[0], []
        for item in held:
            if not _is_damaged(item):
                if _start_of(item) > at:
                    gaps.append((at, _start_of(item)))
                at = item_end(item)
        if at < span[1]:
            gaps.append((at, span[1]))
        return any(self._has_hole(*gap, span) for gap in gaps)

    def _has_hole(self, first: int, end: int, span: Span) -> bool:
        segment = self._log.segment_from(first)
        if segment is None or segment.base > first:
            return False
        data = segment.read_file(first, end - first)
        if len(data) < end - first or not data[-1]:
            # No record ends with a zero byte.
            return True
        for at in range(first - first % SECTOR_BYTES, end, SECTOR_BYTES):
            start, stop = max(at, first), min(at + SECTOR_BYTES, end)
            is_whole = stop - start >= _EDGE_BYTES_MIN or start == span[0]
            if is_whole and not any(data[start - first : stop - first]):
                return True
        return False


def _start_of(item: Item) -> int:
    return int(item.positions[0]) if isinstance(item, RecordRun) else item.position


def _is_damaged(item: Item) -> bool:
    return isinstance(item, SkippedBytes | DamagedRecord)


def _part(run: RecordRun, first: int, stop: int) -> RecordRun:
    """Rows [first, stop)."""
    if (first, stop) == (0, run.count):
        return run
    end = int(run.starts[stop]) if stop < run.count else run.end
    # The compiled twins need contiguous arrays.
    entries = None if run.entries is None else np.ascontiguousarray(run.entries[:, first:stop])
    columns = np.ascontiguousarray(run.columns[:, first:stop])
    return RecordRun(run.data, run.position, end, run.keys, columns, entries, run.destinations)
