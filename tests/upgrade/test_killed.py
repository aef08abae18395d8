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
from tests.upgrade.journal import Journal
from tests.upgrade.reading import read_topic, receive_all

# client.py's topic and group.
NAME = "load"


@pytest.fixture
def directory(unpack: Callable[[str], Path]) -> Path:
    return unpack("killed")


@pytest.fixture
def journal(directory: Path) -> Journal:
    """Events that the client had seen when all was killed."""
    return Journal.read((directory / "events").read_text().splitlines())


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
    await cluster.advance("1m")
    async with make_channel(cluster.address) as channel:
        found = await read_topic(gateway_pb2_grpc.GatewayStub(channel), NAME)  # type: ignore[no-untyped-call]
    names = [message.id for message in found]
    assert len(names) == len(set(names))
    assert journal.stored.keys() <= set(names) <= journal.sending.keys()
    assert sum(due_at_ms > journal.killed_at_ms for due_at_ms in journal.stored.values()) > 100
    for message in found:
        assert message.body.decode() == message.id
        delay_ms, began_ms = journal.sending[message.id]
        assert bool(message.due_at_ms) == bool(delay_ms)
        assert message.stored_at_ms >= began_ms + delay_ms
        assert journal.stored.get(message.id, 0) in (0, message.due_at_ms)


async def test_puller_resumes_at_its_committed_offsets(cluster: Cluster, journal: Journal) -> None:
    async with AsyncPuller(cluster.address, NAME, group=f"{NAME}-readers") as puller:
        assert journal.committed
        # The last commit may have been in flight.
        assert all(puller.positions[queue] >= offset for queue, offset in journal.committed.items())


async def test_group_gets_all_that_it_had_not_acknowledged(cluster: Cluster, journal: Journal) -> None:
    await cluster.advance("1m")
    async with AsyncReceiver(cluster.address, NAME, group=NAME) as receiver:
        received = {message.id for message in await receive_all(receiver)}
    async with AsyncDeadLetters(cluster.address, NAME) as letters:
        dead = {letter.id async for letter in letters.list()}
    done = journal.acked | journal.dead
    assert done
    assert journal.dead
    assert not done & received
    assert journal.dead <= dead <= journal.dead | journal.failing
    assert journal.stored.keys() - journal.acking - dead <= received
