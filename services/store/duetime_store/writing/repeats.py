"""Repeated sends: a message that is stored already, or staged, is not stored again; the answer says where it is.

A message repeats another one if topic and id are equal; the topic of one that waits is its destination. It is sought
among

    the newest ids   in `RecentIds`: durable, or staged, in which case the answer comes once they are durable
    the same put     one that joins several callers' messages

Every record of a put is looked up, by a hash. What is found is a hint; the records' own names decide, and the time of
the first one. A group's copies (%RETRY%, %DLQ%) keep their message's id, so they repeat another only by the token of
the call that made them.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from duetime_core.errors import AlreadyExists
from duetime_core.ondisk.history import LevelHistory
from duetime_format import layout, record, timers
from duetime_format.lanes import BOUND_TOPIC_NAMES, LANE_TOPIC_NAMES, lane_of, level_of
from duetime_format.names import HALF_TOPIC, TIMER_TOPIC
from duetime_format.properties import as_text, value_of
from duetime_format.texts import shown

from duetime_store.files.disk import Buffer
from duetime_store.lanes.alarm import ShardClock
from duetime_store.log.commitlog import CommitLog
from duetime_store.log.intake import GROUP_PREFIXES, Intake, Name
from duetime_store.log.recent import RecentIds
from duetime_store.queues.deletions import Deletions
from duetime_store.writing.staging import DUPLICATE, OK, FlushBatch, Outcome

_TIMER_TOPIC, _HALF_TOPIC = TIMER_TOPIC.encode(), HALF_TOPIC.encode()
_UNIQ_KEY, _REAL_TOPIC, _REAL_QID, _SEND_BACK = (
    name.encode() for name in (record.UNIQ_KEY, record.REAL_TOPIC, record.REAL_QID, record.SEND_BACK)
)


@dataclass(slots=True)
class FirstCopy:
    """A stored record: the parts that answer its repetition."""

    topic: bytes
    queue: int
    queue_offset: int
    position: int
    stored_at_ms: int
    properties: bytes

    @property
    def is_delayed(self) -> bool:
        return self.topic in LANE_TOPIC_NAMES

    @property
    def is_bound(self) -> bool:
        """Whether it waits on its way to its topic."""
        return self.topic in BOUND_TOPIC_NAMES

    @property
    def name(self) -> Name:
        topic = (value_of(self.properties, _REAL_TOPIC) if self.is_bound else b"") or self.topic
        token = value_of(self.properties, _SEND_BACK) if topic.startswith(GROUP_PREFIXES) else b""
        return Name(topic, value_of(self.properties, _UNIQ_KEY), token)

    @property
    def topic_queue(self) -> int:
        """The queue of its destination topic."""
        return int(value_of(self.properties, _REAL_QID) or 0) if self.is_bound else self.queue


class VisibleLog:
    """The log as readers will see it: durable bytes and staged ones."""

    def __init__(self, log: CommitLog, durable_end: int, batches: Iterable[FlushBatch | None]) -> None:
        self._log = log
        self._durable_end = durable_end
        self._starts: list[int] = []
        self._buffers: list[Buffer] = []
        runs = sorted((run for batch in batches if batch for run in batch.runs), key=lambda run: run[0])
        for start, buffers in runs:
            for buffer in buffers:
                self._starts.append(start)
                self._buffers.append(buffer)
                start += len(buffer)

    def read(self, position: int, size: int) -> bytes:
        """Fewer bytes where there are no more. Bytes after the durable end that are not staged do not count: they were
        taken back."""
        index = bisect_right(self._starts, position) - 1
        if index >= 0 and position < self._starts[index] + len(self._buffers[index]):
            at = position - self._starts[index]
            return bytes(self._buffers[index][at : at + size])
        return self._log.read(position, size) if position < self._durable_end else b""

    def record_at(self, position: int) -> FirstCopy | None:
        """None: no record begins there any more. Does not read the body, however large: readers check the CRC."""
        data = self.read(position, layout.HEAD_BYTES_MAX)
        head = layout.head_of(data)
        if head is None or not head.is_message or head.position != position or len(data) < head.body_at:
            return None
        *_, body_bytes = layout.TAIL.unpack_from(data, head.tail_at)
        topic_at = head.body_at + body_bytes
        if not head.body_at <= topic_at < head.size:
            return None
        topic, properties = layout.topic_and_properties(head, self.read(position + topic_at, head.size - topic_at))
        (stored_at_ms,) = layout.I64.unpack_from(data, head.stored_at)
        return FirstCopy(topic, head.queue, head.queue_offset, position, stored_at_ms, properties)


class Repeats:
    """Answers repetitions. Belongs to the event loop's thread."""

    def __init__(
        self, log: CommitLog, history: LevelHistory, recent: RecentIds, clock: ShardClock, deletions: Deletions
    ) -> None:
        self._log = log
        self._history = history
        self._recent = recent
        self._clock = clock
        self._deletions = deletions

    def among(self, intake: Intake) -> list[int]:
        """Indices of the records that may be repetitions, ascending: nearly always none."""
        return self._recent.look(intake.id_hashes)

    def answer(
        self,
        intake: Intake,
        outcome: Outcome,
        asked: Sequence[int],
        durable_end: int,
        batches: Iterable[FlushBatch | None],
    ) -> None:
        """Answers those of `asked` whose first copy is stored, durably or not, with its place."""
        asked = [index for index in asked if outcome.statuses[index] == OK]
        for index, first in self.find(intake, asked, durable_end, batches).items():
            self._answer_with(first, outcome, index)

    def find(
        self, intake: Intake, asked: Sequence[int], durable_end: int, batches: Iterable[FlushBatch | None]
    ) -> dict[int, FirstCopy]:
        """The first copies of those of `asked` that are stored, durably or not, and still count."""
        hashes = intake.id_hashes.tolist()
        asked = [index for index in asked if hashes[index] >= 0]
        if not asked or not self._recent.count_max:
            return {}
        found = self._recent.find([hashes[index] for index in asked])
        log, known = VisibleLog(self._log, durable_end, batches), {}
        since_ms = self._clock.now_ms() - self._recent.window_ms
        for index in asked:
            name = intake.name_of(index)
            candidates = found[hashes[index]] if name.is_one else ()
            for one in (log.record_at(position) for position in candidates):
                if one and one.stored_at_ms > since_ms and one.name == name and not self._is_gone(one):
                    known[index] = one
                    if one.topic != _HALF_TOPIC:
                        break
                    # If it was committed, its message is there too.
        return known

    def _is_gone(self, one: FirstCopy) -> bool:
        """Whether its topic was deleted since."""
        return bool(self._deletions) and one.position < self._deletions.position(as_text(one.name.topic))

    def _answer_with(self, first: FirstCopy, outcome: Outcome, index: int) -> None:
        if first.topic == _HALF_TOPIC:
            # Its place is another one, if it is ever committed.
            topic, message_id = as_text(first.name[0]), as_text(first.name[1])
            text = f"id {shown(message_id)} of topic {topic} is that of a message that was prepared as a transaction"
            outcome.refuse(index, AlreadyExists(text, reason="MESSAGE_PREPARED"))
            return
        outcome.statuses[index] = DUPLICATE
        outcome.queue_offsets[index] = first.queue_offset
        outcome.duplicate_queues[index] = first.topic_queue
        outcome.duplicate_lanes[index] = lane_of(as_text(first.topic), first.queue) or 0
        if first.topic == _TIMER_TOPIC:
            outcome.due_at_ms[index] = timers.due_by(first.properties, first.stored_at_ms)
        elif first.is_delayed:
            level = level_of(first.queue)
            outcome.due_at_ms[index] = self._history.due_at_ms(level, first.position, first.stored_at_ms)


def find_twins(intake: Intake, outcome: Outcome, asked: Sequence[int]) -> dict[int, int]:
    """Those of `asked` that repeat an earlier record of the put, and that record."""
    hashes = intake.id_hashes
    open_ones = [index for index in asked if outcome.statuses[index] == OK and hashes[index] >= 0]
    if not open_ones:
        return {}
    firsts: dict[Name, int] = {}
    found: dict[int, int] = {}
    for index in np.flatnonzero(np.isin(hashes, hashes[open_ones])).tolist():
        name = intake.name_of(index)
        if outcome.statuses[index] == OK and name.is_one:
            first = firsts.setdefault(name, index)
            if first != index:
                found[index] = first
    return found


def answer_twins(intake: Intake, outcome: Outcome, found: dict[int, int]) -> None:
    """Fills in the answers of repetitions, once the first copies have their places."""
    for index, first in found.items():
        outcome.queue_offsets[index], outcome.due_at_ms[index] = outcome.queue_offsets[first], outcome.due_at_ms[first]
        outcome.duplicate_queues[index] = intake.topic_queue(first)
        outcome.duplicate_lanes[index] = intake.lane(first)
