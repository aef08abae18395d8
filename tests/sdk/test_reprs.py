"""Texts of clients and messages: server, topic, group and state; no body and no token."""

import asyncio
from typing import Any

import duetime
import pytest
from duetime import (
    Admin,
    App,
    AsyncAdmin,
    AsyncDeadLetters,
    AsyncFinder,
    AsyncProducer,
    AsyncPuller,
    AsyncReceiver,
    AsyncSchedules,
    AsyncWebhooks,
    Consumer,
    DeadLetters,
    Finder,
    LeasedMessage,
    Message,
    Producer,
    Puller,
    Receiver,
    Schedules,
    Webhooks,
)
from duetime_core.testing import LocalCluster

from tests.sdk.consuming import consuming
from tests.sdk.groups import Groups

SECRET = "hush-hush"
SERVER = "localhost:9800"
TOPICS = {"topic": "orders", "group": "billing"}

CLIENTS: list[tuple[Any, dict[str, str], str]] = [
    (Producer, {}, f"Producer({SERVER}, unused)"),
    (AsyncProducer, {}, f"AsyncProducer({SERVER}, unused)"),
    (Puller, {"topic": "orders"}, f"Puller({SERVER}, topic='orders', unused)"),
    (AsyncPuller, TOPICS, f"AsyncPuller({SERVER}, topic='orders', group='billing', unused)"),
    (Receiver, TOPICS, f"Receiver({SERVER}, topic='orders', group='billing', unused)"),
    (AsyncReceiver, TOPICS, f"AsyncReceiver({SERVER}, topic='orders', group='billing', unused)"),
    (Finder, {}, f"Finder({SERVER}, unused)"),
    (AsyncFinder, {}, f"AsyncFinder({SERVER}, unused)"),
    (Admin, {}, f"Admin({SERVER}, unused)"),
    (AsyncAdmin, {}, f"AsyncAdmin({SERVER}, unused)"),
    (Schedules, {}, f"Schedules({SERVER}, unused)"),
    (AsyncSchedules, {}, f"AsyncSchedules({SERVER}, unused)"),
    (Webhooks, {}, f"Webhooks({SERVER}, unused)"),
    (AsyncWebhooks, {}, f"AsyncWebhooks({SERVER}, unused)"),
    (DeadLetters, {"group": "billing"}, f"DeadLetters({SERVER}, group='billing', unused)"),
    (AsyncDeadLetters, {"group": "billing"}, f"AsyncDeadLetters({SERVER}, group='billing', unused)"),
    (App, {"name": "shop"}, f"App({SERVER}, name='shop', tasks=[])"),
    (Consumer, {"group": "billing"}, f"Consumer({SERVER}, group='billing', topics=[], stopped)"),
]


@pytest.mark.parametrize(("kind", "arguments", "shown"), CLIENTS, ids=lambda one: getattr(one, "__name__", None))
def test_client_shows_where_it_belongs(kind: Any, arguments: dict[str, str], shown: str) -> None:
    assert repr(kind(server=SERVER, token=SECRET, **arguments)) == shown


def test_every_client_is_here() -> None:
    exported = [getattr(duetime, name) for name in duetime.__all__]
    clients = {one for one in exported if "token" in getattr(getattr(one, "__init__", None), "__annotations__", ())}
    assert clients == {kind for kind, _, _ in CLIENTS}


async def test_state_is_shown(groups: Groups, topic: str, group: str) -> None:
    producer = AsyncProducer(groups.address)
    await producer.send(topic, b"x")
    assert repr(producer) == f"AsyncProducer({groups.address}, open)"
    await producer.close()
    assert repr(producer) == f"AsyncProducer({groups.address}, closed)"
    consumer = Consumer(groups.address, group=group)
    handled = asyncio.Event()

    @consumer.handler(topic)
    async def handle(message: LeasedMessage) -> None:
        assert SECRET not in repr(message)
        handled.set()

    async with consuming(consumer):
        await handled.wait()
        assert repr(consumer) == f"Consumer({groups.address}, group='{group}', topics=['{topic}'], running)"


def test_message_shows_the_size_of_its_body() -> None:
    message = Message("orders", SECRET, delay="30m", keys=["42"], level=None)
    assert repr(message) == "Message('orders', <9 bytes>, delay='30m', keys=['42'])"
    assert repr(Message("orders", b"")) == "Message('orders', <0 bytes>)"
    message.body = SECRET
    assert SECRET not in repr(message)


def test_cluster_of_tests_shows_its_address() -> None:
    cluster = LocalCluster()
    assert repr(cluster) == "LocalCluster(stopped)"
    with cluster:
        assert repr(cluster) == f"LocalCluster({cluster.address})"
    assert repr(cluster) == "LocalCluster(stopped)"
