"""The Gateway's gRPC surface for subscriptions."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import grpc
from duetime.v1 import subscriptions_pb2 as pb
from duetime_core.errors import InvalidArgument, Violation
from duetime_core.room import Room
from duetime_core.traffic import COUNTED_BYTES_MIN

from duetime_gateway.consuming.subscribing import Subscribing
from duetime_gateway.face.answering import room_in_turn
from duetime_gateway.face.callers import Context
from duetime_gateway.face.reads import subscribe_of


class SubscriptionService:
    """A part of duetime.v1.Gateway: see proto/duetime/v1/gateway.proto for what each call promises."""

    def __init__(self, subscribing: Subscribing, answers: Room) -> None:
        self._subscribing = subscribing
        self._answers = answers

    def handlers(self) -> "dict[str, grpc.RpcMethodHandler[Any, Any]]":
        """By call. Answers are passed on as the store encoded them."""
        return {
            "Subscribe": grpc.stream_stream_rpc_method_handler(self.subscribe, pb.SubscribeRequest.FromString),
        }

    async def subscribe(self, requests: AsyncIterator[pb.SubscribeRequest], context: Context) -> AsyncIterator[bytes]:
        first = await anext(requests, None)
        if first is None:
            raise InvalidArgument([Violation("topic", "is not given: the stream has no first request")])
        peer, rooms = context.peer(), self._answers.shares
        given = (request.credit_bytes async for request in requests)
        async with aclosing(self._subscribing.answers(subscribe_of(first), given, peer)) as answers:
            async for answer in answers:
                if COUNTED_BYTES_MIN < len(answer) > rooms.room(peer):
                    raise self._answers.refused(peer)
                yield answer
                if rooms.room(peer) < COUNTED_BYTES_MIN:
                    (await room_in_turn(self._answers, peer, COUNTED_BYTES_MIN, None)).close()
