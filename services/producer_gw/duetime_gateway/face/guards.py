"""Checks the names in requests against the caller's rights, before the method runs."""

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from duetime_core.errors import PermissionDenied
from duetime_core.rpc.decoding import decode

from duetime_gateway.access import permit
from duetime_gateway.access.rules import Rule
from duetime_gateway.face.callers import Context
from duetime_gateway.face.handlers import Handler, behaviour_of, with_behaviour
from duetime_gateway.face.permissions import RULES

# Called with each rejection.
Refused = Callable[[PermissionDenied], None]


def guarded(service: str, handlers: Mapping[str, Handler], refused: Refused) -> dict[str, Handler]:
    """The handlers of a service, guarded by the table."""
    return {name: _guarded(RULES[f"/{service}/{name}"], handler, refused) for name, handler in handlers.items()}


def _guarded(rule: Rule, handler: Handler, refused: Refused) -> Handler:
    if not rule.names_in_requests:
        return handler
    guard = _Guard(rule, refused)
    one_request = guard.answers if handler.response_streaming else guard.answer
    around = guard.streams if handler.request_streaming else one_request
    return with_behaviour(handler, around(behaviour_of(handler)))


class _Guard:
    """Guards one method."""

    def __init__(self, rule: Rule, refused: Refused) -> None:
        self._rule = rule
        self._refused = refused

    def _check(self, request: Any) -> None:
        access = permit.current()
        if access.is_admin:
            return
        try:
            self._rule.check(access, request if self._rule.read is None else decode(self._rule.read, request))
        except PermissionDenied as error:
            self._refused(error)
            raise

    def answer(self, behaviour: Any) -> Any:
        async def call(request: Any, context: Context) -> Any:
            self._check(request)
            return await behaviour(request, context)

        return call

    def answers(self, behaviour: Any) -> Any:
        def call(request: Any, context: Context) -> Any:
            self._check(request)
            return behaviour(request, context)

        return call

    def streams(self, behaviour: Any) -> Any:
        async def checked(requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
            async for request in requests:
                self._check(request)
                yield request

        def call(requests: AsyncIterator[Any], context: Context) -> Any:
            return behaviour(checked(requests), context)

        return call
