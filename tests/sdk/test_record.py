"""Received messages: the SDK's decoder against the codec that writes the records."""

import zlib
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from duetime import Damaged
from duetime.client.record import (
    DECOMPRESSED_BYTES_MAX,
    RESERVED_PROPERTIES,
    ReceivedMessage,
    decompressed,
    split_records,
)
from duetime_format import layout
from duetime_format import record as codec
from duetime_format.layout import SYS_COMPRESSED
from duetime_format.properties import encode_properties
from hypothesis import given
from hypothesis import strategies as st

HOST_V4 = codec.host_bytes("127.0.0.1", 12345)
HOST_V6 = codec.host_bytes("2001:db8::1", 10911)
PROPERTIES = b"\x02".join(
    [
        b"color\x01red",
        "größe\x01länge".encode(),
        b"TAGS\x01paid",
        b"KEYS\x01k1 k2",
        b"UNIQ_KEY\x01ABC",
        b"DELAY\x012",
        b"REAL_TOPIC\x01orders",
        b"REAL_QID\x013",
        codec.lane_entry(2, 17, 1_700_000_005_000),
        codec.CRC_MARK,
    ]
)
RECORD = codec.Record(
    topic="orders",
    queue=3,
    body=b"cancel 42",
    properties=PROPERTIES,
    flag=5,
    born_at_ms=1_700_000_000_001,
    born_host=HOST_V4,
    stored_at_ms=1_700_000_005_003,
    store_host=HOST_V4,
    reconsume_times=4,
    queue_offset=99,
    position=4096,
)


@pytest.mark.parametrize("magic", [layout.MAGIC_V1, layout.MAGIC_V2])
@pytest.mark.parametrize("born_host", [HOST_V4, HOST_V6])
@pytest.mark.parametrize("store_host", [HOST_V4, HOST_V6])
def test_every_field_is_read_from_its_place(magic: int, born_host: bytes, store_host: bytes) -> None:
    record = replace(RECORD, magic=magic, born_host=born_host, store_host=store_host)
    (message,) = split_records(codec.encode(record))
    assert (message.id, message.topic, message.queue, message.offset) == ("ABC", "orders", 3, 99)
    assert (message.body, message.tags, message.keys, message.flag) == (b"cancel 42", "paid", ["k1", "k2"], 5)
    assert message.properties == {"color": "red", "größe": "länge"}
    assert message.born_at == datetime(2023, 11, 14, 22, 13, 20, 1000, tzinfo=UTC)
    assert message.stored_at == datetime(2023, 11, 14, 22, 13, 25, 3000, tzinfo=UTC)
    assert message.due_at == datetime(2023, 11, 14, 22, 13, 25, tzinfo=UTC)
    assert (message.late_ms, message.delay_level, message.attempt) == (3, 2, 4)


def test_a_message_that_was_not_delayed_has_no_due_time() -> None:
    message = ReceivedMessage(codec.encode(replace(RECORD, properties=b"UNIQ_KEY\x01ABC\x02")))
    assert (message.due_at, message.late_ms, message.delay_level) == (None, None, 0)
    assert (message.tags, message.keys, message.properties) == ("", [], {})


@pytest.mark.parametrize("entry", [b"", b"1", b"1:2", b"1:2:x", b"1:2:3:4"])
def test_a_malformed_lane_entry_is_no_due_time(entry: bytes) -> None:
    message = ReceivedMessage(codec.encode(replace(RECORD, properties=b"a\x01b\x02DT_ENTRY\x01" + entry)))
    assert message.due_at is None


def test_a_record_without_id_is_known_by_its_place_in_the_log() -> None:
    for host in (HOST_V4, HOST_V6):
        message = ReceivedMessage(codec.encode(replace(RECORD, properties=b"", store_host=host)))
        assert message.id == codec.offset_message_id(host, 4096)


@pytest.mark.parametrize("sys_flag", [0x001, 0x301])
def test_a_body_compressed_by_zlib_is_decompressed(sys_flag: int) -> None:
    record = replace(RECORD, body=zlib.compress(b"long" * 1000), sys_flag=sys_flag)
    assert ReceivedMessage(codec.encode(record)).body == b"long" * 1000


@pytest.mark.parametrize(
    ("sys_flag", "text"), [(0x101, "is damaged"), (0x201, "is damaged"), (0x401, "algorithm 4"), (0x001, "is damaged")]
)
def test_a_body_that_cannot_be_decompressed_is_damaged(sys_flag: int, text: str) -> None:
    message = ReceivedMessage(codec.encode(replace(RECORD, sys_flag=sys_flag)))
    with pytest.raises(Damaged, match=text):
        _ = message.body
    assert message.id == "ABC"


def test_records_back_to_back_are_split() -> None:
    records = [codec.encode(replace(RECORD, queue_offset=n, body=bytes(n))) for n in range(5)]
    messages = split_records(b"".join(records))
    assert [(message.offset, len(message.body)) for message in messages] == [(n, n) for n in range(5)]
    assert split_records(b"") == []


@pytest.mark.parametrize("cut", [1, 7, 50, 100])
def test_records_cut_short_are_damaged(cut: int) -> None:
    record = codec.encode(RECORD)
    with pytest.raises(Damaged, match="no whole record"):
        split_records(record + record[:cut])


@pytest.mark.parametrize("prefix", [bytes(8), layout.blank(200), b"\xff" * 8])
def test_bytes_that_are_no_record_are_damaged(prefix: bytes) -> None:
    with pytest.raises(Damaged):
        split_records(prefix + bytes(200))


def test_the_reserved_names_are_the_cores() -> None:
    assert RESERVED_PROPERTIES == codec.RESERVED_PROPERTIES


@given(
    st.dictionaries(st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1),
                    st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1)),
    st.binary(),
    st.booleans(),
)  # fmt: skip
def test_encoded_values_are_read_back(properties: dict[str, str], body: bytes, trailing: bool) -> None:
    encoded = encode_properties(properties) + (b"\x02" if trailing and properties else b"")
    message = ReceivedMessage(codec.encode(replace(RECORD, properties=encoded, body=body)))
    assert message.body == body
    assert message.properties == {k: v for k, v in properties.items() if k not in RESERVED_PROPERTIES}


def test_oversized_compressed_body_is_rejected_before_decompression() -> None:
    bomb = zlib.compress(bytes(DECOMPRESSED_BYTES_MAX + 1))
    assert len(bomb) < 100_000
    with pytest.raises(Damaged, match=f"more than {DECOMPRESSED_BYTES_MAX} bytes") as caught:
        decompressed(bomb, SYS_COMPRESSED)
    assert caught.value.reason == "BODY_COMPRESSION"
    assert len(decompressed(zlib.compress(bytes(DECOMPRESSED_BYTES_MAX)), SYS_COMPRESSED)) == DECOMPRESSED_BYTES_MAX
    with pytest.raises(Damaged, match="cut short"):
        decompressed(zlib.compress(b"body")[:-1], SYS_COMPRESSED)
