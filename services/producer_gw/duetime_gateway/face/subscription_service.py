"""The Gateway's gRPC surface for subscriptions."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import grpc
from duetime.v1 import subscriptions_pb2 as pb
from duetime_core.errors import InvalidArgument, Violation

from duetime_gateway.consuming.subscribing import GatewaySubscriptions
from duetime_gateway.face.callers import Context
from duetime_gateway.face.reads import subscribe_of


class SubscriptionService:
    """Part of duetime.v1.Gateway; proto/duetime/v1/gateway.proto documents each call."""

    def __init__(self, subscribing: GatewaySubscriptions) -> None:
        self._subscribing = subscribing

    def handlers(self) -> "dict[str, grpc.RpcMethodHandler[Any, Any]]":
        """Handlers by call. Answers are forwarded as encoded by the store."""
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
