"""Coalescing: sends put together, sends that wait, and sends never in two concurrent puts."""

import asyncio
from collections.abc import AsyncIterator
from typing import NamedTuple

import pytest
from duetime_core.errors import DueTimeError, Overloaded, Unavailable
from duetime_core.testing import FakeClock
from duetime_gateway.metrics import GatewayMetrics
from duetime_gateway.shards.batcher import (
    PUT_BYTES_MAX,
    SECOND_PUT_BYTES_MIN,
    SECOND_PUT_COUNT_MIN,
    SLOW_PUT_MS,
    Batcher,
    PutResult,
    SharedPut,
)
from prometheus_client import CollectorRegistry

KIB = 1024
# Enough for a put beside another one.
SECOND = bytes(SECOND_PUT_BYTES_MIN)


class Begun(NamedTuple):
    records: bytes
    timeout_ms: float


class Puts:
    """A shard whose answers the test gives; `begun` is filled with each put."""

    def __init__(self) -> None:
        self.begun: asyncio.Queue[Begun] = asyncio.Queue()
        self.answers: list[asyncio.Future[PutResult]] = []

    async def put(self, one: SharedPut) -> PutResult:
        answer = asyncio.get_running_loop().create_future()
        self.answers.append(answer)
        self.begun.put_nowait(Begun(one.records, one.timeout_ms))
        return await answer

    async def next(self) -> Begun:
        async with asyncio.timeout(60):
            return await self.begun.get()

    def answer(self, put: int, count: int, first: int = 0) -> None:
        self.answers[put].set_result(PutResult([], range(first, first + count), [], {}, {}))


class Running:
    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        self.puts = Puts()
        self.clock = FakeClock()
        metrics = GatewayMetrics(CollectorRegistry()).puts.of_shard(0)
        self.batcher = Batcher(self.puts.put, self.clock, metrics, 0, 100 * KIB, tasks)

    def submit(
        self,
        *records: bytes,
        deadline_ms: float = 1_000,
        order: object | None = None,
        caller: str = "",
    ) -> "asyncio.Future[PutResult]":
        return self.batcher.submit(b"".join(records), len(records), deadline_ms=deadline_ms, order=order, caller=caller)

    async def fill(self) -> None:
        """Brings two puts in flight, so that later sends wait."""
        self.submit(b"first")
        assert (await self.puts.next()).records == b"first"
        self.submit(SECOND)
        assert (await self.puts.next()).records == SECOND


async def turn() -> None:
    """Lets everything that is ready run once."""
    future = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(future.set_result, None)
    await future


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    async def run() -> None:
        async with asyncio.TaskGroup() as tasks:
            started.set_result(Running(tasks))
            await asyncio.Event().wait()

    started: asyncio.Future[Running] = asyncio.get_running_loop().create_future()
    task = asyncio.ensure_future(run())
    one = await started
    yield one
    one.batcher.stop()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_sends_of_one_turn_are_put_together(running: Running) -> None:
    results = [running.submit(b"a", b"b"), running.submit(b"c")]
    assert (await running.puts.next()).records == b"abc"
    running.puts.answer(0, 3, first=7)
    assert [list((await result).queue_offsets) for result in results] == [[7, 8], [9]]


async def test_sends_during_two_puts_join_the_next(running: Running) -> None:
    await running.fill()
    results = [running.submit(b"%d" % n) for n in range(9)]
    assert running.puts.begun.empty()
    running.puts.answer(0, 1)
    running.puts.answer(1, 1)
    assert (await running.puts.next()).records == b"012345678"
    running.puts.answer(2, 9)
    assert [list((await result).queue_offsets) for result in results] == [[n] for n in range(9)]


async def test_one_more_put_finds_out_whether_a_slow_shard_refuses(running: Running) -> None:
    await running.fill()
    running.clock.move(SLOW_PUT_MS - 1)
    waiting = running.submit(b"a")
    await turn()
    assert running.puts.begun.empty()
    running.clock.move(1)
    refused = running.submit(b"b")
    assert (await running.puts.next()).records == b"ab"
    running.puts.answers[2].set_exception(Unavailable("the disk has not answered", reason="FLUSH_STALLED"))
    for result in (waiting, refused):
        with pytest.raises(Unavailable):
            await result
    # Only one at a time.
    running.submit(b"c")
    assert (await running.puts.next()).records == b"c"
    running.submit(b"d")
    await turn()
    assert running.puts.begun.empty()


async def test_one_caller_leaves_room_to_others(running: Running) -> None:
    await running.fill()
    part = bytes(10 * KIB)
    for _ in range(6):
        running.submit(part, caller="greedy")
    with pytest.raises(Overloaded, match="61440 bytes of greedy wait for shard 0; its limit is 64000") as refused:
        running.submit(part, caller="greedy")
    assert refused.value.reason == "SHARD_OVERLOADED"
    running.submit(part, part, caller="other")
    running.submit(bytes(KIB), caller="newcomer")
    running.puts.answer(0, 1)
    assert len((await running.puts.next()).records) == 81 * KIB
    running.submit(b"waits", caller="other")
    running.submit(part, part, caller="greedy")


async def test_second_put_is_begun_only_with_enough_in_it(running: Running) -> None:
    running.submit(b"a")
    await running.puts.next()
    for _ in range(SECOND_PUT_COUNT_MIN - 1):
        running.submit(b"b")
    await turn()
    assert running.puts.begun.empty()
    running.submit(b"b")
    assert (await running.puts.next()).records == b"b" * SECOND_PUT_COUNT_MIN


async def test_put_has_at_most_4096_records_and_8_mib(running: Running) -> None:
    await running.fill()
    running.submit(*[b"a"] * 4_000)
    running.submit(*[b"b"] * 97)
    running.puts.answer(0, 1)
    assert (await running.puts.next()).records == b"a" * 4_000
    running.puts.answer(1, 1)
    assert (await running.puts.next()).records == b"b" * 97


async def test_one_entry_may_be_larger_than_a_put(running: Running) -> None:
    running.submit(bytes(PUT_BYTES_MAX + 1))
    assert len((await running.puts.next()).records) == PUT_BYTES_MAX + 1


async def test_each_caller_gets_its_slice_of_every_column(running: Running) -> None:
    results = [running.submit(b"a"), running.submit(b"b", b"c"), running.submit(b"d")]
    await running.puts.next()
    refused = DueTimeError("no", reason="RECORD_REFUSED")
    stored = PutResult([0, 4, 1, 0], [1, 2, 3, 4], [10, 20, 30, 40], {1: refused}, {2: 7})
    running.puts.answers[0].set_result(stored)
    first, second, third = [await result for result in results]
    assert [list(one.queue_offsets) for one in (first, second, third)] == [[1], [2, 3], [4]]
    assert [list(one.statuses) for one in (first, second, third)] == [[0], [4, 1], [0]]
    assert [list(one.due_at_ms) for one in (first, second, third)] == [[10], [20, 30], [40]]
    assert [{at: fault.reason for at, fault in one.faults.items()} for one in (first, second, third)] == [
        {},
        {0: "RECORD_REFUSED"},
        {},
    ]
    assert [one.duplicate_queues for one in (first, second, third)] == [{}, {1: 7}, {}]


async def test_entries_of_one_order_are_never_in_two_puts_at_once(running: Running) -> None:
    stream = object()
    running.submit(b"a", order=stream)
    assert (await running.puts.next()).records == b"a"
    running.submit(b"b", order=stream)
    running.submit(SECOND)
    running.submit(b"c", order=stream)
    assert (await running.puts.next()).records == SECOND
    running.puts.answer(1, 1)
    running.submit(SECOND)
    assert (await running.puts.next()).records == SECOND
    running.puts.answer(0, 1)
    running.puts.answer(2, 1)
    assert (await running.puts.next()).records == b"bc"


async def test_caller_that_gave_up_takes_its_records_out(running: Running) -> None:
    await running.fill()
    kept, given_up = running.submit(b"a"), running.submit(b"b")
    given_up.cancel()
    running.puts.answer(0, 1)
    running.puts.answer(1, 1)
    assert (await running.puts.next()).records == b"a"
    running.puts.answer(2, 1)
    assert list((await kept).queue_offsets) == [0]


async def test_failed_put_fails_its_callers_and_no_others(running: Running) -> None:
    failed = running.submit(b"a")
    await running.puts.next()
    fine = running.submit(SECOND)
    await running.puts.next()
    running.puts.answers[0].set_exception(Unavailable("gone"))
    running.puts.answer(1, 1)
    with pytest.raises(Unavailable, match="gone"):
        await failed
    assert list((await fine).queue_offsets) == [0]
    assert len(running.puts.answers) == 2, "a put is never repeated"


async def test_answer_with_too_few_columns_is_no_answer(running: Running) -> None:
    result = running.submit(b"a", b"b")
    await running.puts.next()
    running.puts.answer(0, 1)
    with pytest.raises(Unavailable, match="answered 1 of 2 records"):
        await result


async def test_put_is_given_until_the_latest_deadline_in_it(running: Running) -> None:
    running.submit(b"a", deadline_ms=300)
    running.submit(b"b", deadline_ms=700)
    running.clock.move(100)
    assert (await running.puts.next()).timeout_ms == 600


async def test_too_many_waiting_bytes_are_refused(running: Running) -> None:
    await running.fill()
    running.submit(bytes(60 * KIB))
    with pytest.raises(Overloaded, match="61440 bytes wait for shard 0; the limit is 102400") as caught:
        running.submit(bytes(60 * KIB))
    assert (caught.value.reason, caught.value.retriable) == ("SHARD_OVERLOADED", True)
    running.puts.answer(0, 1)
    running.puts.answer(1, 1)
    await running.puts.next()
    running.submit(bytes(60 * KIB))


async def test_stop_fails_waiting_and_new_sends(running: Running) -> None:
    await running.fill()
    waiting = running.submit(b"a")
    running.batcher.stop()
    with pytest.raises(DueTimeError, match="stopping"):
        await waiting
    with pytest.raises(DueTimeError, match="stopping"):
        running.submit(b"b")
    running.puts.answer(0, 1)
