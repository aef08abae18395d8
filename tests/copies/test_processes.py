"""A shard of three real processes: see kills.py."""

import asyncio
import os
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from duetime import AsyncProducer, AsyncPuller
from duetime_core.clock import SystemClock
from duetime_core.metadata import upgrade
from duetime_core.together import node_class

from tests.copies.kills import run_faults
from tests.copies.processes import DEADLINE_S, Trio
from tests.seeds import seed
from tests.twins import native

native("duetime_raft")

# `make copies-kills` has 60.
FAULTS_COUNT = int(os.environ.get("DUETIME_TEST_KILLS", "6"))


@pytest.mark.timeout(300 + 40 * FAULTS_COUNT)
async def test_copies_lose_nothing_answered_when_processes_end_and_stop(tmp_path: Path) -> None:
    print(f"DUETIME_TEST_SEED={seed()}")
    run = await run_faults(tmp_path, random.Random(seed()), FAULTS_COUNT)
    assert run.faults == FAULTS_COUNT
    assert run.leased
    assert run.ledger.restored > 0
    took = sorted(run.takeovers_s)
    print(
        f"{run.faults} faults, {sum(run.ledger.sent)} records, {run.ledger.restored} restored, {len(run.leased)} "
        f"leased; takeovers median {took[len(took) // 2]:.2f} s, longest {took[-1]:.2f} s; {run.entries} equal entries"
    )


@pytest.mark.timeout(300)
async def test_cluster_follows_the_leader_of_a_shard(tmp_path: Path) -> None:
    """Senders of delayed messages notice no more than a pause; each message is delivered once, and none early."""
    url = f"sqlite:///{tmp_path / 'metadata.db'}"
    await asyncio.to_thread(upgrade, url)
    async with Trio(tmp_path / "stores") as trio:
        common = {"database_url": url, "stores": f"0={trio.address}", "metrics_port": -1, "delay_levels": "1s 2s"}
        retry = await started("retry", common)
        address = f"127.0.0.1:{retry.port}"
        nodes = [
            retry,
            await started("scheduler", common),
            await started("gateway", {**common, "retry_address": address}),
        ]
        try:
            await send_through_a_takeover(trio, f"127.0.0.1:{nodes[-1].port}")
        finally:
            for node in reversed(nodes):
                await node.stop()


async def started(name: str, values: dict[str, Any]) -> Any:
    make = node_class(name)
    node = make(make.settings_class(**values), SystemClock())
    await node.start()
    return node


async def send_through_a_takeover(trio: Trio, address: str) -> None:
    due_at_ms: dict[str, int] = {}
    came: Counter[str] = Counter()
    async with AsyncProducer(address) as producer, asyncio.timeout(2 * DEADLINE_S):
        for number in range(60):
            receipt = await producer.send("orders", b"%d" % number, delay="1s" if number % 2 else "1500ms")
            assert receipt.deliver_at is not None
            due_at_ms[receipt.message_id] = round(receipt.deliver_at.timestamp() * 1000)
            if number == 20:
                await trio.kill(await trio.leader())
        async with AsyncPuller(address, "orders") as puller:
            while len(came) < len(due_at_ms):
                for message in await puller.poll(100, "1s"):
                    came[message.id] += 1
                    assert time.time() * 1000 >= due_at_ms[message.id]
    assert came == Counter(dict.fromkeys(due_at_ms, 1))
