"""Liveness by the age of due messages: when a scheduler should restart, and when a restart would not help."""

from typing import Any

import grpc
import pytest
from duetime.v1 import store_pb2
from duetime_scheduler.batch import make_batch
from duetime_scheduler.liveness import Liveness

from tests.scheduler.conftest import Bench, failing

STUCK_MS = 60_000
SERVED = {(0, 1), (0, 2)}


@pytest.fixture
def liveness(bench: Bench) -> Liveness:
    return Liveness({0: bench.stub}, bench.clock, stuck_ms=STUCK_MS)


async def test_overdue_lane_that_does_not_move_is_stuck(bench: Bench, liveness: Liveness) -> None:
    await bench.send("a")
    bench.clock.move(1_000 + STUCK_MS)
    assert await liveness.why(SERVED) == ""
    bench.clock.move(STUCK_MS - 1)
    assert await liveness.why(SERVED) == ""
    bench.clock.move(1)
    assert await liveness.why(SERVED) == f"lane 0/1 has been overdue for {2 * STUCK_MS} ms"


async def test_lane_that_waits_for_its_time_is_well(bench: Bench, liveness: Liveness) -> None:
    await bench.send("a", level=2)
    for _ in range(4):
        assert await liveness.why(SERVED) == ""
        bench.clock.move(1_000)
    bench.clock.move(STUCK_MS)
    assert await liveness.why(set()) == ""


async def test_shrinking_backlog_of_any_age_is_healthy(bench: Bench, liveness: Liveness) -> None:
    await bench.send("a", "b", "c")
    bench.clock.move(10 * STUCK_MS)
    for entry in range(2):
        assert await liveness.why(SERVED) == ""
        bench.clock.move(STUCK_MS)
        due = await bench.direct.PullDue(store_pb2.PullDueRequest(lane=1, max_count=1, max_bytes=1_000_000), timeout=60)
        assert due.first_entry == entry
        await restore_one(bench, due)
    assert await liveness.why(SERVED) == ""


async def restore_one(bench: Bench, due: Any) -> None:
    batch = make_batch(1, due)
    request = store_pb2.RestoreRequest(records=batch.records, lane=1, first_entry=batch.first)
    answer = await bench.direct.Restore(request, timeout=60)
    assert not answer.statuses


async def test_paused_and_handed_over_lanes_do_not_count(bench: Bench, liveness: Liveness) -> None:
    await bench.send("a")
    bench.clock.move(10 * STUCK_MS)
    assert await liveness.why(SERVED) == ""
    bench.clock.move(STUCK_MS)
    assert await liveness.why({(0, 2)}) == ""
    # It is taken back: its age is measured from now.
    assert await liveness.why(SERVED) == ""


async def test_store_that_does_not_answer_makes_no_scheduler_stuck(bench: Bench, liveness: Liveness) -> None:
    await bench.send("a")
    bench.clock.move(10 * STUCK_MS)
    assert await liveness.why(SERVED) == ""
    bench.clock.move(STUCK_MS)
    bench.proxy.meddlings["ListLanes"].append(failing(grpc.StatusCode.UNAVAILABLE))
    assert await liveness.why(SERVED) == ""
    assert await liveness.why(SERVED) == ""


async def test_store_that_takes_no_writes_makes_no_scheduler_stuck(bench: Bench, liveness: Liveness) -> None:
    await bench.send("a")
    bench.clock.move(10 * STUCK_MS)
    assert await liveness.why(SERVED) == ""
    bench.clock.move(STUCK_MS)
    bench.store.fail("test")
    assert await liveness.why(SERVED) == ""
