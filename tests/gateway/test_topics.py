"""Topics made in great numbers: in few transactions and calls, and within the time of a send."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import grpc
import pytest
from duetime.v1 import gateway_pb2
from duetime_core.clock import turn
from duetime_core.metadata import Database, audit, generation_of
from duetime_gateway.sending.sender import NEW_AT_ONCE

from tests.gateway.conftest import Gateway, TappedStore, error_of, message, real_store, request
from tests.tap import WAIT_S

# Topics of one transaction, fewer than in work: a store makes files for each.
MADE_AT_ONCE = 128


class Transactions:
    """Counts them, but for those that read quotas or deletions, and holds those that make topics until `go`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.held_from = 1 << 30
        self.go = asyncio.Event()
        run = Database.run

        async def counted(database: Database, work: Any) -> Any:
            looks = work is generation_of or work.__module__.startswith("duetime_gateway.quotas.")
            if work.__module__ == audit.__name__ or looks:
                return await run(database, work)
            self.count += 1
            if self.count >= self.held_from:
                await self.go.wait()
            return await run(database, work)

        monkeypatch.setattr(Database, "run", counted)


@pytest.fixture
def transactions(monkeypatch: pytest.MonkeyPatch) -> Transactions:
    monkeypatch.setattr("duetime_gateway.routing.topics.MADE_AT_ONCE", MADE_AT_ONCE)
    return Transactions(monkeypatch)


async def test_one_send_makes_many_topics_at_once(tmp_path: Path, tap: TappedStore, transactions: Transactions) -> None:
    async with Gateway(tmp_path, {0: tap.port}) as gateway:
        before, rounds = transactions.count, 2
        names = [f"t{n}" for n in range(rounds * MADE_AT_ONCE)]
        results = await gateway.send(*(message(topic=name) for name in names))
        assert Counter(result.fault.reason for result in results) == {"": len(names)}
        # One look-up and one creation.
        assert transactions.count - before == 2 * rounds
        announced = [list(call.topics) for call in tap.requests["PutTopics"]]
        assert [len(topics) for topics in announced] == [NEW_AT_ONCE] * (len(names) // NEW_AT_ONCE)
        assert sorted(one.name for topics in announced for one in topics) == sorted(names)
        assert {one.queue_count for topics in announced for one in topics} == {4}
        # Known ones cost nothing more.
        await gateway.send(*(message(topic=name) for name in names))
        assert transactions.count - before == 2 * rounds


async def test_many_creators_share_transactions(tmp_path: Path, transactions: Transactions) -> None:
    async with real_store(tmp_path) as store, Gateway(tmp_path, {0: store.port}) as gateway:
        before = transactions.count
        transactions.held_from = before + 1
        calls = [gateway.stub.CreateTopic(gateway_pb2.CreateTopicRequest(name=f"t{n % 100}")) for n in range(500)]
        asked = gateway.node.parts.topics._questions
        async with asyncio.timeout(WAIT_S):
            while sum(one.asking for one in (*asked._waiting.values(), *asked._running.values())) < len(calls):
                await turn()
        transactions.go.set()
        made = await asyncio.gather(*calls)
        assert {topic.queue_count for topic in made} == {4}
        # The first caller's round, and one for all others; if all come in one turn of the loop, one round for all.
        assert transactions.count - before in (2, 4)
        error = await error_of(gateway.stub.CreateTopic(gateway_pb2.CreateTopicRequest(name="t0", queue_count=5)))
        assert error.code() is grpc.StatusCode.ALREADY_EXISTS


async def test_send_reports_topics_not_made_in_time_and_known_ones_do_not_wait(
    tmp_path: Path, transactions: Transactions
) -> None:
    async with real_store(tmp_path) as store, Gateway(tmp_path, {0: store.port}) as gateway:
        try:
            await gateway.send(message(topic="known"))
            # The first round is done, the second stands still.
            transactions.held_from = transactions.count + 3
            names = [f"t{n}" for n in range(2 * MADE_AT_ONCE)]
            slow = gateway.stub.Send(request(*(message(topic=name) for name in ["known", *names])), timeout=WAIT_S)
            (beside,) = await gateway.send(message(topic="known"))
            assert not beside.HasField("fault")
            results = (await slow).results
            assert Counter(one.fault.reason for one in results) == {
                "": 1 + MADE_AT_ONCE,
                "TOPIC_NOT_MADE": MADE_AT_ONCE,
            }
            assert all(one.fault.retriable for one in results if one.fault.reason)
            transactions.go.set()
            # A send may time out on a busy machine before its topics exist; its faults are retriable.
            async with asyncio.timeout(WAIT_S):
                while left := {
                    one.fault.reason: one.fault.retriable
                    for one in await gateway.send(*(message(topic=name) for name in names))
                    if one.HasField("fault")
                }:
                    assert left == {"TOPIC_NOT_MADE": True}
        finally:
            transactions.go.set()


async def test_a_topic_that_the_store_refuses_harms_no_other(tmp_path: Path) -> None:
    async with real_store(tmp_path, queues_max=100) as store, Gateway(tmp_path, {0: store.port}) as gateway:
        await gateway.stub.CreateTopic(gateway_pb2.CreateTopicRequest(name="b", queue_count=101))
        results = await gateway.send(*(message(topic=name) for name in "abc"))
        assert [one.fault.reason for one in results] == ["", "QUEUES_EXHAUSTED", ""]


async def test_no_more_topics_than_the_cluster_may_have(tmp_path: Path) -> None:
    async with real_store(tmp_path) as store, Gateway(tmp_path, {0: store.port}, topics_max=6) as gateway:
        results = await gateway.send(*(message(topic=f"t{n}") for n in range(5)))
        assert Counter(one.fault.reason for one in results) == {"": 3, "TOPICS_EXHAUSTED": 2}
        refused = next(one.fault for one in results if one.fault.reason)
        assert not refused.retriable
        assert "3 topics exist; the limit is 6; 3 belong to ipv4:127.0.0.1; its limit is 3" in refused.message
        error = await error_of(gateway.stub.CreateTopic(gateway_pb2.CreateTopicRequest(name="more")))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        # Sends to existing topics continue.
        stored = next(f"t{n}" for n, one in enumerate(results) if not one.fault.reason)
        assert not (await gateway.send(message(topic=stored)))[0].HasField("fault")
