"""Repeated sends: a message that is stored already, or staged, is not stored again; the answer says where it is.

A message repeats another one if topic and id are equal; the topic of a delayed message is its destination. It is sought
among

    the newest ids      in `RecentIds`: durable, or staged, in which case the answer comes once they are durable
    the same put        one that joins several callers' messages
    stored repetitions  for a first attempt that comes after its own repetition, within OVERTAKEN_MS

Only records that are flagged as repetitions are looked up, and first attempts while some repetition was stored a moment
ago: all others cost nothing here.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from duetime_core.clock import Clock
from duetime_core.ondisk.history import LevelHistory
from duetime_format import layout, record, timers
from duetime_format.lanes import BOUND_TOPIC_NAMES, LANE_TOPIC_NAMES, level_of
from duetime_format.names import TIMER_TOPIC
from duetime_format.properties import value_of

from duetime_store.files.disk import Buffer
from duetime_store.log.commitlog import CommitLog
from duetime_store.log.intake import Intake
from duetime_store.log.recent import RecentIds
from duetime_store.writing.staging import DUPLICATE, OK, FlushBatch, Outcome

# How long a first attempt may be stuck in a process or a connection while another one stores its repetition.
OVERTAKEN_MS = 60_000
OVERTAKEN_COUNT_MAX = 16_384
_TIMER_TOPIC = TIMER_TOPIC.encode()
_UNIQ_KEY, _REAL_TOPIC, _REAL_QID = (name.encode() for name in (record.UNIQ_KEY, record.REAL_TOPIC, record.REAL_QID))

Name = tuple[bytes, bytes]  # topic, id


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
    def name(self) -> Name:
        real = value_of(self.properties, _REAL_TOPIC) if self.topic in BOUND_TOPIC_NAMES else None
        return real or self.topic, value_of(self.properties, _UNIQ_KEY)

    @property
    def topic_queue(self) -> int:
        """The queue of its destination topic."""
        return int(value_of(self.properties, _REAL_QID) or 0) if self.is_delayed else self.queue


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

    def __init__(self, log: CommitLog, history: LevelHistory, recent: RecentIds, clock: Clock) -> None:
        self._log = log
        self._history = history
        self._recent = recent
        self._clock = clock
        # Hashes of repetitions that were stored, and until when a first attempt of theirs may come, oldest first.
        self._overtaking: dict[int, float] = {}

    def among(self, intake: Intake, retried: Sequence[int]) -> list[int]:
        """Indices of the records that may be repetitions, ascending."""
        count = intake.count
        asked = {index for index in retried if 0 <= index < count}
        if self._overtaking and self._overtaken():
            hashes = intake.id_hashes.tolist()
            asked.update(index for index, value in enumerate(hashes) if value in self._overtaking)
        return sorted(asked)

    def _overtaken(self) -> bool:
        """Drops expired ones; whether any are left."""
        now_ms = self._clock.monotonic_ms()
        while self._overtaking and next(iter(self._overtaking.values())) <= now_ms:
            del self._overtaking[next(iter(self._overtaking))]
        return bool(self._overtaking)

    def stored(self, hashes: Iterable[int]) -> None:
        """Repetitions with these id hashes were stored, as no first attempt was known."""
        until_ms = self._clock.monotonic_ms() + OVERTAKEN_MS
        for value in hashes:
            if value >= 0:
                self._overtaking.pop(value, None)
                self._overtaking[value] = until_ms
        while len(self._overtaking) > OVERTAKEN_COUNT_MAX:
            del self._overtaking[next(iter(self._overtaking))]

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
        """The first copies of those of `asked` that are stored, durably or not."""
        hashes = intake.id_hashes.tolist()
        asked = [index for index in asked if hashes[index] >= 0]
        found = self._recent.find([hashes[index] for index in asked])
        log, known = VisibleLog(self._log, durable_end, batches), {}
        for index in asked:
            candidates = found.get(hashes[index])
            if candidates:
                name = intake.name_of(index)
                firsts = map(log.record_at, candidates)
                first = next((one for one in firsts if one is not None and one.name == name), None)
                if first is not None:
                    known[index] = first
        return known

    def _answer_with(self, first: FirstCopy, outcome: Outcome, index: int) -> None:
        outcome.statuses[index] = DUPLICATE
        outcome.queue_offsets[index] = first.queue_offset
        outcome.duplicate_queues[index] = first.topic_queue
        if first.topic == _TIMER_TOPIC:
            outcome.due_at_ms[index] = timers.due_by(first.properties, first.stored_at_ms)
        elif first.is_delayed:
            level = level_of(first.queue)
            outcome.due_at_ms[index] = self._history.due_at_ms(level, first.position, first.stored_at_ms)


def find_twins(intake: Intake, outcome: Outcome, asked: Sequence[int]) -> dict[int, int]:
    """Those of `asked` that repeat another record of the put, and that record: a first attempt, else the first one."""
    hashes = intake.id_hashes
    open_ones = [index for index in asked if outcome.statuses[index] == OK and hashes[index] >= 0]
    if not open_ones:
        return {}
    alike = np.flatnonzero(np.isin(hashes, hashes[open_ones])).tolist()
    if len(alike) == len(open_ones) == len(set(hashes[alike].tolist())):
        return {}
    repeating = set(open_ones)
    firsts: dict[Name, int] = {}
    alike = [index for index in alike if outcome.statuses[index] == OK]
    for index in sorted(alike, key=lambda index: (index in repeating, index)):
        firsts.setdefault(intake.name_of(index), index)
    found = {index: firsts[intake.name_of(index)] for index in open_ones}
    return {index: first for index, first in found.items() if first != index}


def answer_twins(intake: Intake, outcome: Outcome, found: dict[int, int]) -> None:
    """Fills in the answers of repetitions, once the first copies have their places."""
    for index, first in found.items():
        outcome.queue_offsets[index], outcome.due_at_ms[index] = outcome.queue_offsets[first], outcome.due_at_ms[first]
        outcome.duplicate_queues[index] = intake.topic_queue(first)
