"""PutSchedules: many schedules in one call, an answer for each, and one flush for all first ones of their names."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from duetime.v1 import schedules_pb2, store_pb2
from duetime_format import limits

from tests.store.conftest import timer
from tests.store.scheduling import LANE, asked
from tests.store.test_retention import Shard
from tests.store.test_schedule_calls import LOOK, change, failing, occur, put

EVERY = schedules_pb2.IntervalTimes(every_ms=5_000)


@pytest.fixture
async def shard(tmp_path: Path) -> AsyncIterator[Shard]:
    async with Shard(tmp_path / "store") as shard:
        yield shard


async def put_all(shard: Shard, *puts: store_pb2.PutStoredScheduleRequest) -> list[schedules_pb2.PutScheduleResult]:
    request = store_pb2.PutStoredSchedulesRequest(puts=puts)
    return list((await shard.stub.PutSchedules(request, timeout=60)).results)


def flushes(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The batches that are flushed from now on."""
    seen: list[Any] = []
    flusher = shard.node.parts.flusher
    flush = flusher._flush

    async def noted(batch: Any) -> None:
        seen.append(batch)
        await flush(batch)

    monkeypatch.setattr(flusher, "_flush", noted)
    return seen


async def test_each_schedule_has_the_answer_of_its_own_put(shard: Shard) -> None:
    await put(shard, "same")
    await put(shard, "other")
    await shard.stub.Replace(
        store_pb2.ReplaceRequest(replacements=[store_pb2.Replacement(record=timer("B", 1_000, key="cart"))]), timeout=60
    )
    results = await put_all(
        shard,
        asked("new", body=b"four"),
        asked("same"),
        asked("two words"),
        asked("other", body=b"changed"),
        asked("cart"),
        asked("same", body=b"x", create_only=True),
        asked("big", body=b"x" * (limits.SCHEDULE_BODY_BYTES_MAX + 1)),
    )
    puts = [one.put for one in results]
    assert [(one.created, one.unchanged, one.stored_bytes) for one in puts] == [
        *[(True, False, 4), (False, True, 0), (False, False, 0)],
        *[(False, False, 7), (False, False, 0), (False, False, 0), (False, False, 0)],
    ]
    assert [one.fault.reason for one in results] == [
        *["", "", "INVALID_ARGUMENT", "", "KEY_TAKEN", "SCHEDULE_EXISTS", "INVALID_ARGUMENT"]
    ]
    assert [one.schedule.HasField("message") for one in puts] == [False] * 7
    alone = (await put(shard, "new", body=b"four")).schedule
    alone.ClearField("message")
    assert alone == puts[0].schedule
    assert (await change(shard, LOOK, "other")).schedule.message.body == b"changed"
    assert (await change(shard, LOOK, "same")).schedule.message.body == b"body"


async def test_many_new_schedules_share_one_flush(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = flushes(shard, monkeypatch)
    results = await put_all(shard, *(asked(f"s{number}") for number in range(50)))
    assert all(one.put.created for one in results)
    assert len(seen) == 1
    assert all(one.put.unchanged for one in await put_all(shard, *(asked(f"s{number}") for number in range(50))))
    assert len(seen) == 1


async def test_puts_of_one_name_are_performed_in_their_order(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = flushes(shard, monkeypatch)
    bodies = [b"%d" % number for number in range(20)]
    results = await put_all(shard, *(asked(name, body=body) for body in bodies for name in ("a", "b")))
    assert [one.put.schedule.version for one in results] == [number for number in range(1, 21) for _ in "ab"]
    assert len(seen) == 20
    assert (await change(shard, LOOK, "b")).schedule.message.body == b"19"
    assert shard.node.store.lanes[LANE].pending_count == 2


async def test_calls_with_the_same_names_leave_one_occurrence_each(shard: Shard) -> None:
    names = [f"s{number}" for number in range(10)]
    await asyncio.gather(
        *(
            put_all(shard, *(asked(name, body=b"%d" % call) for name in names[:: 1 - 2 * (call % 2)]))
            for call in range(6)
        ),
        *(put(shard, name) for name in names),
    )
    assert shard.node.store.lanes[LANE].pending_count == 10
    await occur(shard, 60_000)
    assert shard.node.store.lanes[LANE].pending_count == 10


async def test_a_new_schedule_may_be_paused(shard: Shard) -> None:
    first = asked("a")
    first.schedule.paused = True
    (one,) = await put_all(shard, first)
    assert (one.put.created, one.put.schedule.paused, list(one.put.schedule.next_at_ms)) == (True, True, [])
    assert (await put_all(shard, first))[0].put.unchanged
    await put(shard, "b")
    second = asked("b", body=b"x")
    second.schedule.paused = True
    assert not (await put_all(shard, second))[0].put.schedule.paused


@pytest.mark.parametrize("count", [0, limits.SCHEDULES_PUT_MAX + 1])
async def test_the_number_of_schedules_is_limited(shard: Shard, count: int) -> None:
    assert "puts" in await failing(put_all(shard, *[store_pb2.PutStoredScheduleRequest()] * count), "INVALID_ARGUMENT")


async def test_a_restart_finds_all_of_them(shard: Shard) -> None:
    puts = [asked(f"s{number}", every=EVERY) for number in range(20)]
    await put_all(shard, *puts)
    await shard.restart("")
    assert all(one.put.unchanged for one in await put_all(shard, *puts))
    assert shard.node.store.lanes[LANE].pending_count == 20
