"""One lane against a real store, with everything going wrong that can: each message restored once, in order."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import numpy as np
import pytest
from duetime.v1 import store_pb2
from duetime_core.clock import Clock, Timer
from duetime_format import record
from duetime_format.lanes import LanePlace
from duetime_format.properties import decode_properties, encode_properties
from duetime_scheduler.lane import AHEAD_MS, BATCH_COUNT_MAX, FLIGHTS_MAX, Restorer

from tests.scheduler.conftest import Bench, Forward, Meddling, failing
from tests.store.conftest import MIB, sent
from tests.store.duelane import timed, with_timers

SERVED = {"shard": "0", "level": "1"}
# Where records that the store keeps and those that travel go different ways.
BOTH = pytest.mark.parametrize("bench", ["kept", "travelling"], indirect=True)


def restorer(bench: Bench, level: int = 1, clock: Clock | None = None) -> Restorer:
    return Restorer(bench.stub, 0, level, clock or bench.clock, bench.metrics, timeout_ms=5_000)


class NotedClock(Clock):
    """A clock's pauses, as one of those who share it makes them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.pauses: list[float] = []

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def monotonic_ms(self) -> float:
        return self._clock.monotonic_ms()

    def call_later(self, delay_ms: float, callback: Callable[[], Any]) -> Timer:
        return self._clock.call_later(delay_ms, callback)

    async def sleep(self, delay_ms: float) -> None:
        self.pauses.append(delay_ms)
        await super().sleep(delay_ms)


@asynccontextmanager
async def running(*restorers: Restorer) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(restorer.run()) for restorer in restorers]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()


def names(count: int, first: int = 0) -> list[str]:
    return [f"M{number:05}" for number in range(first, first + count)]


@BOTH
async def test_messages_are_restored_at_their_due_time_and_not_before(bench: Bench) -> None:
    async with running(restorer(bench)):
        await bench.send("A")
        bench.clock.move(999)
        await bench.send("B")
        assert bench.ids() == []
        bench.clock.move(1)
        await bench.until(bench.ids, skip_pauses=False)
        assert bench.ids() == ["A"]
        bench.clock.move(999)
        await bench.until(
            lambda: bench.value("duetime_scheduler_restored_messages_total", **SERVED) == 2, skip_pauses=False
        )
    found = bench.stored()
    assert [(one.queue, one.body) for one in found] == [(0, b"body"), (0, b"body")]
    assert [record.find_lane_entry(one.properties)[:2] for one in found] == [(1, 0), (1, 1)]


async def test_backlog_goes_in_full_batches_several_of_which_are_under_way(bench: Bench) -> None:
    await bench.send(*names(9_000))
    bench.clock.move(1_000)
    released = asyncio.Event()

    async def held(request: Any, forward: Forward, context: Any) -> Any:
        await released.wait()
        return await forward(request)

    bench.proxy.meddlings["Restore"] += [held] * FLIGHTS_MAX
    async with running(restorer(bench)):
        await bench.until(lambda: bench.proxy.puts_in_flight == FLIGHTS_MAX, skip_pauses=False)
        released.set()
        await bench.until(lambda: len(bench.ids()) == 9_000)
    assert bench.ids() == names(9_000)
    assert [put.first_entry for put in bench.proxy.puts] == list(range(0, 9_000, BATCH_COUNT_MAX))
    assert bench.proxy.puts_in_flight_max == FLIGHTS_MAX


async def test_a_few_batches_that_are_not_full_are_in_flight(bench: Bench) -> None:
    for first in range(5):
        await bench.send(*names(10, first * 10))
        bench.clock.move(2 * AHEAD_MS)
    bench.clock.move(1_000 - 10 * AHEAD_MS)
    released = asyncio.Event()

    async def held(request: Any, forward: Forward, context: Any) -> Any:
        await released.wait()
        return await forward(request)

    bench.proxy.meddlings["Restore"] += [held] * FLIGHTS_MAX
    async with running(restorer(bench)):
        for count in range(1, FLIGHTS_MAX + 1):
            await bench.until(lambda: bench.proxy.puts_in_flight == count, skip_pauses=False)  # noqa: B023
            bench.clock.move(2 * AHEAD_MS)
        assert not bench.proxy.pulls_in_flight
        released.set()
        await bench.until(lambda: len(bench.ids()) == 50)
    assert bench.ids() == names(50)
    assert bench.proxy.puts_in_flight_max == FLIGHTS_MAX


@BOTH
async def test_batches_behind_one_that_is_put_again_are_put_again_too(bench: Bench) -> None:
    room = bench.store.log.record_bytes_max - len(sent("BIG", level=1, topic="o" * 50, body=b""))
    await bench.put(sent("BIG", level=1, topic="o" * 50, body=bytes(room)))
    bench.clock.move(2 * AHEAD_MS)
    await bench.send(*names(10))
    bench.clock.move(1_000 - 2 * AHEAD_MS)
    both = asyncio.Event()

    async def held(request: Any, forward: Forward, context: Any) -> Any:
        if bench.proxy.puts_in_flight == 2:
            both.set()
        await both.wait()
        return await forward(request)

    bench.proxy.meddlings["Restore"] += [held, held]
    async with running(restorer(bench)):
        await bench.until(lambda: bench.proxy.puts_in_flight, skip_pauses=False)
        bench.clock.move(2 * AHEAD_MS)
        await bench.until(lambda: len(bench.ids()) == 10)
    assert bench.ids() == names(10)
    assert bench.ids("DT_QUARANTINE") == ["BIG"]
    assert bench.value("duetime_scheduler_out_of_step_total", **SERVED, status="GAP") == 0


async def test_entries_are_put_before_they_are_due_and_stored_when_they_are(bench: Bench) -> None:
    await bench.send("A")
    bench.clock.move(10)
    await bench.send("B")
    async with running(restorer(bench)):
        bench.clock.move(990 - AHEAD_MS // 2)
        await bench.until(lambda: bench.proxy.puts, skip_pauses=False)
        assert bench.ids() == []
        bench.clock.move(AHEAD_MS // 2)
        await bench.until(bench.ids, skip_pauses=False)
        assert bench.ids() == ["A"]
        bench.clock.move(10)
        await bench.until(lambda: len(bench.ids()) == 2, skip_pauses=False)
    assert [put.first_entry for put in bench.proxy.puts] == [0]


async def test_next_batch_is_pulled_while_the_last_is_put(bench: Bench) -> None:
    await bench.send(*names(10))
    bench.clock.move(1_000)
    pulled_next, released = asyncio.Event(), asyncio.Event()

    async def held(request: Any, forward: Forward, context: Any) -> Any:
        await released.wait()
        return await forward(request)

    async def noticed(request: Any, forward: Forward, context: Any) -> Any:
        assert request.next == bench.lane().cursor_after(LanePlace(0, 9))
        pulled_next.set()
        return await forward(request)

    async def passed(request: Any, forward: Forward, context: Any) -> Any:
        return await forward(request)

    bench.proxy.meddlings["Restore"].append(held)
    bench.proxy.meddlings["PullDue"] += [passed, noticed]
    async with running(restorer(bench)):
        async with asyncio.timeout(60):
            await pulled_next.wait()
        assert bench.ids() == []
        released.set()
        await bench.until(lambda: len(bench.ids()) == 10)


async def test_released_lane_leaves_no_long_poll(bench: Bench) -> None:
    async with running(restorer(bench)):
        await bench.until(lambda: bench.proxy.pulls_in_flight == 1)
    await bench.until(lambda: bench.proxy.pulls_in_flight == 0, skip_pauses=False)


@pytest.mark.parametrize(
    "code",
    [
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.INTERNAL,
    ],
)
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("call", ["Restore", "PullDue"])
async def test_failed_calls_neither_lose_nor_double(bench: Bench, call: str, after: bool, code: Any) -> None:
    await bench.send(*names(20))
    bench.clock.move(1_000)
    bench.proxy.meddlings[call] += [failing(code, after=after)] * 2
    async with running(restorer(bench)):
        await bench.until(lambda: len(bench.ids()) == 20)
        await bench.send(*names(5, 20))
        bench.clock.move(1_000)
        await bench.until(lambda: len(bench.ids()) == 25)
        # A long poll that ends at its deadline is no error.
        errors = 0 if call == "PullDue" and code == grpc.StatusCode.DEADLINE_EXCEEDED else 2
        labels = {"shard": "0", "call": call, "code": code.name}
        await bench.until(lambda: bench.value("duetime_scheduler_call_errors_total", **labels) == errors)
    assert bench.ids() == names(25)


async def test_pauses_between_attempts_grow_to_a_limit_and_end_with_success(bench: Bench) -> None:
    await bench.send("A")
    bench.clock.move(1_000)
    bench.proxy.meddlings["Restore"] += [failing(grpc.StatusCode.UNAVAILABLE)] * 9
    clock = NotedClock(bench.clock)
    async with running(restorer(bench, clock=clock)):
        await bench.until(bench.ids)
        limits = [50, 100, 200, 400, 800, 1_600, 2_000, 2_000, 2_000]
        assert all(limit / 2 <= pause <= limit for pause, limit in zip(clock.pauses, limits, strict=True))
        bench.proxy.meddlings["Restore"].append(failing(grpc.StatusCode.UNAVAILABLE))
        await bench.send("B")
        bench.clock.move(1_000)
        await bench.until(lambda: len(bench.ids()) == 2)
        assert clock.pauses[-1] <= 50


def answering(*statuses: int, watermark: int = 0) -> Meddling:
    """Answers in the store's place, which does not see the put."""

    async def meddle(request: Any, forward: Forward, context: Any) -> Any:
        return store_pb2.RestoreResponse(statuses=statuses, watermark=watermark)

    return meddle


@BOTH
@pytest.mark.parametrize("status", ["GAP", "NOT_DUE"])
async def test_lane_out_of_step_begins_again_from_the_watermark(bench: Bench, status: str) -> None:
    await bench.send("A", "B")
    bench.clock.move(1_000)
    number = store_pb2.PutStatus.Value(f"PUT_STATUS_{status}")
    bench.proxy.meddlings["Restore"].append(answering(number, number))
    async with running(restorer(bench)):
        await bench.until(lambda: len(bench.ids()) == 2)
    assert bench.ids() == ["A", "B"]
    assert bench.value("duetime_scheduler_out_of_step_total", **SERVED, status=status) == 1


async def test_two_on_one_lane_restore_each_message_once(bench: Bench) -> None:
    async with running(*(restorer(bench) for _ in range(3))):
        for round_number in range(10):
            await bench.send(*names(100, 100 * round_number))
            bench.clock.move(1_000)
            await bench.until(lambda goal=100 * round_number + 100: len(bench.ids()) >= goal)
    assert bench.ids() == names(1_000)


async def test_lane_resumes_with_its_store(bench: Bench) -> None:
    await bench.send(*names(10))
    async with running(restorer(bench)):
        await bench.node.stop()
        await bench.start_store()
        bench.clock.move(1_000)
        await bench.until(lambda: len(bench.ids()) == 10)
    assert bench.ids() == names(10)


async def test_store_that_lost_its_tail_is_followed_back(bench: Bench) -> None:
    """The store answers as if it had more, then turns out to have less: records stored later are not skipped."""

    async def ahead(request: Any, forward: Forward, context: Any) -> Any:
        return store_pb2.PullDueResponse(
            first_entry=50, records=sent("X", level=1), sizes=[len(sent("X", level=1))], due_at_ms=[1], watermark=50
        )

    bench.proxy.meddlings["PullDue"].append(ahead)
    bench.proxy.meddlings["Restore"].append(answering(0))
    async with running(restorer(bench)):
        await bench.until(lambda: bench.proxy.puts)
        await bench.send("A")
        bench.clock.move(1_000)
        async with asyncio.timeout(60):
            while not bench.ids():
                bench.clock.move(1_000)
                await bench.settled()
    assert bench.ids() == ["A"]


@BOTH
async def test_entries_of_a_lane_for_any_time_go_by_their_due_times(bench: Bench) -> None:
    with_timers(bench.store)
    delays = [500, 100, 300, 200, 400, 100]
    await bench.put(*(timed(name, delay_ms=delay) for name, delay in zip("ABCDEF", delays, strict=True)))
    async with running(restorer(bench, 1_000)):
        for moved_ms, expected in ((100, "BF"), (150, "BFD"), (1_000, "BFDCEA")):
            bench.clock.move(moved_ms)
            await bench.until(lambda expected=expected: bench.ids() == list(expected), skip_pauses=False)
        labels = {"shard": "0", "level": "1000"}
        await bench.until(lambda: bench.value("duetime_scheduler_restored_messages_total", **labels) == 6)
    if bench.proxy.may_keep:
        assert [(put.first_entry, put.kept_count) for put in bench.proxy.puts] == [(1, 2), (3, 2), (4, 2)]
    else:
        assert [entry for put in bench.proxy.puts for entry in put.entries or [put.first_entry]] == [1, 5, 3, 2, 4, 0]


async def test_an_entry_that_overtakes_those_that_are_held_is_not_late(bench: Bench) -> None:
    with_timers(bench.store)
    await bench.put(timed("A", delay_ms=500), timed("B", delay_ms=501))
    clock = NotedClock(bench.clock)
    async with running(restorer(bench, 1_000, clock)):
        bench.clock.move(500 - AHEAD_MS // 2)
        await bench.until(lambda: bench.proxy.puts, skip_pauses=False)
        for name in ("X", "Y"):
            await bench.put(timed(name, delay_ms=3))
            bench.clock.move(3)
            await bench.until(lambda name=name: bench.ids()[-1:] == [name], skip_pauses=False)
        assert bench.ids() == ["X", "Y"]
        bench.clock.move(AHEAD_MS)
        await bench.until(lambda: len(bench.ids()) == 4, skip_pauses=False)
    assert bench.ids() == ["X", "Y", "A", "B"]
    assert not clock.pauses


async def test_cancelled_after_the_pull_is_counted_and_skipped(bench: Bench) -> None:
    await bench.send("A", "B", "C", "D")

    async def cancelling(request: Any, forward: Forward, context: Any) -> Any:
        bench.lane().publish_cancel(np.array([1, 2]))
        return await forward(request)

    bench.proxy.meddlings["Restore"].append(cancelling)
    bench.clock.move(1_000)
    async with running(restorer(bench)):
        await bench.until(lambda: len(bench.ids()) == 2)
        await bench.send("E")
        bench.clock.move(1_000)
        await bench.until(lambda: bench.value("duetime_scheduler_restored_messages_total", **SERVED) == 3)
    assert bench.ids() == ["A", "D", "E"]
    assert bench.value("duetime_scheduler_cancelled_messages_total", **SERVED) == 2


async def test_entry_without_a_target_is_quarantined_alone(bench: Bench) -> None:
    properties = encode_properties({"UNIQ_KEY": "BAD"})
    bad = record.encode(record.Record("SCHEDULE_TOPIC_XXXX", 0, b"body", properties))
    await bench.put(sent("A", level=1), bad, sent("B", level=1))
    bench.clock.move(1_000)
    async with running(restorer(bench)):
        await bench.until(lambda: bench.value("duetime_scheduler_restored_messages_total", **SERVED) == 2)
    assert bench.ids() == ["A", "B"]
    (quarantined,) = bench.stored("DT_QUARANTINE")
    assert record.decode(quarantined.body).body == b"body"
    named = decode_properties(quarantined.properties)
    assert (named["UNIQ_KEY"], named["DT_FAULT"]) == ("BAD", "it has no REAL_TOPIC")
    assert bench.lane().watermark == 3
    assert bench.value("duetime_scheduler_quarantined_messages_total", **SERVED) == 1
    assert bench.value("duetime_scheduler_restored_messages_total", **SERVED) == 2


@BOTH
async def test_entry_that_the_store_refuses_is_quarantined_without_its_body_if_that_is_too_big(bench: Bench) -> None:
    room = bench.store.log.record_bytes_max - len(sent("BIG", level=1, topic="o" * 50, body=b""))
    big = sent("BIG", level=1, topic="o" * 50, body=bytes(room))
    await bench.put(sent("A", level=1))
    await bench.put(big)
    await bench.put(sent("B", level=1))
    bench.clock.move(1_000)
    async with running(restorer(bench)):
        await bench.until(lambda: len(bench.ids()) == 2)
    (quarantined,) = bench.stored("DT_QUARANTINE")
    fault = decode_properties(quarantined.properties)["DT_FAULT"]
    assert quarantined.body == b""
    assert fault.startswith("the store rejected it: record of ")
    position = int(bench.lane().queue.read(1, 1)["position"][0])
    assert fault.endswith(f"whole at log position {position}, {len(big)} bytes")
    assert len(big) < MIB


async def test_malformed_record_is_found_among_others(bench: Bench) -> None:
    """The store takes a put with bytes that are no record for no records at all."""
    await bench.send(*names(5))
    bench.clock.move(1_000)
    # The store does not misread its own records.
    bench.proxy.may_keep = False
    # Else the store would not have it put aside.
    bench.node.store.originals._refusal = lambda data: "no records" if b"M00003" in data else ""

    async def always(request: Any, forward: Forward, context: Any) -> Any:
        bench.proxy.meddlings["Restore"].append(always)
        if b"M00003" in request.records and b"DT_FAULT" not in request.records:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "not records")
        return await forward(request)

    bench.proxy.meddlings["Restore"].append(always)
    async with running(restorer(bench)):
        await bench.until(lambda: bench.lane().watermark == 5)
    assert bench.ids() == ["M00000", "M00001", "M00002", "M00004"]
    assert bench.ids("DT_QUARANTINE") == ["M00003"]


@BOTH
async def test_records_that_the_store_keeps_do_not_travel(bench: Bench) -> None:
    await bench.send(*names(3_000))
    bench.clock.move(1_000)
    async with running(restorer(bench)):
        await bench.until(lambda: len(bench.ids()) == 3_000)
    assert bench.ids() == names(3_000)
    kept = [put.kept_count for put in bench.proxy.puts]
    assert sum(kept) == (3_000 if bench.proxy.may_keep else 0)
    assert all(bool(put.records) != bool(put.kept_count) for put in bench.proxy.puts)


@BOTH
async def test_a_kept_record_that_the_store_refuses_is_pulled_and_put_aside(bench: Bench) -> None:
    room = bench.store.log.record_bytes_max - len(sent("BIG", level=1, topic="o" * 50, body=b""))
    await bench.send("A", "B")
    await bench.put(sent("BIG", level=1, topic="o" * 50, body=bytes(room)))
    await bench.send("C")
    bench.clock.move(1_000)
    async with running(restorer(bench)):
        # The pull for D was under way before that was settled.
        for count, name in enumerate("DE", 4):
            await bench.until(lambda count=count: len(bench.ids()) == count - 1)
            await bench.send(name)
            bench.clock.move(1_000)
        await bench.until(lambda: len(bench.ids()) == 5)
    assert (bench.ids(), bench.ids("DT_QUARANTINE")) == (["A", "B", "C", "D", "E"], ["BIG"])
    assert bool(bench.proxy.puts[-1].kept_count) == bench.proxy.may_keep


async def test_batch_no_longer_kept_is_pulled_again(bench: Bench) -> None:
    """As after a restart of the store, or when another scheduler has begun with the lane."""
    await bench.send(*names(10))
    bench.clock.move(1_000)

    async def beginning_anew(request: Any, forward: Forward, context: Any) -> Any:
        await bench.direct.PullDue(
            store_pb2.PullDueRequest(lane=1, max_count=1, max_bytes=1, may_keep=True), timeout=60
        )
        return await forward(request)

    bench.proxy.meddlings["Restore"].append(beginning_anew)
    async with running(restorer(bench)):
        await bench.until(lambda: len(bench.ids()) == 10)
    assert bench.ids() == names(10)


@BOTH
async def test_damaged_record_is_quarantined_with_its_position(bench: Bench, tmp_path: Any) -> None:
    await bench.send("A", "B", "C")
    position = int(bench.lane().queue.read(1, 1)["position"][0])
    with (tmp_path / "store" / "commitlog" / ("0" * 20)).open("r+b") as log:
        log.seek(position + 89)
        log.write(b"\xff")
    bench.clock.move(1_000)
    async with running(restorer(bench)):
        await bench.until(lambda: len(bench.ids()) == 2)
    (quarantined,) = bench.stored("DT_QUARANTINE")
    fault = decode_properties(quarantined.properties)["DT_FAULT"]
    assert "CRC" in fault
    assert fault.endswith(f"log position {position}")
