"""Look-ups of rows that were possibly sent long ago: by a user with few rights, and with late answers."""

import asyncio
from collections.abc import AsyncIterator, Collection
from pathlib import Path
from typing import Any

import pytest
from duetime import AsyncProducer, Message
from duetime.client.finding.finder import AsyncFinder
from duetime.client.tokens import TOKEN_VARIABLE
from duetime_core.testing import LocalCluster

from tests.gateway.conftest import Gateway, real_store
from tests.gateway.people import People
from tests.outbox.shop import Shop, new_topic, stored
from tests.outbox.test_relay import MINUTE_MS, Forgetful, hand_over, later


@pytest.fixture
async def guarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    """The address of a gateway at which all clients are a user with the rights of a relay."""
    async with (
        People(f"sqlite:///{tmp_path / 'meta.db'}") as people,
        real_store(tmp_path) as store,
        Gateway(tmp_path, {0: store.port}, auth="required") as gateway,
    ):
        token = await people.add("relay", "send topic orders", "receive topic orders")
        monkeypatch.setenv(TOKEN_VARIABLE, str(token))
        yield f"127.0.0.1:{gateway.node.port}"


@pytest.mark.parametrize("replaced", [False, True])
async def test_ended_message_fails_its_row_without_the_right_to_its_history(
    shop: Shop, guarded: str, replaced: bool
) -> None:
    (message_id,) = shop.order(Message("orders", b"x", delay="1h", key="k", replace=True))
    await Forgetful(shop.engine, guarded, outbox=shop.outbox).run_async()
    async with AsyncProducer(guarded) as producer:
        if replaced:
            assert (await producer.send("orders", b"y", delay="1h", key="k", replace=True)).replaced_id == message_id
        else:
            assert await producer.cancel(message_id, topic="orders")
    stats = await asyncio.to_thread(shop.drain, guarded, clock=later(shop, 6 * MINUTE_MS))
    assert (stats.sent, stats.failed, stats.put_off) == (0, 1, 0)
    (faulty,) = shop.status().faulty
    assert (faulty.message_id, faulty.state) == (message_id, "failed")
    assert "cancelled" in faulty.error


def never_answers_for(monkeypatch: pytest.MonkeyPatch, ids: Collection[str]) -> None:
    get = AsyncFinder.get

    async def stuck(finder: AsyncFinder, message_id: str, **options: Any) -> Any:
        if message_id in ids:
            await asyncio.Event().wait()
        return await get(finder, message_id, **options)

    monkeypatch.setattr(AsyncFinder, "get", stuck)


def test_answers_in_time_count_if_others_are_late(
    shop: Shop, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic()
    ids = shop.order(*(Message(topic, b"%d" % n) for n in range(40)))
    asyncio.run(Forgetful(shop.engine, cluster.address, outbox=shop.outbox).run_async())
    with monkeypatch.context() as patch:
        never_answers_for(patch, ids[:3])
        clock = later(shop, 6 * MINUTE_MS)
        stats = shop.drain(cluster.address, clock=clock, timeout="3s", lease="12s")
    assert (stats.sent, stats.put_off) == (37, 3)
    assert {(row.message_id, row.state, row.error) for row in shop.rows()} == {
        (one, "waiting", "no answer in time") for one in ids[:3]
    }
    stats = shop.drain(cluster.address, clock=later(shop, 7 * MINUTE_MS))
    assert (stats.sent, stats.repeated) == (3, 0)
    assert len(stored(cluster, topic)) == 40


def test_late_answer_holds_up_later_rows_of_its_key_alone(
    shop: Shop, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic()
    a1, _ = shop.order(Message(topic, b"a1", sharding_key="a"), Message(topic, b"a2", sharding_key="a"))
    shop.order(Message(topic, b"b1", sharding_key="b"), Message(topic, b"c"))
    hand_over(shop)
    # Rows that no relay had yet, in the same batch.
    shop.order(Message(topic, b"a3", sharding_key="a"), Message(topic, b"b2", sharding_key="b"))
    with monkeypatch.context() as patch:
        never_answers_for(patch, [a1])
        clock = later(shop, 6 * MINUTE_MS)
        assert shop.drain(cluster.address, clock=clock, timeout="3s", lease="12s").put_off == 3
    assert sorted(stored(cluster, topic)) == [b"b1", b"b2", b"c"]
    assert shop.drain(cluster.address, clock=later(shop, 7 * MINUTE_MS)).sent == 3
    assert [body for body in stored(cluster, topic) if body.startswith(b"a")] == [b"a1", b"a2", b"a3"]
