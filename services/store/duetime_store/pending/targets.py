"""The lane entry of a reference to a pending message, and the fate of that message.

    place given ──▶ the entry's record has the id ──▶ its state; if ended, perhaps replaced: as below
    else        ──▶ the id, in the index and the tail of the log ──▶ the newest pending record, else the others' state

A message is known by its topic and id. An id alone is searched for in all topics, and rejected if several have it.

Records are read beforehand, in turns. Their fate is judged in one step together with the caller's staging, so no race
is possible.
"""

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from duetime.v1 import pending_pb2
from duetime_core.errors import Ambiguous, DueTimeError, InvalidArgument, Unavailable, Violation
from duetime_format import record
from duetime_format.columns import values
from duetime_format.lanes import LANE_TOPICS, lane_of
from duetime_format.limits import ID_CHARS_MAX, TOPIC_CHARS_MAX
from duetime_format.names import GIVEN_UP_TOPIC, HALF_TOPIC, RETRY_PREFIX, is_system_topic
from duetime_format.properties import as_text
from duetime_format.texts import shown
from duetime_format.units import FILLER_SIZE, Ints, Units, are_ended, dues_of, spans

from duetime_store.finding.destinations import destination_of
from duetime_store.finding.finder import FoundRecord
from duetime_store.finding.search import LogSearch, SearchedWord
from duetime_store.lanes.lane import CANCELLED, PENDING, RESTORED, ShardLane
from duetime_store.lanes.lanes import ShardLanes
from duetime_store.log.commitlog import CommitLog
from duetime_store.queues.deletions import Deletions
from duetime_store.reading.gather import ExpectedRecords, gather
from duetime_store.reading.turns import ScanTurns, YieldingScan
from duetime_store.writing.ends import state_of

# Maximum lookups of messages that other calls keep replacing.
ROUNDS_MAX = 16
# Records read in one piece of a step: a fraction of a millisecond.
_PIECE = 128
_PIECE_BYTES = 1024 * 1024
_LANE_TOPICS = sorted(LANE_TOPICS)
_HALF_TOPICS = (HALF_TOPIC, GIVEN_UP_TOPIC)
_NAMES = tuple(name.encode() for name in (record.UNIQ_KEY, record.REAL_TOPIC, record.RETRY_TOPIC))

Place = tuple[int, int]  # lane, entry
# Values of _NAMES.
Names = tuple[bytes | None, bytes | None, bytes | None]


@dataclass(frozen=True, slots=True)
class MessageCopy:
    """A record of a message. `lane`: the number of its lane; 0: it is in a topic."""

    lane: int
    entry: int
    # It waits for a retry: the message has fired before.
    is_retry: bool
    # It goes to a topic that only servers write to, like a broker's own timers: users can't end it.
    is_system: bool = False

    @classmethod
    def of(cls, lane: int, entry: int, destination: str) -> "MessageCopy":
        is_retry = destination.startswith(RETRY_PREFIX)
        return cls(lane, entry, is_retry, lane > 0 and not is_retry and is_system_topic(destination))


class SearchedId(SearchedWord):
    """A message searched for by its id. `topic`: its destination; empty: any."""

    def __init__(self, lanes: ShardLanes, deletions: Deletions, message_id: str, topic: str) -> None:
        super().__init__(message_id, _LANE_TOPICS)
        self._lanes = lanes
        self._deletions = deletions
        self._topic = topic
        # Keys are store time, then log position.
        self._found: dict[tuple[int, int], MessageCopy] = {}
        # Destinations of its records, except topics deleted since.
        self.topics: set[str] = set()

    @property
    def copies(self) -> list[MessageCopy]:
        """Newest first."""
        return [copy for _, copy in sorted(self._found.items(), reverse=True)]

    def take(self, seen: FoundRecord) -> None:
        found = seen.record
        origin = seen.properties.get(record.RETRY_TOPIC, "")
        if seen.id != self.word or self._topic not in ("", found.topic, seen.real_topic, origin):
            return
        if destination := destination_of(self._deletions, seen):
            self.topics.add(destination)
        if found.topic in _HALF_TOPICS:
            # An uncommitted message is neither pending nor in its topic.
            return
        lane = lane_of(found.topic, found.queue) or 0
        copy = MessageCopy.of(lane, found.queue_offset, seen.real_topic)
        # Records that retention appended again are known.
        if not lane or copy not in self._found.values():
            self._found[found.stored_at_ms, found.position] = copy

    @property
    def is_done(self) -> bool:
        # An id alone is searched for in all topics, since more than one may have it.
        return bool(self._topic) and any(
            copy.lane and state_of(self._lanes, copy.lane, copy.entry) == PENDING for copy in self._found.values()
        )

    @property
    def other_topics(self) -> Sequence[str] | None:
        if not self._topic:
            return []
        return None if self._found else [self._topic]


class Fate(enum.Enum):
    """The fate of a message."""

    PENDING = enum.auto()
    # It is in its topic, or a record that restores it is staged, or it waits for a retry.
    FIRED = enum.auto()
    CANCELLED = enum.auto()
    NOT_FOUND = enum.auto()
    # Another record may have replaced it: its id has to be searched for (again).
    UNCLEAR = enum.auto()


# If no record of a message is pending, the first of these counts.
_WEIGHT = (Fate.UNCLEAR, Fate.FIRED, Fate.CANCELLED)


class TargetVerdict(NamedTuple):
    """`lane` and `entry` of a pending message."""

    fate: Fate
    lane: ShardLane | None = None
    entry: int = -1


@dataclass(slots=True)
class PendingTarget:
    """A message that a call names. Its `copies` are known after a search; `error`: its state is unknown."""

    message_id: str
    topic: str
    lane: int
    entry: int
    copies: list[MessageCopy] | None = None
    # Due time of the entry at the given place, if the record there is its own.
    due_at_ms: int | None = None
    # The place is missing, another message's, or that of an ended entry: maybe another record replaces it.
    is_unclear: bool = True
    # It was searched for by its id.
    is_sought: bool = False
    error: DueTimeError | None = None
    # Topics that have a message with the id, known after a search.
    topics: Sequence[str] = ()

    def take(self, copies: list[MessageCopy]) -> None:
        """Sets its records."""
        self.copies = copies
        if copies and all(copy.is_system for copy in copies):
            text = f"{shown(self.message_id)} goes to a system topic; only DueTime itself can end its wait"
            self.error = InvalidArgument([Violation("message.message_id", text)])

    def forget(self) -> None:
        """Resets it for another lookup."""
        self.copies, self.due_at_ms, self.is_unclear, self.is_sought = None, None, True, False

    @classmethod
    def of(cls, ref: pending_pb2.PendingRef) -> "PendingTarget":
        """An invalid reference has an `error`."""
        target = cls(ref.message_id, ref.topic, ref.lane, ref.entry)
        faults = []
        if not 1 <= len(ref.message_id) <= ID_CHARS_MAX:
            text = f"{len(ref.message_id)} characters are not 1 to {ID_CHARS_MAX}"
            faults.append(Violation("message.message_id", text))
        if len(ref.topic) > TOPIC_CHARS_MAX:
            faults.append(Violation("message.topic", f"{len(ref.topic)} characters; the limit is {TOPIC_CHARS_MAX}"))
        if ref.lane < 0 or ref.entry < 0:
            faults.append(Violation("message.entry", f"entry {ref.entry} of lane {ref.lane} is impossible"))
        if faults:
            target.error = InvalidArgument(faults)
        return target


def contended(target: PendingTarget) -> DueTimeError:
    """The error for a message that other calls keep replacing."""
    return Unavailable(f"other calls keep replacing message {shown(target.message_id)}", reason="CONTENDED")


class PendingTargets:
    """Finds targets. Reads only published records."""

    def __init__(
        self, log: CommitLog, lanes: ShardLanes, deletions: Deletions, search: LogSearch, turns: ScanTurns
    ) -> None:
        # Entries that a staged record replaces; that record can't be found yet.
        self.replacing: set[Place] = set()
        self._log = log
        self._lanes = lanes
        self._deletions = deletions
        self._search = search
        self._turns = turns

    async def find(self, targets: Sequence[PendingTarget]) -> None:
        """Looks the targets up. On return `judge` covers all published records, until the caller awaits something."""
        with self._turns.walk() as walk:
            walk.start_freely()
            await self._find_places(walk, [one for one in targets if one.error is None and one.copies is None])
        sought = [one for one in targets if one.error is None and one.is_unclear]
        if sought:
            with self._turns.walk() as walk:
                await walk.begin()
                await self._seek(walk, sought)

    async def _find_places(self, walk: YieldingScan, targets: Sequence[PendingTarget]) -> None:
        """Reads the records of given places, like any other call: it only yields now and then."""
        by_lane: dict[int, list[PendingTarget]] = {}
        for one in targets:
            by_lane.setdefault(one.lane, []).append(one)
        for number, own in by_lane.items():
            if number not in self._lanes:
                continue
            lane = self._lanes[number]
            entries = np.array([one.entry for one in own], np.int64)
            units = lane.units(entries)
            there = (entries >= lane.queue.min_offset) & (units["size"] > 0) & (units["size"] != FILLER_SIZE)
            # Sorted by position in the log: neighbours share pages, and segments.
            order = np.flatnonzero(there)
            order = order[np.argsort(units["position"][order], kind="stable")]
            for start, stop in spans(units[order], _PIECE_BYTES, _PIECE):
                part = order[start:stop]
                self._read_places(lane, [own[index] for index in part.tolist()], entries[part], units[part])
                if walk.is_over:
                    await walk.breathe()

    def _read_places(self, lane: ShardLane, targets: Sequence[PendingTarget], entries: Ints, units: Units) -> None:
        """Gives a copy to those whose entry's record is theirs."""
        dues, ended = dues_of(units["tags"]).tolist(), are_ended(units["tags"]).tolist()
        for index, (message_id, topic, origin) in self._read_names(lane, entries, units):
            target = targets[index]
            if message_id != target.message_id.encode():
                continue
            if target.topic and target.topic.encode() not in (topic, origin):
                continue
            target.take([MessageCopy.of(lane.number, target.entry, as_text(topic or b""))])
            target.topic = target.topic or as_text(origin or topic or b"")
            target.due_at_ms, target.is_unclear = dues[index], ended[index]

    def _read_names(self, lane: ShardLane, entries: Ints, units: Units) -> Iterator[tuple[int, Names]]:
        """Index and names of the plainly readable records."""
        topic, number, done = lane.queue.topic.encode(), lane.queue.queue, 0
        while done < len(units):
            records, count = gather(self._log, units[done:], ExpectedRecords(topic, number, entries[done:]))
            if count:
                columns = values(records, units["size"][done : done + count].tolist(), _NAMES)
                yield from enumerate(zip(*columns, strict=True), done)
            # Skips a damaged record, or one with a damaged unit: the index may find it.
            done += count or 1

    async def _seek(self, walk: YieldingScan, targets: Sequence[PendingTarget]) -> None:
        wanted = [SearchedId(self._lanes, self._deletions, one.message_id, one.topic) for one in targets]
        try:
            await self._search.find(walk, wanted)
        except DueTimeError as error:
            for target in targets:
                target.error = error
            return
        for target, one in zip(targets, wanted, strict=True):
            target.topics = sorted(one.topics)
            if not target.topic and len(one.topics) > 1:
                target.error = Ambiguous(target.message_id, target.topics)
                continue
            target.take(one.copies)
            target.is_sought, target.due_at_ms = True, None

    def judge(self, targets: Sequence[PendingTarget]) -> list[TargetVerdict]:
        """The present fate of each target; the caller handles errors of targets."""
        states = self._states(targets)
        return [self._verdict(one, states) for one in targets]

    def _verdict(self, target: PendingTarget, states: Mapping[Place, int]) -> TargetVerdict:
        if target.copies is None:
            return TargetVerdict(Fate.UNCLEAR)
        fates: set[Fate] = set()
        for copy in target.copies:
            if not copy.lane or copy.is_retry:
                fates.add(Fate.FIRED)
                continue
            place = copy.lane, copy.entry
            state = states[place]
            if state == PENDING:
                return TargetVerdict(Fate.PENDING, self._lanes[copy.lane], copy.entry)
            if state == RESTORED:
                fates.add(Fate.FIRED)
            elif state == CANCELLED:
                fates.add(Fate.CANCELLED if target.is_sought and place not in self.replacing else Fate.UNCLEAR)
        return TargetVerdict(next((fate for fate in _WEIGHT if fate in fates), Fate.NOT_FOUND))

    def _states(self, targets: Sequence[PendingTarget]) -> dict[Place, int]:
        """The states of all entries that are copies of the targets."""
        by_lane: dict[int, list[int]] = {}
        for one in targets:
            for copy in one.copies or ():
                if copy.lane:
                    by_lane.setdefault(copy.lane, []).append(copy.entry)
        found: dict[Place, int] = {}
        for number, entries in by_lane.items():
            states = self._lanes[number].states(np.array(entries, np.int64)).tolist()
            found.update(((number, entry), state) for entry, state in zip(entries, states, strict=True))
        return found
