"""Fake gateways for tests of what blocks."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.sdk.fake_gateway import FakeGateway


@contextmanager
def served(gateway: FakeGateway) -> Iterator[asyncio.AbstractEventLoop]:
    """Starts and stops the gateway on an event loop in a thread of its own, which it gives."""
    started = threading.Event()
    ends: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def serve() -> None:
        end = asyncio.Event()
        await gateway.start()
        ends.append((asyncio.get_running_loop(), end))
        started.set()
        await end.wait()
        await gateway.stop()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert started.wait(10)
    loop, end = ends[0]
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(end.set)
        thread.join()
