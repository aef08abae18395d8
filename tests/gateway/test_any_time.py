"""Sends for any time, and in the place of others, through a gateway to fake stores."""

from pathlib import Path
from zlib import crc32

import pytest
from duetime.v1 import gateway_pb2, store_pb2
from duetime_core.errors import DiskFull
from duetime_format import record
from duetime_format.levels import DELAY_MS_MAX
from duetime_format.limits import REPLACE_COUNT_MAX
from duetime_format.properties import decode_properties
from google.rpc import code_pb2

from tests.gateway.conftest import Gateway, error_of, message
from tests.gateway.fake_store import NOW_MS, FakeStore

AT_MS = NOW_MS + 5_000_000


async def test_results_name_the_lane_and_the_due_time(faked: Gateway, fakes: list[FakeStore]) -> None:
    sent = [
        message(delay_ms=90_001, id="a", queue=0),
        message(deliver_at_ms=AT_MS, id="b", queue=0),
        message(deliver_at_ms=5, id="c", queue=0),
        message(delay_ms=5_000, id="d", queue=0),
        message(id="e", queue=0),
    ]
    results = await faked.send(*sent)
    assert [one.lane for one in results] == [1_000, 1_000, 1_000, 2, 0]
    assert [one.delay_level for one in results] == [0, 0, 0, 2, 0]
    assert [one.deliver_at_ms for one in results] == [NOW_MS + 90_001, AT_MS, NOW_MS + 1, NOW_MS + 5_000, 0]
    assert [one.was_past for one in results] == [False, False, True, False, False]
    assert [one.offset for one in results] == [0, 1, 2, 0, 0]
    # Without a past one the answer is packed, and says the same.
    again = await faked.send(*sent[:2], sent[3], sent[4])
    assert [(one.lane, one.deliver_at_ms) for one in again] == [
        (1_000, NOW_MS + 90_001),
        (1_000, AT_MS),
        (2, NOW_MS + 5_000),
        (0, 0),
    ]
    shard = fakes[results[0].shard]
    asked = [decode_properties(one.properties) for one in shard.records[:3]]
    assert [one.get(record.TIMER_DELAY_MS) for one in asked] == ["90001", None, None]
    assert [one.get(record.TIMER_DELIVER_MS) for one in asked] == [None, str(AT_MS), "5"]
    assert [one[record.TIMER_OUT_MS] for one in asked] == [f"{90_001:013d}", str(AT_MS - 1), f"{10**12:013d}"]


async def test_lanes_follow_the_queue(tmp_path: Path) -> None:
    fake = FakeStore(0)
    fake.timer_lane_count = 3
    await fake.start()
    try:
        async with Gateway(tmp_path, {0: fake.port}) as gateway:
            sent = [message(delay_ms=7, queue=queue, id=f"m{queue}") for queue in range(4)]
            for _ in range(2):
                # The first is encoded one by one, since the shard does not know the topic; the second is packed.
                results = await gateway.send(*sent)
                assert [one.lane for one in results] == [1_000, 1_001, 1_002, 1_000]
            # A repetition is where the first one was sent to.
            fake.answer = store_pb2.PutResponse(
                statuses=[store_pb2.PUT_STATUS_DUPLICATE],
                queue_offsets=[4],
                duplicate_queues={0: 2},
                duplicate_lanes={0: 1_002},
            )
            (result,) = await gateway.send(message(delay_ms=7, queue=0, id="x"), retry=True)
            assert (result.queue, result.lane, result.duplicate) == (2, 1_002, True)
    finally:
        await fake.stop()


async def test_a_shard_of_release_0_1_refuses_single_messages(tmp_path: Path) -> None:
    fake = FakeStore(0)
    fake.timer_lane_count = 0
    await fake.start()
    try:
        async with Gateway(tmp_path, {0: fake.port}) as gateway:
            refused, taken = await gateway.send(message(delay_ms=7), message(delay_ms=5_000))
            assert (refused.fault.code, refused.fault.reason) == (code_pb2.UNIMPLEMENTED, "NOT_SUPPORTED")
            assert refused.fault.violations[0].field == "delay_ms"
            assert taken.lane == 2
            # Upgraded and reached again, it has lanes: routes keep nothing of what it was.
            fake.timer_lane_count = 1
            gateway.node.parts.shards.get(0)._lose("it is upgraded")
            (result,) = await gateway.send(message(delay_ms=7))
            assert result.lane == 1_000
    finally:
        await fake.stop()


async def test_a_message_replaces_the_one_with_its_key(faked: Gateway, fakes: list[FakeStore]) -> None:
    first, other = await faked.send(
        message(b"1", delay_ms=5_000, keys=["cart-1"], replace=True, max_wait_ms=60_000, id="one"),
        message(b"2", delay_ms=5_000, keys=["cart-2"], replace=True, id="two"),
    )
    # A level's delay too: messages that may be replaced wait in lanes for any time.
    assert (first.lane, first.delay_level, first.replaced_id) == (1_000, 0, "")
    assert (first.queue, other.queue) == (crc32(b"cart-1") % 4, crc32(b"cart-2") % 4)
    (second,) = await faked.send(message(b"3", deliver_at_ms=AT_MS, keys=["cart-1"], replace=True, id="three"))
    assert (second.replaced_id, second.deliver_at_ms, second.shard) == ("one", AT_MS, first.shard)
    shard = fakes[first.shard]
    assert {one.id for fake in fakes for one in fake.pending.waiting} == {"two", "three"}
    asked = [one for request in shard.pending.requests for one in request.replacements]
    assert [one.max_wait_ms for one in asked if b"cart-1" in one.record] == [60_000, 0]
    assert not any(fake.puts for fake in fakes)


async def test_thousands_replace_in_calls_of_their_own_size(faked: Gateway, fakes: list[FakeStore]) -> None:
    count = 2 * REPLACE_COUNT_MAX + 5
    keyed = [message(delay_ms=7, keys=["same"], replace=True, id=f"m{n}") for n in range(count)]
    results = await faked.send(*keyed, message(id="plain"))
    assert [one.replaced_id for one in results[:-1]] == ["", *(f"m{n}" for n in range(count - 1))]
    assert results[-1].lane == 0
    shard = fakes[results[0].shard]
    assert [len(one.replacements) for one in shard.pending.requests] == [REPLACE_COUNT_MAX, REPLACE_COUNT_MAX, 5]
    assert [one.id for one in shard.pending.waiting] == [f"m{count - 1}"]


async def test_a_shard_that_refuses_replacements_harms_no_other(faked: Gateway, fakes: list[FakeStore]) -> None:
    keys = {crc32(f"k{n}".encode()) % 4: f"k{n}" for n in range(40)}
    sent = [message(delay_ms=7, keys=[keys[queue]], replace=True) for queue in range(4)]
    await faked.send(*sent)
    fakes[0].error = DiskFull("no room")
    results = await faked.send(*sent)
    assert {one.fault.reason for one in results if one.HasField("fault")} == {"DISK_FULL"}
    assert all(one.replaced_id for one in results if not one.HasField("fault"))
    assert sum(one.HasField("fault") for one in results) == 2


async def test_a_topic_limits_the_delay_of_its_messages(faked: Gateway) -> None:
    made = await faked.stub.CreateTopic(gateway_pb2.CreateTopicRequest(name="short", max_delay_ms=60_000))
    assert made.max_delay_ms == 60_000
    for _ in range(2):
        results = await faked.send(
            *(message(topic="short", delay_ms=delay_ms) for delay_ms in (60_000, 60_001)),
            *(message(topic="short", delay_level=level) for level in (5, 6)),
        )
        assert [one.fault.reason for one in results] == ["", "MESSAGE_INVALID", "", "MESSAGE_INVALID"]
    described = await faked.stub.DescribeTopic(gateway_pb2.DescribeTopicRequest(name="short"))
    assert described.topic == made
    await faked.send(message())
    listed = await faked.stub.ListTopics(gateway_pb2.ListTopicsRequest())
    assert {one.name: one.max_delay_ms for one in listed.topics} == {"short": 60_000, "orders": 0}
    again = await faked.stub.CreateTopic(gateway_pb2.CreateTopicRequest(name="short", max_delay_ms=60_000))
    assert again == made
    other = faked.stub.CreateTopic(gateway_pb2.CreateTopicRequest(name="short"))
    assert (await error_of(other)).details() == "topic short exists with a most delay of 60000 ms, not ten years"


@pytest.mark.parametrize("max_delay_ms", [-1, DELAY_MS_MAX + 1])
async def test_a_topics_limit_is_within_ten_years(faked: Gateway, max_delay_ms: int) -> None:
    error = await error_of(faked.stub.CreateTopic(gateway_pb2.CreateTopicRequest(name="t", max_delay_ms=max_delay_ms)))
    assert error.details() == f"max_delay_ms: {max_delay_ms} is not within 0 and {DELAY_MS_MAX}"
