"""The server's end: runs calls as tasks, with the handlers of a gRPC server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from contextvars import Context as Variables
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any, NoReturn

import grpc

from duetime_core.within.rpc import Metadata, Rpc

# Prefix of these peers: `within:NUMBER`, with a number for each channel.
PEER = "within:"


@dataclass(slots=True)
class _Details:
    """The argument of a generic handler: gRPC's HandlerCallDetails."""

    method: str
    invocation_metadata: tuple[tuple[str, Any], ...]


class InProcessContext(grpc.aio.ServicerContext[Any, Any]):
    """The handler's view of its call."""

    def __init__(self, rpc: Rpc, peer: str, compose: Callable[[Any], bytes] | None) -> None:
        self._rpc = rpc
        self._peer = peer
        self._compose = compose
        self._code: Any = None
        self._details = ""
        self._trailing_metadata: Metadata = ()

    @property
    def has_request(self) -> bool:
        """Whether `read` would return at once, with a request."""
        return not self._rpc.requests.is_empty

    def take_request(self) -> bytes:
        """That request."""
        return self._rpc.requests.pop()

    async def read(self) -> Any:
        return await self._rpc.requests.take()

    def has_room(self, size: int) -> bool:
        """Whether `write` returns at once with a message of this size."""
        return self._rpc.answers.has_room(size)

    async def write(self, message: Any) -> None:
        """Returns once the reader has read up to one window's bytes behind."""
        self._rpc.begin()
        self._rpc.send(self._rpc.answers, message if self._compose is None else self._compose(message))
        await self._rpc.answers.room()

    async def send_initial_metadata(self, initial_metadata: Any) -> None:
        self._rpc.begin(tuple(initial_metadata))

    async def abort(self, code: Any, details: str = "", trailing_metadata: Any = ()) -> NoReturn:
        self._code, self._details = code, details
        self._trailing_metadata = tuple(trailing_metadata)
        raise grpc.aio.AbortError

    async def abort_with_status(self, status: grpc.Status) -> NoReturn:
        await self.abort(status.code, status.details, status.trailing_metadata or ())

    def set_trailing_metadata(self, trailing_metadata: Any) -> None:
        self._trailing_metadata = tuple(trailing_metadata)

    def trailing_metadata(self) -> Any:
        return self._trailing_metadata

    def invocation_metadata(self) -> Any:
        return self._rpc.metadata

    def set_code(self, code: grpc.StatusCode) -> None:
        self._code = code

    def code(self) -> Any:
        return self._code

    def set_details(self, details: str) -> None:
        self._details = details

    def details(self) -> str:
        return self._details

    def set_compression(self, compression: Any) -> None:
        """Ignored: there is no compression."""

    def disable_next_message_compression(self) -> None:
        """Ignored: there is no compression."""

    def peer(self) -> str:
        return self._peer

    def peer_identities(self) -> None:
        return None

    def peer_identity_key(self) -> None:
        return None

    def auth_context(self) -> Mapping[str, Sequence[bytes]]:
        return self._rpc.auth_context

    def time_remaining(self) -> Any:
        return self._rpc.time_remaining_s

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self._rpc.when_settled(lambda: callback(self))

    def cancelled(self) -> bool:
        return self._rpc.code is grpc.StatusCode.CANCELLED

    def done(self) -> bool:
        return self._rpc.code is not None

    def end(self) -> None:
        """Ends the call with the handler's status."""
        code = self._code or grpc.StatusCode.OK
        self._rpc.finish(code, self._details, self._trailing_metadata)


class InProcessServer:
    """The calls of one server from within its process."""

    def __init__(self, handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        """`handlers`: a gRPC server's, with behaviours that read and write by themselves."""
        self._handlers = handlers
        # Those found, by method.
        self._found: dict[str, Any] = {}
        self._loop = asyncio.get_running_loop()
        # Log lines and spans of a call belong to the server, not to its caller.
        self._variables: Variables = copy_context()
        self._calls: dict[asyncio.Task[None], Rpc] = {}

    def serve(self, rpc: Rpc, peer: str) -> None:
        """Starts a call."""
        handler = self._found.get(rpc.method) or self._find(_Details(rpc.method, rpc.metadata))
        if handler is None:
            rpc.finish(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
            return
        context = InProcessContext(rpc, peer, handler.response_serializer)
        behaviour = handler.stream_stream if handler.response_streaming else handler.stream_unary
        task = self._loop.create_task(_serve(behaviour, rpc, context), context=self._variables.copy())
        rpc.serving = task
        self._calls[task] = rpc
        task.add_done_callback(self._ended)

    def _find(self, details: _Details) -> Any:
        for handlers in self._handlers:
            handler = handlers.service(details)
            if handler is not None:
                self._found[details.method] = handler
                return handler
        return None

    def _ended(self, task: asyncio.Task[None]) -> None:
        rpc = self._calls.pop(task)
        if task.cancelled():
            # Takes the error out of the task: its frames refer to the task, and would keep all of the call in memory
            # until a collection.
            with suppress(asyncio.CancelledError):
                task.exception()
        # The task was cancelled before its first step, or its border failed: end the call for the caller too.
        rpc.finish(grpc.StatusCode.CANCELLED if task.cancelled() else grpc.StatusCode.UNKNOWN, "the call broke off")

    async def stop(self, drain_s: float) -> None:
        """Returns when running calls have ended; those left after `drain_s` are cancelled."""
        if self._calls and drain_s > 0:
            await asyncio.wait(list(self._calls), timeout=drain_s)
        for rpc in list(self._calls.values()):
            rpc.break_off(grpc.StatusCode.UNAVAILABLE, "Cancelling all calls")
        if self._calls:
            await asyncio.wait(list(self._calls))


async def _serve(behaviour: Any, rpc: Rpc, context: InProcessContext) -> None:
    try:
        answer = await behaviour(None, context)
    except grpc.aio.AbortError:
        context.end()
        return
    if answer is not None:
        rpc.begin()
        rpc.send(rpc.answers, answer)
        context.end()
        # The border counts an answer in transit until this task ends.
        del answer
        await rpc.delivered()
        return
    context.end()
