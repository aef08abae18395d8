"""The Gateway's gRPC surface for pending messages."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import grpc
from duetime.v1 import consumer_pb2
from duetime.v1 import pending_pb2 as pb
from duetime_core.access.callers import sharer
from duetime_core.limits.room import Room
from duetime_format.limits import PULL_BYTES_MAX

from duetime_gateway.face.answering import room_in_turn
from duetime_gateway.face.callers import Context, remaining_ms
from duetime_gateway.pending.counting import PendingCounter
from duetime_gateway.pending.ending import PendingResolver
from duetime_gateway.pending.listing import PendingLister
from duetime_gateway.pending.matching import MatchCanceller
from duetime_gateway.pending.retries import WaitingRetryResolver

_ENDS = consumer_pb2.EndRetriesRequest.FromString, consumer_pb2.EndRetriesProgress.SerializeToString


class PendingService:
    """Part of duetime.v1.Gateway; proto/duetime/v1/gateway.proto documents each call."""

    def __init__(
        self,
        ending: PendingResolver,
        matching: MatchCanceller,
        listing: PendingLister,
        counting: PendingCounter,
        retries: WaitingRetryResolver,
        answers: Room,
    ) -> None:
        self._ending = ending
        self._matching = matching
        self._listing = listing
        self._counting = counting
        self._retries = retries
        self._answers = answers

    def handlers(self) -> "dict[str, grpc.RpcMethodHandler[Any, Any]]":
        """Handlers by call."""
        unary, stream = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
        return {
            "Cancel": unary(self.cancel, pb.CancelRequest.FromString, pb.CancelResponse.SerializeToString),
            "CancelMatching": stream(
                self.cancel_matching, pb.CancelMatchingRequest.FromString, pb.CancelProgress.SerializeToString
            ),
            "Reschedule": unary(
                self.reschedule, pb.RescheduleRequest.FromString, pb.RescheduleResponse.SerializeToString
            ),
            "ListPending": unary(
                self.list_pending, pb.ListPendingRequest.FromString, pb.ListPendingResponse.SerializeToString
            ),
            "Backlog": unary(self.backlog, pb.BacklogRequest.FromString, pb.BacklogResponse.SerializeToString),
            "ListRetries": unary(
                self.list_retries,
                consumer_pb2.ListRetriesRequest.FromString,
                consumer_pb2.ListRetriesResponse.SerializeToString,
            ),
            "RetryNow": stream(self.retry_now, *_ENDS),
            "DiscardRetries": stream(self.discard_retries, *_ENDS),
        }

    def end_streams(self) -> None:
        """Ends streams soon: a shutdown does not wait for their remaining work."""
        self._matching.end()
        self._retries.end_streams()

    async def cancel(self, request: pb.CancelRequest, context: Context) -> pb.CancelResponse:
        return pb.CancelResponse(results=await self._ending.cancel(request.messages, remaining_ms(context)))

    async def cancel_matching(
        self, request: pb.CancelMatchingRequest, context: Context
    ) -> AsyncIterator[pb.CancelProgress]:
        async with aclosing(
            self._matching.cancel(request.filter, sharer(context.peer()), dry_run=request.dry_run)
        ) as progress:
            async for one in progress:
                yield one

    async def reschedule(self, request: pb.RescheduleRequest, context: Context) -> pb.RescheduleResponse:
        results = await self._ending.reschedule(request.messages, remaining_ms(context))
        return pb.RescheduleResponse(results=results)

    async def list_pending(self, request: pb.ListPendingRequest, context: Context) -> pb.ListPendingResponse:
        with await room_in_turn(self._answers, context.peer(), PULL_BYTES_MAX, remaining_ms(context)):
            return await self._listing.page(request, remaining_ms(context))

    async def backlog(self, request: pb.BacklogRequest, context: Context) -> pb.BacklogResponse:
        return await self._counting.count(request, remaining_ms(context))

    async def list_retries(
        self, request: consumer_pb2.ListRetriesRequest, context: Context
    ) -> consumer_pb2.ListRetriesResponse:
        with await room_in_turn(self._answers, context.peer(), PULL_BYTES_MAX, remaining_ms(context)):
            return await self._retries.page(request, remaining_ms(context))

    async def retry_now(
        self, request: consumer_pb2.EndRetriesRequest, context: Context
    ) -> AsyncIterator[consumer_pb2.EndRetriesProgress]:
        async with aclosing(self._retries.end(request, sharer(context.peer()), discard=False)) as progress:
            async for one in progress:
                yield one

    async def discard_retries(
        self, request: consumer_pb2.EndRetriesRequest, context: Context
    ) -> AsyncIterator[consumer_pb2.EndRetriesProgress]:
        async with aclosing(self._retries.end(request, sharer(context.peer()), discard=True)) as progress:
            async for one in progress:
                yield one
