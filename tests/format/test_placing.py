"""Puts taken apart and placed: Python and compiled code agree for any bytes."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from duetime_core.errors import InvalidArgument
from duetime_format import columns, layout, placing, record
from duetime_format.names import TIMER_TOPIC
from duetime_format.placing import OWN_DUE, place
from duetime_format.properties import value_of
from duetime_format.timers import due_at_ms, placed_due
from duetime_format.units import UNIT
from duetime_store.log import intake as module
from duetime_store.log.intake import Intake
from hypothesis import given
from hypothesis import strategies as st

from tests.store.conftest import sealed, sent
from tests.twins import compiled

PROPERTIES = [
    b"TAGS\x01paid",
    b"TAGS\x01",
    b"XTAGS\x01paid",
    b"TAGS\x01" + "größe😀".encode(),
    b"TAGS\x01\xff\xfe",
    b"TAGS",
    b"TAGS\x01DT_ENTRY\x011:2:3",
    b"UNIQ_KEY\x01AB",
    b"UNIQ_KEY\x01",
    b"XUNIQ_KEY\x01AB",
    b"U",
    b"",
    b"DT_ENTRY\x011:2:3",
    b"XDT_ENTRY\x011:2:3",
    b"DT_ENTRY\x01:2:3",
    b"DT_ENTRY\x011:2",
    b"DT_ENTRY\x011:2:3:4",
    b"DT_ENTRY\x011:-2:3",
    b"DT_ENTRY\x011:2:3x",
    b"DT_ENTRY\x01007:9999999999999999999:3",
    b"DT_ENTRY\x011:11111111111111111111:3",
    b"DT_ENTRY\x01" + b"1" * 70,
    b"TIMER_OUT_MS\x010000000005000",
    b"TIMER_OUT_MS\x010000000000000",
    b"TIMER_OUT_MS\x010999999999999",
    b"TIMER_OUT_MS\x011000000000000",
    b"TIMER_OUT_MS\x011234567890122",
    b"TIMER_OUT_MS\x011234567890123",
    b"TIMER_OUT_MS\x019999999999999",
    b"TIMER_OUT_MS\x01999999999999",
    b"TIMER_OUT_MS\x01",
]
MARKS = st.sampled_from(
    [
        b"",
        record.CRC_ENDING,
        record.CRC_ENDING,
        record.CRC_MARK,
        record.CRC_MARK[:-1],
        b"\x02" + record.CRC_ENDING,
        b"\x02__CRC32#\x01abcdefghij\x02",
        b"\x02__CRC32#\x02abcdefghij\x02",
        b"\x03" + record.CRC_MARK,
        b"\x02__CRD32#\x010000000000\x02",
    ]
)
RECORDS = st.builds(
    record.Record,
    topic=st.sampled_from(
        ["orders", "a", "", "SCHEDULE_TOPIC_XXXX", TIMER_TOPIC, TIMER_TOPIC, "töpic", "orders-retry"]
    ),
    queue=st.integers(-2, 3) | st.integers(-(1 << 31), (1 << 31) - 1),
    body=st.binary(max_size=40),
    properties=st.tuples(
        st.lists(st.sampled_from(PROPERTIES) | st.binary(max_size=12), max_size=5).map(b"\x02".join), MARKS
    ).map(b"".join),
    born_host=st.sampled_from([bytes(8), bytes(20)]),
    store_host=st.sampled_from([bytes(8), bytes(20)]),
).map(record.encode)


@pytest.fixture(params=["python", "compiled"])
def parse(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], Intake]:
    use_twins(monkeypatch, wanted=request.param == "compiled")
    return module.parse


def use_twins(patch: pytest.MonkeyPatch, *, wanted: bool) -> None:
    for reference in (columns, placing):
        name = reference.__name__.replace("format.", "format._")
        patch.setattr(reference, "_twin", compiled(name) if wanted else None)


def assert_alike(call: Callable[[], object]) -> None:
    """Both give the same, or raise the same."""
    told = []
    for wanted in (False, True):
        with pytest.MonkeyPatch.context() as patch:
            use_twins(patch, wanted=wanted)
            try:
                told.append(call())
            except InvalidArgument as error:
                told.append(str(error))
    assert told[0] == told[1]


def taken_apart(data: bytes) -> tuple[object, ...]:
    taken = module.parse(data)
    entries = None if taken.entries is None else taken.entries.tolist()
    return taken.keys, taken.columns.tolist(), columns.has_all_ids(taken), entries


def placed(data: bytes) -> tuple[object, ...]:
    taken = module.parse(data)
    dues = [1_700_000_000_000 * (topic == b"SCHEDULE_TOPIC_XXXX") for topic, _ in taken.keys]
    for number, (topic, _) in enumerate(taken.keys):
        if topic == TIMER_TOPIC.encode() and (taken.timer_at[taken.key_of == number] >= 0).all():
            dues[number] = OWN_DUE
    next_offsets = [7 * n for n in range(len(taken.keys))]
    own = place(taken, np.arange(taken.count) * 1_000, next_offsets, dues, 1_234_567_890_123)
    return own.data, own.offsets, own.units, own.counts, own.dues, own.past


@given(st.lists(RECORDS, min_size=1, max_size=12))
def test_both_take_apart_and_place_alike(records: list[bytes]) -> None:
    data = b"".join(records)
    assert_alike(lambda: taken_apart(data))
    assert_alike(lambda: placed(data))


@given(st.lists(RECORDS, min_size=1, max_size=3), st.data())
def test_both_refuse_the_same_bytes_with_the_same_words(records: list[bytes], draw: st.DataObject) -> None:
    data = bytearray(b"".join(records))
    for _ in range(draw.draw(st.integers(1, 3))):
        at = draw.draw(st.integers(0, len(data) - 1) | st.integers(0, 130).map(lambda at: at % len(data)))
        data[at] = draw.draw(st.integers(0, 255))
    del data[draw.draw(st.integers(0, len(data)) | st.just(len(data))) :]
    assert_alike(lambda: taken_apart(bytes(data)))


def test_record_is_placed_with_the_crc_of_all_that_is_before_it(parse: Callable[[bytes], Intake]) -> None:
    bare = record.encode(record.Record("orders", 0, b"", b"k\x01v"))
    only_mark = record.encode(record.Record("orders", 0, b"body", record.CRC_MARK))
    unlike = record.encode(record.Record("orders", 0, b"body", b"X" + record.CRC_MARK))
    v6 = record.encode(record.Record("orders", 0, b"body", record.CRC_MARK, born_host=bytes(20), store_host=bytes(20)))
    sizes = [len(data) for data in (sent("A"), bare, only_mark, unlike, v6)]
    taken = parse(sent("A") + bare + only_mark + unlike + v6)
    own = place(taken, taken.starts + 4_096, [7], [0], 1_700_000_000_000)
    at, found = 0, []
    for size in sizes:
        found.append(bytes(own.data[at : at + size]))
        at += size
    for data in (found[0], found[2], found[4]):
        assert data == sealed(data)
        assert record.decode(data).stored_at_ms == 1_700_000_000_000
        assert not data.endswith(record.CRC_MARK)
    assert found[1].endswith(b"k\x01v")
    assert found[3].endswith(b"X" + record.CRC_MARK)


@pytest.mark.parametrize("value", [0x00, 0x7F, 0x80, 0xFF])
def test_both_agree_on_each_byte(value: int) -> None:
    whole = sent("A") + sent("B")
    for at in range(len(sent("A"))):
        data = whole[:at] + bytes([value]) + whole[at + 1 :]
        assert_alike(lambda data=data: taken_apart(data))


def test_more_keys_than_the_table_holds_keep_their_numbers(parse: Callable[[bytes], Intake]) -> None:
    data = b"".join(sent("A", topic=f"t{n % 300}", queue=n % 7) for n in range(3_000))
    taken = parse(data)
    assert [taken.keys[number] for number in taken.key_of] == [(b"t%d" % (n % 300), n % 7) for n in range(3_000)]
    assert len(set(taken.keys)) == len(taken.keys) == 2_100


def test_no_records_are_taken_apart_to_nothing(parse: Callable[[bytes], Intake]) -> None:
    taken = parse(b"")
    assert (taken.count, taken.keys, taken.entries, columns.has_all_ids(taken)) == (0, [], None, True)


def test_topic_is_no_longer_than_readers_of_the_log_take(parse: Callable[[bytes], Intake]) -> None:
    data = bytearray(sent("A", topic="x" * 127))
    assert len(parse(bytes(data)).keys[0][0]) == 127
    at = data.index(b"\x7fxxx")
    data[at : at + 1] = b"\x80x"
    data[:4] = len(data).to_bytes(4, "big")
    with pytest.raises(InvalidArgument, match="topic length -128"):
        parse(bytes(data))


def test_properties_are_no_longer_than_readers_of_the_log_take(parse: Callable[[bytes], Intake]) -> None:
    data = bytearray(record.encode(record.Record("orders", 0, b"", b"k\x01" + b"x" * 32_765)))
    assert parse(bytes(data)).count == 1
    data += b"x"
    data[:4] = len(data).to_bytes(4, "big")
    at = len(data) - 32_768
    data[at - 2 : at] = (32_768).to_bytes(2, "big")
    with pytest.raises(InvalidArgument, match="properties length -32768"):
        parse(bytes(data))


def test_properties_do_not_end_like_a_torn_write(parse: Callable[[bytes], Intake]) -> None:
    def ending(properties: bytes) -> bytes:
        return record.encode(record.Record("orders", 0, b"", properties))

    assert parse(ending(b"") + ending(b"k\x01\0v")).count == 2
    with pytest.raises(InvalidArgument, match="no whole record at byte 97: its properties end with a zero byte"):
        parse(ending(b"") + ending(b"k\x01v\0"))


def test_places_are_filled_in_and_units_grouped_by_queue(parse: Callable[[bytes], Intake]) -> None:
    data = sent("A") + sent("B", queue=1) + sent("C")
    taken = parse(data)
    own = place(taken, np.array([100, 300, 500]), [10, 20], [0, 9_000], 5_000)
    assert (own.offsets, own.counts) == ([10, 20, 11], [2, 1])
    found = [record.decode(own.data, int(start)) for start in taken.starts]
    assert [(r.queue_offset, r.position, r.stored_at_ms) for r in found] == [
        (10, 100, 5_000),
        (20, 300, 5_000),
        (11, 500, 5_000),
    ]
    size, paid = found[0].size, record.tags_code(b"paid")
    assert list(UNIT.iter_unpack(own.units)) == [(100, size, paid), (500, size, paid), (300, size, 9_000)]


def timer(value: int, **changes: object) -> bytes:
    """A record for any time, with this number in TIMER_OUT_MS."""
    asked = b"TIMER_DELAY_MS\x01%d" % value if value < 10**12 else b"TIMER_DELIVER_MS\x01%d" % (value + 1)
    text = asked + b"\x02TIMER_OUT_MS\x01%013d\x02REAL_TOPIC\x01orders\x02REAL_QID\x013" % value
    made = record.Record(TIMER_TOPIC, 0, b"body", record.with_crc_mark(text))
    return record.encode(replace(made, **changes))


NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize(
    ("value", "due_at", "past"),
    [
        (0, NOW_MS + 1, False),
        (1, NOW_MS + 1, False),
        (5_000, NOW_MS + 5_000, False),
        (10**12 - 1, NOW_MS + 10**12 - 1, False),
        (10**12, NOW_MS + 1, True),
        (NOW_MS - 1, NOW_MS + 1, True),
        (NOW_MS, NOW_MS + 1, False),
        (NOW_MS + 1, NOW_MS + 2, False),
        (10**13 - 1, 10**13, False),
    ],
)
def test_a_record_for_any_time_gets_its_due_time_when_it_is_placed(
    parse: Callable[[bytes], Intake], value: int, due_at: int, past: bool
) -> None:
    taken = parse(timer(value) + sent("B"))
    own = place(taken, np.array([0, 900]), [4, 0], [OWN_DUE, 0], NOW_MS)
    found = record.decode(own.data)
    assert (own.dues, own.past) == ([due_at, 0], [0] * past)
    assert due_at_ms(found) == due_at
    assert value_of(found.properties, b"TIMER_OUT_MS") == b"%013d" % (due_at - 1)
    assert bytes(own.data[: found.size]) == sealed(bytes(own.data[: found.size]))
    assert [unit[2] for unit in UNIT.iter_unpack(own.units)] == [due_at, record.tags_code(b"paid")]
    assert placed_due(value, NOW_MS) == (due_at, past)


def test_dues_of_other_lanes_are_listed_beside_those_of_records(parse: Callable[[bytes], Intake]) -> None:
    taken = parse(timer(7) + sent("B", level=1) + sent("C") + timer(9))
    own = place(taken, np.arange(4), [0, 0, 0], [OWN_DUE, 5_000, 0], NOW_MS)
    assert own.dues == [NOW_MS + 7, 5_000, 0, NOW_MS + 9]
    assert place(parse(sent("C")), np.arange(1), [0], [0], NOW_MS).dues == []


def test_no_due_time_is_written_where_there_is_no_room_for_one(parse: Callable[[bytes], Intake]) -> None:
    bare = parse(record.encode(record.Record(TIMER_TOPIC, 0, b"", b"TIMER_OUT_MS\x0112")))
    with pytest.raises(ValueError, match="no TIMER_OUT_MS to fill in"):
        place(bare, np.zeros(1, np.int64), [0], [OWN_DUE], NOW_MS)


def test_compiled_place_writes_due_times_into_properties_only() -> None:
    twin, data = compiled("duetime_format._placing"), timer(7)
    run = columns.parse(data)
    for wrong in (0, int(run.properties_at[0]) - 1, len(data) - 12, len(data), 1 << 60, -1 << 60):
        run.columns[12, 0] = wrong
        with pytest.raises(ValueError, match="no TIMER_OUT_MS to fill in"):
            twin.place(data, run.columns, np.zeros(1, np.int64), [0], [OWN_DUE], 0)


def test_compiled_place_fills_in_a_bytearray_and_copies_bytes() -> None:
    compiled("duetime_format._placing")
    data = timer(NOW_MS + 7) + timer(12)
    run = columns.parse(data)
    own = replace(run, data=bytearray(data))
    arguments = np.zeros(2, np.int64), [0], [OWN_DUE], NOW_MS
    copied, filled = place(run, *arguments), place(own, *arguments)
    assert filled.data is own.data
    assert run.data == data
    assert filled == copied


def test_whole_bytes_end_before_a_torn_record() -> None:
    data = sent("A") + sent("B")
    assert module.whole_bytes(data[:-1]) == len(sent("A"))
    assert module.whole_bytes(data + layout.blank(8)) == len(data)


def test_compiled_place_refuses_columns_of_other_records() -> None:
    twin, data = compiled("duetime_format._placing"), sent("A") + sent("B")
    run = columns.parse(data)
    keys, positions = len(run.keys), np.zeros(2, np.int64)
    starts, sizes, key_of, properties_at = 0, 1, 2, 9
    for row, value in (
        (starts, 1 << 40),
        (starts, -1),
        (sizes, 90),
        (sizes, 1 << 40),
        (properties_at, len(data) + 1),
        (properties_at, 0),
        (key_of, 1),
        (key_of, -1),
    ):
        wrong = run.columns.copy()
        wrong[row, 1] = value
        with pytest.raises(ValueError, match="record 1 is not within"):
            twin.place(data, wrong, positions, [0] * keys, [0] * keys, 0)
    with pytest.raises(ValueError, match="values for"):
        twin.place(data, run.columns, positions[:1], [0], [0], 0)
