"""A shard of three processes whose connections to each other pass relays, one for each direction.

    copy 1 ──▶ relay 1 to 2 ──▶ copy 2        a stream of messages of copy 1; the answers of copy 2 have no content
    copy 2 ──▶ relay 2 to 1 ──▶ copy 1

A cut relay passes nothing and ends no connection, as a network that drops all packets. It passes the rest when it is
whole again. No rights are needed, unlike for network namespaces.
"""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Self

from tests.copies.processes import Trio

PIECE_BYTES = 64 * 1024
Way = tuple[int, int]


class Relay:
    """Passes connections on to a port of this machine."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._is_open = asyncio.Event()
        self._is_open.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def cut(self) -> None:
        self._is_open.clear()

    def heal(self) -> None:
        self._is_open.set()

    async def close(self) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            await self._is_open.wait()
            # A copy that is not there refuses; a connection ends in the middle of bytes when a process is killed.
            with suppress(OSError):
                await self._connect(reader, writer)
        finally:
            writer.close()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_reader, to_writer = await asyncio.open_connection("127.0.0.1", self._target)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass(reader, to_writer))
                group.create_task(self._pass(to_reader, writer))
        finally:
            to_writer.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(PIECE_BYTES):
                await self._is_open.wait()
                writer.write(data)
                await writer.drain()
        writer.close()


class RelayedTrio(Trio):
    """`ahead_ms`: by number, how far the wall clock of a copy is ahead."""

    def __init__(self, root: Path, ahead_ms: dict[int, int], **settings: str) -> None:
        super().__init__(root, **settings)
        self._ahead_ms = ahead_ms
        ways = [(one, other) for one in self.numbers for other in self.numbers if one != other]
        self.relays: dict[Way, Relay] = {way: Relay(self.peer_ports[way[1]]) for way in ways}

    async def __aenter__(self) -> Self:
        for relay in self.relays.values():
            await relay.start()
        await super().__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await super().__aexit__(*error)
        for relay in self.relays.values():
            await relay.close()

    def copies_of(self, number: int) -> str:
        ports = {other: relay.port for (one, other), relay in self.relays.items() if one == number}
        return ",".join(f"{member}=127.0.0.1:{port}" for member, port in {**self.peer_ports, **ports}.items())

    def program_of(self, number: int) -> list[str]:
        ahead_ms = self._ahead_ms.get(number, 0)
        return ["tests.copies.skewed", str(ahead_ms)] if ahead_ms else super().program_of(number)

    def cut(self, ways: Iterable[Way]) -> None:
        for way in ways:
            self.relays[way].cut()

    def heal(self) -> None:
        for relay in self.relays.values():
            relay.heal()
