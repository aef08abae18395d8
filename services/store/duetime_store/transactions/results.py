"""What is answered about a committed message: where it is, and when it falls due."""

from duetime.v1 import message_pb2
from duetime_format import record, timers
from duetime_format.lanes import LANE_TOPIC_NAMES, is_timer_lane, lane_of, level_of
from duetime_format.names import TIMER_TOPIC
from duetime_format.properties import as_text, value_of
from duetime_format.replacing import asked_by
from duetime_format.timers import java_long

from duetime_store.writing.halves import Placed
from duetime_store.writing.store import Store

_UNIQ_KEY, _REAL_QID, _DELAY = (name.encode() for name in (record.UNIQ_KEY, record.REAL_QID, record.DELAY))
_TIMER_TOPIC = TIMER_TOPIC.encode()


class Results:
    """Makes SendResults of one shard."""

    def __init__(self, store: Store, *, shard: int) -> None:
        self._store = store
        self._shard = shard

    def of_place(self, place: Placed, properties: bytes) -> message_pb2.SendResult:
        """Of a message that has these properties and lies there."""
        result = message_pb2.SendResult(
            message_id=as_text(value_of(properties, _UNIQ_KEY)),
            shard=self._shard,
            queue=place.queue,
            offset=place.offset,
            deliver_at_ms=place.due_at_ms,
            was_past=place.was_past,
        )
        lane = lane_of(place.topic.decode(), place.queue)
        if lane is not None:
            result.lane, result.queue = lane, java_long(value_of(properties, _REAL_QID)) or 0
            if not is_timer_lane(lane):
                result.delay_level = level_of(place.queue)
                asked = java_long(value_of(properties, _DELAY)) or 0
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
        place = Placed(found.topic, found.queue, found.queue_offset, due_at_ms, was_past)
        return as_text(found.name[0]), self.of_place(place, found.properties)
