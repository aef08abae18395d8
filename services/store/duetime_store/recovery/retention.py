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

With copies of the shard the leader decides. Before step 3 it records the cut (cutting.py); a follower deletes the same
segments after its next checkpoint.

Source: RocketMQ 4.9.3 CleanCommitLogService, which deletes pending messages.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import structlog
from duetime_core.telemetry.defects import outcome

from duetime_store.files.disk import Disk
from duetime_store.files.worker import FileWorker
from duetime_store.groups.unread import FindUnread
from duetime_store.log.commitlog import CommitLog
from duetime_store.log.segment import Segment
from duetime_store.metrics import StoreMetrics
from duetime_store.queues.queues import Queues
from duetime_store.reading.turns import ScanTurns
from duetime_store.recovery.checkpointer import Checkpointer
from duetime_store.recovery.cutting import LogCut
from duetime_store.recovery.moving import PendingMover
from duetime_store.writing.store import Store

log = structlog.get_logger()

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
    # How often segments are checked.
    check_ms: int = 10_000

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


class SegmentDropper:
    """Deletes segments, and everything that names their records."""

    def __init__(
        self,
        commit_log: CommitLog,
        queues: Queues,
        mover: PendingMover,
        checkpointer: Checkpointer,
        worker: FileWorker,
        turns: ScanTurns,
        dropped: Callable[[int], Iterator[None]],
        cut: LogCut,
    ) -> None:
        """`worker`: the checkpoints' one thread, so that no file is deleted while a checkpoint flushes it. `dropped` is
        called with the new start of the log, and its result is iterated to the end."""
        self._log = commit_log
        self._queues = queues
        self._mover = mover
        self._checkpointer = checkpointer
        self._worker = worker
        self._turns = turns
        self._dropped = dropped
        self.cut = cut

    async def drop(self, segment: Segment, reason: str) -> bool:
        """False: not yet."""
        await self.cut.reach(segment.end)
        end = self._log.published_end
        await self._checkpointer.write()
        if self._checkpointer.position < end or await self._mover.pending(segment.end):
            # Units on disk may still name its records.
            return False
        paths = [segment.path]
        with self._turns.walk() as walk:
            await walk.begin()
            # Offsets move before the records are deleted: a reader must not find missing ones in the meantime.
            for queue in self._queues.all():
                if queue.oldest < segment.end and queue.learn_oldest() < segment.end:
                    paths += queue.trim(segment.end)
                    await walk.turn_if_over()
            self._log.drop(segment)
            for _ in self._dropped(segment.end):
                await walk.turn_if_over()
        await self._worker.run(self._unlink, paths)
        await self._checkpointer.write()
        log.info("segment deleted", segment=segment.path.name, reason=reason, files=len(paths))
        return True

    def _unlink(self, paths: list[Path]) -> None:
        """Runs on the worker's thread. The log's file is deleted first: files that outlive it in a crash name
        nothing."""
        disk = self._worker.directory.disk
        for path in paths:
            disk.unlink(path)
            disk.sync_directory(path.parent)


class Cleaner:
    """The loop that deletes segments, oldest first, never the newest."""

    def __init__(
        self,
        store: Store,
        mover: PendingMover,
        dropper: SegmentDropper,
        disk: Disk,
        metrics: StoreMetrics,
        turns: ScanTurns,
        *,
        policy: Policy,
        unread: FindUnread,
    ) -> None:
        """`unread` finds messages that groups have not read."""
        self._store = store
        self._log = store.log
        self._clock = store.clock
        self._mover = mover
        self._dropper = dropper
        self._disk = disk
        self._metrics = metrics
        self._turns = turns
        self._policy = policy
        self._unread = unread
        # Segments below it are full, and their file time is when that was noticed; those full at the start keep theirs.
        self._full_below = store.log.min_position
        self._start = store.published_end
        self._is_blocked = False

    async def run(self) -> None:
        while True:
            await self._clock.sleep(self._policy.check_ms)
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
            reason = await self._cleared(segment)
            if not reason or not await self._dropper.drop(segment, reason):
                return
            self._metrics.retention_segments.labels(reason).inc()

    async def _cleared(self, segment: Segment) -> str:
        """The reason to delete the segment, which has no pending records any more; empty: it stays."""
        reason = "cut" if segment.end <= self._dropper.cut.position else self._reason(segment)
        if not reason or (reason == "room" and not await self._is_read(segment)):
            return ""
        return reason if await self._clear(segment, forced=reason not in ("age", "cut")) else ""

    async def drop_cut(self) -> bool:
        """At a copy that follows: deletes the oldest segment, if it is before the leader's cut."""
        segment = self._oldest()
        if segment is None or segment.end > self._dropper.cut.position:
            return False
        return await self._dropper.drop(segment, "cut")

    def _stamp(self) -> None:
        """Sets the time of the files that have become full: a segment's age counts from then."""
        commit_log, end = self._log, self._log.published_end
        position = self._full_below - self._full_below % commit_log.segment_bytes
        self._full_below = end
        now_ms = self._clock.now_ms()
        while (segment := commit_log.segment_at(position)) is not None and segment.end <= end:
            if segment.end > self._start or _changed_at_ms(segment) > now_ms:
                self._disk.set_time(segment.path, now_ms)
            position = segment.end

    def _oldest(self) -> Segment | None:
        """The first segment, if all of it is before the last."""
        segment = self._log.segment_at(self._log.min_position)
        return segment if segment is not None and segment.end <= self._log.published_end else None

    def _reason(self, segment: Segment) -> str:
        now_ms = self._clock.now_ms()
        return self._policy.reason(
            age_ms=now_ms - _changed_at_ms(segment),
            log_bytes=self._log.end - self._log.min_position,
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
        await self._mover.mend(segment)
        pending = await self._mover.pending(segment.end)
        size = sum(int(units["size"].sum()) for _, _, units in pending)
        blocked = forced and size > segment.size * FORCED_SHARE_MAX
        if blocked and not self._is_blocked:
            log.warning("the log can't be made smaller: most of its oldest segment is pending", bytes=size)
        self._is_blocked = blocked
        self._metrics.retention_blocked.set(int(blocked))
        if blocked:
            return False
        await self._mover.move(pending, segment.end)
        return True


def _changed_at_ms(segment: Segment) -> int:
    return segment.path.stat().st_mtime_ns // 1_000_000
