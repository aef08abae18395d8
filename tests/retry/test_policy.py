"""Where a message goes that a consumer sends back."""

import pytest
from duetime_core import record
from duetime_core.record import Record
from duetime_retry.policy import DeadLetter, Decision, Redeliver, decide, returned


@pytest.mark.parametrize(
    ("attempts", "level", "attempts_max", "expected"),
    [
        (0, None, None, Redeliver(3)),
        (0, 0, None, Redeliver(3)),
        (1, None, None, Redeliver(4)),
        (15, None, None, Redeliver(18)),
        (0, 1, None, Redeliver(1)),
        (5, 18, None, Redeliver(18)),
        (0, 19, None, Redeliver(18)),
        (0, 2**31 - 1, None, Redeliver(18)),
        (20, None, 100, Redeliver(18)),
        (16, None, None, DeadLetter("sent back 16 times before, 16 at most")),
        (17, None, None, DeadLetter("sent back 17 times before, 16 at most")),
        (0, None, 0, DeadLetter("sent back 0 times before, 0 at most")),
        (2, None, 2, DeadLetter("sent back 2 times before, 2 at most")),
        (1, None, 2, Redeliver(4)),
        (0, -1, None, DeadLetter("level -1 asks for it")),
        (16, 5, None, DeadLetter("sent back 16 times before, 16 at most")),
    ],
)
def test_decision(attempts: int, level: int | None, attempts_max: int | None, expected: Decision) -> None:
    assert decide(attempts, level, attempts_max, highest=18) == expected


def test_short_level_table_bounds_the_default(  # the default of attempt 0 is level 3
) -> None:
    assert decide(0, None, None, highest=2) == Redeliver(2)


def consumed(**properties: str) -> Record:
    values = {"UNIQ_KEY": "A", "TAGS": "t", "own": "x", **properties}
    encoded = record.encode_properties(values)
    return Record("orders", 2, b"body", encoded, flag=7, position=5, reconsume_times=1, store_host=bytes(8))


def test_retry_goes_through_the_lane_of_its_level() -> None:
    copy = returned(consumed(), "billing", Redeliver(4))
    assert (copy.topic, copy.queue, copy.reconsume_times) == ("SCHEDULE_TOPIC_XXXX", 3, 2)
    assert record.decode_properties(copy.properties) == {
        "UNIQ_KEY": "A",
        "TAGS": "t",
        "own": "x",
        "RETRY_TOPIC": "orders",
        "ORIGIN_MESSAGE_ID": "00000000000000000000000000000005",
        "WAIT": "false",
        "DELAY": "4",
        "REAL_TOPIC": "%RETRY%billing",
        "REAL_QID": "0",
        "__CRC32#": "0000000000",
    }
    assert (copy.body, copy.flag) == (b"body", 7)


def test_later_retries_keep_the_first_origin() -> None:
    found = consumed(RETRY_TOPIC="first", ORIGIN_MESSAGE_ID="FF", DELAY="3", REAL_TOPIC="x", REAL_QID="0")
    found = record.decode(record.encode(found))
    properties = record.decode_properties(returned(found, "billing", DeadLetter("x")).properties)
    assert (properties["RETRY_TOPIC"], properties["ORIGIN_MESSAGE_ID"]) == ("first", "FF")
    assert not {"DELAY", "REAL_TOPIC", "REAL_QID"} & set(properties)


def test_lane_entry_of_the_consumed_record_is_dropped() -> None:
    found = consumed()
    entry = record.VALUE_END + record.lane_entry(3, 9, 1)
    restored = Record(found.topic, found.queue, found.body, found.properties + entry)
    assert record.find_lane_entry(returned(restored, "g", DeadLetter("x")).properties) is None


def test_copy_has_a_mark_of_its_own_for_its_crc() -> None:
    properties = consumed().properties + b"\x02__CRC32#\x019270196112\x02"
    for decision in (DeadLetter("x"), Redeliver(3)):
        copy = returned(Record("orders", 2, b"body", properties), "g", decision)
        assert copy.properties.endswith(record.CRC_ENDING)
        assert copy.properties.count(b"__CRC32#") == 1
