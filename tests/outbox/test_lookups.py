"""Look-ups of rows that were possibly sent long ago: by a user with few rights, and with late answers."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from duetime import AsyncProducer, Message
from duetime.client.tokens import TOKEN_VARIABLE

from tests.gateway.conftest import Gateway, real_store
from tests.gateway.people import People
from tests.outbox.shop import Shop
from tests.outbox.test_relay import MINUTE_MS, Forgetful, later


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
