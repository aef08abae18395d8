"""Opening a store directory: what the log says is the truth, all else is brought in line with it.

1. The checkpoint tells up to which position queues and watermarks are known to be on disk. Without one, or when what it
   counts is not there (a queue or a watermark file is gone), the whole log is read.
2. Units behind that position are dropped and made again from the records; a record that carries a lane entry moves
   that lane's watermark.
3. Behind the last intact record the log is cut.
"""

import time
from dataclasses import dataclass, field

import numpy as np
import structlog
from duetime_core.errors import StartupError
from duetime_core.names import QUARANTINE_TOPIC, SCHEDULE_TOPIC

from duetime_store import checkpoint, configs
from duetime_store.alarm import ShardClock
from duetime_store.checkpoint import Checkpoint
from duetime_store.commitlog import CommitLog
from duetime_store.directory import LevelHistory, StoreDirectory
from duetime_store.lanes import Lane
from duetime_store.queues import Queues
from duetime_store.recent import RecentIds
from duetime_store.replay import Damage, Replay
from duetime_store.scan import scan_runs
from duetime_store.settings import StoreSettings
from duetime_store.store import Store

log = structlog.get_logger()


@dataclass(slots=True)
class Report:
    """What recovery did; it goes to the log and the metrics."""

    clean: bool
    whole_log: bool = False
    from_position: int = 0
    records: int = 0
    rebuilt_units: int = 0
    # Records whose queue has another one at their offset.
    repeated: int = 0
    cut_bytes: int = 0
    damage: Damage = field(default_factory=Damage)
    took_ms: int = 0


@dataclass(slots=True)
class Opened:
    """A store, ready to serve."""

    store: Store
    report: Report


def open_store(directory: StoreDirectory, settings: StoreSettings, clock: ShardClock) -> Opened:
    """Loads and recovers the directory.

    Raises:
        StartupError: the level table is another, log files are missing, or the disk can't be read.
    """
    started = time.perf_counter()
    try:
        recovery = _Recovery(directory, settings, clock)
        opened = recovery.run()
    except OSError as error:
        raise StartupError(f"can't open {directory.root}: {error.strerror}: {error.filename}") from error
    opened.report.took_ms = int((time.perf_counter() - started) * 1000)
    return opened


class _Recovery:
    def __init__(self, directory: StoreDirectory, settings: StoreSettings, clock: ShardClock) -> None:
        self._directory = directory
        self._settings = settings
        self._clock = clock
        self._levels = settings.levels
        loaded = LevelHistory.load(directory.config, self._levels, accept=settings.accept_delay_levels)
        self._history = loaded or LevelHistory.of(self._levels)
        self._log = CommitLog(directory.disk, directory.commit_log, settings.segment_bytes)
        self._report = Report(clean=not directory.was_aborted)
        self._recent = RecentIds(settings.recent_ids_count)
        self._queues = self._load_queues()
        self._replay = Replay(self._queues, self._history, self._recent)

    def run(self) -> Opened:
        point = self._trusted_checkpoint()
        offsets = configs.delay_offsets(configs.read(self._directory.config, configs.DELAY_OFFSETS))
        self._read_log(point)
        if self._history.current != self._levels:
            self._history = self._history.changed(self._log.end, self._clock.now_ms(), self._levels)
        store = Store(
            self._log,
            self._queues,
            self._history,
            self._clock,
            self._recent,
            waiting_bytes_max=self._settings.waiting_bytes_max,
            flush_stall_ms=self._settings.flush_stall_ms,
        )
        self._make_lanes(store, point, offsets)
        self._history.save(self._directory.disk, self._directory.config, self._settings.shard)
        report, replay = self._report, self._replay
        report.records, report.rebuilt_units = replay.record_count, replay.unit_count
        report.repeated, report.damage = replay.repeated_count, replay.damage
        return Opened(store, report)

    def _load_queues(self) -> Queues:
        counts = configs.topic_counts(configs.read(self._directory.config, configs.TOPICS))
        queues = Queues(self._directory.disk, self._directory.queues, self._settings.queue_file_units, counts)
        if self._directory.queues.is_dir():
            for topic in self._directory.queues.iterdir():
                for queue in topic.iterdir() if topic.is_dir() else ():
                    if queue.name.isdigit():
                        queues.get_bytes(topic.name.encode(), int(queue.name))
        if self._log.min_position:
            for found in queues.all():
                for path in found.trim(self._log.min_position):
                    self._directory.disk.unlink(path)
        return queues

    def _trusted_checkpoint(self) -> Checkpoint | None:
        """The checkpoint, if queues hold what it counts and the log reaches it; units behind it are dropped."""
        point = checkpoint.read(self._directory.checkpoint)
        if point is None or not self._log.min_position <= point.position <= self._log.max_position:
            self._forget_queues("no checkpoint" if point is None else "the log does not reach the checkpoint")
            return None
        for queue in self._queues.all():
            queue.cut(queue.behind(point.position))
        units = sum(queue.max_offset - queue.min_offset for queue in self._queues.all())
        if units != point.unit_count:
            self._forget_queues(f"queues hold {units} units, the checkpoint counts {point.unit_count}")
            return None
        return point

    def _forget_queues(self, reason: str) -> None:
        """Everything is made again from the log."""
        if self._log.max_position > self._log.min_position:
            log.warning("reading the whole log", reason=reason)
        self._report.whole_log = True
        for queue in self._queues.all():
            # What is behind in the log goes on from what has left it.
            queue.reset(queue.min_offset if self._log.min_position else 0)

    def _read_log(self, point: Checkpoint | None) -> None:
        start = point.position if point else self._log.min_position
        scan_start = max(min(point.scan_position, start), self._log.min_position) if point else start
        self._report.from_position = start
        replay = self._replay
        for item in scan_runs(self._log, scan_start, start):
            replay.remember(item)
        for item in scan_runs(self._log, start):
            replay.replay(item)
        for queue in self._queues.all():
            queue.publish_all()
        self._clock.seen(max(replay.stored_at_ms, point.stored_at_ms if point else 0))
        self._cut(max(replay.end, start))
        # It may be in the page cache only, from a process that was killed; from now on it counts as durable.
        self._log.flush_from(start)

    def _cut(self, end: int) -> None:
        """Makes what is behind the last record zero, if it is not."""
        if self._log.max_position > end:
            self._report.cut_bytes = _tail_bytes(self._log, end)
            if self._report.cut_bytes:
                log.warning("torn tail cut", position=end, bytes=self._report.cut_bytes)
            if self._report.cut_bytes or self._log.max_position - end > self._log.segment_bytes:
                self._log.cut(end)
        self._log.end = end

    def _make_lanes(self, store: Store, point: Checkpoint | None, offsets: dict[int, int]) -> None:
        existing = [queue.queue + 1 for queue in self._queues.all() if queue.topic == SCHEDULE_TOPIC]
        self._queues.counts[SCHEDULE_TOPIC] = max([18, self._levels.highest, *existing])
        self._queues.counts[QUARANTINE_TOPIC] = max(self._queues.counts.get(QUARANTINE_TOPIC, 0), 1)
        watermarks = dict(enumerate(point.watermarks, 1)) if point else {}
        for level in range(1, max([self._levels.highest, *existing]) + 1):
            lane = Lane(level, self._queues.get_bytes(SCHEDULE_TOPIC.encode(), level - 1))
            restored = np.concatenate([np.empty(0, np.int64), *self._replay.restored.get(level, ())])
            lane.queue.go_on_at(max(watermarks.get(level, 0), int(restored.max(initial=-1)) + 1))
            known = max(watermarks.get(level, 0), offsets.get(level, 0))
            if known > lane.queue.max_offset:
                log.warning(
                    "watermark is behind the end of its lane", lane=level, watermark=known, end=lane.queue.max_offset
                )
            lane.advance(min(known, lane.queue.max_offset))
            lane.recover(restored)
            if lane.ahead:
                count = len(lane.ahead)
                log.warning("entries are restored ahead of others", lane=level, watermark=lane.watermark, count=count)
            store.lanes[level] = lane


def _tail_bytes(commit_log: CommitLog, end: int) -> int:
    """How far behind `end` the last byte that is not zero lies, in the segment that holds `end`."""
    segment = commit_log.segment_at(end)
    if segment is None:
        return 0
    last = 0
    position = segment.next_data(end) if end < segment.end else None
    while position is not None and position < segment.end:
        data = segment.read_file(position, 1 << 20)
        stripped = len(data.rstrip(b"\0"))
        if stripped:
            last = position + stripped - end
        behind = position + len(data)
        position = segment.next_data(behind) if behind < segment.end else None
    return last


def checkpoint_of(store: Store) -> Checkpoint:
    """What the store has published, for the file."""
    lanes = [store.lanes[level].watermark for level in sorted(store.lanes)]
    units = sum(queue.max_offset - queue.min_offset for queue in store.queues.all())
    end = store.published_end
    return Checkpoint(end, store.recent.oldest_position(end), units, tuple(lanes), store.clock.now_ms())
