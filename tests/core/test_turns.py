"""Turns: a user's concurrent calls are bounded while others call too, and no user waits for another's work."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from duetime_core.clock import turn
from duetime_core.limits.turns import RECENT_MS, REQUEST_COST, WORK_BYTES, RequestTurns, Turn
from duetime_core.testing.clock import FakeClock
from prometheus_client import CollectorRegistry

# Small requests of one user that are in work at once beside others.
MOST = WORK_BYTES // REQUEST_COST


class Flood:
    """Requests of one user, each with its turn once that has come."""

    def __init__(self, turns: RequestTurns, name: str, count: int, size: int = 0) -> None:
        self.tasks = [asyncio.ensure_future(turns.enter(name, size)) for _ in range(count)]

    @property
    def in_work(self) -> list[Turn]:
        return [task.result() for task in self.tasks if task.done() and not task.cancelled()]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
async def turns(clock: FakeClock, registry: CollectorRegistry) -> AsyncIterator[RequestTurns]:
    """Of a server that bob has called just now."""
    turns = RequestTurns(clock, registry)
    with await turns.enter("bob", 0):
        pass
    yield turns
    assert turns.waiting_count == 0


async def settle() -> None:
    for _ in range(5):
        await turn()


async def give_up(flood: Flood) -> None:
    for task in flood.tasks:
        task.cancel()
    await asyncio.gather(*flood.tasks, return_exceptions=True)


async def test_one_that_floods_has_a_part_in_work_and_another_does_not_wait(
    turns: RequestTurns, registry: CollectorRegistry
) -> None:
    flood = Flood(turns, "alice", 100)
    await settle()
    assert len(flood.in_work) == MOST
    assert registry.get_sample_value("duetime_turns_waiting") == 100 - MOST
    assert registry.get_sample_value("duetime_turns_waited_total") == 100 - MOST
    async with asyncio.timeout(60):
        with await turns.enter("bob", 10 * WORK_BYTES):
            pass
    for one in flood.in_work[:3]:
        one.leave()
    await settle()
    assert len(flood.in_work) == MOST + 3
    await give_up(flood)


async def test_users_with_requests_in_work_have_equal_parts(turns: RequestTurns) -> None:
    first, second = Flood(turns, "alice", 100), Flood(turns, "bob", 100)
    await settle()
    # Alice had all of it before bob came, and half of it by and by.
    for one in first.in_work[: MOST // 2]:
        one.leave()
    await settle()
    assert len(first.in_work) - MOST // 2 == MOST // 2
    assert len(second.in_work) == MOST // 2
    await give_up(first)
    await give_up(second)


async def test_a_large_request_is_in_work_alone_and_in_its_order(turns: RequestTurns) -> None:
    large, small = Flood(turns, "alice", 2, WORK_BYTES), Flood(turns, "alice", 3)
    await settle()
    assert (len(large.in_work), len(small.in_work)) == (1, 0)
    large.in_work[0].leave()
    await settle()
    assert (len(large.in_work), len(small.in_work)) == (2, 0)
    large.in_work[1].leave()
    await settle()
    assert len(small.in_work) == 3


async def test_a_user_alone_lately_has_no_bounds(turns: RequestTurns, clock: FakeClock) -> None:
    clock.move(RECENT_MS)
    flood = Flood(turns, "alice", 100)
    await settle()
    assert len(flood.in_work) == 100


async def test_cancelled_waiter_leaves_no_place_behind(turns: RequestTurns) -> None:
    flood = Flood(turns, "alice", MOST + 2)
    await settle()
    waiting, last = flood.tasks[MOST:]
    waiting.cancel()
    await settle()
    flood.in_work[0].leave()
    await settle()
    assert last.done()
    # One that gives up in the moment in which a turn comes lets the next one have it.
    both = Flood(turns, "alice", 2)
    await settle()
    both.tasks[0].cancel()
    flood.in_work[2].leave()
    await settle()
    assert both.tasks[0].cancelled()
    assert both.tasks[1].done()
    # One that has its turn and is cancelled before it runs gives it to the next.
    late = Flood(turns, "alice", 2)
    await settle()
    flood.in_work[1].leave()
    late.tasks[0].cancel()
    await settle()
    assert late.tasks[0].cancelled()
    assert late.tasks[1].done()


async def test_long_poll_occupies_its_turn_briefly(turns: RequestTurns) -> None:
    polls = Flood(turns, "alice", MOST + 1)
    await settle()
    for one in polls.in_work:
        one.leave_soon()
    assert not polls.tasks[MOST].done()
    async with asyncio.timeout(60):
        await polls.tasks[MOST]
    for one in polls.in_work:
        one.leave()
        one.leave()
    flood = Flood(turns, "alice", MOST)
    await settle()
    assert len(flood.in_work) == MOST
