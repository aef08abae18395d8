"""The connection to the gateway: its address, one channel, calls with deadlines, pauses between attempts."""

import asyncio
import os
import random
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc
from duetime_format.limits import GRPC_MESSAGE_BYTES_MAX

from duetime.client.errors import (
    Closed,
    DueTimeError,
    InvalidArgument,
    Unavailable,
    WrongLoop,
    from_status,
    unreadable,
)
from duetime.client.process import connections
from duetime.client.proxies import direct_options
from duetime.client.tokens import TokenSource, credentials_for, showing
from duetime.client.trust import Tls, followed_for
from duetime.client.wire import WireChannel, can_connect
from duetime.tls import FollowingChannel, Pems, credentials_of
from duetime.v1 import gateway_pb2_grpc

PORT_DEFAULT = "9800"
SERVER_DEFAULT = f"localhost:{PORT_DEFAULT}"
SERVER_VARIABLE = "DUETIME_SERVER"

CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", GRPC_MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", GRPC_MESSAGE_BYTES_MAX),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    # Despite its name, this bounds one attempt to connect: a busy machine is slow to shake hands.
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Clients of one process and event loop must not share a broken connection's backoff.
    ("grpc.use_local_subchannel_pool", 1),
)
_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\s:/\[\]]+)(?::([0-9]{1,5}))?")

BACKOFF_S_MIN = 0.05
BACKOFF_S_MAX = 2.0
# Limit of the first attempt of a repeated call. Each later attempt has twice the time of the previous one, so that a
# slow server can finish a large request.
ATTEMPT_TIMEOUT_S = 5.0

# A server without free streams is not asked for one again within this time.
STREAMLESS_S = 60.0

T = TypeVar("T")


def resolve_server(server: str | None) -> str:
    """`server`, else DUETIME_SERVER, else localhost:9800; a host without a port has port 9800.

    Raises:
        InvalidArgument: the address is neither HOST nor HOST:PORT.
    """
    address = server or os.environ.get(SERVER_VARIABLE) or SERVER_DEFAULT  # noqa: TID251  the only place where the SDK reads it
    match = _ADDRESS.fullmatch(address)
    if match is None or not 0 < int(match[2] or PORT_DEFAULT) <= 65_535:
        description = f"{address!r} is not HOST:PORT"
        raise InvalidArgument.of("server", description)
    return address if match[2] else f"{address}:{PORT_DEFAULT}"


def backoff_s(attempt: int, *errors: DueTimeError) -> float:
    """The pause after failed attempt 1, 2, ...: it doubles, and up to half of it is random to spread callers. It is at
    least as long as the server requested in one of the errors."""
    longest = min(BACKOFF_S_MAX, BACKOFF_S_MIN * 2.0 ** min(attempt - 1, 16))
    requested = max((error.retry_after_s for error in errors), default=0.0)
    return max(longest * random.uniform(0.5, 1.0), requested * random.uniform(1.0, 1.1))


def attempt_timeout_s(attempt: int, left_s: float) -> float:
    """The limit of attempt 1, 2, ... with `left_s` until the deadline."""
    return min(max(left_s, 0.001), ATTEMPT_TIMEOUT_S * 2.0 ** min(attempt - 1, 16))


async def pause(length_s: float) -> None:
    """Waits between attempts."""
    await asyncio.sleep(length_s)  # noqa: TID251  the SDK has no Clock; this is its only sleep


async def repeated(call: Callable[[float], Awaitable[T]], timeout: float) -> T:
    """Repeats a call until it is answered or `timeout` seconds have passed. The call receives the seconds left."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    attempt = 0
    while True:
        attempt += 1
        try:
            return await call(max(deadline - loop.time(), 0.001))
        except DueTimeError as error:
            pause_s = backoff_s(attempt, error)
            if not error.retriable or loop.time() + pause_s >= deadline:
                raise
            await pause(pause_s)


class ClosableClient(ABC):
    """A client that is closed at the end of its `async with` block."""

    @abstractmethod
    async def close(self) -> None: ...

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class RepeatingClient(ClosableClient):
    """A client whose unary calls are repeated until they are answered or its timeout has passed."""

    _connection: "GatewayConnection"
    # Seconds.
    _timeout: float

    async def _call(self, method: str, request: Any) -> Any:
        return await repeated(lambda left_s: self._connection.call(method, request, left_s), self._timeout)


class GatewayConnection:
    """A channel to the gateway, opened by the first call on the event loop of that call."""

    def __init__(self, server: str | None, token: TokenSource | None = None, tls: Tls | None = None) -> None:
        """`token`: sent with each call. `tls`: the trusted certificates. None: those of the environment, if any.

        Raises:
            Forked: see there.
        """
        connections.check()
        self.server = resolve_server(server)
        self._followed = followed_for(tls)
        self._credentials = credentials_for(self.server, token, encrypted=self._followed is not None)
        self.closed = False
        # The event loop of the first use.
        self._loop: asyncio.AbstractEventLoop | None = None
        # Whether a channel was made, by this object or for blocking calls.
        self._is_used = False
        self._channel: grpc.aio.Channel | None = None
        self._stub: gateway_pb2_grpc.GatewayStub | None = None

    def check(self) -> None:
        """Checks that the connection can be used here. Called in the event loop, before anything waits for it.

        Raises:
            Closed, Forked, WrongLoop: it can't be used, or not here.
        """
        if self.closed:
            raise Closed("the client is closed", reason="CLOSED")
        if connections.lost:
            connections.check()
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._check_loop(loop)
            self._loop = loop

    def can_be_closed(self) -> bool:
        """Whether closing has work to do: in a forked child everything is the parent's. Raises: WrongLoop."""
        if not (self.closed or connections.lost):
            self._check_loop(asyncio.get_running_loop())
        return not connections.lost

    def _check_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._loop not in (None, loop):
            raise WrongLoop(
                "the client belongs to the event loop of its first use, and this is another one: make a "
                "client in each event loop",
                reason="WRONG_LOOP",
            )

    @property
    def state(self) -> str:
        return "closed" if self.closed else "open" if self._is_used else "unused"

    def described(self, kind: str, **fields: object) -> str:
        """The `repr` of a client: `AsyncPuller(localhost:9800, topic='orders', open)`; without the token."""
        shown = [f"{name}={value!r}" for name, value in fields.items() if value is not None]
        return f"{kind}({', '.join([self.server, *shown, self.state])})"

    @property
    def channel(self) -> grpc.aio.Channel:
        self.check()
        if self._channel is None:
            self._note_use()
            self._channel = showing(self._make_channel(), self._credentials)
        return self._channel

    def _note_use(self) -> None:
        connections.note_opened()
        self._is_used = True

    def _make_channel(self) -> grpc.aio.Channel:
        options = (*CHANNEL_OPTIONS, *direct_options(self.server))
        if self._followed is not None:
            return FollowingChannel(self._followed, self.server, options)
        return grpc.aio.insecure_channel(self.server, options=options)

    @property
    def pems(self) -> Pems | None:
        """The current certificates for new connections; None: plain text."""
        return None if self._followed is None else self._followed.now()

    def make_blocking_channel(self, pems: Pems | None, *, is_compiled: bool = False) -> Any:
        """Another channel, for blocking unary calls; its certificates stay the same. `is_compiled`: by the wheel, if
        that can connect to the server.

        Raises:
            InvalidArgument: the wheel rejects the certificates.
        """
        if is_compiled and can_connect(self.server, pems):
            # Without threads and state of gRPC, it survives a fork.
            self._is_used = True
            return showing(WireChannel(self.server, pems), self._credentials)
        self._note_use()
        options = (*CHANNEL_OPTIONS, *direct_options(self.server))
        if pems is None:
            channel = grpc.insecure_channel(self.server, options=options)
        else:
            channel = grpc.secure_channel(self.server, credentials_of(pems), options=options)
        return showing(channel, self._credentials)

    @property
    def stub(self) -> gateway_pb2_grpc.GatewayStub:
        if self._stub is None:
            self._stub = gateway_pb2_grpc.GatewayStub(self.channel)  # type: ignore[no-untyped-call]
        return self._stub

    async def call(self, method: str, request: Any, timeout: float) -> Any:
        """Makes one unary call by its method's name.

        Raises:
            DueTimeError: the call failed; this method does not repeat it.
        """
        self.check()
        with self._errors_translated():
            answer = await getattr(self.stub, method)(request, timeout=timeout)
        if answer is None:
            raise unreadable(self.server)
        return answer

    async def stream(self, method: str, request: Any) -> AsyncGenerator[Any, None]:
        """Yields the answers of a streaming call without a deadline. Raises: DueTimeError."""
        self.check()
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
        """Opens a call that streams both ways, without a deadline; it ends with the block. Raises: DueTimeError.

        `read`: decodes its answers; None: as messages of the contract.
        """
        self.check()
        make = getattr(self.stub, method) if read is None else self._reading(method, read)
        call = make()
        try:
            with self._errors_translated():
                try:
                    yield call
                except grpc.aio.AioRpcError as error:
                    if error.code() is grpc.StatusCode.INTERNAL and not error.trailing_metadata():
                        # gRPC's own status for a write to a stream that has just ended hides the reason.
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
        """Disconnects; calls in progress raise Closed. Raises: WrongLoop."""
        if not self.can_be_closed():
            return
        self.closed = True
        if self._channel is not None:
            await self._channel.close()
            self._channel = self._stub = None
