"""Repeated sends: a message that is already stored or staged is not stored again. The answer has the first copy's
place, or the error that it ended without a delivery (ended.py).

Two messages are the same if topic and id are equal; a pending message's topic is its destination. Repeats are found
among

    the newest ids   in `RecentIds`: durable ones, and staged ones, for which the answer waits until they are durable
    the same put     one that joins several callers' messages

Every record of a put is looked up by a hash. A hit is a hint only: the records' own names decide, and the time of the
newest, since a rescheduled message has several records. A group's copies (%RETRY%, %DLQ%) keep their message's id, so
they count as repeats only if the token of the call that made them is equal too.
"""

from collections.abc import Sequence

import numpy as np
from duetime_core.errors import AlreadyExists
from duetime_format import timers
from duetime_format.lanes import level_of
from duetime_format.names import HALF_TOPIC, TIMER_TOPIC
from duetime_format.properties import as_text
from duetime_format.texts import shown
from duetime_shard.history import LevelHistory

from duetime_store.lanes.alarm import ShardClock
from duetime_store.lanes.lanes import ShardLanes
from duetime_store.log.intake import Intake, Name
from duetime_store.log.recent import RecentIds
from duetime_store.queues.deletions import Deletions
from duetime_store.queues.halfqueue import HalfQueue
from duetime_store.writing.ended import EndFinder
from duetime_store.writing.staging import DUPLICATE, OK, PutOutcome
from duetime_store.writing.visible import FirstCopy, VisibleLog

_TIMER_TOPIC, _HALF_TOPIC = TIMER_TOPIC.encode(), HALF_TOPIC.encode()


class Repeats:
    """Answers repeated sends. Belongs to the event loop's thread."""

    def __init__(
        self,
        history: LevelHistory,
        recent: RecentIds,
        clock: ShardClock,
        deletions: Deletions,
        lanes: ShardLanes,
        halves: HalfQueue,
    ) -> None:
        self._history = history
        self._recent = recent
        self._clock = clock
        self._deletions = deletions
        self.ends = EndFinder(lanes, halves)

    def among(self, intake: Intake) -> list[int]:
        """Indices of the records that may be repeats, ascending: nearly always none."""
        return self._recent.look(intake.id_hashes)

    def answer(self, intake: Intake, outcome: PutOutcome, asked: Sequence[int], log: VisibleLog) -> None:
        """Answers those of `asked` that are stored or staged: with their place, or with their end."""
        asked = [index for index in asked if outcome.statuses[index] == OK]
        for index, first in self.find(intake, asked, log).items():
            self._answer_with(first, outcome, index)

    def find(self, intake: Intake, asked: Sequence[int], log: VisibleLog) -> dict[int, FirstCopy]:
        """The newest records of those of `asked` that are stored or staged and not deleted."""
        hashes = intake.id_hashes.tolist()
        asked = [index for index in asked if hashes[index] >= 0]
        if not asked or not self._recent.count_max:
            return {}
        found = self._recent.find([hashes[index] for index in asked])
        known = {}
        since_ms = self._clock.now_ms() - self._recent.window_ms
        for index in asked:
            name = intake.name_of(index)
            candidates = found[hashes[index]] if name.is_one else ()
            # A committed transaction's message and a reschedule's record are newer than the records they follow.
            for one in (log.record_at(position) for position in reversed(candidates)):
                if one and one.stored_at_ms > since_ms and one.name == name and not self._is_gone(one):
                    known[index] = one
                    break
        return known

    def _is_gone(self, one: FirstCopy) -> bool:
        """Whether its topic was deleted since."""
        return bool(self._deletions) and one.position < self._deletions.position(as_text(one.name.topic))

    def _answer_with(self, first: FirstCopy, outcome: PutOutcome, index: int) -> None:
        ended = self.ends.of(first)
        if ended is not None:
            outcome.refuse(index, ended)
            return
        if first.topic == _HALF_TOPIC:
            outcome.refuse(index, prepared_before(first))
            return
        outcome.statuses[index] = DUPLICATE
        outcome.queue_offsets[index] = first.queue_offset
        outcome.duplicate_queues[index] = first.topic_queue
        outcome.duplicate_lanes[index] = first.lane
        if first.topic == _TIMER_TOPIC:
            outcome.due_at_ms[index] = timers.due_by(first.properties, first.stored_at_ms)
        elif first.is_delayed:
            level = level_of(first.queue)
            outcome.due_at_ms[index] = self._history.due_at_ms(level, first.position, first.stored_at_ms)


def prepared_before(half: FirstCopy) -> AlreadyExists:
    """The error for a send with the id of a half message, which has no place yet."""
    topic, message_id = as_text(half.name.topic), as_text(half.name.message_id)
    text = f"id {shown(message_id)} of topic {topic} belongs to a message prepared in a transaction"
    return AlreadyExists(text, reason="MESSAGE_PREPARED")


def find_twins(intake: Intake, outcome: PutOutcome, asked: Sequence[int]) -> dict[int, int]:
    """Maps each of `asked` that repeats an earlier record of the put to that record."""
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


def answer_twins(intake: Intake, outcome: PutOutcome, found: dict[int, int]) -> None:
    """Fills in the answers of repeats once the first copies have their places."""
    for index, first in found.items():
        outcome.queue_offsets[index], outcome.due_at_ms[index] = outcome.queue_offsets[first], outcome.due_at_ms[first]
        outcome.duplicate_queues[index] = intake.topic_queue(first)
        outcome.duplicate_lanes[index] = intake.lane(first)
