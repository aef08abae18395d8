"""Messages that ended without a delivery, and ended transactions: errors for sends that repeat their ids.

A second send with the id of an ended message is a late repeat of the first send, or a new message: the store can't
know. A receipt would promise a delivery, and storing it would revive a cancelled message, so both are rejected.
"""

from dataclasses import dataclass

import numpy as np
from duetime_core.errors import FailedPrecondition, MessageEnded
from duetime_format import halves, record
from duetime_format.names import HALF_TOPIC
from duetime_format.properties import as_text, value_of
from duetime_format.texts import shown

from duetime_store.lanes.lane import CANCELLED
from duetime_store.lanes.lanes import ShardLanes
from duetime_store.log.intake import GROUP_PREFIXES
from duetime_store.queues.halfqueue import HalfQueue
from duetime_store.writing.visible import FirstCopy

_UPSERT = record.UPSERT.encode()
_HALF_TOPIC = HALF_TOPIC.encode()
_ENDS = {halves.COMMITTED: "COMMITTED", halves.ROLLED_BACK: "ROLLED_BACK", halves.GIVEN_UP: "GIVEN_UP"}
_UNDELIVERED = ("ROLLED_BACK", "GIVEN_UP")


@dataclass(frozen=True, slots=True)
class EndedEntry:
    """An ended lane entry, and the store time after which the log has its end."""

    lane: int
    entry: int
    stored_at_ms: int


class UnsureEnd(MessageEnded):
    """A cancelled or replaced message that was sent with `replace`; the log names the end."""

    def __init__(self, topic: str, message_id: str, ended: EndedEntry) -> None:
        super().__init__(topic, message_id, "CANCELLED")
        self.ended = ended

    def named(self, *, is_replaced: bool) -> MessageEnded:
        """The same error with the known end."""
        return MessageEnded(self.metadata["topic"], self.metadata["id"], "REPLACED" if is_replaced else "CANCELLED")


class EndFinder:
    """Finds the ends of messages in the states of lanes and halves. Belongs to the event loop's thread."""

    def __init__(self, lanes: ShardLanes, half_queue: HalfQueue) -> None:
        self._lanes = lanes
        self._halves = half_queue

    def of(self, first: FirstCopy) -> MessageEnded | None:
        """The end of a message, given its newest record. None: it is pending, delivered or undecided."""
        topic, message_id = as_text(first.name.topic), as_text(first.name.message_id)
        if first.topic == _HALF_TOPIC:
            end = self._half_end(first.queue_offset)
            # The message of a committed transaction is a record of its own.
            return MessageEnded(topic, message_id, end) if end in _UNDELIVERED else None
        number = first.lane
        if number not in self._lanes or first.name.topic.startswith(GROUP_PREFIXES):
            return None
        if self._lanes[number].states(np.array([first.queue_offset]))[0] != CANCELLED:
            return None
        if not value_of(first.properties, _UPSERT):
            return MessageEnded(topic, message_id, "CANCELLED")
        return UnsureEnd(topic, message_id, EndedEntry(number, first.queue_offset, first.stored_at_ms))

    def of_transaction(self, first: FirstCopy) -> FailedPrecondition | None:
        """The end of the transaction that prepared or committed this record. None: it is open."""
        end = self._half_end(first.queue_offset) if first.topic == _HALF_TOPIC else "COMMITTED"
        if not end:
            return None
        topic, message_id = as_text(first.name.topic), as_text(first.name.message_id)
        ended = end.lower().replace("_", " ")
        text = f"the transaction with id {shown(message_id)} of topic {topic} was {ended}: begin one with a new id"
        error = FailedPrecondition(text, reason=f"TRANSACTION_{end}")
        error.metadata = {"topic": topic, "id": message_id, "end": end}
        return error

    def _half_end(self, offset: int) -> str:
        """COMMITTED, ROLLED_BACK or GIVEN_UP. ENDED: ended by a broker, which records no outcome. Empty: it is open."""
        found = self._halves.end_at(offset)
        return "" if found is None else _ENDS.get(found.code, "ENDED")
