"""The pending messages of a fake gateway, and what goes wrong with them."""

from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import grpc
from duetime.v1 import gateway_pb2, message_pb2
from duetime.v1 import pending_pb2 as pb

from tests.sdk.fake_gateway import FakeGateway

DUE_MS = 1_800_000_000_000


@dataclass
class FakePendingGateway(FakeGateway):
    """Messages `m0`, `m1`, ... are pending; `fired` ones were. `statuses`: with which the next calls end."""

    count: int = 0
    fired: set[str] = field(default_factory=set)
    cancelled: set[str] = field(default_factory=set)
    # Ids of messages that a shard does not answer for the next time.
    away: set[str] = field(default_factory=set)
    statuses: deque[grpc.StatusCode] = field(default_factory=deque)
    calls: list[Any] = field(default_factory=list)
    short_answer: bool = False

    def _status(self, ref: pb.PendingRef) -> int:
        if ref.message_id in self.fired:
            return 2
        return 1 if ref.message_id[1:].isdigit() and int(ref.message_id[1:]) < self.count else 3

    async def _enter(self, request: Any, context: Any) -> None:
        self.calls.append(request)
        if self.statuses:
            await context.abort(self.statuses.popleft(), "as the test wants it")

    def _is_away(self, ref: pb.PendingRef, result: Any) -> bool:
        if ref.message_id not in self.away:
            return False
        self.away.discard(ref.message_id)
        result.fault.CopyFrom(
            message_pb2.Fault(code=14, reason="SHARD_UNAVAILABLE", message="shard 1 is away", retriable=True)
        )
        return True

    async def Cancel(self, request: pb.CancelRequest, context: Any) -> pb.CancelResponse:
        response = pb.CancelResponse()
        for ref in request.messages:
            result = response.results.add()
            if not self._is_away(ref, result):
                result.status = self._status(ref)  # type: ignore[assignment]
                self.cancelled.update([ref.message_id] if result.status == 1 else [])
        if self.short_answer:
            del response.results[-1]
        await self._enter(request, context)
        return response

    async def Reschedule(self, request: pb.RescheduleRequest, context: Any) -> pb.RescheduleResponse:
        response = pb.RescheduleResponse()
        for one in request.messages:
            result = response.results.add()
            if not self._is_away(one.message, result):
                result.status = self._status(one.message)  # type: ignore[assignment]
                if result.status == 1:
                    result.shard, result.lane, result.entry = 1, 1_000, 77
                    result.deliver_at_ms = one.deliver_at_ms or DUE_MS + one.delay_ms
                    result.was_past = one.HasField("deliver_at_ms") and one.deliver_at_ms < DUE_MS
        await self._enter(request, context)
        return response

    async def CancelMatching(self, request: pb.CancelMatchingRequest, context: Any) -> AsyncIterator[pb.CancelProgress]:
        await self._enter(request, context)
        yield pb.CancelProgress(seen_count=5, matched_count=3, cancelled_count=2, fired_count=1, due_at_ms=DUE_MS)
        yield pb.CancelProgress(seen_count=9, matched_count=6, cancelled_count=5, fired_count=1, done=True)

    async def ListPending(self, request: pb.ListPendingRequest, context: Any) -> pb.ListPendingResponse:
        await self._enter(request, context)
        first = int(request.page_token or b"0")
        response = pb.ListPendingResponse()
        for n in range(first, min(first + 3, self.count)):
            message = message_pb2.StoredMessage(
                topic="orders", queue=n % 2, offset=n, id=f"m{n}", body=b"body", keys=["k"], due_at_ms=DUE_MS + n
            )
            response.messages.add(message=message, shard=n % 2, lane=1_000)
        if first + 3 < self.count:
            response.next_page_token = b"%d" % (first + 3)
        return response

    async def Backlog(self, request: pb.BacklogRequest, context: Any) -> pb.BacklogResponse:
        await self._enter(request, context)
        bucket = pb.DueBucket(due_from_ms=DUE_MS, width_ms=60_000, count=4, topic="orders", lane=1_000)
        return pb.BacklogResponse(
            buckets=[bucket], pending_count=4, overdue_count=1, now_ms=DUE_MS + 5, unreachable_shards=[2]
        )

    async def GetMessage(self, request: gateway_pb2.GetMessageRequest, context: Any) -> gateway_pb2.FoundMessage:
        await self._enter(request, context)
        message = message_pb2.StoredMessage(topic="orders", queue=1, offset=7, id=request.id, due_at_ms=DUE_MS)
        if request.id in self.cancelled:
            return gateway_pb2.FoundMessage(message=message, state=gateway_pb2.MESSAGE_STATE_CANCELLED)
        return gateway_pb2.FoundMessage(
            message=message,
            state=gateway_pb2.MESSAGE_STATE_PENDING,
            shard=1,
            lane=1_000,
            entry=7,
            before_count=12,
        )
