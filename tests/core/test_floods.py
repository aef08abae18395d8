"""Frames that none of our clients sends: gRPC's own bounds, and those set by our options."""

import asyncio
import resource
import struct
from collections.abc import AsyncIterator

import grpc
import pytest
from duetime_core.limits.shedding import ConnectionShedder
from duetime_core.rpc.serving import METADATA_BYTES_MAX, PROBES_IN_FLIGHT_MAX
from duetime_core.testing import FakeClock

from tests import fronts
from tests.core.test_traffic import DEADLINE_S, Served, serving
from tests.hostile.raw import HEADERS, PING, SETTINGS, Raw, call, frame, request

pytestmark = fronts.both

CONTINUATION, RST_STREAM = 9, 3
MIB = 1024 * 1024
# Answer of a call with four bytes: their number, as a message.
ANSWER = b"\0\0\0\0\x014"
# Memory limit for the frames of a flood that gRPC keeps.
GROWTH_MB_MAX = 64


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with serving(connections_max=20) as one:
        yield one


def sent(raw: Raw, frames: bytes, times: int) -> bool:
    """Sends them as long as the server takes them; whether it took all."""
    try:
        for _ in range(times):
            raw.send(frames)
    except OSError:
        return False
    return True


def is_served(raw: Raw) -> bool:
    """Whether a call of this connection is answered; else the server has ended the connection."""
    raw.socket.settimeout(DEADLINE_S)
    try:
        raw.send(request("/T/Put", 1, b"four"))
        told = b""
        while ANSWER not in told:
            if not (data := raw.socket.recv(1 << 16)):
                return False
            told += data
    except ConnectionError:
        return False
    return True


async def grown_mb(served: Served, frames: bytes, times: int) -> int:
    """By how much the process grows while it is sent these; another client is served meanwhile."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    raw = served.raw()
    raw.socket.settimeout(2.0)
    flood = asyncio.create_task(asyncio.to_thread(sent, raw, frames, times))
    async with grpc.aio.insecure_channel(served.address) as channel:
        put = channel.unary_unary("/T/Put")
        while not flood.done():
            assert await put(b"12", timeout=DEADLINE_S) == b"2"
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024


RESETS = (request("/T/Put", 2 * n + 1, b"x") + frame(RST_STREAM, 0, 2 * n + 1, bytes(4)) for n in range(2_000))
FLOODS = {
    "settings": (frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 65_535)) * 1_000, 60),
    "pings": (frame(PING, 0, 0, b"12345678") * 1_000, 60),
    "resets": (b"".join(RESETS), 1),
    "continuations": (frame(CONTINUATION, 0, 1, b"\0\1a\x7e" + b"x" * 126) * 1_000, 60),
    "metadata": (call("/T/Put", 1)[:-1], 1),
}


@pytest.mark.parametrize("kind", FLOODS)
async def test_a_flood_of_frames_takes_little_memory_and_no_other_clients_turn(served: Served, kind: str) -> None:
    frames, times = FLOODS[kind]
    if kind == "continuations":
        frames = frame(HEADERS, 0, 1, b"\0\1b\1c") + frames
    assert await grown_mb(served, frames, times) < GROWTH_MB_MAX


async def test_pings_at_any_rate_are_answered_and_end_no_connection(served: Served) -> None:
    raw = served.raw()
    assert await asyncio.to_thread(sent, raw, frame(PING, 0, 0, b"12345678") * 1_000, 2)
    assert await asyncio.to_thread(is_served, raw)


async def test_a_call_with_too_much_metadata_is_refused(served: Served) -> None:
    async with grpc.aio.insecure_channel(served.address) as channel:
        put = channel.unary_unary("/T/Put")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await put(b"1", timeout=DEADLINE_S, metadata=(("a", "x" * METADATA_BYTES_MAX),))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await put(b"1", timeout=DEADLINE_S, metadata=(("a", "x" * 8_000),)) == b"1"


async def test_a_connection_bounds_streams_and_the_next_one_waits(served: Served) -> None:
    most = 100 + PROBES_IN_FLIGHT_MAX
    raw = served.raw()
    told = b""
    while b"\x00\x03" + struct.pack(">I", most) not in told:
        told += await asyncio.to_thread(raw.socket.recv, 1 << 12)


async def test_connections_beyond_the_limit_are_not_let_in(served: Served) -> None:
    raws = [served.raw() for _ in range(25)]
    # Not in the order in which they came: several are let in at once.
    served_count = sum([await asyncio.to_thread(is_served, raw) for raw in raws])
    # The server's own look may have ended those of the last tenth.
    assert 18 <= served_count <= 20


async def test_a_host_with_many_connections_leaves_some_to_others(served: Served) -> None:
    shedding = ConnectionShedder(served.traffic, FakeClock())
    shedding.start(served.server.port)
    shedding.stop()
    for host, count in (("127.0.0.2", 18), ("127.0.0.3", 1), ("127.0.0.4", 1)):
        for _ in range(count):
            served.raws.append(Raw(served.address, host))
            served.raws[-1].greet()
            await asyncio.to_thread(served.raws[-1].socket.recv, 1)
    shedding.share()
    assert served.traffic.cut_count == 2
    served_ones = [await asyncio.to_thread(is_served, raw) for raw in served.raws]
    assert served_ones == [True] * 16 + [False] * 2 + [True] * 2
    shedding.share()
    assert served.traffic.cut_count == 2
    shown = {sample.name: sample.value for metric in shedding.collect() for sample in metric.samples}
    assert shown == {"duetime_connections": 18, "duetime_connections_max": 20}
