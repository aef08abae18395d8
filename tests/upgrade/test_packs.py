"""`make upgrade-test`: this version's SDK sends to the release's cluster, which knows no packs."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest
from duetime import AsyncProducer, AsyncPuller, Message, Receipt

from bench.processes import Processes

pytestmark = [pytest.mark.upgrade, pytest.mark.timeout(300)]

CALLS, BODIES, MESSAGES = 6, 3_000, 1_000
READ_S = 60.0


async def test_everything_that_would_travel_in_packs_is_stored_once(tmp_path: Path, release_python: Path) -> None:
    with Processes(tmp_path / "cluster", python=str(release_python)) as cluster:
        ids = await send(cluster.address)
        assert len(ids) == len(set(ids)) == CALLS * BODIES + 2 * MESSAGES
        async with asyncio.timeout(READ_S), AsyncPuller(cluster.address, "packs", start="earliest") as puller:
            found: Counter[str] = Counter()
            while found.total() < len(ids):
                found.update(message.id for message in await puller.poll(max=1_000, wait="1s"))
    assert found == Counter(ids)


async def send(address: str) -> list[str]:
    """Calls at once, of which one learns that there are no packs while others are under way; the receipts' ids."""
    async with AsyncProducer(address, timeout="60s") as producer:
        calls = []
        for call in range(CALLS):
            bodies = [b"%d-%d" % (call, n) for n in range(BODIES)]
            calls.append(producer.send_many("packs", bodies=bodies, delay=(None, "1s")[call % 2]))
        many = [one for outcomes in await asyncio.gather(*calls) for one in outcomes]
        many += await producer.send_many([Message("packs", b"m-%d" % n) for n in range(MESSAGES)])
        many += await asyncio.gather(*[producer.send("packs", b"s-%d" % n) for n in range(MESSAGES)])
    refused = [one for one in many if not isinstance(one, Receipt)]
    assert not refused, refused[:3]
    return [one.message_id for one in many if isinstance(one, Receipt)]
