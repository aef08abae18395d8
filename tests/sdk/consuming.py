"""Waits and a handler, shared by tests of consumers."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from duetime import Consumer, LeasedMessage
from duetime.client import connection

from tests.tap import WAIT_S


@asynccontextmanager
async def consuming(consumer: Consumer) -> AsyncIterator[None]:
    """Runs it during the block, within a time limit."""
    async with asyncio.timeout(WAIT_S), consumer:
        yield


async def until(condition: Callable[[], bool]) -> None:
    """Waits for a condition on this side of the wire."""
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await connection.pause(0.002)


async def nothing(message: LeasedMessage) -> None:
    """A handler."""
