"""The answer for a committed message: its place and due time."""

from typing import NamedTuple

from duetime.v1 import message_pb2
from duetime_format import record, timers
from duetime_format.lanes import LANE_TOPIC_NAMES, is_timer_lane, lane_of, level_of
from duetime_format.names import TIMER_TOPIC
from duetime_format.properties import as_text, value_of
from duetime_format.replacing import asked_by
from duetime_format.timers import java_long

from duetime_store.writing.store import Store

_UNIQ_KEY, _REAL_QID, _DELAY = (name.encode() for name in (record.UNIQ_KEY, record.REAL_QID, record.DELAY))
_TIMER_TOPIC = TIMER_TOPIC.encode()


class CommitPlace(NamedTuple):
    """The place of a committed transaction's real record, and its due time; 0 outside of lanes."""

    topic: bytes
    queue: int
    offset: int
    due_at_ms: int
    # Whether the requested time was past.
    was_past: bool


class SendResultMaker:
    """Makes SendResults of one shard."""

    def __init__(self, store: Store, *, shard: int) -> None:
        self._store = store
        self._shard = shard

    def sent(
        self, place: CommitPlace, message_id: str, queue: int | None, level: bytes | None
    ) -> message_pb2.SendResult:
        """The result for a message whose half message names this queue and this level."""
        result = message_pb2.SendResult(message_id=message_id, shard=self._shard, offset=place.offset)
        if place.topic not in LANE_TOPIC_NAMES:
            result.queue = place.queue
            return result
        result.deliver_at_ms, result.was_past, result.queue = place.due_at_ms, place.was_past, queue or 0
        lane = lane_of(place.topic.decode(), place.queue)
        assert lane is not None
        result.lane = lane
        if not is_timer_lane(lane):
            result.delay_level = level_of(place.queue)
            asked = java_long(level or b"") or 0
            result.requested_level = asked if asked > result.delay_level else 0
        return result

    def at(self, position: int, message_id: str) -> tuple[str, message_pb2.SendResult]:
        """The topic of the record at a position, and its result; if it has left the log, only the id."""
        log = self._store.visible_log
        found = log.record_at(position) if position >= self._store.log.min_position else None
        if found is None:
            return "", message_pb2.SendResult(message_id=message_id)
        due_at_ms, was_past = 0, False
        if found.topic == _TIMER_TOPIC:
            due_at_ms = timers.due_by(found.properties, found.stored_at_ms)
            asked = asked_by(found.properties)
            was_past = asked is not None and not asked.is_delay and asked.value <= found.stored_at_ms
        elif found.topic in LANE_TOPIC_NAMES:
            due_at_ms = self._store.history.due_at_ms(level_of(found.queue), position, found.stored_at_ms)
        place = CommitPlace(found.topic, found.queue, found.queue_offset, due_at_ms, was_past)
        own_id, queue, level = (value_of(found.properties, name) for name in (_UNIQ_KEY, _REAL_QID, _DELAY))
        return as_text(found.name[0]), self.sent(place, as_text(own_id), java_long(queue), level)
