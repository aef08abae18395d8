"""Records as messages: Python and compiled code agree for any records."""

from collections.abc import Callable

import pytest
from duetime.v1 import gateway_pb2
from duetime_format import record
from duetime_store.reading import messages as module
from hypothesis import example, given
from hypothesis import strategies as st

from tests.store.conftest import sent
from tests.twins import compiled

Write = Callable[[bytes, list[int], int], tuple[bytes, int]]
V6 = bytes(range(16)) + b"\x00\x00\x2a\x9f"


@pytest.fixture(scope="module")
def write() -> Write:
    write: Write = compiled("duetime_store.reading._messages").write
    return write


def answer(records: list[bytes]) -> gateway_pb2.PullResponse:
    response = gateway_pb2.PullResponse(next_offset=9)
    module.add_messages(response, b"".join(records), [len(data) for data in records])
    return response


def in_python(records: list[bytes]) -> gateway_pb2.PullResponse:
    sizes = [len(data) for data in records]
    return gateway_pb2.PullResponse(next_offset=9, messages=module.stored_messages(b"".join(records), sizes))


def made(properties: bytes, **changes: object) -> bytes:
    values: dict[str, object] = {"topic": "orders", "queue": 3, "body": b"some body", "properties": properties}
    return record.encode(record.Record(**{**values, **changes}))  # type: ignore[arg-type]


FULL = made(
    b"color\x01red\x02TAGS\x01paid\x02KEYS\x01a1 b2\x02UNIQ_KEY\x0117\x02size\x01\xc3\xa9\x02"
    b"DT_ENTRY\x013:7:1700000000123",
    flag=9,
    sys_flag=0x301,
    born_at_ms=1_700_000_000_000,
    born_host=b"\x7f\x00\x00\x01\x00\x00\x30\x39",
    stored_at_ms=1_700_000_000_001,
    reconsume_times=2,
    queue_offset=4_711,
)


def test_message_has_every_field_of_its_record() -> None:
    (message,) = answer([FULL]).messages
    assert (message.topic, message.queue, message.offset, message.body) == ("orders", 3, 4_711, b"some body")
    assert dict(message.properties) == {"color": "red", "size": "é"}
    assert (message.tags, list(message.keys), message.id) == ("paid", ["a1", "b2"], "17")
    assert (message.flag, message.sys_flag, message.attempt) == (9, 0x301, 2)
    assert (message.born_at_ms, message.stored_at_ms) == (1_700_000_000_000, 1_700_000_000_001)
    assert (message.due_at_ms, message.delay_level) == (1_700_000_000_123, 3)
    assert message.born_host == "127.0.0.1:12345"


def test_usual_records_are_written_in_one_run(write: Write) -> None:
    records = [FULL, sent("A"), sent("B", body=bytes(5_000)), sent("C", body=b"")]
    sizes = [len(data) for data in records]
    wire, count = write(b"".join(records), sizes, 0)
    assert count == 4
    assert gateway_pb2.PullResponse.FromString(wire).messages == in_python(records).messages
    assert wire == b"".join(write(data, [len(data)], 0)[0] for data in records)


def test_unusual_and_damaged_records_keep_their_place() -> None:
    v6 = made(b"UNIQ_KEY\x01six", born_host=V6)
    cut = bytearray(sent("B"))
    cut[84:88] = b"\x7f\xff\xff\xff"
    records = [sent("A"), v6, v6, bytes(cut), made(b"UNIQ_KEY\x01\xff"), sent("C")]
    found = answer(records)
    assert [message.id for message in found.messages] == ["A", "six", "six", "\ufffd", "C"]
    assert found == in_python(records)
    assert found.next_offset == 9


@pytest.mark.parametrize(
    "properties",
    [
        b"DT_ENTRY\x013:7:8",
        b"a\x01b\x02DT_ENTRY\x013:7:8",
        b"a\x01b\x02DT_ENTRY\x013:7:8x",
        b"a\x01b\x02DT_ENTRY\x013:7:8:9",
        b"a\x01b\x02DT_ENTRY\x013:7:",
        b"a\x01b\x02DT_ENTRY\x013:7",
        b"a\x01b\x02DT_ENTRY\x01:7:8",
        b"a\x01b\x02DT_ENTRY\x013:7:8\x02",
        b"a\x01b\x02DT_ENTRY\x013:7:8\x02c\x01d",
        b"DT_ENTRY\x013:7:8\x02DT_ENTRY\x01x",
        b"a\x01b\x02XDT_ENTRY\x013:7:8",
        b"a\x01b\x02DT_ENTRY\x013:7:" + b"0" * 40 + b"8",
        b"a\x01b\x02DT_ENTRY\x01" + b"9" * 25 + b":7:8",
        b"k\x01" + b"v" * 20_000 + b"\x02" + b"n" * 10_000 + b"\x01v",
        b"KEYS\x01" + b"k" * 20_000,
        b"KEYS\x01a\x02KEYS\x01\x02TAGS\x01t\x02TAGS\x01u\x02UNIQ_KEY\x011\x02UNIQ_KEY\x012",
        b"c\x01d\x02c\x01e\x02c\x01",
        record.CRC_MARK,
        b"DT_ENTRY\x013:7:8" + record.CRC_ENDING,
        b"a\x01b\x02DT_ENTRY\x013:7:8" + record.CRC_ENDING,
        b"a\x01b\x02DT_ENTRY\x013:7:8\x02c\x01d" + record.CRC_ENDING,
        b"a\x01b\x02DT_ENTRY\x013:7:8\x02" + record.CRC_ENDING,
        b"a\x01b\x02DT_ENTRY\x013:7:8X" + record.CRC_MARK,
        b"DT_ENTRY\x013:7:8" + record.CRC_ENDING + record.CRC_MARK,
    ],
)
def test_properties_are_read_as_python_reads_them(properties: bytes) -> None:
    records = [FULL, made(properties), FULL]
    found = answer(records)
    assert found == in_python(records)
    assert len(found.messages) == 3


@pytest.mark.parametrize("entry", [b"99999999999:7:8", b"2147483648:7:8", b"3:7:" + b"9" * 19])
def test_entry_that_no_field_can_hold_is_left_to_python(write: Write, entry: bytes) -> None:
    data = made(b"a\x01b\x02DT_ENTRY\x01" + entry)
    assert write(data, [len(data)], 0) == (b"", 0)


@pytest.mark.parametrize("sizes", [[2**31 - 1], [-1, 300], [90], [0, 10_000], [50, -20], [10_000], []])
def test_sizes_that_leave_the_bytes_give_nothing(write: Write, sizes: list[int]) -> None:
    for index in range(len(sizes) + 1):
        assert write(FULL, sizes, index) == (b"", 0)


names = st.sampled_from(
    ["TAGS", "KEYS", "UNIQ_KEY", "DELAY", "REAL_TOPIC", "DT_ENTRY", "DT_FAULT", "color", "é", "TAG", "k" * 200, ""]
)
texts = ["paid", "", "a b", " a\t\x1cb\x0b ", "\u3000x y", "é", "v" * 127, "v" * 128, "a\x01b", "k " * 300]
entries = [
    "3:7:8",
    "1:2",
    "1:2:3:4",
    "3:7:",
    "x:1:2",
    "007:08:09",
    "99999999999:1:2",
    "1:2:" + "9" * 18,
    "1:2:" + "9" * 20,
]
values = st.sampled_from(texts + entries)
parts = st.tuples(names, st.sampled_from(["\x01", "\x01", "\x01", ""]), values).map("".join)
i32, i64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)


@given(
    properties=st.lists(parts, max_size=5).map(lambda several: "\x02".join(several).encode()),
    spoilt=st.sampled_from([b"", b"", b"\xff", b"\xed\xa0\x80", b"\x02", record.CRC_ENDING, record.CRC_MARK]),
    topic=st.sampled_from(["orders", "", "é", "t" * 127]),
    numbers=st.tuples(i32, i64, i32, i64, i64, i32, i32),
    host=st.sampled_from([bytes(8), b"\xff\x0a\x64\x01\xff\xff\xff\xff", b"\x01\x02\x03\x04\x7f\xff\xff\xff", V6]),
    body=st.binary(max_size=40),
    changes=st.lists(st.tuples(st.integers(0, 40_000), st.integers(0, 255)), max_size=2),
)
@example(b"", b"", "orders", (0,) * 7, bytes(8), b"", [])
def test_compiled_and_python_make_the_same_messages(
    write: Write,
    properties: bytes,
    spoilt: bytes,
    topic: str,
    numbers: tuple[int, ...],
    host: bytes,
    body: bytes,
    changes: list[tuple[int, int]],
) -> None:
    queue, offset, flag, born_at_ms, stored_at_ms, attempt, sys_flag = numbers
    data = bytearray(
        made(
            properties + spoilt,
            topic=topic,
            queue=queue,
            queue_offset=offset,
            flag=flag,
            born_at_ms=born_at_ms,
            stored_at_ms=stored_at_ms,
            reconsume_times=attempt,
            sys_flag=sys_flag,
            born_host=host,
            body=body,
        )
    )
    for at, value in changes:
        data[at % len(data)] = value
    records = [FULL, bytes(data), FULL]
    try:
        expected = in_python(records)
    except ValueError:
        # A number too large for any field: the compiled code leaves it to Python, which reports it.
        assert write(b"".join(records), [len(one) for one in records], 1)[1] == 0
        return
    assert answer(records) == expected


@given(st.binary(max_size=400), st.lists(st.integers(-5, 400), max_size=4), st.integers(-1, 5))
def test_any_bytes_are_taken_for_records_without_harm(write: Write, data: bytes, sizes: list[int], index: int) -> None:
    assert write(data, sizes, index) == (b"", 0)
