"""The table of pending messages by lane, topic and due time: exact after each change. Pure.

    changes ──▶ buffer of rows ──(full: summed)──▶ runs, each in order ──(merge, in steps)──▶ base

A change is a row: a cell and +1 or -1. A cell's value is the sum of its rows, so counting reads nothing, and costs some
numpy calls per batch. Base and runs never change: a snapshot is these columns, and its reader delays no other.

Cells are as fine as their lane's grain (cells.py). As time passes a grain moves on: the lane's entries of its next span
are surveyed, and their rows replace those of the coarse cells. If there are more than `cells_max` cells, the farthest
ones are folded: the grain moves back, and their rows go to coarser cells.

Followed topics have totals of their own, so their counts are known without reading the cells.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from duetime_format.compiled import twin
from duetime_format.units import Ints

from duetime_store.counting.cells import (
    DAY,
    DAY_SPAN,
    HOUR,
    HOUR_SPAN,
    LATER,
    MINUTE,
    MINUTE_MS,
    NOTHING,
    TIME_END,
    CellColumn,
    CountGrain,
    coarser,
    joined,
    keys_due,
    lane_keys,
    lanes_of,
    pieces,
    span_keys,
    starts_of,
    summed,
    topics_of,
)
from duetime_store.counting.survey import LaneSurvey

# Cells of a shard: 16 MB, and as much again while they are merged.
CELLS_MAX = 1_000_000
# Cells are folded down to this share, and refined while there is room below it: in between, neither happens.
FOLD_TO = 7 / 8
BY_MINUTE_MS = 48 * 3_600_000
BY_HOUR_MS = 60 * 86_400_000
# Rows of the buffer, and of runs before they are merged; at least this, and this part of the base.
BUFFER_ROWS = 8_192
RUN_ROWS = 65_536
RUN_SHARE = 4

# Maximum finer cells from one coarse cell; for LATER, in one step.
_PARTS = (1, 60, 24, 1)

_compiled = twin("duetime_store.counting._cells")
quickest_keys = keys_due if _compiled is None else _compiled.keys_due


class LaneChangeWatcher(Protocol):
    """A survey: counts entries of a lane while they change."""

    @property
    def lane(self) -> int: ...

    def change(self, entries: Ints, dues: Ints, topics: Ints, by: int) -> None:
        """Applies entries that have come (1) or left (-1)."""


class Span(NamedTuple):
    """A span of a lane to be counted by another grain."""

    lane: int
    start_ms: int
    stop_ms: int
    grain: CountGrain


@dataclass(frozen=True, slots=True)
class CountSnapshot:
    """The table at one moment; it does not change later. A cell is the sum of its rows in all columns."""

    columns: tuple[CellColumn, ...]
    grains: Mapping[int, CountGrain]
    totals: Mapping[int, int]


def natural(now_ms: int) -> CountGrain:
    """The grain at a time, if there is room."""
    return CountGrain(
        -(-(now_ms + BY_MINUTE_MS) // (HOUR_SPAN * MINUTE_MS)) * HOUR_SPAN,
        -(-(now_ms + BY_HOUR_MS) // (DAY_SPAN * MINUTE_MS)) * DAY_SPAN,
        TIME_END - TIME_END % DAY_SPAN,
    )


class Counts:
    """See the module."""

    def __init__(self, now_ms: int, *, cells_max: int = CELLS_MAX, followed: Sequence[int] = ()) -> None:
        """`followed`: numbers of topics, ascending. A topic added later starts with no count."""
        self.cells_max = cells_max
        # Pending entries of each lane.
        self.totals: dict[int, int] = {}
        # Pending entries of followed topics, by lane.
        self.followed: dict[int, dict[int, int]] = {}
        self._to_follow = followed
        # Whether a topic is followed; the last one applies to all later topics.
        self._flags = np.zeros(1, np.bool_)
        self._flagged = 0
        self._natural = natural(now_ms)
        self._grains: dict[int, CountGrain] = {}
        self._base = NOTHING
        self._runs: list[CellColumn] = []
        self._keys, self._changes = np.empty(BUFFER_ROWS, np.int64), np.empty(BUFFER_ROWS, np.int64)
        self._filled = 0
        self._watchers: set[LaneChangeWatcher] = set()
        # Lanes with an impossible cell: they have to be recounted.
        self.suspects: set[int] = set()

    # --- counting -----------------------------------------------------------------------------------------------------

    def change(self, lane: int, entries: Ints, dues: Ints, topics: Ints, by: int) -> None:
        """Counts entries of a lane that have come (1), or were restored, cancelled or replaced (-1)."""
        self.totals[lane] = self.totals.get(lane, 0) + by * len(entries)
        if self._to_follow:
            self._follow(lane, topics, by)
        own_dues, own_topics = np.ascontiguousarray(dues, np.int64), np.ascontiguousarray(topics, np.int64)
        self._add(quickest_keys(lane, self.grain(lane), own_dues, own_topics), by)
        for watcher in self._watchers:
            if watcher.lane == lane:
                watcher.change(entries, dues, topics, by)

    def grain(self, lane: int) -> CountGrain:
        return self._grains.setdefault(lane, self._natural)

    def _follow(self, lane: int, topics: Ints, counts: Ints | int) -> None:
        if self._flagged < len(self._to_follow):
            self._flagged = len(self._to_follow)
            self._flags = np.zeros(self._to_follow[-1] + 2, np.bool_)
            self._flags[self._to_follow] = True
        own = self._flags.take(topics, mode="clip")
        if not own.any():
            return
        numbers, which = np.unique(topics[own], return_inverse=True)
        sums = np.zeros(len(numbers), np.int64)
        np.add.at(sums, which, counts if isinstance(counts, int) else counts[own])
        for topic, count in zip(numbers.tolist(), sums.tolist(), strict=True):
            lanes = self.followed.setdefault(topic, {})
            lanes[lane] = lanes.get(lane, 0) + count

    def _refollow(self, lane: int, column: CellColumn) -> None:
        """Recomputes followed topics of a lane; the column has all its cells."""
        for lanes in self.followed.values():
            lanes.pop(lane, None)
        if self._to_follow:
            self._follow(lane, topics_of(column.keys), column.counts)

    def _add(self, keys: Ints, by: int) -> None:
        stop = self._filled + len(keys)
        if stop > BUFFER_ROWS:
            self._sum_buffer()
            stop = self._filled + len(keys)
            if stop > BUFFER_ROWS:
                self._push(summed(keys, np.full(len(keys), by)))
                return
        self._keys[self._filled : stop] = keys
        self._changes[self._filled : stop] = by
        self._filled = stop

    def _sum_buffer(self) -> None:
        """Makes room in the buffer: by summing it if that helps, otherwise by turning it into a run."""
        self._fill(self._buffer())
        if self._filled > BUFFER_ROWS // 4:
            self._push(NOTHING)

    def _buffer(self) -> CellColumn:
        return summed(self._keys[: self._filled], self._changes[: self._filled])

    def _fill(self, column: CellColumn) -> None:
        self._filled = len(column.keys)
        self._keys[: self._filled], self._changes[: self._filled] = column

    def _push(self, column: CellColumn) -> None:
        """Adds a run, after the rows of the buffer: the base is always the sum of the oldest rows, so none of its cells
        is below 0."""
        self._runs += [run for run in (self._buffer(), column) if len(run.keys)]
        self._filled = 0

    # --- reading ------------------------------------------------------------------------------------------------------

    def _columns(self) -> tuple[CellColumn, ...]:
        buffer = self._buffer()
        self._fill(buffer)
        return self._base, *self._runs, buffer

    def snapshot(self) -> CountSnapshot:
        return CountSnapshot(self._columns(), dict(self._grains), dict(self.totals))

    def column(self, low: int, high: int) -> CellColumn:
        """The cells with low <= key < high, which must be few."""
        return joined([column.between(low, high) for column in self._columns()])

    def of_topic(self, topic: int) -> int:
        """Pending entries of a followed topic, in all lanes."""
        # Other threads read it too.
        return sum(list(self.followed.get(topic, {}).values()))

    @property
    def cell_count(self) -> int:
        """The maximum number of cells."""
        return len(self._base.keys) + sum(len(run.keys) for run in self._runs) + self._filled

    # --- merging and folding ------------------------------------------------------------------------------------------

    @property
    def is_crowded(self) -> bool:
        """Whether `merge` is wanted."""
        return sum(len(run.keys) for run in self._runs) > max(RUN_ROWS, len(self._base.keys) // RUN_SHARE)

    @property
    def is_full(self) -> bool:
        """Whether `fold` is wanted."""
        return self.cell_count > self.cells_max

    def merge(self) -> Iterator[None]:
        """Sums base and runs in steps; changes may come between them."""
        yield from self._merge(None)

    def fold(self) -> Iterator[None]:
        """Makes far cells coarser until there are few enough, in steps. Cells of the coarsest kind stay."""
        while True:
            yield from self._merge(None)
            to = self._to_fold() if len(self._base.keys) > self.cells_max * FOLD_TO else None
            if to is None:
                return
            yield from self._merge(to)

    def _merge(self, to: tuple[int, CountGrain] | None) -> Iterator[None]:
        """`to`: a lane, and its new, coarser grain."""
        self._push(NOTHING)
        runs = list(self._runs)
        folded, count = NOTHING, 0
        room = len(self._base.keys) + sum(len(run.keys) for run in runs)
        # Filled piece by piece: no step is longer for a large table.
        merged = CellColumn(np.empty(room, np.int64), np.empty(room, np.int64))
        for piece in pieces([self._base, *runs], 0, np.iinfo(np.int64).max):
            stays, moved = (piece, NOTHING) if to is None else _folded(piece, *to)
            folded = joined([folded, moved])
            stop = count + len(stays.keys)
            merged.keys[count:stop], merged.counts[count:stop] = stays
            count = stop
            below = stays.keys[stays.counts < 0]
            self.suspects |= set(lanes_of(below).tolist())
            yield
        later = self._runs[len(runs) :]
        self._base, self._runs = CellColumn(merged.keys[:count], merged.counts[:count]), later
        if to is not None:
            lane, grain = to
            self._runs = [folded, *(joined(_folded(run, lane, grain)) for run in later)]
            self._fill(joined(_folded(self._buffer(), lane, grain)))
            self._grains[lane] = grain

    def _to_fold(self) -> tuple[int, CountGrain] | None:
        """The next fold: the farther half of the coarsest cells, of the lane that has most of them."""
        for width in (DAY, HOUR, MINUTE):
            most, chosen = 0, None
            for lane, grain in self._grains.items():
                first = _foldable_from(width, grain)
                cells = self._base.between(*span_keys(lane, width, first, TIME_END)).keys
                if len(cells) > most:
                    middle = int(starts_of(cells[len(cells) // 2 : len(cells) // 2 + 1])[0])
                    most, chosen = len(cells), (lane, _moved_back(width, grain, max(first, middle)))
            if chosen is not None:
                return chosen
        return None

    # --- refining -----------------------------------------------------------------------------------------------------

    def to_refine(self, now_ms: int) -> Span | None:
        """The next span to be counted more finely; None: there is none, or no room."""
        wanted = self._natural = natural(now_ms)
        for lane in self._grains:
            while (span := self._next_span(lane, wanted)) is not None:
                width, start, stop = self._coarse(span)
                coarse = self.column(*span_keys(lane, width, start, stop))
                if not len(coarse.keys):
                    # No entry is counted there.
                    self._grains[lane] = span.grain
                    continue
                fine_count = min(int(coarse.counts.sum()), len(coarse.keys) * int(_PARTS[width]))
                if self.cell_count + fine_count > self.cells_max * FOLD_TO:
                    break
                return span
        return None

    def _next_span(self, lane: int, wanted: CountGrain) -> Span | None:
        if not self.totals.get(lane):
            self._grains[lane] = CountGrain(*map(max, self._grains[lane], wanted))
            return None
        # No grain passes the coarser one: once that has moved on, the finer one may.
        while True:
            before = self._grains[lane]
            span = self._coarse_span(lane, wanted)
            if span is not None or self._grains[lane] == before:
                return span

    def _coarse_span(self, lane: int, wanted: CountGrain) -> Span | None:
        """The nearest span that is too coarse. Grains move on at once over empty spans: a clock may leap by years."""
        grain = self._grains[lane]
        minutes = self._first_cell(lane, HOUR, grain.minutes_end, min(wanted.minutes_end, grain.hours_end))
        grain = self._grains[lane] = grain._replace(minutes_end=minutes)
        if minutes < min(wanted.minutes_end, grain.hours_end):
            return _span(lane, minutes, minutes + HOUR_SPAN, grain._replace(minutes_end=minutes + HOUR_SPAN))
        hours = self._first_cell(lane, DAY, grain.hours_end, min(wanted.hours_end, grain.days_end))
        grain = self._grains[lane] = grain._replace(hours_end=hours)
        days = grain.days_end
        if hours < min(wanted.hours_end, days):
            return _span(lane, hours, hours + DAY_SPAN, grain._replace(hours_end=hours + DAY_SPAN))
        if days < wanted.days_end:
            return self._later_span(lane, grain, wanted)
        return None

    def _first_cell(self, lane: int, width: int, start: int, stop: int) -> int:
        """The start of the first span in [start, stop) with any entry; `stop` if there is none."""
        if start >= stop:
            return start
        found = [column.between(*span_keys(lane, width, start, stop)).keys[:1] for column in self._columns()]
        return int(starts_of(np.concatenate(found)).min(initial=stop))

    def _later_span(self, lane: int, grain: CountGrain, wanted: CountGrain) -> Span | None:
        if len(self.column(*span_keys(lane, LATER, 0, 1)).keys):
            stop = grain.days_end + DAY_SPAN
            return _span(lane, grain.days_end, stop, grain._replace(days_end=stop))
        self._grains[lane] = grain._replace(days_end=wanted.days_end)
        return None

    def _coarse(self, span: Span) -> tuple[int, int, int]:
        """Width, start and stop of the coarse cells of a span."""
        start, stop = span.start_ms // MINUTE_MS, span.stop_ms // MINUTE_MS
        grain = self._grains[span.lane]
        if start >= grain.days_end:
            return LATER, 0, 1
        return HOUR if start < grain.hours_end else DAY, start, stop

    def begin(self, watcher: LaneChangeWatcher) -> None:
        """Sends changes to the watcher from now on, until `end`."""
        self._watchers.add(watcher)

    def end(self, watcher: LaneChangeWatcher) -> None:
        """Idempotent."""
        self._watchers.discard(watcher)

    def refine(self, span: Span, survey: LaneSurvey) -> None:
        """Replaces the coarse cells by the survey's counts."""
        self.end(survey)
        fine = survey.counted()
        width, start, stop = self._coarse(span)
        self._push(joined([fine, summed(coarser(fine.keys, span.lane, self._grains[span.lane]), -fine.counts)]))
        left = self.column(*span_keys(span.lane, width, start, stop))
        if len(left.keys) and (width != LATER or left.counts.min() < 0):
            self.suspects.add(span.lane)
        self._grains[span.lane] = span.grain

    def replace(self, survey: LaneSurvey) -> None:
        """Replaces all cells of a lane by the counts of its survey."""
        self.end(survey)
        low, high = lane_keys(survey.lane)
        self._base, *runs = (_without(column, low, high) for column in self._columns())
        column = survey.counted()
        self._runs, self._filled = [run for run in (*runs, column) if len(run.keys)], 0
        self._grains[survey.lane] = survey.grain
        self.totals[survey.lane] = int(column.counts.sum())
        self._refollow(survey.lane, column)
        self.suspects.discard(survey.lane)

    def whole(self, lane: int) -> LaneSurvey:
        """A survey of a whole lane, for `replace`."""
        return LaneSurvey(lane, -(1 << 62), 1 << 62, self._natural)

    # --- loading ------------------------------------------------------------------------------------------------------

    def load(self, base: CellColumn, grains: Mapping[int, CountGrain]) -> None:
        """Loads a saved table; nothing may be counted yet."""
        self._base = base
        self._grains = dict(grains)
        lanes = lanes_of(base.keys)
        self.totals = {lane: int(base.counts[lanes == lane].sum()) for lane in grains}
        for lane in grains:
            self._refollow(lane, base.between(*lane_keys(lane)))


def _span(lane: int, start: int, stop: int, grain: CountGrain) -> Span:
    return Span(lane, start * MINUTE_MS, stop * MINUTE_MS, grain)


def _foldable_from(width: int, grain: CountGrain) -> int:
    """The first minute from which a lane's cells of a width can be folded: its fine cells must end at a coarse one."""
    if width == MINUTE:
        return 0
    return grain.hours_end if width == DAY else -(-grain.minutes_end // DAY_SPAN) * DAY_SPAN


def _moved_back(width: int, grain: CountGrain, to: int) -> CountGrain:
    """The grain after cells of a width, from a minute on, are folded."""
    if width == DAY:
        return grain._replace(days_end=to - to % DAY_SPAN)
    if width == HOUR:
        return grain._replace(hours_end=to - to % DAY_SPAN)
    return grain._replace(minutes_end=to - to % HOUR_SPAN)


def _folded(column: CellColumn, lane: int, grain: CountGrain) -> tuple[CellColumn, CellColumn]:
    """(the cells that stay, the coarser cells of the others) if a lane gets a coarser grain."""
    low, high = lane_keys(lane)
    own = column.between(low, high)
    if not len(own.keys):
        return column, NOTHING
    keys = coarser(own.keys, lane, grain)
    moved = keys != own.keys
    if not moved.any():
        return column, NOTHING
    first = int(np.searchsorted(column.keys, low))
    stays = np.ones(len(column.keys), np.bool_)
    stays[first : first + len(own.keys)] = ~moved
    return CellColumn(column.keys[stays], column.counts[stays]), summed(keys[moved], own.counts[moved])


def _without(column: CellColumn, low: int, high: int) -> CellColumn:
    first, stop = np.searchsorted(column.keys, (low, high)).tolist()
    if first == stop:
        return column
    return CellColumn(
        np.concatenate((column.keys[:first], column.keys[stop:])),
        np.concatenate((column.counts[:first], column.counts[stop:])),
    )
