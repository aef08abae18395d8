"""Topics' message types: of topics that are made here, and of those that came with a broker's directory."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from duetime.v1 import gateway_pb2, gateway_pb2_grpc
from duetime_core.testing import Cluster
from duetime_format.levels import DELAY_MS_MAX
from duetime_gateway.rocketmq.wire import messaging_pb2 as pb
from duetime_store.files import configs

from tests.format import golden, golden55
from tests.gateway.conftest import MIB, Gateway, real_store
from tests.rocketmq.raw import Raw, message, now_ms

ALL = (pb.NORMAL, pb.FIFO, pb.DELAY, pb.TRANSACTION)


async def taken(raw: Raw, topic: str) -> tuple[int, ...]:
    """The message types of a topic, as reported to a client."""
    route = await raw.call("QueryRoute", topic=pb.Resource(name=topic), endpoints=raw.endpoints)
    assert route.status.code == pb.OK, route.status
    (found,) = {tuple(queue.accept_message_types) for queue in route.message_queues}
    return found


async def refused(raw: Raw, topic: str, **fields: Any) -> bool:
    """Whether a topic does not take such a message."""
    answer = await raw.send(message(topic=pb.Resource(name=topic), **fields))
    assert answer.status.code in (pb.OK, pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE), answer.status
    return bool(answer.status.code != pb.OK)


def with_types(directory: Path, types: dict[str, str]) -> None:
    """As a 5.x broker's administrator sets them (mqadmin updateTopic -a +message.type=...)."""
    path = directory / "config" / "topics.json"
    value = json.loads(path.read_text())
    for name, kind in types.items():
        value["topicConfigTable"][name]["attributes"]["message.type"] = kind
    path.write_text(json.dumps(value))


@asynccontextmanager
async def serving(tmp_path: Path, directory: Path) -> AsyncIterator[Gateway]:
    async with (
        # The directory's open transactions are older than a store keeps them.
        real_store(tmp_path, data_dir=directory, segment_bytes=MIB, transaction_keep_ms=DELAY_MS_MAX) as store,
        Gateway(tmp_path, {0: store.port}) as gateway,
    ):
        yield gateway


async def test_types_of_a_broker_s_directory_are_adopted(tmp_path: Path) -> None:
    directory = golden.unpack("rmq-5.3.3-clean", tmp_path)
    with_types(directory, {"DtLogs": "FIFO", "DtAuto": "DELAY", "DtPop": "MIXED", "DtReadMore": "OF_LATER"})
    async with serving(tmp_path, directory) as gateway:
        raw = Raw(gateway.channel, gateway.node.port)
        assert await taken(raw, "DtLogs") == (pb.FIFO,)
        assert await taken(raw, "DtAuto") == (pb.DELAY,)
        for name in ("DtPop", "DtReadMore", "DtWide"):
            assert await taken(raw, name) == ALL
        described = await gateway.stub.DescribeTopic(gateway_pb2.DescribeTopicRequest(name="DtLogs"))
        assert described.topic.message_type == gateway_pb2.TOPIC_TYPE_FIFO
        assert await refused(raw, "DtLogs")
        assert not await refused(raw, "DtLogs", number=2, message_group="g")
        assert not await refused(raw, "DtReadMore", number=3)
    # The broker's settings stay, also of topics that were sent to.
    after = configs.read(directory / "config", configs.TOPICS) or {}
    found = {name: entry["attributes"] for name, entry in after["topicConfigTable"].items() if "attributes" in entry}
    assert found["DtLogs"] == {"message.type": "FIFO"}
    assert found["DtReadMore"] == {"message.type": "OF_LATER"}
    assert found["DtWide"] == {}


async def test_priorities_of_a_broker_are_received_as_its_consumers_would(tmp_path: Path) -> None:
    async with serving(tmp_path, golden55.unpack("a-default", tmp_path)) as gateway:
        raw, topic = Raw(gateway.channel, gateway.node.port), pb.Resource(name="Da_Prio")
        assert (await taken(raw, "Da_Prio"), await taken(raw, "Da_Lite")) == ((pb.PRIORITY,), (pb.LITE,))
        lines = [line for line in golden55.lines("a-default", "priority") if "offset" in line]
        got = await raw.receive(topic=topic, group=pb.Resource(name="new"), batch_size=32)
        first = [one for one in got if one.system_properties.message_id in {line["id"] for line in lines}]
        assert [one.system_properties.message_id for one in first] == [
            line["id"] for line in sorted(lines, key=lambda line: (-line["queue"], line["offset"]))
        ]
        assert [one.system_properties.queue_id for one in got] == sorted(
            (one.system_properties.queue_id for one in got), reverse=True
        )
        for one in got:
            assert not {name for name in one.user_properties if "PRIORITY" in name}
        assert await refused(raw, "Da_Prio")
        assert not await refused(raw, "Da_Prio", number=2, priority=4)


async def test_topics_of_an_older_broker_take_all(tmp_path: Path) -> None:
    directory = golden.unpack("rmq-4.9.8-clean", tmp_path)
    async with serving(tmp_path, directory) as gateway:
        raw = Raw(gateway.channel, gateway.node.port)
        assert await taken(raw, "DtLogs") == ALL
        assert not await refused(raw, "DtLogs", delivery_ms=now_ms() + 60_000)


@pytest.mark.parametrize(("kind", "named"), [("FIFO", "FIFO"), ("DELAY", "DELAY"), ("ANY", "MIXED")])
async def test_a_type_holds_at_all_gateways_and_is_in_each_shard_s_file(
    tmp_path: Path, cluster: Cluster, whole: Raw, other: Raw, kind: str, named: str
) -> None:
    number = gateway_pb2.TopicType.Value(f"TOPIC_TYPE_{kind}")
    await whole.make_topic("events", message_type=number, queue_count=4)
    fields = {"FIFO": {"message_group": "g"}, "DELAY": {"delivery_ms": now_ms() + 60_000}, "ANY": {}}
    topic = pb.Resource(name="events")
    for raw in (other, whole):
        assert await taken(raw, "events") == (ALL if kind == "ANY" else (pb.MessageType.Value(kind),))
        for name, one in fields.items():
            assert await refused(raw, "events", **one) == (kind not in ("ANY", name))
    # Send to both shards.
    for number in range(16):
        fields["FIFO"] = {"message_group": f"g{number}"}
        await whole.send_ok(message(number=number << 40, topic=topic, **fields[kind]))
    shown = await gateway_pb2_grpc.GatewayStub(whole.channel).DescribeTopic(
        gateway_pb2.DescribeTopicRequest(name="events")
    )
    assert {queue.shard for queue in shown.queues} == {0, 1}
    for shard, store in enumerate(cluster.stores):
        await cluster.stop_node(store)
        table = (configs.read(tmp_path / f"store-{shard}" / "config", configs.TOPICS) or {})["topicConfigTable"]
        assert table["events"]["attributes"] == {"message.type": named}
