"""Schedules paused by the shard, in lanes that are no longer offered, and with times too far ahead."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from duetime.v1 import schedules_pb2
from duetime_format import record
from duetime_store.writing.planner import UNPLANNED, OccurrencePlanner

from tests.store.scheduling import LANE, MINUTE_MS, asked
from tests.store.test_retention import Shard
from tests.store.test_schedule_calls import LOOK, PAUSE, RESUME, change, failing, occur, planned, put

YEAR_MS = 365 * 86_400_000


async def test_each_listed_time_is_at_most_ten_years_ahead(tmp_path: Path) -> None:
    async with Shard(tmp_path / "store") as shard:
        now_ms = shard.clock.now_ms()
        far = schedules_pb2.ListedTimes(at_ms=[now_ms + MINUTE_MS, now_ms + 11 * YEAR_MS])
        assert "schedule.at" in await failing(put(shard, at=far), "INVALID_ARGUMENT")
        near = schedules_pb2.ListedTimes(at_ms=[now_ms + MINUTE_MS, now_ms + 9 * YEAR_MS])
        assert (await put(shard, at=near)).created


@pytest.mark.parametrize("rule", [{}, {"cron": schedules_pb2.CronRule(expression="* * * * *")}])
async def test_a_schedule_paused_by_a_fault_resumes_when_it_is_put_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rule: dict[str, object]
) -> None:
    async with Shard(tmp_path / "store") as shard:
        first = await put(shard, **rule)
        begin_ms = first.schedule.next_at_ms[0]
        with monkeypatch.context() as broken:
            broken.setattr("duetime_store.writing.occurrences.following", _fail)
            broken.setattr(OccurrencePlanner, "plan", lambda _, run, *__: np.full(run.count, UNPLANNED))
            shard.clock.move(begin_ms - shard.clock.now_ms())
            await occur(shard)
        (paused,) = [(await change(shard, LOOK)).schedule]
        assert (paused.paused, paused.pause_reason) == (True, "no such zone")
        shard.clock.move(MINUTE_MS // 2)
        assert (await put(shard, create_only=True, **rule)).unchanged
        again = await put(shard, **rule)
        assert (again.created, again.unchanged, again.schedule.paused, again.schedule.pause_reason) == (
            False,
            False,
            False,
            "",
        )
        assert again.schedule.next_at_ms == [begin_ms + MINUTE_MS]
        assert (await put(shard, **rule)).unchanged


def _fail(*_: object) -> int:
    raise ValueError("no such zone")


async def test_a_schedule_in_a_lane_that_is_no_longer_offered_changes_and_leaves_it(tmp_path: Path) -> None:
    second = LANE + 1
    names = ("paused", "active", "skipped")
    async with Shard(tmp_path / "store", timer_lanes=2) as shard:
        for name in names:
            request = asked(name, missed=schedules_pb2.MISSED_POLICY_SKIP if name == "skipped" else 0)
            request.record = _in_queue(request.record, 1)
            answer = await shard.stub.PutSchedule(request, timeout=60)
            assert answer.schedule.lane == second
        clock = shard.clock
    async with Shard(tmp_path / "store", timer_lanes=1) as shard:
        shard.clock.move(max(clock.now_ms() - shard.clock.now_ms(), 0))
        assert (await change(shard, PAUSE, "paused")).schedule.lane == LANE
        assert not (await change(shard, RESUME, "paused")).schedule.paused
        shard.clock.move(3 * MINUTE_MS)
        await occur(shard)
        await occur(shard, lane=second)
        for name in names:
            assert (await change(shard, LOOK, name)).schedule.lane == LANE
        assert shard.node.store.lanes[second].pending_count == 0
        assert len(await planned(shard)) == 2


def _in_queue(data: bytes, queue: int) -> bytes:
    return record.encode(replace(record.decode(data, check_crc=False), queue=queue))
