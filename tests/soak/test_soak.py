"""Hours of mixed delays on small segments that are soon deleted, with restarts: at the end every id is accounted for.

The clock is fake, so that an hour passes in seconds. DUETIME_SOAK_MINUTES is the length of the run in real time.
"""

import asyncio
import os
import random
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from duetime import AsyncProducer, AsyncPuller, Message, ReceivedMessage
from duetime_core.testing import Cluster

from tests.seeds import seed

MINUTES = float(os.environ.get("DUETIME_SOAK_MINUTES", "0.2"))
SEED = seed()
MIB = 1024 * 1024
RETENTION_MS = 120_000
# Up to an hour.
LEVEL_MAX = 17
BATCH = 500
# Segments that stay when nothing is pending.
KEPT_MAX = 3
ROUNDS_PER_RESTART = 25


@dataclass
class Account:
    """Sent and received messages."""

    due_at_ms: dict[str, int] = field(default_factory=dict)
    came: set[str] = field(default_factory=set)

    def take(self, message: ReceivedMessage) -> None:
        assert message.id not in self.came, f"{message.id} came twice"
        self.came.add(message.id)
        stored_at_ms = round(message.stored_at.timestamp() * 1000)
        assert stored_at_ms >= self.due_at_ms[message.id], f"{message.id} came early"


async def read_up(cluster: Cluster, puller: AsyncPuller, account: Account) -> None:
    """Everything that the topic holds by now."""
    ends = {queue.queue: queue.max_offset for queue in cluster.stores[0].store.queues.all() if queue.topic == "soak"}
    async with asyncio.timeout(60):
        while any(puller.positions.get(queue, 0) < end for queue, end in ends.items()):
            for message in await puller.poll(4_096, "5s"):
                account.take(message)


async def send(producer: AsyncProducer, chance: random.Random, account: Account) -> None:
    messages = [
        Message("soak", chance.randbytes(chance.choice((0, 20, 100, 2_000))), level=chance.randint(0, LEVEL_MAX))
        for _ in range(BATCH)
    ]
    for message, receipt in zip(messages, await producer.send_many(messages, errors="return"), strict=True):
        assert not isinstance(receipt, Exception), receipt
        account.due_at_ms[receipt.message_id] = (
            round(receipt.deliver_at.timestamp() * 1000) if receipt.deliver_at and message.level else 0
        )


def value(cluster: Cluster, name: str, **labels: str) -> float:
    return cluster.stores[0].registry.get_sample_value(name, labels) or 0.0


@pytest.mark.proof
@pytest.mark.timeout(MINUTES * 60 + 300)
async def test_every_id_is_accounted_for(tmp_path: Path) -> None:
    print(f"seed {SEED}, {MINUTES} minutes")
    chance, account = random.Random(SEED), Account()
    settings = {"segment_bytes": MIB, "retention_ms": RETENTION_MS, "retention_check_ms": 10_000}
    give_up = time.monotonic() + MINUTES * 60
    segments = moved = rounds = 0.0
    async with (
        Cluster(tmp_path, store_settings=settings) as cluster,
        AsyncProducer(cluster.address) as producer,
    ):
        await send(producer, chance, account)
        async with AsyncPuller(cluster.address, "soak") as puller:
            while time.monotonic() < give_up:
                await send(producer, chance, account)
                await cluster.advance(f"{chance.choice((10, 1_000, 20_000))}ms")
                await read_up(cluster, puller, account)
                rounds += 1
                if rounds % ROUNDS_PER_RESTART == 0:
                    segments += value(cluster, "duetime_store_retention_segments_total", reason="age")
                    moved += value(cluster, "duetime_store_retention_moved_total")
                    await cluster.stop_node(cluster.stores[0])
                    await cluster.start_store(0)
            for _ in range(65):
                await cluster.advance("1m")
                await read_up(cluster, puller, account)
        store = cluster.stores[0].store
        # Retention rests between its steps in real time, of which an hour on this clock leaves it little.
        async with asyncio.timeout(60):
            while (kept := (store.log.end - store.log.min_position) // MIB) > KEPT_MAX:
                await cluster.advance("1m")
                await asyncio.sleep(0.02)
        assert sum(lane.pending_count for lane in store.lanes) == 0
        assert store.quarantined_count == 0
        segments += value(cluster, "duetime_store_retention_segments_total", reason="age")
        moved += value(cluster, "duetime_store_retention_moved_total")
    print(f"{len(account.came)} messages in {rounds:.0f} rounds")
    print(f"{segments:.0f} segments left, {kept} stay, {moved:.0f} messages were appended again")
    assert account.came == set(account.due_at_ms)
    assert moved > 0
