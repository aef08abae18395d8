"""Connections: hosts share them, and slow heads, bodies and readers are ended."""

import asyncio
import socket
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import cast

import pytest
from duetime_console.connections import HEAD_MS, STILL_MS, SWEEP_MS, ConsoleConnection
from duetime_core.clock import turn
from duetime_core.testing import Cluster, FakeClock

from tests.certified import Certified
from tests.console.console import Browser, running

HEAD = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"
POST = b"POST /healthz HTTP/1.1\r\nhost: localhost\r\n"
Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Guests:
    """The raw connections to a console."""

    def __init__(self, browser: Browser, stack: ExitStack) -> None:
        self.browser = browser
        self._stack = stack

    async def connect(self, said: bytes = b"", host: str = "127.0.0.1") -> Pair:
        address = self.browser.client.base_url
        reader, writer = await asyncio.open_connection(address.host, address.port, local_addr=(host, 0))
        self._stack.callback(writer.close)
        self._stack.callback(writer.transport.abort)
        writer.write(said)
        return reader, writer

    @property
    def held(self) -> list[ConsoleConnection]:
        """All connections that the console holds."""
        return [one for each in self.browser.console._connections._held.values() for one in each]

    async def until(self, state: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not state():
                await turn()


@asynccontextmanager
async def guests_of(browser: Browser) -> AsyncIterator[Guests]:
    with ExitStack() as stack:
        yield Guests(browser, stack)
    await turn()


@asynccontextmanager
async def console(clock: FakeClock | None = None) -> AsyncIterator[Guests]:
    # No cluster is needed: nothing here is asked of it.
    async with (
        running("127.0.0.1:1", clock or FakeClock(), connections_max=64) as browser,
        guests_of(browser) as guests,
    ):
        yield guests


async def answered(pair: Pair) -> bool:
    """Whether it is answered before it is ended."""
    try:
        return b"serving" in await pair[0].readuntil(b"serving\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return False


async def ended(pair: Pair) -> bytes:
    """The answer before its end."""
    try:
        return await pair[0].read()
    except ConnectionError:
        return b""


async def test_silent_connections_of_one_host_exclude_no_other() -> None:
    async with console() as guests:
        for _ in range(200):
            await guests.connect(host="127.0.0.2")
        assert await answered(await guests.connect(HEAD, host="127.0.0.3"))
        assert await answered(await guests.connect(HEAD, host="127.0.0.2"))
        assert len(guests.held) <= 64


async def test_silent_connections_of_many_hosts_make_room_for_a_new_one() -> None:
    async with console() as guests:
        for number in range(1, 129):
            await guests.connect(host=f"127.0.1.{number}")
        assert await answered(await guests.connect(HEAD, host="127.0.0.3"))
        assert len(guests.held) <= 64


async def test_connection_that_ends_releases_its_place() -> None:
    async with console() as guests:
        for _ in range(3):
            pairs = [await guests.connect(HEAD) for _ in range(50)]
            assert all([await answered(pair) for pair in pairs])
            for _, writer in pairs:
                writer.close()
            await guests.until(lambda: not guests.held)


async def test_silent_tls_connection_takes_little_memory(tmp_path: Path) -> None:
    files = Certified(tmp_path).issue("console")
    options = {"tls_cert_file": str(files.cert), "tls_key_file": str(files.key)}
    async with running("127.0.0.1:1", FakeClock(), **options) as browser, guests_of(browser) as guests:
        await guests.connect()
        await guests.until(lambda: len(guests.held) == 1)
        tracemalloc.start()
        for _ in range(20):
            await guests.connect()
        await guests.until(lambda: len(guests.held) == 21)
        size, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert size < 20 * 128 * 1024


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\n", HEAD + b"GET /healthz"])
async def test_head_has_a_time_limit(said: bytes) -> None:
    clock = FakeClock()
    async with console(clock) as guests:
        pair = await guests.connect(said)
        if said.startswith(HEAD):
            assert await answered(pair)
        await guests.until(lambda: bool(guests.held) and guests.held[0]._received == len(said))
        await clock.advance(HEAD_MS + 3 * SWEEP_MS)
        assert not guests.held
        await ended(pair)


async def test_body_has_a_lowest_rate() -> None:
    clock = FakeClock()
    async with console(clock) as guests:
        slow = await guests.connect(POST + b"content-length: 1000000\r\n\r\n")
        quick = await guests.connect(POST + b"content-length: 1000000\r\n\r\n" + b"x" * 500_000)
        await guests.until(lambda: sum(one._received for one in guests.held) > 500_000)
        for _ in range(STILL_MS // SWEEP_MS + 3):
            slow[1].write(b"x")
            quick[1].write(b"x" * 20_000)
            await clock.advance(SWEEP_MS)
        await ended(slow)
        assert [one._received > 500_000 for one in guests.held] == [True]


async def test_reader_that_takes_nothing_is_ended() -> None:
    clock = FakeClock()
    async with console(clock) as guests:
        _, writer = await guests.connect()
        # No more is read, and the kernel holds little.
        transport = cast("asyncio.Transport", writer.transport)
        transport.pause_reading()
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        writer.write(b"GET /static/vendor/htmx.min.js HTTP/1.1\r\nhost: localhost\r\n\r\n" * 200)
        await guests.until(lambda: any(one.transport and one.transport.get_write_buffer_size() for one in guests.held))
        await clock.advance(STILL_MS + 60 * SWEEP_MS)
        assert not guests.held


async def test_body_of_tiny_chunks_is_rejected() -> None:
    async with (
        Cluster(within=True) as cluster,
        running(cluster.address) as browser,
        guests_of(browser) as guests,
    ):
        head = b"POST /api/v1/messages HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        pair = await guests.connect(head + b"transfer-encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 2_000)
        assert b"400" in (await ended(pair)).splitlines()[0]


async def test_wrong_chunks_after_the_answer_end_the_connection() -> None:
    async with console() as guests:
        reader, writer = await guests.connect(POST + b"transfer-encoding: chunked\r\n\r\n")
        assert b"405" in await reader.readuntil(b"\r\n\r\n")
        writer.write(b"no chunk\r\n")
        await guests.until(lambda: not guests.held)
