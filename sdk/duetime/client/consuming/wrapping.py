"""The call for a message: the handler, with the message or its decoded body, and middleware around it.

before (first to last) ──▶ body decoded ──▶ handler ──▶ after (last to first)
└─────────── raises ────────────┴──▶ failed (last to first), of those that were started
"""

import asyncio
import inspect
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from duetime.client.bodies import Decode, decoder
from duetime.client.callables import check_callable, check_returned, is_asynchronous
from duetime.client.consuming.failing import Reject, text_of
from duetime.client.consuming.leased import LeasedMessage
from duetime.client.consuming.logs import log_about
from duetime.client.errors import BadBody, InvalidArgument

BadBodies = Literal["reject", "retry"]


class Middleware:
    """Called around the handlers of a consumer: subclass it, and define any of the three.

    Middleware runs with its handler: in the thread of a plain handler, or on the event loop for a coroutine. Only there
    may its methods be coroutine functions. An exception of `before` or `after` counts as one of the handler: the
    message has failed, or follows `Retry` or `Reject`.
    """

    def before(self, message: LeasedMessage) -> Any:
        """Before the handler."""

    def after(self, message: LeasedMessage) -> Any:
        """After a handler that returned, and before the message is acknowledged."""

    def failed(self, message: LeasedMessage, error: BaseException) -> Any:
        """After a handler that raised, was cancelled (asyncio.CancelledError), or could not be called. Its own
        exceptions are logged."""


@dataclass(frozen=True, slots=True)
class HandlerCallOptions:
    """The options of a consumer for the calls of one handler."""

    middleware: Sequence[Middleware] = ()
    # None: the handler receives only the message.
    decode: Decode | None = None
    bad_body: BadBodies = "reject"

    def wrapped(self, function: Callable[..., Any]) -> Callable[[LeasedMessage], Any]:
        """Returns the function to call with a message: a coroutine function if the handler is one.

        Raises:
            InvalidArgument: the handler does not accept the arguments, or middleware does not fit around it.
        """
        calls = [["message"]] if self.decode is None else [["body"], ["body", "message"]]
        with_message = check_callable(function, "handler", *calls) == 1
        asynchronous = is_asynchronous(function)
        if not asynchronous:
            self._check_plain(getattr(function, "__qualname__", repr(function)))
        if self.decode is None and not self.middleware:
            return function
        call = _HandlerCall(function, self, with_message)
        return call.awaited if asynchronous else call.called

    def _check_plain(self, name: str) -> None:
        for one in self.middleware:
            for hook in (one.before, one.after, one.failed):
                if is_asynchronous(hook):
                    text = f"{hook.__qualname__} is a coroutine function, and {name} is not: make that an `async def`"
                    raise InvalidArgument.of("middleware", text)


def checked(middleware: Sequence[Middleware]) -> Sequence[Middleware]:
    """Raises: InvalidArgument: an element is not a Middleware, or can't be called as one."""
    for one in middleware:
        if not isinstance(one, Middleware):
            raise InvalidArgument.of("middleware", f"{one!r} is not a Middleware")
        check_callable(one.before, "middleware", ["message"])
        check_callable(one.after, "middleware", ["message"])
        check_callable(one.failed, "middleware", ["message", "error"])
    return tuple(middleware)


def call_failed(begun: Sequence[Middleware], message: LeasedMessage, error: BaseException) -> None:
    """Calls `failed` of middleware around a plain handler, from the last to the first."""
    for one in reversed(begun):
        try:
            one.failed(message, error)
        except Exception as fault:
            _log_fault(one, message, fault)


def decoding(kind: Any, bad_body: str) -> Decode | None:
    """Raises: InvalidArgument: JSON can't hold the type, or `bad_body` is neither 'reject' nor 'retry'."""
    if bad_body not in ("reject", "retry"):
        raise InvalidArgument.of("bad_body", f"{bad_body!r} is neither 'reject' nor 'retry'")
    return None if kind is None else decoder(kind)


class _HandlerCall:
    """One handler with its middleware."""

    def __init__(self, function: Callable[..., Any], wrapping: HandlerCallOptions, with_message: bool) -> None:
        self._function = function
        self._wrapping = wrapping
        self._with_message = with_message

    def called(self, message: LeasedMessage) -> None:
        """Calls a plain handler, in its thread."""
        begun: list[Middleware] = []
        try:
            for one in self._wrapping.middleware:
                begun.append(one)
                check_returned(one.before(message))
            check_returned(self._function(*self._arguments(message)))
            for one in reversed(begun):
                check_returned(one.after(message))
        except BaseException as error:
            call_failed(begun, message, error)
            raise

    async def awaited(self, message: LeasedMessage) -> None:
        """Calls a coroutine function."""
        begun: list[Middleware] = []
        try:
            for one in self._wrapping.middleware:
                begun.append(one)
                await _awaited(one.before(message))
            check_returned(await self._function(*self._arguments(message)))
            for one in reversed(begun):
                await _awaited(one.after(message))
        except BaseException as error:
            if isinstance(error, GeneratorExit) and not _loop_runs():
                # The loop is closed: awaiting is impossible.
                raise
            for one in reversed(begun):
                try:
                    await _awaited(one.failed(message, error))
                except Exception as fault:
                    _log_fault(one, message, fault)
            raise

    def _arguments(self, message: LeasedMessage) -> tuple[Any, ...]:
        """Raises: Reject, BadBody: the body can't be decoded."""
        decode = self._wrapping.decode
        if decode is None:
            return (message,)
        try:
            body = decode(message.body, message.content_type)
        except BadBody as error:
            if self._wrapping.bad_body == "retry":
                raise
            raise Reject(error.text) from error
        return (body, message) if self._with_message else (body,)


async def _awaited(result: Any) -> None:
    """Waits for the result of a hook, if it can be awaited."""
    if inspect.isawaitable(result):
        await result
    else:
        check_returned(result)


def _loop_runs() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _log_fault(middleware: Middleware, message: LeasedMessage, fault: Exception) -> None:
    what = f"{type(fault).__qualname__}: {text_of(fault)}"
    log_about(logging.WARNING, message, "%s.failed: %s", type(middleware).__qualname__, what, error=fault)
