"""Messages that expire: groups do not receive them any more, and are done with them."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from duetime.v1 import consumer_pb2
from duetime_format import events, record
from duetime_format.names import dlq_topic, retry_topic
from duetime_format.properties import encode_properties

from tests.store.conftest import restored, sent
from tests.store.groups.running import GROUP, INVISIBLE_MS, OK, TOPIC, Consuming, names, told
from tests.store.groups.test_lites import Liting

LIFE_MS = 5_000


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Consuming]:
    async with Consuming(tmp_path / "store") as running:
        yield running


async def send(store: Consuming, *ids: str, life_ms: int = LIFE_MS) -> None:
    await store.put(*(sent(one, DT_EXPIRES=str(life_ms)) for one in ids))


async def kinds(store: Consuming, message_id: str) -> list[str]:
    """The group's part of the message's life."""
    answer = await store.stub.TraceMessage(consumer_pb2.TraceMessageRequest(id=message_id), timeout=60)
    found = [event.kind for event in answer.events if event.group]
    return [consumer_pb2.TraceKind.Name(kind).removeprefix("TRACE_KIND_").lower() for kind in found]


async def lag(store: Consuming) -> list[int]:
    return [one.lag for one in (await store.describe()).queues if one.topic == TOPIC]


def lapsed(store: Consuming) -> float:
    return store.node.registry.get_sample_value("duetime_store_lapsed_total", {"group": GROUP}) or 0


def ends(store: Consuming) -> int:
    """The journal's events that end messages."""
    log = store.node.store
    units = log.queues.find("DT_GROUPS", 0).read(0, 10_000)
    bodies = [record.decode(log.read_record(*unit)).body for unit in units[["position", "size"]].tolist()]
    return sum(kind == events.END for body in bodies for kind, _ in events.events_in(body, events.keys_of(body)[1]))


async def test_message_is_received_until_it_expires(store: Consuming) -> None:
    await send(store, "a")
    await store.clock.advance(LIFE_MS - 1)
    assert names(await store.receive()) == ["a"]
    await store.clock.advance(1)
    assert await store.receive(group="audit") == []
    assert lapsed(store) == 0
    assert store.node.registry.get_sample_value("duetime_store_lapsed_total", {"group": "audit"}) == 1
    described = await store.stub.DescribeGroup(consumer_pb2.DescribeGroupRequest(name="audit"), timeout=60)
    assert (described.lapsed_messages, (await store.describe()).lapsed_messages) == (1, 0)


async def test_expired_message_is_done_for_its_group(store: Consuming) -> None:
    await send(store, "a")
    await store.send("b")
    await store.clock.advance(LIFE_MS)
    (got,) = await store.receive()
    assert (got.message.id, lapsed(store)) == ("b", 1)
    await store.ack(got)
    assert await lag(store) == [0]
    assert [one.committed_offset for one in (await store.describe()).queues if one.topic == TOPIC] == [2]
    assert (await kinds(store, "a"), await kinds(store, "b")) == (["lapsed"], ["received", "acknowledged"])


async def test_only_expired_messages_are_left_out(store: Consuming) -> None:
    await store.put(*(sent(str(n), **({"DT_EXPIRES": "1"} if n % 3 else {})) for n in range(9)))
    await store.clock.advance(1)
    got = await store.receive()
    assert names(got) == ["0", "3", "6"]
    assert await store.ack(*got) == [OK] * 3
    assert await lag(store) == [0]


async def test_delayed_message_expires_after_its_due_time(store: Consuming) -> None:
    due_ms = store.clock.now_ms() + 1_000
    await store.put(sent("a", level=1, DT_EXPIRES=str(LIFE_MS)))
    # It is delivered late.
    await store.clock.advance(3_000)
    await store.put_entries(restored(store.node.store, 1, 0, 1), lane=1, first_entry=0)
    await store.clock.advance(1_000 + LIFE_MS - 3_001)
    (pulled,) = (await store.pull()).messages
    assert (pulled.expires_at_ms, dict(pulled.properties)) == (due_ms + LIFE_MS, {})
    (got,) = await store.receive()
    assert got.message.expires_at_ms == due_ms + LIFE_MS
    await store.clock.advance(1)
    assert await store.receive(group="audit") == []
    # Readers by offset get it.
    assert len((await store.pull()).messages) == 1


async def test_message_that_expires_under_its_lease_is_not_redelivered(store: Consuming) -> None:
    await send(store, "a", "b", "c")
    got = await store.receive()
    await store.clock.advance(LIFE_MS)
    # A delivery before the end counts to its end.
    assert await store.ack(got[0]) == [OK]
    assert await store.change(got[1]) == [OK]
    assert await store.receive() == []
    await store.clock.advance(INVISIBLE_MS)
    assert await store.receive() == []
    assert (await lag(store), lapsed(store)) == ([0], 2)
    assert await kinds(store, "b") == ["received", "expired", "lapsed"]


async def test_expired_message_is_no_dead_letter(store: Consuming) -> None:
    await send(store, "a")
    await store.send("b")
    assert len(await store.receive(max_attempts=1)) == 2
    await store.clock.advance(INVISIBLE_MS)
    taken = await store.take()
    assert [record.decode(one.record).queue_offset for one in taken] == [1]
    assert lapsed(store) == 1
    assert (await kinds(store, "a"))[-1] == "lapsed"
    assert [one.in_flight for one in (await store.describe()).queues if one.topic == TOPIC] == [1]


async def test_copy_of_a_failed_message_expires_at_its_time(store: Consuming) -> None:
    expires_at_ms = store.clock.now_ms() + LIFE_MS
    named = {"UNIQ_KEY": "a", record.RETRY_TOPIC: TOPIC, record.EXPIRES: str(expires_at_ms)}
    properties = record.with_crc_mark(encode_properties(named))
    for topic in (retry_topic(GROUP), dlq_topic(GROUP)):
        await store.put(record.encode(record.Record(topic, 0, b"body", properties, reconsume_times=1)))
    named |= {"UNIQ_KEY": "b", record.RETRY_TOPIC: dlq_topic(GROUP)}
    properties = record.with_crc_mark(encode_properties(named))
    await store.put(record.encode(record.Record(retry_topic("rescue"), 0, b"body", properties, reconsume_times=1)))
    await store.clock.advance(LIFE_MS)
    assert await store.receive() == []
    assert lapsed(store) == 1
    # A dead letter stays one, also for a group that receives and retries it.
    assert sorted(names(await store.receive(group="rescue", topic=dlq_topic(GROUP)))) == ["a", "b"]


def retry(n: int, *, topic: str = TOPIC, expires_at_ms: int = 10**12, visible_at_ms: int = 0) -> bytes:
    """A copy of a failed message."""
    named = {"UNIQ_KEY": str(n), record.RETRY_TOPIC: topic, record.EXPIRES: str(expires_at_ms)}
    named[record.VISIBLE_AT] = str(visible_at_ms)
    properties = record.with_crc_mark(encode_properties(named))
    return record.encode(record.Record(retry_topic(GROUP), 0, b"body", properties, reconsume_times=1))


async def test_expired_copies_end_together_and_others_stay(store: Consuming) -> None:
    alive, later = 10**15, store.clock.now_ms() + 1_000
    await store.put(sent("of-other", topic="other"))
    await store.put(*(retry(n, topic="other" if n % 10 == 9 else TOPIC) for n in range(1_000)))
    await store.put(retry(1_000, visible_at_ms=later), retry(1_001, visible_at_ms=later, expires_at_ms=alive))
    await store.put(retry(1_002), retry(1_003, expires_at_ms=alive), retry(1_004))
    assert names(await store.receive(max_count=1, wait_ms=30_000)) == ["1003"]
    assert await store.receive(max_count=1) == []
    assert lapsed(store) == 902
    assert ends(store) <= 150
    assert names(await store.receive(topic="other")) == ["of-other"]
    assert await store.receive(topic="other") == []
    assert lapsed(store) == 1_002
    await store.clock.advance(1_000)
    assert names(await store.receive(max_count=1)) == ["1001"]
    assert lapsed(store) == 1_003


async def test_ordered_group_continues_after_expired_messages(store: Consuming) -> None:
    await send(store, "a", "b", "c")
    await store.send("d")
    (first,) = await store.receive(ordered=True, max_count=1)
    await store.defer(first, ms=LIFE_MS)
    waiting = asyncio.create_task(store.receive(ordered=True, wait_ms=30_000))
    await store.clock.advance(LIFE_MS)
    assert told(await waiting) == [("d", 1)]
    assert lapsed(store) == 3


async def test_receive_waits_past_expired_messages(store: Consuming) -> None:
    await send(store, *(f"old{n}" for n in range(2_000)), life_ms=1)
    await store.clock.advance(1)
    assert await store.ready()
    waiting = asyncio.create_task(store.receive(wait_ms=30_000, max_count=16))
    async with asyncio.timeout(60):
        while lapsed(store) < 2_000:
            await store.describe()
    assert not waiting.done()
    await store.send("new")
    assert names(await waiting) == ["new"]


async def test_receives_of_one_message_pass_expired_ones_together(store: Consuming) -> None:
    await send(store, *(f"old{n}" for n in range(2_000)), life_ms=1)
    await store.send("new")
    await store.clock.advance(1)
    assert names(await store.receive(max_count=1, wait_ms=30_000)) == ["new"]
    assert (lapsed(store), await lag(store)) == (2_000, [1])
    assert ends(store) <= 50


async def test_receives_of_one_message_pass_returned_expired_ones_together(store: Consuming) -> None:
    await send(store, *(f"old{n}" for n in range(500)))
    assert len(await store.receive(max_count=500)) == 500
    await store.clock.advance(INVISIBLE_MS)
    async with asyncio.timeout(60):
        while lapsed(store) < 500:
            assert await store.receive(max_count=1) == []
    assert ends(store) <= 50


async def test_receives_of_one_message_pass_expired_ones_of_a_lite_topic_together(tmp_path: Path) -> None:
    async with Liting(tmp_path / "store") as store:
        await store.write("a", *(f"old{n}" for n in range(500)), DT_EXPIRES="1")
        await store.write("a", "new")
        await store.clock.advance(1)
        assert names(await store.read("a", max_count=1, wait_ms=30_000)) == ["new"]
        assert (lapsed(store), ends(store) <= 50) == (500, True)


@pytest.mark.parametrize("end", ["again", "kill"])
async def test_messages_stay_expired_after_a_restart(store: Consuming, end: str) -> None:
    await send(store, "a", "b")
    (first,) = await store.receive(max_count=1)
    await store.clock.advance(LIFE_MS)
    assert await store.receive() == []
    await store.ack(first)
    await getattr(store, end)()
    assert await lag(store) == [0]
    assert await store.receive() == []
    assert (await kinds(store, "a"))[-1] == "acknowledged"
    assert await kinds(store, "b") == ["lapsed"]


async def test_lite_topic_continues_after_expired_messages(tmp_path: Path) -> None:
    async with Liting(tmp_path / "store") as store:
        await store.write("a", "a1", "a2", DT_EXPIRES="1")
        await store.write("a", "a3")
        await store.clock.advance(1)
        assert names(await store.read("a")) == ["a3"]
        await store.clock.advance(INVISIBLE_MS)
        assert told(await store.read("a")) == [("a3", 2)]


async def test_lite_topic_in_two_queues_keeps_its_order_after_an_expired_message(tmp_path: Path) -> None:
    async with Liting(tmp_path / "store", queues=2) as store:
        await store.write("a", "old", DT_EXPIRES="1")
        await store.write("a", "second", queue=1)
        await store.write("a", "third")
        await store.clock.advance(1)
        (second,) = await store.read("a")
        await store.ack(second)
        assert names([second, *await store.read("a")]) == ["second", "third"]


@pytest.mark.parametrize("life", ["0", "", "soon", "9" * 19])
async def test_message_without_a_proper_expiry_never_expires(store: Consuming, life: str) -> None:
    await store.put(sent("a", DT_EXPIRES=life))
    await store.clock.advance(10 * LIFE_MS)
    (got,) = await store.receive()
    assert (got.message.id, got.message.expires_at_ms) == ("a", 0)


@pytest.mark.parametrize("stop", ["stopped", "killed", "killed behind a checkpoint"])
async def test_lapsed_messages_are_counted_across_starts(store: Consuming, stop: str) -> None:
    await send(store, "a", "b", "c")
    # One lapses under its lease, and one as a returned message.
    got = await store.receive(max_count=2)
    await store.change(got[1])
    await store.clock.advance(LIFE_MS + INVISIBLE_MS)
    assert await store.receive() == []
    assert (await store.describe()).lapsed_messages == lapsed(store) == 3
    if stop == "killed behind a checkpoint":
        await store.node.parts.checkpointer.write()
        await send(store, "d")
        await store.clock.advance(LIFE_MS)
        assert await store.receive() == []
    count = 4 if stop == "killed behind a checkpoint" else 3
    for _ in range(2):
        await (store.again() if stop == "stopped" else store.kill())
        assert (await store.describe()).lapsed_messages == lapsed(store) == count
    await store.stub.DeleteGroup(consumer_pb2.DeleteGroupRequest(name=GROUP), timeout=60)
    await store.kill()
    assert lapsed(store) == 0
