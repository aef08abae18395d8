"""The codec gives and takes exactly the bytes that RocketMQ's own classes write."""

import hashlib
import struct
import zlib
from dataclasses import replace

import pytest
from duetime_format import layout, record
from duetime_format.levels import DEFAULT_DELAY_LEVELS, DelayLevels
from duetime_format.names import SCHEDULE_TOPIC
from duetime_format.properties import decode_properties, encode_properties, value_of
from duetime_format.record import Record

from tests.format import vectors

KEPT = {"KEYS": "K1", "UNIQ_KEY": vectors.UNIQ_KEY, "TAGS": "TagA"}
DEFERRED = KEPT | record.deferral(3, "TestTopic", 0)
PLAIN = Record(
    topic="TestTopic",
    queue=0,
    body=b"hello",
    properties=encode_properties(KEPT),
    born_at_ms=vectors.BORN_AT_MS,
    born_host=bytes.fromhex(vectors.BORN_HOST),
    stored_at_ms=vectors.STORED_AT_MS,
    store_host=bytes.fromhex(vectors.STORE_HOST),
)
CHECKED = b"TAGS\x01TagA\x02__CRC32#\x01" + vectors.R5_DIGITS.encode() + b"\x02"
RECORDS = {
    "R1": (PLAIN, vectors.R1),
    "R1_TRAILING": (replace(PLAIN, properties=PLAIN.properties + b"\x02"), vectors.R1_TRAILING),
    "R2": (
        replace(
            PLAIN,
            queue=3,
            flag=7,
            queue_offset=42,
            position=164,
            sys_flag=layout.SYS_TRANSACTION_COMMIT,
            reconsume_times=2,
            prepared_transaction_offset=1234567890123,
        ),
        vectors.R2,
    ),
    "R3": (
        replace(
            PLAIN,
            properties=b"",
            sys_flag=layout.SYS_BORN_V6 | layout.SYS_STORE_V6,
            born_host=bytes.fromhex(vectors.BORN_HOST_V6),
            store_host=bytes.fromhex(vectors.STORE_HOST_V6),
        ),
        vectors.R3,
    ),
    "R4": (replace(PLAIN, topic="%RETRY%" + "g" * 130, properties=b"", magic=layout.MAGIC_V2), vectors.R4),
    "R5": (replace(PLAIN, properties=CHECKED), vectors.R5),
    "R6": (
        replace(PLAIN, topic=SCHEDULE_TOPIC, queue=2, properties=encode_properties(DEFERRED)),
        vectors.R6,
    ),
    "R7": (
        replace(
            PLAIN,
            properties=encode_properties(DEFERRED),
            stored_at_ms=vectors.STORED_AT_MS + 10_100,
            position=214,
        ),
        vectors.R7,
    ),
    "BATCH_1": (
        replace(
            PLAIN,
            body=b"m1",
            queue_offset=10,
            properties=encode_properties({"TAGS": "TagA", "CLUSTER": "DefaultCluster"}),
        ),
        vectors.BATCH_1,
    ),
    "BATCH_2": (
        replace(
            PLAIN,
            body=b"m2!",
            flag=5,
            queue_offset=11,
            position=134,
            properties=encode_properties({"CLUSTER": "DefaultCluster"}),
        ),
        vectors.BATCH_2,
    ),
}


@pytest.mark.parametrize("name", RECORDS)
def test_record_encodes_to_the_vector(name: str) -> None:
    made, expected = RECORDS[name]
    assert record.encode(made).hex() == expected


@pytest.mark.parametrize("name", RECORDS)
def test_vector_decodes_to_the_record(name: str) -> None:
    expected, encoded = RECORDS[name]
    read = record.decode(bytes.fromhex(encoded))
    assert read == replace(expected, body_crc=record.body_crc(expected.body), size=len(encoded) // 2)


@pytest.mark.parametrize("name", RECORDS)
def test_vector_decodes_inside_a_larger_view(name: str) -> None:
    encoded = bytes.fromhex(RECORDS[name][1])
    view = memoryview(b"\xff" * 7 + encoded + b"\xff" * 9)
    assert record.decode(view, 7) == record.decode(encoded)


def test_ipv6_bits_follow_the_hosts_and_not_the_caller() -> None:
    made = replace(RECORDS["R3"][0], sys_flag=0)
    assert record.encode(made).hex() == vectors.R3
    made = replace(PLAIN, sys_flag=layout.SYS_BORN_V6 | layout.SYS_STORE_V6)
    assert record.encode(made).hex() == vectors.R1


def test_long_topic_has_the_published_digest() -> None:
    assert hashlib.sha256(record.encode(RECORDS["R4"][0])).hexdigest() == vectors.R4_SHA256


def test_whole_record_checksum_is_a_property_like_any_other() -> None:
    encoded = bytes.fromhex(vectors.R5)
    crc = zlib.crc32(encoded[: vectors.R5_CHECKED_BYTES]) & 0x7FFFFFFF
    assert crc == vectors.R5_CRC
    properties = decode_properties(record.decode(encoded).properties)
    assert properties == {"TAGS": "TagA", "__CRC32#": str(crc)[::-1]}


def test_trailing_separator_changes_no_property() -> None:
    plain, trailing = (record.decode(bytes.fromhex(text)) for text in (vectors.R1, vectors.R1_TRAILING))
    assert decode_properties(plain.properties) == decode_properties(trailing.properties) == KEPT
    for name in KEPT:
        asked = name.encode()
        assert value_of(plain.properties, asked) == value_of(trailing.properties, asked)


def test_segment_ends_with_blank() -> None:
    image = bytes.fromhex(vectors.R1 + vectors.R2)
    blank = layout.blank(512 - len(image))
    assert blank.hex() == vectors.BLANK_AT_328
    assert hashlib.sha256((image + blank).ljust(512, b"\0")).hexdigest() == vectors.SEGMENT_SHA256


@pytest.mark.parametrize("name", vectors.MAGICS)
def test_magic(name: str) -> None:
    value, expected = vectors.MAGICS[name]
    assert getattr(layout, f"MAGIC_{name}") == value
    assert struct.pack(">i", value).hex() == expected


@pytest.mark.parametrize(("text", "value", "as_tags_code"), vectors.HASHES)
def test_hash_is_javas(text: str, value: int, as_tags_code: str) -> None:
    assert record.java_hash(text) == value
    assert record.tags_code(text.encode()) == value
    assert struct.pack(">q", record.tags_code(text.encode())).hex() == as_tags_code


@pytest.mark.parametrize(("body", "expected"), vectors.BODY_CRCS)
def test_body_crc(body: bytes, expected: int) -> None:
    assert record.body_crc(body) == record.body_crc(memoryview(body)) == expected


@pytest.mark.parametrize(("address", "port", "position", "expected"), vectors.OFFSET_IDS)
def test_offset_message_id(address: str, port: int, position: int, expected: str) -> None:
    assert record.offset_message_id(record.host_bytes(address, port), position) == expected


def test_hosts_are_written_and_read() -> None:
    assert record.host_bytes("127.0.0.1", 12345).hex() == vectors.BORN_HOST
    assert record.host_bytes("2001:db8::1", 12345).hex() == vectors.BORN_HOST_V6
    assert record.host_text(bytes.fromhex(vectors.STORE_HOST)) == "192.168.1.10:10911"
    assert record.host_text(bytes.fromhex(vectors.STORE_HOST_V6)) == "[fe80::2]:10911"


@pytest.mark.parametrize(("level", "due_at_ms"), vectors.DUE_TIMES)
def test_due_time_counts_from_the_store_time(level: int, due_at_ms: int) -> None:
    levels = DelayLevels.parse(DEFAULT_DELAY_LEVELS)
    assert vectors.STORED_AT_MS + levels.delay_ms(level) == due_at_ms


def test_hash_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "_TAGS_CODES_MAX", 4)
    for number in range(20):
        tag = f"tag{number}"
        assert record.tags_code(tag.encode()) == record.java_hash(tag)
        assert len(record._tags_codes) <= max(4, 1)
