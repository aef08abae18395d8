"""Every record comes back as it was written, and every damage is named."""

import struct
from dataclasses import replace

import pytest
from duetime_format import layout, record
from duetime_format.errors import DamagedBytes
from duetime_format.properties import decode_properties, encode_properties, value_of
from duetime_format.record import Record
from hypothesis import given
from hypothesis import strategies as st

I32 = st.integers(-(2**31), 2**31 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
HOST = st.one_of(st.binary(min_size=8, max_size=8), st.binary(min_size=20, max_size=20))
TOPIC_V1 = st.text(max_size=127).filter(lambda text: len(text.encode()) <= 127)
TOPIC_V2 = st.text(max_size=300)
NAME = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=20)


@st.composite
def records(draw: st.DrawFn) -> Record:
    magic = draw(st.sampled_from([layout.MAGIC_V1, layout.MAGIC_V2]))
    return Record(
        topic=draw(TOPIC_V2 if magic == layout.MAGIC_V2 else TOPIC_V1),
        queue=draw(I32),
        body=draw(st.binary(max_size=600)),
        properties=draw(st.binary(max_size=300)),
        flag=draw(I32),
        sys_flag=draw(I32),
        born_at_ms=draw(I64),
        born_host=draw(HOST),
        stored_at_ms=draw(I64),
        store_host=draw(HOST),
        reconsume_times=draw(I32),
        prepared_transaction_offset=draw(I64),
        queue_offset=draw(I64),
        position=draw(I64),
        magic=magic,
    )


def same(read: Record, written: Record) -> bool:
    """Equal except for the fields that `encode` computes."""
    v6 = layout.SYS_BORN_V6 | layout.SYS_STORE_V6
    computed = {"body_crc": read.body_crc, "size": read.size, "sys_flag": read.sys_flag}
    return replace(written, **computed) == read and read.sys_flag & ~v6 == written.sys_flag & ~v6


@given(records(), st.binary(max_size=40), st.binary(max_size=40))
def test_record_is_read_at_any_position(written: Record, before: bytes, after: bytes) -> None:
    encoded = record.encode(written)
    read = record.decode(memoryview(before + encoded + after), len(before))
    assert same(read, written)
    assert read.size == len(encoded)
    assert record.encode(read) == encoded


@given(records())
def test_record_cut_short_anywhere_is_damaged(written: Record) -> None:
    encoded = record.encode(written)
    for length in range(0, len(encoded), max(1, len(encoded) // 40)):
        with pytest.raises(DamagedBytes):
            record.decode(encoded[:length])


@given(st.binary(max_size=400))
def test_bytes_that_are_no_record_are_damaged_and_nothing_worse(junk: bytes) -> None:
    with pytest.raises(DamagedBytes):
        record.decode(struct.pack(">ii", len(junk) + 8, layout.MAGIC_V1) + junk + b"\xff")


@given(records(), st.data())
def test_flipped_bit_never_gives_another_body(written: Record, data: st.DataObject) -> None:
    encoded = bytearray(record.encode(written))
    bit = data.draw(st.integers(0, len(encoded) * 8 - 1))
    encoded[bit // 8] ^= 1 << bit % 8
    try:
        read = record.decode(encoded)
    except DamagedBytes:
        return
    assert read.body == written.body


WHOLE = Record(
    topic="orders",
    queue=1,
    body=b"cancel 42",
    properties=encode_properties({"TAGS": "timeout", "UNIQ_KEY": "7F00"}),
    born_host=record.host_bytes("127.0.0.1", 1),
    store_host=record.host_bytes("127.0.0.1", 2),
)
ENCODED = record.encode(WHOLE)
SIZE = len(ENCODED)
BODY_LENGTH_AT = 84
BODY_AT = 88
TOPIC_LENGTH_AT = BODY_AT + len(WHOLE.body)
PROPERTIES_LENGTH_AT = TOPIC_LENGTH_AT + 1 + len("orders")


def patched(at: int, new: bytes) -> bytes:
    return ENCODED[:at] + new + ENCODED[at + len(new) :]


def i32(value: int) -> bytes:
    return struct.pack(">i", value)


DAMAGES = {
    "nothing": (b"", "0 bytes are too few for a record"),
    "cut inside the head": (ENCODED[:47], "47 bytes are too few for a record"),
    "cut by one byte": (ENCODED[:-1], f"record size {SIZE} is not within 91 and {SIZE - 1}"),
    "zeros": (bytes(200), "magic 00000000 is not a message's"),
    "blank": (layout.blank(200).ljust(200, b"\0"), "magic cbd43194 is not a message's"),
    "magic": (patched(4, b"\xda\xa3\x20\xa8"), "magic daa320a8 is not a message's"),
    "size negative": (patched(0, i32(-1)), f"record size -1 is not within 91 and {SIZE}"),
    "size below the fixed part": (patched(0, i32(90)), f"record size 90 is not within 91 and {SIZE}"),
    "size of IPv6 hosts": (patched(36, i32(0x30))[:120], f"record size {SIZE} is not within 115 and 120"),
    "size one less": (patched(0, i32(SIZE - 1)), f"does not end the record of {SIZE - 1} bytes"),
    "size one more": (patched(0, i32(SIZE + 1)) + b"\0", f"does not end the record of {SIZE + 1} bytes"),
    "stored CRC": (patched(8, i32(1)), "is not the stored 00000001"),
    "stored CRC with its top bit": (patched(8, b"\xff"), "is not the stored ff"),
    "body": (patched(BODY_AT, b"X"), "is not the stored"),
    "body length negative": (
        patched(BODY_LENGTH_AT, i32(-1)),
        f"body length -1 does not fit the record's {SIZE} bytes",
    ),
    "body length past the end": (
        patched(BODY_LENGTH_AT, i32(2**31 - 1)),
        f"body length 2147483647 does not fit the record's {SIZE} bytes",
    ),
    "topic length negative": (patched(TOPIC_LENGTH_AT, b"\xff"), f"topic length -1 does not fit the record's {SIZE}"),
    "topic length past the end": (
        patched(TOPIC_LENGTH_AT, b"\x7f"),
        f"topic length 127 does not fit the record's {SIZE} bytes",
    ),
    "properties length negative": (
        patched(PROPERTIES_LENGTH_AT, b"\xff\xff"),
        f"properties length -1 does not end the record of {SIZE} bytes",
    ),
    "properties length one less": (
        patched(PROPERTIES_LENGTH_AT, struct.pack(">h", len(WHOLE.properties) - 1)),
        f"properties length {len(WHOLE.properties) - 1} does not end the record of {SIZE} bytes",
    ),
    "topic not UTF-8": (patched(TOPIC_LENGTH_AT + 1, b"\xff"), "topic is not UTF-8"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_named(damage: str) -> None:
    encoded, sentence = DAMAGES[damage]
    with pytest.raises(DamagedBytes) as caught:
        record.decode(encoded)
    assert sentence in caught.value.text


def test_crc_is_not_checked_where_the_caller_did() -> None:
    assert record.decode(patched(8, i32(1)), check_crc=False).body == WHOLE.body


def test_properties_not_utf8_are_read_with_the_mark_of_the_unknown() -> None:
    encoded = record.encode(replace(WHOLE, properties=b"TAGS\x01a\xff\x02k\x01v"))
    assert decode_properties(record.decode(encoded).properties) == {
        "TAGS": "a\N{REPLACEMENT CHARACTER}",
        "k": "v",
    }


def test_topic_longer_than_its_length_field_is_never_written() -> None:
    with pytest.raises(OverflowError):
        record.encode(replace(WHOLE, topic="t" * 128))
    with pytest.raises(OverflowError):
        record.encode(replace(WHOLE, properties=bytes(32_768)))


@given(st.dictionaries(NAME, NAME, max_size=8))
def test_properties_come_back(properties: dict[str, str]) -> None:
    encoded = encode_properties(properties)
    assert decode_properties(encoded) == properties
    assert decode_properties(encoded + b"\x02" if encoded else b"") == properties
    for name, value in properties.items():
        assert value_of(encoded, name.encode()) == value.encode()


@pytest.mark.parametrize(
    ("encoded", "expected"),
    [
        (b"", {}),
        (b"\x02", {}),
        (b"a", {}),
        (b"a\x01", {}),
        (b"\x01v", {}),
        (b"a\x01\x02b\x01c", {"b": "c"}),
        (b"a\x01b\x01c\x02", {"a": "b\x01c"}),
        (b"a\x01b\x02a\x01c", {"a": "c"}),
    ],
)
def test_odd_properties_are_read_as_rocketmq_reads_them(encoded: bytes, expected: dict[str, str]) -> None:
    assert decode_properties(encoded) == expected


def test_property_is_found_by_its_whole_name_only() -> None:
    encoded = b"XTAGS\x01no\x02TAGSX\x01no\x02v\x01TAGS\x02TAGS\x01yes\x02"
    assert value_of(encoded, b"TAGS") == b"yes"
    assert value_of(encoded, b"KEYS") == b""
    assert value_of(b"TAGS\x01yes", b"TAGS") == b"yes"


@given(
    st.integers(1, 256), st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1), st.dictionaries(NAME, NAME, max_size=4)
)
def test_lane_entry_is_found_at_the_end(level: int, offset: int, due: int, properties: dict[str, str]) -> None:
    encoded = encode_properties(properties)
    ended = b"\x02".join(part for part in (encoded, record.lane_entry(level, offset, due)) if part)
    assert record.find_lane_entry(ended) == (level, offset, due)


@pytest.mark.parametrize(
    "properties",
    [
        b"",
        b"TAGS\x01a",
        b"DT_ENTRY\x011:2",
        b"DT_ENTRY\x011:2:x",
        b"DT_ENTRY\x011:2:-3",
        b"DT_ENTRY\x011:2:3\x02TAGS\x01a",
        b"XDT_ENTRY\x011:2:3",
        b"a\x01DT_ENTRY",
        b"DT_ENTRY\x011:2:" + b"9" * 5_000,
    ],
)
def test_invalid_lane_entry_gives_none(properties: bytes) -> None:
    assert record.find_lane_entry(properties) is None


@given(st.dictionaries(NAME, NAME, max_size=4), st.booleans())
def test_mark_stands_behind_other_properties_and_goes_again(properties: dict[str, str], trailing: bool) -> None:
    encoded = encode_properties(properties)
    marked = record.with_crc_mark(encoded + b"\x02" * (trailing and bool(encoded)))
    assert record.has_crc_mark(marked)
    assert not record.has_crc_mark(encoded)
    assert record.without_crc_mark(marked) == record.without_crc_mark(encoded) == encoded


@given(
    st.binary(max_size=40), st.sampled_from([bytes(8), bytes(20)]), st.sampled_from([layout.MAGIC_V1, layout.MAGIC_V2])
)
def test_every_flipped_bit_of_a_checked_record_is_found(body: bytes, host: bytes, magic: int) -> None:
    made = replace(WHOLE, body=body, born_host=host, magic=magic, properties=record.with_crc_mark(b"TAGS\x01paid"))
    data = record.encode(made)
    data = data[:-11] + record.crc_digits(data[:-20]) + data[-1:]
    record.decode(data)
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DamagedBytes):
            record.decode(flipped)


def test_blank_mark_means_nothing() -> None:
    data = bytearray(record.encode(replace(WHOLE, properties=record.CRC_MARK)))
    data[20] ^= 1
    assert record.decode(data).properties == record.CRC_MARK
    data[-5] = ord("1")
    with pytest.raises(DamagedBytes, match="does not match its CRC"):
        record.decode(data)


@pytest.mark.parametrize("properties", [b"X" + record.CRC_MARK, b"a\x01b\x02X" + record.CRC_MARK[1:], b"k\x01v" * 9])
def test_property_that_is_no_mark_is_ordinary(properties: bytes) -> None:
    assert record.without_crc_mark(properties) == properties


def test_deferral_names_the_real_place() -> None:
    assert record.deferral(3, "orders", 7) == {"DELAY": "3", "REAL_TOPIC": "orders", "REAL_QID": "7"}


def test_ids_and_topics_that_end_alike_have_hashes_of_their_own() -> None:
    numbers = [b"%d" % number for number in range(10_000, 30_000)]
    hashes = {record.id_hash(b"orders-" + number, number) for number in numbers}
    # A few of 20,000 numbers of 32 bits are equal by chance.
    assert len(hashes) > len(numbers) - 5
