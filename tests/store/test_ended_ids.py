"""Sends with the id of a message that ended: each is refused with the end, and revives nothing."""

from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
from duetime.v1 import message_pb2, pending_pb2, store_pb2
from duetime_store.writing import ends

from tests.store.conftest import Shard, sent, timer
from tests.store.running import Running
from tests.store.test_cancelling import cancel, delivered, ref, restore
from tests.store.transacting import COMMIT, ROLLBACK, end, end_of, half, prepare, prepared

REFUSED, DUPLICATE = store_pb2.PUT_STATUS_REFUSED, store_pb2.PUT_STATUS_DUPLICATE
TIMERS = 1_000
HOUR_MS = 3_600_000


@pytest.fixture
async def timed(tmp_path: Path) -> AsyncIterator[Running]:
    async with Running(tmp_path / "store", timer_lanes=1) as store:
        yield store


async def refusal(store: Running, one: bytes) -> message_pb2.Fault:
    answer = await store.put(one)
    assert list(answer.statuses) == [REFUSED]
    return answer.faults[0]


async def upsert(store: Running, one: bytes, max_wait_ms: int = 0) -> store_pb2.ReplaceResult:
    replacement = store_pb2.Replacement(record=one, max_wait_ms=max_wait_ms)
    (result,) = (await store.stub.Replace(store_pb2.ReplaceRequest(replacements=[replacement]), timeout=60)).results
    return result


async def reschedule(store: Running, where: pending_pb2.PendingRef, delay_ms: int) -> store_pb2.ReplaceResult:
    asked = store_pb2.Replacement(reschedule=pending_pb2.Reschedule(message=where, delay_ms=delay_ms))
    (result,) = (await store.stub.Replace(store_pb2.ReplaceRequest(replacements=[asked]), timeout=60)).results
    return result


def told(fault: message_pb2.Fault) -> tuple[str, str, bool]:
    assert (fault.metadata["topic"], "new id" in fault.message) == ("orders", True)
    return fault.reason, fault.metadata["end"], fault.retriable


CANCELLED = ("MESSAGE_CANCELLED", "CANCELLED", False)
REPLACED = ("MESSAGE_CANCELLED", "REPLACED", False)


@pytest.mark.parametrize("level", [0, 1])
async def test_send_after_cancel_is_refused(timed: Running, level: int) -> None:
    await timed.put(sent("A", level=1))
    await cancel(timed, ref("A", 0))
    assert told(await refusal(timed, sent("A", level=level))) == CANCELLED
    assert timed.node.store.lanes[1].pending_count == 0


async def test_cancelled_id_harms_no_other_message(timed: Running) -> None:
    await timed.put(sent("A", level=1))
    await cancel(timed, ref("A", 0))
    answer = await timed.put(sent("B"), sent("A"), sent("A", topic="other"), sent("C"))
    assert list(answer.statuses) == [0, REFUSED, 0, 0]
    assert await delivered(timed) == ["B", "C"]


async def test_batch_with_cancelled_id_is_refused_whole(timed: Running) -> None:
    await timed.put(sent("A", level=1))
    await cancel(timed, ref("A", 0))
    records = sent("B") + sent("A") + sent("C")
    answer = await timed.stub.Put(store_pb2.PutRequest(records=records, batches=[0, 3]), timeout=60)
    assert [told(answer.faults[index]) for index in range(3)] == [CANCELLED] * 3
    assert timed.node.store.queues.get_bytes(b"orders", 0).max_offset == 0


async def test_cancelled_id_is_known_after_restart(tmp_path: Path) -> None:
    async with Running(tmp_path / "store", timer_lanes=1) as store:
        await store.put(sent("A", level=1), timer("B", HOUR_MS))
        await upsert(store, timer("C", HOUR_MS, key="k"))
        await upsert(store, timer("D", HOUR_MS, key="k"))
        await cancel(store, ref("A"), ref("B"), ref("D"))
    async with Running(tmp_path / "store", timer_lanes=1) as store:
        found = [told(await refusal(store, timer(one, HOUR_MS))) for one in "ABCD"]
        assert found == [CANCELLED, CANCELLED, REPLACED, CANCELLED]


@pytest.mark.parametrize("checkpoint", [False, True])
def test_cancel_staged_and_recovered_refuses_send(shard: Shard, checkpoint: bool) -> None:
    shard.put(sent("A", level=1))
    lane = shard.store.lanes[1]
    units = lane.units(np.array([0]))
    ends.cancel(shard.store, [(lane, np.array([0]), units["tags"].astype(np.int64))])
    assert shard.store.put(sent("A")).error_of(0).reason == "MESSAGE_CANCELLED"
    shard.flush()
    assert shard.put(sent("A")).error_of(0).reason == "MESSAGE_CANCELLED"
    if checkpoint:
        shard.checkpoint_ids()
    shard.reopen()
    assert shard.put(sent("A")).error_of(0).reason == "MESSAGE_CANCELLED"


async def test_repeat_after_reschedule_gets_current_due_time(timed: Running) -> None:
    await timed.put(sent("A", level=1))
    moved = await reschedule(timed, ref("A", 0), HOUR_MS)
    again = await timed.put(sent("A", level=1))
    assert (list(again.statuses), list(again.due_at_ms)) == ([DUPLICATE], [moved.due_at_ms])
    assert (again.duplicate_lanes[0], list(again.queue_offsets)) == (moved.lane, [moved.entry])
    await cancel(timed, ref("A"))
    assert told(await refusal(timed, sent("A", level=1))) == CANCELLED


async def test_repeat_of_delivered_message_gets_receipt(timed: Running) -> None:
    await timed.put(sent("A", level=1))
    await timed.clock.advance(1_000)
    assert not any(await restore(timed, 0, 1))
    assert list((await timed.put(sent("A", level=1))).statuses) == [DUPLICATE]


async def test_replaced_id_is_refused_with_its_end(timed: Running) -> None:
    await upsert(timed, timer("A", HOUR_MS, key="k"))
    await upsert(timed, timer("B", HOUR_MS, key="k"))
    assert told(await refusal(timed, timer("A", HOUR_MS))) == REPLACED
    again = timer("A", HOUR_MS, key="k", born_at_ms=2)
    assert told((await upsert(timed, again)).fault) == REPLACED
    await cancel(timed, ref("B"))
    assert told((await upsert(timed, timer("B", HOUR_MS, key="k"))).fault) == CANCELLED
    assert not (await upsert(timed, timer("C", HOUR_MS, key="k"))).HasField("fault")


async def test_stream_names_the_end(timed: Running) -> None:
    await upsert(timed, timer("A", HOUR_MS, key="k"))
    await upsert(timed, timer("B", HOUR_MS, key="k"))
    requests = [store_pb2.PutRequest(records=timer("A", 5)), store_pb2.PutRequest(records=sent("C"))]
    answers = [answer async for answer in timed.stub.PutStream(iter(requests), timeout=60)]
    assert [told(one.faults[0]) for one in answers if one.faults] == [REPLACED]


async def test_rolled_back_id_is_refused_with_its_end(timed: Running) -> None:
    (one,) = await prepared(timed, "A")
    await end(timed, end_of(one, "A", ROLLBACK))
    assert told(await refusal(timed, sent("A"))) == ("MESSAGE_CANCELLED", "ROLLED_BACK", False)


@pytest.mark.parametrize(("decision", "name"), [(COMMIT, "COMMITTED"), (ROLLBACK, "ROLLED_BACK")])
async def test_prepare_after_end_is_refused(tmp_path: Path, decision: int, name: str) -> None:
    async with Running(tmp_path / "store") as store:
        (one,) = await prepared(store, "A")
        await end(store, end_of(one, "A", decision))
    async with Running(tmp_path / "store") as store:
        answer = await prepare(store, half("B"), half("A"))
        assert list(answer.statuses) == [0, REFUSED]
        fault = answer.faults[1]
        assert (fault.reason, fault.metadata["end"], fault.retriable) == (f"TRANSACTION_{name}", name, False)


async def test_prepare_with_the_id_of_a_cancelled_message_is_refused_with_its_end(timed: Running) -> None:
    await timed.put(sent("A", level=1))
    await cancel(timed, ref("A", 0))
    assert told((await prepare(timed, half("A"))).faults[0]) == CANCELLED


async def test_committed_and_cancelled_id_is_refused(timed: Running) -> None:
    answer = await prepare(timed, half("A", DELAY="1"))
    one = store_pb2.Half(offset=answer.offsets[0], position=answer.positions[0])
    await end(timed, end_of(one, "A", COMMIT))
    await cancel(timed, ref("A"))
    assert told(await refusal(timed, sent("A"))) == CANCELLED
    assert (await prepare(timed, half("A"))).faults[0].reason == "TRANSACTION_COMMITTED"


async def test_upsert_repeated_gets_receipt(timed: Running) -> None:
    await upsert(timed, timer("A", HOUR_MS, key="k"))
    first = await upsert(timed, timer("B", HOUR_MS, key="k", body=b"one"))
    again = await upsert(timed, timer("B", HOUR_MS, key="k", body=b"one"))
    assert (again.duplicate, again.entry, again.due_at_ms, again.replaced_id) == (
        True,
        first.entry,
        first.due_at_ms,
        "A",
    )
    moved = await reschedule(timed, ref("B"), 2 * HOUR_MS)
    again = await upsert(timed, timer("B", HOUR_MS, key="k", body=b"one"))
    assert (again.duplicate, again.entry, again.due_at_ms, again.replaced_id) == (
        True,
        moved.entry,
        moved.due_at_ms,
        "A",
    )


async def test_send_repeated_after_its_replacement_gets_first_answer(timed: Running) -> None:
    await upsert(timed, timer("A", HOUR_MS, key="k", born_at_ms=1))
    first = await upsert(timed, timer("B", HOUR_MS, key="k", born_at_ms=2))
    await upsert(timed, timer("C", HOUR_MS, key="k", born_at_ms=2))
    again = await upsert(timed, timer("B", HOUR_MS, key="k", born_at_ms=2))
    assert (again.duplicate, again.entry, again.due_at_ms, again.replaced_id) == (
        True,
        first.entry,
        first.due_at_ms,
        "A",
    )
    assert timed.node.store.lanes[TIMERS].pending_count == 1
    for other in (
        timer("B", HOUR_MS, key="k", born_at_ms=3),
        timer("B", 2 * HOUR_MS, key="k", born_at_ms=2),
        timer("B", HOUR_MS, key="k", born_at_ms=2, body=b"other"),
    ):
        assert told((await upsert(timed, other)).fault) == REPLACED


@pytest.mark.parametrize(
    "changed",
    [
        timer("A", HOUR_MS, key="k", body=b"two"),
        timer("A", 2 * HOUR_MS, key="k", body=b"one"),
        timer("A", HOUR_MS, key="other", body=b"one"),
    ],
    ids=["body", "due", "key"],
)
async def test_upsert_with_other_content_is_refused(timed: Running, changed: bytes) -> None:
    await upsert(timed, timer("A", HOUR_MS, key="k", body=b"one"))
    fault = (await upsert(timed, changed)).fault
    assert (fault.reason, dict(fault.metadata)) == ("ID_REUSED", {"topic": "orders", "id": "A"})
    assert timed.node.store.lanes[TIMERS].pending_count == 1


async def test_upsert_bounded_by_max_wait_repeats(timed: Running) -> None:
    await upsert(timed, timer("A", HOUR_MS, key="k"), max_wait_ms=5_000)
    assert (await upsert(timed, timer("A", HOUR_MS, key="k"), max_wait_ms=5_000)).duplicate


async def test_upsert_with_id_of_plain_send_is_refused(timed: Running) -> None:
    await timed.put(sent("A"), timer("B", HOUR_MS, key="k"))
    for one in "AB":
        assert (await upsert(timed, timer(one, HOUR_MS, key="k"))).fault.reason == "ID_REUSED"
