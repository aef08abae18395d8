"""Reading through damage, segment ends and unusual records: exactly the intact records are returned, in order."""

import asyncio
from pathlib import Path

import numpy as np
import pytest
from duetime_format import record
from duetime_format.lanes import LanePlace
from duetime_format.properties import decode_properties
from duetime_format.units import UNIT_TYPE
from duetime_store.lanes.attendance import WaitingPull
from duetime_store.metrics import StoreMetrics
from duetime_store.reading import gather, reader
from duetime_store.reading.filters import Filter
from duetime_store.reading.messages import stored_messages
from duetime_store.reading.reader import DueBatch, PullResult, ScanResult
from prometheus_client import CollectorRegistry

from tests.store.conftest import MIB, HandClock, Shard, reader_of, sent, unhurried
from tests.twins import compiled

V6 = bytes(range(16)) + b"\x00\x00\x2a\x9f"
LONG = 1 << 30


@pytest.fixture(autouse=True, params=["python", "compiled"])
def _copy(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    name = request.param
    monkeypatch.setattr(
        gather, "_copy", gather.copy if name == "python" else compiled("duetime_store.reading._gather").copy
    )


class Reading:
    """A reader of a shard, called without waiting."""

    def __init__(self, shard: Shard) -> None:
        self.registry = CollectorRegistry()
        self.reader = reader_of(shard.store, StoreMetrics(self.registry))
        self._shard = shard

    def due(self, after: int = 0, max_count: int = 512, max_bytes: int = LONG) -> DueBatch:
        asking = WaitingPull("", self._shard.store.lanes[1].cursor_after(LanePlace(0, after - 1)), has_lease=True)
        return asyncio.run(self.reader.pull_due(1, asking, max_count, max_bytes, 0))

    def pull(self, offset: int = 0, max_count: int = 512, max_bytes: int = LONG, *tags: str) -> PullResult:
        queue = self._shard.store.queues.find("orders", 0)
        wanted = Filter.parse(" || ".join(tags))
        (pulled,) = asyncio.run(self.reader.pull([(queue, offset)], wanted, max_count, lambda: max_bytes, 0))
        return pulled

    def scan(
        self, offset: int = 0, max_count: int = 512, max_bytes: int = LONG, tags: str = "", sql: str = ""
    ) -> ScanResult:
        queue = self._shard.store.queues.find("orders", 0)
        return self.reader.scan(queue, offset, Filter.parse(tags, sql), max_count, max_bytes, unhurried())

    def damaged(self) -> float:
        return self.registry.get_sample_value("duetime_store_records_damaged_total") or 0


@pytest.fixture
def reading(shard: Shard) -> Reading:
    return Reading(shard)


def split(records: bytes, sizes: list[int]) -> list[record.Record]:
    assert sum(sizes) == len(records)
    found, at = [], 0
    for size in sizes:
        if size:
            found.append(record.decode(records, at))
            at += size
    return found


def ids(answer: DueBatch | PullResult | ScanResult) -> list[str]:
    return [decode_properties(one.properties)["UNIQ_KEY"] for one in split(answer.records, answer.sizes)]


def spoil(shard: Shard, position: int, value: bytes) -> None:
    with (Path(shard.root) / "commitlog" / ("0" * 20)).open("r+b") as file:
        file.seek(position)
        file.write(value)


def units(shard: Shard, topic: str) -> list[tuple[int, int, int]]:
    units: list[tuple[int, int, int]] = shard.store.queues.find(topic, 0).read(0, 1_000).tolist()
    return units


def test_due_records_are_distinguished_from_damaged_ones(shard: Shard, clock: HandClock, reading: Reading) -> None:
    shard.put(*(sent(f"{n}", level=1) for n in range(6)))
    at = [position for position, _, _ in units(shard, "SCHEDULE_TOPIC_XXXX")]
    spoil(shard, at[1] + 88, b"\xff")
    spoil(shard, at[3], b"\x00\x00\x00\x09")
    spoil(shard, at[5] + 4, b"\x00")
    clock.wall_ms += 1_000
    due = reading.due()
    assert ids(due) == ["0", "2", "4"]
    assert [bool(size) for size in due.sizes] == [True, False] * 3
    assert due.damages[1] == "the record does not match its CRC"
    assert due.damages[3] == "9 bytes are too few for a record"
    assert due.damages[5].startswith("magic ")
    assert due.damaged_positions == {1: at[1], 3: at[3], 5: at[5]}
    assert len(due.due_at_ms) == 6
    assert reading.damaged() == 3


def test_due_records_of_other_shapes_keep_their_place(shard: Shard, clock: HandClock, reading: Reading) -> None:
    # Ids are used again and again.
    shard.store.recent.count_max = 0
    plain = record.decode(sent("A", level=1))
    v6 = record.encode(record.Record(plain.topic, 0, b"six", plain.properties, born_host=V6, store_host=V6))
    shard.put(v6, sent("B", level=1), v6, v6, sent("C", level=1))
    clock.wall_ms += 1_000
    due = reading.due()
    assert ids(due) == ["A", "B", "A", "A", "C"]
    assert not due.damages
    at = [position for position, _, _ in units(shard, "SCHEDULE_TOPIC_XXXX")]
    spoil(shard, at[2] + 112, b"S")
    due = reading.due()
    assert ids(due) == ["A", "B", "A", "C"]
    assert due.damages[2] == "the record does not match its CRC"


def test_records_of_several_segments_are_read_in_one_go(shard: Shard, clock: HandClock, reading: Reading) -> None:
    # Ids are used again and again.
    shard.store.recent.count_max = 0
    for n in range(30):
        shard.put(sent(f"{n}", level=1, body=bytes(100_000)), sent(f"{n}", body=bytes(100_000)))
    clock.wall_ms += 1_000
    assert shard.store.log.max_position >= 5 * MIB
    expected = [f"{n}" for n in range(30)]
    assert ids(reading.due()) == ids(reading.pull()) == expected
    assert ids(reading.due(after=17)) == ids(reading.pull(17)) == expected[17:]


def test_limits_of_bytes_and_count_hold_and_one_is_always_given(
    shard: Shard, clock: HandClock, reading: Reading
) -> None:
    # Ids are used again and again.
    shard.store.recent.count_max = 0
    shard.put(*(sent(f"{n}", level=1) for n in range(5)), *(sent(f"{n}") for n in range(5)))
    clock.wall_ms += 1_000
    due_size, size = len(sent("0", level=1)), len(sent("0"))
    assert [len(reading.due(max_bytes=limit).sizes) for limit in (1, 2 * due_size - 1, 2 * due_size)] == [1, 1, 2]
    assert [len(reading.pull(max_bytes=limit).sizes) for limit in (1, 2 * size - 1, 2 * size)] == [1, 1, 2]
    assert len(reading.due(max_count=3).sizes) == len(reading.pull(max_count=3).sizes) == 3
    pulled = reading.pull(1, 512, 2 * size)
    assert (ids(pulled), pulled.next_offset) == (["1", "2"], 3)


def test_pull_skips_deleted_and_unmatched_records(shard: Shard, reading: Reading) -> None:
    lost = [sent(f"{n}").replace(b"TAGS\x01paid", b"TAGS\x01lost") for n in range(4)]
    shard.put(sent("0"), lost[1], sent("2"), lost[3], sent("4"))
    assert ids(reading.pull(0, 512, LONG, "paid")) == ["0", "2", "4"]
    pulled = reading.pull(0, 2, LONG, "paid")
    assert (ids(pulled), pulled.next_offset) == (["0", "2"], 3)
    spoil(shard, units(shard, "orders")[2][0], b"\x7f")
    assert ids(reading.pull(0, 512, LONG, "paid")) == ["0", "4"]
    pulled = reading.pull(2, 1)
    assert (ids(pulled), pulled.next_offset) == (["3"], 4)
    assert reading.damaged() == 2


def test_scan_names_the_offsets_of_its_messages(shard: Shard, reading: Reading) -> None:
    tags = ["paid", "AaAa", "BBBB", "paid", "paid", "BBBB"]
    shard.put(*(sent(f"{n}").replace(b"\x01paid", b"\x01" + tag.encode()) for n, tag in enumerate(tags)))
    size = len(sent("0"))
    # AaAa and BBBB have the same hash.
    scanned = reading.scan(tags="BBBB")
    assert (ids(scanned), scanned.offsets.tolist(), scanned.next_offset) == (["2", "5"], [2, 5], 6)
    for room in ({"max_count": 2}, {"max_bytes": 3 * size - 1}, {"max_bytes": 2 * size}):
        scanned = reading.scan(tags="paid", **room)
        assert (ids(scanned), scanned.offsets.tolist()) == (["0", "3"], [0, 3])
        assert ids(reading.scan(scanned.next_offset, tags="paid")) == ["4"]
    spoil(shard, units(shard, "orders")[3][0], b"\x7f")
    scanned = reading.scan(max_count=4)
    assert (ids(scanned), scanned.offsets.tolist(), scanned.next_offset) == (["0", "1", "2"], [0, 1, 2], 4)
    assert reading.damaged() == 1
    assert reading.scan(4, max_bytes=1).offsets.tolist() == [4]
    assert (reading.scan(6).sizes, reading.scan(6).next_offset) == ([], 6)


def test_scan_by_properties_goes_in_pieces_and_is_bounded(
    shard: Shard, reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard.put(*(sent(f"{n}") for n in range(40)))
    size = len(sent("0"))
    wanted = "UNIQ_KEY IN ('1', '3', '4', '8', '30')"
    for count, size_max in ((4, LONG), (LONG, 3 * size), (1, 1), (1_024, LONG)):
        monkeypatch.setattr(reader, "PIECE_RECORDS_MAX", count)
        monkeypatch.setattr(reader, "PIECE_RECORDS_MIN", min(count, 4))
        monkeypatch.setattr(reader, "PIECE_BYTES", size_max)
        found, offset = [], 0
        while offset < 40:
            scanned = reading.scan(offset, 2, 2 * size, sql=wanted)
            assert ids(scanned) == [f"{n}" for n in scanned.offsets]
            found += ids(scanned)
            assert scanned.next_offset > offset
            offset = scanned.next_offset
        assert found == ["1", "3", "4", "8", "30"]
    assert reading.scan(0, 2, sql=wanted).next_offset == 4
    assert reading.scan(0, max_bytes=1, sql=wanted).next_offset == 3
    monkeypatch.setattr(reader, "PIECE_RECORDS_MAX", 5)
    monkeypatch.setattr(reader, "SCAN_UNITS_MAX", 20 * reader.SQL_UNITS)
    scanned = reading.scan(9, sql=wanted)
    assert (scanned.sizes, scanned.next_offset) == ([], 29)
    assert ids(reading.scan(29, sql=wanted)) == ["30"]
    spoil(shard, units(shard, "orders")[30][0], b"\x7f")
    assert (ids(reading.scan(29, sql=wanted)), reading.damaged()) == ([], 1)


@pytest.mark.parametrize("size", [0, 4, -1, 2**31 - 2])
def test_unit_that_names_no_record_is_passed_over(shard: Shard, reading: Reading, size: int) -> None:
    shard.put(sent("0"))
    queue = shard.store.queues.find("orders", 0)
    queue.rebuild(np.array([1]), np.array([(0, size, 0)], UNIT_TYPE), np.array([True]))
    queue.publish_all()
    shard.put(sent("2"))
    assert ids(reading.pull(0, 1)) == ["0"]
    assert ids(reading.pull(1, 512)) == ["2"]


def test_messages_are_taken_from_records_back_to_back() -> None:
    whole = [sent("A"), sent("B"), sent("C")]
    cut = bytearray(whole[1])
    cut[84:88] = b"\x7f\xff\xff\xff"
    records = whole[0] + bytes(cut) + whole[2]
    sizes = [len(one) for one in whole]
    assert [message.id for message in stored_messages(records, sizes)] == ["A", "C"]
