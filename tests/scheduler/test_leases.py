"""LaneLeases of several members on one database, each with a clock of its own."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from duetime_core.metadata import Database, LaneLeaseModel, SchedulerModel, upgrade
from duetime_core.node.members import MemberWatch
from duetime_scheduler.leases import LaneLeases, Tick
from duetime_scheduler.sharing import LaneKey
from sqlalchemy import select

TICK_MS = 500
LANES = {0: range(1, 5)}
ALL = {(0, 1), (0, 2), (0, 3), (0, 4)}


class Member:
    """A scheduler's membership without the rest; `clock_ms` is its own monotonic clock."""

    def __init__(self, url: str, name: str, clock_ms: float = 0) -> None:
        self.name = name
        self.clock_ms = clock_ms
        self.database = Database(url)
        watch = MemberWatch(name, lease_ms=3_000, tick_ms_max=2 * TICK_MS)
        self.leases = LaneLeases(self.database, watch, name, lambda: f"{name}:1", 0)

    async def tick(self, after_ms: float = TICK_MS, lanes: dict[int, range] = LANES) -> Tick:
        self.clock_ms += after_ms
        return await self.leases.tick(lanes, self.clock_ms)


class Members:
    def __init__(self, url: str) -> None:
        self.url = url
        self.all: list[Member] = []

    def add(self, name: str, clock_ms: float = 0) -> Member:
        self.all.append(Member(self.url, name, clock_ms))
        return self.all[-1]

    async def owners(self) -> dict[LaneKey, tuple[str, int]]:
        rows = await self.all[0].database.run(lambda session: session.scalars(select(LaneLeaseModel)).all())
        return {(row.shard, row.level): (row.owner, row.epoch) for row in rows}

    async def names(self) -> set[str]:
        return set(
            await self.all[0].database.run(lambda session: session.scalars(select(SchedulerModel.member_id)).all())
        )


@pytest.fixture
async def members(empty_database_url: str) -> AsyncIterator[Members]:
    await asyncio.to_thread(upgrade, empty_database_url)
    members = Members(empty_database_url)
    yield members
    for member in members.all:
        await member.database.stop()


async def test_the_only_member_takes_all_lanes_at_its_first_tick(members: Members) -> None:
    tick = await members.add("a").tick()
    assert tick.held == ALL
    assert await members.owners() == dict.fromkeys(ALL, ("a", 1))


async def test_a_member_without_a_store_that_answers_adds_no_lanes(members: Members) -> None:
    assert (await members.add("a").tick(lanes={})).held == set()


async def test_new_scheduler_gets_its_share_at_the_owners_next_tick(members: Members) -> None:
    a, b = members.add("a"), members.add("b", clock_ms=9e9)
    await a.tick()
    assert (await b.tick()).held == {(0, 2), (0, 4)}
    assert (await a.tick()).held == {(0, 1), (0, 3)}
    assert {owner for owner, _ in (await members.owners()).values()} == {"a", "b"}


async def test_members_that_start_together_settle_on_even_shares(members: Members) -> None:
    three = [members.add(name) for name in "abc"]
    for _ in range(3):
        ticks = await asyncio.gather(*(member.tick() for member in three))
    assert sorted(len(tick.held) for tick in ticks) == [1, 1, 2]
    assert frozenset().union(*(tick.held for tick in ticks)) == ALL
    before = await members.owners()
    await asyncio.gather(*(member.tick() for member in three))
    assert await members.owners() == before


async def test_lanes_of_a_dead_member_are_taken_over_within_the_lease_and_a_tick(members: Members) -> None:
    a, b = members.add("a"), members.add("b")
    await a.tick()
    await b.tick()
    await a.tick()  # sees b's last heartbeat, 500 ms before it would see the next
    waited_ms = 0
    while (tick := await a.tick()).held != ALL:
        waited_ms += TICK_MS
        assert waited_ms <= 3_000
    assert tick.dead == {"b"}
    assert tick.live == {"a"}
    assert await members.names() == {"a"}


async def test_member_taken_for_dead_returns_with_its_next_tick(members: Members) -> None:
    a, b = members.add("a"), members.add("b")
    await b.tick()
    for _ in range(10):
        await a.tick()
    assert await members.names() == {"a"}
    tick = await b.tick(after_ms=60_000)
    assert tick.live == {"a", "b"}
    assert tick.held == {(0, 2), (0, 4)}
    assert (await a.tick()).held == {(0, 1), (0, 3)}


async def test_a_clean_leave_gives_all_lanes_back_at_once(members: Members) -> None:
    a, b = members.add("a"), members.add("b")
    await a.tick()
    await b.tick()
    await b.leases.release()
    assert await members.names() == {"a"}
    assert (await members.owners())[0, 2] == ("", 3)
    assert (await a.tick()).held == ALL


async def test_a_restart_under_the_same_name_keeps_the_lanes(members: Members) -> None:
    await members.add("a").tick()
    tick = await members.add("a", clock_ms=77_000).tick()
    assert tick.held == ALL
    assert await members.owners() == dict.fromkeys(ALL, ("a", 1))


async def test_lanes_that_their_store_no_longer_has_are_dropped(members: Members) -> None:
    a = members.add("a")
    await a.tick(lanes={0: range(1, 5), 1: range(1, 3)})
    tick = await a.tick(lanes={0: range(1, 3)})
    assert tick.held == {(0, 1), (0, 2), (1, 1), (1, 2)}


async def test_a_pause_is_seen_with_the_next_tick(members: Members) -> None:
    a = members.add("a")
    assert (await a.tick()).paused == set()

    def pause(session) -> None:
        session.get_one(LaneLeaseModel, (0, 3)).paused = True

    await a.database.run(pause)
    tick = await a.tick()
    assert tick.paused == {(0, 3)}
    assert tick.held == ALL


async def test_only_one_of_two_that_claim_the_same_lane_gets_it(members: Members) -> None:
    """Each believes that it is alone: both look before either takes."""
    a, b = members.add("a"), members.add("b")
    for member in (a, b):
        heartbeats, rows = await member.database.run(lambda s, m=member: m.leases._read_rows(s, LANES))
        assert heartbeats[member.name] == 1
    taken = [await member.database.run(lambda s, m=member: m.leases._take(s, rows, {})) for member in (a, b)]
    assert {row.owner for row in taken[0]} == {row.owner for row in taken[1]} == {"a"}
    assert {row.epoch for row in taken[1]} == {1}


async def test_a_member_with_a_late_heartbeat_is_not_removed(members: Members) -> None:
    """It was found dead by its heartbeat of a moment ago, and has moved on since."""
    a, b = members.add("a"), members.add("b")
    await b.tick()
    await a.tick()
    await b.tick()
    await a.database.run(lambda session: a.leases._take(session, [], {"b": 1}))
    assert await members.names() == {"a", "b"}
    await a.database.run(lambda session: a.leases._take(session, [], {"b": 2}))
    assert await members.names() == {"a"}
