"""Clients of other hosts: loopback addresses other than 127.0.0.1, from which a forwarder connects."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

GREEDY, OTHER = "127.0.0.2", "127.0.0.3"


@asynccontextmanager
async def seen_from(host: str, port: int) -> AsyncIterator[str]:
    """An address whose connections reach the port on 127.0.0.1 from `host`."""
    tasks: list[asyncio.Task[None]] = []
    writers: set[asyncio.StreamWriter] = set()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.add(writer)
        there, back = await asyncio.open_connection("127.0.0.1", port, local_addr=(host, 0))
        writers.add(back)
        await asyncio.gather(_copy(reader, back), _copy(there, writer))

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.append(asyncio.create_task(forward(reader, writer)))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for writer in writers:
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for writer in writers), return_exceptions=True)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.close()
