"""The number of copies that wait in lanes for a group: exact after ends, restarts and damage of derived files."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from duetime.v1 import consumer_pb2, store_pb2
from duetime_format import record
from duetime_format.names import SCHEDULE_TOPIC, retry_topic
from duetime_format.properties import encode_properties
from duetime_store.writing.ends import replace
from duetime_store.writing.staging import OK

from tests.store.groups.running import EXPIRED, GROUP, INVISIBLE_MS, TOPIC, Consuming, copy, told

HOUR_MS = 3_600_000


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Consuming]:
    async with Consuming(tmp_path / "store") as running:
        yield running


def waiting(message_id: str, *, group: str = GROUP, of_topic: str = TOPIC, **more: str) -> bytes:
    """A copy that waits in the lane of level 2, an hour, as the retry service puts it."""
    named = {"UNIQ_KEY": message_id, record.RETRY_TOPIC: of_topic, **more}
    properties = encode_properties(named | record.deferral(2, retry_topic(group), 0))
    return record.encode(record.Record(SCHEDULE_TOPIC, 1, b"body", record.with_crc_mark(properties), reconsume_times=1))


async def counts(store: Consuming, group: str = GROUP) -> tuple[int, int]:
    """Waiting retries and when the first is due; the gauge has the same number."""
    found = await store.stub.DescribeGroup(consumer_pb2.DescribeGroupRequest(name=group), timeout=60)
    gauge = store.node.registry.get_sample_value("duetime_store_waiting_retries", {"group": group})
    assert found.waiting_retries == (gauge or 0)
    return found.waiting_retries, found.next_retry_at_ms


async def end(store: Consuming, *entries: int, discard: bool, lane: int = 2) -> tuple[int, int]:
    request = store_pb2.EndStoredRetriesRequest(group=GROUP, discard=discard)
    request.lanes.extend([lane] * len(entries))
    request.entries.extend(entries)
    answer: Any = await store.stub.EndRetries(request, timeout=60)
    return answer.ended_count, answer.gone_count


@pytest.mark.parametrize("again", ["kill", "again"])
async def test_counts_are_the_same_after_a_restart(store: Consuming, again: str) -> None:
    due_ms = store.clock.now_ms() + HOUR_MS
    await store.put(waiting("a"), waiting("b"), waiting("x", group="others"))
    await store.clock.advance(1_000)
    await store.put(waiting("c"))
    assert await end(store, 0, discard=True) == (1, 0)
    assert await counts(store) == (2, due_ms)
    await getattr(store, again)()
    assert await counts(store, "others") == (1, due_ms)
    assert (await counts(store))[0] == 2
    assert await end(store, 1, discard=False) == (1, 0)
    await getattr(store, again)()
    assert (await counts(store))[0] == 2


async def test_counts_survive_a_damaged_table(store: Consuming) -> None:
    await store.put(waiting("a"), waiting("b"))

    def damage() -> None:
        for path in store.settings.data_dir.glob("duetimeCounts*"):
            path.write_bytes(b"?" * 100)

    await store.again()
    await store.kill(damage)
    assert (await counts(store))[0] == 2


async def test_only_copies_of_the_group_end(store: Consuming) -> None:
    await store.put(waiting("a"), waiting("x", group="others"))
    # Another group's, one that is not there, and one twice.
    assert await end(store, 0, 0, 1, 7, discard=True) == (1, 3)
    assert await end(store, 0, discard=False) == (0, 1)
    assert (await counts(store))[0] == 0
    assert (await counts(store, "others"))[0] == 1


async def test_a_copy_that_is_due_now_keeps_its_message(store: Consuming) -> None:
    await store.put(waiting("a", **{record.ATTEMPTS: '{"attempts":[[1,2,3,"E","why",""]]}'}))
    assert await end(store, 0, discard=False) == (1, 0)
    count, due_ms = await counts(store)
    assert (count, due_ms) == (1, pytest.approx(store.clock.now_ms(), abs=10))
    # It is due already.
    await store.clock.advance(10)
    assert await end(store, 0, discard=False, lane=1_000) == (0, 1)
    assert await end(store, 0, discard=True, lane=1_000) == (1, 0)


async def test_a_reset_ends_copies_from_its_offset_on(store: Consuming) -> None:
    await store.send("a", "b", "c")
    await store.ack(*await store.receive())
    copies = [waiting(name, **{record.ORIGIN: f"0:{offset}"}) for offset, name in enumerate("abc")]
    # One of another topic, and one that does not say where it came from.
    others = waiting("d", of_topic="other", **{record.ORIGIN: "0:2"}), waiting("e")
    await store.put(*copies, *others)
    planned = await store.reset(offset=1, dry_run=True)
    assert (planned.retries_ended, (await counts(store))[0]) == (2, 5)
    assert await store.reset(offset=1) == planned
    await store.kill()
    assert (await counts(store))[0] == 3
    assert sorted(one.message.id for one in await store.receive()) == ["b", "c"]
    assert (await store.reset(earliest=True)).retries_ended == 1
    assert (await counts(store))[0] == 2


async def test_a_reset_ends_due_copies_not_received(store: Consuming) -> None:
    await store.send("a", "b", "c", "d")
    await store.ack(*await store.receive())
    later_ms = store.clock.now_ms() + 500
    copies = [copy(name, origin=f"0:{offset}") for offset, name in enumerate("abc")]
    # Other copies stay: one of the first message, one of another topic, one without origin, and one that is due later.
    hidden = copy("a", origin="0:0", visible_at_ms=later_ms, attempt=4)
    await store.put(*copies[:2], copy("x", of_topic="other", origin="0:3"), hidden, copy("y"), copies[2])
    planned = await store.reset(offset=1, dry_run=True)
    assert planned.retries_ended == 2
    assert await store.reset(offset=1) == planned
    await store.kill()
    assert sorted(told(await store.receive())) == [("a", 2), ("b", 1), ("c", 1), ("d", 1), ("y", 2)]
    assert told(await store.receive()) == []
    await store.clock.advance(500)
    assert told(await store.receive()) == [("a", 5)]
    assert [one.message.id for one in await store.receive(topic="other", queues=[])] == ["x"]


@pytest.mark.parametrize("is_killed", [False, True])
async def test_a_reset_ends_due_copies_that_are_leased(store: Consuming, is_killed: bool) -> None:
    await store.send("a", "b")
    await store.ack(*await store.receive())
    await store.put(copy("a", origin="0:0"), copy("b", origin="0:1"))
    leased = await store.receive()
    await store.change(leased[0], ms=0)
    assert (await store.reset(earliest=True)).retries_ended == 2
    if is_killed:
        await store.kill()
    assert told(await store.receive()) == [("a", 1), ("b", 1)]
    assert await store.ack(*leased) == [EXPIRED] * 2
    await store.clock.advance(INVISIBLE_MS)
    assert told(await store.receive()) == [("a", 2), ("b", 2)]


async def test_a_reset_ends_due_copies_before_the_first_receive_of_retries(store: Consuming) -> None:
    await store.send("a")
    await store.ack(*await store.receive(retry_queues=[]))
    await store.put(copy("a", origin="0:0"))
    assert (await store.reset(earliest=True)).retries_ended == 1
    assert told(await store.receive()) == [("a", 1)]


async def test_reset_without_space_for_remaining_retries_changes_nothing(tmp_path: Path) -> None:
    async with Consuming(tmp_path / "small", leases_max=20) as store:
        await store.send("a", "b")
        await store.ack(*await store.receive())
        await store.put(*[copy("a", origin="0:0")] * 11, copy("b", origin="0:1"))
        with pytest.raises(grpc.aio.AioRpcError, match="11 retries stay before retries") as caught:
            await store.reset(offset=1)
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (await store.describe()).queues[0].next_offset == 2
        assert (await store.reset(earliest=True)).retries_ended == 2
        assert told(await store.receive()) == [("a", 1), ("b", 1)]


async def test_a_reset_ends_copies_that_are_being_stored(store: Consuming) -> None:
    await store.send("a", "b")
    await store.ack(*await store.receive())
    # Both are staged in the step in which the reset begins.
    assert replace(store.node.store, waiting("a", **{record.ORIGIN: "0:0"}), None).statuses == [OK]
    assert replace(store.node.store, copy("b", origin="0:1"), None).statuses == [OK]
    request = consumer_pb2.ResetGroupRequest(name=GROUP, topic=TOPIC, earliest=True)
    request.queues.add()
    (row,) = (await store.node.parts.group_calls.reset(request)).queues
    assert row.retries_ended == 2
    assert (await counts(store))[0] == 0
    assert told(await store.receive()) == [("a", 1), ("b", 1)]


async def test_a_deletion_ends_copies_that_are_being_stored(store: Consuming) -> None:
    await store.send("a", "b")
    await store.ack(*await store.receive())
    await store.put(waiting("a"))
    assert replace(store.node.store, waiting("b"), None).statuses == [OK]
    assert replace(store.node.store, copy("c"), None).statuses == [OK]
    await store.stub.DeleteGroup(consumer_pb2.DeleteGroupRequest(name=GROUP, force=True), timeout=60)
    await store.kill()
    assert (await counts(store))[0] == 0
    await store.clock.advance(HOUR_MS)
    assert told(await store.receive()) == [("a", 1), ("b", 1)]
