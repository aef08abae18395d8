"""Opening a store directory: what the log says is the truth, all else is brought in line with it.

1. The checkpoint tells up to which position queues and watermarks are known to be on disk. Without one, or when what it
   counts is not there (a queue or a watermark file is gone), the whole log is read.
2. Units behind that position are dropped and made again from the records; a record that carries a lane entry moves
   that lane's watermark.
3. Behind the last intact record the log is cut.
"""

import time
import zlib
from dataclasses import dataclass, field

import numpy as np
import structlog
from duetime_core import record
from duetime_core.errors import InvalidArgument, StartupError
from duetime_core.names import QUARANTINE_TOPIC, SCHEDULE_TOPIC

from duetime_store import checkpoint, configs
from duetime_store.alarm import ShardClock
from duetime_store.checkpoint import Checkpoint
from duetime_store.commitlog import CommitLog
from duetime_store.directory import LevelHistory, StoreDirectory
from duetime_store.intake import parse, whole_bytes
from duetime_store.lanes import Lane
from duetime_store.queues import Queues
from duetime_store.recent import RecentIds
from duetime_store.scan import Found, Skipped, scan
from duetime_store.settings import StoreSettings
from duetime_store.store import Store

log = structlog.get_logger()

_UNIQ_KEY = record.UNIQ_KEY.encode()
_TAGS = record.TAGS.encode()
_DELAY = record.DELAY.encode()
_BLANK = (record.MAGIC_BLANK & 0xFFFFFFFF).to_bytes(4, "big")
_RUN_BYTES = 8 * 1024 * 1024


@dataclass(slots=True)
class Report:
    """What recovery did; it goes to the log and the metrics."""

    clean: bool
    whole_log: bool = False
    from_position: int = 0
    records: int = 0
    rebuilt_units: int = 0
    cut_bytes: int = 0
    damaged: list[str] = field(default_factory=list)
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
        self._history = loaded or LevelHistory(((0, self._levels),))
        self._log = CommitLog(directory.disk, directory.commit_log, settings.segment_bytes)
        self._report = Report(clean=not directory.was_aborted)
        self._recent = RecentIds(settings.recent_ids_count)
        self._restored: dict[int, int] = {}
        self._queues = self._load_queues()

    def run(self) -> Opened:
        point = self._trusted_checkpoint()
        offsets = configs.delay_offsets(configs.read(self._directory.config, configs.DELAY_OFFSETS))
        self._read_log(point)
        store = Store(
            self._log,
            self._queues,
            self._levels,
            self._clock,
            self._recent,
            waiting_bytes_max=self._settings.waiting_bytes_max,
        )
        self._make_lanes(store, point, offsets)
        if self._history.current != self._levels:
            self._history = self._history.changed(self._log.end, self._levels)
        self._history.save(self._directory.disk, self._directory.config, self._settings.shard)
        return Opened(store, self._report)

    def _load_queues(self) -> Queues:
        counts = configs.topic_counts(configs.read(self._directory.config, configs.TOPICS))
        queues = Queues(self._directory.disk, self._directory.queues, self._settings.queue_file_units, counts)
        if self._directory.queues.is_dir():
            for topic in self._directory.queues.iterdir():
                for queue in topic.iterdir() if topic.is_dir() else ():
                    if queue.name.isdigit():
                        queues.get_bytes(topic.name.encode(), int(queue.name))
        return queues

    def _trusted_checkpoint(self) -> Checkpoint | None:
        """The checkpoint, if queues hold what it counts and the log reaches it; units behind it are dropped."""
        point = checkpoint.read(self._directory.checkpoint)
        if point is None or not self._log.min_position <= point.position <= self._log.max_position:
            self._forget_queues("no checkpoint" if point is None else "the log does not reach the checkpoint")
            return None
        for queue in self._queues.all():
            queue.cut(queue.first_at_or_behind(point.position))
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
            queue.reset()

    def _read_log(self, point: Checkpoint | None) -> None:
        start = point.position if point else self._log.min_position
        scan_start = max(min(point.scan_position, start), self._log.min_position) if point else start
        self._report.from_position = start
        end = start
        stored_at_ms = point.stored_at_ms if point else 0
        for item in scan(self._log, self._remember_runs(scan_start, start)):
            if isinstance(item, Skipped):
                self._damaged(item.position, item.damage)
                continue
            self._remember(item)
            stored_at_ms = max(stored_at_ms, item.record.stored_at_ms)
            if item.position >= start:
                self._replay(item)
                end = item.position + item.record.size
        for queue in self._queues.all():
            queue.publish_all()
        self._clock.seen(stored_at_ms)
        self._cut(end)

    def _remember_runs(self, position: int, end: int) -> int:
        """Remembers the messages of the log up to `end`, as far as plain records lie back to back; where it stopped.

        What lies before the checkpoint is in its queues already: only the ids are wanted, and a repeated send compares
        the record itself. Whatever is not plain is the scan's.
        """
        while position < end:
            segment = self._log.segment_at(position)
            data = segment.read_file(position, min(_RUN_BYTES, end - position)) if segment else b""
            if segment and data[4:8] == _BLANK:
                position = segment.end
                continue
            whole = whole_bytes(data)
            if not whole or record.PREFIX.unpack_from(data)[6] != position:
                break
            try:
                intake = parse(data[:whole])
            except InvalidArgument:
                break
            sent = intake.id_hashes >= 0
            if intake.entries is not None:
                sent &= intake.entries[0] < 0
            self._recent.add_all(intake.id_hashes[sent], intake.starts[sent] + position)
            self._report.records += intake.count
            position += whole
        return min(position, end)

    def _remember(self, item: Found) -> None:
        self._report.records += 1
        if not item.damage and record.find_lane_entry(item.record.properties) is None:
            message_id = record.property_value(item.record.properties, _UNIQ_KEY)
            if message_id:
                self._recent.add_all(np.array([zlib.crc32(message_id)]), np.array([item.position]))

    def _replay(self, item: Found) -> None:
        found = item.record
        if item.damage:
            self._damaged(item.position, item.damage)
        if found.sys_flag & record.SYS_TRANSACTION in (
            record.SYS_TRANSACTION_PREPARED,
            record.SYS_TRANSACTION_ROLLBACK,
        ):
            return
        queue = self._queues.get_bytes(found.topic.encode(), found.queue)
        tags = self._tags_code(item)
        self._report.rebuilt_units += queue.rebuild(found.queue_offset, item.position, found.size, tags)
        entry = record.find_lane_entry(found.properties)
        if entry is not None and found.topic != SCHEDULE_TOPIC:
            level, offset, _ = entry
            self._restored[level] = max(self._restored.get(level, 0), offset + 1)

    def _tags_code(self, item: Found) -> int:
        found = item.record
        delay = record.property_value(found.properties, _DELAY) if found.topic == SCHEDULE_TOPIC else None
        if delay and delay.isdigit() and int(delay) > 0:
            levels = self._history.at(item.position)
            return found.stored_at_ms + levels.delay_ms(min(int(delay), levels.highest))
        tags = record.property_value(found.properties, _TAGS)
        return record.tags_code(tags) if tags else 0

    def _damaged(self, position: int, damage: str) -> None:
        self._report.damaged.append(f"{position}: {damage}")
        log.error("damaged record", position=position, damage=damage)

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
            known = max(watermarks.get(level, 0), offsets.get(level, 0), self._restored.get(level, 0))
            if known > lane.queue.max_offset:
                log.warning(
                    "watermark is behind the end of its lane", lane=level, watermark=known, end=lane.queue.max_offset
                )
            lane.advance(min(known, lane.queue.max_offset))
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
