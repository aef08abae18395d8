"""The content of a directory as served by a store that recovers it: queues consistent with the log, in memory.

The log decides. Its records are walked once, from the first file to the last intact record, which is its end. A queue
has the units of its files, without those after the end, then those of records not in it yet: a killed broker had
dispatched fewer than it had written, and a running store writes more meanwhile.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from duetime_format import layout
from duetime_format.columns import Ints, Run
from duetime_format.deletions import Deletion
from duetime_format.lanes import TIMER_LANE_FIRST, Place, level_of
from duetime_format.levels import DelayLevels
from duetime_format.names import SCHEDULE_TOPIC
from duetime_format.record import Record
from duetime_format.units import FILLER_SIZE, UNIT_TYPE, Units, joined

from duetime_core.errors import InvalidArgument, Violation
from duetime_core.ondisk import checkpoint, configs
from duetime_core.ondisk.batches import scan_whole
from duetime_core.ondisk.facts import MOVED_TOPICS, facts_of, is_possible, is_queue
from duetime_core.ondisk.files import LogFiles, QueueFiles
from duetime_core.ondisk.folder import IS_FOLDER, Files, LocalFiles
from duetime_core.ondisk.history import LevelHistory
from duetime_core.ondisk.laneends import EndsReader
from duetime_core.ondisk.lanes import Restored
from duetime_core.ondisk.levels import TagsCodes
from duetime_core.ondisk.scan import Blank, DamagedRecord, Item, Skipped, intact_at, item_end

_UNITS_AT_ONCE = 8_192
# Begins a broker's names of lite topics.
LMQ_PREFIX = "%LMQ%"
# Any of these indicates a store's directory.
_PARTS = ("commitlog", "consumequeue", "config", "checkpoint")

Progress = Callable[[int], None]


def no_progress(position: int) -> None:
    """The progress callback of callers without one."""


@dataclass(frozen=True, slots=True)
class Unqueued:
    """A record without a unit: a half message that never left its state, or a rollback."""

    position: int
    size: int
    topic: str
    queue: int
    offset: int
    flags: int


@dataclass(slots=True)
class Queue:
    """The units of one (topic, queue): those of its files, then those created from the log."""

    files: QueueFiles
    # Pairs of offsets and units, in order of the log.
    made: list[tuple[Ints, Units]] = field(default_factory=list)
    min_offset: int = 0
    max_offset: int = 0

    @property
    def topic(self) -> str:
        return self.files.topic

    @property
    def queue(self) -> int:
        return self.files.queue

    def settle(self, log_min: int, log_end: int) -> None:
        """Makes the files' units consistent with the log."""
        self.files.drop_behind(log_end)
        self.files.drop_before(log_min)
        self.min_offset, self.max_offset = self.files.min_offset, self.files.max_offset
        self._drop_repeated()
        if self.made:
            if self.min_offset == self.max_offset:
                self.min_offset = int(self.made[0][0][0])
            self.max_offset = max(self.max_offset, int(self.made[-1][0][-1]) + 1)

    def _drop_repeated(self) -> None:
        """Keeps the first of records with the same offset, or the last of those appended again by retention."""
        if not self.made:
            return
        offsets = np.concatenate([offsets for offsets, _ in self.made])
        units = joined(units for _, units in self.made)
        if self.topic in MOVED_TOPICS:
            offsets, last = np.unique(offsets[::-1], return_index=True)
            self.made = [(offsets, units[::-1][last])]
            return
        highest = np.maximum.accumulate(np.append(self.files.max_offset - 1, offsets[:-1]))
        kept = offsets > highest
        self.made = [(offsets[kept], units[kept])] if kept.any() else []

    def read(self, first: int = 0) -> Iterator[tuple[Ints, Units]]:
        """Offsets and units from an offset on, in parts; offsets without a record are skipped."""
        at = max(first, self.min_offset)
        while at < self.files.max_offset:
            units = self.files.read(at, min(_UNITS_AT_ONCE, self.files.max_offset - at))
            if not len(units):
                at += self.files.file_units - at % self.files.file_units  # the file was deleted meanwhile
                continue
            there = units["size"] != FILLER_SIZE
            yield np.arange(at, at + len(units))[there], units[there]
            at += len(units)
        for offsets, units in self.made:
            wanted = offsets >= max(first, self.files.max_offset)
            yield offsets[wanted], units[wanted]


@dataclass(slots=True)
class State:
    """See the module. `end` is the position after the last intact record."""

    files: Files
    log: LogFiles
    history: LevelHistory
    queues: dict[tuple[str, int], Queue]
    end: int = 0
    records: int = 0
    record_bytes: int = 0
    blanks: list[Blank] = field(default_factory=list)
    unqueued: list[Unqueued] = field(default_factory=list)
    # Position and description.
    damaged: list[tuple[int, str]] = field(default_factory=list)
    # Position of the last record in the log, including copies, by queue with records that retention appends again.
    newest: dict[tuple[str, int], int] = field(default_factory=dict)
    # The latest store time of an intact record; 0: none was read.
    stored_at_ms: int = 0
    # Next entry to restore by level, from checkpoint and delayOffset.json before the log was read.
    known: dict[int, int] = field(default_factory=dict)
    # Progress by timer lane, from the checkpoint.
    places: dict[int, Place] = field(default_factory=dict)
    # Ends of lane entries, from records of the log.
    ends: EndsReader = field(default_factory=EndsReader)

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


def open_root(source: Path | Files) -> Files:
    """Raises: InvalidArgument: not a store's directory."""
    files = LocalFiles(source) if isinstance(source, Path) else source
    if not any(files.exists(part) for part in _PARTS):
        what = f"it has none of {', '.join(_PARTS)}" if files.exists("") else "it does not exist"
        raise InvalidArgument([Violation("directory", f"{files.name} is not a store directory: {what}")])
    return files


def load(source: Path | Files, levels: DelayLevels | LevelHistory, *, probe: bool = False) -> State:
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
    queues = {key: Queue(QueueFiles(files, *key, probe=probe)) for key in queue_directories(files)}
    # The log's files are listed after the queues: it then has their records, and later units are created from it.
    state = State(files, LogFiles(files), history or known_before, queues, known=known)
    state.places.update(enumerate(_known_places(files), TIMER_LANE_FIRST))
    return state


def queue_directories(files: Files) -> list[tuple[str, int]]:
    """Topic and queue of every queue. A broker's queues of lite topics have units of other topics' records."""
    return [
        (topic, int(name))
        for topic, kind in files.listed("consumequeue")
        if kind == IS_FOLDER and not topic.startswith(LMQ_PREFIX)
        for name, inner in files.listed(f"consumequeue/{topic}")
        if inner == IS_FOLDER and name.isascii() and name.isdigit()
    ]


def read(source: Path | Files, levels: DelayLevels, progress: Progress = no_progress) -> State:
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


def walk_whole(state: State, first: int | None = None) -> Iterator[Item]:
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


def _again(state: State, damaged: DamagedRecord) -> Item:
    """Reads the record again: it is complete by now, since another one follows it."""
    segment = state.log.segment_at(damaged.position)
    now = None if segment is None else intact_at(segment, damaged.position)
    return now or damaged


def _may_be_torn(state: State, found: Record) -> bool:
    queue = state.queues.get((found.topic, found.queue))
    return (queue is None or found.queue_offset >= queue.files.max_offset) and state.files.exists("abort")


class StateReader:
    """Takes the items of a walk from a position on: earlier records are in their queues already."""

    def __init__(self, state: State, first: int | None = None) -> None:
        self._state = state
        self._codes = TagsCodes(state.history)
        # Position of the deletion, by topic.
        self._deleted: dict[str, int] = {}
        state.ends = EndsReader(state.known, state.places)
        state.end = state.min_position if first is None else first

    def see(self, item: Item) -> int:
        """Takes an item. Returns the position reached by the walk."""
        state = self._state
        if isinstance(item, Blank):
            state.blanks.append(item)
        elif isinstance(item, Skipped):
            state.damaged.append((item.position, item.damage))
        else:
            self._see_run(item) if isinstance(item, Run) else self._see_damaged(item)
        end = item_end(item)
        # A mark at the very end means that the next file was started, if it exists.
        if not isinstance(item, Blank) or state.log.segment_at(end) is not None:
            state.end = end
        return end

    def settle(self) -> None:
        self._state.log.forget_vanished()
        first = self._state.min_position
        self._state.damaged = [place for place in self._state.damaged if place[0] >= first]
        for queue in self._state.queues.values():
            queue.settle(self._state.min_position, self._state.end)

    def _see_run(self, run: Run) -> None:
        state, facts = self._state, facts_of(run, self._state.stored_at_ms)
        state.ends.see(facts)
        state.damaged += facts.damage
        state.records += run.count
        state.record_bytes += int(run.sizes.sum())
        state.stored_at_ms = max(state.stored_at_ms, int(run.stored_at_ms.max()))
        queued = run.queued
        for deletion in facts.deleted:
            self._delete(deletion)
        names = [(topic.decode(), queue) for topic, queue in run.keys]
        self._see_kept(run, names)
        known = np.array([state.queues[key].files.max_offset if key in state.queues else -1 for key in names])
        absent = queued & (run.offsets >= known[run.key_of]) & is_possible(run.offsets, run.positions)
        absent &= np.array([is_queue(*key) for key in names])[run.key_of]
        if self._deleted:
            absent &= run.positions > np.array([self._deleted.get(topic, -1) for topic, _ in names])[run.key_of]
        if absent.any():
            self._make(run, names, np.flatnonzero(absent))
        for index in np.flatnonzero(~queued).tolist():
            topic, queue = names[int(run.key_of[index])]
            row = (run.positions[index], run.sizes[index])
            self._leave(int(row[0]), int(row[1]), topic, queue, int(run.offsets[index]), int(run.flags[index]))

    def _see_kept(self, run: Run, names: list[tuple[str, int]]) -> None:
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
        key = (found.topic, found.queue)
        if not (is_queue(*key) and is_possible(np.array([found.queue_offset]), np.array([item.position]))[0]):
            return
        if key not in state.queues or found.queue_offset >= state.queues[key].files.max_offset:
            unit = np.array([(item.position, found.size, self._codes.of_record(found))], UNIT_TYPE)
            self._queue(key).made.append((np.array([found.queue_offset]), unit))

    def _delete(self, deletion: Deletion) -> None:
        """Removes the topic's queues with their content so far; those of a later topic start with other files."""
        position = deletion.position
        self._deleted[deletion.topic] = position
        for key in [key for key in self._state.queues if key[0] == deletion.topic]:
            files = self._state.queues[key].files
            files.drop_before(position)
            if files.min_offset == files.max_offset:
                del self._state.queues[key]
            else:
                self._state.queues[key].made.clear()

    def _make(self, run: Run, names: list[tuple[str, int]], rows: Ints) -> None:
        units = np.empty(len(rows), UNIT_TYPE)
        units["position"], units["size"] = run.positions[rows], run.sizes[rows]
        units["tags"] = self._codes.of(run)[rows]
        key_of, offsets = run.key_of[rows], run.offsets[rows]
        order = np.argsort(key_of, kind="stable")
        for part in np.split(order, np.flatnonzero(np.diff(key_of[order])) + 1):
            self._queue(names[int(key_of[part[0]])]).made.append((offsets[part], units[part]))

    def _queue(self, key: tuple[str, int]) -> Queue:
        queue = self._state.queues.get(key)
        if queue is None:
            queue = self._state.queues[key] = Queue(QueueFiles(self._state.files, *key))
        return queue

    def _leave(self, position: int, size: int, topic: str, queue: int, offset: int, flags: int) -> None:
        self._state.unqueued.append(Unqueued(position, size, topic, queue, offset, flags))


def restored(state: State) -> dict[int, Restored]:
    """The restored entries by level, as recovery finds them."""
    lanes = {level_of(queue.queue): queue for queue in state.queues.values() if queue.topic == SCHEDULE_TOPIC}
    found = {}
    for level in range(1, max([state.history.current.highest, *lanes]) + 1):
        low, high = (lanes[level].min_offset, lanes[level].max_offset) if level in lanes else (0, 0)
        found[level] = Restored.of(state.known.get(level, 0), low, high, [state.ends.ends(level).restored_entries])
    return found


def _settled(files: Files) -> int:
    """The log is durable before this position."""
    point = checkpoint.decode(files.content("checkpoint") or b"")
    return point.position if point else 0


def _known_places(files: Files) -> tuple[Place, ...]:
    point = checkpoint.decode(files.content("checkpoint") or b"")
    return (point.places or ()) if point else ()


def _known_marks(files: Files) -> dict[int, int]:
    known = configs.delay_offsets(configs.load_from(files, configs.DELAY_OFFSETS).value)
    point = checkpoint.decode(files.content("checkpoint") or b"")
    for level, mark in enumerate(point.watermarks if point else (), 1):
        known[level] = max(known.get(level, 0), mark)
    return known
