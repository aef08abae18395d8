"""A cluster of the release that was killed under load is opened, and every message of it is accounted for."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from duetime import AsyncDeadLetters, AsyncPuller, AsyncReceiver
from duetime.v1 import gateway_pb2_grpc
from duetime_core.rpc.serving import make_channel
from duetime_core.testing import Cluster, FakeClock

from tests.upgrade.conftest import cluster_on
from tests.upgrade.journal import Found, Journal
from tests.upgrade.reading import read_topic, receive_all

# client.py's topic and group.
NAME = "load"


@pytest.fixture
def directory(unpack: Callable[[str], Path]) -> Path:
    return unpack("killed")


@pytest.fixture
def journal(directory: Path) -> Journal:
    """Events that the client had seen when all was killed."""
    return Journal.read((directory / "events").read_text())


@pytest.fixture
async def cluster(directory: Path, journal: Journal) -> AsyncIterator[Cluster]:
    """This version's, from the moment of the kill on."""
    clock = FakeClock(journal.killed_at_ms)
    cluster = cluster_on(directory, clock)
    starting = asyncio.create_task(cluster.__aenter__())
    try:
        # Time passes until the killed scheduler counts as dead.
        while not (await asyncio.wait({starting}, timeout=0.02))[0]:
            await clock.advance(100)
        await starting
        yield cluster
    finally:
        starting.cancel()
        await cluster.stop()


async def test_acknowledged_messages_come_once_and_not_early(cluster: Cluster, journal: Journal) -> None:
    assert sum(due_at_ms > journal.killed_at_ms for due_at_ms in journal.stored.values()) > 100
    await cluster.advance("1m")
    async with make_channel(cluster.address) as channel:
        found = await read_topic(gateway_pb2_grpc.GatewayStub(channel), NAME)  # type: ignore[no-untyped-call]
    journal.check_topic(Found(one.id, one.body, one.due_at_ms, one.stored_at_ms) for one in found)


async def test_puller_resumes_at_its_committed_offsets(cluster: Cluster, journal: Journal) -> None:
    async with AsyncPuller(cluster.address, NAME, group=f"{NAME}-readers") as puller:
        journal.check_positions(puller.positions)


async def test_group_gets_all_that_it_had_not_acknowledged(cluster: Cluster, journal: Journal) -> None:
    await cluster.advance("1m")
    async with AsyncReceiver(cluster.address, NAME, group=NAME) as receiver:
        received = {message.id for message in await receive_all(receiver)}
    async with AsyncDeadLetters(cluster.address, NAME) as letters:
        dead = {letter.id async for letter in letters.list()}
    journal.check_group(received, dead)
