"""The record that replaces a pending message: its kept, changed and added properties."""

from dataclasses import replace

import pytest
from duetime_format import layout, record
from duetime_format.names import SCHEDULE_TOPIC, TIMER_TOPIC
from duetime_format.properties import decode_properties, encode_properties
from duetime_format.record import Record
from duetime_format.replacing import RequestedDueTime, asked_by, latest_of, replacing, with_body
from hypothesis import given
from hypothesis import strategies as st

USERS = {"colour": "green", "UNIQ_KEY": "m1", "KEYS": "order-7", "TAGS": "paid"}


def pending(**properties: str) -> Record:
    """A lane's record, as it is decoded."""
    encoded = record.with_crc_mark(encode_properties({**USERS, **properties}))
    data = record.encode(
        Record(SCHEDULE_TOPIC, 3, b"body", encoded, flag=7, born_at_ms=5, reconsume_times=2, stored_at_ms=9, position=8)
    )
    return record.decode(data, check_crc=False)


def of_level() -> Record:
    return pending(DELAY="4", REAL_TOPIC="orders", REAL_QID="2")


def ending(data: bytes) -> list[str]:
    """The names of the record's last properties, from the one it was asked by on."""
    names = list(decode_properties(record.decode(data, check_crc=False).properties))
    return names[len(USERS) :]


def test_rescheduled_record_keeps_the_message() -> None:
    data = replacing(of_level(), TIMER_TOPIC, 1, RequestedDueTime(5_000, is_delay=True), entry=(4, 17, 99), latest=None)
    found = record.decode(data, check_crc=False)
    assert (found.topic, found.queue, found.body) == (TIMER_TOPIC, 1, b"body")
    assert (found.flag, found.born_at_ms, found.reconsume_times) == (7, 5, 2)
    assert (found.stored_at_ms, found.position, found.queue_offset) == (0, 0, 0)
    properties = decode_properties(found.properties)
    assert {**USERS, "REAL_TOPIC": "orders", "REAL_QID": "2", "TIMER_DELAY_MS": "5000"}.items() <= properties.items()
    assert properties["DT_ENTRY"] == "4:17:99"
    assert "DELAY" not in properties


def test_committed_message_is_replaced_by_a_plain_one() -> None:
    committed = replace(of_level(), sys_flag=layout.SYS_TRANSACTION_COMMIT | layout.SYS_COMPRESSED)
    data = replacing(committed, TIMER_TOPIC, 1, RequestedDueTime(5_000, is_delay=True), entry=(4, 17, 99), latest=None)
    assert record.decode(data, check_crc=False).sys_flag == layout.SYS_COMPRESSED


def test_places_of_properties_are_the_documented_ones() -> None:
    data = replacing(of_level(), TIMER_TOPIC, 0, RequestedDueTime(5_000, is_delay=True), entry=(4, 17, 99), latest=12)
    assert ending(data) == [
        *("TIMER_DELAY_MS", "DT_UPSERT", "DT_ENTRY", "TIMER_OUT_MS", "REAL_TOPIC", "REAL_QID", "__CRC32#"),
    ]
    stored = record.decode(data, check_crc=False).properties
    assert b"\x02DT_UPSERT\x010000000000012\x02" in stored
    assert b"\x02TIMER_OUT_MS\x010000000005000\x02" in stored


def test_record_that_replaces_nothing_names_no_entry() -> None:
    data = replacing(of_level(), TIMER_TOPIC, 0, RequestedDueTime(5_000, is_delay=True), entry=None, latest=None)
    assert ending(data) == ["TIMER_DELAY_MS", "TIMER_OUT_MS", "REAL_TOPIC", "REAL_QID", "__CRC32#"]


def test_absolute_time_is_written_as_senders_write_it() -> None:
    at_ms = 1_700_000_000_000
    data = replacing(of_level(), TIMER_TOPIC, 0, RequestedDueTime(at_ms, is_delay=False), entry=None, latest=None)
    properties = record.decode(data, check_crc=False).properties
    assert b"\x02TIMER_DELIVER_MS\x011700000000000\x02TIMER_OUT_MS\x011699999999999\x02" in properties
    assert asked_by(properties) == RequestedDueTime(at_ms, is_delay=False)


def test_replaced_again_it_has_each_property_once() -> None:
    once = replacing(of_level(), TIMER_TOPIC, 0, RequestedDueTime(5_000, is_delay=True), entry=(4, 17, 99), latest=12)
    found = record.decode(once, check_crc=False)
    twice = replacing(found, TIMER_TOPIC, 0, RequestedDueTime(7_000, is_delay=True), entry=(1000, 1, 98), latest=11)
    properties = record.decode(twice, check_crc=False).properties
    names = [part.split(b"\x01")[0] for part in properties.split(b"\x02") if part]
    assert len(names) == len(set(names))
    assert (asked_by(properties), latest_of(properties)) == (RequestedDueTime(7_000, is_delay=True), 11)
    assert b"\x02DT_ENTRY\x011000:1:98\x02" in properties


def test_brokers_timer_leaves_its_traces_behind() -> None:
    rolled = pending(
        TIMER_DELAY_SEC="60",
        TIMER_OUT_MS="1",
        TIMER_ROLL_TIMES="3",
        TIMER_ENQUEUE_MS="4",
        REAL_TOPIC="orders",
        REAL_QID="2",
    )
    data = replacing(rolled, TIMER_TOPIC, 0, RequestedDueTime(5_000, is_delay=True), entry=None, latest=None)
    assert ending(data) == ["TIMER_DELAY_MS", "TIMER_OUT_MS", "REAL_TOPIC", "REAL_QID", "__CRC32#"]


@pytest.mark.parametrize(
    ("properties", "asked"),
    [
        (
            {"TIMER_DELAY_SEC": "2", "TIMER_DELAY_MS": "3", "TIMER_DELIVER_MS": "4"},
            RequestedDueTime(2_000, is_delay=True),
        ),
        ({"TIMER_DELAY_MS": "3", "TIMER_DELIVER_MS": "4"}, RequestedDueTime(3, is_delay=True)),
        ({"TIMER_DELIVER_MS": "4"}, RequestedDueTime(4, is_delay=False)),
        ({"TIMER_DELAY_SEC": "soon", "TIMER_DELIVER_MS": "4"}, RequestedDueTime(4, is_delay=False)),
        ({"TIMER_DELIVER_MS": "-4"}, None),
        ({"TIMER_DELAY_MS": "9" * 14}, None),
        ({}, None),
    ],
)
def test_precedence_is_rocketmqs(properties: dict[str, str], asked: RequestedDueTime | None) -> None:
    assert asked_by(encode_properties(properties)) == asked


def test_delay_counts_from_the_stores_clock() -> None:
    assert RequestedDueTime(5, is_delay=True).due_at_ms(100) == 105
    assert RequestedDueTime(5, is_delay=False).due_at_ms(100) == 5


def test_another_body_is_not_compressed() -> None:
    packed = record.Record("orders", 0, b"zipped", b"", sys_flag=layout.SYS_COMPRESSED | layout.SYS_BORN_V6)
    plain = with_body(packed, b"plain")
    assert (plain.body, plain.sys_flag) == (b"plain", layout.SYS_BORN_V6)


def test_properties_that_do_not_fit_are_refused() -> None:
    full = pending(much="x" * (layout.PROPERTIES_BYTES_MAX - 120))
    with pytest.raises(OverflowError):
        replacing(full, TIMER_TOPIC, 0, RequestedDueTime(5_000, is_delay=True), entry=(4, 17, 99), latest=12)


@given(st.binary(max_size=200))
def test_hostile_properties_are_read_without_an_error(properties: bytes) -> None:
    asked_by(properties)
    latest_of(properties)
    data = replacing(
        Record("t", 0, b"", properties), TIMER_TOPIC, 0, RequestedDueTime(5, is_delay=True), entry=None, latest=None
    )
    assert record.decode(data, check_crc=False).topic == TIMER_TOPIC
