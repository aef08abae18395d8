"""The pending messages of a fake store: put, replaced, cancelled, listed and counted, in memory."""

from bisect import insort
from typing import Any, NamedTuple

from duetime.v1 import message_pb2, pending_pb2, store_pb2
from duetime_format import record
from duetime_format.lanes import TIMER_LANE_FIRST, lane_of
from duetime_format.levels import DelayLevels
from duetime_format.properties import decode_properties
from duetime_format.record import Record

CANCELLED = pending_pb2.CANCEL_STATUS_CANCELLED
FIRED = pending_pb2.CANCEL_STATUS_ALREADY_FIRED
NOT_FOUND = pending_pb2.CANCEL_STATUS_NOT_FOUND
MOVED = pending_pb2.RESCHEDULE_STATUS_RESCHEDULED


class Pending(NamedTuple):
    """Sorted as it falls due."""

    due_at_ms: int
    lane: int
    entry: int
    id: str
    topic: str
    queue: int
    key: str
    body: bytes


class FakePending:
    """`page_max`: most messages of a page, whatever is asked for."""

    def __init__(self, shard: int, levels: DelayLevels, now_ms: int) -> None:
        self.shard = shard
        self.now_ms = now_ms
        self.page_max = 1_000
        self.waiting: list[Pending] = []
        self.cancelled: dict[str, int] = {}
        self.fired: set[str] = set()
        # Ids that fall due when somebody tries to cancel them.
        self.firing: set[str] = set()
        self.buckets: list[pending_pb2.DueBucket] = []
        self.requests: list[Any] = []
        self._levels = levels
        self._entries: dict[int, int] = {}
        self._upserted: dict[tuple[str, str], str] = {}

    def due_of(self, found: Record) -> tuple[int, bool]:
        """As a store reckons it, and whether it was past."""
        properties = decode_properties(found.properties)
        if record.DELAY in properties:
            return self.now_ms + self._levels.delay_ms(int(properties[record.DELAY])), False
        out = int(properties[record.TIMER_OUT_MS])
        asked = self.now_ms + out if out < record.TIMER_OUT_MIN else out + 1
        return max(asked, self.now_ms + 1), asked <= self.now_ms

    def add(self, found: Record) -> tuple[Pending, bool]:
        """Of a record that waits in a lane; and whether its due time was past."""
        properties = decode_properties(found.properties)
        lane = lane_of(found.topic, found.queue)
        assert lane is not None
        due_at_ms, past = self.due_of(found)
        entry = self._entries.get(lane, 0)
        self._entries[lane] = entry + 1
        one = Pending(
            due_at_ms,
            lane,
            entry,
            properties[record.UNIQ_KEY],
            properties[record.REAL_TOPIC],
            int(properties[record.REAL_QID]),
            properties.get(record.KEYS, ""),
            found.body,
        )
        insort(self.waiting, one)
        return one, past

    def find(self, ref: pending_pb2.PendingRef) -> Pending | None:
        return next((one for one in self.waiting if one.id == ref.message_id), None)

    def cancel(self, request: pending_pb2.CancelRequest) -> pending_pb2.CancelResponse:
        self.requests.append(request)
        response = pending_pb2.CancelResponse()
        for ref in request.messages:
            one = self.find(ref)
            if one is not None and one.id in self.firing:
                self.waiting.remove(one)
                self.fired.add(one.id)
            elif one is not None:
                self.waiting.remove(one)
                self.cancelled[one.id] = one.due_at_ms
            due_at_ms = self.cancelled.get(ref.message_id, 0)
            status = CANCELLED if due_at_ms else FIRED if ref.message_id in self.fired else NOT_FOUND
            response.results.add(status=status, due_at_ms=due_at_ms)
        return response

    def replace(self, request: store_pb2.ReplaceRequest) -> store_pb2.ReplaceResponse:
        self.requests.append(request)
        response = store_pb2.ReplaceResponse()
        for one in request.replacements:
            if one.HasField("record"):
                response.results.append(self._upsert(record.decode(one.record)))
            else:
                response.results.append(self._reschedule(one.message, one.reschedule))
        return response

    def _upsert(self, found: Record) -> store_pb2.ReplaceResult:
        new, past = self.add(found)
        old_id = self._upserted.get((new.topic, new.key), "")
        old = next((one for one in self.waiting if one.id == old_id and one is not new), None)
        if old is not None:
            self.waiting.remove(old)
        self._upserted[new.topic, new.key] = new.id
        return _result(new, past, old.id if old is not None else "")

    def _reschedule(self, ref: pending_pb2.PendingRef, asked: pending_pb2.Reschedule) -> store_pb2.ReplaceResult:
        old = self.find(ref)
        if old is None:
            fired = ref.message_id in self.fired
            status = pending_pb2.RESCHEDULE_STATUS_ALREADY_FIRED if fired else pending_pb2.RESCHEDULE_STATUS_NOT_FOUND
            return store_pb2.ReplaceResult(status=status)
        self.waiting.remove(old)
        due_at_ms = self.now_ms + asked.delay_ms if asked.HasField("delay_ms") else asked.deliver_at_ms
        past = due_at_ms <= self.now_ms and asked.HasField("deliver_at_ms")
        entry = self._entries.get(TIMER_LANE_FIRST, 0)
        self._entries[TIMER_LANE_FIRST] = entry + 1
        new = old._replace(
            due_at_ms=max(due_at_ms, self.now_ms + 1),
            lane=TIMER_LANE_FIRST,
            entry=entry,
            body=asked.body if asked.HasField("body") else old.body,
        )
        insort(self.waiting, new)
        return _result(new, past, "")

    def list_pending(self, request: pending_pb2.ListPendingRequest) -> pending_pb2.ListPendingResponse:
        self.requests.append(request)
        after = tuple(map(int, request.page_token.split(b","))) if request.page_token else (0, 0, -1)
        wanted, response = request.filter, pending_pb2.ListPendingResponse()
        seen = [one for one in self.waiting if (one.due_at_ms, one.lane, one.entry) > after]
        seen = seen[: min(request.max_count or 100, self.page_max)]
        for one in seen:
            until = wanted.due_before_ms or one.due_at_ms + 1
            if (
                wanted.topic in ("", one.topic)
                and wanted.key in ("", one.key)
                and wanted.due_from_ms <= one.due_at_ms < until
            ):
                message = message_pb2.StoredMessage(
                    topic=one.topic, queue=one.queue, offset=one.entry, id=one.id, due_at_ms=one.due_at_ms
                )
                message.body = b"" if request.omit_bodies else one.body
                response.messages.add(message=message, shard=self.shard, lane=one.lane)
        response.seen_count = len(seen)
        if seen and seen[-1] != self.waiting[-1]:
            response.next_page_token = b"%d,%d,%d" % seen[-1][:3]
            response.due_at_ms = seen[-1].due_at_ms
        return response

    def backlog(self, request: pending_pb2.BacklogRequest) -> pending_pb2.BacklogResponse:
        self.requests.append(request)
        count = sum(bucket.count for bucket in self.buckets)
        return pending_pb2.BacklogResponse(
            buckets=self.buckets, pending_count=count, overdue_count=self.shard, now_ms=self.now_ms + self.shard
        )


def _result(one: Pending, past: bool, replaced_id: str) -> store_pb2.ReplaceResult:
    return store_pb2.ReplaceResult(
        status=MOVED,
        lane=one.lane,
        entry=one.entry,
        due_at_ms=one.due_at_ms,
        was_past=past,
        replaced_id=replaced_id,
    )
