"""Calls that are repeated since their answer was lost: answered as the first was, and carried out once."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from duetime.v1 import pending_pb2, store_pb2
from duetime_format.lanes import TIMER_LANE_FIRST as LANE
from duetime_store.finding.search import LogSearch
from duetime_store.pending.keys import SearchedKey
from duetime_store.reading import turns

from tests.store.conftest import restored, timer
from tests.store.running import Running
from tests.store.test_cancelling import CANCELLED, delivered, ref, statuses

RESCHEDULED = pending_pb2.RESCHEDULE_STATUS_RESCHEDULED
FIRED = pending_pb2.RESCHEDULE_STATUS_ALREADY_FIRED


def asked(request_id: str, *, delay_ms: int = 50, entry: int = 0) -> store_pb2.Replacement:
    return store_pb2.Replacement(
        message=ref("m0", entry, lane=LANE),
        reschedule=pending_pb2.Reschedule(delay_ms=delay_ms, body=b"new", request_id=request_id),
    )


def upsert(message_id: str, key: str = "k", **fields: int) -> store_pb2.Replacement:
    return store_pb2.Replacement(record=timer(message_id, 5_000, key=key, **fields))


async def replace(store: Running, *replacements: store_pb2.Replacement) -> list[store_pb2.ReplaceResult]:
    request = store_pb2.ReplaceRequest(replacements=replacements)
    return list((await store.stub.Replace(request, timeout=60)).results)


async def restore_timer(store: Running, entry: int) -> None:
    records = restored(store.node.store, LANE, entry, 1)
    assert list((await store.put_entries(records, lane=LANE, first_entry=entry)).statuses) == []


@pytest.mark.parametrize("entry", [0, -1])
async def test_repeated_reschedule_keeps_the_first_ones_time(store: Running, entry: int) -> None:
    await store.put(timer("m0", 1_000))
    (first,) = await replace(store, asked("a", entry=entry))
    await store.clock.advance(20)
    (second,) = await replace(store, asked("a", entry=entry))
    assert (first.status, second.status, second.duplicate) == (RESCHEDULED, RESCHEDULED, True)
    assert (second.entry, second.due_at_ms) == (first.entry, first.due_at_ms)
    (other,) = await replace(store, asked("b", entry=entry))
    assert (other.status, other.due_at_ms - first.due_at_ms) == (RESCHEDULED, 20)


@pytest.mark.parametrize("entry", [0, -1])
async def test_repeated_reschedule_that_has_fired_was_carried_out(store: Running, entry: int) -> None:
    await store.put(timer("m0", 1_000))
    (first,) = await replace(store, asked("a", entry=entry))
    await store.clock.advance(50)
    await restore_timer(store, first.entry)
    (again,) = await replace(store, asked("a", entry=entry))
    assert (again.status, again.due_at_ms) == (RESCHEDULED, first.due_at_ms)
    assert [one.status for one in await replace(store, asked("b", entry=entry), asked("", entry=entry))] == [FIRED] * 2
    assert await delivered(store) == ["m0"]


async def test_fired_message_was_not_rescheduled(store: Running) -> None:
    await store.put(timer("m0", 1_000))
    await store.clock.advance(1_000)
    await restore_timer(store, 0)
    assert [one.status for one in await replace(store, asked("a"), asked("a", entry=-1))] == [FIRED] * 2


async def test_requests_at_once_with_one_name_are_carried_out_once(store: Running) -> None:
    await store.put(timer("m0", 1_000))
    answers = await asyncio.gather(*(replace(store, asked("a")) for _ in range(5)))
    assert len({(one.status, one.entry, one.due_at_ms) for (one,) in answers}) == 1
    assert store.node.store.lanes[LANE].pending_count == 1


async def test_cancel_in_between_is_not_undone(store: Running) -> None:
    await store.put(timer("m0", 1_000))
    await replace(store, asked("a"))
    assert await statuses(store, ref("m0", 0, lane=LANE), ref("m0", 0, lane=LANE)) == [CANCELLED] * 2
    (again,) = await replace(store, asked("a"))
    assert again.status == pending_pb2.RESCHEDULE_STATUS_NOT_FOUND


async def test_repeated_upsert_names_the_same_replaced_message(tmp_path: Path) -> None:
    async with Running(tmp_path / "store") as store:
        await replace(store, upsert("a"))
        answers = await replace(store, upsert("b"), upsert("b"))
        answers += await replace(store, upsert("b"))
    async with Running(tmp_path / "store") as store:
        answers += await replace(store, upsert("b"))
        assert [one.replaced_id for one in answers] == ["a"] * 4
        assert [one.duplicate for one in answers] == [False, True, True, True]
        assert store.node.store.lanes[LANE].pending_count == 1


@pytest.mark.parametrize("with_checkpoint", [True, False])
async def test_repeated_upsert_that_has_fired_was_carried_out(tmp_path: Path, with_checkpoint: bool) -> None:
    async with Running(tmp_path / "store") as store:
        await replace(store, upsert("a"))
        (first,) = await replace(store, upsert("b"))
        await store.clock.advance(5_000)
        await restore_timer(store, first.entry)
        at_ms = store.clock.now_ms()
    if not with_checkpoint:
        (tmp_path / "store" / "checkpoint").unlink()
    async with Running(tmp_path / "store") as store:
        await store.clock.advance(at_ms - store.clock.now_ms())
        (again,) = await replace(store, upsert("b"))
        assert (again.entry, again.duplicate, again.replaced_id) == (first.entry, True, "a")
        assert await delivered(store) == ["b"]
        assert store.node.store.lanes[LANE].pending_count == 0


async def test_id_of_a_replaced_upsert_is_rejected_and_its_repeat_is_answered(store: Running) -> None:
    (_, first, _) = await replace(store, upsert("a"), upsert("b", born_at_ms=7), upsert("c"))
    (again,) = await replace(store, upsert("b", born_at_ms=8))
    assert (again.fault.reason, again.fault.metadata["end"]) == ("MESSAGE_CANCELLED", "REPLACED")
    # The same send: the client did not get the first answer.
    (repeated,) = await replace(store, upsert("b", born_at_ms=7))
    assert (repeated.entry, repeated.replaced_id, repeated.HasField("fault")) == (first.entry, "a", False)
    assert store.node.store.lanes[LANE].pending_count == 1


@pytest.mark.parametrize("wrong", ["a b", "a\x01", "a\x02b", "ü", "a" * 33])
async def test_odd_names_of_requests_are_refused(store: Running, wrong: str) -> None:
    await store.put(timer("m0", 1_000))
    (answer,) = await replace(store, asked(wrong))
    assert answer.HasField("fault")
    assert store.node.store.lanes[LANE].pending_count == 1


def flushes(store: Running) -> float:
    return store.node.registry.get_sample_value("duetime_store_flush_seconds_count") or 0.0


async def test_upserts_of_one_key_are_not_flushed_together(store: Running) -> None:
    """A power cut during a flush may leave any of its records: the last one alone would end only the one before it."""
    before = flushes(store)
    assert [one.replaced_id for one in await replace(store, *[upsert(f"a{n}", f"k{n}") for n in range(3)])] == [""] * 3
    assert flushes(store) == before + 1
    results = await replace(store, *[upsert(f"b{n}", "k0") for n in range(3)], upsert("b3", "k1"))
    assert [one.replaced_id for one in results] == ["a0", "b0", "b1", "a1"]
    assert flushes(store) == before + 4


async def test_upserts_of_several_keys_share_their_flushes(store: Running) -> None:
    """One flush for all first upserts of their keys, one for all second ones."""
    before = flushes(store)
    results = await replace(store, *[upsert(f"{key}{n}", key) for key in ("k", "l", "m") for n in range(3)])
    assert [one.replaced_id for one in results] == [*("", "k0", "k1"), *("", "l0", "l1"), *("", "m0", "m1")]
    assert flushes(store) == before + 3
    assert store.node.store.lanes[LANE].pending_count == 3


async def test_reschedules_and_upserts_of_one_call_keep_their_order(store: Running) -> None:
    await replace(store, upsert("m0"))
    results = await replace(store, asked("r"), upsert("a"), upsert("b"), upsert("c", "other"))
    assert [(one.status, one.replaced_id) for one in results] == [
        *((RESCHEDULED, replaced) for replaced in ("", "m0", "a", ""))
    ]
    last = await replace(store, upsert("d"), asked("s", entry=-1), upsert("e", "other"))
    assert [one.replaced_id for one in last] == ["b", "", "c"]
    assert last[1].status != RESCHEDULED
    assert store.node.store.lanes[LANE].pending_count == 2


async def test_upserts_that_were_cut_off_leave_less_to_their_repeat(
    store: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index is so large that a part is one key."""
    find, parts, is_stuck = LogSearch.find, list[list[str]](), asyncio.Event()

    async def slow(search: LogSearch, walk: Any, wanted: Sequence[Any], enough_s: float) -> int:
        parts.append([one.word for one in wanted])
        if len(parts) == 3:
            is_stuck.set()
            await asyncio.Event().wait()
        return await find(search, walk, wanted[:1], enough_s)

    monkeypatch.setattr(LogSearch, "find", slow)
    request = store_pb2.ReplaceRequest(replacements=[upsert(f"m{n}", f"k{n}") for n in range(4)])
    call = store.stub.Replace(request, timeout=60)
    async with asyncio.timeout(60):
        await is_stuck.wait()
    call.cancel()
    results = (await store.stub.Replace(request, timeout=60)).results
    assert parts == [["k0", "k1", "k2", "k3"], ["k1", "k2", "k3"], ["k2", "k3"], ["k2", "k3"], ["k3"]]
    assert [one.status for one in results] == [RESCHEDULED] * 4
    assert store.node.store.lanes[LANE].pending_count == 4


async def test_a_search_of_many_keys_ends_when_its_time_is_up(store: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    follow, now = LogSearch._follow, [1.0]

    async def slow(search: LogSearch, *arguments: Any) -> None:
        now[0] += 0.4
        await follow(search, *arguments)

    monkeypatch.setattr(LogSearch, "_follow", slow)
    monkeypatch.setattr(turns, "REST", 0.0)
    search = store.node.parts.replacing._keys._search
    wanted = [SearchedKey(("orders", f"k{n}")) for n in range(9)]
    for enough_s, count in ((1.0, 3), (0.1, 1), (0.0, 1)):
        with turns.ScanTurns(lambda: now[0]).walk() as walk:
            walk.start()
            assert await search.find(walk, wanted, enough_s) == count
