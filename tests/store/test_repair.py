"""Units that do not point to their record: rewritten where the record is found, whichever bit has changed."""

import asyncio
from collections.abc import Callable

import numpy as np
import pytest
from duetime_format import record
from duetime_format.lanes import LanePlace
from duetime_format.units import UNIT, UNIT_TYPE
from duetime_store.lanes.attendance import WaitingPull
from duetime_store.metrics import StoreMetrics
from duetime_store.queues.consumequeue import ConsumeQueue
from duetime_store.reading import repair
from duetime_store.reading.filters import Filter
from duetime_store.reading.reader import DueBatch, PullResult
from prometheus_client import CollectorRegistry

from tests.rounds import one_by_one
from tests.store.conftest import HandClock, Shard, ids, reader_of, sent

BITS = range(8 * UNIT.size)


class Reading:
    """A reader of a shard, called without waiting."""

    def __init__(self, shard: Shard) -> None:
        self.registry = CollectorRegistry()
        self.reader = reader_of(shard.store, StoreMetrics(self.registry))
        self._shard = shard

    def due(self, ahead_ms: int = 0, after: int = 0) -> DueBatch:
        async def ask() -> DueBatch:
            asking = WaitingPull("", self._shard.store.lanes[1].cursor_after(LanePlace(0, after - 1)), has_lease=True)
            return await self.reader.pull_due(1, asking, 512, 1 << 30, 0, ahead_ms)

        return asyncio.run(ask())

    def all_due(self, count: int, after: int = 0) -> tuple[list[str], list[int]]:
        """Ids and due times of the next entries, in as many answers as that takes."""
        given: list[str] = []
        dues: list[int] = []
        while len(given) < count:
            due = self.due(after=after + len(given))
            assert due.sizes
            assert not due.damages
            given += messages(due)
            dues += due.due_at_ms
        return given, dues

    def all(self, offset: int = 0) -> list[str]:
        """All messages from an offset on, in as many answers as that takes."""
        queue = self._shard.store.queues.find("orders", 0)
        given: list[str] = []
        while offset < queue.max_offset:
            pulled = self.pull(offset=offset)
            given += messages(pulled)
            offset = pulled.next_offset
        return given

    def pull(self, topic: str = "orders", offset: int = 0) -> PullResult:
        async def ask() -> list[PullResult]:
            queue = self._shard.store.queues.find(topic, 0)
            return await self.reader.pull([(queue, offset)], Filter.parse(""), 512, lambda: 1 << 30, 0)

        return asyncio.run(ask())[0]

    def value(self, name: str) -> float:
        return self.registry.get_sample_value(f"duetime_store_{name}_total") or 0


@pytest.fixture
def reading(shard: Shard) -> Reading:
    return Reading(shard)


def messages(answer: DueBatch | PullResult) -> list[str]:
    found, at = [], 0
    for size in answer.sizes:
        if size:
            found.append(record.decode(answer.records, at))
            at += size
    return ids(found)


def rewrite(queue: ConsumeQueue, offset: int, unit: bytes) -> None:
    queue.repoint(np.array([offset]), np.frombuffer(unit, UNIT_TYPE))


def flip(queue: ConsumeQueue, offset: int, bit: int) -> bytes:
    """Changes one bit of a unit; as it was before."""
    unit = queue.read(offset, 1).tobytes()
    changed = bytearray(unit)
    changed[bit // 8] ^= 1 << bit % 8
    rewrite(queue, offset, bytes(changed))
    return unit


@pytest.mark.parametrize("offset", [0, 1, 4])
def test_every_bit_of_a_unit_is_repaired_by_a_pull(shard: Shard, reading: Reading, offset: int) -> None:
    shard.put(*(sent(f"{n}") for n in range(5)), *(sent(f"x{n}", topic="x") for n in range(3)))
    queue = shard.store.queues.find("orders", 0)
    for count, bit in enumerate(bit for bit in BITS if bit < 12 * 8):
        unit = flip(queue, offset, bit)
        assert reading.all(offset) == [f"{n}" for n in range(offset, 5)]
        assert queue.read(offset, 1).tobytes() == unit
        assert reading.value("units_repaired") == count + 1
    assert reading.value("records_damaged") == 0


@pytest.mark.parametrize("offset", [0, 1, 4])
def test_every_bit_of_a_due_unit_is_repaired_by_a_restore(
    shard: Shard, clock: HandClock, reading: Reading, offset: int
) -> None:
    for n in range(5):
        shard.put(sent(f"{n}", level=1))
        clock.wall_ms += 10
    clock.wall_ms += 1_000
    queue = shard.store.lanes[1].queue
    dues = queue.read(0, 5)["tags"].tolist()
    for bit in BITS:
        unit = flip(queue, offset, bit)
        assert reading.all_due(5) == ([f"{n}" for n in range(5)], dues)
        assert queue.read(offset, 1).tobytes() == unit
    assert reading.value("units_repaired") == len(BITS)


@pytest.mark.parametrize("offset", [0, 1, 4])
def test_no_bit_of_a_pending_unit_lets_it_fire_early(
    shard: Shard, clock: HandClock, reading: Reading, offset: int
) -> None:
    for n in range(5):
        shard.put(sent(f"{n}", level=1))
        clock.wall_ms += 100
    # Only the entries before it are due, and soon the next.
    clock.wall_ms += 500 + 100 * offset - 60
    queue = shard.store.lanes[1].queue
    for bit in BITS:
        unit = flip(queue, offset, bit)
        assert messages(reading.due(ahead_ms=50)) == [f"{n}" for n in range(offset)]
        assert messages(reading.due(ahead_ms=50, after=offset)) == []
        assert queue.read(offset, 1).tobytes() == unit


def test_distant_head_is_checked_before_a_wait(shard: Shard, clock: HandClock, reading: Reading) -> None:
    shard.put(sent("A", level=1))
    queue = shard.store.lanes[1].queue
    unit = flip(queue, 0, 8 * 13)
    assert reading.due().sizes == []
    assert queue.read(0, 1).tobytes() == unit
    assert reading.value("units_repaired") == 1


def test_damaged_head_with_an_impossible_due_time_is_returned_now(
    shard: Shard, clock: HandClock, reading: Reading
) -> None:
    shard.put(sent("A", level=1), sent("B", level=1))
    queue = shard.store.lanes[1].queue
    flip(queue, 0, 8 * 13)
    with (shard.root / "commitlog" / ("0" * 20)).open("r+b") as log:
        log.seek(90)
        log.write(b"\xff")
    due = reading.due()
    assert (due.sizes, due.damages) == ([0], {0: "the record does not match its CRC"})
    assert due.due_at_ms == [clock.wall_ms]
    assert reading.due(after=1).sizes == []


def test_units_of_a_lost_page_are_found_between_their_neighbours(shard: Shard, reading: Reading) -> None:
    for n in range(12):
        shard.put(sent(f"{n}"), sent(f"x{n}", topic="x", body=bytes(2_000)))
    queue = shard.store.queues.find("orders", 0)
    before = queue.read(0, 12).tobytes()
    for lost in (range(5), range(4, 9), range(7, 12)):
        for offset in lost:
            rewrite(queue, offset, bytes(UNIT.size))
        assert messages(reading.pull()) == [f"{n}" for n in range(12)]
        # Tags are derived from the log alone; readers work without them.
        assert [unit[:12] for unit in parts(queue.read(0, 12).tobytes())] == [unit[:12] for unit in parts(before)]


def parts(units: bytes) -> list[bytes]:
    return [units[at : at + UNIT.size] for at in range(0, len(units), UNIT.size)]


def test_search_ends_somewhere(shard: Shard, reading: Reading, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repair, "SEARCH_BYTES_MAX", 10_000)
    shard.put(sent("A"), *(sent(f"x{n}", topic="x", body=bytes(2_000)) for n in range(10)), sent("B"), sent("C"))
    queue = shard.store.queues.find("orders", 0)
    rewrite(queue, 1, UNIT.pack(3, 200, 0))
    assert messages(reading.pull()) == ["A", "C"]
    assert reading.value("records_damaged") == 1
    assert queue.read(1, 1).tobytes() == UNIT.pack(3, 200, 0)


def test_unit_that_names_an_intact_record_of_another_never_gives_that(shard: Shard, reading: Reading) -> None:
    shard.put(sent("A"), sent("B"), sent("B", topic="order5"), sent("B", queue=1))
    queue, other = shard.store.queues.find("orders", 0), shard.store.queues.find("orders", 1)
    for wrong in (queue.read(0, 1), shard.store.queues.find("order5", 0).read(0, 1), other.read(0, 1)):
        rewrite(queue, 1, wrong.tobytes())
        assert [one.queue_offset for one in found(reading.pull())] == [0, 1]
        assert {(one.topic, one.queue) for one in found(reading.pull())} == {("orders", 0)}


def found(pulled: PullResult) -> list[record.Record]:
    records, at = [], 0
    for size in pulled.sizes:
        records.append(record.decode(pulled.records, at))
        at += size
    return records


def unmarked(message_id: str) -> bytes:
    """A delayed record without a CRC of its own, as most brokers write it."""
    made = record.decode(sent(message_id, level=1))
    return record.encode(record.Record(made.topic, made.queue, made.body, record.without_crc_mark(made.properties)))


Spoil = Callable[[Shard, int], None]


def later_unit(shard: Shard, bit: int) -> None:
    flip(shard.store.lanes[1].queue, 1, 8 * 12 + bit)


def other_time(shard: Shard, bit: int) -> None:
    position = int(shard.store.lanes[1].queue.read(1, 1)["position"][0])
    with (shard.root / "commitlog" / ("0" * 20)).open("r+b") as log:
        log.seek(position + 56 + bit // 8)
        byte = log.read(1)[0]
        log.seek(position + 56 + bit // 8)
        log.write(bytes([byte ^ 1 << bit % 8]))


@pytest.mark.parametrize("spoil", [later_unit, other_time])
@pytest.mark.parametrize("bit", one_by_one([0, 7, 15, 23, 24, 33, 45, 51, 57, 58, 59, 60, 61, 62, 63], 5))
def test_record_without_crc_fires_between_its_neighbours_whichever_time_has_changed(
    shard: Shard, clock: HandClock, reading: Reading, spoil: Spoil, bit: int
) -> None:
    for message_id in "ABC":
        shard.put(unmarked(message_id))
        clock.wall_ms += 20
    dues = shard.store.lanes[1].queue.read(0, 3)["tags"].tolist()
    clock.wall_ms = dues[0] - 1
    spoil(shard, bit)
    given: list[int] = []
    for _ in range(60):
        due = reading.due(after=len(given))
        assert not due.damages
        assert all(at <= clock.wall_ms for at in due.due_at_ms)
        given += [clock.wall_ms] * len(due.sizes)
        clock.wall_ms += 1
    assert given[0] == dues[0]
    assert dues[1] <= given[1] <= dues[2]
    assert given[2] == dues[2]


def test_pull_due_answers_right_where_the_unit_can_not_be_written(
    shard: Shard, clock: HandClock, reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard.put(sent("A", level=1), sent("B", level=1))
    queue = shard.store.lanes[1].queue
    flip(queue, 0, 8 * 13)
    flip(queue, 1, 3)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(queue._shared.disk, "pwrite", full)
    assert reading.due().sizes == []
    clock.wall_ms += 1_000
    due = reading.due()
    assert (messages(due), due.due_at_ms) == (["A", "B"], [clock.wall_ms] * 2)
    assert reading.value("units_repaired") == 0
