"""Appends pending records of the log's oldest segment again, so that retention can delete it (retention.py)."""

from collections.abc import Iterator, Sequence

import numpy as np
from duetime_format.columns import Ints
from duetime_format.names import FOREIGN_TOPICS
from duetime_format.units import FILLER_SIZE, Units
from duetime_shard.lanes import HalfProgress, LaneProgress

from duetime_store.finding.indexer import pieces
from duetime_store.lanes.lane import PENDING
from duetime_store.log.segment import Segment
from duetime_store.metrics import StoreMetrics
from duetime_store.queues.consumequeue import ConsumeQueue
from duetime_store.reading.reader import Reader
from duetime_store.reading.turns import ScanTurns
from duetime_store.writing.flusher import Flusher
from duetime_store.writing.store import Store

# One step appends this much again, waits until it is durable, and yields for a moment.
MOVE_COUNT = 256
MOVE_BYTES = 256 * 1024
MOVE_PAUSE_MS = 20
# Units, and bytes of the log, inspected in one piece of a step (turns.py).
LOOK_UNITS = 32_768
LOOK_BYTES = 64 * 1024


class PendingMover:
    """Finds the pending records of a segment, and moves them to the end of the log."""

    def __init__(self, store: Store, reader: Reader, flusher: Flusher, metrics: StoreMetrics, turns: ScanTurns) -> None:
        self._store = store
        self._reader = reader
        self._flusher = flusher
        self._metrics = metrics
        self._turns = turns

    async def mend(self, segment: Segment) -> None:
        """Inspects the units of the segment's pending records that point elsewhere: at a copy, or they are damaged and
        the reader repairs them."""
        kept = {(queue.topic.encode(), queue.queue): (queue, gone) for queue, gone in self._kept_queues(segment.end)}
        with self._turns.walk() as walk:
            await walk.begin()
            for run, _ in pieces(self._store.log, segment.base, segment.end, LOOK_BYTES):
                for number, key in enumerate(run.keys if run else ()):
                    if run is not None and key in kept:
                        queue, gone = kept[key]
                        own = np.flatnonzero((run.key_of == number) & (run.offsets >= gone.first))
                        self._inspect(queue, gone, run.offsets[own], run.positions[own])
                await walk.turn_if_over()

    def _inspect(self, queue: ConsumeQueue, gone: LaneProgress, offsets: Ints, positions: Ints) -> None:
        # Copies and first records of a lane ascend each, but may be interleaved.
        order = np.argsort(offsets)
        offsets, positions = offsets[order], positions[order]
        done = 0
        while done < len(offsets):
            units = queue.read(int(offsets[done]), int(offsets[-1] - offsets[done]) + 1)
            if not len(units):
                return
            here = offsets[done : done + int(np.searchsorted(offsets[done:], offsets[done] + len(units)))]
            units = units[here - here[0]]
            elsewhere = units["position"] != positions[done : done + len(here)]
            elsewhere &= ~gone.gone(here, units["tags"])
            self._reader.read(queue, here[elsewhere], units[elsewhere])
            done += len(here)

    async def pending(self, end: int) -> list[tuple[ConsumeQueue, Ints, Units]]:
        """Offsets and units of the pending entries whose records are before `end`."""
        found: list[tuple[ConsumeQueue, Ints, Units]] = []
        with self._turns.walk() as walk:
            await walk.begin()
            for queue, gone in self._kept_queues(end):
                offset = gone.first
                while len(units := queue.read(offset, LOOK_UNITS)):
                    kept = ~gone.gone(np.arange(offset, offset + len(units)), units["tags"])
                    old = np.flatnonzero(kept & (units["position"] < end) & (units["size"] != FILLER_SIZE))
                    if len(old):
                        found.append((queue, offset + old, units[old]))
                    offset += len(units)
                    await walk.turn_if_over()
        return found

    def _kept_queues(self, end: int) -> Iterator[tuple[ConsumeQueue, LaneProgress]]:
        """Every queue whose messages outlive retention, with its progress."""
        for lane in self._store.lanes:
            yield lane.queue, lane.progress()
        for topic in sorted(FOREIGN_TOPICS):
            for queue in self._store.queues.of_topic(topic):
                yield queue, HalfProgress(queue.min_offset, end)

    async def move(self, pending: Sequence[tuple[ConsumeQueue, Ints, Units]], end: int) -> None:
        """Appends the records of `pending` again, a few at a time, and makes their units name the copies."""
        for queue, offsets, units in pending:
            for first, stop in _steps(units["size"]):
                await self._move(queue, offsets[first:stop], end)

    async def _move(self, queue: ConsumeQueue, offsets: Ints, end: int) -> None:
        store = self._store
        lane = store.lanes.of(queue)
        if lane is not None:
            # The end of an entry is after all copies of its record, so retention deletes it last.
            offsets = offsets[lane.states(offsets) == PENDING]
        elif queue is store.halves.queue:
            halves = store.halves
            gone = HalfProgress(queue.min_offset, end).gone(offsets, halves.units(offsets)["tags"])
            offsets = offsets[~gone & ~halves.are_staged(offsets)]
        if not len(offsets):
            return
        records, sizes, damages, units = self._reader.read(queue, offsets, queue.read_at(offsets))
        units = units.copy()
        for index in damages:
            # The entry keeps its place and its due time, and is quarantined then.
            units["position"][index], units["size"][index] = 0, FILLER_SIZE
        store.move(queue, offsets, units, records)
        await self._flusher.durable()
        self._metrics.retention_moved.inc(len(sizes) - len(damages))
        self._metrics.retention_moved_bytes.inc(len(records))
        await store.clock.sleep(MOVE_PAUSE_MS)


def _steps(sizes: Ints) -> Iterator[tuple[int, int]]:
    """[first, stop) of each step."""
    ends = sizes.astype(np.int64).cumsum()
    first = 0
    while first < len(ends):
        before = int(ends[first - 1]) if first else 0
        stop = int(np.searchsorted(ends, before + MOVE_BYTES, "right"))
        stop = min(max(stop, first + 1), first + MOVE_COUNT)
        yield first, stop
        first = stop
