"""The compiled client alone: answers that no gRPC server sends, and connections that end between and during calls."""

import asyncio
import socket
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import grpc
import pytest
from duetime_core.rpc.serving import FrontKind, Server
from duetime_format.limits import GRPC_MESSAGE_BYTES_MAX

from tests.hostile.raw import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PING,
    PREFACE,
    SETTINGS,
    frame,
)
from tests.twins import native

duetime_wire = native("duetime_wire")

DEADLINE_S = 60.0
RST_STREAM, GOAWAY = 3, 7
LIMIT = 1000
CANCELLED, UNKNOWN, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, UNIMPLEMENTED, INTERNAL, UNAVAILABLE = 1, 2, 4, 8, 12, 13, 14
CA_BROKEN = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
OPEN = frame(SETTINGS, 0, 0)


def headers(stream: int, *fields: tuple[str, str], ends: bool = False) -> bytes:
    block = b"".join(
        b"\0" + bytes((len(name),)) + name.encode() + bytes((len(value),)) + value.encode() for name, value in fields
    )
    return frame(HEADERS, END_HEADERS | (END_STREAM if ends else 0), stream, block)


def begun(stream: int, kind: str = "application/grpc") -> bytes:
    return headers(stream, (":status", "200"), ("content-type", kind))


def framed(message: bytes, flag: int = 0) -> bytes:
    return bytes((flag,)) + struct.pack(">I", len(message)) + message


def answer(stream: int, data: bytes = framed(b"answer")) -> bytes:
    return begun(stream) + frame(DATA, 0, stream, data) + headers(stream, ("grpc-status", "0"), ends=True)


def reset(stream: int, code: int) -> bytes:
    return frame(RST_STREAM, 0, stream, struct.pack(">I", code))


def goaway(last_stream: int) -> bytes:
    return frame(GOAWAY, 0, 0, struct.pack(">II", last_stream, 0))


class Connection:
    """An accepted connection."""

    def __init__(self, accepted: socket.socket) -> None:
        self.socket = accepted
        accepted.settimeout(DEADLINE_S)
        self._unread = b""
        self._read(len(PREFACE))
        self.socket.sendall(OPEN)

    def next_frame(self) -> tuple[int, int, int, bytes]:
        """Type, flags, stream and content."""
        head = self._read(9)
        data = self._read(int.from_bytes(head[:3], "big"))
        return head[3], head[4], int.from_bytes(head[5:], "big"), data

    def request(self) -> int:
        """Reads a whole request, and returns its stream."""
        while True:
            kind, flags, stream, _ = self.next_frame()
            if kind == DATA and flags & END_STREAM:
                return stream

    def _read(self, size: int) -> bytes:
        while len(self._unread) < size:
            data = self.socket.recv(1 << 16)
            if not data:
                raise ConnectionResetError
            self._unread += data
        found, self._unread = self._unread[:size], self._unread[size:]
        return found


Answer = Callable[[int], bytes]


class Scripted:
    """A port that answers requests in turn, and accepts another connection when the client has left one."""

    def __init__(self, *answers: Answer, closes: bool = False) -> None:
        """`closes`: each answer ends its connection."""
        self.connections = 0
        self._answers = list(answers)
        self._closes = closes
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = ThreadPoolExecutor(1)

    def __enter__(self) -> tuple["Scripted", Any]:
        self._playing = self._thread.submit(self._play)
        return self, duetime_wire.Channel("127.0.0.1", self._listener.getsockname()[1], message_bytes_max=LIMIT)

    def __exit__(self, *_: object) -> None:
        self._playing.result(DEADLINE_S)
        self._listener.close()
        self._thread.shutdown()

    def _play(self) -> None:
        while self._answers:
            accepted, _ = self._listener.accept()
            self.connections += 1
            with accepted, suppress(ConnectionError):
                connection = Connection(accepted)
                while self._answers:
                    stream = connection.request()
                    accepted.sendall(self._answers.pop(0)(stream))
                    if self._closes:
                        break


def call(channel: Any, timeout_s: float = DEADLINE_S) -> bytes:
    return bytes(channel.call("/T/M", b"request", timeout_s, []))


def failure_of(channel: Any, timeout_s: float = DEADLINE_S) -> tuple[int, str]:
    with pytest.raises(duetime_wire.Failed) as caught:
        call(channel, timeout_s)
    code, text, _ = caught.value.args
    return code, text


WRONG: dict[str, tuple[int, Answer]] = {
    "unavailable by HTTP": (UNAVAILABLE, lambda n: headers(n, (":status", "503"), ends=True)),
    "not found by HTTP": (UNIMPLEMENTED, lambda n: headers(n, (":status", "404"), ends=True)),
    "a web page": (UNKNOWN, lambda n: begun(n, "text/html") + frame(DATA, END_STREAM, n, b"<html>")),
    "no status": (INTERNAL, lambda n: begun(n) + frame(DATA, END_STREAM, n, framed(b"x"))),
    "no message": (INTERNAL, lambda n: begun(n) + headers(n, ("grpc-status", "0"), ends=True)),
    "nothing but OK": (INTERNAL, lambda n: headers(n, (":status", "200"), ("grpc-status", "0"), ends=True)),
    "two messages": (INTERNAL, lambda n: answer(n, framed(b"a") + framed(b"b"))),
    "part of a message": (INTERNAL, lambda n: answer(n, framed(b"abc")[:-1])),
    "compressed": (INTERNAL, lambda n: answer(n, framed(b"x", flag=1))),
    "too large": (RESOURCE_EXHAUSTED, lambda n: answer(n, framed(bytes(LIMIT + 1)))),
    "an unknown status": (UNKNOWN, lambda n: headers(n, (":status", "200"), ("grpc-status", "99"), ends=True)),
    "a status without a number": (UNKNOWN, lambda n: headers(n, (":status", "200"), ("grpc-status", "x"), ends=True)),
    "reset, refused": (UNAVAILABLE, lambda n: reset(n, 7)),
    "reset, cancelled": (CANCELLED, lambda n: reset(n, 8)),
    "reset, too much": (RESOURCE_EXHAUSTED, lambda n: reset(n, 11)),
    "reset, internal": (INTERNAL, lambda n: reset(n, 2)),
    "reset in the answer": (INTERNAL, lambda n: begun(n) + frame(DATA, 0, n, framed(b"abc")[:-1]) + reset(n, 2)),
    "leaving without it": (UNAVAILABLE, lambda n: goaway(0)),
    "no frame": (UNAVAILABLE, lambda n: b"\xff" * 100),
}


@pytest.mark.parametrize(("code", "make"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_answer_is_a_status_and_the_next_call_succeeds(code: int, make: Answer) -> None:
    with Scripted(make, answer) as (_, channel):
        assert failure_of(channel)[0] == code
        assert call(channel) == b"answer"


def test_a_connection_that_ended_between_two_calls_is_replaced() -> None:
    with Scripted(answer, answer, answer, closes=True) as (port, channel):
        # The end of the connection is in the same bytes as the answer, or later: then the call itself meets it.
        answers = [attempts(channel) for _ in range(3)]
    assert answers == [b"answer"] * 3
    assert port.connections >= 3


def attempts(channel: Any) -> bytes:
    """The first answer of a few calls."""
    for _ in range(5):
        with suppress(duetime_wire.Failed):
            return call(channel)
    raise AssertionError("no answer")


def test_a_server_that_leaves_gets_no_further_call() -> None:
    """The end of the connection comes with the answer: the next call must not meet it."""
    leaving: Answer = lambda n: goaway(n) + answer(n)  # noqa: E731  beside the others
    with Scripted(leaving, answer) as (port, channel):
        assert [call(channel), call(channel)] == [b"answer", b"answer"]
    assert port.connections == 2


def test_the_servers_pings_and_settings_are_answered() -> None:
    acknowledged: list[int] = []

    def pinging(connection: Connection, stream: int) -> None:
        connection.socket.sendall(frame(PING, 0, 0, b"12345678") + frame(SETTINGS, 0, 0, b"\0\4\0\0\xff\xff"))
        while len(acknowledged) < 2:
            kind, flags, _, _ = connection.next_frame()
            if kind in (PING, SETTINGS) and flags & ACK:
                acknowledged.append(kind)
        connection.socket.sendall(answer(stream))

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as threads:
        channel = duetime_wire.Channel("127.0.0.1", listener.getsockname()[1], message_bytes_max=LIMIT)
        calling = threads.submit(call, channel)
        accepted, _ = listener.accept()
        with accepted:
            connection = Connection(accepted)
            pinging(connection, connection.request())
            assert calling.result(DEADLINE_S) == b"answer"
    assert set(acknowledged) == {PING, SETTINGS}


def test_a_call_without_an_answer_in_time_ends_its_connection() -> None:
    """The connection may have been lost without a sign."""
    with Scripted(lambda n: b"", answer) as (port, channel):
        assert failure_of(channel, 0.2) == (DEADLINE_EXCEEDED, "Deadline Exceeded")
        assert call(channel) == b"answer"
    assert port.connections == 2


async def test_the_compiled_front_answers_the_compiled_client() -> None:
    native("duetime_front")
    waiting, proceed = asyncio.Event(), asyncio.Event()

    async def unary(request: bytes, context: Any) -> bytes:
        if request == b"abort":
            await context.abort(grpc.StatusCode.ABORTED, "50 % of ü\n", (("x-data-bin", b"\0\xff"),))
        if request == b"wait":
            waiting.set()
            await proceed.wait()
        return request

    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {"M": grpc.unary_unary_rpc_method_handler(unary)}
    server = Server([], 2_000)
    server.grpc.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("T", handlers)])
    await server.start("127.0.0.1", 0, front=FrontKind.COMPILED)
    channel = duetime_wire.Channel("127.0.0.1", server.port, message_bytes_max=GRPC_MESSAGE_BYTES_MAX)

    async def call(request: bytes) -> bytes:
        return bytes(await asyncio.to_thread(channel.call, "/T/M", request, DEADLINE_S, []))

    for size in (0, 1, 16_379, 65_536, GRPC_MESSAGE_BYTES_MAX):
        assert await call(bytes(size)) == bytes(size)
    with pytest.raises(duetime_wire.Failed) as caught:
        await call(b"abort")
    assert caught.value.args == (10, "50 % of ü\n", [("x-data-bin", b"\0\xff")])
    running = asyncio.create_task(call(b"wait"))
    await waiting.wait()
    stopping = asyncio.create_task(server.stop(60_000))
    proceed.set()
    assert await running == b"wait"
    await stopping
    with pytest.raises(duetime_wire.Failed) as caught:
        await call(b"x")
    assert caught.value.args[0] == UNAVAILABLE


@pytest.mark.parametrize(
    ("host", "pems"), [("a b", None), ("h", (b"no certificate", (b"", b""))), ("h", (CA_BROKEN, None))]
)
def test_unusable_arguments_are_errors_at_once(host: str, pems: Any) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        duetime_wire.Channel(host, 1, pems=pems, message_bytes_max=LIMIT)


@pytest.mark.parametrize("timeout_s", [-1.0, 1e19, 1e300, float("nan"), float("inf")])
def test_a_timeout_is_a_length(timeout_s: float) -> None:
    channel = duetime_wire.Channel("127.0.0.1", 1, message_bytes_max=LIMIT)
    with pytest.raises(ValueError, match=r"\w"):
        call(channel, timeout_s)
