"""kill -9 of every process and of the consumers at random moments: no message is lost, and none is early.

Half of the consumers use handlers, half use leases by hand, and all write down each step before they take the next
(consuming.py). In the end each message that was acknowledged to its sender was handled, or is in the dead letters.
"""

import asyncio
import os
import random
import signal
import sys
import time
from asyncio.subprocess import Process
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from duetime import AsyncProducer, Message, Receipt
from duetime.v1 import consumer_pb2, gateway_pb2, gateway_pb2_grpc
from duetime_core.rpc.serving import make_channel

from bench.processes import NAMES, Processes
from tests.crash.consuming import ACKED, BEGUN, HANDLED, LEASE_S, Step, read_steps
from tests.crash.killing import Breath, kill_one

TOPIC, GROUP, QUEUE_COUNT = "consumed", "checker", 4
DELAYS_MS = [1_000, 2_000, 3_000]
ENVIRONMENT = {
    "DUETIME_DELAY_LEVELS": "1s 2s 3s",
    "DUETIME_LOG_LEVEL": "WARNING",
    "DUETIME_STORE_SEGMENT_BYTES": str(16 * 1024 * 1024),
    "DUETIME_STORE_CHECKPOINT_MS": "1000",
    "DUETIME_SCHEDULER_LEASE_MS": "1000",
    "DUETIME_SCHEDULER_TICK_MS": "200",
}
CONSUMERS = 4
SENDERS = 4
BATCH = 64
PER_S = 800
CALL_TIMEOUT_S = 10.0
DRAIN_DEADLINE_S = 120.0


def message_count() -> int:
    """DUETIME_TEST_MESSAGES: how many messages are sent; `make kills` has 20,000."""
    return int(os.environ.get("DUETIME_TEST_MESSAGES", "10000"))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Processes]:
    processes = Processes(tmp_path, ENVIRONMENT, impatient=True)
    try:
        processes.start()
        yield processes
    finally:
        processes.stop()


class Consumers:
    """Consumer processes: killed ones are replaced by new ones."""

    def __init__(self, cluster: Processes, directory: Path, arguments: list[str], kinds: tuple[str, ...]) -> None:
        self._address = cluster.address
        self._directory = directory
        self._arguments = arguments
        self._kinds = kinds
        self._made = 0
        self.processes: list[Process] = []
        self.killed = 0

    async def start(self) -> None:
        kind = self._kinds[self._made % len(self._kinds)]
        steps = self._directory / f"{self._made}.steps"
        command = [sys.executable, "-m", "tests.crash.consuming", self._address, *self._arguments, str(steps), kind]
        with (self._directory / f"{self._made}.err").open("w") as errors:
            self.processes.append(await asyncio.create_subprocess_exec(*command, stderr=errors))
        self._made += 1

    async def kill(self, dice: random.Random) -> None:
        victim = dice.choice(self.processes)
        self.processes.remove(victim)
        assert victim.returncode is None, f"a consumer ended with {victim.returncode}: {self.errors()}"
        victim.kill()
        await victim.wait()
        self.killed += 1
        await self.start()

    async def stop(self) -> None:
        for process in self.processes:
            if process.returncode is None:
                process.send_signal(signal.SIGKILL)
            await process.wait()

    def errors(self) -> str:
        return "\n".join(path.read_text()[-2_000:] for path in sorted(self._directory.glob("*.err")))


class Senders:
    """Sends a number of messages, and records the accepted ones with their delay and time."""

    def __init__(self, address: str, count: int, dice: random.Random) -> None:
        self._address = address
        self._left = count
        # Spread over the time in which processes die.
        self._pause_s = SENDERS * BATCH / PER_S
        self._dice = dice
        self.accepted: dict[str, tuple[int, float]] = {}
        self._number = 0

    async def run(self) -> None:
        async with AsyncProducer(self._address, timeout="180s") as producer, asyncio.TaskGroup() as group:
            for _ in range(SENDERS):
                group.create_task(self._send(producer))

    async def _send(self, producer: AsyncProducer) -> None:
        while self._left > 0:
            messages = [self._message() for _ in range(min(BATCH, self._left))]
            self._left -= len(messages)
            began_ms = time.monotonic() * 1000
            for outcome, message in zip(await producer.send_many(messages, errors="return"), messages, strict=True):
                assert isinstance(outcome, Receipt), f"{message.id}: {outcome}"
                self.accepted[message.id] = (message.level or 0, began_ms)
            await asyncio.sleep(self._dice.uniform(0.0, 2 * self._pause_s))

    def _message(self) -> Message:
        self._number += 1
        kind = self._dice.choices(["good", "twice", "dead", "reject"], [92, 6, 1, 1])[0]
        level = self._dice.randint(0, len(DELAYS_MS))
        message_id = f"{kind}-{self._number}"
        return Message(TOPIC, message_id.encode(), level=level, tags=f"t{level}", id=message_id)


@pytest.mark.proof
@pytest.mark.timeout(900)
async def test_killing_anything_loses_no_message_of_a_group(
    cluster: Processes, tmp_path: Path, dice: random.Random
) -> None:
    await make_topic(cluster.address, TOPIC, QUEUE_COUNT)
    consumers = Consumers(cluster, tmp_path, [TOPIC, GROUP], ("handler", "leases"))
    senders = Senders(cluster.address, message_count(), dice)
    killed: Counter[str] = Counter()
    all_kinds = {"consumer", *NAMES}
    try:
        for _ in range(CONSUMERS):
            await consumers.start()
        sending = asyncio.create_task(senders.run())
        breath = Breath(lambda: (object() if sending.done() else len(senders.accepted),))
        while not sending.done() or killed.keys() != all_kinds:
            await asyncio.sleep(dice.uniform(0.0, 2.0))
            # Each once before any dies again.
            kinds = sorted(all_kinds - killed.keys()) or [*NAMES, *["consumer"] * 2]
            kind = dice.choice(kinds)
            await (consumers.kill(dice) if kind == "consumer" else kill_one(cluster, kind))
            killed[kind] += 1
            await breath.taken()
        await sending
        dead = await settled(cluster.address, GROUP, TOPIC)
    finally:
        await consumers.stop()
    check(senders.accepted, read_steps(tmp_path), dead)
    print(f"killed: {dict(killed)}")
    assert cluster.stop() == 0


async def make_topic(address: str, name: str, queue_count: int) -> None:
    async with make_channel(address) as channel:
        stub = gateway_pb2_grpc.GatewayStub(channel)
        request = gateway_pb2.CreateTopicRequest(name=name, queue_count=queue_count)
        await stub.CreateTopic(request, timeout=CALL_TIMEOUT_S, wait_for_ready=True)


async def settled(address: str, group: str, topic: str) -> Counter[str]:
    """The ids of the dead letters, once the group has nothing left: on lanes, in queues or in flight."""
    end = time.monotonic() + DRAIN_DEADLINE_S
    async with make_channel(address) as channel:
        stub = gateway_pb2_grpc.GatewayStub(channel)
        quiet = 0
        # Twice in a row: a message may be on its way from a queue to a lane between the two questions of one look.
        while quiet < 2:
            left = await _left(stub, group, topic)
            assert time.monotonic() < end, f"after {DRAIN_DEADLINE_S:g} s there is left: {left}"
            quiet = 0 if left else quiet + 1
            await asyncio.sleep(0.3)
        while True:
            try:
                return await _dead_letters(stub, group)
            except grpc.aio.AioRpcError as error:
                # The retry service may have been killed last, and be starting.
                if error.code() is not grpc.StatusCode.UNAVAILABLE or time.monotonic() > end:
                    raise
            await asyncio.sleep(0.3)


async def _left(stub: gateway_pb2_grpc.GatewayStub, group: str, topic: str) -> str:
    """Messages that the group has not done yet; none once all are done."""
    try:
        lanes = await stub.ListLanes(gateway_pb2.ListLanesRequest(), timeout=CALL_TIMEOUT_S)
        found = await stub.DescribeGroup(consumer_pb2.DescribeGroupRequest(name=group), timeout=CALL_TIMEOUT_S)
    except grpc.aio.AioRpcError as error:
        return str(error.details())
    if lanes.unreachable_shards or found.unreachable_shards:
        return "a shard that does not answer"
    if not any(queue.topic == topic for queue in found.queues):
        return "all: the group has no place in the topic"
    waiting = [lane for lane in lanes.lanes if lane.pending_count] + [queue for queue in found.queues if queue.lag]
    return " ".join(str(one) for one in waiting).replace("\n", " ")


async def _dead_letters(stub: gateway_pb2_grpc.GatewayStub, group: str) -> Counter[str]:
    ids: Counter[str] = Counter()
    request = consumer_pb2.ListDeadLettersRequest(filter=consumer_pb2.DeadLetterFilter(group=group), max_count=1_024)
    while True:
        answer = await stub.ListDeadLetters(request, timeout=CALL_TIMEOUT_S)
        for letter in answer.letters:
            ids[letter.message.id] += 1
            assert letter.attempts, f"{letter.message.id} is dead without an attempt"
        if not answer.next_page:
            return ids
        request.page = answer.next_page


def check(accepted: dict[str, tuple[int, float]], steps: list[Step], dead: Counter[str]) -> None:
    """The promises, from the diaries."""
    handled = Counter(step.message_id for step in steps if step.what == HANDLED)
    lost = accepted.keys() - handled.keys() - dead.keys()
    assert not lost, f"{len(lost)} messages are neither handled nor dead: {sorted(lost)[:10]}"
    unknown = (handled.keys() | dead.keys()) - accepted.keys()
    assert not unknown, f"messages that nobody sent: {sorted(unknown)[:10]}"
    doubled = {message_id: count for message_id, count in dead.items() if count > 1}
    assert not doubled, f"dead more than once: {sorted(doubled.items())[:10]}"
    for message_id in accepted:
        if message_id.startswith(("dead-", "reject-")):
            assert message_id in dead, f"{message_id} always fails and is not dead"
    check_times(accepted, steps)
    check_acknowledged(steps)
    begun = Counter(step.message_id for step in steps if step.what == BEGUN)
    again = sum(count - 1 for count in handled.values())
    print(
        f"{len(accepted)} accepted, {len(handled)} handled, {again} handled again, {len(dead)} dead, "
        f"{sum(begun.values())} deliveries"
    )


def check_times(accepted: dict[str, tuple[int, float]], steps: list[Step]) -> None:
    """No handler saw a message before its delay had passed on the sender's own clock."""
    for step in steps:
        level, began_ms = accepted[step.message_id]
        if level:
            early_ms = began_ms + DELAYS_MS[level - 1] - step.at_ms
            assert early_ms <= 0, f"{step.message_id} came {early_ms:.0f} ms early"


def check_acknowledged(steps: list[Step]) -> None:
    """Certainly acknowledged messages are not redelivered; two deliveries never carry one attempt."""
    acked: dict[str, Step] = {}
    attempts: defaultdict[str, Counter[int]] = defaultdict(Counter)
    for step in steps:
        if step.what == ACKED:
            acked[step.message_id] = step
        elif step.what == BEGUN:
            attempts[step.message_id][step.attempt] += 1
            before = acked.get(step.message_id)
            assert before is None or step.attempt <= before.attempt, f"{step} after {before}"
    twice = {message_id: counts for message_id, counts in attempts.items() if max(counts.values()) > 1}
    # A lease that was given back or lost unanswered counts no attempt; both are rare.
    assert len(twice) <= len(attempts) / 100, f"{len(twice)} of {len(attempts)} messages repeat an attempt"
    assert LEASE_S > 0
