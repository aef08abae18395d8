"""Lite topics at a gateway: the room that it asks the stores for, and messages that take none."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from duetime.v1 import gateway_pb2, message_pb2, transactions_pb2
from duetime_format.record import LITE_TOPIC
from duetime_gateway.packing import sends

from tests.gateway.conftest import Gateway, TappedStore, error_of, message, request, tapped_store
from tests.tap import WAIT_S


async def make_rooms(gateway: Gateway) -> None:
    made = gateway_pb2.CreateTopicRequest(name="rooms", queue_count=2, message_type=gateway_pb2.TOPIC_TYPE_LITE)
    await gateway.stub.CreateTopic(made, timeout=WAIT_S)


@pytest.fixture
async def tap(tmp_path: Path) -> AsyncIterator[TappedStore]:
    """A store with room for four lite topics, half of them for one caller."""
    async with tapped_store(tmp_path, lite_topics_max=4) as tap:
        yield tap


@pytest.fixture
async def gateway(tmp_path: Path, tap: TappedStore) -> AsyncIterator[Gateway]:
    async with Gateway(tmp_path, {0: tap.port}, store_timeout_ms=60_000) as gateway:
        await make_rooms(gateway)
        yield gateway


def lite(name: str, **fields: Any) -> message_pb2.Message:
    return message(topic="rooms", lite_topic=name, **fields)


def reasons(results: list[message_pb2.SendResult]) -> list[str]:
    return [one.fault.reason for one in results]


def opened(tap: TappedStore) -> list[str]:
    return [name for one in tap.requests["OpenLiteTopics"] for name in one.lite_topics]


async def test_a_rejected_message_takes_no_room(gateway: Gateway, tap: TappedStore) -> None:
    wrong = [
        lite("a", delay_ms=1_000),
        lite("b", queue=0),
        lite("c", sharding_key="k"),
        lite("d", keys=["a b"]),
        lite("e", properties={LITE_TOPIC: "f"}),
        message(topic="rooms", properties={LITE_TOPIC: "g"}, delay_level=1),
        lite("bad name"),
    ]
    assert reasons(await gateway.send(*wrong)) == ["MESSAGE_INVALID"] * len(wrong)
    assert reasons(await gateway.send(lite("h", tags=" "), lite("h"), lite("i"), lite("j"))) == [
        "MESSAGE_INVALID",
        "",
        "",
        "LITE_TOPICS_EXHAUSTED",
    ]
    assert sorted(opened(tap)) == ["h", "i", "j"]


async def test_a_transaction_takes_no_room(gateway: Gateway, tap: TappedStore) -> None:
    messages = [lite("a", id="1"), message(topic="rooms", id="2", properties={LITE_TOPIC: "b"})]
    asked = transactions_pb2.PrepareRequest(group="billing", messages=messages)
    answer = await gateway.stub.Prepare(asked, timeout=WAIT_S)
    assert reasons(list(answer.results)) == ["MESSAGE_INVALID"] * 2
    assert not opened(tap)


async def test_room_is_asked_for_within_the_time_of_the_request(gateway: Gateway, tap: TappedStore) -> None:
    await gateway.stub.Send(request(lite("a")), timeout=20)
    (left_s,) = tap.remaining["OpenLiteTopics"]
    assert left_s is not None
    assert left_s < 20


@pytest.mark.parametrize("way", ["packed", "encoded"])
async def test_a_topic_without_lite_topics_keeps_the_property_in_a_batch(
    gateway: Gateway, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "encoded":
        monkeypatch.setattr(sends, "_twin", None)
    one = message_pb2.Message(body=b"1", properties={LITE_TOPIC: "a"})
    batch = gateway_pb2.SendBatchRequest(topic="orders", messages=[one], queue=0)
    assert reasons(list((await gateway.stub.SendBatch(batch, timeout=WAIT_S)).results)) == [""]
    (stored,) = (await gateway.pull()).messages
    assert stored.properties[LITE_TOPIC] == "a"
    rejected = gateway.stub.SendBatch(gateway_pb2.SendBatchRequest(topic="rooms", messages=[one]), timeout=WAIT_S)
    assert "messages[0].lite_topic" in (await error_of(rejected)).details()
