"""Checks held for watchers: their recipients, and their release to others."""

import asyncio
from collections.abc import Sequence

import pytest
from duetime_core.errors import Overloaded, Unavailable
from duetime_core.testing import FakeClock
from duetime_format.record import Record
from duetime_gateway.metrics import TransactionMetrics
from duetime_gateway.transactions.checks import (
    HANDED_BYTES_MAX,
    HANDED_COUNT_MAX,
    HELD_BYTES_MAX,
    HELD_MS_MAX,
    Desk,
    TransactionQuestion,
)
from duetime_gateway.transactions.names import TransactionName
from prometheus_client import CollectorRegistry

HOST = "ipv4:127.0.0.1"


class Shard:
    """Records the outcome of checks."""

    def __init__(self) -> None:
        self.heard: list[int] = []
        self.unheard: list[int] = []

    def report(self, shard: int, offsets: Sequence[int], heard: bool) -> None:
        (self.heard if heard else self.unheard).extend(offsets)


def checks(count: int, group: str = "billing", size: int = 200) -> list[TransactionQuestion]:
    return [
        TransactionQuestion(TransactionName(0, offset, 0, "id"), group, 1, Record("t", 0, b"", b"", size=size))
        for offset in range(count)
    ]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def shard() -> Shard:
    return Shard()


@pytest.fixture
def desk(clock: FakeClock, shard: Shard) -> Desk:
    return Desk(clock, TransactionMetrics(CollectorRegistry()), shard.report, watchers_max=6)


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_group_is_asked_for_only_while_a_watcher_waits(desk: Desk) -> None:
    watcher = desk.join("billing", HOST)
    assert desk.ready() == []
    changed = desk.changed()
    fetch = asyncio.create_task(desk.fetch(watcher))
    await changed
    assert desk.ready() == ["billing"]
    desk.hold(checks(3))
    assert desk.ready() == []
    assert len(await fetch) == 3
    assert desk.ready() == []


async def test_slow_watcher_delays_no_other(desk: Desk, shard: Shard) -> None:
    slow, quick = desk.join("billing", HOST), desk.join("billing", HOST)
    first, second = asyncio.create_task(desk.fetch(slow)), asyncio.create_task(desk.fetch(quick))
    await turns()
    desk.hold(checks(10))
    # The slow watcher's checks are still being written when the quick one returns for more.
    with desk.handing(await first):
        with desk.handing(await second):
            pass
        again = asyncio.create_task(desk.fetch(quick))
        await turns()
        assert desk.ready() == ["billing"]
        desk.hold(checks(1))
        assert len(await again) == 1
    assert sorted(shard.heard) == list(range(10))


async def test_unfetched_checks_are_left_to_others(desk: Desk, shard: Shard, clock: FakeClock) -> None:
    watcher = desk.join("billing", HOST)
    desk.hold(checks(3))
    clock.move(HELD_MS_MAX - 1)
    assert not shard.unheard
    clock.move(1)
    assert shard.unheard == [0, 1, 2]
    desk.leave(watcher)
    assert shard.unheard == [0, 1, 2]


async def test_failed_write_is_unheard(desk: Desk, shard: Shard) -> None:
    with pytest.raises(asyncio.CancelledError), desk.handing(checks(2)):
        raise asyncio.CancelledError
    assert shard.unheard == [0, 1]


async def test_checks_of_a_disconnected_producer_go_to_the_next(desk: Desk, shard: Shard) -> None:
    first, second = desk.join("billing", HOST), desk.join("billing", HOST)
    waiting = asyncio.create_task(desk.fetch(first))
    await turns()
    other = asyncio.create_task(desk.fetch(second))
    await turns()
    desk.hold(checks(2))
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    desk.leave(first)
    assert len(await other) == 2
    desk.leave(second)
    desk.hold(checks(2))
    assert shard.unheard == [0, 1]


async def test_hands_are_not_too_full(desk: Desk) -> None:
    watcher = desk.join("billing", HOST)
    desk.hold(checks(HANDED_COUNT_MAX + 1))
    assert [len(await desk.fetch(watcher)) for _ in range(2)] == [HANDED_COUNT_MAX, 1]
    desk.hold(checks(3, size=HANDED_BYTES_MAX // 2 + 1))
    assert [len(await desk.fetch(watcher)) for _ in range(3)] == [1, 1, 1]


async def test_no_more_is_taken_than_may_be_held(desk: Desk) -> None:
    busy, waits = desk.join("billing", HOST), desk.join("shipping", HOST)
    fetch = asyncio.create_task(desk.fetch(waits))
    await turns()
    assert desk.ready() == ["shipping"]
    desk.hold(checks(2, size=HELD_BYTES_MAX))
    assert desk.ready() == []
    await desk.fetch(busy)
    await desk.fetch(busy)
    assert desk.ready() == ["shipping"]
    desk.end()
    with pytest.raises(Unavailable):
        await fetch


async def test_end_ends_all(desk: Desk, shard: Shard) -> None:
    watchers = [desk.join("billing", HOST) for _ in range(3)]
    with pytest.raises(Overloaded, match="its limit is 3"):
        desk.join("billing", HOST)
    desk.hold(checks(2))
    desk.end()
    assert (shard.unheard, desk.ready(), desk.ending) == ([0, 1], [], True)
    for watcher in watchers:
        with pytest.raises(Unavailable):
            await desk.fetch(watcher)
        desk.leave(watcher)
    with pytest.raises(Unavailable):
        desk.join("billing", HOST)
    desk.hold(checks(1))
    assert shard.unheard == [0, 1, 0]
