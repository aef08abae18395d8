"""Batches: whole runs restored together, and the handling of entries that break a run."""

from collections.abc import Callable

import numpy as np
import pytest
from duetime.v1 import store_pb2
from duetime_format import layout, record
from duetime_format.properties import decode_properties, encode_properties, value_of
from duetime_format.restore import PulledEntries, PulledEntry, restore, restore_run
from duetime_scheduler import batch as module
from duetime_scheduler.batch import EntryBatch, OutOfStep, make_batch
from hypothesis import example, given
from hypothesis import strategies as st

from tests.scheduler.test_restore import DUE, V4, V6, deferred, sealed
from tests.twins import compiled

Run = Callable[[PulledEntries, int], tuple[bytes, int]]


@pytest.fixture(params=["python", "compiled"])
def run(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The run that batches are made with."""
    chosen = restore_run if request.param == "python" else compiled("duetime_format._restore").restore_run
    monkeypatch.setattr(module, "quickest_run", chosen)
    return chosen


@pytest.fixture(scope="module")
def compiled_run() -> Run:
    run: Run = compiled("duetime_format._restore").restore_run
    return run


def stored(message_id: str, **changes: object) -> bytes:
    named = {"UNIQ_KEY": message_id, **record.deferral(3, "orders", 5)}
    return record.encode(deferred(properties=encode_properties(named), **changes))


def response(*records: bytes, first: int = 7) -> store_pb2.PullDueResponse:
    return store_pb2.PullDueResponse(
        first_entry=first,
        records=b"".join(records),
        sizes=[len(data) for data in records],
        due_at_ms=[DUE + number for number in range(len(records))],
    )


def entries(*records: bytes, level: int = 3, first: int = 7) -> PulledEntries:
    due = response(*records, first=first)
    numbers = np.arange(first, first + len(records))
    return PulledEntries(level, numbers, due.records, due.sizes[:], due.due_at_ms[:])


def ids(batch: EntryBatch) -> list[str]:
    named = [decode_properties(record.decode(data).properties) for data in batch.split()]
    return [f"{one.get('UNIQ_KEY', '')}!" if "DT_FAULT" in one else one["UNIQ_KEY"] for one in named]


def test_run_equals_single_restores(run: Run) -> None:
    records = [stored("A"), stored("B", body=bytes(3_000)), stored("C", body=b"")]
    expected = [restore(PulledEntry(3, 7 + n, DUE + n, data)) for n, data in enumerate(records)]
    assert run(entries(*records), 0) == (b"".join(expected), 3)
    assert run(entries(*records), 1) == (b"".join(expected[1:]), 2)
    assert run(entries(*records), 3) == (b"", 0)
    assert run(entries(), 0) == (b"", 0)


def test_run_ends_at_an_entry_that_can_not_be_restored(run: Run) -> None:
    bad = record.encode(deferred(properties=b"UNIQ_KEY\x01X"))
    assert run(entries(stored("A"), bad, stored("B")), 0)[1] == 1
    assert run(entries(stored("A"), b"", stored("B")), 0)[1] == 1
    assert run(entries(stored("A"), bad, stored("B")), 1) == (b"", 0)
    assert run(entries(stored("A"), bad, stored("B")), 2)[1] == 1


@pytest.mark.parametrize(
    "sizes", [[2**31 - 1], [-1, 100], [50, -20], [10_000], [0, 10_000], [2**31 - 1, -(2**31)], [109], [1]]
)
def test_sizes_that_leave_the_bytes_give_nothing(compiled_run: Run, sizes: list[int]) -> None:
    whole = entries(stored("A"))
    hostile = PulledEntries(3, np.arange(7, 7 + len(sizes)), whole.records, sizes, [DUE] * len(sizes))
    for index in range(len(sizes) + 1):
        assert compiled_run(hostile, index) == (b"", 0)


def test_batch_keeps_the_order_and_says_why_entries_were_quarantined(run: Run) -> None:
    v6 = stored("V6", born_host=V6)
    bad = record.encode(deferred(properties=b"UNIQ_KEY\x01BAD"))
    due = response(stored("A"), v6, v6, b"", stored("B"), bad, stored("C"))
    due.damages[3] = "body CRC is not"
    due.damaged_positions[3] = 4_711
    batch = make_batch(3, due)
    assert ids(batch) == ["A", "V6", "V6", "!", "B", "BAD!", "C"]
    assert batch.quarantined == {3: 1, 5: 1}
    assert (batch.first, batch.count) == (7, 7)
    faults = [value_of(record.decode(data).properties, b"DT_FAULT") for data in batch.split()]
    assert (faults[3], faults[5]) == (b"body CRC is not; log position 4711", b"it has no REAL_TOPIC")
    found = [record.find_lane_entry(record.decode(data).properties) for data in batch.split()]
    assert found == [(3, 7 + n, DUE + n) for n in range(7)]


def test_one_record_of_a_batch_is_replaced(run: Run) -> None:
    batch = make_batch(3, response(stored("A"), stored("B"), stored("C")))
    batch.quarantine(1, "refused")
    assert ids(batch) == ["A", "B!", "C"]
    assert record.decode(batch.split()[1]).body == stored("B")
    assert batch.from_index(2) == batch.split()[2]
    assert batch.from_index(0) == batch.records
    batch.quarantine(1, "refused again")
    assert record.decode(batch.split()[1]).body == b""
    with pytest.raises(OutOfStep, match="even the quarantine record of entry 8"):
        batch.quarantine(1, "refused for the third time")


parts = st.sampled_from(
    [
        b"TAGS\x01paid",
        b"UNIQ_KEY\x01A1",
        b"",
        b"x",
        b"\x01",
        b"DT_ENTRY\x011:2:3",
        b"xDT_ENTRY\x011",
        b"__CRC32#\x0112",
        b"REAL_TOPIC\x01other",
        b"REAL_QID\x013",
        b"REAL_TOPIC\x01",
        b"k\x01\xff\xfe",
        b"k\x01" + b"v" * 32_600,
    ]
)
topics = st.sampled_from(
    [
        b"orders",
        b"t",
        b"o" * 127,
        b"o" * 128,
        b"",
        b"a b",
        b"\xc3\xa9",
        b"SCHEDULE_TOPIC_XXXX",
        b"DT_QUARANTINE",
        b"RMQ_SYS_TRANS_HALF_TOPIC",
        b"rmq_sys_wheel_timer",
        b"%RETRY%group|_-9",
    ]
)
numbers = st.sampled_from([b"5", b"0", b"17", b"2147483647", b"05", b"", b"-1", b"2147483648", b"12345678901"])
changes = st.lists(st.tuples(st.integers(0, 40_000), st.integers(0, 255)), max_size=2)


@given(
    before=st.lists(parts, max_size=4),
    topic=topics,
    number=numbers,
    mark=st.sampled_from([b"", record.CRC_ENDING, b"\x02__CRC32#\x019270196112\x02", record.CRC_MARK, b"\x02"]),
    body=st.binary(max_size=40),
    hosts=st.sampled_from([bytes(8)] * 5 + [V6]),
    magic=st.sampled_from([layout.MAGIC_V1] * 5 + [layout.MAGIC_V2]),
    lane_topic=st.sampled_from(
        ["SCHEDULE_TOPIC_XXXX"] * 9 + ["SCHEDULE_TOPIC_XXXY", "SCHEDULE", "rmq_sys_wheel_timer"]
    ),
    changed=changes,
    cut=st.sampled_from([0, 0, 0, 0, 1, 3]),
    level=st.sampled_from([0, 3, 18, 2**31 - 1]),
    first=st.sampled_from([0, 7, 10**12, 2**62]),
    due_at_ms=st.sampled_from([0, DUE, 2**63 - 1]),
)
@example([b"TAGS\x01paid"], b"orders", b"5", b"", b"", V4, layout.MAGIC_V1, "SCHEDULE_TOPIC_XXXX", [], 0, 3, 7, DUE)
def test_compiled_run_restores_as_python_does_or_leaves_it_to_it(
    compiled_run: Run,
    before: list[bytes],
    topic: bytes,
    number: bytes,
    mark: bytes,
    body: bytes,
    hosts: bytes,
    magic: int,
    lane_topic: str,
    changed: list[tuple[int, int]],
    cut: int,
    level: int,
    first: int,
    due_at_ms: int,
) -> None:
    properties = b"\x02".join([*before, b"REAL_TOPIC\x01" + topic, b"REAL_QID\x01" + number]) + mark
    properties = properties[-32_767:]
    found = deferred(topic=lane_topic, body=body, properties=properties, born_host=hosts, store_host=hosts, magic=magic)
    data = bytearray(record.encode(found))
    for at, value in changed:
        data[at % len(data)] = value
    data = bytes(data[: len(data) - cut])
    whole = stored("A")
    restored, count = compiled_run(
        PulledEntries(level, np.array([first, first + 1]), whole + data, [len(whole), len(data)], [due_at_ms] * 2), 0
    )
    entry = PulledEntry(level, first + 1, due_at_ms, data)
    if count < 2:
        return
    head = restore(PulledEntry(level, first, due_at_ms, whole))
    assert restored[: len(head)] == head
    found = record.decode(data, check_crc=False)
    if record.body_crc(found.body) == found.body_crc:
        # Else they differ in the CRC of a body that does not match it, which no store gives.
        assert restored[len(head) :] == restore(entry)


@given(st.binary(max_size=400), st.lists(st.integers(-5, 400), max_size=4), st.integers(-1, 5))
def test_any_bytes_are_taken_for_entries_without_harm(
    compiled_run: Run, data: bytes, sizes: list[int], index: int
) -> None:
    assert compiled_run(PulledEntries(3, np.arange(7, 7 + len(sizes)), data, sizes, [DUE] * len(sizes)), index) == (
        b"",
        0,
    )


def test_compiled_run_equals_single_restores(compiled_run: Run) -> None:
    """The usual shape goes the quick way, or nothing would be gained."""
    for topic in ("orders", "o" * 127, "%RETRY%group"):
        for queue in (0, 9, 10, 2**31 - 1):
            named = encode_properties({"TAGS": "paid", **record.deferral(3, topic, queue)})
            plain = record.encode(deferred(properties=named))
            for data in (plain, sealed(record.encode(deferred(properties=record.with_crc_mark(named))))):
                assert compiled_run(entries(data), 0) == (restore(PulledEntry(3, 7, DUE, plain)), 1)


@pytest.mark.parametrize(
    "properties",
    [
        b"",
        b"REAL_TOPIC\x01orders",
        b"a\x01b\x02REAL_TOPIC\x01orders\x02REAL_QID\x01",
        b"a\x01b\x02REAL_TOPIC\x01orders\x02REAL_QID\x0105",
        b"a\x01b\x02REAL_TOPIC\x01orders\x02REAL_QID\x0100",
        b"a\x01b\x02REAL_TOPIC\x01orders\x02REAL_QID\x012147483648",
        b"a\x01b\x02REAL_TOPIC\x01orders\x02REAL_QID\x01-1",
        b"a\x01b\x02REAL_TOPIC\x01orders\x02REAL_QID\x015\x02",
        b"a\x01b\x02REAL_TOPIC\x01\x02REAL_QID\x015",
        b"a\x01b\x02REAL_TOPIC\x01" + b"o" * 128 + b"\x02REAL_QID\x015",
        b"a\x01b\x02REAL_TOPIC\x01o o\x02REAL_QID\x015",
        b"a\x01b\x02REAL_TOPIC\x01SCHEDULE_TOPIC_XXXX\x02REAL_QID\x015",
        b"a\x01b\x02REAL_TOPIC\x01DT_QUARANTINE\x02REAL_QID\x015",
        b"a\x01b\x02REAL_TOPIC\x01rmq_sys_wheel_timer\x02REAL_QID\x015",
        b"a\x01b\x02REAL_TOPIC\x01RMQ_SYS_TRANS_HALF_TOPIC\x02REAL_QID\x015",
        b"a\x01b\x02XREAL_TOPIC\x01orders\x02REAL_QID\x015",
        b"a\x01b\x02REAL_TOPIC\x01orders\x02XREAL_QID\x015",
        b"\x02a\x01b\x02REAL_TOPIC\x01orders\x02REAL_QID\x015",
        b"a\x01b\x02\x02c\x01d\x02REAL_TOPIC\x01orders\x02REAL_QID\x015",
        b"a\x01b\x02\x02REAL_TOPIC\x01orders\x02REAL_QID\x015",
        b"xDT_ENTRY\x011:2:3\x02REAL_TOPIC\x01orders\x02REAL_QID\x015",
        b"a\x01DT_ENTRY\x011\x02REAL_TOPIC\x01orders\x02REAL_QID\x015",
        b"DT_ENTRY\x011:2:3\x02DT_ENTRY\x011:2:3\x02REAL_TOPIC\x01orders\x02REAL_QID\x015",
        b"a\x01b\x02__CRC32#\x011\x02REAL_TOPIC\x01orders\x02REAL_QID\x015",
    ],
)
def test_properties_that_need_a_closer_look_are_left_to_python(compiled_run: Run, properties: bytes) -> None:
    assert compiled_run(entries(record.encode(deferred(properties=properties))), 0) == (b"", 0)


TIMER_TOPIC = "rmq_sys_wheel_timer"


@pytest.mark.parametrize(
    "before", [b"", b"TAGS\x01paid\x02", b"DT_ENTRY\x011000:4:17\x02", b"k\x01v\x02DT_ENTRY\x01x\x02"]
)
def test_entries_of_a_lane_for_any_time_are_restored_the_quick_way(compiled_run: Run, before: bytes) -> None:
    """Entries that replaced others count too: their reference to the replaced one is left out."""
    text = before + b"TIMER_OUT_MS\x011700000000000\x02REAL_TOPIC\x01orders\x02REAL_QID\x013"
    data = record.encode(deferred(topic=TIMER_TOPIC, queue=1, properties=record.with_crc_mark(text)))
    numbers = np.array([9, 2, 10**12])
    expected = b"".join(restore(PulledEntry(1_001, number, DUE, data)) for number in numbers.tolist())
    assert expected.count(b"DT_ENTRY\x011001:") == 3
    assert expected.count(b"DT_ENTRY") == 3
    given = PulledEntries(1_001, numbers, data * 3, [len(data)] * 3, [DUE] * 3)
    assert compiled_run(given, 0) == restore_run(given, 0) == (expected, 3)
    assert compiled_run(PulledEntries(1, numbers, data * 3, [len(data)] * 3, [DUE] * 3), 0) == (b"", 0)
    level = stored("A")
    assert compiled_run(PulledEntries(1_001, numbers, level, [len(level)], [DUE]), 0) == (b"", 0)


def test_fewer_numbers_than_entries_end_the_run(compiled_run: Run) -> None:
    data = stored("A")
    assert compiled_run(PulledEntries(3, np.array([7]), data * 2, [len(data)] * 2, [DUE] * 2), 0)[1] == 1


def test_numbers_that_no_entry_has_are_left_to_python(compiled_run: Run) -> None:
    data = stored("A")
    for level, first, due_at_ms in ((-1, 7, DUE), (2**31, 7, DUE), (3, -1, DUE), (3, 7, -1)):
        assert compiled_run(PulledEntries(level, np.array([first]), data, [len(data)], [due_at_ms]), 0) == (b"", 0)


def test_properties_filled_to_the_last_byte_are_left_to_python(compiled_run: Run) -> None:
    rest = encode_properties(record.deferral(3, "orders", 5))
    ending = len(b"\x02DT_ENTRY\x013:7:%d" % DUE + record.CRC_ENDING)
    for room, count in ((ending, 1), (ending - 1, 0)):
        user = b"k\x01" + b"v" * (32_767 - room - len(rest) - 3)
        data = record.encode(deferred(properties=user + b"\x02" + rest))
        assert compiled_run(entries(data), 0)[1] == count
