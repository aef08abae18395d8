"""Floods of connections, streams, metadata and frames: memory stays bounded, and another client is served."""

import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest

from tests.hostile.bystander import Bystander
from tests.hostile.raw import HEADERS, PING, SETTINGS, Raw, call, frame, request
from tests.hostile.rig import GATEWAY_MB_MAX, Rig, told

CONTINUATION, RST_STREAM = 9, 3
SECONDS, SECONDS_LONG = 2.0, 20.0
SEND, WATCH = "/duetime.v1.Gateway/Send", "/grpc.health.v1.Health/Watch"
# Limit for another client's sends, at the median: the larger of a second, and of this multiple of its time before.
SEND_MS_MAX, SEND_TIMES_MAX = 1_000.0, 40


def _opened(raw: Raw) -> None:
    """Streams that begin a Send and never end it."""
    raw.send(b"".join(call(SEND, 2 * number + 1) for number in range(1_000)))


def _watched(raw: Raw) -> None:
    """Health's streams, which no other limit counts."""
    raw.send(b"".join(request(WATCH, 2 * number + 1, b"") for number in range(1_000)))


def _reset(raw: Raw) -> None:
    begun = (call(SEND, 2 * number + 1) + frame(RST_STREAM, 0, 2 * number + 1, bytes(4)) for number in range(1_000))
    raw.send(b"".join(begun))


def _pinged(raw: Raw) -> None:
    raw.send(frame(PING, 0, 0, b"12345678") * 1_000)


def _set(raw: Raw) -> None:
    raw.send(frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 65_535)) * 1_000)


def _continued(raw: Raw) -> None:
    raw.send(frame(HEADERS, 0, 1, b"\0\1b\1c") + frame(CONTINUATION, 0, 1, b"\0\1a\x7e" + b"x" * 126) * 1_000)


def _described(raw: Raw) -> None:
    """Metadata of 60 KB in each of many calls."""
    field = b"\0\1a\x7f\x81\x76" + b"x" * 15_000
    begun = call(SEND, 1)[9:]
    raw.send(b"".join(frame(HEADERS, 4, 2 * number + 1, begun + field) for number in range(100)))


def _connected(raw: Raw) -> None:
    """Connections that end once they have begun."""
    raise ConnectionAbortedError


FLOODS = [_opened, _watched, _reset, _pinged, _set, _continued, _described, _connected]


@contextmanager
def flooded(address: str, use: Callable[[Raw], None], connections: int) -> Iterator[None]:
    """While the body runs, `count` connections send, and are replaced when they are ended; they read nothing."""
    ended = threading.Event()

    def flood() -> None:
        while not ended.is_set():
            with suppress(OSError):
                raw = Raw(address, "127.0.0.9")
                raw.socket.settimeout(0.5)
                try:
                    raw.greet()
                    while not ended.wait(0.01):
                        use(raw)
                finally:
                    raw.close()

    threads = [threading.Thread(target=flood) for _ in range(connections)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def suffer(rig: Rig, use: Callable[[Raw], None], connections: int, seconds: float) -> None:
    gateway = rig.gateways[0]
    with Bystander(rig.address) as beside:
        before = beside.measure(1.0)
        with flooded(rig.address, use, connections):
            during = beside.measure(seconds)
            told(flood=use.__name__, rss_mb=gateway.rss_mb, cut=gateway.metrics()["duetime_connections_cut_total"])
        told(before=before)
        told(during=during)
        assert gateway.rss_mb < GATEWAY_MB_MAX
        assert during.errors == {}
        assert 0 < during.send_p50 < max(SEND_MS_MAX, SEND_TIMES_MAX * before.send_p50)


@pytest.mark.proof
def test_short_floods_of_every_kind_take_little_memory_and_nobody_elses_calls(start: Callable[..., Rig]) -> None:
    rig = start()
    for use in FLOODS:
        suffer(rig, use, 2, 0.5)


@pytest.mark.proof
@pytest.mark.parametrize("use", FLOODS, ids=lambda use: use.__name__.strip("_"))
def test_long_floods_take_little_memory_and_nobody_elses_calls(
    start: Callable[..., Rig], use: Callable[[Raw], None]
) -> None:
    suffer(start(), use, 16, SECONDS_LONG)


@pytest.mark.proof
def test_a_host_with_all_connections_leaves_some_to_others(start: Callable[..., Rig]) -> None:
    rig = start({"gateway": {"connections_max": 40}})
    with ExitStack() as ends, Bystander(rig.address) as beside:
        for _ in range(100):
            raw = Raw(rig.address, "127.0.0.9")
            ends.callback(raw.close)
            with suppress(OSError):
                raw.greet()
        deadline = time.monotonic() + 20
        while (open_now := rig.gateways[0].metrics()["duetime_connections"]) > 37 and time.monotonic() < deadline:
            time.sleep(0.2)
        told(connections=open_now)
        with Bystander(rig.address, "newcomer") as newcomer:
            phase = newcomer.measure(SECONDS)
        assert phase.sent > 10
        assert phase.errors == {}
        assert beside.phase().errors == {}
