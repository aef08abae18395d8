"""The content of a directory as served by a store that recovers it: queues consistent with the log, in memory.

The log decides. Its records are walked once, from the first file to the last intact record, which is its end. A queue
has the units of its files, without those after the end, then those of records not in it yet: a killed broker had
dispatched fewer than it had written, and a running store writes more meanwhile.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
from duetime_core.errors import InvalidArgument, Violation
from duetime_format import layout
from duetime_format.changes import OFFSETS, TOPICS, StateChanges
from duetime_format.columns import RecordRun
from duetime_format.deletions import Deletion
from duetime_format.lanes import TIMER_LANE_FIRST, LanePlace, level_of
from duetime_format.levels import DelayLevels
from duetime_format.names import SCHEDULE_TOPIC
from duetime_format.record import Record
from duetime_format.units import UNIT_TYPE, Mask

from duetime_shard import checkpoint, configs, kept
from duetime_shard.batches import scan_whole
from duetime_shard.disk import IS_FOLDER, LocalFiles, ShardFiles
from duetime_shard.facts import MOVED_TOPICS, facts_of
from duetime_shard.files import LogFiles, QueueFiles
from duetime_shard.history import LevelHistory
from duetime_shard.kept import KeptTable
from duetime_shard.laneends import LaneEndReader
from duetime_shard.lanes import LevelProgress
from duetime_shard.levels import TagsCodes
from duetime_shard.queues import QueueImage
from duetime_shard.rebuilding import UnitRebuilder
from duetime_shard.walk import DamagedRecord, Item, SegmentBlank, SkippedBytes, intact_at, item_end

# Begins a broker's names of lite topics.
LMQ_PREFIX = "%LMQ%"
# Any of these indicates a store's directory.
_PARTS = ("commitlog", "consumequeue", "config", "checkpoint")

Progress = Callable[[int], None]


def no_progress(position: int) -> None:
    """The progress callback of callers without one."""


@dataclass(frozen=True, slots=True)
class UnqueuedRecord:
    """A record without a unit: a half message that never left its state, or a rollback."""

    position: int
    size: int
    topic: str
    queue: int
    offset: int
    flags: int


@dataclass
class DirectoryState:
    """See the module. `end` is the position after the last intact record."""

    files: ShardFiles
    log: LogFiles
    history: LevelHistory
    queues: dict[tuple[str, int], QueueImage]
    end: int = 0
    records: int = 0
    record_bytes: int = 0
    blanks: list[SegmentBlank] = field(default_factory=list)
    unqueued: list[UnqueuedRecord] = field(default_factory=list)
    # Position and description.
    damaged: list[tuple[int, str]] = field(default_factory=list)
    # Position of the last record in the log, including copies, by queue with records that retention appends again.
    newest: dict[tuple[str, int], int] = field(default_factory=dict)
    # The latest store time of an intact record; 0: none was read.
    stored_at_ms: int = 0
    # Next entry to restore by level, from checkpoint and delayOffset.json before the log was read.
    known: dict[int, int] = field(default_factory=dict)
    # Progress by timer lane, from the checkpoint.
    places: dict[int, LanePlace] = field(default_factory=dict)
    # Ends of lane entries, from records of the log.
    ends: LaneEndReader = field(default_factory=LaneEndReader)
    # Other changes of state, which the files lack.
    changes: StateChanges = field(default_factory=StateChanges)

    @cached_property
    def offsets(self) -> KeptTable:
        """Offsets of groups, with the changes in the log so far."""
        return kept.load(self.files)

    @property
    def min_position(self) -> int:
        return self.log.min_position

    @property
    def root(self) -> Path:
        """The path of a directory of this machine."""
        return Path(self.files.name)

    @property
    def config(self) -> Path:
        return self.root / "config"


def open_root(source: Path | ShardFiles) -> ShardFiles:
    """Raises: InvalidArgument: not a store's directory."""
    files = LocalFiles(source) if isinstance(source, Path) else source
    if not any(files.exists(part) for part in _PARTS):
        what = f"it has none of {', '.join(_PARTS)}" if files.exists("") else "it does not exist"
        raise InvalidArgument([Violation("directory", f"{files.name} is not a store directory: {what}")])
    return files


def load(source: Path | ShardFiles, levels: DelayLevels | LevelHistory, *, probe: bool = False) -> DirectoryState:
    """Opens the directory and reads its queues; the log is not read yet.

    Args:
        levels: the table, or its history, for dating a broker's lanes; DueTime's directories state theirs.
        probe: see QueueFiles.
    """
    files = open_root(source)
    known_before = levels if isinstance(levels, LevelHistory) else LevelHistory.of(levels)
    stored = configs.load_from(files, configs.STORE).value
    history = LevelHistory.load(stored, known_before.current, accept=True)
    known = _known_marks(files)
    queues = {key: QueueImage(QueueFiles(files, *key, probe=probe)) for key in queue_directories(files)}
    # The log's files are listed after the queues: it then has their records, and later units are created from it.
    state = DirectoryState(files, LogFiles(files), history or known_before, queues, known=known)
    state.places.update(enumerate(_known_places(files), TIMER_LANE_FIRST))
    return state


def queue_directories(files: ShardFiles) -> list[tuple[str, int]]:
    """Topic and queue of every queue. A broker's queues of lite topics have units of other topics' records."""
    return [
        (topic, int(name))
        for topic, kind in files.listed("consumequeue")
        if kind == IS_FOLDER and not topic.startswith(LMQ_PREFIX)
        for name, inner in files.listed(f"consumequeue/{topic}")
        if inner == IS_FOLDER and name.isascii() and name.isdigit()
    ]


def read(source: Path | ShardFiles, levels: DelayLevels, progress: Progress = no_progress) -> DirectoryState:
    """Reads the directory, walks its log and updates its queues. Raises: InvalidArgument."""
    state = load(source, levels)
    reader = StateReader(state)
    for item in walk_whole(state):
        progress(reader.see(item))
    reader.settle()
    return state


def walk(log: LogFiles, first: int | None = None, settled: int = 0) -> Iterator[Item]:
    """Everything from the log's first position, or another one, to its last intact record, without torn batches.
    `settled`: position of the latest checkpoint."""
    return scan_whole(log, log.min_position if first is None else first, settled)


def walk_whole(state: DirectoryState, first: int | None = None) -> Iterator[Item]:
    """As `walk`, without incomplete records at the end, torn by a kill or still being written by a running store: their
    CRC does not match, and they have no unit yet."""
    held: list[DamagedRecord] = []
    for item in walk(state.log, first, _settled(state.files)):
        if isinstance(item, DamagedRecord) and _may_be_torn(state, item.record):
            held.append(item)
            continue
        yield from (_again(state, one) for one in held)
        held.clear()
        yield item


def _again(state: DirectoryState, damaged: DamagedRecord) -> Item:
    """Reads the record again: it is complete by now, since another one follows it."""
    segment = state.log.segment_at(damaged.position)
    now = None if segment is None else intact_at(segment, damaged.position)
    return now or damaged


def _may_be_torn(state: DirectoryState, found: Record) -> bool:
    queue = state.queues.get((found.topic, found.queue))
    return (queue is None or found.queue_offset >= queue.files.max_offset) and state.files.exists("abort")


class StateReader:
    """Takes the items of a walk from a position on: earlier records are in their queues already."""

    def __init__(self, state: DirectoryState, first: int | None = None) -> None:
        self._state = state
        self._codes = TagsCodes(state.history)
        # Position of the deletion, by topic.
        self._deleted: dict[str, int] = {}
        self._settled = _settled(state.files)
        # Places for records that may be written again, by queue.
        self._reserved: dict[tuple[str, int], dict[int, int]] = {}
        self._units = UnitRebuilder(self._queue, lambda topic: self._deleted.get(topic, -1), self._damaged)
        state.ends = LaneEndReader(state.known, state.places)
        state.end = state.min_position if first is None else first

    def see(self, item: Item) -> int:
        """Takes an item. Returns the position reached by the walk."""
        state = self._state
        if isinstance(item, SegmentBlank):
            state.blanks.append(item)
        elif isinstance(item, SkippedBytes):
            state.damaged.append((item.position, item.damage))
        else:
            self._see_run(item) if isinstance(item, RecordRun) else self._see_damaged(item)
        end = item_end(item)
        # A mark at the very end means that the next file was started, if it exists.
        if not isinstance(item, SegmentBlank) or state.log.segment_at(end) is not None:
            state.end = end
        return end

    def settle(self) -> None:
        self._state.log.forget_vanished()
        first = self._state.min_position
        self._state.damaged = [place for place in self._state.damaged if place[0] >= first]
        for queue in self._state.queues.values():
            queue.settle(self._state.min_position, self._state.end)

    def _see_run(self, run: RecordRun) -> None:
        state, facts = self._state, facts_of(run, self._state.stored_at_ms)
        state.ends.see(facts)
        state.damaged += facts.damage
        state.records += run.count
        state.record_bytes += int(run.sizes.sum())
        state.stored_at_ms = max(state.stored_at_ms, int(run.stored_at_ms.max()))
        for deletion in facts.deleted:
            self._delete(deletion)
        self._codes.learn(facts.changed)
        state.history = self._codes.history
        for position, changes in facts.changed:
            for change in changes:
                if change.kind == OFFSETS:
                    state.offsets.replay(position, change)
                elif position >= max(self._settled, self._deleted.get(change.key, -1) if change.kind == TOPICS else -1):
                    state.changes.add(change)
        names = [(topic.decode(), queue) for topic, queue in run.keys]
        self._see_kept(run, names)
        known = np.array([state.queues[key].files.max_offset if key in state.queues else -1 for key in names])
        # The files have the others.
        absent = run.queued & ((run.offsets < 0) | (run.offsets >= known[run.key_of]))
        self._add_written_again(run, names, absent)
        if absent.any():
            self._units.add_run(run, self._codes.of(run), facts.copied, absent)
        for index in np.flatnonzero(~run.queued).tolist():
            topic, queue = names[int(run.key_of[index])]
            row = (run.positions[index], run.sizes[index])
            self._leave(int(row[0]), int(row[1]), topic, queue, int(run.offsets[index]), int(run.flags[index]))

    def _add_written_again(self, run: RecordRun, names: list[tuple[str, int]], absent: Mask) -> None:
        """Adds records to `absent` that a power cut had lost, if the start that wrote them again was killed before
        their queues had them. A checkpoint promises that queues have all records before it."""
        if run.entries is None or run.end_position <= self._settled:
            return
        for number, name in enumerate(names):
            if reserved := self._reserved_places(name):
                own = np.flatnonzero((run.key_of == number) & (run.entries[0] >= 0) & run.queued & ~absent)
                places = zip(run.offsets[own].tolist(), run.positions[own].tolist(), strict=True)
                absent[own] = [reserved.get(offset, position) < position for offset, position in places]

    def _reserved_places(self, key: tuple[str, int]) -> dict[int, int]:
        """See QueueFiles.reserved."""
        if key not in self._reserved:
            known = {} if key[0] in MOVED_TOPICS else self._state.queues
            self._reserved[key] = known[key].files.reserved(self._settled) if key in known else {}
        return self._reserved[key]

    def _see_kept(self, run: RecordRun, names: list[tuple[str, int]]) -> None:
        for number, key in enumerate(names):
            if key[0] in MOVED_TOPICS:
                own = np.flatnonzero((run.key_of == number) & run.queued)
                if len(own):
                    self._state.newest[key] = int(run.positions[own[-1]])

    def _see_damaged(self, item: DamagedRecord) -> None:
        found, state = item.record, self._state
        state.records += 1
        state.record_bytes += found.size
        state.damaged.append((item.position, item.damage))
        if found.sys_flag & layout.SYS_TRANSACTION_PREPARED:
            self._leave(item.position, found.size, found.topic, found.queue, found.queue_offset, found.sys_flag)
            return
        queue = state.queues.get((found.topic, found.queue))
        if queue is not None and queue.next_offset == found.queue_offset:
            unit = np.array([(item.position, found.size, self._codes.of_record(found))], UNIT_TYPE)
            self._units.add_damaged((found.topic.encode(), found.queue), found.queue_offset, unit)
        elif queue is not None and item.position >= self._settled and found.topic not in MOVED_TOPICS:
            # The queue's files have it, unless its offset is damaged too.
            self._units.claim((found.topic.encode(), found.queue), found.queue_offset)
            self._reserved_places((found.topic, found.queue))[found.queue_offset] = item.position

    def _delete(self, deletion: Deletion) -> None:
        """Removes the topic's queues with their content so far; those of a later topic start with other files."""
        self._deleted[deletion.topic] = deletion.position
        self._state.changes.drop(TOPICS, deletion.topic)
        for key in [key for key in self._state.queues if key[0] == deletion.topic]:
            queue = self._state.queues[key]
            queue.forget(deletion.position)
            if queue.min_offset == queue.next_offset:
                del self._state.queues[key]

    def _queue(self, topic: bytes, number: int) -> QueueImage:
        key = (topic.decode(), number)
        queue = self._state.queues.get(key)
        if queue is None:
            queue = self._state.queues[key] = QueueImage(QueueFiles(self._state.files, *key))
        return queue

    def _damaged(self, position: int, text: str) -> None:
        self._state.damaged.append((position, text))

    def _leave(self, position: int, size: int, topic: str, queue: int, offset: int, flags: int) -> None:
        self._state.unqueued.append(UnqueuedRecord(position, size, topic, queue, offset, flags))


def restored(state: DirectoryState) -> dict[int, LevelProgress]:
    """The restored entries by level, as recovery finds them."""
    lanes = {level_of(queue.queue): queue for queue in state.queues.values() if queue.topic == SCHEDULE_TOPIC}
    found = {}
    for level in range(1, max([state.history.current.highest, *lanes]) + 1):
        low, high = (lanes[level].min_offset, lanes[level].max_offset) if level in lanes else (0, 0)
        found[level] = LevelProgress.of(state.known.get(level, 0), low, high, [state.ends.ends(level).restored_entries])
    return found


def _settled(files: ShardFiles) -> int:
    """The log is durable before this position."""
    point = checkpoint.decode(files.content("checkpoint") or b"")
    return point.position if point else 0


def _known_places(files: ShardFiles) -> tuple[LanePlace, ...]:
    point = checkpoint.decode(files.content("checkpoint") or b"")
    return (point.places or ()) if point else ()


def _known_marks(files: ShardFiles) -> dict[int, int]:
    known = configs.delay_offsets(configs.load_from(files, configs.DELAY_OFFSETS).value)
    point = checkpoint.decode(files.content("checkpoint") or b"")
    for level, mark in enumerate(point.watermarks if point else (), 1):
        known[level] = max(known.get(level, 0), mark)
    return known
