"""The SDK's client of webhooks, beside a worker."""

import asyncio

import pytest
from duetime import AlreadyExists, AsyncWebhooks, InvalidArgument, NotFound, Timeout, Webhooks
from standardwebhooks.webhooks import Webhook

from tests.webhooks.conftest import WebhookRig, until
from tests.webhooks.receiver import OK, Answer


async def test_client_creates_changes_tests_and_deletes_a_webhook(rig: WebhookRig) -> None:
    async with AsyncWebhooks(rig.cluster.address) as webhooks:
        with pytest.raises(NotFound, match="orders"):
            await webhooks.create("paid", topic="orders", group="hook", url=rig.receiver.url())
        await rig.admin.create_topic("orders")
        made = await webhooks.create("paid", topic="orders", group="hook", url=rig.receiver.url(), timeout="60s")
        assert (made.webhook.concurrency, made.webhook.timeout_ms, made.webhook.test) == (16, 60_000, None)
        assert made.webhook.created_at is not None
        assert made.webhook.worker_seen_at is made.webhook.delivered_at is made.webhook.old_secret_ends_at is None
        assert made.secret not in repr(made)
        with pytest.raises(AlreadyExists):
            await webhooks.create("paid", topic="orders", group="hook", url=rig.receiver.url())
        with pytest.raises(Timeout, match="no worker has tested webhook paid within 0s"):
            await webhooks.test("paid", wait="0s")
        await rig.worker()
        # The number of the first test differs from that of the second, which no worker had taken.
        first = await webhooks.test("paid", wait="60s")
        assert (first.number, first.status, first.error) == (2, 200, "")
        rig.receiver.answer = lambda _: Answer(503, body=b"later")
        failed = await webhooks.test("paid", wait="60s")
        assert (failed.number, failed.status, failed.error) == (3, 503, "503 Service Unavailable: later")
        rig.receiver.answer = lambda _: OK
        rotated = await webhooks.rotate("paid", old_valid="1d")
        assert rotated.secret != made.secret
        assert rotated.webhook.old_secret_ends_at is not None
        await rig.producer.send("orders", {"order": 42})

        async def delivered() -> bool:
            return (await webhooks.get("paid")).delivered_at is not None

        await until(delivered, bool)
        received = rig.receiver.requests[-1]
        # The worker may not have read the rotation yet; the old secret signs in either case.
        assert Webhook(made.secret).verify(received.body, received.headers) == {"order": 42}
        with pytest.raises(InvalidArgument, match="url"):
            await webhooks.update("paid", url="ftp://x")
        changed = await webhooks.update("paid", concurrency=4)
        assert (changed.concurrency, changed.timeout_ms, changed.url) == (4, 60_000, rig.receiver.url())
        assert (await webhooks.pause("paid")).paused
        assert not (await webhooks.resume("paid")).paused
        assert [one.name for one in await webhooks.list()] == ["paid"]
        await webhooks.delete("paid")
        with pytest.raises(NotFound, match="there is no webhook paid"):
            await webhooks.get("paid")


async def test_plain_code_has_the_same_client(rig: WebhookRig) -> None:
    await rig.create()

    def work() -> list[str]:
        with Webhooks(rig.cluster.address) as webhooks:
            return [one.name for one in webhooks.list()]

    assert await asyncio.to_thread(work) == ["paid"]
