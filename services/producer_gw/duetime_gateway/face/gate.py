"""The quota gate of all calls: counts connections, stored records, and running streams and polls."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any

from duetime_core.access.principal import current

from duetime_gateway.face.callers import Context
from duetime_gateway.face.charges import CHARGES
from duetime_gateway.face.handlers import Handler, behaviour_of, with_behaviour
from duetime_gateway.quotas.charges import Charge, Rate, size_of
from duetime_gateway.quotas.quotas import Quotas


class QuotaGate:
    """Wraps the gateway's handlers. Without quotas, calls pass through."""

    def __init__(self, quotas: Quotas) -> None:
        self._quotas = quotas

    def around(self, handlers: Mapping[str, Handler]) -> dict[str, Handler]:
        """The same handlers, behind the gate."""
        return {name: self._around(handler, CHARGES[name]) for name, handler in handlers.items()}

    def _around(self, handler: Handler, charge: Rate) -> Handler:
        behaviour = behaviour_of(handler)
        if handler.request_streaming and isinstance(charge, Charge):
            behaviour = self._paced(behaviour)
            around = self._stream(behaviour, None)
        elif handler.response_streaming:
            around = self._stream(behaviour, charge if isinstance(charge, Charge) else None)
        else:
            around = self._unary(behaviour, charge if isinstance(charge, Charge) else None)
        return with_behaviour(handler, around)

    def _unary(self, behaviour: Callable[[Any, Context], Awaitable[Any]], charge: Charge | None) -> Any:
        quotas = self._quotas

        async def charged(request: Any, context: Context, user: str, peer: str) -> Any:
            if charge is None:
                return await behaviour(request, context)
            with charge.counted(quotas, user, peer, request) as stored:
                answer = await behaviour(request, context)
                stored(charge.stored_by(answer))
            return answer

        async def counted(request: Any, context: Context) -> Any:
            user, peer = current().name, context.peer()
            quotas.connect(user, peer)
            if getattr(request, "wait_ms", 0) <= 0:
                return await charged(request, context, user, peer)
            with quotas.stream(user, peer):
                return await charged(request, context, user, peer)

        def call(request: Any, context: Context) -> Awaitable[Any]:
            return counted(request, context) if quotas.active else behaviour(request, context)

        return call

    def _stream(self, behaviour: Callable[[Any, Context], AsyncIterator[Any]], charge: Charge | None) -> Any:
        """`charge`: for the single request, and for each answer."""
        quotas = self._quotas

        async def counted(request: Any, context: Context) -> AsyncIterator[Any]:
            user, peer = current().name, context.peer()
            quotas.connect(user, peer)
            if charge is not None:
                with charge.counted(quotas, user, peer, request):
                    pass
            with quotas.stream(user, peer):
                answers: Any = behaviour(request, context)
                async with aclosing(answers):
                    async for answer in answers:
                        yield answer
                        stored = () if charge is None else charge.stored_by(answer)
                        if stored:
                            await quotas.pace(user, peer, len(stored), sum(stored))

        def call(request: Any, context: Context) -> AsyncIterator[Any]:
            return counted(request, context) if quotas.active else behaviour(request, context)

        return call

    def _paced(self, behaviour: Callable[[Any, Context], AsyncIterator[Any]]) -> Any:
        """Reads the next request of a stream when the quota has capacity again."""
        quotas = self._quotas

        async def paced(requests: AsyncIterator[Any], user: str, peer: str) -> AsyncIterator[Any]:
            async for request in requests:
                if quotas.active:
                    await quotas.pace(user, peer, 0, size_of(request))
                yield request

        def call(requests: AsyncIterator[Any], context: Context) -> AsyncIterator[Any]:
            return behaviour(paced(requests, current().name, context.peer()), context)

        return call
