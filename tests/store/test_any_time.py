"""Records for any time: acceptance by the store, due times, pulls and restores."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import grpc
import numpy as np
import pytest
from duetime.v1 import store_pb2
from duetime_format import record
from duetime_format.levels import DELAY_MS_MAX
from duetime_format.restore import PulledEntry, restore
from duetime_store.reading import gather
from duetime_store.writing.staging import CANCELLED, DUPLICATE, GAP, OK, REFUSED

from tests.store.conftest import MIB, HandClock, Shard, ids, sent
from tests.store.duelane import timed, with_timers
from tests.store.running import Running
from tests.store.test_repair import Reading, flip
from tests.twins import compiled

NOW = 1_700_000_000_000
LANE = 1_000


def changed(data: bytes, **fields: object) -> bytes:
    return record.encode(replace(record.decode(data, check_crc=False), **fields))  # type: ignore[arg-type]


def text_of(properties: bytes) -> bytes:
    """A record of the lane with these properties."""
    return changed(timed("X", delay_ms=5), properties=properties)


@pytest.fixture
def timers(shard: Shard) -> Shard:
    with_timers(shard.store)
    return shard


def test_a_record_falls_due_when_it_asks_to_and_never_before_the_next_ms(timers: Shard) -> None:
    outcome = timers.put(
        timed("A", delay_ms=5_000),
        sent("B", level=1),
        timed("C", deliver_at_ms=NOW + 77),
        sent("D"),
        timed("E", deliver_at_ms=NOW - 77),
        timed("F", delay_ms=0),
        timed("G", deliver_at_ms=NOW),
    )
    assert outcome.statuses == [OK] * 7
    assert outcome.due_at_ms == [NOW + 5_000, NOW + 1_000, NOW + 77, 0, NOW + 1, NOW + 1, NOW + 1]
    assert outcome.past == [4, 6]
    lane = timers.store.lanes[LANE]
    assert lane.units(np.arange(5))["tags"].tolist() == [NOW + 5_000, NOW + 77, NOW + 1, NOW + 1, NOW + 1]
    for found, due_at_ms in zip(timers.pulled("rmq_sys_wheel_timer"), lane.units(np.arange(5))["tags"], strict=True):
        assert lane.due_at_ms(found) == due_at_ms
        assert b"TIMER_OUT_MS\x01%d\x02" % (due_at_ms - 1) in found.properties


REFUSED_ONES = {
    "is not 13 digits": text_of(b"TIMER_DELAY_MS\x015\x02TIMER_OUT_MS\x01000000005\x02REAL_TOPIC\x01orders"),
    "TIMER_OUT_MS is not": text_of(b"TIMER_DELAY_MS\x015\x02REAL_TOPIC\x01orders\x02REAL_QID\x010"),
    "or another one than": text_of(b"TIMER_DELAY_MS\x016\x02TIMER_OUT_MS\x010000000000005"),
    "asks for no due time": text_of(b"TIMER_OUT_MS\x010000000000005\x02REAL_TOPIC\x01orders\x02REAL_QID\x010"),
    "falls due 3660d1ms ahead": timed("X", delay_ms=DELAY_MS_MAX + 1),
    "falls due 3660d2ms ahead": timed("X", deliver_at_ms=NOW + DELAY_MS_MAX + 2),
    "queue 1 is above the highest, 0": timed("X", delay_ms=5, queue=1),
    "queue -1 is below 0": timed("X", delay_ms=5, queue=-1),
    "is the store's own": text_of(
        b"TIMER_DELAY_MS\x015\x02DT_ENTRY\x011000:0:7\x02TIMER_OUT_MS\x010000000000005\x02REAL_TOPIC\x01orders"
    ),
}


@pytest.mark.parametrize("fault", REFUSED_ONES)
def test_a_record_without_one_due_time_is_refused_alone(timers: Shard, fault: str) -> None:
    most = timed("B", delay_ms=DELAY_MS_MAX)
    outcome = timers.put(timed("A", delay_ms=5), REFUSED_ONES[fault], most, sent("C"))
    assert outcome.statuses == [OK, REFUSED, OK, OK]
    assert fault in outcome.faults[1]
    assert outcome.due_at_ms == [NOW + 5, 0, NOW + DELAY_MS_MAX, 0]


def test_past_ones_keep_their_indices_beside_refused_ones(timers: Shard) -> None:
    refused = REFUSED_ONES["asks for no due time"]
    outcome = timers.put(refused, timed("A", deliver_at_ms=5), refused, timed("B", deliver_at_ms=5))
    assert (outcome.statuses, outcome.past) == ([REFUSED, OK, REFUSED, OK], [1, 3])


def test_a_shard_without_such_lanes_takes_no_such_records(tmp_path: Path, clock: HandClock) -> None:
    shard = Shard(tmp_path / "s", clock)
    try:
        shard.store.lanes._by_number.pop(LANE, None)
        assert shard.store.timer_lane_count == 0
        assert shard.put(timed("A", delay_ms=5), sent("B")).statuses == [REFUSED, OK]
        with_timers(shard.store)
        assert shard.store.timer_lane_count == 1
    finally:
        shard.crash()


def test_nothing_is_restored_into_the_lane(timers: Shard) -> None:
    timers.put(text_of(b"TIMER_DELAY_MS\x015\x02TIMER_OUT_MS\x010000000000005\x02REAL_TOPIC\x01rmq_sys_wheel_timer"))
    timers.clock.wall_ms += 5
    position, size, due_at_ms = timers.store.lanes[LANE].units(np.arange(1))[0].item()
    with pytest.raises(Exception, match="is not a topic to restore to"):
        restore(PulledEntry(LANE, 0, due_at_ms, timers.store.read_record(position, size)))


def test_a_repeated_send_is_answered_with_the_due_time_of_the_first(timers: Shard) -> None:
    first = timers.put(timed("A", delay_ms=5_000))
    timers.clock.wall_ms += 100
    again = timers.put(timed("A", delay_ms=5_000), timed("B", delay_ms=1))
    assert (again.statuses, again.queue_offsets) == ([DUPLICATE, OK], [0, 1])
    assert again.due_at_ms == [first.due_at_ms[0], NOW + 101]
    assert again.duplicate_queues == {0: 0}


def entry_records(shard: Shard, entries: list[int]) -> bytes:
    units = shard.store.lanes[LANE].units(np.array(entries))
    parts = zip(entries, units.tolist(), strict=True)
    return b"".join(
        restore(PulledEntry(LANE, n, abs(due), shard.store.read_record(at, size))) for n, (at, size, due) in parts
    )


def put_entries(shard: Shard, entries: list[int]) -> list[int]:
    intake = shard.store.admit(entry_records(shard, entries))
    outcome = shard.store.restore(intake, shard.store.lanes[LANE], np.array(entries))
    shard.flush()
    return outcome.statuses


def test_entries_are_restored_in_the_order_of_their_due_times(timers: Shard) -> None:
    timers.put(*(timed(name, delay_ms=delay) for name, delay in zip("ABCDE", (50, 10, 40, 20, 30), strict=True)))
    timers.clock.wall_ms += 45
    assert put_entries(timers, [3, 1]) == [GAP, GAP]
    assert put_entries(timers, [1, 3]) == [OK, OK]
    timers.store.lanes[LANE].publish_cancel(np.array([4]))
    assert put_entries(timers, [1, 3, 4, 2]) == [DUPLICATE, DUPLICATE, CANCELLED, OK]
    assert ids(timers.pulled()) == ["B", "D", "C"]
    found = [record.find_lane_entry(one.properties) for one in timers.pulled()]
    assert found == [(LANE, 1, NOW + 10), (LANE, 3, NOW + 20), (LANE, 2, NOW + 40)]


def test_entries_that_lie_in_many_segments_are_compared_the_quick_way(
    timers: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neighbours by due time need not be neighbours in the log."""
    body = bytes(200_000)
    for number in range(12):
        timers.put(changed(timed(f"M{number}", delay_ms=50 - 7 * (number % 3)), body=body))
    timers.clock.wall_ms += 60
    order = timers.store.lanes[LANE].head(b"", 12).entries.tolist()
    segments = {position // MIB for position in timers.store.lanes[LANE].units(np.arange(12))["position"].tolist()}
    assert len(segments) > 2
    assert order != sorted(order)
    monkeypatch.setattr(timers.store.originals, "_compare", lambda *_: "the slow way")
    compiled("duetime_format._restore")
    assert put_entries(timers, order) == [OK] * 12


@pytest.fixture(params=["python", "compiled"])
def copy(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    twin = compiled("duetime_store.reading._gather").copy
    monkeypatch.setattr(gather, "_copy", gather.copy if request.param == "python" else twin)


@pytest.mark.usefixtures("copy")
def test_a_unit_with_another_due_time_than_its_record_is_mended(timers: Shard) -> None:
    timers.put(*(timed(name, delay_ms=5_000) for name in "ABC"))
    lane = timers.store.lanes[LANE]
    units = lane.units(np.array([1]))
    units["tags"] -= 3_000
    lane.queue.repoint(np.array([1]), units)
    timers.clock.wall_ms += 5_000
    reading = Reading(timers)
    records, sizes, damages, mended = reading.reader.read(lane.queue, np.arange(3), lane.units(np.arange(3)))
    assert (len(records), damages) == (sum(sizes), {})
    assert mended["tags"].tolist() == lane.units(np.arange(3))["tags"].tolist() == [NOW + 5_000] * 3
    assert reading.registry.get_sample_value("duetime_store_units_repaired_total") == 1


@pytest.mark.usefixtures("copy")
def test_an_entry_that_has_ended_is_read_and_stays_so(timers: Shard) -> None:
    timers.put(*(timed(name, delay_ms=5_000) for name in "ABC"), *(sent(name, level=1) for name in "DE"))
    reading = Reading(timers)
    for number, entry in ((LANE, 1), (1, 0)):
        lane = timers.store.lanes[number]
        lane.publish_cancel(np.array([entry]))
        tags = lane.units(np.arange(2))["tags"].tolist()
        found = reading.reader.read(lane.queue, np.arange(2), lane.units(np.arange(2)))
        assert (len(found[0]), found[2]) == (sum(found[1]), {})
        # A damaged position of its record does not make it pending again.
        flip(lane.queue, entry, 3)
        assert not reading.reader.read(lane.queue, np.arange(2), lane.units(np.arange(2)))[2]
        assert lane.units(np.arange(2))["tags"].tolist() == tags
        assert tags[entry] < 0


# --- over gRPC --------------------------------------------------------------------------------------------------------


class Timed(Running):
    async def __aenter__(self) -> "Timed":
        await super().__aenter__()
        self.lane = with_timers(self.node.store)
        return self

    async def send(self, **delays: int) -> None:
        answer = await self.put(*(timed(name, delay_ms=delay) for name, delay in delays.items()))
        assert not answer.statuses

    def records(self, entries: list[int]) -> bytes:
        store, units = self.node.store, self.lane.units(np.array(entries))
        parts = zip(entries, units.tolist(), strict=True)
        return b"".join(
            restore(PulledEntry(LANE, n, abs(due), store.read_record(at, size))) for n, (at, size, due) in parts
        )

    async def restore(self, *entries: int, first_entry: int = 0) -> store_pb2.RestoreResponse:
        request = store_pb2.RestoreRequest(records=self.records(list(entries)), lane=LANE, entries=entries)
        request.first_entry = first_entry
        answer: store_pb2.RestoreResponse = await self.stub.Restore(request, timeout=60)
        return answer


@pytest.fixture
async def timed_store(tmp_path: Path) -> AsyncIterator[Timed]:
    async with Timed(tmp_path / "store") as running:
        yield running


async def test_the_shard_reports_its_lanes_for_any_time(timed_store: Timed) -> None:
    described = await timed_store.stub.Describe(store_pb2.DescribeRequest())
    assert described.timer_lane_count == 1


async def test_an_answer_marks_past_due_times(timed_store: Timed) -> None:
    now_ms = timed_store.clock.now_ms()
    answer = await timed_store.put(timed("A", delay_ms=9), timed("B", deliver_at_ms=now_ms - 1), sent("C"))
    assert (list(answer.past), list(answer.due_at_ms)) == ([1], [now_ms + 9, now_ms + 1, 0])


async def test_entries_are_pulled_by_due_time_and_on_from_where_the_answer_ended(timed_store: Timed) -> None:
    await timed_store.send(A=500, B=100, C=300, D=200, E=400)
    timed_store.clock.move(1_000)
    first = await timed_store.pull_due(LANE, max_count=2)
    assert (list(first.entries), first.first_entry, len(first.sizes)) == ([1, 3], 1, 2)
    second = await timed_store.pull_due(LANE, max_count=2, next=first.next)
    assert (list(second.entries), second.first_entry) == ([2, 4], 2)
    third = await timed_store.pull_due(LANE, next=second.next)
    assert (list(third.entries), third.first_entry, len(third.sizes)) == ([], 0, 1)
    last = await timed_store.pull_due(LANE, next=third.next)
    assert not last.sizes
    assert last.next == third.next


async def test_a_level_resumes_at_its_cursor_past_ended_entries(timed_store: Timed) -> None:
    await timed_store.put(*(sent(name, level=1) for name in "ABCDE"))
    timed_store.node.store.lanes[1].publish_cancel(np.array([1, 3]))
    timed_store.clock.move(1_000)
    first = await timed_store.pull_due(max_count=2)
    assert list(first.entries) == [0, 2]
    second = await timed_store.pull_due(next=first.next)
    assert (second.first_entry, len(second.sizes), list(second.entries)) == (4, 1, [])


async def test_a_cursor_of_another_lane_is_refused(timed_store: Timed) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await timed_store.pull_due(next=b"elsewhere")
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_entries_are_held_each_until_it_is_due(timed_store: Timed) -> None:
    await timed_store.send(A=90, B=30, C=60)
    put = asyncio.create_task(timed_store.restore(1, 2, 0, first_entry=7))
    for moved_ms, expected in ((29, []), (1, ["B"]), (30, ["B", "C"]), (30, ["B", "C", "A"])):
        await timed_store.put(sent("other", topic="other"))
        timed_store.clock.move(moved_ms)
        for _ in range(3):
            await timed_store.put(sent("other", topic="other"))
        store = timed_store.node.store
        units = store.queues.get_bytes(b"orders", 0).read(0, 9)
        assert ids([record.decode(store.read_record(at, size)) for at, size, _ in units.tolist()]) == expected
    assert not (await put).statuses


async def test_held_entries_cancelled_meanwhile_are_reported(timed_store: Timed) -> None:
    await timed_store.send(A=10, B=20, C=30)
    timed_store.clock.move(1_000)
    timed_store.lane.publish_cancel(np.array([1]))
    answer = await timed_store.restore(0, 1, 2)
    assert list(answer.statuses) == [OK, CANCELLED, OK]
    assert list(answer.queue_offsets) == [0, -1, 1]
    assert answer.watermark == 3


@pytest.mark.parametrize(
    ("entries", "text"),
    [([0, 1, 2], "3 entries for 2 records"), ([0], "1 entries for 2 records"), ([-1, 0], "-1 is not within")],
)
async def test_entries_that_do_not_fit_the_records_are_refused(
    timed_store: Timed, entries: list[int], text: str
) -> None:
    await timed_store.send(A=10, B=20)
    request = store_pb2.RestoreRequest(records=timed_store.records([0, 1]), lane=LANE, entries=entries)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await timed_store.stub.Restore(request, timeout=60)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert text in str(caught.value.details())
