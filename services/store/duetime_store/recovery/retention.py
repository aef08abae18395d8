"""Retention: segments are deleted at the front of the log, but never their pending messages.

    | 0 | 1 | ... | n |     0 is to be deleted: by age, by the size budget, or by disk use
      │               ▲
      └─ pending ─────┘     1. its pending records are appended again, a few at a time: same lane entry, same store
                               time, and so the same due time
                            2. once the copies are durable, the units of those entries point to them
                            3. a checkpoint: the units are on disk
                            4. the segment is deleted; queues and index forget its records

A lane entry is one unit, and readers use the unit: they find the old record or its copy, never both. After a crash
between any two steps the segment still exists, recovery points units to the newest copy of an entry, and cleaning
restarts.

Source: RocketMQ 4.9.3 CleanCommitLogService, which deletes pending messages.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import structlog
from duetime_core.clock import Clock
from duetime_core.ondisk.lanes import Progress, Undecided
from duetime_core.telemetry.defects import outcome
from duetime_format.columns import Ints
from duetime_format.names import FOREIGN_TOPICS
from duetime_format.units import FILLER_SIZE, Units

from duetime_store.files.disk import Disk
from duetime_store.finding.indexer import pieces
from duetime_store.groups.unread import FindUnread
from duetime_store.lanes.lane import PENDING
from duetime_store.log.segment import Segment
from duetime_store.metrics import StoreMetrics
from duetime_store.queues.consumequeue import ConsumeQueue
from duetime_store.reading.reader import Reader
from duetime_store.reading.turns import Turns
from duetime_store.recovery.checkpointer import Checkpointer
from duetime_store.writing.flusher import Flusher
from duetime_store.writing.store import Store

log = structlog.get_logger()

# One step appends this much again, waits until it is durable, and yields for a moment.
MOVE_COUNT = 256
MOVE_BYTES = 256 * 1024
MOVE_PAUSE_MS = 20
# Units, and bytes of the log, inspected in one piece of a step (turns.py).
LOOK_UNITS = 32_768
LOOK_BYTES = 64 * 1024
# A segment is worth clearing for room only if at most this share of it has to be appended again.
FORCED_SHARE_MAX = 0.5


@dataclass(frozen=True, slots=True)
class Policy:
    """The conditions for deleting the oldest segment. Shares of the disk are 0 to 1."""

    age_ms: int
    # Size of the whole log; 0: no budget.
    log_bytes: int = 0
    # UTC hours in which expired segments are deleted; empty: all.
    hours: frozenset[int] = frozenset()
    # Above the first, expired segments that have been read are deleted at any hour; above the second, the oldest is
    # deleted in any case. 1: never, so that filling the disk can't delete messages.
    disk_clean: float = 0.75
    disk_force: float = 1.0

    def reason(self, *, age_ms: int, log_bytes: int, hour: int, disk_used: float) -> str:
        """The reason to delete the oldest segment now: "disk", "size" or "age"; "room": only once it has been read;
        empty: it stays."""
        if self.disk_force < 1 and disk_used >= self.disk_force:
            return "disk"
        if self.log_bytes and log_bytes > self.log_bytes:
            return "size"
        if age_ms < self.age_ms:
            return ""
        if not self.hours or hour in self.hours:
            return "age"
        return "room" if disk_used >= self.disk_clean else ""


class Cleaner:
    """The loop that deletes segments, oldest first, never the newest."""

    def __init__(
        self,
        store: Store,
        reader: Reader,
        disk: Disk,
        flusher: Flusher,
        checkpointer: Checkpointer,
        executor: Executor,
        clock: Clock,
        metrics: StoreMetrics,
        turns: Turns,
        *,
        policy: Policy,
        interval_ms: int,
        unread: FindUnread,
        dropped: Callable[[int], Iterator[None]],
    ) -> None:
        """`executor`: the checkpoints' one thread, so that no file is deleted while a checkpoint flushes it; `unread`
        finds messages that groups have not read; `dropped` is called with the new start of the log, and its result is
        iterated to the end."""
        self._store = store
        self._reader = reader
        self._disk = disk
        self._flusher = flusher
        self._checkpointer = checkpointer
        self._executor = executor
        self._clock = clock
        self._metrics = metrics
        self._turns = turns
        self._policy = policy
        self._interval_ms = interval_ms
        self._unread = unread
        self._dropped = dropped
        # Segments below it are full, and their file time is when that was noticed; those full at the start keep theirs.
        self._full_below = store.log.min_position
        self._start = store.published_end
        self._is_blocked = False

    async def run(self) -> None:
        while True:
            await self._clock.sleep(self._interval_ms)
            _, error = await outcome(self._round, "retention")
            if error is not None:
                # Nothing is lost: copies appended so far stay, and the next round continues.
                log.warning("cleaning stopped", error=error.text)

    async def _round(self) -> None:
        try:
            await self.clean()
        except OSError as error:
            log.warning("cleaning stopped", error=str(error))

    async def clean(self) -> None:
        """One round: deletes every segment that the policy names."""
        self._stamp()
        while not self._store.read_only_reason and (segment := self._oldest()) is not None:
            reason = self._reason(segment)
            if not reason or (reason == "room" and not await self._is_read(segment)):
                return
            if not await self._clear(segment, forced=reason != "age"):
                return
            if not await self._drop(segment, reason):
                return

    def _stamp(self) -> None:
        """Sets the time of the files that have become full: a segment's age counts from then."""
        commit_log, end = self._store.log, self._store.published_end
        position = self._full_below - self._full_below % commit_log.segment_bytes
        self._full_below = end
        now_ms = self._store.clock.now_ms()
        while (segment := commit_log.segment_at(position)) is not None and segment.end <= end:
            if segment.end > self._start or _changed_at_ms(segment) > now_ms:
                self._disk.set_time(segment.path, now_ms)
            position = segment.end

    def _oldest(self) -> Segment | None:
        """The first segment, if all of it is before the last."""
        segment = self._store.log.segment_at(self._store.log.min_position)
        return segment if segment is not None and segment.end <= self._store.published_end else None

    def _reason(self, segment: Segment) -> str:
        now_ms = self._store.clock.now_ms()
        return self._policy.reason(
            age_ms=now_ms - _changed_at_ms(segment),
            log_bytes=self._store.log.end - self._store.log.min_position,
            hour=time.gmtime(now_ms / 1000).tm_hour,
            disk_used=self._disk.space(segment.path).used,
        )

    async def _is_read(self, segment: Segment) -> bool:
        """Whether no group's offset is before a message in the segment."""
        with self._turns.walk() as walk:
            await walk.begin()
            for unread in self._unread(segment.end):
                if unread:
                    log.info("segment kept until it is read", segment=segment.path.name, **unread._asdict())
                    return False
                await walk.turn_if_over()
        return True

    async def _clear(self, segment: Segment, *, forced: bool) -> bool:
        """Appends the segment's pending records again. False: it stays, since deleting it would gain too little."""
        await self._mend(segment)
        pending = await self._pending(segment.end)
        size = sum(int(units["size"].sum()) for _, _, units in pending)
        blocked = forced and size > segment.size * FORCED_SHARE_MAX
        if blocked and not self._is_blocked:
            log.warning("the log can't be made smaller: most of its oldest segment is pending", bytes=size)
        self._is_blocked = blocked
        self._metrics.retention_blocked.set(int(blocked))
        if blocked:
            return False
        for queue, offsets, units in pending:
            for first, stop in _steps(units["size"]):
                await self._move(queue, offsets[first:stop])
        return True

    async def _mend(self, segment: Segment) -> None:
        """Inspects the units of the segment's pending records that point elsewhere: at a copy, or they are damaged and
        the reader repairs them."""
        kept = {(queue.topic.encode(), queue.queue): (queue, gone) for queue, gone in self._kept_queues()}
        with self._turns.walk() as walk:
            await walk.begin()
            for run, _ in pieces(self._store.log, segment.base, segment.end, LOOK_BYTES):
                for number, key in enumerate(run.keys if run else ()):
                    if run is not None and key in kept:
                        queue, gone = kept[key]
                        own = np.flatnonzero((run.key_of == number) & (run.offsets >= gone.first))
                        self._inspect(queue, gone, run.offsets[own], run.positions[own])
                await walk.turn_if_over()

    def _inspect(self, queue: ConsumeQueue, gone: Progress, offsets: Ints, positions: Ints) -> None:
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

    async def _pending(self, end: int) -> list[tuple[ConsumeQueue, Ints, Units]]:
        """Offsets and units of the pending entries whose records are before `end`."""
        found: list[tuple[ConsumeQueue, Ints, Units]] = []
        with self._turns.walk() as walk:
            await walk.begin()
            for queue, gone in self._kept_queues():
                offset = gone.first
                while len(units := queue.read(offset, LOOK_UNITS)):
                    kept = ~gone.gone(np.arange(offset, offset + len(units)), units["tags"])
                    old = np.flatnonzero(kept & (units["position"] < end) & (units["size"] != FILLER_SIZE))
                    if len(old):
                        found.append((queue, offset + old, units[old]))
                    offset += len(units)
                    await walk.turn_if_over()
        return found

    def _kept_queues(self) -> Iterator[tuple[ConsumeQueue, Progress]]:
        """Every queue whose messages outlive retention, with its progress."""
        for lane in self._store.lanes:
            yield lane.queue, lane.progress()
        for topic in sorted(FOREIGN_TOPICS):
            for queue in self._store.queues.of_topic(topic):
                yield queue, self._undecided(queue)

    def _undecided(self, queue: ConsumeQueue) -> Undecided:
        segment = self._oldest()
        return Undecided(queue.min_offset, segment.end if segment is not None else 0)

    async def _move(self, queue: ConsumeQueue, offsets: Ints) -> None:
        lane = self._store.lanes.of(queue)
        if lane is not None:
            # The end of an entry is after all copies of its record, so retention deletes it last.
            offsets = offsets[lane.states(offsets) == PENDING]
        elif queue is self._store.halves.queue:
            halves = self._store.halves
            gone = self._undecided(queue).gone(offsets, halves.units(offsets)["tags"])
            offsets = offsets[~gone & ~halves.are_staged(offsets)]
        if not len(offsets):
            return
        records, sizes, damages, units = self._reader.read(queue, offsets, queue.read_at(offsets))
        units = units.copy()
        for index in damages:
            # The entry keeps its place and its due time, and is quarantined then.
            units["position"][index], units["size"][index] = 0, FILLER_SIZE
        self._store.move(queue, offsets, units, records)
        await self._flusher.durable()
        self._metrics.retention_moved.inc(len(sizes) - len(damages))
        self._metrics.retention_moved_bytes.inc(len(records))
        await self._clock.sleep(MOVE_PAUSE_MS)

    async def _drop(self, segment: Segment, reason: str) -> bool:
        """Deletes the segment, and everything that names its records. False: not yet."""
        store, end = self._store, self._store.published_end
        await self._checkpointer.write()
        if self._checkpointer.position < end or await self._pending(segment.end):
            # Units on disk may still name its records.
            return False
        paths = [segment.path]
        with self._turns.walk() as walk:
            await walk.begin()
            # Offsets move before the records are deleted: a reader must not find missing ones in the meantime.
            for queue in store.queues.all():
                if queue.oldest < segment.end and queue.learn_oldest() < segment.end:
                    paths += queue.trim(segment.end)
                    await walk.turn_if_over()
            store.log.drop(segment)
            for _ in self._dropped(segment.end):
                await walk.turn_if_over()
        await asyncio.get_running_loop().run_in_executor(self._executor, self._unlink, paths)
        await self._checkpointer.write()
        self._metrics.retention_segments.labels(reason).inc()
        log.info("segment deleted", segment=segment.path.name, reason=reason, files=len(paths))
        return True

    def _unlink(self, paths: list[Path]) -> None:
        """Runs on the executor's thread. The log's file is deleted first: files that outlive it in a crash name
        nothing."""
        for path in paths:
            self._disk.unlink(path)
            self._disk.sync_directory(path.parent)


def _changed_at_ms(segment: Segment) -> int:
    return segment.path.stat().st_mtime_ns // 1_000_000


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
