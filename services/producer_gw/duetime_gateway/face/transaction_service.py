"""The Gateway's gRPC surface for transactions."""

from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

import grpc
from duetime.v1 import transactions_pb2 as pb
from duetime_core.access.callers import sharer
from duetime_core.audit.audit import name_resource
from duetime_core.limits.room import Room
from duetime_format import record
from duetime_format.errors import DamagedBytes
from duetime_format.limits import BODY_BYTES_MAX, PULL_ANSWER_BYTES_MAX
from duetime_format.properties import decode_properties

from duetime_gateway.access import permit
from duetime_gateway.access.grants import Kind, Right
from duetime_gateway.face.answering import room_in_turn
from duetime_gateway.face.callers import Context, caller, remaining_ms
from duetime_gateway.face.transactions import (
    EncodedPrepare,
    check_message,
    half_message,
    prepare_response,
)
from duetime_gateway.packing import ends
from duetime_gateway.routing.places import QueueLocator
from duetime_gateway.transactions.checks import TransactionQuestion
from duetime_gateway.transactions.columns import EndColumns
from duetime_gateway.transactions.ending import DecisionRouter
from duetime_gateway.transactions.listing import TransactionList
from duetime_gateway.transactions.preparing import Preparer
from duetime_gateway.transactions.watching import WatcherRegistry, no_group


class TransactionService:
    """Part of duetime.v1.Gateway; proto/duetime/v1/gateway.proto documents each call."""

    def __init__(
        self,
        preparer: Preparer,
        ender: DecisionRouter,
        watching: WatcherRegistry,
        listing: TransactionList,
        places: QueueLocator,
        answers: Room,
    ) -> None:
        self._preparer = preparer
        self._ender = ender
        self._watching = watching
        self._listing = listing
        self._places = places
        self._answers = answers

    def handlers(self) -> "dict[str, grpc.RpcMethodHandler[Any, Any]]":
        """Handlers by call."""
        unary = grpc.unary_unary_rpc_method_handler
        return {
            "Prepare": unary(self.prepare),
            "EndTransaction": unary(self.end),
            "WatchTransactions": grpc.stream_stream_rpc_method_handler(
                self.watch, pb.WatchTransactionsRequest.FromString, pb.WatchTransactionsResponse.SerializeToString
            ),
            "ListTransactions": unary(
                self.list, pb.ListTransactionsRequest.FromString, pb.ListTransactionsResponse.SerializeToString
            ),
            "GetTransaction": unary(
                self.get, pb.GetTransactionRequest.FromString, pb.GetTransactionResponse.SerializeToString
            ),
        }

    def end_streams(self) -> None:
        """Ends watchers at once: their producers use another gateway."""
        self._watching.end()

    async def prepare(self, data: bytes, context: Context) -> bytes:
        request = EncodedPrepare(data, partial(self._preparer.half_of, permit.current()))
        del data
        return prepare_response(await self._preparer.prepare(request, caller(context)))

    async def end(self, data: bytes, context: Context) -> bytes:
        request = ends.read(data)
        del data
        if request.given_up:
            name_resource(f"given up transactions of group {request.group}")
        # Given-up transactions are ended by operators only.
        permit.current().check(Right.MANAGE if request.given_up else Right.SEND, Kind.GROUP, request.group)
        ended = await self._ender.end(request.group, request.ends, remaining_ms(context), given_up=request.given_up)
        return ends.write(request.ends, ended)

    async def watch(
        self, requests: AsyncIterator[pb.WatchTransactionsRequest], context: Context
    ) -> AsyncIterator[pb.WatchTransactionsResponse]:
        first = await anext(requests, None)
        if first is None:
            raise no_group()
        watcher = await self._watching.join(first.group, sharer(context.peer()))
        follower = self._watching.follow(watcher, _answers(first, requests))
        desk = self._watching.desk
        try:
            yield pb.WatchTransactionsResponse()
            while checks := await desk.fetch(watcher):
                with desk.handing(checks):
                    yield await self._response(checks)
        finally:
            desk.leave(watcher)
            follower.cancel()

    async def _response(self, checks: Sequence[TransactionQuestion]) -> pb.WatchTransactionsResponse:
        messages = [
            check_message(check, await self._queue(check.name.shard, check.found.properties)) for check in checks
        ]
        return pb.WatchTransactionsResponse(checks=messages)

    async def _queue(self, shard: int, properties: bytes) -> int | None:
        """The topic's number of a half message's queue, if the shard's differs."""
        names = decode_properties(properties)
        route = await self._places.renumbered(names.get(record.REAL_TOPIC, ""))
        number = names.get(record.REAL_QID, "")
        return route.queue_at(shard, int(number)) if route is not None and number.isdecimal() else None

    async def list(self, request: pb.ListTransactionsRequest, context: Context) -> pb.ListTransactionsResponse:
        with await room_in_turn(self._answers, context.peer(), PULL_ANSWER_BYTES_MAX, remaining_ms(context)):
            return await self._listing.page(request, remaining_ms(context))

    async def get(self, request: pb.GetTransactionRequest, context: Context) -> pb.GetTransactionResponse:
        with await room_in_turn(self._answers, context.peer(), BODY_BYTES_MAX, remaining_ms(context)):
            answer = await self._listing.get(request.id, request.topic, remaining_ms(context))
            found = answer.half.transaction
            response = pb.GetTransactionResponse(transaction=found)
            if answer.HasField("sent"):
                response.sent.CopyFrom(answer.sent)
            if answer.record:
                try:
                    half = record.decode(answer.record)
                except DamagedBytes:
                    # Return the readable parts.
                    return response
                response.message.CopyFrom(half_message(half, found.queue))
            return response


async def _answers(
    first: pb.WatchTransactionsRequest, requests: AsyncIterator[pb.WatchTransactionsRequest]
) -> AsyncIterator[tuple[str, EndColumns]]:
    """The answers in a producer's stream, by request."""
    yield first.group, ends.ends_of(first.ends)
    async for request in requests:
        yield request.group, ends.ends_of(request.ends)
