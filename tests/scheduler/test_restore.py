"""Restored and quarantined records, byte by byte."""

import re
from dataclasses import replace

import pytest
from duetime_format import layout, record
from duetime_format.limits import BODY_BYTES_MAX, PROPERTIES_BYTES_MAX
from duetime_format.properties import decode_properties, encode_properties
from duetime_format.restore import PulledEntry, UnrestorableEntry, quarantine, restore
from hypothesis import given
from hypothesis import strategies as st

from tests.format.vectors import R6, R7

DUE = 1_700_000_010_001
ENDING = b"DT_ENTRY\x013:7:%d" % DUE
V4, V6 = b"\x7f\x00\x00\x01\x00\x00\x30\x39", bytes(range(16)) + b"\x00\x00\x2a\x9f"


def sealed(data: bytes) -> bytes:
    """A record as the store keeps it: with its CRC, if it has the mark for it."""
    if not record.has_crc_mark(data[-len(record.CRC_ENDING) :]):
        return data
    return data[:-11] + record.crc_digits(data[:-20]) + data[-1:]


def entry(data: bytes) -> PulledEntry:
    return PulledEntry(3, 7, DUE, data)


def deferred(**changes: object) -> record.Record:
    found = record.Record(
        topic="SCHEDULE_TOPIC_XXXX",
        queue=2,
        body=b"cancel 42",
        properties=encode_properties({"TAGS": "paid", "UNIQ_KEY": "A1", **record.deferral(3, "orders", 5)}),
        flag=9,
        sys_flag=0,
        born_at_ms=1_700_000_000_000,
        born_host=V4,
        stored_at_ms=1_700_000_000_001,
        store_host=b"\xc0\xa8\x01\x0a\x00\x00\x2a\x9f",
        reconsume_times=2,
        prepared_transaction_offset=77,
        queue_offset=7,
        position=4_711,
    )
    return replace(found, **changes)


def test_vector_is_restored_as_rocketmq_does_and_names_its_entry() -> None:
    stored, delivered = bytes.fromhex(R6), record.decode(bytes.fromhex(R7))
    restored = record.decode(restore(entry(stored)))
    assert restored == replace(
        delivered,
        properties=delivered.properties + b"\x02" + ENDING + record.CRC_ENDING,
        stored_at_ms=0,
        position=0,
        queue_offset=0,
        size=restored.size,
    )


def test_fields_are_copied_or_cleared_by_the_table() -> None:
    for _ in range(2):
        restored = record.decode(restore(entry(record.encode(deferred()))))
        assert (restored.topic, restored.queue) == ("orders", 5)
        assert (restored.body, restored.flag, restored.reconsume_times) == (b"cancel 42", 9, 2)
        assert (restored.born_at_ms, restored.born_host) == (1_700_000_000_000, V4)
        assert restored.store_host == b"\xc0\xa8\x01\x0a\x00\x00\x2a\x9f"
        assert (restored.stored_at_ms, restored.position, restored.queue_offset) == (0, 0, 0)
        assert restored.prepared_transaction_offset == 0
        assert record.find_lane_entry(restored.properties) == (3, 7, DUE)
        named = decode_properties(restored.properties)
        assert (named["DELAY"], named["REAL_TOPIC"], named["REAL_QID"]) == ("3", "orders", "5")


names = st.text("abcXYZ09_-%|", min_size=1, max_size=127)


@given(
    body=st.binary(max_size=300),
    topic=names.filter(lambda name: name not in ("SCHEDULE_TOPIC_XXXX", "DT_QUARANTINE")),
    queue=st.integers(0, 2**31 - 1),
    user=st.dictionaries(names, st.text(st.characters(exclude_characters="\x01\x02", codec="utf-8"), min_size=1)),
    born=st.sampled_from([V4, V6]),
    store=st.sampled_from([V4, V6]),
    end=st.sampled_from([b"", b"\x02", record.CRC_ENDING, b"\x02__CRC32#\x019270196112\x02"]),
    magic=st.sampled_from([layout.MAGIC_V1, layout.MAGIC_V2]),
)
def test_every_shape_is_restored_alike(
    body: bytes, topic: str, queue: int, user: dict[str, str], born: bytes, store: bytes, end: bytes, magic: int
) -> None:
    properties = encode_properties({**user, **record.deferral(3, topic, queue)})
    found = deferred(body=body, properties=properties + end, born_host=born, store_host=store, magic=magic)
    data = sealed(record.encode(found))
    first, second = restore(entry(data)), restore(entry(data))
    assert first == second
    restored = record.decode(first)
    assert (restored.topic, restored.queue, restored.body) == (topic, queue, body)
    assert (restored.born_host, restored.store_host) == (born, store)
    assert restored.magic == layout.MAGIC_V1
    assert restored.properties == properties + b"\x02" + ENDING + record.CRC_ENDING


def test_older_lane_entry_is_not_kept() -> None:
    properties = b"DT_ENTRY\x019:1:5\x02" + deferred().properties
    restored = record.decode(restore(entry(record.encode(deferred(properties=properties)))))
    assert restored.properties.count(b"DT_ENTRY") == 1
    assert record.find_lane_entry(restored.properties) == (3, 7, DUE)


def test_checksum_of_the_old_record_is_not_kept() -> None:
    properties = deferred().properties + b"\x02__CRC32#\x019270196112\x02"
    restored = record.decode(restore(entry(sealed(record.encode(deferred(properties=properties))))))
    assert restored.properties == deferred().properties + b"\x02" + ENDING + record.CRC_ENDING
    properties = b"__CRC32#\x019270196112\x02" + deferred().properties
    restored = record.decode(restore(entry(record.encode(deferred(properties=properties)))))
    assert restored.properties.count(b"__CRC32#") == 1


def test_last_of_two_equal_properties_counts_as_rocketmq_reads_them() -> None:
    properties = deferred().properties + b"\x02REAL_TOPIC\x01refunds\x02REAL_QID\x011"
    for _ in range(2):
        restored = record.decode(restore(entry(record.encode(deferred(properties=properties)))))
        assert (restored.topic, restored.queue) == ("refunds", 1)


@pytest.mark.parametrize(("topic", "mark"), [("orders", b""), ("o" * 30, record.CRC_ENDING)])
def test_deferral_makes_room_for_the_lane_entry(topic: str, mark: bytes) -> None:
    """A broker's message that fills its properties to the last byte is restored nevertheless, if need be unchecked."""
    rest = encode_properties(record.deferral(3, topic, 5))
    user = b"k\x01" + b"v" * (PROPERTIES_BYTES_MAX - len(rest) - 3)
    properties = user + b"\x02" + rest
    assert len(properties) == PROPERTIES_BYTES_MAX
    for _ in range(2):
        restored = record.decode(restore(entry(record.encode(deferred(properties=properties)))))
        assert restored.properties == user + b"\x02" + ENDING + mark


def properties(**values: str) -> bytes:
    return encode_properties(values)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"properties": b""}, "it has no REAL_TOPIC"),
        ({"properties": properties(REAL_QID="0")}, "it has no REAL_TOPIC"),
        ({"properties": properties(REAL_TOPIC="orders")}, "REAL_QID '' is not a queue"),
        ({"properties": properties(REAL_TOPIC="orders", REAL_QID="-1")}, "REAL_QID '-1' is not a queue"),
        ({"properties": properties(REAL_TOPIC="orders", REAL_QID="x")}, "REAL_QID 'x' is not a queue"),
        (
            {"properties": properties(REAL_TOPIC="orders", REAL_QID="2147483648")},
            "REAL_QID '2147483648' is not a queue",
        ),
        ({"properties": properties(REAL_TOPIC="a b", REAL_QID="0")}, "REAL_TOPIC 'a b' is not a topic to restore to"),
        ({"properties": properties(REAL_TOPIC="t" * 128, REAL_QID="0")}, "is not a topic to restore to"),
        ({"properties": properties(REAL_TOPIC="SCHEDULE_TOPIC_XXXX", REAL_QID="0")}, "is not a topic to restore to"),
        ({"properties": properties(REAL_TOPIC="DT_QUARANTINE", REAL_QID="0")}, "is not a topic to restore to"),
        (
            {"properties": properties(REAL_TOPIC="RMQ_SYS_TRANS_HALF_TOPIC", REAL_QID="0")},
            "is not a topic to restore to",
        ),
        (
            {"properties": properties(k="v" * 32_741, REAL_TOPIC="o", REAL_QID="0")},
            "its properties would take 32770 bytes; the limit is 32767",
        ),
    ],
)
def test_entry_without_a_place_to_go(changes: dict[str, object], reason: str) -> None:
    with pytest.raises(UnrestorableEntry, match=re.escape(reason)):
        restore(entry(record.encode(deferred(**changes))))


@pytest.mark.parametrize("cut", [0, 3, 47, 90, 150])
def test_bytes_that_are_no_record_are_unrestorable(cut: int) -> None:
    data = record.encode(deferred())[:cut]
    with pytest.raises(UnrestorableEntry):
        restore(entry(data))


def test_body_length_beyond_the_record_is_unrestorable() -> None:
    data = bytearray(record.encode(deferred()))
    data[84:88] = (2**31 - 1).to_bytes(4, "big")
    with pytest.raises(UnrestorableEntry):
        restore(entry(bytes(data)))
    data[84:88] = (-5).to_bytes(4, "big", signed=True)
    with pytest.raises(UnrestorableEntry):
        restore(entry(bytes(data)))


def test_quarantine_record_holds_the_original_and_the_reason() -> None:
    data = record.encode(deferred(properties=properties(UNIQ_KEY="A1")))
    found = record.decode(quarantine(entry(data), "it has no REAL_TOPIC"))
    assert (found.topic, found.queue, found.body) == ("DT_QUARANTINE", 0, data)
    assert record.find_lane_entry(found.properties) == (3, 7, DUE)
    named = decode_properties(found.properties)
    assert (named["DT_FAULT"], named["UNIQ_KEY"]) == ("it has no REAL_TOPIC", "A1")


def test_quarantine_record_of_damaged_bytes_knows_no_id() -> None:
    found = record.decode(quarantine(entry(b""), "cut\x01short\x02"))
    assert found.body == b""
    assert decode_properties(found.properties)["DT_FAULT"] == "cut short "
    assert "UNIQ_KEY" not in decode_properties(found.properties)


def test_quarantine_record_of_a_big_original_is_cut_and_says_where_the_whole_is() -> None:
    data = record.encode(deferred(body=bytes(BODY_BYTES_MAX)))
    found = record.decode(quarantine(entry(data), "why"))
    assert found.body == data[: BODY_BYTES_MAX - 65_536]
    fault = decode_properties(found.properties)["DT_FAULT"]
    assert fault == f"why; whole at log position 4711, {len(data)} bytes"
    assert record.decode(quarantine(entry(data), "why", keep_body=False)).body == b""


def test_quarantine_reason_has_a_limit() -> None:
    found = record.decode(quarantine(entry(b""), "x" * 50_000))
    assert len(decode_properties(found.properties)["DT_FAULT"]) == 1_000
