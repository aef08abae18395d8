"""Transactions over gRPC: stored records, answers, and the state after a restart."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from duetime.v1 import gateway_pb2, store_pb2
from duetime_format import halves, layout, record
from duetime_format.levels import DELAY_MS_MAX
from duetime_format.limits import ENDS_COUNT_MAX
from duetime_format.names import HALF_TOPIC, OP_TOPIC
from duetime_format.properties import decode_properties

from tests.store.conftest import MIB, sent
from tests.store.running import Running
from tests.store.transacting import (
    COMMIT,
    COMMITTED,
    OPEN,
    ROLLBACK,
    ROLLED_BACK,
    UNKNOWN,
    end,
    end_of,
    ends_of,
    get,
    half,
    ids,
    listed,
    prepare,
    prepared,
)


async def delivered(store: Running) -> list[str]:
    return [message.id for message in (await store.pull()).messages]


async def records_of(store: Running, topic: str) -> list[record.Record]:
    pulled = await store.pull(topic=topic, max_count=1_000, encoding=gateway_pb2.PULL_ENCODING_RECORDS)
    found, at = [], 0
    while at < len(pulled.records):
        found.append(record.decode(pulled.records, at))
        at += found[-1].size
    return found


async def test_half_message_is_invisible_until_committed(store: Running) -> None:
    await store.put(sent("before"))
    (one,) = await prepared(store, "m0")
    assert await delivered(store) == ["before"]
    (result,) = await end(store, end_of(one, "m0"))
    assert (result.state, result.duplicate, result.topic) == (COMMITTED, False, "orders")
    assert (result.sent.message_id, result.sent.queue, result.sent.offset) == ("m0", 0, 1)
    assert await delivered(store) == ["before", "m0"]
    found = (await records_of(store, "orders"))[1]
    assert found.sys_flag & layout.SYS_TRANSACTION == layout.SYS_TRANSACTION_COMMIT
    assert found.prepared_transaction_offset == one.position
    assert halves.commits(found.sys_flag, found.properties) == one.offset
    (op,) = await records_of(store, OP_TOPIC)
    assert (op.body, halves.decision_of(op.properties)) == (b"0,", halves.COMMITTED)


async def test_rolled_back_message_is_never_delivered(store: Running) -> None:
    (one,) = await prepared(store, "m0")
    (result,) = await end(store, end_of(one, "m0", ROLLBACK))
    assert (result.state, result.duplicate, result.HasField("sent")) == (ROLLED_BACK, False, False)
    (result,) = await end(store, end_of(one, "m0", COMMIT))
    assert (result.state, result.duplicate) == (ROLLED_BACK, True)
    assert not await delivered(store)


async def test_id_is_that_of_a_message_or_of_a_transaction(store: Running) -> None:
    """Which first one a repetition would be answered with is then known."""
    await store.put(sent("plain"))
    refused = await prepare(store, half("plain"), half("half"))
    assert [*refused.statuses] == [store_pb2.PUT_STATUS_REFUSED, store_pb2.PUT_STATUS_OK]
    assert refused.faults[0].reason == "MESSAGE_SENT"
    again = await store.put(sent("half"))
    assert ([*again.statuses], again.faults[0].reason) == ([store_pb2.PUT_STATUS_REFUSED], "MESSAGE_PREPARED")
    one = store_pb2.Half(offset=refused.offsets[1], position=refused.positions[1])
    await end(store, end_of(one, "half"))
    again = await store.put(sent("half"))
    assert ([*again.statuses], [*again.queue_offsets]) == ([store_pb2.PUT_STATUS_DUPLICATE], [1])
    assert await delivered(store) == ["plain", "half"]


async def test_second_end_is_answered_with_the_first(store: Running) -> None:
    (one,) = await prepared(store, "m0")
    (first,) = await end(store, end_of(one, "m0"))
    for decision in (COMMIT, ROLLBACK, UNKNOWN):
        (again,) = await end(store, end_of(one, "m0", decision))
        assert (again.state, again.duplicate, again.topic) == (COMMITTED, True, "orders")
        assert (again.sent.offset, again.sent.message_id, again.sent.duplicate) == (first.sent.offset, "m0", True)
    assert await delivered(store) == ["m0"]


async def test_unknown_leaves_it_open(store: Running) -> None:
    (one,) = await prepared(store, "m0")
    (result,) = await end(store, end_of(one, "m0", UNKNOWN))
    assert (result.state, result.duplicate) == (OPEN, False)
    assert ids(await listed(store)) == ["m0"]


async def test_ends_of_one_call_share_a_record_for_each_decision(store: Running) -> None:
    names = [f"m{number}" for number in range(6)]
    halves_of = await prepared(store, *names)
    decisions = [COMMIT, ROLLBACK] * 3
    results = await end(store, *map(end_of, halves_of, names, decisions))
    assert [one.state for one in results] == [COMMITTED, ROLLED_BACK] * 3
    bodies = {halves.decision_of(one.properties): one.body for one in await records_of(store, OP_TOPIC)}
    assert bodies == {halves.COMMITTED: b"0,2,4,", halves.ROLLED_BACK: b"1,3,5,"}
    assert await delivered(store) == ["m0", "m2", "m4"]


async def test_two_ends_in_one_call_count_once(store: Running) -> None:
    (one,) = await prepared(store, "m0")
    results = await end(store, end_of(one, "m0"), end_of(one, "m0", ROLLBACK), end_of(one, "m0"))
    assert [(result.state, result.duplicate) for result in results] == [
        *((COMMITTED, False), (COMMITTED, True), (COMMITTED, True)),
    ]
    assert [result.sent.offset for result in results] == [0, 0, 0]
    assert await delivered(store) == ["m0"]


async def test_ends_at_the_same_time_count_once(store: Running) -> None:
    (one,) = await prepared(store, "m0")
    ends = [end(store, end_of(one, "m0", decision)) for decision in (COMMIT, ROLLBACK) * 8]
    results = [result for (result,) in await asyncio.gather(*ends)]
    assert [result.duplicate for result in results].count(False) == 1
    assert len({result.state for result in results}) == 1
    assert len(await records_of(store, OP_TOPIC)) == 1


async def test_many_ends_of_one_call(store: Running) -> None:
    names = [f"m{number}" for number in range(ENDS_COUNT_MAX)]
    halves_of = await prepared(store, *names)
    results = await end(store, *map(end_of, halves_of, names))
    assert [one.sent.offset for one in results] == list(range(ENDS_COUNT_MAX))
    assert len(await records_of(store, OP_TOPIC)) <= 2 * ENDS_COUNT_MAX // 256
    assert not await listed(store)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"offset": 7}, "TRANSACTION_NOT_FOUND"),
        ({"offset": -1}, "TRANSACTION_NOT_FOUND"),
        ({"position": 1 << 40}, "TRANSACTION_NOT_FOUND"),
        ({"message_id": "other"}, "TRANSACTION_NOT_FOUND"),
        ({"group": "others"}, "TRANSACTION_OF_ANOTHER_GROUP"),
        ({"decision": 0}, "INVALID_ARGUMENT"),
        ({"decision": 9}, "INVALID_ARGUMENT"),
    ],
)
async def test_end_of_another_transaction_is_refused(store: Running, changed: dict[str, object], reason: str) -> None:
    (one,) = await prepared(store, "m0")
    named = {"offset": one.offset, "position": one.position, "message_id": "m0", "group": "g", "decision": COMMIT}
    named |= changed
    asked = store_pb2.Half(offset=named["offset"], position=named["position"])
    wrong = end_of(asked, named["message_id"], named["decision"])
    (result,) = await end(store, wrong, group=named["group"])
    assert (result.fault.reason, result.state) == (reason, 0)
    assert ids(await listed(store)) == ["m0"]


async def test_call_without_ends_or_group_is_refused(store: Running) -> None:
    for group, count in (("g", 0), ("g", ENDS_COUNT_MAX + 1), ("", 1)):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await end(store, *[end_of(store_pb2.Half(), "m0")] * count, group=group)
        assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("column", ["offsets", "positions", "message_ids", "decisions"])
async def test_columns_of_other_lengths_are_refused(store: Running, column: str) -> None:
    (one,) = await prepared(store, "m0")
    request = ends_of("g", [end_of(one, "m0")] * 2)
    getattr(request, column).pop()
    with pytest.raises(grpc.aio.AioRpcError, match=r"for . ends") as refused:
        await store.stub.EndTransactions(request, timeout=60)
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert ids(await listed(store)) == ["m0"]


# --- delays ---------------------------------------------------------------------------------------------------------


async def test_delay_counts_from_the_commit(store: Running) -> None:
    halves_of = await prepared(store, "level", DELAY="2") + await prepared(store, "ms", TIMER_DELAY_MS="5000")
    await store.clock.advance(1_800_000)
    now_ms = store.clock.now_ms()
    level, timed = await end(store, end_of(halves_of[0], "level"), end_of(halves_of[1], "ms"))
    assert (level.sent.delay_level, level.sent.lane, level.sent.deliver_at_ms) == (2, 2, now_ms + 3_600_000)
    assert (timed.sent.delay_level, timed.sent.lane, timed.sent.deliver_at_ms) == (0, 1_000, now_ms + 5_000)
    assert (level.topic, timed.topic) == ("orders", "orders")
    again = await end(store, end_of(halves_of[0], "level"), end_of(halves_of[1], "ms"))
    assert [one.sent.deliver_at_ms for one in again] == [now_ms + 3_600_000, now_ms + 5_000]
    assert [one.sent.lane for one in again] == [2, 1_000]
    assert [lane.pending_count for lane in store.node.store.lanes] == [0, 1, 1]
    await store.clock.advance(5_000)
    assert len((await store.pull_due(1_000)).sizes) == 1


async def test_due_time_that_is_past_at_the_commit_is_now(store: Running) -> None:
    at_ms = store.clock.now_ms() + 1_000
    halves_of = await prepared(store, "m0", "m1", TIMER_DELIVER_MS=str(at_ms))
    (early,) = await end(store, end_of(halves_of[0], "m0"))
    assert (early.sent.deliver_at_ms, early.sent.was_past) == (at_ms, False)
    await store.clock.advance(60_000)
    for is_again in (False, True):
        (late,) = await end(store, end_of(halves_of[1], "m1"))
        assert (late.sent.was_past, late.duplicate) == (True, is_again)


# --- prepares -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("properties", "waits_ms"), [({}, 6_000), ({"CHECK_IMMUNITY_TIME_IN_SECONDS": "60"}, 60_000)])
async def test_answer_has_the_time_of_its_check(store: Running, properties: dict[str, str], waits_ms: int) -> None:
    response = await prepare(store, half("m0", **properties))
    assert list(response.check_at_ms) == [store.clock.now_ms() + waits_ms]
    (one,) = await listed(store)
    assert one.transaction.next_check_at_ms == response.check_at_ms[0]


async def test_repeated_prepare_is_answered_with_the_first(store: Running) -> None:
    first = await prepare(store, half("m0"), half("m1"))
    await store.clock.advance(1_000)
    again = await prepare(store, half("m2"), half("m1"), half("m0", topic="others"))
    assert list(again.statuses) == [0, store_pb2.PUT_STATUS_DUPLICATE, 0]
    assert again.offsets[1] == first.offsets[1]
    assert again.positions[1] == first.positions[1]
    assert again.check_at_ms[1] == first.check_at_ms[1]
    assert ids(await listed(store)) == ["m0", "m1", "m2", "m0"]


async def test_prepare_repeated_after_its_end_opens_nothing(store: Running) -> None:
    (one,) = await prepared(store, "m0")
    await end(store, end_of(one, "m0"))
    again = await prepare(store, half("m0"))
    assert list(again.statuses) == [store_pb2.PUT_STATUS_REFUSED]
    assert again.faults[0].reason == "TRANSACTION_COMMITTED"
    assert not await listed(store)


@pytest.mark.parametrize(
    ("record_of", "fault"),
    [
        (lambda: half("m0", topic="rmq_sys_x"), "is the store's own, or a broker's"),
        (lambda: half("m0", topic="SCHEDULE_TOPIC_XXXX"), "is a lane"),
        (lambda: half("m0", topic="no topic"), "is not 1 to 127 characters"),
        (lambda: half("m0", topic=""), "REAL_TOPIC is missing"),
        (lambda: half("m0", queue=1_024), "queue 1024 is above the highest, 1023"),
        (lambda: half("m0", REAL_TOPIC="x", queue=-1), "REAL_QID '-1' is not a queue number"),
        (lambda: half(""), "UNIQ_KEY of 0 characters"),
        (lambda: half("m0", group=""), "PGROUP '' is not 1 to 120"),
        (lambda: half("m0", DELAY="3"), "level 3 is above the highest, 2"),
        (lambda: half("m0", DELAY="-1"), "DELAY '-1' is not a number of at least 0"),
        (lambda: half("m0", TIMER_DELAY_MS="x"), "TIMER_DELAY_MS 'x' is not a number"),
        (lambda: half("m0", TIMER_DELAY_MS=str(DELAY_MS_MAX + 1)), "ten years"),
        (lambda: half("m0", TIMER_DELIVER_MS="9999999999999"), "ten years"),
        (lambda: half("m0", DELAY="1", TIMER_DELAY_MS="1"), "asks for two delays"),
        (lambda: half("m0", DT_HALF="1"), "property DT_HALF is the store's own"),
        (lambda: half("m0", DT_ENTRY="1:1:1"), "property DT_ENTRY is the store's own"),
        (lambda: sent("m0"), f"is not a record of queue 0 of {HALF_TOPIC}"),
        (lambda: half("m0", body=bytes(MIB)), "the limit is"),
    ],
)
async def test_half_message_that_could_not_be_committed_is_refused(
    store: Running, record_of: Callable[[], bytes], fault: str
) -> None:
    response = await prepare(store, half("good"), record_of())
    assert list(response.statuses) == [0, store_pb2.PUT_STATUS_REFUSED]
    assert fault in response.faults[1].message
    assert response.faults[1].reason == "RECORD_REFUSED"
    assert (response.offsets[1], response.positions[1], response.check_at_ms[1]) == (-1, -1, 0)
    assert ids(await listed(store)) == ["good"]


async def test_half_topic_is_closed_to_other_calls(store: Running) -> None:
    response = await store.put(half("m0"))
    assert "is the store's own, or a broker's" in response.faults[0].message


async def test_shard_bounds_open_transactions(tmp_path: Path) -> None:
    async with Running(tmp_path / "store", transactions_max=6) as store:
        halves_of = await prepared(store, "m0", "m1")
        full = await prepare(store, half("m0"), half("m2"), half("m3"), half("m4"))
        assert list(full.statuses) == [
            *(store_pb2.PUT_STATUS_DUPLICATE, 0, store_pb2.PUT_STATUS_REFUSED, store_pb2.PUT_STATUS_REFUSED),
        ]
        fault = full.faults[2]
        assert (fault.reason, fault.code) == ("TRANSACTIONS_EXHAUSTED", grpc.StatusCode.RESOURCE_EXHAUSTED.value[0])
        assert fault.message.startswith("3 transactions are open; the limit is 6; 3 belong to ")
        assert fault.retriable
        await end(store, end_of(halves_of[0], "m0"))
        await prepared(store, "m3")


# --- restarts -------------------------------------------------------------------------------------------------------


async def test_restart_keeps_open_transactions_and_outcomes(tmp_path: Path) -> None:
    async with Running(tmp_path / "store") as store:
        halves_of = await prepared(store, "m0", "m1", "m2", "m3")
        await end(store, end_of(halves_of[0], "m0"), end_of(halves_of[1], "m1", ROLLBACK))
        before = await listed(store)
    async with Running(tmp_path / "store") as store:
        assert await listed(store) == before
        assert ids(before) == ["m2", "m3"]
        results = await end(store, *[end_of(one, f"m{number}") for number, one in enumerate(halves_of)])
        assert [(one.state, one.duplicate) for one in results] == [
            *((COMMITTED, True), (ROLLED_BACK, True), (COMMITTED, False), (COMMITTED, False)),
        ]
        assert [one.sent.offset for one in results] == [0, 0, 1, 2]
        assert not await listed(store)


# --- looking --------------------------------------------------------------------------------------------------------


async def test_pages_are_of_a_group_a_topic_and_a_time(store: Running) -> None:
    await prepared(store, "a0", "a1", group="a")
    await prepared(store, "b0", topic="mail", group="b")
    await store.clock.advance(10_000)
    until_ms = store.clock.now_ms()
    await prepared(store, "a2", group="a")
    assert ids(await listed(store, page_size=1)) == ["a0", "a1", "b0", "a2"]
    assert ids(await listed(store, group="a", page_size=2)) == ["a0", "a1", "a2"]
    assert ids(await listed(store, topic="mail")) == ["b0"]
    assert ids(await listed(store, prepared_before_ms=until_ms)) == ["a0", "a1", "b0"]
    assert not await listed(store, group="c")
    (one,) = (one.transaction for one in await listed(store, topic="mail"))
    assert (one.group, one.topic, one.queue, one.state) == ("b", "mail", 0, OPEN)
    assert (one.prepared_at_ms, one.checks, one.ended_at_ms) == (until_ms - 10_000, 0, 0)


async def test_impossible_page_is_refused(store: Running) -> None:
    for wrong in (
        {"state": COMMITTED},
        {"page_size": 1_001},
        {"page_token": "x:1"},
        {"state": OPEN, "page_token": "g:0"},
    ):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await listed(store, **wrong)
        assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("by_id", [False, True])
async def test_transaction_is_found(store: Running, by_id: bool) -> None:
    (one,) = await prepared(store, "m0", DELAY="1")
    sought = (None, "m0") if by_id else (one, "")
    found = await get(store, *sought)
    assert found.half.half == one
    assert (found.half.transaction.state, found.HasField("sent")) == (OPEN, False)
    assert decode_properties(record.decode(found.record).properties)["UNIQ_KEY"] == "m0"
    await store.clock.advance(5)
    (ended,) = await end(store, end_of(one, "m0"))
    found = await get(store, *sought)
    assert (found.half.transaction.state, found.half.transaction.next_check_at_ms) == (COMMITTED, 0)
    assert found.half.transaction.ended_at_ms == found.half.transaction.prepared_at_ms + 5
    assert found.sent == ended.sent


async def test_unknown_transaction_is_not_found(store: Running) -> None:
    await prepared(store, "m0")
    for sought in ((None, "other"), (store_pb2.Half(offset=3), ""), (store_pb2.Half(offset=0, position=1 << 40), "")):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await get(store, *sought)
        assert refused.value.code() == grpc.StatusCode.NOT_FOUND
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await get(store)
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_without_an_index_only_a_half_is_found(tmp_path: Path) -> None:
    async with Running(tmp_path / "store", index=False) as store:
        (one,) = await prepared(store, "m0")
        assert (await get(store, one)).half.transaction.message_id == "m0"
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await get(store, None, "m0")
        assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED
