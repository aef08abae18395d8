"""Sends for any time, and in the place of others, through a gateway."""

from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from duetime.v1 import gateway_pb2
from duetime_core.errors import DiskFull
from duetime_format import record
from duetime_format.levels import DELAY_MS_MAX
from duetime_format.properties import decode_properties
from google.rpc import code_pb2

from tests.gateway.conftest import NOW_MS, Gateway, TappedStore, error_of, message, real_store, tapped_store, waiting

AT_MS = NOW_MS + 5_000_000


async def test_results_name_the_lane_and_the_due_time(tapped: Gateway, taps: list[TappedStore]) -> None:
    sent = [
        message(delay_ms=90_001, id="a", queue=0),
        message(deliver_at_ms=AT_MS, id="b", queue=0),
        message(deliver_at_ms=5, id="c", queue=0),
        message(delay_ms=5_000, id="d", queue=0),
        message(id="e", queue=0),
    ]
    results = await tapped.send(*sent)
    assert [one.lane for one in results] == [1_000, 1_000, 1_000, 2, 0]
    assert [one.delay_level for one in results] == [0, 0, 0, 2, 0]
    assert [one.deliver_at_ms for one in results] == [NOW_MS + 90_001, AT_MS, NOW_MS + 1, NOW_MS + 5_000, 0]
    assert [one.was_past for one in results] == [False, False, True, False, False]
    assert [one.offset for one in results] == [0, 1, 2, 0, 0]
    # Without a past one the answer is packed, and says the same.
    for one in sent:
        one.id += "2"
    again = await tapped.send(*sent[:2], sent[3], sent[4])
    assert [(one.lane, one.deliver_at_ms) for one in again] == [
        (1_000, NOW_MS + 90_001),
        (1_000, AT_MS),
        (2, NOW_MS + 5_000),
        (0, 0),
    ]
    asked = [decode_properties(one.properties) for one in taps[results[0].shard].records[:3]]
    assert [one.get(record.TIMER_DELAY_MS) for one in asked] == ["90001", None, None]
    assert [one.get(record.TIMER_DELIVER_MS) for one in asked] == [None, str(AT_MS), "5"]
    assert [one[record.TIMER_OUT_MS] for one in asked] == [f"{90_001:013d}", str(AT_MS - 1), f"{10**12:013d}"]


async def test_lanes_follow_the_queue(tmp_path: Path) -> None:
    async with real_store(tmp_path, timer_lanes=3) as store, Gateway(tmp_path, {0: store.port}) as gateway:
        for turn in range(2):
            # The first is encoded one by one, since the shard does not know the topic; the second is packed.
            sent = [message(delay_ms=60_007, queue=queue, id=f"m{queue}-{turn}") for queue in range(4)]
            results = await gateway.send(*sent)
            assert [one.lane for one in results] == [1_000, 1_001, 1_002, 1_000]
        # The result of a repeated message is that of the first one.
        (result,) = await gateway.send(message(delay_ms=60_007, queue=0, id="m2-0"))
        assert (result.queue, result.lane, result.duplicate) == (2, 1_002, True)


async def test_a_shard_without_timer_lanes_refuses_single_messages(tmp_path: Path) -> None:
    async with tapped_store(tmp_path) as tap:
        tap.after["Describe"] = lambda _, answer: answer.ClearField("timer_lane_count")
        async with Gateway(tmp_path, {0: tap.port}) as gateway:
            refused, taken = await gateway.send(message(delay_ms=7), message(delay_ms=5_000))
            assert (refused.fault.code, refused.fault.reason) == (code_pb2.UNIMPLEMENTED, "NOT_SUPPORTED")
            assert refused.fault.violations[0].field == "delay_ms"
            assert taken.lane == 2
            # Started again with lanes, it takes them: routes keep nothing of its former state.
            tap.after.clear()
            gateway.node.parts.shards.get(0)._lose("it starts again")
            (result,) = await gateway.send(message(delay_ms=7))
            assert result.lane == 1_000


async def test_a_message_replaces_the_one_with_its_key(tapped: Gateway, taps: list[TappedStore]) -> None:
    first, other = await tapped.send(
        message(b"1", delay_ms=5_000, keys=["cart-1"], replace=True, max_wait_ms=60_000, id="one"),
        message(b"2", delay_ms=5_000, keys=["cart-2"], replace=True, id="two"),
    )
    # A level's delay too: messages that may be replaced wait in lanes for any time.
    assert (first.lane, first.delay_level, first.replaced_id) == (1_000, 0, "")
    assert (first.queue, other.queue) == (crc32(b"cart-1") % 4, crc32(b"cart-2") % 4)
    (second,) = await tapped.send(
        message(b"3", deliver_at_ms=NOW_MS + 50_000, keys=["cart-1"], replace=True, id="three")
    )
    assert (second.replaced_id, second.deliver_at_ms, second.shard) == ("one", NOW_MS + 50_000, first.shard)
    assert {one.message.id for one in await waiting(tapped)} == {"two", "three"}
    asked = [one for call in taps[first.shard].requests["Replace"] for one in call.replacements]
    assert [one.max_wait_ms for one in asked if b"cart-1" in one.record] == [60_000, 0]
    assert not any(tap.requests["PutStream"] for tap in taps)


@pytest.mark.parametrize("other", [{"body": b"2"}, {"delay_ms": 6_000}, {"keys": ["cart-2"]}, {"tags": "late"}])
async def test_replacement_with_the_id_of_another_content_is_refused(gateway: Gateway, other: dict[str, Any]) -> None:
    fields: dict[str, Any] = {"body": b"1", "delay_ms": 5_000, "keys": ["cart-1"], "replace": True, "id": "one"}
    first, again, refused = await gateway.send(
        message(**fields, properties={"traceparent": "a"}),
        message(**fields, properties={"traceparent": "b"}),
        message(**fields | other),
    )
    assert (first.duplicate, again.duplicate, again.offset) == (False, True, first.offset)
    assert (refused.fault.reason, refused.message_id) == ("ID_REUSED", "one")
    assert [one.message.body for one in await waiting(gateway)] == [b"1"]


async def test_replacement_with_the_id_of_a_plain_message_is_refused(gateway: Gateway) -> None:
    plain, refused = await gateway.send(
        message(b"1", delay_ms=5_000, id="one"),
        message(b"1", delay_ms=5_000, id="one", keys=["cart-1"], replace=True),
    )
    assert (plain.duplicate, refused.fault.reason) == (False, "ID_REUSED")


async def test_many_replace_in_calls_of_their_own_size(
    tmp_path: Path, tap: TappedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A store flushes for each repetition of a key: thousands would take it seconds.
    most = 32
    monkeypatch.setattr("duetime_gateway.shards.shard.REPLACE_COUNT_MAX", most)
    count = 2 * most + 5
    keyed = [message(delay_ms=7, keys=["same"], replace=True, id=f"m{n}") for n in range(count)]
    async with Gateway(tmp_path, {0: tap.port}) as gateway:
        results = await gateway.send(*keyed, message(id="plain"))
        assert [one.replaced_id for one in results[:-1]] == ["", *(f"m{n}" for n in range(count - 1))]
        assert results[-1].lane == 0
        assert [len(one.replacements) for one in tap.requests["Replace"]] == [most, most, 5]
        assert [one.message.id for one in await waiting(gateway)] == [f"m{count - 1}"]


async def test_a_shard_that_refuses_replacements_harms_no_other(tapped: Gateway, taps: list[TappedStore]) -> None:
    keys = {crc32(f"k{n}".encode()) % 4: f"k{n}" for n in range(40)}
    sent = [message(delay_ms=7, keys=[keys[queue]], replace=True) for queue in range(4)]
    await tapped.send(*sent)
    taps[0].refuse(DiskFull("no room"), "Replace")
    results = await tapped.send(*sent)
    assert {one.fault.reason for one in results if one.HasField("fault")} == {"DISK_FULL"}
    assert all(one.replaced_id for one in results if not one.HasField("fault"))
    assert sum(one.HasField("fault") for one in results) == 2


async def test_a_topic_limits_the_delay_of_its_messages(gateway: Gateway) -> None:
    made = await gateway.stub.CreateTopic(gateway_pb2.CreateTopicRequest(name="short", max_delay_ms=60_000))
    assert made.max_delay_ms == 60_000
    for _ in range(2):
        results = await gateway.send(
            *(message(topic="short", delay_ms=delay_ms) for delay_ms in (60_000, 60_001)),
            *(message(topic="short", delay_level=level) for level in (5, 6)),
        )
        assert [one.fault.reason for one in results] == ["", "MESSAGE_INVALID", "", "MESSAGE_INVALID"]
    described = await gateway.stub.DescribeTopic(gateway_pb2.DescribeTopicRequest(name="short"))
    assert described.topic == made
    await gateway.send(message())
    listed = await gateway.stub.ListTopics(gateway_pb2.ListTopicsRequest())
    assert {one.name: one.max_delay_ms for one in listed.topics} == {"short": 60_000, "orders": 0}
    again = await gateway.stub.CreateTopic(gateway_pb2.CreateTopicRequest(name="short", max_delay_ms=60_000))
    assert again == made
    other = gateway.stub.CreateTopic(gateway_pb2.CreateTopicRequest(name="short"))
    assert (await error_of(other)).details() == "topic short exists with a longest delay of 60000 ms, not ten years"


async def test_a_topics_limit_is_within_ten_years(gateway: Gateway) -> None:
    for limit in (-1, DELAY_MS_MAX + 1):
        call = gateway.stub.CreateTopic(gateway_pb2.CreateTopicRequest(name="t", max_delay_ms=limit))
        assert (await error_of(call)).details() == f"max_delay_ms: {limit} is not within 0 and {DELAY_MS_MAX}"
