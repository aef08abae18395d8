"""kill -9 of the webhook worker, the gateway, the store and the retry service while a receiver counts requests.

Each message is posted to each webhook at least once, or is in the dead letters of its group; none is lost.
"""

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from duetime import AsyncAdmin, AsyncWebhooks

from bench.processes import WEBHOOKS, Processes
from tests.crash.killing import Breath, kill_one
from tests.crash.test_consumer_kills import (
    ENVIRONMENT,
    QUEUE_COUNT,
    TOPIC,
    Senders,
    make_topic,
    message_count,
    settled,
)
from tests.webhooks.receiver import OK, Answer, Received, Receiver

# The webhooks, each with a group of its name.
NAMES = ("first", "second")
KILLED = (WEBHOOKS, "gateway", "store", "retry")
WORKER = {
    "DUETIME_UP_WEBHOOKS": "1",
    "DUETIME_WEBHOOKS_PERMITTED_NETWORKS": "127.0.0.1",
    "DUETIME_WEBHOOKS_ALLOW_HTTP": "1",
    # The wait for messages of a killed worker.
    "DUETIME_WEBHOOKS_LEASE_MS": "5000",
}


class Counts:
    """Answers by the kind in a message's id, and counts its requests by webhook."""

    def __init__(self) -> None:
        self.requests: dict[str, Counter[str]] = defaultdict(Counter)
        self.delivered: dict[str, Counter[str]] = defaultdict(Counter)
        self.total = 0

    def answer(self, received: Received) -> Answer:
        webhook, message_id = received.path.strip("/"), received.headers["webhook-id"]
        self.total += 1
        self.requests[webhook][message_id] += 1
        kind = message_id.partition("-")[0]
        if kind in ("dead", "reject"):
            return Answer(422, body=b"no such order")
        if kind == "twice" and self.requests[webhook][message_id] == 1:
            return Answer(503, (("retry-after", "1"),))
        self.delivered[webhook][message_id] += 1
        return OK


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Processes]:
    with Processes(tmp_path, ENVIRONMENT | WORKER, impatient=True) as cluster:
        yield cluster


async def create(cluster: Processes, receiver: Receiver) -> None:
    await make_topic(cluster.address, TOPIC, QUEUE_COUNT)
    async with AsyncAdmin(cluster.address) as admin, AsyncWebhooks(cluster.address) as webhooks:
        for name in NAMES:
            await admin.create_group(name, backoff="1s", max_attempts=4)
            url = receiver.url(f"/{name}", host="127.0.0.1")
            await webhooks.create(name, topic=TOPIC, group=name, url=url, concurrency=32)
            assert (await webhooks.test(name, wait="60s")).status == 200


async def killed_while(
    cluster: Processes, sending: "asyncio.Task[None]", counts: Counts, dice: random.Random
) -> Counter[str]:
    """Kills random processes, each once at first, until all messages are sent."""
    killed: Counter[str] = Counter()
    breath = Breath(lambda: (object() if sending.done() else counts.total,))
    while not sending.done() or killed.keys() != set(KILLED):
        await asyncio.sleep(dice.uniform(0.0, 2.0))
        name = dice.choice([one for one in KILLED if one not in killed] or KILLED)
        await kill_one(cluster, name)
        killed[name] += 1
        await breath.taken()
    return killed


async def run(cluster: Processes, count: int, dice: random.Random) -> None:
    counts = Counts()
    async with Receiver() as receiver:
        receiver.answer = counts.answer
        await create(cluster, receiver)
        for kept in (counts.requests, counts.delivered):
            # Those of the tests.
            kept.clear()
        senders = Senders(cluster.address, count, dice)
        sending = asyncio.create_task(senders.run())
        killed = await killed_while(cluster, sending, counts, dice)
        await sending
        dead = {name: await settled(cluster.address, name, TOPIC) for name in NAMES}
    for name in NAMES:
        check(name, senders.accepted.keys(), counts, dead[name])
    print(f"killed: {dict(killed)}")
    assert cluster.stop() == 0


def check(name: str, accepted: Iterable[str], counts: Counts, dead: Counter[str]) -> None:
    sent, delivered = set(accepted), counts.delivered[name]
    lost = sent - delivered.keys() - dead.keys()
    assert not lost, f"{name}: {len(lost)} messages are neither delivered nor dead: {sorted(lost)[:10]}"
    assert counts.requests[name].keys() | dead.keys() <= sent
    assert {one for one in sent if one.startswith(("dead-", "reject-"))} <= dead.keys()
    assert max(dead.values(), default=1) == 1
    again = sum(number - 1 for number in delivered.values())
    print(f"{name}: {len(sent)} accepted, {len(delivered)} delivered, {again} delivered again, {len(dead)} dead")


async def test_a_kill_of_each_process_loses_no_webhook_message(cluster: Processes, dice: random.Random) -> None:
    await run(cluster, 400, dice)


@pytest.mark.proof
@pytest.mark.timeout(900)
async def test_killing_anything_loses_no_webhook_message(cluster: Processes, dice: random.Random) -> None:
    await run(cluster, message_count(), dice)
