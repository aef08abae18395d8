"""Paused groups: their receivers get nothing until the pause ends, through restarts, and wake at its end."""

import asyncio
import errno
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from duetime.v1 import consumer_pb2, store_pb2
from duetime_format.levels import DELAY_MS_MAX
from duetime_store.groups import pauses

from tests.faulty_disk import FaultyDisk
from tests.store.conftest import sent
from tests.store.groups.running import GROUP, INVISIBLE_MS, OK, TOPIC, Consuming, names, told
from tests.store.groups.test_lites import Liting

HOUR_MS = 3_600_000


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Consuming]:
    async with Consuming(tmp_path / "store") as running:
        yield running


async def pause(store: Consuming, group: str = GROUP, **fields: Any) -> list[tuple[str, int]]:
    request = consumer_pb2.PauseGroupRequest(name=group, **fields)
    return [(one.topic, one.until_ms) for one in (await store.stub.PauseGroup(request, timeout=60)).pauses]


async def resume(store: Consuming, group: str = GROUP, topic: str = "") -> list[tuple[str, int]]:
    request = consumer_pb2.ResumeGroupRequest(name=group, topic=topic)
    return [(one.topic, one.until_ms) for one in (await store.stub.ResumeGroup(request, timeout=60)).pauses]


async def waiting(store: Consuming, count: int = 1) -> None:
    """Returns once receives wait for the end of a pause."""
    async with asyncio.timeout(60):
        while len(store.node.parts.receiver.gates.pauses._waiters) < count:
            await store.describe()


async def delete_topic(store: Consuming) -> None:
    for stage in (store_pb2.DELETION_STAGE_CLOSE, store_pb2.DELETION_STAGE_DELETE):
        request = store_pb2.DeleteStoredTopicRequest(name=TOPIC, stage=stage, generation=1)
        await store.stub.DeleteTopic(request, timeout=60)


def is_paused(store: Consuming) -> bool:
    return store.node.registry.get_sample_value("duetime_store_group_paused", {"group": GROUP}) == 1


async def test_paused_group_receives_nothing_until_it_is_resumed(store: Consuming) -> None:
    await store.send("a", "b")
    (before,) = await store.receive(max_count=1)
    assert await pause(store) == [("", 0)]
    assert (await store.receive(), await store.ready(), is_paused(store)) == ([], False, True)
    assert names(await store.receive(group="audit")) == ["a", "b"]
    assert await store.ack(before) == [OK]
    (shown,) = (await store.describe()).pauses
    assert (shown.topic, shown.since_ms, shown.until_ms) == ("", store.clock.now_ms(), 0)
    assert await resume(store) == []
    assert await resume(store) == []
    assert (names(await store.receive()), is_paused(store)) == (["b"], False)


async def test_receive_waits_for_the_end_of_a_pause(store: Consuming) -> None:
    await store.send("a")
    await pause(store, for_ms=HOUR_MS)
    receives = [asyncio.create_task(store.receive(wait_ms=30_000)) for _ in range(2)]
    await waiting(store, 2)
    await resume(store)
    got = await asyncio.wait_for(asyncio.wait(receives, return_when=asyncio.FIRST_COMPLETED), 60)
    assert [names(one.result()) for one in got[0]] == [["a"]]
    await store.send("b")
    rest = await asyncio.gather(*receives)
    assert sorted(name for one in rest for name in names(one)) == ["a", "b"]


async def test_pause_ends_at_its_time(store: Consuming) -> None:
    await store.send("a")
    until_ms = store.clock.now_ms() + 20_000
    assert await pause(store, until_ms=until_ms) == [("", until_ms)]
    receive = asyncio.create_task(store.receive(wait_ms=30_000))
    await waiting(store)
    await store.clock.advance(19_999)
    assert not receive.done()
    assert (await store.describe()).pauses
    await store.clock.advance(1)
    assert names(await receive) == ["a"]
    assert not (await store.describe()).pauses
    assert not is_paused(store)


async def test_receive_that_waits_for_messages_is_paused_too(store: Consuming) -> None:
    receive = asyncio.create_task(store.receive(wait_ms=30_000))
    async with asyncio.timeout(60):
        while not (lines := store.node.parts.groups._lines._lines) or not next(iter(lines.values())).waiters:
            await store.describe()
    await pause(store)
    await store.send("a")
    await waiting(store)
    assert not receive.done()
    await resume(store)
    assert names(await receive) == ["a"]


async def test_long_receive_ends_while_the_group_is_paused(store: Consuming) -> None:
    await store.send("a")
    await pause(store)
    receive = asyncio.create_task(store.receive(wait_ms=30_000))
    await waiting(store)
    await store.clock.advance(30_000)
    assert await receive == []
    assert not store.node.parts.receiver.gates.pauses._waiters


async def test_lease_that_ends_in_a_pause_is_redelivered_after_it(store: Consuming) -> None:
    await store.send("a")
    await store.receive()
    await pause(store, for_ms=2 * INVISIBLE_MS)
    await store.clock.advance(INVISIBLE_MS)
    assert await store.receive() == []
    await store.clock.advance(INVISIBLE_MS)
    assert told(await store.receive()) == [("a", 2)]


async def test_one_topic_is_paused(store: Consuming) -> None:
    await store.stub.PutTopic(store_pb2.PutTopicRequest(name="other", queue_count=1))
    await store.send("a")
    await store.put(sent("b", topic="other"))
    assert await pause(store, topic="orders") == [("orders", 0)]
    assert await store.receive() == []
    assert names(await store.receive(topic="other")) == ["b"]
    until_ms = store.clock.now_ms() + HOUR_MS
    assert await pause(store, for_ms=HOUR_MS) == [("", until_ms), ("orders", 0)]
    assert await resume(store, topic="orders") == [("", until_ms)]
    assert await store.receive() == []
    await pause(store, topic="orders")
    assert await resume(store) == []
    assert names(await store.receive()) == ["a"]


async def test_topic_is_paused_for_all_groups(store: Consuming) -> None:
    await store.stub.PutTopic(store_pb2.PutTopicRequest(name="other", queue_count=1))
    await store.send("a")
    await store.put(sent("b", topic="other"))
    (before,) = await store.receive(group="audit")
    receive = asyncio.create_task(store.receive(wait_ms=30_000))
    (first,) = await receive
    for one, group in ((before, "audit"), (first, GROUP)):
        assert await store.ack(one, group=group) == [OK]
    await pause(store, topic="orders")
    assert await pause(store, "", topic="orders", for_ms=HOUR_MS) == [("orders", store.clock.now_ms() + HOUR_MS)]
    await pause(store, "", topic="never")
    await store.send("c")
    assert [await store.receive(group=group) for group in (GROUP, "audit")] == [[], []]
    assert names(await store.receive(topic="other")) == ["b"]
    found = [(one.topic, one.all_groups) for one in (await store.describe()).pauses]
    assert found == [("orders", True), ("orders", False)]
    listed = (await store.stub.DescribeGroup(consumer_pb2.DescribeGroupRequest(), timeout=60)).pauses
    assert [(one.topic, one.all_groups) for one in listed] == [("never", True), ("orders", True)]
    sample = store.node.registry.get_sample_value
    assert sample("duetime_store_topic_paused", {"topic": "orders"}) == 1
    assert sample("duetime_store_group_paused", {"group": ""}) is None
    assert [sample("duetime_store_group_paused", {"group": group}) for group in ("audit", "others")] == [1, None]
    await store.kill()
    assert await store.receive(group="audit") == []
    waits = asyncio.create_task(store.receive(group="audit", wait_ms=30_000))
    await waiting(store)
    assert await resume(store, "", "orders") == []
    assert names(await waits) == ["c"]
    assert await store.receive() == []
    await resume(store)
    assert names(await store.receive()) == ["c"]


async def test_pauses_of_topics_are_those_of_a_shard(store: Consuming, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pauses, "GROUP_PAUSES_MAX", 1)
    monkeypatch.setattr(pauses, "SHARD_PAUSES_MAX", 2)
    await pause(store, "", topic="a")
    assert await pause(store, "", topic="b") == [("b", 0)]
    with pytest.raises(grpc.aio.AioRpcError, match="the shard has 2 pauses; the limit is 2"):
        await pause(store, "", topic="c")
    for call in (pause, resume):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(store, "")
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_shard_that_joins_later_learns_the_pause_with_a_receive(store: Consuming) -> None:
    def named(set_at_ms: int, **pause: int) -> consumer_pb2.GroupLimits:
        limits = consumer_pb2.GroupLimits(set_at_ms=set_at_ms)
        if pause:
            limits.pause.CopyFrom(consumer_pb2.GroupPause(**pause))
        return limits

    now_ms = store.clock.now_ms()
    await store.send("a")
    await pause(store, topic="other")
    assert await store.receive(limits=named(1, since_ms=now_ms, until_ms=now_ms + HOUR_MS)) == []
    found = [(one.topic, one.since_ms, one.until_ms) for one in (await store.describe()).pauses]
    assert found == [("", now_ms, now_ms + HOUR_MS), ("other", now_ms, 0)]
    assert await store.receive(limits=named(0)) == []
    waits = asyncio.create_task(store.receive(wait_ms=30_000))
    await waiting(store)
    await store.stub.PutGroup(consumer_pb2.Group(name=GROUP, limits=named(2)), timeout=60)
    assert names(await waits) == ["a"]
    assert [one.topic for one in (await store.describe()).pauses] == ["other"]


@pytest.mark.parametrize("end", ["again", "kill"])
async def test_pause_survives_a_restart(store: Consuming, end: str) -> None:
    await store.send("a")
    await pause(store, for_ms=HOUR_MS)
    await pause(store, "other", topic="orders")
    await getattr(store, end)()
    assert await store.receive() == []
    assert await store.receive(group="other") == []
    await store.clock.advance(HOUR_MS)
    assert names(await store.receive()) == ["a"]
    await resume(store, "other")
    await getattr(store, end)()
    assert names(await store.receive(group="other")) == ["a"]


async def test_deleted_group_is_not_paused(store: Consuming) -> None:
    await store.send("a")
    await pause(store)
    await store.stub.DeleteGroup(consumer_pb2.DeleteGroupRequest(name=GROUP), timeout=60)
    assert names(await store.receive()) == ["a"]


async def test_group_has_a_limited_number_of_pauses(store: Consuming) -> None:
    for number in range(pauses.GROUP_PAUSES_MAX):
        await pause(store, topic=f"topic{number}")
    with pytest.raises(grpc.aio.AioRpcError, match="billing has 100 pauses; the limit is 100") as caught:
        await pause(store)
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    # An earlier one can be replaced, others are not affected.
    assert ("topic7", 0) in await pause(store, topic="topic7")
    assert await pause(store, "other") == [("", 0)]


@pytest.mark.parametrize("topic", [TOPIC, ""])
async def test_receive_of_a_paused_topic_ends_when_the_topic_is_deleted(store: Consuming, topic: str) -> None:
    await pause(store, topic=topic)
    receive = asyncio.create_task(store.receive(wait_ms=30_000))
    await waiting(store)
    await delete_topic(store)
    with pytest.raises(grpc.aio.AioRpcError, match="orders"):
        await receive


async def test_new_topic_with_the_name_of_a_paused_one_is_not_paused(store: Consuming) -> None:
    await pause(store, topic=TOPIC)
    await pause(store, "", topic=TOPIC)
    await pause(store, topic="other")
    await delete_topic(store)
    await store.stub.PutTopic(store_pb2.PutTopicRequest(name=TOPIC, queue_count=1, generation=2), timeout=60)
    await store.send("a")
    assert names(await store.receive()) == ["a"]
    assert [one.topic for one in (await store.describe()).pauses] == ["other"]


@pytest.mark.parametrize("group", [GROUP, ""])
async def test_lite_topics_are_paused_with_their_topic(tmp_path: Path, group: str) -> None:
    async with Liting(tmp_path / "store") as store:
        await store.write("a", "a1")
        receives = [asyncio.create_task(store.read(one, wait_ms=30_000)) for one in ("b", "c")]
        await store.waits(2)
        await pause(store, group, topic="orders")
        assert await store.read("a") == []
        await store.write("b", "b1")
        await waiting(store)
        await resume(store, group, "orders")
        assert names(await receives[0]) == ["b1"]
        assert names(await store.read("a")) == ["a1"]
        await store.write("c", "c1")
        assert names(await receives[1]) == ["c1"]


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"for_ms": 0}, f"for_ms: 0 is not within 1 and {DELAY_MS_MAX}"),
        ({"for_ms": -1}, "for_ms: -1 is not within 1"),
        ({"for_ms": DELAY_MS_MAX + 1}, f"for_ms: {DELAY_MS_MAX + 1} is not within 1"),
        ({"until_ms": 5}, "until_ms: 5 is not in the future: now is"),
        ({"until_ms": 10**14}, "until_ms: 100000000000000 is more than ten years ahead: now is"),
        ({"name": "a b"}, "group"),
    ],
)
async def test_end_out_of_its_range_is_rejected(store: Consuming, fields: dict[str, Any], says: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match=says) as caught:
        await store.stub.PauseGroup(consumer_pb2.PauseGroupRequest(**{"name": GROUP, **fields}), timeout=60)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    await store.send("a")
    assert names(await store.receive()) == ["a"]


async def test_pause_that_is_not_written_is_no_pause(tmp_path: Path) -> None:
    disk = FaultyDisk()
    async with Consuming(tmp_path / "store", disk=disk) as store:
        await store.send("a")
        disk.fail("datasync", errno.EIO)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await pause(store)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        found = await store.stub.DescribeGroup(consumer_pb2.DescribeGroupRequest(), timeout=60)
        assert not found.pauses
        disk.mend()


async def test_pauses_outlive_a_kill(tmp_path: Path) -> None:
    async with Consuming(tmp_path / "store") as store:
        await store.send("a")
        await pause(store)
        file = store.settings.data_dir / "config" / pauses.FILE
        assert not file.exists()
        for _ in range(2):
            await store.kill()
            assert await store.receive() == []
            # The start's checkpoint has it.
            assert file.exists()
        await resume(store)
        await store.kill()
        assert names(await store.receive()) == ["a"]


@pytest.mark.parametrize("content", ["{torn", '{"pauses": 7}', '{"pauses": [7, {"group": 5}, {"group": "g"}]}'])
async def test_damaged_file_pauses_nothing(tmp_path: Path, content: str) -> None:
    (tmp_path / "store" / "config").mkdir(parents=True)
    (tmp_path / "store" / "config" / pauses.FILE).write_text(content)
    async with Consuming(tmp_path / "store") as store:
        await store.send("a")
        assert names(await store.receive()) == ["a"]
