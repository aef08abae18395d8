"""Packs, streams and lone sends under kill -9 of gateways and stores: each acknowledged message is stored once, each
answered with an error at most once, and ordered messages keep their order.

stored = acknowledged, and some of those whose answers were lost for good
"""

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from duetime import AsyncProducer, DueTimeError, Message, Outcomes, Producer, Receipt
from duetime.v1 import message_pb2

from bench.processes import Processes
from tests.crash.contents import drain
from tests.crash.killing import kill_one
from tests.crash.pulling import pulled
from tests.crash.test_cluster_kills import ENVIRONMENT

KILLS = 8
SENDERS = 3
PACK = 700
ORDERED = 400
THREADS = 8
DRAIN_S = 90.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Processes]:
    processes = Processes(tmp_path, ENVIRONMENT, impatient=True)
    try:
        processes.start()
        yield processes
    finally:
        processes.stop()


class Told:
    """Outcomes reported to the producers: the id by body, or None for an error."""

    def __init__(self) -> None:
        self.ids: dict[bytes, str | None] = {}
        self.over = asyncio.Event()

    def note(self, bodies: list[bytes], outcomes: "list[Receipt | DueTimeError] | Outcomes") -> None:
        assert len(bodies) == len(outcomes)
        for body, outcome in zip(bodies, outcomes, strict=True):
            if isinstance(outcome, DueTimeError):
                assert outcome.retriable, outcome
            self.ids[body] = outcome.message_id if isinstance(outcome, Receipt) else None

    async def send_bodies(self, producer: AsyncProducer, sender: int, delay: str | None) -> None:
        round_ = 0
        while not self.over.is_set():
            bodies = [f"b{sender}-{round_}-{n}".encode() for n in range(PACK)]
            self.note(bodies, await producer.send_many("packs", bodies=bodies, delay=delay, errors="return"))
            round_ += 1

    async def send_ordered(self, producer: AsyncProducer) -> None:
        """Messages of one key, more than a request has, beside some that are alike."""
        number = 0
        while not self.over.is_set():
            ordered = [Message("packs", f"o-{number + n}".encode(), sharding_key="one") for n in range(ORDERED)]
            alike = [Message("packs", f"a-{number + n}".encode(), tags="alike") for n in range(ORDERED)]
            messages = ordered + alike
            self.note([one.body for one in messages], await producer.send_many(messages, errors="return"))
            number += ORDERED

    def send_from_thread(self, producer: Producer, thread: int) -> None:
        number = 0
        while not self.over.is_set():
            body = f"t{thread}-{number}".encode()
            try:
                self.note([body], [producer.send("packs", body)])
            except DueTimeError as error:
                self.note([body], [error])
            number += 1


@pytest.mark.proof
@pytest.mark.timeout(300)
async def test_killed_gateways_and_stores_lose_and_double_nothing_that_travels_in_packs(
    cluster: Processes, dice: random.Random
) -> None:
    told = Told()
    with Producer(cluster.address, timeout="60s") as plain, Producer(cluster.address, timeout="60s") as alone:
        async with AsyncProducer(cluster.address, timeout="60s") as producer, asyncio.TaskGroup() as tasks:
            for sender in range(SENDERS):
                tasks.create_task(told.send_bodies(producer, sender, ("1s", None, "700ms")[sender]))
            tasks.create_task(told.send_ordered(producer))
            for thread in range(THREADS):
                tasks.create_task(asyncio.to_thread(told.send_from_thread, plain, thread))
            # Its messages go out by blocking calls in its own thread.
            tasks.create_task(asyncio.to_thread(told.send_from_thread, alone, THREADS))
            for _ in range(KILLS):
                await asyncio.sleep(dice.uniform(0.3, 2.0))
                await kill_one(cluster, dice.choice(("gateway", "gateway", "store")))
            told.over.set()
    await drain(cluster.address, DRAIN_S)
    check(told, await pulled(cluster.address, "packs"))
    assert cluster.stop() == 0


def check(told: Told, found: list[message_pb2.StoredMessage]) -> None:
    counts = Counter(one.body for one in found)
    doubled = {body: count for body, count in counts.items() if count > 1}
    assert not doubled, f"{len(doubled)} are there more than once: {sorted(doubled.items())[:10]}"
    stored = {one.body: one.id for one in found}
    acknowledged = {body: message_id for body, message_id in told.ids.items() if message_id is not None}
    lost = acknowledged.keys() - stored.keys()
    assert not lost, f"{len(lost)} acknowledged messages are lost: {sorted(lost)[:10]}"
    wrong = [body for body, message_id in acknowledged.items() if stored[body] != message_id]
    assert not wrong, f"ids told of other messages: {wrong[:10]}"
    assert not stored.keys() - told.ids.keys(), "messages that nobody sent"
    numbers = [int(one.body[2:]) for one in found if one.body.startswith(b"o-")]
    assert numbers == sorted(numbers), "messages of one key are out of order"
    print(f"{len(acknowledged)} acknowledged, {len(told.ids) - len(acknowledged)} errors, {len(found)} stored")
    assert acknowledged
