"""The Gateway's gRPC surface for subscriptions."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import grpc
from duetime.v1 import subscriptions_pb2 as pb
from duetime_core.errors import InvalidArgument, Violation

from duetime_gateway.consuming.subscribing import Subscribing
from duetime_gateway.face.callers import Context
from duetime_gateway.face.reads import subscribe_of


class SubscriptionService:
    """A part of duetime.v1.Gateway: see proto/duetime/v1/gateway.proto for what each call promises."""

    def __init__(self, subscribing: Subscribing) -> None:
        self._subscribing = subscribing

    def handlers(self) -> "dict[str, grpc.RpcMethodHandler[Any, Any]]":
        """By call. Answers are passed on as the store encoded them."""
        return {
            "Subscribe": grpc.stream_stream_rpc_method_handler(self.subscribe, pb.SubscribeRequest.FromString),
        }

    async def subscribe(self, requests: AsyncIterator[pb.SubscribeRequest], context: Context) -> AsyncIterator[bytes]:
        first = await anext(requests, None)
        if first is None:
            raise InvalidArgument([Violation("topic", "is not given: the stream has no first request")])
        given = (request.credit_bytes async for request in requests)
        async with aclosing(self._subscribing.answers(subscribe_of(first), given, context.peer())) as answers:
            async for answer in answers:
                yield answer
