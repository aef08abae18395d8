"""A shard at one moment: every reader of a job sees this state, even if the shard changes.

    log   min ─────────── P ──────────────── E        E: end of the last intact record; defines the moment
                          │  walked once     │
    queue [min, ─────────────────────── max)          P: the checkpoint; queues hold everything before it
    lane  [min, ── watermark ────────── max)

From the checkpoint on the log is walked as in recovery: queue ends, watermarks and units not yet in their files come
from there. Without a checkpoint of ours (a broker's directory), or if the queues do not hold its counts, the whole log
is walked. Later changes of the shard leave [min, max) intact: a unit may name a later copy of its record, and files of
expired messages may go.
"""

import base64
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from duetime_core.errors import InvalidArgument, Violation
from duetime_format.columns import Key, RecordRun
from duetime_format.lanes import TIMER_LANE_FIRST, LanePlace, is_timer_lane, queue_of
from duetime_format.levels import DEFAULT_DELAY_LEVELS, DelayLevels
from duetime_format.names import SCHEDULE_TOPIC, TIMER_TOPIC
from duetime_format.units import UNIT_TYPE, Ints, Units, joined
from duetime_shard import checkpoint, configs
from duetime_shard.brokers.timers import are_brokers, known_handover
from duetime_shard.checkpoint import Checkpoint
from duetime_shard.disk import ShardFiles
from duetime_shard.pending import PendingLane
from duetime_shard.pending import lanes as pending_lanes
from duetime_shard.queues import QueueImage
from duetime_shard.shard import (
    DirectoryState,
    StateReader,
    load,
    open_root,
    restored,
    walk_whole,
)
from duetime_shard.walk import Item, SkippedBytes

from duetime_spark.shards.files import open_source, pause

VERSION = 2
# Attempts at a running store before its whole log is walked.
_TRIES = 4
_PAUSE_S = 0.25
_NO_OFFSETS = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class QueueView:
    """A queue's messages [min_offset, max_offset). Units below `files_max` are in its files."""

    topic: str
    queue: int
    min_offset: int
    max_offset: int
    files_max: int
    file_bytes: int
    # The other units: offsets (i64, little-endian) and units (20 bytes) in pairs, by offset.
    made_offsets: bytes = b""
    made_units: bytes = b""

    @property
    def made(self) -> tuple[Ints, Units]:
        return np.frombuffer(self.made_offsets, "<i8"), np.frombuffer(self.made_units, UNIT_TYPE)


@dataclass(frozen=True, slots=True)
class LaneView:
    """A lane: entries [min_offset, watermark), those in `ahead` and `gone`, and those with a mark in their unit are
    restored or ended; the others are pending.

    `level` is the lane's number, from 1,000 on for lanes of messages for any time (`is_timer`). These have no
    watermark: all entries up to a place in the order of due times are restored or ended. If a broker wrote the
    directory last, the pending ones are those of `ShardSnapshot.timers`.
    """

    level: int
    delay_ms: int
    min_offset: int
    watermark: int
    max_offset: int
    ahead: tuple[int, ...] = ()
    pending: int = 0
    place_due_at_ms: int = 0
    place_entry: int = -1
    # Entries (i64, little-endian) restored or ended by records after the checkpoint; ascending.
    gone: bytes = b""

    @property
    def is_timer(self) -> bool:
        return is_timer_lane(self.level)

    @property
    def gone_entries(self) -> Ints:
        """Entries of `gone` and `ahead`."""
        return np.union1d(np.frombuffer(self.gone, "<i8"), np.array(self.ahead, np.int64))


@dataclass(frozen=True, slots=True)
class Finding:
    """Damage: bytes [position, position + size) of a file were skipped, or differ from the written ones."""

    path: str
    position: int
    size: int
    words: str


@dataclass(frozen=True, slots=True)
class ShardSnapshot:
    """See the module. Positions are bytes of the log, times Unix ms."""

    shard: int
    # Its place, for people.
    name: str
    min_position: int
    end: int
    segment_bytes: int
    # Store time of the last record.
    stored_at_ms: int
    # Whether DueTime has written the directory.
    is_ours: bool
    # Whether the whole log was walked for it.
    is_whole: bool
    # The current level table.
    delay_levels: str
    # Whether due times ascend in each lane: the level table has never changed.
    dues_ascend: bool
    queues: tuple[QueueView, ...] = ()
    lanes: tuple[LaneView, ...] = ()
    # If a broker wrote the directory last: the units of undelivered timers.
    timers: QueueView | None = None
    # The log's end at the takeover of a broker's timers; 0: never.
    brokers_until: int = 0
    findings: tuple[Finding, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return dict(asdict(self, dict_factory=_plain))

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> "ShardSnapshot":
        """Raises: ValueError: the value is not a result of `to_dict`."""
        try:
            timers = value["timers"]
            return cls(
                **{
                    **value,
                    "queues": tuple(_queue_of(queue) for queue in value["queues"]),
                    "lanes": tuple(_lane_of(lane) for lane in value["lanes"]),
                    "timers": _queue_of(timers) if timers else None,
                    "findings": tuple(Finding(**finding) for finding in value["findings"]),
                }
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"the value is not a snapshot: {error}") from error


def _plain(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return {name: base64.b64encode(value).decode() if isinstance(value, bytes) else value for name, value in pairs}


def _queue_of(value: dict[str, Any]) -> QueueView:
    made = {name: base64.b64decode(value[name]) for name in ("made_offsets", "made_units")}
    return QueueView(**{**value, **made})


def _lane_of(value: dict[str, Any]) -> LaneView:
    return LaneView(**{**value, "ahead": tuple(value["ahead"]), "gone": base64.b64decode(value["gone"])})


@dataclass(frozen=True, slots=True)
class ShardImage:
    """A shard's files, and their content at one moment."""

    files: ShardFiles
    snapshot: ShardSnapshot


def open_shards(
    sources: Sequence[str], levels: str = DEFAULT_DELAY_LEVELS, snapshot: str | None = None
) -> list[ShardImage]:
    """The shards of sources, at a snapshot of the same sources from `take_snapshots`, or at one taken now.

    Raises:
        InvalidArgument: there is no source, a source is not a store, or the snapshot is of other sources.
        Unavailable: a store does not answer.
    """
    if not sources:
        raise InvalidArgument([Violation("path", "no source is given: set path or endpoint")])
    files = [shard for source in sources for shard in open_source(source)]
    if snapshot is not None:
        return _pinned(files, snapshot)
    try:
        table = DelayLevels.parse(levels)
    except ValueError as error:
        raise InvalidArgument([Violation("levels", str(error))]) from error
    taken = [take_snapshot(shard, table) for shard in files]
    return [ShardImage(*pair) for pair in zip(files, _with_own_numbers(taken), strict=True)]


def take_snapshots(sources: Sequence[str], levels: str = DEFAULT_DELAY_LEVELS) -> str:
    """The snapshots of all shards, for option `snapshot`: several reads of one job see the same state. Raises: as
    `open_shards`."""
    return to_json(shard.snapshot for shard in open_shards(sources, levels))


def to_json(snapshots: Iterable[ShardSnapshot]) -> str:
    return json.dumps({"version": VERSION, "shards": [snapshot.to_dict() for snapshot in snapshots]})


def _pinned(files: list[ShardFiles], text: str) -> list[ShardImage]:
    try:
        value = json.loads(text)
        if value["version"] != VERSION:
            raise ValueError(f"version {value['version']} is not {VERSION}")
        found = [ShardSnapshot.from_dict(shard) for shard in value["shards"]]
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidArgument([Violation("snapshot", f"it cannot be read: {error}")]) from error
    names = [shard.name for shard in files]
    if [snapshot.name for snapshot in found] != names:
        raise InvalidArgument([Violation("snapshot", f"it is not of {', '.join(names)}")])
    return [ShardImage(*pair) for pair in zip(files, found, strict=True)]


def _with_own_numbers(taken: list[ShardSnapshot]) -> list[ShardSnapshot]:
    """Renumbers shards with equal numbers (brokers' have) to the next free numbers, in order."""
    free = iter(number for number in range(2 * len(taken)) if number not in {one.shard for one in taken})
    used: set[int] = set()
    found = []
    for one in taken:
        number = one.shard if one.shard not in used else next(free)
        used.add(number)
        found.append(replace(one, shard=number))
    return found


def take_snapshot(files: ShardFiles, levels: DelayLevels) -> ShardSnapshot:
    """A shard's current state.

    Args:
        levels: the level table of a broker's directory; DueTime's directories contain theirs.

    Raises:
        InvalidArgument: the directory is not a store's.
    """
    open_root(files)
    for tries in range(_TRIES):
        point = checkpoint.decode(files.content("checkpoint") or b"")
        walk = _DirectoryWalk(files, levels, point)
        if point is None or walk.is_trusted():
            return walk.snapshot()
        if not files.exists("abort"):
            break
        # Retention in a running store has removed units; its next checkpoint counts without them.
        if tries < _TRIES - 1:
            pause(_PAUSE_S)
    return _DirectoryWalk(files, levels, None).snapshot()


@dataclass(slots=True)
class _Tally:
    """By queue: the lowest offset of records after the checkpoint, not counting copies made by retention."""

    latest_ms: int
    first: dict[Key, int] = field(default_factory=dict)

    def see(self, item: Item) -> None:
        if not isinstance(item, RecordRun):
            return
        stored_at_ms = item.stored_at_ms
        before = np.maximum.accumulate(np.append(self.latest_ms, stored_at_ms))
        self.latest_ms = int(before[-1])
        own = item.queued & (stored_at_ms >= before[:-1])
        lowest = np.full(len(item.keys), np.iinfo(np.int64).max)
        np.minimum.at(lowest, item.key_of[own], item.offsets[own])
        seen = np.bincount(item.key_of[own], minlength=len(item.keys))
        for number in np.flatnonzero(seen).tolist():
            self.first.setdefault(item.keys[number], int(lowest[number]))


class _DirectoryWalk:
    """Reads a directory, from the checkpoint on if given."""

    def __init__(self, files: ShardFiles, levels: DelayLevels, point: Checkpoint | None) -> None:
        self._files = files
        self._point = point
        self.state = state = load(files, levels, probe=point is not None)
        self._skipped: dict[int, int] = {}
        self._tally = _Tally(point.stored_at_ms if point else 0)
        self._is_reached = point is None or state.min_position <= point.position <= _log_end(state)
        if self._is_reached:
            first = point.position if point else None
            reader = StateReader(state, first)
            for item in walk_whole(state, first):
                if isinstance(item, SkippedBytes):
                    self._skipped[item.position] = item.size
                reader.see(item)
                self._tally.see(item)
            reader.settle()
            for queue in state.queues.values():
                _adopt(queue)
        self._stored_at_ms = max(state.stored_at_ms, point.stored_at_ms if point else 0)

    def is_trusted(self) -> bool:
        """Whether the queues hold the checkpoint's count of units before it."""
        point, state = self._point, self.state
        if point is None or not self._is_reached:
            return False
        units = 0
        for (topic, number), queue in state.queues.items():
            end = self._tally.first.get((topic.encode(), number), queue.max_offset)
            # Units are missing between the files and the log.
            if end > queue.files.max_offset and queue.files.max_offset > 0:
                return False
            units += max(end - queue.min_offset, 0)
        return units == point.unit_count

    def snapshot(self) -> ShardSnapshot:
        state = self.state
        store = configs.load_from(self._files, configs.STORE).value
        known = pending_lanes(state)
        timers = self._timers(known.get(TIMER_LANE_FIRST))
        return ShardSnapshot(
            shard=_shard(store),
            name=self._files.name,
            min_position=state.min_position,
            end=state.end,
            segment_bytes=state.log.segment_bytes,
            stored_at_ms=self._stored_at_ms,
            is_ours=store is not None,
            is_whole=self._point is None,
            delay_levels=str(state.history.current),
            dues_ascend=store is not None and len(state.history.since) == 1,
            queues=tuple(_view(queue) for _, queue in sorted(state.queues.items())),
            lanes=self._lanes(known),
            timers=timers,
            brokers_until=handover.position if (handover := known_handover(self._files)) else 0,
            findings=tuple(self._findings()),
        )

    def _timers(self, lane: PendingLane | None) -> QueueView | None:
        """None if DueTime wrote the directory last: then units have due times, and marks of ended entries."""
        if lane is None or not are_brokers(self._files):
            return None
        parts = list(lane.pending())
        offsets = np.concatenate([_NO_OFFSETS, *(part for part, _ in parts)])
        units = joined(part for _, part in parts)
        low, high = (int(offsets[0]), int(offsets[-1]) + 1) if len(offsets) else (0, 0)
        return QueueView(TIMER_TOPIC, 0, low, high, low, 0, offsets.astype("<i8").tobytes(), units.tobytes())

    def _lanes(self, known: dict[int, PendingLane]) -> tuple[LaneView, ...]:
        state, found = self.state, []
        table = state.history.current
        for level, lane in restored(state).items():
            queue, mark = state.queues.get((SCHEDULE_TOPIC, queue_of(level))), lane.watermark
            low, high = (queue.min_offset, queue.max_offset) if queue else (mark, mark)
            delay_ms = table.delay_at_most_ms(level)
            ahead = tuple(lane.ahead.tolist())
            pending = known[level].counts()[0] if level in known else 0
            gone = _packed(known[level].progress.ended) if level in known else b""
            found.append(LaneView(level, delay_ms, low, mark, high, ahead, pending, gone=gone))
        for number, one in known.items():
            if is_timer_lane(number):
                found.append(self._timer_lane(one))
        return tuple(found)

    def _timer_lane(self, lane: PendingLane) -> LaneView:
        low, high = lane.queue.min_offset, lane.queue.max_offset
        place = self.state.places.get(lane.number, LanePlace(0, -1))
        ends = self.state.ends.ends(lane.number)
        gone = _packed(np.union1d(lane.progress.ended, ends.restored_entries))
        return LaneView(lane.number, 0, low, low, high, (), lane.counts()[0], *place, gone)

    def _findings(self) -> Iterable[Finding]:
        state = self.state
        for position, words in state.damaged:
            size = self._skipped.get(position, 0)
            base = position - position % max(state.log.segment_bytes, 1)
            yield Finding(f"commitlog/{base:020d}", position - base, size, words)
        last = max(state.log.files, default=0)
        for base, file in sorted(state.log.files.items()):
            if file.size != state.log.segment_bytes and base != last:
                words = f"the file has {file.size} bytes, its neighbours {state.log.segment_bytes}"
                yield Finding(file.path, 0, file.size, words)
        for name in (configs.STORE, configs.DELAY_OFFSETS):
            fault = configs.load_from(self._files, name).fault
            if fault:
                yield Finding(f"config/{name}", 0, 0, fault)


def _packed(entries: Ints) -> bytes:
    return entries.astype("<i8").tobytes()


def _log_end(state: DirectoryState) -> int:
    return max(state.log.files, default=0) + state.log.segment_bytes if state.log.files else state.min_position


def _shard(store: dict[str, Any] | None) -> int:
    number = (store or {}).get("shard")
    return number if isinstance(number, int) else 0


def _adopt(queue: QueueImage) -> None:
    """Drops made units written to the files during the walk."""
    files = queue.files
    while queue.made:
        offsets, units = queue.made[0]
        found = files.read(files.max_offset, len(offsets))
        count = min(len(found), len(offsets))
        same = _same(offsets[:count], files.max_offset, units[:count], found[:count])
        if not same:
            return
        files.max_offset += same
        queue.made[0] = offsets[same:], units[same:]
        if same == len(offsets):
            queue.made.pop(0)


def _same(offsets: Ints, first: int, units: Units, found: Units) -> int:
    """The number of leading units equal to those in the file."""
    is_same: npt.NDArray[np.bool_] = (offsets == first + np.arange(len(offsets))) & (units == found)
    differing = np.flatnonzero(~is_same)
    return int(differing[0]) if len(differing) else len(offsets)


def _view(queue: QueueImage) -> QueueView:
    made = [(offsets, units) for offsets, units in queue.made if len(offsets)]
    offsets = np.concatenate([_NO_OFFSETS, *(offsets for offsets, _ in made)])
    units = joined(units for _, units in made)
    files = queue.files
    own = offsets >= files.max_offset
    return QueueView(
        queue.topic,
        queue.queue,
        queue.min_offset,
        queue.max_offset,
        min(files.max_offset, queue.max_offset),
        files.file_bytes,
        offsets[own].astype("<i8").tobytes(),
        units[own].tobytes(),
    )
