"""When records for any time fall due: worked vectors, a broker's and ours, and the compiled twin on any bytes."""

import numpy as np
import pytest
from duetime_format import columns, record, timers
from duetime_format.columns import RecordRun
from duetime_format.names import TIMER_TOPIC
from duetime_format.record import Record
from duetime_format.timers import agree, agrees, due_at_ms, due_by, dues, java_long
from duetime_format.units import DUE_MS_LIMIT, Ints
from hypothesis import given
from hypothesis import strategies as st

from tests.twins import compiled

STORED = 1_700_000_000_123
OUT = 1_700_000_005_000
FAR = 9_999_999_999_999


def compiled_dues(run: RecordRun, indices: Ints) -> list[int]:
    twin = compiled("duetime_format._timers")
    return np.frombuffer(twin.dues(run.data, run.columns, np.ascontiguousarray(indices)), np.int64).tolist()


def properties(**named: object) -> bytes:
    return b"\x02".join(f"{name}\x01{value}".encode() for name, value in named.items())


@pytest.mark.parametrize(
    ("named", "due"),
    [
        # Ours: TIMER_OUT_MS is the last ms before.
        ({"TIMER_DELAY_MS": 5_000, "TIMER_OUT_MS": STORED + 4_999}, STORED + 5_000),
        ({"TIMER_DELIVER_MS": OUT + 1, "TIMER_OUT_MS": OUT}, OUT + 1),
        ({"TIMER_DELIVER_MS": 5, "TIMER_OUT_MS": STORED}, STORED + 1),
        ({"TIMER_DELAY_SEC": 5, "TIMER_OUT_MS": STORED + 4_999}, STORED + 5_000),
        # A broker's: floor(asked, 1 s), or 1 s before it where that is asked.
        ({"TIMER_DELIVER_MS": OUT + 1_000, "TIMER_OUT_MS": OUT}, OUT + 1_000),
        ({"TIMER_DELIVER_MS": OUT + 457, "TIMER_OUT_MS": OUT}, OUT + 457),
        ({"TIMER_DELAY_MS": 4_977, "TIMER_OUT_MS": OUT}, STORED + 4_977),
        # Precedence: seconds, then ms, then the moment.
        ({"TIMER_DELIVER_MS": FAR, "TIMER_DELAY_MS": 4_978, "TIMER_OUT_MS": OUT}, STORED + 4_978),
        ({"TIMER_DELAY_MS": 9, "TIMER_DELAY_SEC": 5, "TIMER_OUT_MS": OUT}, STORED + 5_000),
        # A broker put it back: the delay counts from its first store time, TIMER_OUT_MS stays.
        ({"TIMER_DELAY_MS": 86_400_000, "TIMER_OUT_MS": OUT, "TIMER_ROLL_TIMES": 2}, OUT + 1_000),
        # Nothing readable was asked for.
        ({"TIMER_OUT_MS": OUT}, OUT + 1_000),
        ({"TIMER_DELAY_MS": "soon", "TIMER_OUT_MS": OUT}, OUT + 1_000),
        ({"TIMER_DELAY_SEC": "", "TIMER_DELAY_MS": "4978", "TIMER_OUT_MS": OUT}, STORED + 4_978),
        ({"TIMER_DELAY_SEC": "x", "TIMER_DELAY_MS": "4978", "TIMER_OUT_MS": OUT}, STORED + 4_978),
        # TIMER_OUT_MS can't be read.
        ({"TIMER_DELAY_MS": 5_000}, STORED + 5_000),
        ({"TIMER_DELIVER_MS": OUT, "TIMER_OUT_MS": "1e3"}, OUT),
        ({"TIMER_DELIVER_MS": -5, "TIMER_OUT_MS": "x"}, 0),
        ({}, STORED),
        # Numbers that no clock reaches.
        ({"TIMER_DELAY_SEC": 2**63 - 1, "TIMER_OUT_MS": OUT}, OUT + 1_000),
        ({"TIMER_DELAY_SEC": -(2**63), "TIMER_OUT_MS": OUT}, OUT + 1),
        ({"TIMER_DELAY_SEC": 2**63, "TIMER_OUT_MS": OUT}, OUT + 1_000),
        ({"TIMER_DELAY_MS": 2**63 - 1}, timers.MS_MAX),
        ({"TIMER_OUT_MS": 2**63 - 1, "TIMER_DELAY_SEC": 2**62}, timers.MS_MAX + 1_000),
        ({"TIMER_OUT_MS": -1, "TIMER_DELAY_MS": -(2**63)}, 1),
    ],
)
def test_record_falls_due_at_its_requested_time_within_its_second(named: dict[str, object], due: int) -> None:
    assert due_by(properties(**named), STORED) == due
    found = Record(TIMER_TOPIC, 0, b"", properties(**named), stored_at_ms=STORED)
    assert due_at_ms(found) == due
    run = columns.take(record.encode(found), 0, 0)
    assert dues(run, np.array([0])).tolist() == [due]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b"0", 0),
        (b"-0", 0),
        (b"+7", 7),
        (b"007", 7),
        (b"0" * 40 + b"7", 7),
        (b"9223372036854775807", 2**63 - 1),
        (b"-9223372036854775808", -(2**63)),
        (b"9223372036854775808", None),
        (b"-9223372036854775809", None),
        (b"1" * 20, None),
        (b"", None),
        (b"-", None),
        (b"+-1", None),
        (b" 1", None),
        (b"1 ", None),
        (b"1_000", None),
        (b"0x1", None),
        ("\u0661".encode(), None),
    ],
)
def test_numbers_are_read_as_java_reads_them(text: bytes, value: int | None) -> None:
    assert java_long(text) == value
    # The compiled twin reads the same: a delay of 0 ms and none differ.
    named = b"TIMER_DELIVER_MS\x01" + text
    run = columns.take(record.encode(Record(TIMER_TOPIC, 0, b"", named, stored_at_ms=STORED)), 0, 0)
    expected = STORED if value is None else min(max(value, 0), timers.MS_MAX)
    assert compiled_dues(run, np.array([0])) == [expected]


numbers = st.one_of(
    st.integers(-(1 << 65), 1 << 65),
    st.integers(STORED - 5_000, STORED + 5_000),
    st.sampled_from([0, 1, -1, 2**47, 2**56, 2**56 - 2_000, 2**63 - 1, 2**63, -(2**63), 10**12, 10**13]),
)
values = st.one_of(numbers.map(str), st.sampled_from(["", "x", "+5", "-", "0005", "5 ", "1" * 25]))
names = st.sampled_from(
    ["TIMER_OUT_MS", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS", "TIMER_DELAY_M", "XTIMER_OUT_MS", "T", ""]
)
parts = st.tuples(names, values).map(lambda pair: f"{pair[0]}\x01{pair[1]}".encode()) | st.binary(max_size=8)
stored_times = st.sampled_from([STORED, 0, -1, 2**63 - 1, -(2**63), 2**56])


@given(st.lists(st.tuples(st.lists(parts, max_size=7).map(b"\x02".join), stored_times), min_size=1, max_size=5))
def test_compiled_twin_finds_the_same_due_times(records: list[tuple[bytes, int]]) -> None:
    made = [record.encode(Record(TIMER_TOPIC, 0, b"", text + b"\x02", stored_at_ms=at)) for text, at in records]
    run = columns.parse(b"".join(made))
    chosen = np.arange(run.count)[::-1]
    found = compiled_dues(run, chosen)
    assert found == [due_by(text + b"\x02", at) for text, at in records[::-1]]
    assert all(0 <= due < DUE_MS_LIMIT for due in found)


def test_compiled_twin_reads_within_the_bytes_only() -> None:
    twin = compiled("duetime_format._timers")
    run = columns.parse(record.encode(Record(TIMER_TOPIC, 0, b"", b"k\x01v")))
    for index in (1, -1, 1 << 60):
        with pytest.raises(ValueError, match="is not one of 1"):
            twin.dues(run.data, run.columns, np.array([index]))
    for row, value in ((0, 1 << 40), (1, 1 << 40), (9, -1), (9, 1 << 40)):
        wrong = run.columns.copy()
        wrong[row, 0] = value
        with pytest.raises(ValueError, match="is not within"):
            twin.dues(run.data, wrong, np.array([0]))


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        ({"TIMER_DELAY_MS": 5_000, "TIMER_OUT_MS": "0000000005000"}, True),
        ({"TIMER_DELAY_MS": 4_999, "TIMER_OUT_MS": "0000000005000"}, True),
        ({"TIMER_DELAY_MS": 5_001, "TIMER_OUT_MS": "0000000005000"}, False),
        ({"TIMER_DELAY_MS": 1, "TIMER_OUT_MS": "0000000000000"}, True),
        ({"TIMER_DELAY_MS": -1, "TIMER_OUT_MS": "0000000000000"}, True),
        ({"TIMER_DELAY_SEC": 5, "TIMER_OUT_MS": "0000000005000"}, True),
        ({"TIMER_DELAY_SEC": 5, "TIMER_OUT_MS": "0000000004999"}, False),
        ({"TIMER_DELAY_SEC": 2**63 - 1, "TIMER_OUT_MS": "0000000005000"}, False),
        ({"TIMER_DELAY_SEC": 6, "TIMER_DELAY_MS": 1, "TIMER_OUT_MS": "0000000005000"}, False),
        ({"TIMER_DELIVER_MS": OUT, "TIMER_OUT_MS": "0000000005000"}, False),
        ({"TIMER_OUT_MS": "0000000005000"}, False),
        ({"TIMER_DELIVER_MS": OUT + 1, "TIMER_OUT_MS": OUT}, True),
        ({"TIMER_DELIVER_MS": 1, "TIMER_OUT_MS": 10**12}, True),
        ({"TIMER_DELIVER_MS": -(2**63), "TIMER_OUT_MS": 10**12}, True),
        ({"TIMER_DELIVER_MS": OUT + 2, "TIMER_OUT_MS": OUT}, False),
        ({"TIMER_DELIVER_MS": OUT, "TIMER_DELAY_MS": 1, "TIMER_OUT_MS": OUT}, False),
        ({"TIMER_DELIVER_MS": OUT, "TIMER_DELAY_SEC": 1, "TIMER_OUT_MS": OUT}, False),
        ({"TIMER_OUT_MS": OUT}, False),
        ({"TIMER_DELIVER_MS": OUT}, False),
    ],
)
def test_requested_time_agrees_with_the_stores_property(named: dict[str, object], expected: bool) -> None:
    run = columns.parse(record.encode(Record(TIMER_TOPIC, 0, b"", properties(**named))))
    assert agrees(run.properties(0)) == expected
    assert agree(run, np.array([0])).tolist() == [expected]


@given(st.lists(parts, max_size=7).map(b"\x02".join), st.integers(0, 10**13 - 1), st.integers(0, 10**13 - 1))
def test_agreed_time_is_the_due_time_of_every_reader(text: bytes, value: int, now_ms: int) -> None:
    """So the due time that a put is answered is the one that every reader of the record finds."""
    sent = text + b"\x02TIMER_OUT_MS\x01%013d" % value
    run = columns.parse(record.encode(Record(TIMER_TOPIC, 0, b"", sent)))
    agreed = agrees(sent)
    twin = compiled("duetime_format._timers")
    assert np.frombuffer(twin.agree(run.data, run.columns, np.array([0])), np.int64).tolist() == [agreed]
    if agreed:
        due, _ = timers.placed_due(value, now_ms)
        assert due > now_ms
        assert due_by(text + b"\x02TIMER_OUT_MS\x01%013d" % (due - 1), now_ms) == due


def test_outs_equal_values_of_senders() -> None:
    texts = [record.timer_out(delay_ms=0), record.timer_out(delay_ms=5_000), record.timer_out(deliver_at_ms=OUT)]
    data = b"".join(record.encode(Record(TIMER_TOPIC, 0, b"", b"TIMER_OUT_MS\x01" + text)) for text in texts)
    assert timers.outs(columns.parse(data), np.arange(3)).tolist() == [0, 5_000, OUT - 1]
