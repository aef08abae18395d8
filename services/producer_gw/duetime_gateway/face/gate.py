"""What calls pass where quotas are set: connections are counted, and streams and long polls while they last."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any

from duetime_core.principal import current

from duetime_gateway.face.callers import Context
from duetime_gateway.face.handlers import Handler, behaviour_of, with_behaviour
from duetime_gateway.quotas.quotas import Quotas


class Gate:
    """Stands before the handlers of the gateway. Without quotas it lets calls pass."""

    def __init__(self, quotas: Quotas) -> None:
        self._quotas = quotas

    def around(self, handlers: Mapping[str, Handler]) -> dict[str, Handler]:
        """The same calls behind the gate."""
        return {name: self._around(handler) for name, handler in handlers.items()}

    def _around(self, handler: Handler) -> Handler:
        around = self._stream if handler.response_streaming else self._unary
        return with_behaviour(handler, around(behaviour_of(handler)))

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
