"""What calls pass where quotas are set: connections are counted, and streams and long polls while they last."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import grpc
from duetime_core.principal import current

from duetime_gateway.face.callers import Context
from duetime_gateway.quotas.quotas import Quotas

if TYPE_CHECKING:
    Handler = grpc.RpcMethodHandler[Any, Any]


class Gate:
    """Stands before the handlers of the gateway. Without quotas it lets calls pass."""

    def __init__(self, quotas: Quotas) -> None:
        self._quotas = quotas

    def around(self, handlers: "Mapping[str, Handler]") -> "dict[str, Handler]":
        """The same calls behind the gate."""
        return {name: self._around(handler) for name, handler in handlers.items()}

    def _around(self, handler: Any) -> "Handler":
        read, write = handler.request_deserializer, handler.response_serializer
        if not handler.response_streaming:
            return grpc.unary_unary_rpc_method_handler(self._unary(handler.unary_unary), read, write)
        if handler.request_streaming:
            return grpc.stream_stream_rpc_method_handler(self._stream(handler.stream_stream), read, write)
        return grpc.unary_stream_rpc_method_handler(self._stream(handler.unary_stream), read, write)

    def _unary(self, behaviour: Callable[[Any, Context], Awaitable[Any]]) -> Any:
        quotas = self._quotas

        async def counted(request: Any, context: Context) -> Any:
            user, peer = current().name, context.peer()
            quotas.connect(user, peer)
            if getattr(request, "wait_ms", 0) <= 0:
                return await behaviour(request, context)
            with quotas.stream(user, peer):
                return await behaviour(request, context)

        def call(request: Any, context: Context) -> Awaitable[Any]:
            return counted(request, context) if quotas.active else behaviour(request, context)

        return call

    def _stream(self, behaviour: Callable[[Any, Context], AsyncIterator[Any]]) -> Any:
        quotas = self._quotas

        async def counted(request: Any, context: Context) -> AsyncIterator[Any]:
            user, peer = current().name, context.peer()
            quotas.connect(user, peer)
            with quotas.stream(user, peer):
                answers: Any = behaviour(request, context)
                async with aclosing(answers):
                    async for answer in answers:
                        yield answer

        def call(request: Any, context: Context) -> AsyncIterator[Any]:
            return counted(request, context) if quotas.active else behaviour(request, context)

        return call
