"""A worker delivers messages to a real HTTPS receiver, which verifies them with Standard Webhooks' library."""

import asyncio
import json
import os
from collections import defaultdict
from typing import Any

import pytest
from duetime import AsyncDeadLetters, InvalidArgument, Message
from duetime.client.errors import DueTimeError
from duetime.v1 import audit_pb2
from duetime.v1 import webhooks_pb2 as pb
from duetime_core.clock import SystemClock
from duetime_webhooks import following
from duetime_webhooks.settings import WebhookSettings
from standardwebhooks.webhooks import Webhook

from tests.webhooks.conftest import WebhookRig, until
from tests.webhooks.receiver import OK, Answer, Received

_DELIVERED = {"webhook": "paid", "outcome": "2xx"}


def verify(received: Received, secret: str) -> Any:
    return Webhook(secret).verify(received.body, received.headers)


async def dead_letters(rig: WebhookRig) -> list[Any]:
    async with AsyncDeadLetters(rig.cluster.address, group="hook") as letters:
        return [one async for one in letters.list()]


async def test_messages_arrive_signed_with_the_same_id_in_each_attempt(rig: WebhookRig) -> None:
    secret = await rig.create()
    rig.receiver.answer = lambda _: Answer(500) if len(rig.receiver.requests) == 0 else OK
    await rig.worker()
    receipt = await rig.producer.send("orders", {"order": 42})
    first, second = await rig.receiver.until(2)
    assert [verify(one, secret) for one in (first, second)] == [{"order": 42}] * 2
    assert first.headers["webhook-id"] == second.headers["webhook-id"] == receipt.message_id
    assert first.headers["content-type"] == "application/json"
    found = await rig.until(lambda one: one.delivered_at_ms)
    assert found.failure == "500 Internal Server Error"
    assert found.worker_seen_at_ms > 0


async def test_message_that_keeps_failing_is_a_dead_letter_with_the_response(rig: WebhookRig) -> None:
    await rig.create(max_attempts=2)
    rig.receiver.answer = lambda _: Answer(422, body=b"no such customer")
    await rig.worker()
    await rig.producer.send("orders", b"x")
    (letter,) = await until(lambda: dead_letters(rig), len)
    assert len(rig.receiver.requests) == 2
    (*_, last) = letter.attempts
    assert (last.error_type, last.error_message) == ("HttpError", "422 Unprocessable Entity: no such customer")


async def test_gone_receiver_pauses_the_webhook_and_no_message_is_lost(rig: WebhookRig) -> None:
    await rig.create(max_attempts=5)
    rig.receiver.answer = lambda one: Answer(410) if one.path == "/hook" else OK
    await rig.worker()
    receipt = await rig.producer.send("orders", b"x")
    found = await rig.until(lambda one: one.paused)
    assert found.pause_reason == "the receiver answered 410 Gone"
    request = audit_pb2.ListAuditEventsRequest(method="PauseWebhook")
    (event,) = (await rig.call("ListAuditEvents", request)).events
    assert (event.process, event.user, event.resource) == ("webhooks", "", "webhook paid, by 410 Gone")
    count = len(rig.receiver.requests)
    await rig.call("UpdateWebhook", pb.UpdateWebhookRequest(name="paid", url=rig.receiver.url("/new")))
    resumed = await rig.call("ResumeWebhook", pb.WebhookRef(name="paid"))
    assert (resumed.paused, resumed.pause_reason) == (False, "")
    last = (await rig.receiver.until(count + 1))[-1]
    assert (last.path, last.headers["webhook-id"]) == ("/new", receipt.message_id)


async def test_receiver_that_is_gone_under_load_loses_nothing_and_costs_each_message_one_attempt(
    rig: WebhookRig,
) -> None:
    await rig.create(backoff="1s", max_attempts=2)
    count, held = 300, asyncio.Event()
    # The first sixteen are answered together, when all of them are in flight.
    rig.receiver.answer = lambda _: Answer(410, after=held)
    worker = await rig.worker(drain_ms=60_000)
    sent = [Message("orders", b"x", id=f"m{number}") for number in range(count)]
    await rig.producer.send_many(sent)
    await rig.receiver.until(16)
    answered = worker._follower._deliveries["paid"].webhook.stored
    held.set()
    found = await rig.until(lambda one: one.paused)
    assert found.pause_reason == "the receiver answered 410 Gone"
    log = await rig.call("ListAuditEvents", audit_pb2.ListAuditEventsRequest(method="PauseWebhook"))
    # The answers of one moment are one pause.
    assert len(log.events) == 1

    async def in_flight() -> float | None:
        return worker.registry.get_sample_value("duetime_webhooks_requests_in_flight")

    assert await until(in_flight, lambda value: value == 0) == 0
    stopped = len(rig.receiver.requests)
    # No request began after the first answer.
    assert stopped == 16
    rig.receiver.answer = lambda _: OK
    await rig.call("ResumeWebhook", pb.WebhookRef(name="paid"))
    await rig.receiver.until(stopped + count)
    ids = [one.headers["webhook-id"] for one in rig.receiver.requests]
    assert sorted(ids[stopped:]) == sorted(message.id for message in sent)
    assert await dead_letters(rig) == []
    # A late answer of before undoes no resumption.
    await worker._follower.pause(answered, "410 Gone")
    assert not (await rig.shown()).paused


async def test_rotation_signs_with_both_secrets_until_the_old_one_ends(rig: WebhookRig) -> None:
    old = await rig.create()
    request = pb.RotateWebhookSecretRequest(name="paid", old_valid_ms=3_600_000)
    new = (await rig.call("RotateWebhookSecret", request)).secret
    await rig.worker()
    await rig.producer.send("orders", {"a": 1})
    (both,) = await rig.receiver.until(1)
    assert verify(both, old) == verify(both, new) == {"a": 1}
    # A running delivery takes the change over.
    newest = (await rig.call("RotateWebhookSecret", pb.RotateWebhookSecretRequest(name="paid"))).secret
    assert len({old, new, newest}) == 3

    async def sent() -> Received:
        count = len(rig.receiver.requests)
        await rig.producer.send("orders", {"a": 2})
        return (await rig.receiver.until(count + 1))[-1]

    last = await until(sent, lambda one: len(one.headers["webhook-signature"].split()) == 1)
    assert verify(last, newest) == {"a": 2}


async def test_paused_and_deleted_webhooks_send_nothing(rig: WebhookRig) -> None:
    await rig.create()
    await rig.call("PauseWebhook", pb.WebhookRef(name="paid"))
    worker = await rig.worker()
    await rig.producer.send("orders", b"x")
    tested = await rig.call("TestWebhook", pb.WebhookRef(name="paid"))
    assert (tested.test.number, tested.test.done) == (1, False)
    found = await rig.until(lambda one: one.test.done)
    assert (found.test.status, found.test.error) == (200, "")
    assert [json.loads(one.body)["type"] for one in rig.receiver.requests] == ["duetime.test"]
    await rig.call("ResumeWebhook", pb.WebhookRef(name="paid"))
    await rig.receiver.until(2)
    await rig.call("DeleteWebhook", pb.WebhookRef(name="paid"))
    with pytest.raises(DueTimeError, match="there is no webhook paid"):
        await rig.shown()

    async def shown_paused() -> float | None:
        return worker.registry.get_sample_value("duetime_webhooks_paused", {"webhook": "paid"})

    await until(shown_paused, lambda value: value is None)
    assert worker.registry.get_sample_value("duetime_webhooks_requests_total", _DELIVERED) == 2


async def test_addresses_of_the_own_network_are_refused_by_default(rig: WebhookRig) -> None:
    await rig.create()
    await rig.worker(permitted_networks="")
    await rig.producer.send("orders", b"x")
    found = await rig.until(lambda one: one.failed_at_ms)
    assert "127.0.0.1 (loopback)" in found.failure
    await rig.call("TestWebhook", pb.WebhookRef(name="paid"))
    tested = await rig.until(lambda one: one.test.done)
    assert (tested.test.status, "loopback" in tested.test.error) == (0, True)
    assert rig.receiver.connections == 0


async def test_slow_receivers_of_one_webhook_delay_no_other_one(rig: WebhookRig) -> None:
    await rig.create()
    other = pb.Webhook(name="other", topic="orders", group="other", url=rig.receiver.url("/other"))
    await rig.call("CreateWebhook", pb.CreateWebhookRequest(webhook=other))
    rig.receiver.answer = lambda one: Answer(hangs=one.path == "/hook")
    await rig.worker(requests_max=4)
    await rig.producer.send_many([Message("orders", b"x", id=f"m{number}") for number in range(40)])

    async def posted() -> tuple[int, int]:
        paths = [one.path for one in rig.receiver.requests]
        return paths.count("/hook"), paths.count("/other")

    # The slow one has 3 of 4 turns, as a share of 1 is the other's.
    assert await until(posted, lambda counts: counts[0] >= 3 and counts[1] == 40) == (3, 40)


async def test_held_messages_of_a_slow_webhook_are_bounded_and_another_one_receives(rig: WebhookRig) -> None:
    mebibyte, limit = 1024 * 1024, 16
    await rig.create()
    other = pb.Webhook(name="other", topic="others", group="other", url=rig.receiver.url("/other"))
    await rig.admin.create_topic("others")
    await rig.call("CreateWebhook", pb.CreateWebhookRequest(webhook=other))
    await rig.call("UpdateWebhook", pb.UpdateWebhookRequest(name="paid", concurrency=64))
    released = asyncio.Event()
    rig.receiver.answer = lambda one: Answer(after=released) if one.path == "/hook" else OK
    worker = await rig.worker(messages_bytes_max=limit * mebibyte)

    def value(name: str) -> float:
        return worker.registry.get_sample_value(f"duetime_webhooks_{name}") or 0

    async def waits() -> float:
        return value("waiting_for_memory")

    for number in range(32):
        await rig.producer.send("orders", os.urandom(mebibyte), id=f"m{number}")
    # 64 requests may run at once, and the half of the memory that is not shared is not enough for 32 messages.
    assert await until(waits, bool) == 1
    held = value("messages_bytes")
    assert limit // 2 * mebibyte <= held <= (limit + 2) * mebibyte
    in_flight = len(rig.receiver.requests)
    assert in_flight < 20
    receipt = await rig.producer.send("others", os.urandom(mebibyte))
    await rig.receiver.until(in_flight + 1)
    assert rig.receiver.requests[-1].headers["webhook-id"] == receipt.message_id
    released.set()
    await rig.receiver.until(33)
    # The room for the answers of two receives remains.
    assert await until(waits, lambda count: count == 0) == 0

    async def bytes_held() -> float:
        return value("messages_bytes")

    room = 2 * limit * mebibyte / (2 * 2) / 2
    assert await until(bytes_held, lambda held: held <= room) <= room


async def test_each_refused_message_comes_again_after_its_retry_after(rig: WebhookRig) -> None:
    await rig.create(backoff="1h", max_attempts=2)
    arrived: dict[str, list[float]] = defaultdict(list)
    clock = SystemClock()

    def answer(one: Received) -> Answer:
        times = arrived[one.headers["webhook-id"]]
        times.append(clock.monotonic_ms())
        return Answer(429, (("retry-after", "1"),)) if len(times) == 1 else OK

    rig.receiver.answer = answer
    await rig.worker()
    await rig.producer.send_many([Message("orders", b"x", id=f"m{number}") for number in range(300)])
    await rig.receiver.until(600)
    assert len(arrived) == 300
    assert min(again - first for first, again in arrived.values()) >= 1_000


async def test_stopped_worker_releases_messages_to_another_one(rig: WebhookRig) -> None:
    await rig.create()
    rig.receiver.answer = lambda _: Answer(hangs=len(rig.receiver.requests) == 0)
    first = await rig.worker()
    receipt = await rig.producer.send("orders", b"x")
    await rig.receiver.until(1)
    await first.stop()
    await rig.worker()
    _, second = await rig.receiver.until(2)
    assert second.headers["webhook-id"] == receipt.message_id


async def test_secret_of_another_key_is_reported_and_not_used(rig: WebhookRig) -> None:
    await rig.create()
    await rig.worker(secrets_key="A" * 43 + "=")
    found = await rig.until(lambda one: one.failure)
    assert "cannot be decrypted with DUETIME_SECRETS_KEY" in found.failure
    assert rig.receiver.requests == []


async def test_error_that_ends_the_consumer_is_reported_and_repeated(
    rig: WebhookRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rig.create()
    refused: list[object] = []
    make = following.WebhookDelivery._make_consumer

    def fail_once(delivery: following.WebhookDelivery) -> Any:
        if not refused:
            refused.append(delivery)
            raise InvalidArgument.of("token", "is not valid here")
        return make(delivery)

    monkeypatch.setattr(following.WebhookDelivery, "_make_consumer", fail_once)
    await rig.worker()
    await rig.producer.send("orders", b"x")
    await rig.receiver.until(1)
    assert "cannot receive: token: is not valid here" in (await rig.until(lambda one: one.failure)).failure


@pytest.mark.parametrize(
    ("name", "value"),
    [("secrets_key", ""), ("secrets_key", "short"), ("permitted_networks", "10.0.0.0/99"), ("requests_max", 0)],
)
def test_wrong_settings_are_rejected(name: str, value: Any) -> None:
    own = {"database_url": "sqlite:///x", "secrets_key": "A" * 43 + "="}
    WebhookSettings(**own)
    with pytest.raises(ValueError, match=name):
        WebhookSettings(**{**own, name: value})
