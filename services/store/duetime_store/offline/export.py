"""Writes a shard as a directory for a RocketMQ broker, from a store that is stopped or in use.

The directory has the state at one position of the log, its end when it was read: the log up to there, and queues and
index rebuilt from it; the offsets were read earlier. Topics, groups and all other files are included, except ours that
a broker does not know. Files have their full size, as a broker requires; its configuration must have the same sizes,
which `ExportResult` has. At the end everything written is verified.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from struct import Struct

import numpy as np
from duetime_core.clock import SystemClock
from duetime_core.errors import DueTimeError
from duetime_format.changes import GROUPS, TOPICS
from duetime_format.columns import Ints, RecordRun
from duetime_format.keys import rows_of
from duetime_format.lanes import LANE_TOPICS, TIMER_LANE_FIRST
from duetime_format.levels import DelayLevels
from duetime_format.limits import TOPIC_CHARS_MAX
from duetime_format.names import (
    HALF_TOPIC,
    OP_TOPIC,
    ROCKSDB_HALF_TOPIC,
    ROCKSDB_OP_TOPIC,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    is_name,
)
from duetime_format.texts import shown
from duetime_format.units import UNIT, UNIT_TYPE, Units, dues_of, joined
from duetime_shard import kept, topics
from duetime_shard.brokers.timers import CHECK_FILE, known_handover, pending
from duetime_shard.disk import LocalFiles
from duetime_shard.files import LogFiles, QueueFiles
from duetime_shard.pending import lanes
from duetime_shard.queues import QueueImage
from duetime_shard.shard import DirectoryState, Progress, no_progress, read, restored
from duetime_shard.walk import scan_runs

from duetime_store.counting import countfile
from duetime_store.files import configs
from duetime_store.files.disk import Disk
from duetime_store.finding.index import BROKERS, Shape, file_paths
from duetime_store.log.segment import file_name
from duetime_store.offline import timerfile
from duetime_store.offline.emptybodies import EmptyBodies
from duetime_store.offline.exporthalves import KEY as _HALVES
from duetime_store.offline.exporthalves import HalfExport
from duetime_store.offline.exportlanes import LaneExport
from duetime_store.offline.indexfiles import IndexFiles, shape_of
from duetime_store.offline.logend import LogEnd, moved_units, repeat_last_entries
from duetime_store.offline.queuefiles import QueueWriter, all_units
from duetime_store.offline.report import VerifyReport
from duetime_store.offline.taghashes import TagHashes
from duetime_store.offline.transfer import check_empty, check_room, copy_file, copy_files, made_whole, source_files
from duetime_store.offline.verify import verify
from duetime_store.queues import queuetable
from duetime_store.transactions import tablefile

_OURS = (configs.ACCEPTED, configs.STORE, configs.INDEX, configs.ZONES, topics.FILE, kept.OFFSETS_FILE)
_MADE = (
    "commitlog", "consumequeue", "index", "checkpoint", "abort", "timerwheel", "timerlog",
    queuetable.FILE, countfile.FILE, countfile.BACKUP, "timers", tablefile.FILE, tablefile.BACKUP,
)  # fmt: skip
# Files of the wheel, which a broker rebuilds.
_MADE_CONFIG = ("timercheck", "timermetrics")
_CHECKPOINT = Struct(">qqq")
_CHECKPOINT_BYTES = 4_096
_QUEUE_FILE_BYTES = 300_000 * UNIT.size
# A broker creates these itself, and all that begin with `rmq_sys_`.
_BROKERS_OWN = frozenset(
    {SCHEDULE_TOPIC, HALF_TOPIC, OP_TOPIC, ROCKSDB_HALF_TOPIC, ROCKSDB_OP_TOPIC, "RMQ_SYS_TRACE_TOPIC"}
)
_TIMERS = (TIMER_TOPIC, 0)
_NO_UNITS = np.empty(0, UNIT_TYPE)


@dataclass(slots=True)
class ExportResult:
    """The directory written, and the configuration that a broker needs to read it."""

    records: int
    end: int
    settings: dict[str, object]
    # Messages without a body: pending ones, and all others in the log.
    empty_pending: int = 0
    empty_others: int = 0
    # Pending timers, and ended entries rewritten so that a broker drops them.
    timers: int = 0
    silenced: int = 0
    # Open transactions, and how many of them have lost their delay.
    transactions: int = 0
    delays_lost: int = 0
    # Topics whose lite topics a broker does not find.
    lite: list[str] = field(default_factory=list)
    # The verification of everything written. It has damage only if that was accepted.
    report: VerifyReport = field(default_factory=VerifyReport)

    @property
    def warnings(self) -> list[str]:
        """Contents that will cause trouble for a broker."""
        found = []
        if self.empty_pending + self.empty_others:
            found.append(
                f"{self.empty_pending} pending messages and {self.empty_others} others have an empty body: a 5.x "
                "broker delivers nothing more of a level whose next message is such a one, and push consumers of 4.x "
                "fail on them"
            )
        if self.delays_lost:
            found.append(
                f"{self.delays_lost} open transactions have lost their delay: they are delivered when committed"
            )
        if self.lite:
            found.append(
                f"a broker finds the messages of {', '.join(map(shown, self.lite[:3]))}, but no queues of its lite "
                f"topics ({len(self.lite)} topics of the type LITE): lite consumers get only later messages"
            )
        return found


@dataclass(frozen=True, slots=True)
class ExportTarget:
    """The broker that is to open the directory."""

    # RocketMQ's 5.x delivers messages for any time; 4.9 does not.
    has_timers: bool = True
    # The file for them instead, as JSON lines (timerfile.py); None: nowhere.
    timers_to: Path | None = None
    # Whether open transactions may lose their delay, which a broker does not keep.
    may_lose_delays: bool = False


def export_directory(
    source: Path,
    target: Path,
    levels: DelayLevels,
    *,
    accept_damage: bool,
    broker: ExportTarget = ExportTarget(),
    now_ms: int | None = None,
    progress: Progress = no_progress,
) -> ExportResult:
    """Writes `target` durably. `now_ms`: default: the system clock.

    Raises:
        InvalidArgument: the source is not a store directory.
        DueTimeError: the target is not empty, there is no room, retention has taken the front of the log in the
            meantime, a broker rejects a topic's name, would not deliver timers or would lose delays of
            transactions, or the log or the directory written is damaged and that is not accepted.
    """
    check_empty(target)
    others = [(path, name) for path, name in source_files(source) if name.parts[0] not in _MADE]
    with made_whole(target) as temporary:
        copy_files(Disk(), [(path, name) for path, name in others if not _is_ours(name)], temporary)
        state = read(source, levels, progress)
        _check_names(state)
        if state.damaged and not accept_damage:
            places = "; ".join(f"{position}: {words}" for position, words in state.damaged[:3])
            raise DueTimeError(
                f"the log of {source} is damaged in {len(state.damaged)} places ({places}), and a broker's recovery "
                "ends there; --accept-damage writes it anyway"
            )
        check_room(temporary, [(source / file.path, Path(file.path)) for file in state.log.files.values()])
        export = _Export(state, temporary, broker, SystemClock().now_ms() if now_ms is None else now_ms)
        made = export.run()
        made.report = verify(temporary, state.history)
        export.check(made.report)
        if not made.report.is_sound and not accept_damage:
            places = "; ".join(str(damage) for damage in made.report.damages[:3])
            raise DueTimeError(
                f"the directory written is damaged in {made.report.damage_count} places ({places}), and is not kept; "
                "--accept-damage keeps it anyway"
            )
        if broker.timers_to is not None:
            _write_timers(broker.timers_to, timerfile.lines(state, export.lanes))
        return made


def _check_names(state: DirectoryState) -> None:
    """Raises: DueTimeError: a broker rejects a name in the log or the configuration."""
    config = state.config
    known = configs.table_of(configs.read(config, configs.TOPICS), "topicConfigTable")
    names = {topic for topic, _ in state.queues} | topics.read(config).counts.keys() | known.keys()
    unfit = sorted(name for name in names if not is_name(name) or len(name) > TOPIC_CHARS_MAX)
    if unfit:
        listed = ", ".join(map(shown, unfit[:3]))
        raise DueTimeError(
            f"{len(unfit)} topics have names that brokers reject: {listed}; names are 1 to {TOPIC_CHARS_MAX} "
            "characters of [%|a-zA-Z0-9_-]"
        )


def _lite_topics(state: DirectoryState) -> list[str]:
    """Topics with messages whose type is LITE."""
    types = configs.topic_types(configs.read(state.config, configs.TOPICS)) | topics.read(state.config).types
    return sorted({topic for topic, _ in state.queues if types.get(topic) == "LITE"})


def _is_brokers_own(topic: str) -> bool:
    return topic in _BROKERS_OWN or topic.startswith("rmq_sys_")


def _write_timers(path: Path, lines: Iterable[str]) -> None:
    with path.open("x", encoding="utf-8") as file:
        file.writelines(lines)
        file.flush()
        os.fsync(file.fileno())


def _is_ours(name: Path) -> bool:
    """Whether a file is not copied: DueTime's own, and a broker's wheel."""
    base = name.name.removesuffix(".bak").removesuffix(".tmp")
    return name.parts[0] == "config" and base in (*_OURS, *_MADE_CONFIG)


class _Export:
    def __init__(self, state: DirectoryState, target: Path, broker: ExportTarget, now_ms: int) -> None:
        self._state = state
        self._broker = broker
        self._now_ms = now_ms
        # A broker's directory that no store has taken over keeps its receives by POP.
        self._has_receives = known_handover(state.files) is None
        self.lanes = lanes(state, has_receives=self._has_receives)
        self._lane_export = LaneExport(state, self.lanes, now_ms)
        self._half_export = HalfExport(state, reads_many=broker.has_timers)
        self._target = target
        self._disk = Disk()
        self._log_end = LogEnd(self._disk, target / "commitlog", state.log.segment_bytes, state.end)
        # The new position of the last unit's record, for some queues.
        self._moved: dict[tuple[str, int], int] = {}
        # The offset of the first appended unit, and the appended units, for some queues.
        self._appended: dict[tuple[str, int], tuple[int, Units]] = {}
        self._empty = EmptyBodies(self.lanes)
        self._hashes = TagHashes()
        sizes = [queue.files.file_bytes for queue in state.queues.values() if queue.files.file_bytes]
        self._queue_bytes = max(set(sizes), key=sizes.count) if sizes else _QUEUE_FILE_BYTES

    def run(self) -> ExportResult:
        deferred, broker = self._lane_export, self._broker
        if deferred.pending_count and not broker.has_timers and broker.timers_to is None:
            raise DueTimeError(
                f"{deferred.pending_count} messages for any time are pending, which RocketMQ 4.9 does not deliver; "
                "--timers-to FILE writes them to a file"
            )
        if self._half_export.delayed_count and not broker.may_lose_delays:
            raise DueTimeError(
                f"{self._half_export.delayed_count} open transactions have a delay, which a broker does not keep: end "
                "them first, or --lose-delays has them delivered on commit"
            )
        self._copy_log()
        self._write_pending()
        indexed_at_ms, stored_at_ms, shape = self._write_index()
        for queue in self._queues():
            self._write_queue(queue)
        self._write_config()
        self._write_checkpoint(stored_at_ms, indexed_at_ms)
        settings: dict[str, object] = {
            "mappedFileSizeCommitLog": self._state.log.segment_bytes,
            "mappedFileSizeConsumeQueue": self._queue_bytes,
            "maxHashSlotNum": shape.slot_count,
            "maxIndexNum": shape.entry_count,
            "messageDelayLevel": str(self._state.history.current),
        }
        if self._broker.has_timers:
            # Where topics, groups and offsets are read from, since 5.3. No file says so: groups would begin at 0.
            settings |= {"configManagerVersion": "v1", "enableLmq": "false"}
        count = self._state.records + len(self._moved) + sum(len(units) for _, units in self._appended.values())
        return ExportResult(
            count,
            self._log_end.end,
            settings,
            self._empty.pending_count,
            self._empty.other_count,
            deferred.pending_count,
            deferred.silenced_count,
            self._half_export.count,
            self._half_export.delayed_count,
            _lite_topics(self._state),
        )

    def _write_pending(self) -> None:
        """Appends to the copied log, and rewrites in it, the records that a broker needs for lanes and transactions."""
        deferred, opened, end = self._lane_export, self._half_export, self._log_end
        if self._broker.has_timers:
            deferred.append(end)
        deferred.silence(end, {topic for topic, _ in self._state.queues}, with_timers=self._broker.has_timers)
        opened.append(end)
        parts = {_TIMERS: (deferred.end, deferred.appended), _HALVES: (opened.end, opened.appended)}
        self._appended = {key: part for key, part in parts.items() if len(part[1])}
        end.close()
        copy = LogFiles(LocalFiles(self._target))
        self._moved = repeat_last_entries(self._state, copy, end, self._appended)
        end.close()
        copy.close()

    def _queues(self) -> list[QueueImage]:
        queues = dict(self._state.queues)
        for key in self._appended:
            queues.setdefault(key, QueueImage(QueueFiles.none(*key)))
        return list(queues.values())

    def check(self, report: VerifyReport) -> None:
        """Reports timers and open transactions that a broker would not find as they are."""
        self._check_timers(report)
        self._half_export.check(LocalFiles(self._target), report)

    def _check_timers(self, report: VerifyReport) -> None:
        if _TIMERS not in {(queue.topic, queue.queue) for queue in self._queues()}:
            return
        files = LocalFiles(self._target)
        queue = QueueFiles(files, *_TIMERS)
        units = joined(all_units(queue))
        entries = np.arange(queue.max_offset - len(units), queue.max_offset)
        log = LogFiles(files)
        # Receives that a store has taken over are silenced only where a broker reads.
        found = pending(files, entries, units, log.read, has_receives=self._has_receives)
        ended = self._state.ends.ends(TIMER_LANE_FIRST)
        left = np.setdiff1d(
            found if found is not None else entries, np.union1d(ended.ended_entries, ended.restored_entries)
        )
        wrong = np.setxor1d(left, self._lane_export.expected())
        if len(wrong):
            what = f"a broker would find {len(left)} timers pending; {len(wrong)} are wrong or missing"
            report.add(CHECK_FILE, 0, f"{what}; the first is entry {wrong[0]}")
        log.close()

    def _copy_log(self) -> None:
        """Copies the log up to the end: the rest of the last file is a hole, and later files are left out."""
        folder = self._target / "commitlog"
        self._disk.make_directory(folder)
        for base, file in sorted(self._state.log.files.items()):
            if base < self._state.end:
                made = folder / file_name(base)
                copy_file(self._disk, self._state.root / file.path, made, end=self._state.end - base)
                if not made.exists():
                    raise DueTimeError(f"retention has removed {file.path} in the meantime; repeat the export")

    def _write_queue(self, queue: QueueImage) -> None:
        writer = QueueWriter(self._disk, self._target, queue, self._queue_bytes)
        moved = self._moved.get((queue.topic, queue.queue))
        try:
            for offsets, units in queue.read():
                kept = units["position"] < self._state.end
                own = self._as_a_brokers(queue, offsets[kept], units[kept])
                writer.add(offsets[kept], moved_units(offsets[kept], own, queue.max_offset - 1, moved))
            first, appended = self._appended.get((queue.topic, queue.queue), (0, _NO_UNITS))
            if len(appended):
                offsets = np.arange(first, first + len(appended))
                writer.add(offsets, self._as_a_brokers(queue, offsets, appended))
            elif self._state.min_position:
                writer.add_gone()
        finally:
            writer.close()

    def _as_a_brokers(self, queue: QueueImage, offsets: Ints, units: Units) -> Units:
        """Units with a broker's tagsCodes: due times of levels, hashes of tags of timers and half messages."""
        if queue.topic not in (*LANE_TOPICS, HALF_TOPIC):
            return units
        units = units.copy()
        if queue.topic in TagHashes.TOPICS:
            units["tags"] = self._hashes.of(queue.topic, queue.queue, offsets)
        else:
            units["tags"] = dues_of(units["tags"].astype(np.int64))
        return units

    def _write_index(self) -> tuple[int, int, Shape]:
        """Returns the store times of the last record in the index, and of the last in the log."""
        paths = file_paths(self._state.root / "index")
        index = IndexFiles(self._disk, self._target / "index", shape_of(paths[0])) if paths else None
        stored_at_ms = 0
        for item in scan_runs(LogFiles(LocalFiles(self._target)), self._state.min_position, self._log_end.end):
            self._empty.see(item)
            self._hashes.see(item)
            if isinstance(item, RecordRun):
                stored_at_ms = int(item.stored_at_ms[-1])
                if index is not None:
                    index.add(rows_of(item))
        indexed_at_ms = index.close() if index is not None else 0
        return indexed_at_ms, stored_at_ms, index.shape if index is not None else BROKERS

    def _write_config(self) -> None:
        config = self._target / "config"
        known = configs.read(config, configs.DELAY_OFFSETS) or {}
        offsets = configs.delay_offsets(known)
        levels = restored(self._state)
        offsets |= {level: lane.watermark for level, lane in levels.items() if lane.watermark or level in offsets}
        self._write_json(config, configs.DELAY_OFFSETS, {**known, "offsetTable": dict(sorted(offsets.items()))})
        counts: dict[str, int] = {}
        for topic, queue in self._state.queues:
            counts[topic] = max(counts.get(topic, 0), queue + 1)
        counts = {topic: count for topic, count in counts.items() if not _is_brokers_own(topic)}
        known = configs.read(config, configs.TOPICS) or {}
        added = topics.read(self._state.config)
        for change in self._state.changes.of(TOPICS):
            added.counts[change.key] = max(added.counts.get(change.key, 0), change.value[0])
            added.types.update({change.key: change.value[1]} if change.value[1] else {})
        known = configs.with_topics(known, added.counts, self._state.stored_at_ms, added.types) or known
        table = known.get("topicConfigTable", {})
        missing = {topic: _topic(topic, count) for topic, count in sorted(counts.items()) if topic not in table}
        if missing or added.counts:
            self._write_json(config, configs.TOPICS, {**known, "topicConfigTable": {**table, **missing}})

        self._write_groups(config)
        progress, committed = self._half_export.progress(), kept.current(self._state.files, self._state.offsets)
        if progress or (committed and configs.as_read(committed) != configs.read(config, configs.CONSUMER_OFFSETS)):
            self._write_json(config, configs.CONSUMER_OFFSETS, configs.with_group_offsets(committed, progress))
        self._write_versions(config)
        content = self._lane_export.check.encode().ljust(_CHECKPOINT_BYTES, b"\0")
        self._disk.write_file(self._target / CHECK_FILE, content)

    def _write_groups(self, config: Path) -> None:
        """Adds the groups that only the log has."""
        loaded = configs.load(config, configs.GROUPS)
        known = configs.groups(loaded.value)
        found = {change.key: change.value for change in self._state.changes.of(GROUPS)}
        if found := {name: row for name, row in found.items() if loaded.is_ours or name not in known}:
            self._write_json(config, configs.GROUPS, configs.with_groups(loaded.value, found, self._now_ms))

    def _write_versions(self, config: Path) -> None:
        """A broker with storeType=defaultRocksDB reads only files whose version is above that of its RocksDB, 0."""
        for name in (configs.TOPICS, configs.GROUPS, configs.CONSUMER_OFFSETS):
            value = configs.read(config, name)
            if value is not None and (changed := configs.with_version(value, self._now_ms)) != value:
                is_offsets = name == configs.CONSUMER_OFFSETS
                self._write_json(config, name, configs.with_group_offsets(changed, {}) if is_offsets else changed)

    def _write_json(self, config: Path, name: str, value: dict[str, object]) -> None:
        configs.write(self._disk, config, name, value)
        (config / f"{name}.bak").unlink(missing_ok=True)

    def _write_checkpoint(self, stored_at_ms: int, indexed_at_ms: int) -> None:
        times = _CHECKPOINT.pack(stored_at_ms, stored_at_ms, indexed_at_ms)
        fd = self._disk.open(self._target / "checkpoint")
        try:
            self._disk.write(fd, times.ljust(_CHECKPOINT_BYTES, b"\0"), 0)
            self._disk.sync(fd)
        finally:
            self._disk.close(fd)


def _topic(name: str, count: int) -> dict[str, object]:
    """The entry of a topic that is in the log and not in the file yet."""
    counts = {"readQueueNums": count, "topicFilterType": "SINGLE_TAG", "topicName": name}
    return {"order": False, "perm": 6, **counts, "topicSysFlag": 0, "writeQueueNums": count}
