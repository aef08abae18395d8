"""`make upgrade-test`: a loaded cluster of the release is stopped, or killed, and started by this version.

The release's SDK sends, pulls and consumes until its client is killed. Then this version's SDK accounts for each of its
messages: in its topic once, not early, and acknowledged, dead or delivered to its group.
"""

import asyncio
import sys
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
from duetime import AsyncDeadLetters, AsyncPuller, AsyncReceiver, ReceivedMessage

from tests.cli.cluster import run_duetime
from tests.upgrade import release
from tests.upgrade.client import LEVELS_MS
from tests.upgrade.journal import Found, Journal
from tests.upgrade.parts import SHARDS, Client, Parts

pytestmark = [pytest.mark.upgrade, pytest.mark.timeout(600)]

# client.py's topic and group.
NAME = "load"
LOAD_S = 20.0
# Longer than the longest delay and lease of the client.
DRAIN_S = 120.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Parts]:
    assert version("duetime") != release.VERSION
    with Parts(tmp_path) as cluster:
        yield cluster


@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed"])
async def test_cluster_of_the_release_is_upgraded(
    cluster: Parts, release_python: Path, tmp_path: Path, killed: bool
) -> None:
    cluster.start(release_python)
    client = Client(release_python, cluster.address, NAME, tmp_path)
    try:
        await asyncio.sleep(LOAD_S)
        if killed:
            cluster.kill()
    finally:
        client.kill()
    stopped_at_ms = time.time_ns() // 1_000_000
    if not killed:
        cluster.stop()
    journal = Journal.read(client.events.read_text())
    assert journal.refused == {}
    assert sum(due_at_ms > stopped_at_ms for due_at_ms in journal.stored.values()) > 100
    cluster.start(Path(sys.executable))
    await account(journal, cluster.address)
    cluster.stop()
    for shard in range(SHARDS):
        report = run_duetime("store", "verify", tmp_path / f"store-{shard}")
        assert report.returncode == 0, report.stdout.decode()


async def account(journal: Journal, address: str) -> None:
    """Checks topic, positions, group and dead letters against the client's journal."""
    async with AsyncPuller(address, NAME, group=f"{NAME}-readers") as readers:
        journal.check_positions(readers.positions)
    async with asyncio.timeout(DRAIN_S):
        journal.check_topic(map(found_of, await read(journal, address)))
        received = await receive(journal, address)
    async with AsyncDeadLetters(address, NAME) as letters:
        journal.check_group(received, {letter.id async for letter in letters.list()})
    print(f"{len(journal.stored)} messages, {len(journal.acked)} acknowledged before, {len(received)} delivered since")


async def read(journal: Journal, address: str) -> list[ReceivedMessage]:
    """All messages of the topic, once the acknowledged ones are there."""
    messages: list[ReceivedMessage] = []
    async with AsyncPuller(address, NAME, start="earliest") as puller:
        while journal.stored.keys() - {message.id for message in messages}:
            messages += await puller.poll(max=1_000, wait="1s")
        # Messages whose send was not answered, and second copies, come within the longest delay.
        ends_at_s = time.monotonic() + max(LEVELS_MS) / 1000
        while (left_s := ends_at_s - time.monotonic()) > 0:
            messages += await puller.poll(max=1_000, wait=f"{int(left_s * 1000) + 1}ms")
    return messages


async def receive(journal: Journal, address: str) -> set[str]:
    """The group's messages, acknowledged, until it has all that it must get, and no more come."""
    received: set[str] = set()
    async with AsyncReceiver(address, NAME, group=NAME) as receiver, AsyncDeadLetters(address, NAME) as letters:
        while True:
            got = await receiver.receive(max=1_000, wait="2s")
            assert await receiver.ack(got) == []
            received |= {message.id for message in got}
            if not got and not journal.left({letter.id async for letter in letters.list()}) - received:
                return received


def found_of(message: ReceivedMessage) -> Found:
    due_at_ms = round(message.due_at.timestamp() * 1000) if message.due_at else 0
    return Found(message.id, message.body, due_at_ms, round(message.stored_at.timestamp() * 1000))
