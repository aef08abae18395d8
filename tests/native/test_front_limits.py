"""The compiled front's memory: calls, requests and answers that nobody takes wait at their client."""

import select
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from duetime_format.limits import GRPC_MESSAGE_BYTES_MAX

from tests.hostile.raw import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PING,
    SETTINGS,
    WINDOW_UPDATE,
    Raw,
    call,
    frame,
    request,
)
from tests.native.test_front import framed
from tests.twins import native

duetime_front = native("duetime_front")

DEADLINE_S = 60.0
CALL = 0
# Limits of the front.
HANDED_MAX, AHEAD_MAX = 64, 64
SHARE_BYTES = 32 * 1024 * 1024


class Fronted:
    """A front whose events the test takes."""

    def __init__(self) -> None:
        self.front = duetime_front.Front(
            connections_max=10, streams_max=10_000, metadata_bytes_max=1_000, message_bytes_max=GRPC_MESSAGE_BYTES_MAX
        )
        self.address = f"127.0.0.1:{self.front.listen('127.0.0.1', 0)}"

    def take(self) -> list[tuple[Any, ...]]:
        """The next events."""
        assert select.select([self.front.fileno()], [], [], DEADLINE_S)[0]
        events: list[tuple[Any, ...]] = self.front.take()
        return events

    def answer(self, events: list[tuple[Any, ...]], data: bytes) -> int:
        """Answers calls; returns their number."""
        numbers = [event[1] for event in events if event[0] == CALL]
        for number in numbers:
            self.front.message(number, data, False)
            self.front.finish(number, 0, "", [], False)
        self.front.flush()
        return len(numbers)

    @property
    def waiting(self) -> int:
        """Connections with a call that waits."""
        return int(self.front.figures()[0])

    @property
    def unread(self) -> int:
        """Connections of which nothing is read."""
        return int(self.front.figures()[1])

    @property
    def answer_bytes(self) -> int:
        return int(self.front.figures()[2])

    @property
    def refused(self) -> int:
        return int(self.front.figures()[3])


@pytest.fixture
def fronted() -> Iterator[Fronted]:
    found = Fronted()
    try:
        yield found
    finally:
        found.front.close()


@contextmanager
def connected(fronted: Fronted) -> Iterator[Raw]:
    raw = Raw(fronted.address)
    raw.greet()
    try:
        yield raw
    finally:
        raw.close()


def wait_until(reached: Callable[[], bool]) -> None:
    until = time.monotonic() + DEADLINE_S
    while not reached():
        assert time.monotonic() < until
        time.sleep(0.001)


def read_until(raw: Raw, expected: bytes) -> None:
    raw.socket.settimeout(DEADLINE_S)
    data = b""
    while expected not in data:
        data += raw.socket.recv(1 << 16)


def pinged(raw: Raw) -> None:
    """Returns when the front has processed all bytes so far."""
    raw.send(frame(PING, 0, 0, b"12345678"))
    read_until(raw, frame(PING, ACK, 0, b"12345678"))


def test_calls_wait_at_their_connection_and_others_come_between(fronted: Fronted) -> None:
    with connected(fronted) as flood, connected(fronted) as other:
        flood.send(b"".join(call("/T/Flood", 2 * number + 1) for number in range(1_000)))
        wait_until(lambda: fronted.waiting == 1)
        other.send(call("/T/Other", 1))
        wait_until(lambda: fronted.waiting == 2)
        methods: list[str] = []
        while "/T/Other" not in methods:
            events = fronted.take()
            assert len(events) <= HANDED_MAX
            methods += [event[3] for event in events]
        assert len(methods) <= 3 * HANDED_MAX
        while methods.count("/T/Flood") < 1_000:
            methods += [event[3] for event in fronted.take()]
        assert fronted.waiting == 0


def test_call_that_waits_ends_with_its_connection(fronted: Fronted) -> None:
    with connected(fronted) as flood:
        flood.send(b"".join(call("/T/Flood", 2 * number + 1) for number in range(1_000)))
        wait_until(lambda: fronted.waiting == 1)
    # Its remaining calls come, or end with it.
    with connected(fronted) as other:
        other.send(call("/T/Other", 1))
        events: list[tuple[Any, ...]] = []
        while "/T/Other" not in [event[3] for event in events if event[0] == CALL]:
            events += fronted.take()
    while fronted.waiting:
        fronted.front.take()


def test_requests_that_no_handler_takes_wait_in_the_window(fronted: Fronted) -> None:
    with connected(fronted) as raw:
        raw.send(call("/T/Stream", 1) + frame(DATA, 0, 1, framed(b"") * 1_000))
        [first, *others] = fronted.take()
        number, count = first[1], len(first[6]) + len(others)
        for expected in (AHEAD_MAX, AHEAD_MAX + 10):
            while count < expected:
                count += len(fronted.take())
            # The second answer comes after all that the front does because of bytes before the first.
            pinged(raw)
            pinged(raw)
            assert not select.select([fronted.front.fileno()], [], [], 0)[0]
            assert count == expected
            fronted.front.release(number, 0, 10)
            fronted.front.flush()


def test_calls_beside_too_many_unread_answers_are_refused(fronted: Fronted) -> None:
    answer = bytes(64 * 1024)
    with connected(fronted) as raw, connected(fronted) as other:
        # Streams may get nothing.
        raw.send(frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 0)))
        pinged(raw)
        count = SHARE_BYTES // len(answer)
        raw.send(b"".join(request("/T/Unary", 2 * number + 1, b"x") for number in range(count)))
        answered = 0
        while answered < count:
            answered += fronted.answer(fronted.take(), answer)
        wait_until(lambda: fronted.answer_bytes >= SHARE_BYTES)
        raw.send(request("/T/Unary", 2 * count + 1, b"x"))
        read_until(raw, frame(HEADERS, END_HEADERS | END_STREAM, 2 * count + 1)[3:])
        assert fronted.refused == 1
        other.send(request("/T/Other", 1, b"x"))
        assert fronted.answer(fronted.take(), b"") == 1
        # One answer is read.
        window = struct.pack(">I", len(answer) + 5)
        raw.send(frame(WINDOW_UPDATE, 0, 0, window) + frame(WINDOW_UPDATE, 0, 1, window))
        wait_until(lambda: fronted.answer_bytes <= SHARE_BYTES)
        raw.send(request("/T/Unary", 2 * count + 3, b"x"))
        assert fronted.answer(fronted.take(), b"") == 1
    wait_until(lambda: fronted.answer_bytes == 0)


def test_client_that_reads_nothing_is_not_read_either(fronted: Fronted) -> None:
    count, answer = 6_000, bytes(8 * 1024)
    with connected(fronted) as raw:
        window = struct.pack(">I", 2**31 - 1 - 65_535)
        raw.send(frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 2**31 - 1)) + frame(WINDOW_UPDATE, 0, 0, window))
        raw.send(b"".join(request("/T/Unary", 2 * number + 1, b"x") for number in range(count)))
        answered = 0
        while not fronted.unread and answered < count:
            if select.select([fronted.front.fileno()], [], [], 0.01)[0]:
                answered += fronted.answer(fronted.take(), answer)
        assert answered < count
        # Once it reads, the others come.
        while answered < count:
            raw.socket.recv(1 << 20)
            if select.select([fronted.front.fileno()], [], [], 0)[0]:
                answered += fronted.answer(fronted.take(), answer)
        assert not fronted.unread
