"""Cancel over gRPC: by place and by id, the meaning of each answer, and the state after a restart."""

import asyncio
from pathlib import Path

import grpc
import pytest
from duetime.v1 import consumer_pb2, gateway_pb2, message_pb2, pending_pb2, store_pb2
from duetime_format.limits import CANCEL_COUNT_MAX

from tests.store.conftest import restored, sent
from tests.store.running import Running
from tests.store.transacting import COMMIT, ROLLBACK, end, end_of, half, prepare

CANCELLED = pending_pb2.CANCEL_STATUS_CANCELLED
ALREADY_FIRED = pending_pb2.CANCEL_STATUS_ALREADY_FIRED
NOT_FOUND = pending_pb2.CANCEL_STATUS_NOT_FOUND


def ref(message_id: str, entry: int = -1, *, lane: int = 1, topic: str = "") -> pending_pb2.PendingRef:
    """A reference by place; without an entry, by the id alone."""
    if entry < 0:
        return pending_pb2.PendingRef(message_id=message_id, topic=topic)
    return pending_pb2.PendingRef(message_id=message_id, topic=topic, lane=lane, entry=entry)


async def cancel(store: Running, *refs: pending_pb2.PendingRef) -> list[pending_pb2.CancelResult]:
    return list((await store.stub.Cancel(pending_pb2.CancelRequest(messages=refs), timeout=60)).results)


async def statuses(store: Running, *refs: pending_pb2.PendingRef) -> list[int]:
    return [result.status for result in await cancel(store, *refs)]


async def restore(store: Running, first: int, count: int, lane: int = 1) -> list[int]:
    records = restored(store.node.store, lane, first, count)
    return list((await store.put_entries(records, lane=lane, first_entry=first)).statuses)


async def delivered(store: Running) -> list[str]:
    return [message.id for message in (await store.pull()).messages]


async def test_cancelled_message_is_never_delivered(store: Running) -> None:
    await store.put(*[sent(f"m{number}", level=1) for number in range(4)])
    now_ms = store.clock.now_ms()
    results = await cancel(store, ref("m1", 1), ref("m3", 3))
    assert [(one.status, one.due_at_ms) for one in results] == [(CANCELLED, now_ms + 1_000)] * 2
    await store.clock.advance(1_000)
    due = await store.pull_due()
    assert len(due.sizes) >= 1
    assert await restore(store, 0, 4) == [0, 6, 0, 6]
    assert await delivered(store) == ["m0", "m2"]


@pytest.mark.parametrize("by_place", [True, False])
async def test_cancelled_again_it_is_cancelled_still(store: Running, by_place: bool) -> None:
    await store.put(sent("m0", level=1))
    one = ref("m0", 0) if by_place else ref("m0")
    assert await statuses(store, one) == await statuses(store, one) == [CANCELLED]


async def test_place_without_topic_stands_for_the_topic_there(store: Running) -> None:
    await store.put(sent("m0", level=1), sent("m0", level=1, topic="invoices"))
    assert [await statuses(store, ref("m0", 0)) for _ in range(2)] == [[CANCELLED]] * 2
    assert store.node.store.lanes[1].pending_count == 1


@pytest.mark.parametrize("other_level", [0, 1])
async def test_id_alone_of_two_topics_is_refused(store: Running, other_level: int) -> None:
    await store.put(sent("m0", level=1), sent("m0", level=other_level, topic="invoices"), sent("m1", level=1))
    ambiguous, other = await cancel(store, ref("m0"), ref("m1"))
    assert (ambiguous.fault.reason, other.status) == ("ID_AMBIGUOUS", CANCELLED)
    assert "invoices, orders" in ambiguous.fault.message
    assert await statuses(store, ref("m0", topic="orders")) == [CANCELLED]
    assert store.node.store.lanes[1].pending_count == other_level
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await get(store, "m0")
    assert "invoices, orders" in str(refused.value.details())


async def test_locating_ends_nothing(store: Running) -> None:
    await store.put(sent("m0", level=1), sent("m0", topic="invoices"), sent("m1"))
    request = pending_pb2.CancelRequest(messages=[ref("m0"), ref("m1"), ref("m2")], locate=True)
    results = (await store.stub.Cancel(request, timeout=60)).results
    assert [list(one.topics) for one in results] == [["invoices", "orders"], ["orders"], []]
    assert store.node.store.lanes[1].pending_count == 1


async def test_committed_message_is_cancelled_still(store: Running) -> None:
    answer = await prepare(store, half("m0", DELAY="1"))
    await end(store, end_of(store_pb2.Half(offset=answer.offsets[0], position=answer.positions[0]), "m0", COMMIT))
    assert [await statuses(store, ref("m0")) for _ in range(2)] == [[CANCELLED]] * 2


@pytest.mark.parametrize("is_rolled_back", [False, True])
async def test_message_that_is_not_committed_is_not_found(store: Running, is_rolled_back: bool) -> None:
    answer = await prepare(store, half("m0", DELAY="1"))
    if is_rolled_back:
        await end(store, end_of(store_pb2.Half(offset=answer.offsets[0], position=answer.positions[0]), "m0", ROLLBACK))
    assert await statuses(store, ref("m0"), ref("m0", topic="orders")) == [NOT_FOUND] * 2
    reschedule = pending_pb2.Reschedule(message=ref("m0"), delay_ms=1_000)
    request = store_pb2.ReplaceRequest(replacements=[store_pb2.Replacement(reschedule=reschedule)])
    (replaced,) = (await store.stub.Replace(request, timeout=60)).results
    assert replaced.status == pending_pb2.RESCHEDULE_STATUS_NOT_FOUND


async def test_restored_message_has_fired(store: Running) -> None:
    await store.put(sent("m0", level=1), sent("m1", level=1))
    await store.clock.advance(1_000)
    assert not any(await restore(store, 0, 1))
    assert await statuses(store, ref("m0", 0), ref("m0"), ref("m1", 1)) == [ALREADY_FIRED, ALREADY_FIRED, CANCELLED]
    assert await delivered(store) == ["m0"]


async def test_message_without_a_delay_has_fired(store: Running) -> None:
    await store.put(sent("now"))
    assert await statuses(store, ref("now"), ref("now", topic="orders")) == [ALREADY_FIRED] * 2


async def test_retry_of_a_message_has_fired_before(store: Running) -> None:
    await store.put(sent("m0", topic="%RETRY%g", level=1))
    assert await statuses(store, ref("m0", 0), ref("m0")) == [ALREADY_FIRED] * 2
    assert store.node.store.lanes[1].pending_count == 1


@pytest.mark.parametrize("topic", ["rmq_sys_REVIVE_LOG_c", "TRANS_CHECK_MAX_TIME_TOPIC", "DT_GROUPS"])
async def test_a_servers_own_message_is_no_users_to_end(store: Running, topic: str) -> None:
    """As brokers have them among their timers: a store takes them over, but takes none from clients."""
    own, users = sent("own", topic=topic, level=1), sent("m0", level=1)
    assert not any((await store.put(own, users)).statuses)
    refs = [ref("own", 0), ref("own"), ref("own", 7), ref("m0", 1)]
    results = await cancel(store, *refs)
    assert [one.status for one in results] == [0, 0, 0, CANCELLED]
    text = "'own' goes to a system topic; only DueTime itself can end its wait"
    assert {one.fault.message.partition(": ")[2] for one in results[:3]} == {text}
    moves = [store_pb2.Replacement(message=one, reschedule=pending_pb2.Reschedule(delay_ms=50_000)) for one in refs[:3]]
    moved = (await store.stub.Replace(store_pb2.ReplaceRequest(replacements=moves), timeout=60)).results
    assert [one.fault.message for one in moved] == [one.fault.message for one in results[:3]]
    assert store.node.store.lanes[1].pending_count == 1


@pytest.mark.parametrize(
    "wrong",
    [
        ref("other", 0),
        ref("other"),
        ref("m0", 0, topic="mail"),
        ref("m0", topic="mail"),
        ref("other", 99),
        ref("other", 0, lane=77),
        ref("other", 1 << 62),
    ],
)
async def test_missing_message_is_not_found(store: Running, wrong: pending_pb2.PendingRef) -> None:
    await store.put(sent("m0", level=1))
    assert await statuses(store, wrong) == [NOT_FOUND]
    assert store.node.store.lanes[1].pending_count == 1


@pytest.mark.parametrize("wrong", [ref("m0", 5), ref("m0", 0, lane=2), ref("m0", 3, lane=77)])
async def test_wrong_place_is_made_good_by_the_id(store: Running, wrong: pending_pb2.PendingRef) -> None:
    await store.put(sent("m0", level=1))
    assert await statuses(store, wrong) == [CANCELLED]


async def test_each_target_has_its_own_result(store: Running) -> None:
    await store.put(sent("m0", level=1), sent("m1", level=2))
    refs = [ref("m0", 0), ref(""), ref("x" * 256), ref("m1"), ref("m9"), ref("m0", 0), ref("m0", -5)]
    refs[6].lane, refs[6].entry = 1, -5
    results = await cancel(store, *refs)
    assert [one.status for one in results] == [CANCELLED, 0, 0, CANCELLED, NOT_FOUND, CANCELLED, 0]
    assert [one.fault.reason for one in results] == ["", *["INVALID_ARGUMENT"] * 2, "", "", "", "INVALID_ARGUMENT"]
    fields = [[violation.field for violation in one.fault.violations] for one in results]
    assert fields == [[], *[["message.message_id"]] * 2, [], [], [], ["message.entry"]]


async def test_a_call_has_1_to_4096_targets(store: Running) -> None:
    for count in (0, CANCEL_COUNT_MAX + 1):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await cancel(store, *[ref("m", number) for number in range(count)])
        assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert (
        await statuses(store, *[ref(f"m{number}") for number in range(CANCEL_COUNT_MAX)])
        == [NOT_FOUND] * CANCEL_COUNT_MAX
    )


async def test_calls_at_once_end_a_message_once(store: Running) -> None:
    await store.put(*[sent(f"m{number}", level=1) for number in range(20)])
    calls = [cancel(store, *[ref(f"m{number}", number) for number in range(20)]) for _ in range(5)]
    calls += [cancel(store, *[ref(f"m{number}") for number in range(20)]) for _ in range(5)]
    answers = await asyncio.gather(*calls)
    assert {one.status for answer in answers for one in answer} == {CANCELLED}
    assert store.node.store.lanes[1].pending_count == 0
    queue = store.node.store.queues.find("DT_CANCELLED", 0)
    rows = sum(len(found.body) for found in await pulled_ends(store, queue.max_offset)) // 24
    assert rows == 20


async def pulled_ends(store: Running, count: int) -> list[message_pb2.StoredMessage]:
    request = gateway_pb2.PullRequest(topic="DT_CANCELLED", max_count=count)
    return list((await store.stub.Pull(request, timeout=60)).messages)


async def test_cancels_survive_a_restart(tmp_path: Path) -> None:
    async with Running(tmp_path / "store") as store:
        await store.put(*[sent(f"m{number}", level=1) for number in range(4)])
        await cancel(store, ref("m0", 0), ref("m2", 2))
    async with Running(tmp_path / "store") as store:
        assert store.node.store.lanes[1].pending_count == 2
        await store.clock.advance(1_000)
        assert await restore(store, 0, 4) == [6, 0, 6, 0]
        assert await delivered(store) == ["m1", "m3"]
        assert await statuses(store, ref("m0", 0), ref("m1", 1), ref("m2")) == [CANCELLED, ALREADY_FIRED, CANCELLED]


async def test_shard_without_an_index_cancels_by_place(tmp_path: Path) -> None:
    async with Running(tmp_path / "store", index=False) as store:
        await store.put(sent("m0", level=1), sent("m1", level=1))
        results = await cancel(store, ref("m0", 0), ref("m1"))
        assert [one.status for one in results] == [CANCELLED, 0]
        assert results[1].fault.code == grpc.StatusCode.UNIMPLEMENTED.value[0]


async def test_read_only_shard_takes_no_cancels(store: Running) -> None:
    await store.put(sent("m0", level=1))
    store.node.store.fail("the disk is gone")
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await cancel(store, ref("m0", 0))
    assert refused.value.code() == grpc.StatusCode.UNAVAILABLE
    assert store.node.store.lanes[1].pending_count == 1


async def trace(store: Running, message_id: str) -> list[tuple[str, int]]:
    request = consumer_pb2.TraceMessageRequest(id=message_id)
    events = (await store.stub.TraceMessage(request, timeout=60)).events
    return [(consumer_pb2.TraceKind.Name(event.kind).removeprefix("TRACE_KIND_"), event.at_ms) for event in events]


async def get(store: Running, message_id: str) -> gateway_pb2.FoundMessage:
    return await store.stub.GetMessage(gateway_pb2.GetMessageRequest(id=message_id), timeout=60)


async def test_cancelled_message_is_found_as_such(store: Running) -> None:
    await store.put(*[sent(f"m{number}", level=1) for number in range(4)])
    found = await get(store, "m3")
    assert (found.state, found.lane, found.entry) == (gateway_pb2.MESSAGE_STATE_PENDING, 1, 3)
    assert found.before_count == 3
    due_at_ms = found.message.due_at_ms
    await cancel(store, ref("m1", 1), ref("m3", 3))
    found = await get(store, "m3")
    assert (found.state, found.lane, found.entry) == (gateway_pb2.MESSAGE_STATE_CANCELLED, 0, 0)
    assert (found.message.topic, found.message.due_at_ms) == ("orders", due_at_ms)
    assert (await get(store, "m2")).before_count == 1


async def test_trace_has_the_time_of_a_cancel(store: Running) -> None:
    await store.put(sent("m0", level=1), sent("m1", level=1))
    started_ms = store.clock.now_ms()
    await store.clock.advance(300)
    await cancel(store, ref("m0", 0))
    kinds = [("ACCEPTED", started_ms), ("DEFERRED", started_ms)]
    assert await trace(store, "m0") == [*kinds, ("CANCELLED", started_ms + 300)]
    assert await trace(store, "m1") == kinds


async def test_dead_letter_is_found_as_such(store: Running) -> None:
    await store.put(sent("m0", topic="%DLQ%g"))
    assert (await get(store, "m0")).state == gateway_pb2.MESSAGE_STATE_DEAD
