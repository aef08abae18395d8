"""The caller's end of a call: grpc.aio's call interfaces over an Rpc."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Generator, Iterable
from typing import Any

import grpc

from duetime_core.telemetry.logs import sparing
from duetime_core.telemetry.traces import name_of
from duetime_core.within.rpc import Rpc

log = sparing()

GONE = "Cancelled upon garbage collection!"
Serialize = Callable[[Any], bytes]
Parse = Callable[[bytes], Any]


class InProcessCall:
    """The interface common to all calls."""

    def __init__(self, rpc: Rpc, compose: Serialize | None, parse: Parse | None) -> None:
        self._rpc = rpc
        self._compose = compose
        self._parse = parse

    def __del__(self) -> None:
        """Cancels a call whose answer cannot be taken any more. May run in any thread."""
        rpc = self._rpc
        if not rpc.settled and not rpc.loop.is_closed():
            rpc.loop.call_soon_threadsafe(rpc.cancel, GONE)

    def cancel(self) -> bool:
        return self._rpc.cancel()

    def cancelled(self) -> bool:
        return self._rpc.settled and self._rpc.code is grpc.StatusCode.CANCELLED

    def done(self) -> bool:
        return self._rpc.settled

    def time_remaining(self) -> float | None:
        return self._rpc.time_remaining_s

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self._rpc.when_settled(lambda: callback(self))

    async def initial_metadata(self) -> grpc.aio.Metadata:
        await self._rpc.until(lambda: self._rpc.begun)
        return grpc.aio.Metadata(*self._rpc.initial_metadata)

    async def trailing_metadata(self) -> grpc.aio.Metadata:
        await self._settled()
        return grpc.aio.Metadata(*self._rpc.trailing_metadata)

    async def code(self) -> grpc.StatusCode | None:
        await self._settled()
        return self._rpc.code

    async def details(self) -> str:
        await self._settled()
        return self._rpc.details

    async def _settled(self) -> None:
        if not self._rpc.settled:
            await self._rpc.until(lambda: self._rpc.settled)

    def _raise_for_status(self) -> None:
        """Raises the error of a call, unless it ended with OK."""
        rpc = self._rpc
        if rpc.locally_cancelled:
            raise asyncio.CancelledError
        if rpc.code is not grpc.StatusCode.OK:
            assert rpc.code is not None
            initial, trailing = grpc.aio.Metadata(*rpc.initial_metadata), grpc.aio.Metadata(*rpc.trailing_metadata)
            raise grpc.aio.AioRpcError(rpc.code, initial, trailing, rpc.details)

    def _read(self, data: bytes) -> Any:
        """Decodes an answer; None if it is invalid, as in gRPC."""
        if self._parse is None:
            return data
        try:
            return self._parse(data)
        except Exception as error:
            log.error("cannot decode an answer", method=self._rpc.method, error=name_of(error))
            return None


class UnaryAnswer(InProcessCall):
    """A call with one answer, which is awaited."""

    _answer: Any = None
    _is_read = False

    def __await__(self) -> Generator[Any, None, Any]:
        return self._wait().__await__()

    async def _wait(self) -> Any:
        if not self._is_read:
            try:
                await self._take()
            except asyncio.CancelledError:
                self.cancel()
                raise
        self._raise_for_status()
        return self._answer

    async def _take(self) -> None:
        """Takes the answer and the status; an answer is valid only together with its status."""
        rpc = self._rpc
        if not rpc.settled:
            await rpc.until(lambda: rpc.settled)
        if self._is_read:
            return
        self._is_read = True
        if (data := await rpc.take_answer()) is not grpc.aio.EOF:
            self._answer = self._read(data)


class StreamAnswer(InProcessCall):
    """A call with many answers, read one by one or iterated over."""

    async def read(self) -> Any:
        if self._rpc.settled:
            self._raise_for_status()
            return grpc.aio.EOF
        try:
            data = await self._rpc.take_answer()
        except asyncio.CancelledError:
            self.cancel()
            raise
        if data is grpc.aio.EOF:
            self._raise_for_status()
            return data
        return self._read(data)

    async def __aiter__(self) -> AsyncIterator[Any]:
        while (answer := await self.read()) is not grpc.aio.EOF:
            yield answer


class StreamRequest(InProcessCall):
    """A call with many requests, written one by one or from an iterator."""

    _done_writing = False
    _consuming: asyncio.Task[None] | None = None

    def consume(self, requests: AsyncIterable[Any] | Iterable[Any] | None) -> None:
        """Writes the items of an iterator in the background."""
        if requests is not None:
            self._consuming = self._rpc.loop.create_task(self._consume(requests))
            self._rpc.when_settled(self._consuming.cancel)

    async def _consume(self, requests: AsyncIterable[Any] | Iterable[Any]) -> None:
        try:
            if isinstance(requests, AsyncIterable):
                async for request in requests:
                    await self.write(request)
            else:
                for request in requests:
                    await self.write(request)
            await self.done_writing()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return  # the call has ended: its reader gets the error
        except Exception as error:
            log.error("cannot write requests", method=self._rpc.method, error=name_of(error))
            self.cancel()

    async def write(self, request: Any) -> None:
        """Returns once the server has read up to one window's bytes behind."""
        rpc = self._rpc
        if rpc.settled:
            raise asyncio.InvalidStateError("RPC already finished.")
        if self._done_writing:
            raise asyncio.InvalidStateError('RPC is half closed after calling "done_writing".')
        if rpc.code is None:
            rpc.send(rpc.requests, request if self._compose is None else self._compose(request))
            try:
                await rpc.requests.room()
            except asyncio.CancelledError:
                self.cancel()
                raise
        if rpc.code is not None:
            self._raise_for_status()

    async def done_writing(self) -> None:
        self._done_writing = True
        self._rpc.requests.end()


class UnaryUnaryCall(UnaryAnswer):
    """One request, one answer."""


class UnaryStreamCall(StreamAnswer):
    """One request, many answers."""


class StreamStreamCall(StreamRequest, StreamAnswer):
    """Many requests, many answers."""
