"""Opens a store directory: the log is the truth, everything else is brought in line with it.

1. The checkpoint has the position up to which queues and watermarks are known to be on disk. Of its two slots, the
   newer one with all units in the queues counts. Without one the whole log is read.
2. Units after that position are dropped and rebuilt from the records; a record with a lane entry moves that lane's
   watermark.
3. The log is cut after the last intact record, unless a queue names a record there: damage at the end keeps its place
   like all other damage. A batch that was not written whole is cut or erased whole (duetime_shard.batches).
4. Missing files of the log stop the start, unless the operator has accepted their loss.
"""

import time
from concurrent.futures import Executor
from dataclasses import dataclass, field
from resource import RLIMIT_NOFILE, getrlimit

import numpy as np
import structlog
from duetime_core.errors import StartupError
from duetime_format import layout, record
from duetime_format.changes import StateChanges
from duetime_format.errors import DamagedBytes
from duetime_format.lanes import is_timer_lane, lane_of, level_of
from duetime_format.names import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from duetime_format.units import FILLER_SIZE, Ints, Units
from duetime_shard import topics as topic_lines
from duetime_shard.batches import Span, TornBatch, scan_whole
from duetime_shard.disk import LocalFiles
from duetime_shard.history import LevelHistory
from duetime_shard.walk import item_end, scan_runs

from duetime_store.files import configs, kept
from duetime_store.files.adopting import adopt_own
from duetime_store.files.directory import StoreDirectory, save_history
from duetime_store.lanes.alarm import ShardClock
from duetime_store.log import idfile
from duetime_store.log.commitlog import CommitLog, missing_text
from duetime_store.log.recent import RecentIds
from duetime_store.queues import deletions
from duetime_store.queues.consumequeue import ConsumeQueue
from duetime_store.queues.queuedisk import files_max_by
from duetime_store.queues.queues import Queues
from duetime_store.queues.queuetable import QueueTable
from duetime_store.queues.topics import ShardTopics, TopicLimits
from duetime_store.recovery import checkpoint
from duetime_store.recovery.checkpoint import Checkpoint
from duetime_store.recovery.counting import load_counts, make_ledger
from duetime_store.recovery.halfloading import load_transactions
from duetime_store.recovery.halfmoving import move_halves
from duetime_store.recovery.lanemaking import levels_from_here, make_levels, make_timers
from duetime_store.recovery.promised import keep_promises
from duetime_store.recovery.queueloading import QueueLoader
from duetime_store.recovery.replay import LogDamage, LogReplay
from duetime_store.settings import StoreSettings
from duetime_store.transactions.table import OpenTransactions
from duetime_store.writing.store import Store

log = structlog.get_logger()


@dataclass(slots=True)
class RecoveryReport:
    """Actions and findings of recovery, for the log and the metrics."""

    clean: bool
    whole_log: bool = False
    from_position: int = 0
    records: int = 0
    rebuilt_units: int = 0
    # Queues whose files were read because no table confirmed them.
    read_queues: int = 0
    # Records whose queue has another record at their offset.
    repeated: int = 0
    cut_bytes: int = 0
    # Records of batches that were not written whole.
    torn_batches: int = 0
    # Records written again in the places given by plans.
    promised: int = 0
    # Missing log files.
    missing_bytes: int = 0
    damage: LogDamage = field(default_factory=LogDamage)
    # Files under config/ that could not be read as they are.
    config_faults: list[str] = field(default_factory=list)
    took_ms: int = 0


@dataclass(slots=True)
class OpenedStore:
    """A store that is ready to serve."""

    store: Store
    report: RecoveryReport
    transactions: OpenTransactions
    # Table of the queues as of the trusted checkpoint; None: it has to be rewritten.
    table: QueueTable | None = None
    # Offsets of groups, with the log's changes.
    offsets: kept.KeptTable = field(default_factory=kept.KeptTable)
    # Other changes of state that the files lack.
    changes: StateChanges = field(default_factory=StateChanges)


def open_store(directory: StoreDirectory, settings: StoreSettings, clock: ShardClock, orders: Executor) -> OpenedStore:
    """Loads and recovers the directory.

    Args:
        orders: threads that write the orders of timer lanes.

    Raises:
        StartupError: the level table differs, log files are missing, the disk can't be read, or a broker's RocksDB.
    """
    started = time.perf_counter()
    try:
        adopt_own(directory.disk, directory.root)
        recovery = Recovery(directory, settings, clock, orders)
        recovery.read_all(recovery.begin())
        opened = recovery.finish()
    except OSError as error:
        raise StartupError(f"can't open {directory.root}: {error.strerror}: {error.filename}") from error
    opened.report.took_ms = int((time.perf_counter() - started) * 1000)
    return opened


class Recovery:
    """An opening of a directory in three steps: `begin`, reading the log, `finish`.

    A start reads to the end that it finds (`read_all`). A copy that follows knows the end of its committed entries, and
    reads up to it again and again (`read_to`).
    """

    def __init__(
        self,
        directory: StoreDirectory,
        settings: StoreSettings,
        clock: ShardClock,
        orders: Executor,
        commit_log: CommitLog | None = None,
    ) -> None:
        """`commit_log`: of a copy, which has no broker's half messages and no promises; by default the directory's.

        Raises:
            StartupError: as `open_store`.
        """
        self._directory = directory
        self._settings = settings
        self._clock = clock
        self._orders = orders
        self._levels = settings.levels
        self._accept_missing = settings.accept_missing_segments
        self._follows = commit_log is not None
        self._report = RecoveryReport(clean=not directory.was_aborted)
        self._log = commit_log or CommitLog(
            directory.disk, directory.commit_log, settings.segment_bytes, accept_missing=self._accept_missing
        )
        self._slots = self._read_points()
        self._points = [point for _, point in self._slots]
        self._queues = self._make_queues()
        self._sweep()
        counts = dict(self._queues.counts)
        self._loading = QueueLoader(directory, self._queues, self._log, self._slots)
        # Queues beyond their topic's present count stay readable.
        self._queues.counts.set(counts)
        self._recent = RecentIds(settings.recent_ids_count, settings.recent_ids_ms)
        self._replay = LogReplay(self._queues, self._load_history(), self._recent)
        self._replay.offsets = kept.load(LocalFiles(directory.root))
        self._replay.files_position = self._points[0].position if self._points else 0
        if not (self._points and configs.load(directory.config, configs.TOPICS).is_ours):
            self._replay.known_topics = frozenset(counts)
        self._ledger = make_ledger(directory, self._log, clock.now_ms())
        self._point: Checkpoint | None = None
        # The entry after the last one at the checkpoint, by lane; the half message after the last one.
        self._lane_firsts: dict[int, int] = {}
        self._half_first = 0

    def begin(self) -> int:
        """Loads the newest checkpoint that counts. Returns the position from which the log has to be read."""
        self._check_end()
        point = self._point = self._trusted()
        self._lane_firsts = self._lane_ends()
        halves = self._queues.known(HALF_TOPIC.encode(), 0)
        self._half_first = halves.next_offset if halves else 0
        start = point.position if point else self._log.min_position
        scan_start = self._load_ids(point) if point else start
        self._report.from_position = start
        self._replay.before_ms = point.stored_at_ms if point else 0
        for item in scan_runs(self._log, scan_start, start):
            self._replay.remember(item)
        return start

    def finish(self, *, serves: bool = True) -> OpenedStore:
        """The store as of the end of the log that was read. `serves`: it will write records."""
        point, half_end = self._point, self._half_first
        for queue in self._queues.all():
            queue.publish_all()
        self._clock.seen(max(self._replay.stored_at_ms, point.now_ms if point else 0))
        settings, history, row = self._settings, self._replay.history, b""
        if serves:
            history, row = levels_from_here(history, settings, self._log, self._clock.now_ms(), logged=self._follows)
        store = Store(
            self._log,
            self._queues,
            history,
            self._clock,
            self._recent,
            self._ledger,
            self._settings,
        )
        if row:
            # The first record: later ones have the new table.
            store.stage_own(row)
        store.published_at_ms = max(self._replay.stored_at_ms, point.stored_at_ms if point else 0)
        store.recovered_from = self._report.from_position
        replayed = self._replay.ends
        offsets = configs.delay_offsets(self._config(configs.DELAY_OFFSETS))
        make_levels(store, self._levels, point, offsets, replayed)
        make_timers(store, self._directory, settings, self._orders, point, replayed)
        load_counts(store.ledger, self._directory.root, point, self._lane_firsts, replayed, store.lanes)
        table = OpenTransactions(checks_max=settings.transaction_checks_max, transactions_max=settings.transactions_max)
        load_transactions(
            store,
            self._directory.root,
            point,
            half_end,
            self._replay.halves,
            table,
            self._settings.transaction_timeout_ms,
        )
        if not self._follows:
            # Both append to the log.
            move_halves(store, self._directory, table, settings.transaction_timeout_ms)
            self._report.promised = keep_promises(store, self._replay.plans)
        self._queues.count_units()
        if not row:
            save_history(history, self._directory.disk, self._directory.config, self._settings.shard)
        report, replay = self._report, self._replay
        report.records, report.rebuilt_units = replay.record_count, replay.units.unit_count
        report.repeated, report.damage = replay.units.repeated_count, replay.damage
        report.missing_bytes = sum(end - first for first, end in self._log.missing)
        report.read_queues = self._loading.read_count
        return OpenedStore(store, report, table, self._loading.table, replay.offsets, replay.changes)

    def _read_points(self) -> list[tuple[int, Checkpoint]]:
        """Serials and checkpoints. One without timer lanes does not count if such a queue exists: its units have no due
        times."""
        slots = checkpoint.read_slots(self._directory.checkpoint)
        if not (self._directory.queues / TIMER_TOPIC).exists():
            return slots
        return [(serial, point) for serial, point in slots if point.places is not None]

    def _config(self, name: str) -> dict[str, object] | None:
        loaded = configs.load(self._directory.config, name)
        if loaded.fault:
            log.error("config file damaged", file=name, fault=loaded.fault)
            self._report.config_faults.append(f"{name}: {loaded.fault}")
        return loaded.value

    def _topics(self) -> ShardTopics:
        known = self._config(configs.TOPICS)
        counts, types = configs.topic_counts(known), configs.topic_types(known)
        added = topic_lines.read(self._directory.config)
        if added.damaged:
            log.warning("lines of topics do not match their CRC", file=topic_lines.FILE, lines=added.damaged)
        topic_lines.add(counts, added.counts)
        limits = TopicLimits(self._settings.topics_max, self._settings.queues_max)
        return ShardTopics(counts, limits, types | added.types)

    def _make_queues(self) -> Queues:
        settings = self._settings
        topics = self._topics()
        files_max = settings.queue_files_max or files_max_by(getrlimit(RLIMIT_NOFILE)[0])
        return Queues(
            self._directory.disk,
            self._directory.queues,
            settings.queue_file_units,
            topics,
            files_max=files_max,
            deletions=deletions.load(self._config(deletions.FILE)),
        )

    def _sweep(self) -> None:
        """Deletes leftover files of deleted topics after a crash, unless a checkpoint counts their units."""
        until = self._points[0].position if self._points else self._log.max_position
        for one in self._queues.deletions.all():
            if one.position < until:
                deletions.sweep(self._directory.disk, self._directory, one)

    def _load_history(self) -> LevelHistory:
        """The level tables by log position. Raises StartupError if the data's is not this process's."""
        accept = self._settings.accept_delay_levels
        history = LevelHistory.load(self._config(configs.STORE), self._levels, accept=accept)
        if history is None:
            others = [text for tail in self._loading.tails if (text := self._other_delay(*tail))]
            text = f"the data was written with other delay levels than '{self._levels}': {'; '.join(others)}"
            if others and not accept:
                raise StartupError(
                    f"{text}. Start with --delay-levels as they were, or with --accept-delay-levels true "
                    "to make all pending messages due by this table"
                )
            if others:
                log.warning("pending messages become due by another table", found=text)
        return history or LevelHistory.of(self._levels)

    def _other_delay(self, queue: ConsumeQueue, first: int, units: Units) -> str:
        """The contradiction between a lane's newest entry and the level table; empty: none."""
        if queue.topic != SCHEDULE_TOPIC or not len(units) or units["size"][-1] == FILLER_SIZE:
            return ""
        position, size, due_at_ms = units[-1].tolist()
        try:
            found = record.decode(self._log.read(position, size))
        except DamagedBytes:
            return ""
        level, delay_ms = level_of(queue.queue), due_at_ms - found.stored_at_ms
        known_ms = self._levels.delay_at_most_ms(level)
        return "" if delay_ms == known_ms else f"entry {first + len(units) - 1} of level {level} waits {delay_ms} ms"

    def _check_end(self) -> None:
        """Raises StartupError if the log's last files are missing: a checkpoint or two units name places there."""
        log_end = self._log.max_position
        ends = np.concatenate([_ends(units) for _, _, units in self._loading.tails] or [np.empty(0, np.int64)])
        beyond = np.sort(ends[ends > log_end])
        known = max([point.position for point in self._points], default=0)
        # A single one may be a damaged unit.
        if len(beyond) > 1:
            known = max(known, int(beyond[-2]))
        if known > log_end:
            known += -known % self._log.segment_bytes
            missing = [*self._log.missing, (log_end, known)]
            if not self._accept_missing:
                raise StartupError(missing_text(self._directory.commit_log, missing))
            self._log.continue_after(missing)

    def _trusted(self) -> Checkpoint | None:
        """The newest checkpoint within the log whose units the queues hold; units after it are dropped."""
        if self._loading.table is not None:
            point = self._points[0]
            if self._loading.cut_to(point):
                return point
            self._loading.read_all()
        reason = "no checkpoint"
        faults = [f"queue {queue.queue} of {queue.topic}: {queue.fault}" for queue in self._queues.all() if queue.fault]
        for serial, point in self._slots if not faults else ():
            if not self._log.min_position <= point.position <= self._log.max_position:
                reason = "the log does not reach the checkpoint"
            else:
                for queue in self._queues.all():
                    queue.cut(queue.end_before(point.position))
                units = sum(queue.max_offset - queue.min_offset for queue in self._queues.all())
                if units == point.unit_count:
                    return point
                reason = f"queues hold {units} units, the checkpoint counts {point.unit_count}"
            # The checkpoint is discarded before queues are cut further: a crash on the way may leave the same number of
            # other units.
            checkpoint.discard(self._directory.disk, self._directory.checkpoint, serial)
        if self._log.max_position > self._log.min_position:
            log.warning("reading the whole log", reason="; ".join(faults) or reason)
        self._report.whole_log = True
        if self._points:
            # The same reason applies here.
            disk = self._directory.disk
            disk.unlink(self._directory.checkpoint)
            disk.sync_directory(self._directory.root)
        for queue in self._queues.all():
            # The queue's units in the log continue after those that were deleted with its front.
            queue.reset(queue.min_offset if self._log.min_position else 0)
        return None

    def read_all(self, start: int) -> None:
        """Reads the log from `start` to its end, and cuts it after its last whole record."""
        replay, cut = self._replay, list[Span]()
        for item in scan_whole(self._log, start, start, cut):
            replay.replay(item)
            if isinstance(item, TornBatch):
                log.warning("torn batch erased", position=item.position, bytes=item.size)
                self._log.erase(item.position, item_end(item))
                self._report.torn_batches += 1
        self._report.torn_batches += len(cut)
        end = max(replay.end, start)
        end = max([self._keep_damaged_tail(end, cut), *(gap_end for _, gap_end in self._log.missing)])
        for queue in self._queues.all():
            queue.publish_all()
        self._cut(end)
        # The log may be in the page cache only, from a process that was killed; from now on it counts as durable.
        self._log.flush_from(start)

    def read_to(self, start: int, end: int) -> None:
        """Reads records that are whole and durable, from `start`, the end of the last read, to `end`."""
        for item in scan_runs(self._log, start, end):
            self._replay.replay(item)
        self._log.end = end

    def close(self) -> None:
        """Closes its files. Not after `finish`: the store has them."""
        self._queues.shared.close()

    def _load_ids(self, point: Checkpoint) -> int:
        """Loads the window of ids as of the checkpoint. Returns the log position from which to read missing ids."""
        start = point.position
        if not self._recent.count_max:
            return start
        ids, reason = idfile.read(self._directory.root, start)
        if ids is not None:
            self._recent.load(ids)
            return start
        scan_start = max(min(point.scan_position, start), self._log.min_position)
        if scan_start < start:
            log.warning("ids of recent messages are read from the log", reason=reason, bytes=start - scan_start)
        return scan_start

    def _lane_ends(self) -> dict[int, int]:
        """The entry after the last one so far, by lane."""
        numbers = {lane_of(queue.topic, queue.queue): queue.next_offset for queue in self._queues.all()}
        return {number: end for number, end in numbers.items() if number is not None}

    def _keep_damaged_tail(self, end: int, torn: list[Span]) -> int:
        """The end of the log, including damaged records after its last intact one that queues or a checkpoint name.

        A torn write is not kept: it was never acknowledged. `torn`: batches that were not written whole.
        """
        known_end = end
        for queue, first, units in self._loading.tails:
            for index in np.flatnonzero(_ends(units) > end).tolist():
                position, size, _ = units[index].tolist()
                offset = first + index
                if any(begin <= position < stop for begin, stop in torn):
                    continue
                if position >= end and offset >= queue.next_offset and self._was_there(position, size):
                    queue.rebuild(np.array([offset]), units[index : index + 1], np.array([True]))
                    self._replay.damage.add(position, f"message {offset} of queue {queue.queue} of {queue.topic}")
                    known_end = max(known_end, position + size)
        for point in self._points:
            if known_end < point.position and self._was_there(known_end, point.position - known_end):
                self._replay.damage.add(known_end, f"everything up to position {point.position} of a checkpoint")
                known_end = point.position
        return known_end

    def _was_there(self, position: int, size: int) -> bool:
        """Whether a damaged record was whole once: a torn write leaves zeros at its end."""
        if any(first <= position < end for first, end in self._log.missing):
            return True
        start, last = self._log.read(position, layout.BLANK_BYTES), self._log.read(position + size - 1, 1)
        return any(start) and any(last)

    def _cut(self, end: int) -> None:
        """Zeroes the bytes after the last record, if they are not zeros."""
        if self._log.max_position > end:
            self._report.cut_bytes = _tail_bytes(self._log, end)
            if self._report.cut_bytes:
                log.warning("torn tail cut", position=end, bytes=self._report.cut_bytes)
            if self._report.cut_bytes or self._log.max_position - end > self._log.segment_bytes:
                self._forget_units()
                self._log.cut(end)
        self._log.end = end

    def _forget_units(self) -> None:
        """Makes durable that queues name no record after the end of the log, before log files are deleted. Otherwise a
        power cut could bring back units of files which then seem to be missing. In async mode units may reach the disk
        before their records."""
        flush = self._queues.shared.capture()
        flush.run()
        self._queues.shared.done(flush, failed=False)


def _ends(units: Units) -> Ints:
    """The end of each unit's record; 0 for a filler."""
    return np.where(units["size"] == FILLER_SIZE, 0, units["position"] + units["size"]).astype(np.int64)


def _tail_bytes(commit_log: CommitLog, end: int) -> int:
    """The distance from `end` to the last byte that is not zero, in the segment that holds `end`."""
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
        after = position + len(data)
        position = segment.next_data(after) if after < segment.end else None
    return last


def checkpoint_of(store: Store) -> Checkpoint:
    """The store's published state as a checkpoint."""
    lanes = [lane.watermark for lane in store.lanes if not is_timer_lane(lane.number)]
    places = tuple(lane.place for lane in store.lanes.timers())
    units = store.queues.unit_count
    end = store.published_end
    oldest = store.recent.oldest_position(end)
    return Checkpoint(end, oldest, units, tuple(lanes), store.published_at_ms, store.clock.now_ms(), places)
