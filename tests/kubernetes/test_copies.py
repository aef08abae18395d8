"""A shard of three copies on a real cluster: pods die, and one loses its volume. Part of `make k8s-test`.

Without DUETIME_TEST_COPIES=1, which says that duetime/store:copies has Raft's core, nothing here runs.
"""

import asyncio
import json
import os
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from duetime import AsyncProducer, AsyncPuller

from tests.kubernetes.kubectl import Refused, gateway_address, kubectl, rolled_out, say, until

pytestmark = [
    pytest.mark.skipif(os.environ.get("DUETIME_TEST_COPIES") != "1", reason="make k8s-test runs it with NATIVE_IMAGE"),
    pytest.mark.timeout(1_800),
]

TOPIC, DELAY, MESSAGES = "orders", "3s", 30
PODS = tuple(f"duetime-store-{place}" for place in range(3))
COPIES = ",".join(f"{place + 1}={pod}:9831" for place, pod in enumerate(PODS))
SEND_S, READ_S = 120, 300


async def members() -> dict[str, Any]:
    """The group, as a pod's command shows it. Pods come and go meanwhile."""
    for pod in PODS:
        words = ("duetime", "store", "members", "list", "--json", "--copies", COPIES)
        try:
            out, _ = await kubectl("exec", pod, "--", "python", "-P", "-m", *words)
        except Refused:
            continue
        found: dict[str, Any] = json.loads(out)
        return found
    return {"members": [], "leader": None}


def number_at(group: dict[str, Any], pod: str) -> list[int]:
    return [one["number"] for one in group["members"] if one["address"] == f"{pod}:9831"]


async def leader() -> str:
    """The pod that leads; waits for one."""
    found: list[str] = []

    async def leads() -> bool:
        group = await members()
        found[:] = [pod for pod in PODS if group["leader"] is not None and group["leader"] in number_at(group, pod)]
        return bool(found)

    await until("a leader", leads)
    return found[0]


async def lose(pod: str) -> None:
    """Deletes a pod with its volume, and returns once it votes again."""
    (before,) = number_at(await members(), pod)
    await kubectl("delete", "pvc", f"data-{pod}", "--wait=false")
    await kubectl("delete", "pod", pod, "--grace-period=1", "--wait=false")
    started = time.monotonic()

    async def votes() -> bool:
        group = await members()
        numbers = number_at(group, pod)
        whole = len(group["members"]) == len(PODS) and {one["role"] for one in group["members"]} == {"leader", "voter"}
        return whole and numbers != [before]

    await until(f"{pod} votes under a new number", votes, 300)
    await rolled_out()
    (after,) = number_at(await members(), pod)
    assert after > before
    say(f"{pod} lost copy {before}, and votes as copy {after} after {time.monotonic() - started:.0f} s")


async def test_shard_keeps_its_messages_when_pods_die_and_lose_their_volumes(namespace: None) -> None:
    await kubectl("apply", "-k", str(Path(__file__).parent / "copies"), timeout_s=120)
    await rolled_out()
    address = await gateway_address()
    due_at_ms: dict[str, float] = {}

    async def send() -> None:
        for number in range(MESSAGES):
            async with asyncio.timeout(SEND_S):
                receipt = await producer.send(TOPIC, b"%d" % number, delay=DELAY)
            assert receipt.deliver_at is not None
            due_at_ms[receipt.message_id] = receipt.deliver_at.timestamp() * 1000

    async with AsyncProducer(address, timeout=timedelta(seconds=SEND_S)) as producer:
        await send()
        first = await leader()
        await kubectl("delete", "pod", first, "--grace-period=0", "--force")
        await send()
        say(f"{first} led and was killed; {len(due_at_ms)} messages are accepted")
        await rolled_out()
        leading = await leader()
        await lose(next(pod for pod in PODS if pod != leading))
        await send()
        # Also that of the leader; then the first one is needed for a majority.
        await lose(await leader())
        await send()
    came: Counter[str] = Counter()
    async with AsyncPuller(address, TOPIC) as puller, asyncio.timeout(READ_S):
        while len(came) < len(due_at_ms):
            for message in await puller.poll(100, "1s"):
                assert time.time() * 1000 >= due_at_ms[message.id]
                came[message.id] += 1
    assert came == Counter(dict.fromkeys(due_at_ms, 1))
    say(f"{len(came)} messages came once, none early")
