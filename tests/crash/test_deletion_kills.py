"""kill -9 of a store or the gateway while a topic is deleted under load: it goes, and nothing else does."""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from duetime import AsyncAdmin, AsyncProducer, AsyncPuller, DueTimeError, Message, NotFound

from bench.processes import Processes
from tests.crash.killing import kill_one
from tests.crash.test_cluster_kills import ENVIRONMENT

ROUNDS = 4
TOPIC, OTHER = "orders", "invoices"
DEADLINE_S = 60.0
REST_S = 0.05
# Longer than a deletion takes.
DELETING_S = 0.15


async def at_last(call: Any) -> Any:
    """The answer of a call that is made until the cluster answers it. Raises: NotFound: there is no such topic."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                return await call()
            except NotFound:
                raise
            except DueTimeError:
                await asyncio.sleep(REST_S)


async def sends(producer: AsyncProducer, sent: list[str], stop: asyncio.Event) -> None:
    """To another topic, one after the other, each until its answer comes."""
    number = 0
    while not stop.is_set():
        number += 1
        one = f"other-{number}"
        await at_last(lambda one=one: producer.send(OTHER, b"body", id=one))
        sent.append(one)


async def deletes(admin: AsyncAdmin) -> None:
    """Until it is gone. An attempt whose answer was lost may have done it."""
    try:
        await at_last(lambda: admin.delete_topic(TOPIC, force=True))
    except NotFound:
        return


async def read(address: str, topic: str, count: int) -> list[str]:
    """The ids of a topic's first messages, and of those that come right after them."""
    found: list[str] = []
    async with asyncio.timeout(DEADLINE_S), AsyncPuller(address, topic, start="earliest") as puller:
        while len(found) < count:
            found += [message.id for message in await puller.poll(max=1_000, wait="1s")]
        found += [message.id for message in await puller.poll(max=1_000, wait="100ms")]
    return found


@pytest.mark.proof
@pytest.mark.timeout(300)
async def test_a_deletion_that_is_killed_ends_and_takes_nothing_else(tmp_path: Path, dice: random.Random) -> None:
    others: list[str] = []
    stop = asyncio.Event()
    with Processes(tmp_path, ENVIRONMENT, impatient=True) as cluster:
        async with (
            AsyncAdmin(cluster.address) as admin,
            AsyncProducer(cluster.address) as producer,
            asyncio.TaskGroup() as tasks,
        ):
            await admin.create_topic(OTHER)
            tasks.create_task(sends(producer, others, stop))
            for round_ in range(ROUNDS):
                await at_last(lambda: admin.create_topic(TOPIC))
                ids = [f"{round_}-{number}" for number in range(20)]
                messages = [
                    Message(TOPIC, b"body", id=one, delay="1h" if number % 2 else None)
                    for number, one in enumerate(ids)
                ]
                await at_last(lambda messages=messages: producer.send_many(messages, errors="return"))
                assert sorted(await read(cluster.address, TOPIC, 10)) == sorted(ids[::2])
                deleting = tasks.create_task(deletes(admin))
                await asyncio.sleep(dice.uniform(0, DELETING_S))
                await kill_one(cluster, dice.choice(["store", "gateway"]))
                await deleting
                with pytest.raises(NotFound):
                    await at_last(lambda: admin.topic(TOPIC))
                left = await at_last(admin.backlog)
                assert left.pending == 0
            stop.set()
        assert sorted(await read(cluster.address, OTHER, len(others))) == sorted(others)
        assert cluster.stop() == 0
