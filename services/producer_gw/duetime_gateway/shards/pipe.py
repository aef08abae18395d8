"""Many concurrent requests in one stream, matched to answers by number: far cheaper than one call each.

    ask ──▶ write, one at a time ──▶ ... ──▶ read ──▶ the answer with the request's number

The first request opens the stream, and the next one reopens it after its end. Pending requests then fail, as a call
would; callers decide whether to retry.
"""

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import grpc
from duetime_core.errors import DueTimeError
from duetime_core.rpc.calls import Unreadable, readable

from duetime_gateway.errors import shard_unavailable, stopping


class Numbered(Protocol):
    """A request or an answer."""

    number: int


Request = TypeVar("Request", bound=Numbered)
Answer = TypeVar("Answer", bound=Numbered)
Call = grpc.aio.StreamStreamCall[Any, Any]


@dataclass(slots=True, eq=False)
class _Stream(Generic[Answer]):
    """One stream, its pending requests by number, and the lock of its writers."""

    call: Call
    waiting: "dict[int, asyncio.Future[Answer]]" = field(default_factory=dict)
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)


class Pipe(Generic[Request, Answer]):
    """The stream of one kind of request to one peer."""

    def __init__(
        self,
        method: "grpc.aio.StreamStreamMultiCallable[Request, Answer]",
        whom: str,
        translated: Callable[[grpc.aio.AioRpcError], DueTimeError],
        tasks: asyncio.TaskGroup,
    ) -> None:
        """`whom`: the peer's name in errors. `translated`: converts a status of the stream into an error."""
        self._method = method
        self._whom = whom
        self._translated = translated
        self._tasks = tasks
        self._numbers = itertools.count(1)
        self._stream: _Stream[Answer] | None = None

    async def ask(self, request: Request, timeout_ms: float) -> Answer:
        """Sends a request and returns its answer.

        Raises:
            Unavailable: no answer in time. The request may take effect.
            DueTimeError: the stream ended meanwhile, with this error.
        """
        request.number = next(self._numbers)
        stream = self._open()
        future = stream.waiting[request.number] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(timeout_ms / 1000.0):
                await self._write(stream, request)
                answer: Answer = await future
                return answer
        except TimeoutError:
            text = f"{self._whom} does not answer: no response within {timeout_ms:.0f} ms"
            raise shard_unavailable(text) from None
        finally:
            stream.waiting.pop(request.number, None)
            future.cancel()

    def _open(self) -> _Stream[Answer]:
        if self._stream is None:
            self._stream = _Stream(self._method(None))
            self._tasks.create_task(self._follow(self._stream))
        return self._stream

    async def _write(self, stream: _Stream[Answer], request: Request) -> None:
        """Hands a request to gRPC once the peer has capacity. If the caller gives up earlier, the stream ends: gRPC
        cannot take back half a request."""
        async with stream.writing:
            try:
                await stream.call.write(request)
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                # The stream has ended; `_follow` reports the reason to all waiters.
                return

    async def _follow(self, stream: _Stream[Answer]) -> None:
        """Distributes the stream's answers until it ends. Never raises."""
        error: DueTimeError = stopping()
        try:
            while (read := await stream.call.read()) is not grpc.aio.EOF:
                answer: Any = readable(read, self._whom)
                future = stream.waiting.get(answer.number)
                if future is not None and not future.done():
                    future.set_result(answer)
            error = shard_unavailable(f"{self._whom} ended its stream")
        except grpc.aio.AioRpcError as status:
            error = self._translated(status)
        except Unreadable as unreadable:
            error = unreadable
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # A writer gave up.
            error = shard_unavailable(f"{self._whom} does not read its stream")
        finally:
            if self._stream is stream:
                self._stream = None
            stream.call.cancel()
            for future in stream.waiting.values():
                if not future.done():
                    future.set_exception(error)
