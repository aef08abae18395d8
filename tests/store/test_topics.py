"""Topics created in a shard: cost, refusals, and their state after a crash."""

import asyncio
import errno
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from duetime.v1 import gateway_pb2, store_pb2
from duetime_shard import topics as lines
from duetime_store.files import configs

from tests.faulty_disk import FaultyDisk
from tests.store.groups.running import Consuming
from tests.store.running import Running
from tests.store.test_disk_faults import Sick, reason_of


class Topics(Consuming):
    """A store that a test may kill."""

    async def __aenter__(self) -> "Topics":
        await Running.__aenter__(self)
        return self


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
async def store(root: Path) -> AsyncIterator[Sick]:
    async with Sick(root, topics_max=100, queues_max=200) as running:
        yield running


def wanted(name: str, count: int = 1) -> store_pb2.PutTopicRequest:
    return store_pb2.PutTopicRequest(name=name, queue_count=count)


async def known(store: Running) -> dict[str, int]:
    answer = await store.stub.ListTopics(store_pb2.ListStoredTopicsRequest())
    return {topic.name: topic.read_queue_count for topic in answer.topics}


def test_lines_are_read_as_they_were_written() -> None:
    data = lines.encode({"orders": 4, "mail": 1}) + lines.encode({"orders": 8}) + lines.encode({"mail": 0})
    assert lines.decode(data) == ({"orders": 8, "mail": 1}, 0, {})
    assert lines.decode(b"") == ({}, 0, {})
    typed = lines.encode({"orders": 4, "mail": 1}, {"orders": "FIFO", "other": "DELAY"})
    assert lines.decode(typed + lines.encode({"mail": 1}, {"mail": "MIXED"})) == (
        {"orders": 4, "mail": 1},
        0,
        {"orders": "FIFO", "mail": "MIXED"},
    )
    # Release 0.1 reads the lines of names and counts; those of types it passes over.
    assert b'["orders",4]\n' in typed


@pytest.mark.parametrize(
    "name", ["", "../x", "a b", "a/b", "\u00e9t\u00e9", "x" * 128, "DT_x", "RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_x"]
)
async def test_name_that_no_client_may_give_a_topic_is_refused(store: Sick, name: str) -> None:
    assert await reason_of(store.stub.PutTopic(wanted(name))) == "INVALID_ARGUMENT"
    answer = await store.stub.PutTopics(store_pb2.PutTopicsRequest(topics=[wanted(name), wanted("orders")]))
    assert list(answer.faults) == [0]
    assert name not in await known(store)


@pytest.mark.parametrize("length", range(len(lines.encode({"orders": 4}))))
def test_a_torn_line_costs_itself_alone(length: int) -> None:
    whole = lines.encode({"mail": 1})
    data = whole + lines.encode({"orders": 4})[:length] + lines.encode({"jobs": 2})
    counts, damaged, _ = lines.decode(data)
    # Whole but for its end of line.
    assert {**counts, "orders": 4} == {"mail": 1, "jobs": 2, "orders": 4}
    assert ("orders" in counts) == (not damaged and length > 1)


@pytest.mark.parametrize("at", range(1, len(lines.encode({"orders": 4}))))
def test_a_flipped_byte_costs_its_line_alone(at: int) -> None:
    data = bytearray(lines.encode({"mail": 1}) + lines.encode({"orders": 4}) + lines.encode({"jobs": 2}))
    data[len(lines.encode({"mail": 1})) + at] ^= 0x41
    counts, damaged, _ = lines.decode(bytes(data))
    assert (counts["mail"], "orders" in counts) == (1, False)
    assert damaged


async def test_a_topic_is_there_after_a_crash(root: Path) -> None:
    async with Topics(root) as store:
        await store.stub.PutTopic(wanted("orders", 4))
        await store.stub.PutTopics(store_pb2.PutTopicsRequest(topics=[wanted("mail"), wanted("orders", 2)]))
        assert not (root / "config" / lines.FILE).exists()
        for _ in range(2):
            await store.kill()
            found = await known(store)
            assert (found["orders"], found["mail"]) == (4, 1)


async def test_a_topic_is_there_without_a_checkpoint(root: Path) -> None:
    async with Topics(root) as store:
        await store.stub.PutTopic(wanted("orders", 4))
        await store.kill((root / "checkpoint").unlink)
        assert (await known(store))["orders"] == 4


async def test_counts_of_a_broker_that_served_since_count(root: Path) -> None:
    """Topics that its file lacks come from the log."""
    async with Topics(root) as store:
        await store.stub.PutTopic(wanted("orders", 4))
        assert await store.node.parts.checkpointer.write()
        await store.stub.PutTopics(store_pb2.PutTopicsRequest(topics=[wanted("orders", 8), wanted("mail", 3)]))
        content = configs.read(root / "config", configs.TOPICS) or {}
        content["topicConfigTable"]["orders"]["readQueueNums"] = 2
        file = root / "config" / configs.TOPICS
        await store.kill(lambda: file.write_text(configs.render(content)) and None)
        found = await known(store)
        assert (found["orders"], found["mail"]) == (2, 3)


async def test_a_deleted_topic_stays_deleted_and_a_later_one_stays(root: Path) -> None:
    """In the order of the log, also within one run of records."""
    async with Topics(root) as store:
        for generation in (1, 2):
            topic = store_pb2.PutTopicRequest(name="orders", queue_count=4, generation=generation)
            await store.stub.PutTopic(topic)
            stage = store_pb2.DELETION_STAGE_DELETE
            request = store_pb2.DeleteStoredTopicRequest(name="orders", generation=generation, stage=stage)
            await store.stub.DeleteTopic(request)
        await store.stub.PutTopic(wanted("mail", 3))
        await store.kill((root / "checkpoint").unlink)
        found = await known(store)
        assert ("orders" in found, found["mail"]) == (False, 3)
        await store.stub.PutTopic(store_pb2.PutTopicRequest(name="orders", queue_count=2, generation=3))
        await store.kill()
        assert (await known(store))["orders"] == 2


async def test_a_clean_stop_leaves_all_topics_in_the_brokers_file(root: Path) -> None:
    async with Sick(root) as store:
        await store.stub.PutTopic(wanted("orders", 4))
        found = await known(store)
    assert configs.topic_counts(configs.read(root / "config", configs.TOPICS)) == found
    assert not (root / "config" / lines.FILE).exists()


async def types(store: Running) -> dict[str, int]:
    answer = await store.stub.ListTopics(store_pb2.ListStoredTopicsRequest())
    return {topic.name: topic.message_type for topic in answer.topics if topic.message_type}


def attributes(root: Path) -> dict[str, dict[str, str]]:
    """Of all topics in the broker's file."""
    table = (configs.read(root / "config", configs.TOPICS) or {})["topicConfigTable"]
    return {name: entry.get("attributes", {}) for name, entry in table.items()}


async def test_a_topic_s_type_is_there_after_a_crash_and_in_the_brokers_file(root: Path) -> None:
    orders = store_pb2.PutTopicRequest(name="orders", queue_count=4, message_type=gateway_pb2.TOPIC_TYPE_FIFO)
    async with Topics(root) as store:
        topics = [orders, wanted("mail"), wanted("%RETRY%billing")]
        await store.stub.PutTopics(store_pb2.PutTopicsRequest(topics=topics))
        # One that does not know the type changes nothing.
        await store.stub.PutTopic(wanted("orders", 5))
        assert await types(store) == {"orders": gateway_pb2.TOPIC_TYPE_FIFO}
        await store.kill()
        assert await types(store) == {"orders": gateway_pb2.TOPIC_TYPE_FIFO}
    for _ in range(2):
        async with Sick(root) as again:
            assert await types(again) == {"orders": gateway_pb2.TOPIC_TYPE_FIFO}
        found = attributes(root)
        assert (found["orders"], found["mail"]) == ({"message.type": "FIFO"}, {"message.type": "MIXED"})
        # A broker makes these without a type.
        assert found["%RETRY%billing"] == found["DT_QUARANTINE"] == {}


async def test_topic_settings_of_a_broker_are_kept(root: Path) -> None:
    entry = {"perm": 6, "readQueueNums": 1, "writeQueueNums": 1}
    table = {
        "typed": {**entry, "attributes": {"message.type": "DELAY", "cleanup.policy": "DELETE"}},
        "urgent": {**entry, "attributes": {"message.type": "PRIORITY"}},
        "few": {**entry, "attributes": {"message.type": "LITE"}},
        "newer": {**entry, "attributes": {"message.type": "OF_LATER"}},
        "plain": {**entry, "attributes": {}},
        "odd": {**entry, "attributes": 5},
    }
    (root / "config").mkdir(parents=True)
    (root / "config" / configs.TOPICS).write_text(configs.render({"topicConfigTable": table}))
    async with Sick(root) as store:
        assert await types(store) == {
            "typed": gateway_pb2.TOPIC_TYPE_DELAY,
            "urgent": gateway_pb2.TOPIC_TYPE_PRIORITY,
            "few": gateway_pb2.TOPIC_TYPE_LITE,
        }
        await store.stub.PutTopics(store_pb2.PutTopicsRequest(topics=[wanted(name) for name in table]))
        await store.stub.PutTopic(wanted("typed", 3))
    found = attributes(root)
    assert {name: found[name] for name in table} == {name: one["attributes"] for name, one in table.items()}
    async with Sick(root) as store:
        plain = store_pb2.PutTopicRequest(name="plain", queue_count=1, message_type=gateway_pb2.TOPIC_TYPE_NORMAL)
        await store.stub.PutTopic(plain)
        before = dict(store.disk.calls)
        await store.stub.PutTopic(plain)
        assert store.disk.calls == before
    assert attributes(root)["plain"] == {"message.type": "NORMAL"}
    assert (configs.read(root / "config", configs.TOPICS) or {})["topicConfigTable"]["typed"]["readQueueNums"] == 3


async def test_new_topic_costs_one_flush_at_any_count_of_topics(root: Path) -> None:
    async with Sick(root) as store:
        many = [wanted(f"topic{number}") for number in range(5_000)]
        await store.stub.PutTopics(store_pb2.PutTopicsRequest(topics=many))
        before = dict(store.disk.calls)
        await store.stub.PutTopic(wanted("orders", 4))
        assert store.disk.calls["datasync"] == before["datasync"] + 1
        assert store.disk.calls.get("sync") == before.get("sync")
        assert store.disk.calls.get("replace") == before.get("replace")


async def test_topics_that_come_together_share_a_flush(root: Path) -> None:
    async with Sick(root) as store:
        await store.stub.PutTopic(wanted("first"))
        before = store.disk.calls["datasync"]
        with store.disk.stalled("datasync") as stall:
            calls = [asyncio.ensure_future(store.stub.PutTopic(wanted(f"topic{n}"))) for n in range(100)]
            await asyncio.to_thread(stall.begun.wait)
            await store.describe()
        await asyncio.gather(*calls)
        assert store.disk.calls["datasync"] - before <= 5
        assert len(await known(store)) >= 101


async def test_a_topic_that_is_known_costs_nothing(store: Sick) -> None:
    await store.stub.PutTopic(wanted("orders", 4))
    before = dict(store.disk.calls)
    await store.stub.PutTopic(wanted("orders", 3))
    assert store.disk.calls == before


async def test_topics_past_the_limits_are_refused_and_existing_ones_work(store: Sick) -> None:
    first = len(await known(store))
    many = [wanted(f"topic{number}") for number in range(110)]
    answer = await store.stub.PutTopics(store_pb2.PutTopicsRequest(topics=many))
    assert sorted(answer.faults) == list(range(100 - first, 110))
    fault = answer.faults[109]
    assert (fault.code, fault.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED.value[0], "TOPICS_EXHAUSTED")
    assert "topics_max is 100" in fault.message
    assert await reason_of(store.stub.PutTopic(wanted("more"))) == "TOPICS_EXHAUSTED"
    assert await reason_of(store.stub.PutTopic(wanted("topic0"))) == ""
    assert await reason_of(store.stub.PutTopic(wanted("topic0", 150))) == "QUEUES_EXHAUSTED"
    assert (await known(store))["topic0"] == 1
    # A group's retry and dead-letter topics have a separate limit.
    assert await reason_of(store.stub.PutTopic(wanted("%RETRY%billing"))) == ""


async def test_one_bad_topic_harms_no_other(store: Sick) -> None:
    request = store_pb2.PutTopicsRequest(topics=[wanted("a", 0), wanted("b"), wanted("")])
    answer = await store.stub.PutTopics(request)
    assert {index: fault.reason for index, fault in answer.faults.items()} == {
        0: "INVALID_ARGUMENT",
        2: "INVALID_ARGUMENT",
    }
    assert "b" in await known(store)
    too_many = store_pb2.PutTopicsRequest(topics=[wanted("a")] * 10_001)
    assert await reason_of(store.stub.PutTopics(too_many)) == "INVALID_ARGUMENT"


@pytest.mark.parametrize(("operation", "error"), [("pwrite", errno.ENOSPC), ("datasync", errno.EIO)])
async def test_a_file_that_could_not_be_written_loses_no_topic(root: Path, operation: str, error: int) -> None:
    disk = FaultyDisk()
    async with Sick(root, disk) as store:
        await store.stub.PutTopic(wanted("first"))
        disk.fail(operation, error, path=lines.FILE)
        disk.fail("open", error, path=configs.TOPICS)
        await store.stub.PutTopic(wanted("orders"))
        assert not await store.node.parts.checkpointer.write()
        disk.mend()
        assert await store.node.parts.checkpointer.write()
        # A second flush of the same file would prove nothing.
        assert {"first", "orders"} <= configs.topic_counts(configs.read(root / "config", configs.TOPICS)).keys()
        assert not store.node.store.read_only_reason


async def test_a_topic_fails_with_the_flush(root: Path) -> None:
    disk = FaultyDisk()
    async with Sick(root, disk) as store:
        disk.fail("datasync", errno.EIO)
        for name in ("orders", "mail"):
            assert await reason_of(store.stub.PutTopic(wanted(name))) == "STORE_READ_ONLY"
        assert not {"orders", "mail"} & (await known(store)).keys()
        disk.mend()
