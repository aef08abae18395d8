"""The connection to the gateway: its address, one channel, calls with deadlines, pauses between attempts."""

import asyncio
import os
import random
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import grpc
from duetime_format.limits import GRPC_MESSAGE_BYTES_MAX

from duetime.client.errors import Closed, DueTimeError, InvalidArgument, Unavailable, from_status, unreadable
from duetime.client.tokens import TokenSource, credentials_for, showing
from duetime.v1 import gateway_pb2_grpc

SERVER_DEFAULT = "localhost:9800"
SERVER_VARIABLE = "DUETIME_SERVER"

_CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", GRPC_MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", GRPC_MESSAGE_BYTES_MAX),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    # Despite its name, this bounds one attempt to connect: a busy machine is slow to shake hands.
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Clients of one process that share an event loop must not share a broken connection's backoff.
    ("grpc.use_local_subchannel_pool", 1),
)
_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\s:/\[\]]+):([0-9]{1,5})")
_LENGTH = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)")
_LENGTH_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}

BACKOFF_S_MIN = 0.05
BACKOFF_S_MAX = 2.0

# How long a server of an older release is not asked again for what it does not know: a newer one may answer at the
# address by then.
OLDER_SERVER_S = 60.0

T = TypeVar("T")


class OlderServer:
    """Remembers for OLDER_SERVER_S that the server did not know something."""

    def __init__(self) -> None:
        # Loop time.
        self._until_s = 0.0

    def met(self) -> None:
        self._until_s = asyncio.get_running_loop().time() + OLDER_SERVER_S

    @property
    def is_there(self) -> bool:
        return asyncio.get_running_loop().time() < self._until_s


def resolve_server(server: str | None) -> str:
    """`server`, else DUETIME_SERVER, else localhost:9800.

    Raises:
        InvalidArgument: it is not HOST:PORT.
    """
    address = server or os.environ.get(SERVER_VARIABLE) or SERVER_DEFAULT  # noqa: TID251  the only place where the SDK reads it
    match = _ADDRESS.fullmatch(address)
    if match is None or not 0 < int(match[2]) <= 65_535:
        description = f"{address!r} is not HOST:PORT"
        raise InvalidArgument.of("server", description)
    return address


def seconds(length: str | float | timedelta, field: str = "wait") -> float:
    """Seconds of `"2s"`, `"500ms"`, a number of seconds or a timedelta; `field` names the argument in errors.

    Raises:
        InvalidArgument: none of these, or negative.
    """
    if isinstance(length, timedelta):
        length = length.total_seconds()
    if isinstance(length, str):
        match = _LENGTH.fullmatch(length)
        value = float(match[1]) * _LENGTH_S[match[2]] if match else -1.0
    else:
        value = float(length)
    if not value >= 0:
        description = f"{length!r} is neither a length such as '2s' or '500ms' nor a number of seconds from 0 up"
        raise InvalidArgument.of(field, description)
    return value


def backoff_s(attempt: int) -> float:
    """The pause after failed attempt 1, 2, ...: it doubles; up to half of it is random, to spread callers."""
    longest = min(BACKOFF_S_MAX, BACKOFF_S_MIN * 2.0 ** min(attempt - 1, 16))
    return longest * random.uniform(0.5, 1.0)


async def pause(length_s: float) -> None:
    """Waits between attempts."""
    await asyncio.sleep(length_s)  # noqa: TID251  the SDK has no Clock; this is its only sleep


async def repeated(call: Callable[[float], Awaitable[T]], timeout: float) -> T:
    """Repeats a call until it is answered or `timeout` seconds are over. The call is given the seconds left."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    attempt = 0
    while True:
        attempt += 1
        try:
            return await call(max(deadline - loop.time(), 0.001))
        except DueTimeError as error:
            pause_s = backoff_s(attempt)
            if not error.retriable or loop.time() + pause_s >= deadline:
                raise
            await pause(pause_s)


class Connection:
    """A channel to the gateway, opened by the first call on the event loop of that call."""

    def __init__(self, server: str | None, token: TokenSource | None = None) -> None:
        """`token`: shown by each call; None: that of the environment, if it has one."""
        self.server = resolve_server(server)
        self._credentials = credentials_for(self.server, token)
        self.closed = False
        self._channel: grpc.aio.Channel | None = None
        self._stub: gateway_pb2_grpc.GatewayStub | None = None

    @property
    def channel(self) -> grpc.aio.Channel:
        if self.closed:
            raise Closed("the client is closed", reason="CLOSED")
        if self._channel is None:
            channel = grpc.aio.insecure_channel(self.server, options=_CHANNEL_OPTIONS)
            self._channel = showing(channel, self._credentials)
        return self._channel

    @property
    def stub(self) -> gateway_pb2_grpc.GatewayStub:
        if self._stub is None:
            self._stub = gateway_pb2_grpc.GatewayStub(self.channel)  # type: ignore[no-untyped-call]
        return self._stub

    async def call(self, method: str, request: Any, timeout: float) -> Any:
        """One unary call by its method's name.

        Raises:
            DueTimeError: the call failed; it is not repeated here.
        """
        if self.closed:
            raise Closed("the client is closed", reason="CLOSED")
        with self._errors_translated():
            answer = await getattr(self.stub, method)(request, timeout=timeout)
        if answer is None:
            raise unreadable(self.server)
        return answer

    async def stream(self, method: str, request: Any) -> AsyncGenerator[Any, None]:
        """The answers of a streaming call, which has no deadline. Raises: DueTimeError."""
        call = getattr(self.stub, method)(request)
        try:
            with self._errors_translated():
                async for answer in call:
                    if answer is None:
                        raise unreadable(self.server)
                    yield answer
        finally:
            call.cancel()

    @asynccontextmanager
    async def both_ways(self, method: str, *, read: Callable[[bytes], Any] | None = None) -> AsyncIterator[Any]:
        """A call that streams both ways, which has no deadline and ends with the block. Raises: DueTimeError.

        `read`: how its answers are read, if not as the contract's messages alone.
        """
        make = getattr(self.stub, method) if read is None else self._reading(method, read)
        call = make()
        try:
            with self._errors_translated():
                try:
                    yield call
                except grpc.aio.AioRpcError as error:
                    if error.code() is grpc.StatusCode.INTERNAL and not error.trailing_metadata():
                        # gRPC's own status for a write into a stream that had just ended: it hides why that was.
                        text = f"the server at {self.server} ended the stream"
                        raise Unavailable(text, reason="ENDED") from error
                    raise
        finally:
            call.cancel()

    def _reading(self, method: str, read: Callable[[bytes], Any]) -> Any:
        return self.channel.stream_stream(
            f"/duetime.v1.Gateway/{method}",
            request_serializer=lambda request: request.SerializeToString(),
            response_deserializer=read,
        )

    @contextmanager
    def _errors_translated(self) -> Iterator[None]:
        """Raises the SDK's errors in place of gRPC's."""
        try:
            yield
        except grpc.aio.AioRpcError as error:
            raise from_status(error, self.server) from error
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self.closed and task is not None and not task.cancelling():
                # Closing a channel cancels its calls; the task itself was not cancelled.
                raise Closed("the client was closed during the call", reason="CLOSED") from None
            raise

    async def close(self) -> None:
        """Disconnects; calls in progress raise Closed."""
        self.closed = True
        if self._channel is not None:
            await self._channel.close()
            self._channel = self._stub = None
