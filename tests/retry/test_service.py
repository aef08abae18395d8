"""SendBack against a real store and a real metadata database."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from duetime.v1 import retry_pb2, retry_pb2_grpc
from duetime_core.metadata import Database, TopicModel, TopicQueueModel, upgrade
from duetime_core.rpc.serving import make_channel
from duetime_core.testing import FakeClock
from duetime_format import record
from duetime_format.properties import decode_properties
from duetime_retry.node import RetryNode
from duetime_retry.settings import RetrySettings
from duetime_store.node import StoreNode
from duetime_store.settings import StoreSettings
from sqlalchemy.orm import Session

from tests.store.conftest import MIB, sent


def add_topic(session: Session) -> None:
    session.add(TopicModel(name="orders", queue_count=1, created_at_ms=0))
    session.add(TopicQueueModel(topic="orders", queue=0, shard=0))


class Running:
    def __init__(self, store: StoreNode, retry: RetryNode, stub: Any, clock: FakeClock) -> None:
        self.store = store
        self.retry = retry
        self.stub = stub
        self.clock = clock

    async def send_back(self, **options: Any) -> retry_pb2.SendBackResponse:
        request = retry_pb2.SendBackRequest(**{"group": "billing", "topic": "orders", "offset": 0, **options})
        return await self.stub.SendBack(request, timeout=60)

    def stored(self, topic: str, queue: int = 0) -> list[record.Record]:
        found = self.store.store.queues.find(topic, queue)
        units = found.read(0, 100)[["position", "size"]].tolist()
        return [record.decode(self.store.store.read_record(*unit)) for unit in units]


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    clock, url = FakeClock(), f"sqlite:///{tmp_path}/metadata.db"
    upgrade(url)
    database = Database(url)
    await database.run(add_topic)
    await database.stop()
    store = StoreNode(StoreSettings(data_dir=tmp_path / "store", segment_bytes=MIB, drain_ms=0), clock)
    await store.start()
    retry = RetryNode(RetrySettings(database_url=url, stores=f"0=127.0.0.1:{store.port}", drain_ms=0), clock)
    await retry.start()
    channel = make_channel(f"127.0.0.1:{retry.port}")
    store.store.put(sent("A"))
    store.parts.flusher.wake()
    durable = store.store.when_durable()
    assert durable is not None
    await durable
    try:
        yield Running(store, retry, retry_pb2_grpc.RetryStub(channel), clock)
    finally:
        await channel.close()
        await retry.stop()
        await store.stop()


@pytest.mark.parametrize("topic", ["RMQ_SYS_TRANS_HALF_TOPIC", "SCHEDULE_TOPIC_XXXX", "DT_GROUPS"])
async def test_nothing_is_sent_back_from_a_system_topic(running: Running, topic: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match=f"{topic} is a system topic") as caught:
        await running.send_back(topic=topic)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_first_failure_waits_on_level_three(running: Running) -> None:
    answer = await running.send_back()
    assert (answer.topic, answer.dead, answer.delay_level, answer.attempt) == ("%RETRY%billing", False, 3, 1)
    assert answer.deliver_at_ms == running.clock.now_ms() + 10_000
    assert answer.message_id == "A"
    assert running.stored("SCHEDULE_TOPIC_XXXX", 2)[0].reconsume_times == 1


async def test_negative_level_goes_to_the_dead_letters(running: Running) -> None:
    answer = await running.send_back(delay_level=-1)
    assert (answer.topic, answer.dead, answer.delay_level, answer.deliver_at_ms) == ("%DLQ%billing", True, 0, 0)
    assert running.stored("%DLQ%billing")[0].body == b"body"


async def test_no_attempts_left_goes_to_the_dead_letters(running: Running) -> None:
    assert (await running.send_back(max_attempts=0)).dead
    again = await running.send_back(topic="%DLQ%billing", max_attempts=1)
    assert (again.dead, again.attempt) == (True, 2)


@pytest.mark.parametrize("options", [{}, {"delay_level": 5}, {"delay_level": -1}])
async def test_repeated_call_is_answered_as_the_first_was(running: Running, options: dict[str, Any]) -> None:
    first = await running.send_back(token="t-1", **options)
    running.clock.move(5_000)
    assert await running.send_back(token="t-1", **options) == first
    other = await running.send_back(token="t-2", **options)
    assert (other.topic, other.attempt) == (first.topic, first.attempt)
    topic, queue = ("%DLQ%billing", 0) if first.dead else ("SCHEDULE_TOPIC_XXXX", first.delay_level - 1)
    tokens = [decode_properties(one.properties)["DT_SEND_BACK"] for one in running.stored(topic, queue)]
    assert tokens == ["t-1", "t-2"]


async def test_token_names_one_attempt_only(running: Running) -> None:
    await running.send_back(token="t-1", delay_level=-1)
    again = await running.send_back(topic="%DLQ%billing", token="t-2", delay_level=-1)
    assert again.attempt == 2
    assert "DT_SEND_BACK" in decode_properties(running.stored("%DLQ%billing")[1].properties)
    unnamed = await running.send_back(topic="%DLQ%billing", offset=1, delay_level=-1)
    assert unnamed.attempt == 3
    assert "DT_SEND_BACK" not in decode_properties(running.stored("%DLQ%billing")[2].properties)


async def test_calls_without_a_token_make_a_copy_each(running: Running) -> None:
    for _ in range(2):
        await running.send_back()
    assert len(running.stored("SCHEDULE_TOPIC_XXXX", 2)) == 2


@pytest.mark.parametrize("token", ["x" * 65, "a b", "é", "a\x01"])
async def test_token_is_plain_and_short(running: Running, token: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await running.send_back(token=token)
    assert "token: " in (caught.value.details() or "")
    assert "is not at most 64 printable ASCII characters" in (caught.value.details() or "")


async def test_all_faults_are_reported_at_once(running: Running) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await running.send_back(group="a b", topic="", queue=-1, offset=-1, max_attempts=1_001)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    for part in ("group: 'a b' is not", "topic: ''", "queue: -1", "offset: -1", "max_attempts: 1001 is not within"):
        assert part in (caught.value.details() or "")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"offset": 9}, "offset 9 is not within 0 and 0 of queue 0 of orders"),
        ({"topic": "nope"}, "topic nope has no queue 0"),
        ({"queue": 5}, "topic orders has no queue 5"),
    ],
)
async def test_message_that_is_not_there(running: Running, options: dict[str, Any], text: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await running.send_back(**options)
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND
    assert text in (caught.value.details() or "")
