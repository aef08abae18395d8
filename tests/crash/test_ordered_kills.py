"""An ordered group under kill -9 of services and consumers: messages of one sharding key are handled in their order.

Each message is begun only when all before it with its key have been handled, despite any kill, and although some fail
on purpose and are redelivered.
"""

import asyncio
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from duetime import AsyncProducer, Message, Receipt
from duetime.v1 import consumer_pb2, gateway_pb2_grpc
from duetime_core.rpc.serving import make_channel

from bench.processes import NAMES, Processes
from tests.crash.consuming import BEGUN, FAILED, HANDLED, Step, read_steps
from tests.crash.killing import kill_one
from tests.crash.test_consumer_kills import CALL_TIMEOUT_S, ENVIRONMENT, Consumers, make_topic, settled

TOPIC, GROUP, QUEUE_COUNT = "ordered", "in-order", 4
KEYS = 12
SECONDS = 40.0
CONSUMERS = 3
ATTEMPTS_MAX = 1_000
LEVELS = (0, 1)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Processes]:
    processes = Processes(tmp_path, ENVIRONMENT, impatient=True)
    try:
        processes.start()
        yield processes
    finally:
        processes.stop()


async def send_in_order(address: str, end_s: float, dice: random.Random) -> Counter[str]:
    """How many messages of each key were accepted: each key's one after the other, half of the keys delayed."""
    sent: Counter[str] = Counter()
    async with AsyncProducer(address, timeout="180s") as producer:
        while time.monotonic() < end_s:
            messages = []
            for number in range(KEYS):
                key, level = f"k{number}", LEVELS[number % len(LEVELS)]
                for _ in range(dice.randint(0, 3)):
                    message_id = f"{key}-{sent[key]}"
                    messages.append(Message(TOPIC, b"", level=level, sharding_key=key, id=message_id))
                    sent[key] += 1
            for outcome in await producer.send_many(messages, errors="return"):
                assert isinstance(outcome, Receipt), outcome
            await asyncio.sleep(dice.uniform(0.0, 0.3))
    return sent


@pytest.mark.proof
@pytest.mark.timeout(600)
async def test_killing_anything_keeps_an_ordered_group_in_order(
    cluster: Processes, tmp_path: Path, dice: random.Random
) -> None:
    await make_topic(cluster.address, TOPIC, QUEUE_COUNT)
    async with make_channel(cluster.address) as channel:
        group = consumer_pb2.Group(name=GROUP, ordered=True)
        group.retry.max_attempts = ATTEMPTS_MAX
        request = consumer_pb2.CreateGroupRequest(group=group)
        await gateway_pb2_grpc.GatewayStub(channel).CreateGroup(request, timeout=CALL_TIMEOUT_S)
    consumers = Consumers(cluster, tmp_path, [TOPIC, GROUP], ("ordered",))
    try:
        for _ in range(CONSUMERS):
            await consumers.start()
        sending = asyncio.create_task(send_in_order(cluster.address, time.monotonic() + SECONDS, dice))
        while not sending.done():
            await asyncio.sleep(dice.uniform(0.5, 3.0))
            if dice.random() < 0.4:
                await consumers.kill(dice)
            else:
                await kill_one(cluster, dice.choice(NAMES))
        sent = await sending
        dead = await settled(cluster.address, GROUP, TOPIC)
    finally:
        await consumers.stop()
    assert not dead
    check_order(sent, read_steps(tmp_path))
    assert consumers.killed
    assert cluster.stop() == 0


def check_order(sent: Counter[str], steps: list[Step]) -> None:
    """Every message was handled, and none was begun before those with its key that lie before it."""
    handled: defaultdict[str, set[int]] = defaultdict(set)
    counts: Counter[str] = Counter(step.what for step in steps)
    for step in steps:
        key, _, number = step.message_id.partition("-")
        if step.what == BEGUN:
            before = set(range(int(number))) - handled[key]
            assert not before, f"{step} was begun before {sorted(before)[:10]} of its key were handled"
        elif step.what == HANDLED:
            handled[key].add(int(number))
    for key, count in sent.items():
        assert handled[key] == set(range(count)), f"{key}: {count} sent, {len(handled[key])} handled"
    print(f"{sent.total()} sent, {counts[BEGUN]} deliveries, {counts[FAILED]} failed on purpose")
    assert counts[FAILED]
