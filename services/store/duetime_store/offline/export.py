"""A shard written as a directory that a RocketMQ broker opens, from a store that is stopped or in use.

What is written is the state at one position of the log, its end when it was read: the log up to there, queues made
anew from it, and the index; offsets are those from before. Topics, groups and what else there is come along, but for
files of ours that a broker does not know. Files have their full size, as a broker demands: its configuration has to
name the sizes, which `Exported` tells.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from struct import Struct

import numpy as np
from duetime_core.errors import DueTimeError
from duetime_core.levels import DelayLevels
from duetime_core.names import SCHEDULE_TOPIC
from duetime_core.ondisk.columns import Ints, Run
from duetime_core.ondisk.scan import Found, scan_runs
from duetime_core.ondisk.state import Progress, Queue, State, no_progress, read, watermarks
from duetime_core.ondisk.units import FILLER, UNIT, Units

from duetime_store import configs
from duetime_store.disk import Disk
from duetime_store.index import BROKERS, IndexFile, IndexWriter, Shape, file_paths, key_hash
from duetime_store.keys import keys_of, words_of
from duetime_store.offline.transfer import check_empty, check_room, copy_file, copy_files, made_whole, source_files
from duetime_store.segment import file_name

_OURS = (configs.STORE, configs.INDEX)
_MADE = ("commitlog", "consumequeue", "index", "checkpoint", "abort")
_CHECKPOINT = Struct(">qqq")
_CHECKPOINT_BYTES = 4_096
_QUEUE_FILE_BYTES = 300_000 * UNIT.size
# A broker makes these by itself.
_BROKERS_OWN = (SCHEDULE_TOPIC, "RMQ_SYS_", "rmq_sys_")


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written, and what a broker has to be configured with to read it."""

    records: int
    end: int
    settings: dict[str, object]


def export_directory(
    source: Path, target: Path, levels: DelayLevels, *, accept_damage: bool, progress: Progress = no_progress
) -> Exported:
    """Writes `target`, which is on disk on return.

    Raises:
        InvalidArgument: the source is no store directory.
        DueTimeError: the target holds something, there is no room, or the log is damaged and that is not accepted.
    """
    check_empty(target)
    others = [(path, name) for path, name in source_files(source) if name.parts[0] not in _MADE]
    with made_whole(target) as temporary:
        copy_files(Disk(), [(path, name) for path, name in others if not _is_ours(name)], temporary)
        state = read(source, levels, progress)
        if state.damaged and not accept_damage:
            places = "; ".join(f"{position}: {words}" for position, words in state.damaged[:3])
            raise DueTimeError(
                f"the log of {source} is damaged in {len(state.damaged)} places ({places}), and a broker's recovery "
                "ends there; --accept-damage writes it all the same"
            )
        check_room(temporary, [(source / file.path, Path(file.path)) for file in state.log.files.values()])
        return _Export(state, temporary).run()


def _is_ours(name: Path) -> bool:
    return name.parts[0] == "config" and name.name.removesuffix(".bak").removesuffix(".tmp") in _OURS


class _Export:
    def __init__(self, state: State, target: Path) -> None:
        self._state = state
        self._target = target
        self._disk = Disk()
        sizes = [queue.files.file_bytes for queue in state.queues.values() if queue.files.file_bytes]
        self._queue_bytes = max(set(sizes), key=sizes.count) if sizes else _QUEUE_FILE_BYTES

    def run(self) -> Exported:
        self._copy_log()
        for queue in self._state.queues.values():
            self._write_queue(queue)
        indexed_at_ms, stored_at_ms, shape = self._write_index()
        self._write_config()
        self._write_checkpoint(stored_at_ms, indexed_at_ms)
        settings: dict[str, object] = {
            "mappedFileSizeCommitLog": self._state.log.segment_bytes,
            "mappedFileSizeConsumeQueue": self._queue_bytes,
            "maxHashSlotNum": shape.slot_count,
            "maxIndexNum": shape.entry_count,
            "messageDelayLevel": str(self._state.history.current),
        }
        return Exported(self._state.records, self._state.end, settings)

    def _copy_log(self) -> None:
        """What lies behind the end is a hole; files behind it are not there."""
        folder = self._target / "commitlog"
        self._disk.make_directory(folder)
        for base, file in sorted(self._state.log.files.items()):
            if base < self._state.end:
                copy_file(
                    self._disk, self._state.root / file.path, folder / file_name(base), end=self._state.end - base
                )

    def _write_queue(self, queue: Queue) -> None:
        writer = _QueueWriter(self._disk, self._target, queue, self._queue_bytes)
        try:
            for offsets, units in queue.read():
                kept = units["position"] < self._state.end
                writer.add(offsets[kept], units[kept])
        finally:
            writer.close()

    def _write_index(self) -> tuple[int, int, Shape]:
        """The store times of the last record that is in the index, and of the last in the log."""
        paths = file_paths(self._state.root / "index")
        index = _IndexFiles(self._disk, self._target / "index", _shape(paths[0])) if paths else None
        stored_at_ms = 0
        for item in scan_runs(self._state.log, self._state.min_position, self._state.end):
            if isinstance(item, Run):
                stored_at_ms = int(item.stored_at_ms[-1])
                if index is not None:
                    hashes, owners = keys_of(item)
                    index.add(hashes, item.positions[owners], item.stored_at_ms[owners])
            elif isinstance(item, Found) and not item.damage:
                stored_at_ms = item.record.stored_at_ms
                if index is not None:
                    found = item.record
                    words = [word.decode("utf-8", "replace") for word in words_of(found.properties)]
                    hashes = np.array([key_hash(found.topic, word) for word in words], np.int64)
                    index.add(hashes, *(np.full(len(hashes), value) for value in (item.position, stored_at_ms)))
        indexed_at_ms = index.close() if index is not None else 0
        return indexed_at_ms, stored_at_ms, index.shape if index is not None else BROKERS

    def _write_config(self) -> None:
        config = self._target / "config"
        known = configs.read(config, configs.DELAY_OFFSETS) or {}
        offsets = configs.delay_offsets(known)
        marks = watermarks(self._state)
        offsets |= {level: mark for level, (mark, _) in marks.items() if mark or level in offsets}
        self._write_json(config, configs.DELAY_OFFSETS, {**known, "offsetTable": dict(sorted(offsets.items()))})
        counts: dict[str, int] = {}
        for topic, queue in self._state.queues:
            counts[topic] = max(counts.get(topic, 0), queue + 1)
        counts = {topic: count for topic, count in counts.items() if not topic.startswith(_BROKERS_OWN)}
        known = configs.read(config, configs.TOPICS) or {}
        table = known.get("topicConfigTable", {})
        missing = {topic: _topic(topic, count) for topic, count in sorted(counts.items()) if topic not in table}
        if missing:
            self._write_json(config, configs.TOPICS, {**known, "topicConfigTable": {**table, **missing}})

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


class _QueueWriter:
    """Writes one queue's files from its first unit on; offsets without a record are held free, as a broker does."""

    def __init__(self, disk: Disk, target: Path, queue: Queue, file_bytes: int) -> None:
        self._disk = disk
        self._folder = target / "consumequeue" / queue.topic / str(queue.queue)
        self._file_bytes = file_bytes
        self._fd = -1
        self._base = -1
        # The next offset; the first file begins with places held free.
        self._next = queue.min_offset - queue.min_offset % (file_bytes // UNIT.size)

    def add(self, offsets: Ints, units: Units) -> None:
        if not len(offsets):
            return
        # Runs of offsets without a gap.
        for part in np.split(np.arange(len(offsets)), np.flatnonzero(np.diff(offsets) != 1) + 1):
            first = int(offsets[part[0]])
            self._write(FILLER * (first - self._next))
            self._write(units[part].tobytes())

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            at = self._next * UNIT.size
            base = at - at % self._file_bytes
            if base != self._base:
                self._open(base)
            part = view[: base + self._file_bytes - at]
            self._disk.write(self._fd, part, at - base)
            self._next += len(part) // UNIT.size
            view = view[len(part) :]

    def _open(self, base: int) -> None:
        self.close()
        self._disk.make_directory(self._folder)
        self._fd, self._base = self._disk.open(self._folder / file_name(base)), base
        self._disk.truncate(self._fd, self._file_bytes)

    def close(self) -> None:
        if self._fd >= 0:
            self._disk.sync(self._fd)
            self._disk.close(self._fd)
            self._fd = -1


class _IndexFiles:
    """Index files, one behind the other."""

    def __init__(self, disk: Disk, folder: Path, shape: Shape) -> None:
        self.shape = shape
        self._disk = disk
        self._folder = folder
        self._writer: IndexWriter | None = None
        disk.make_directory(folder)

    def add(self, hashes: Ints, positions: Ints, times_ms: Ints) -> None:
        at = 0
        while at < len(hashes):
            writer = self._writer
            if writer is None or not writer.room:
                writer = self._roll(int(times_ms[at]))
            behind = at + writer.room
            writer.append(hashes[at:behind], positions[at:behind], times_ms[at:behind])
            at = min(behind, len(hashes))

    def _roll(self, at_ms: int) -> IndexWriter:
        """Names are times that ascend."""
        before = self._writer
        name = int(datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y%m%d%H%M%S%f")[:17])
        if before is not None:
            self._finish(before)
            name = max(name, int(before.path.name) + 1)
        path = self._folder / f"{name:017d}"
        self._writer = IndexWriter.create(self._disk, path, self.shape, before.header if before else None)
        return self._writer

    def _finish(self, writer: IndexWriter) -> None:
        writer.write_slots()
        writer.sync()
        writer.close()

    def close(self) -> int:
        """The store time of the last record."""
        if self._writer is None:
            return 0
        self._finish(self._writer)
        return self._writer.header.end_at_ms


def _shape(path: Path) -> Shape:
    """Of an existing index file; a broker's default where it can't be told."""
    try:
        file = IndexFile(path)
    except (OSError, DueTimeError):
        return BROKERS
    file.close()
    return file.shape
