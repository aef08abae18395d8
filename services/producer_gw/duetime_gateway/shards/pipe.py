"""Many requests under way in one stream, whose answers name them: a fraction of the price of a call each.

    ask ──▶ write, one at a time ──▶ ... ──▶ read ──▶ the answer with the request's number

The stream opens with the first request, and anew after it has ended. What was under way then fails, as a call would:
whoever asked knows whether to repeat it.
"""

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import grpc
from duetime_core.calls import Unreadable, readable
from duetime_core.errors import DueTimeError

from duetime_gateway.errors import shard_unavailable, stopping


class Numbered(Protocol):
    """A request or an answer."""

    number: int


Request = TypeVar("Request", bound=Numbered)
Answer = TypeVar("Answer", bound=Numbered)
Call = grpc.aio.StreamStreamCall[Any, Any]


@dataclass(slots=True, eq=False)
class _Stream(Generic[Answer]):
    """One stream, the requests under way in it by number, and whose turn it is to write."""

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
        """`whom`: what the peer is called in errors. `translated`: the error that a status of the stream stands for."""
        self._method = method
        self._whom = whom
        self._translated = translated
        self._tasks = tasks
        self._numbers = itertools.count(1)
        self._stream: _Stream[Answer] | None = None

    async def ask(self, request: Request, timeout_ms: float) -> Answer:
        """The answer to a request.

        Raises:
            Unavailable: there is none in time. The request may take effect.
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
            text = f"{self._whom} does not answer: nothing came within {timeout_ms:.0f} ms"
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
        """Hands a request to gRPC, once the peer has room for it. If the caller gives up before, the stream ends: gRPC
        can't take back half of a request."""
        async with stream.writing:
            try:
                await stream.call.write(request)
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                # The stream has ended: who follows it knows why, and tells all that wait.
                return

    async def _follow(self, stream: _Stream[Answer]) -> None:
        """Gives out the answers of a stream until it ends. Never raises."""
        error: DueTimeError = stopping()
        try:
            while (read := await stream.call.read()) is not grpc.aio.EOF:
                answer: Any = readable(read, self._whom)
                future = stream.waiting.get(answer.number)
                if future is not None and not future.done():
                    future.set_result(answer)
            error = shard_unavailable(f"{self._whom} has ended its stream")
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
