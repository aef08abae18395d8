"""The records that failed messages become."""

from dataclasses import replace

import pytest
from duetime_format import layout, record
from duetime_format.attempts import AttemptFailure, AttemptHistory
from duetime_format.limits import PROPERTIES_BYTES_MAX
from duetime_format.properties import VALUE_END, decode_properties, encode_properties
from duetime_format.record import Record
from duetime_format.restore import PulledEntry, restore
from duetime_retry.copies import FailedMessage, FailureCopy, NoRoom, dead_letter, history_of, retry_copy
from duetime_retry.delays import Wait
from hypothesis import given
from hypothesis import strategies as st

HISTORY = AttemptHistory(
    (AttemptFailure(1, 5, 6, "TimeoutError", "no answer", "trace"), AttemptFailure(2, 7, 8, "LeaseExpired"))
)
LANE = Wait(4)
TIMER = Wait(due_at_ms=1_700_000_000_123)


def consumed(**properties: str) -> Record:
    values = {"UNIQ_KEY": "A", "TAGS": "t", "own": "x", **properties}
    encoded = encode_properties(values)
    return Record("orders", 2, b"body", encoded, flag=7, position=5, queue_offset=9, reconsume_times=1)


def failed(found: Record, history: AttemptHistory = HISTORY) -> FailedMessage:
    return FailedMessage(found, 2, history, 12)


def named(copy: FailureCopy) -> dict[str, str]:
    return decode_properties(copy.record.properties)


KEPT = {
    "UNIQ_KEY": "A",
    "TAGS": "t",
    "own": "x",
    "RETRY_TOPIC": "orders",
    "ORIGIN_MESSAGE_ID": "00000000000000000000000000000005",
    "DT_ORIGIN": "12:9",
    "WAIT": "false",
    "DT_ATTEMPTS": '{"attempts":[[1,5,6,"TimeoutError","no answer","trace"],[2,7,8,"LeaseExpired","",""]]}',
    "__CRC32#": "0000000000",
}


def test_retry_goes_through_its_lane() -> None:
    copy = retry_copy(failed(consumed()), "billing", LANE)
    found = copy.record
    assert (found.topic, found.queue, found.reconsume_times) == ("SCHEDULE_TOPIC_XXXX", 3, 2)
    assert named(copy) == {**KEPT, "DELAY": "4", "REAL_TOPIC": "%RETRY%billing", "REAL_QID": "0"}
    assert (found.body, found.flag) == (b"body", 7)
    assert copy.has_history


def test_a_delay_that_is_no_levels_goes_through_a_lane_for_any_time() -> None:
    copy = retry_copy(failed(consumed()), "billing", TIMER)
    assert (copy.record.topic, copy.record.queue) == ("rmq_sys_wheel_timer", 0)
    asked = {"TIMER_DELIVER_MS": "1700000000123", "TIMER_OUT_MS": "1700000000122"}
    assert named(copy) == {**KEPT, **asked, "REAL_TOPIC": "%RETRY%billing", "REAL_QID": "0"}
    ending = b"TIMER_OUT_MS\x011700000000122\x02REAL_TOPIC\x01%RETRY%billing\x02REAL_QID\x010" + record.CRC_ENDING
    assert copy.record.properties.endswith(ending)


def test_a_retry_without_a_delay_has_no_lane() -> None:
    copy = retry_copy(failed(consumed()), "billing", Wait())
    assert (copy.record.topic, copy.record.queue) == ("%RETRY%billing", 0)
    assert named(copy) == KEPT


def test_copies_of_a_committed_message_are_plain_ones() -> None:
    found = replace(consumed(PGROUP="g", DT_HALF="7"), sys_flag=layout.SYS_TRANSACTION_COMMIT | 1)
    assert retry_copy(failed(found), "billing", LANE).record.sys_flag == 1
    assert dead_letter(failed(found), "billing", "attempts").record.sys_flag == 1


def test_nothing_is_left_of_the_messages_own_delay_or_of_a_retry_of_release_0_1() -> None:
    timers = {
        "TIMER_DELIVER_MS": "5",
        "TIMER_DELAY_MS": "5",
        "TIMER_DELAY_SEC": "5",
        "TIMER_OUT_MS": "5",
        "TIMER_ENQUEUE_MS": "5",
        "TIMER_ROLL_TIMES": "5",
        "DT_UPSERT": "9999999999999",
        "DT_VISIBLE_AT": "5",
    }
    for copy in (
        retry_copy(failed(consumed(**timers)), "billing", Wait()),
        dead_letter(failed(consumed(**timers)), "billing", "REJECTED"),
    ):
        assert not timers.keys() & named(copy).keys()


def test_dead_letter_says_where_it_came_from_and_why() -> None:
    copy = dead_letter(failed(consumed()), "billing", "REJECTED")
    assert (copy.record.topic, copy.record.queue, copy.record.reconsume_times) == ("%DLQ%billing", 0, 2)
    assert named(copy) == {
        **KEPT,
        "DT_DEAD_REASON": "REJECTED",
        "DLQ_ORIGIN_TOPIC": "orders",
        "DLQ_ORIGIN_MESSAGE_ID": "00000000000000000000000000000005",
    }


def test_later_copies_keep_the_first_origin() -> None:
    first = retry_copy(failed(consumed()), "billing", LANE).record
    again = replace(first, topic="%RETRY%billing", position=77, queue_offset=1_000)
    for copy in (retry_copy(failed(again), "billing", Wait()), dead_letter(failed(again), "billing", "REJECTED")):
        found = named(copy)
        assert (found["RETRY_TOPIC"], found["DT_ORIGIN"]) == ("orders", "12:9")
        assert found["ORIGIN_MESSAGE_ID"] == "00000000000000000000000000000005"
        assert not {"DELAY", "REAL_TOPIC", "REAL_QID", "DT_VISIBLE_AT"} & set(found)


def test_copy_of_a_brokers_copy_has_no_first_place() -> None:
    found = consumed(RETRY_TOPIC="first", ORIGIN_MESSAGE_ID="FF")
    names = named(dead_letter(failed(found), "billing", "REJECTED"))
    assert (names["RETRY_TOPIC"], names["DLQ_ORIGIN_MESSAGE_ID"]) == ("first", "FF")
    assert "DT_ORIGIN" not in names


def test_lane_entry_of_the_consumed_record_is_dropped() -> None:
    entry = VALUE_END + record.lane_entry(3, 9, 1)
    restored = replace(consumed(), properties=consumed().properties + entry)
    assert record.find_lane_entry(dead_letter(failed(restored), "g", "REJECTED").record.properties) is None


def test_copy_has_a_mark_of_its_own_for_its_crc() -> None:
    found = replace(consumed(), properties=consumed().properties + b"\x02__CRC32#\x019270196112\x02")
    for copy in (dead_letter(failed(found), "g", "REJECTED"), retry_copy(failed(found), "g", LANE)):
        assert copy.record.properties.endswith(record.CRC_ENDING)
        assert copy.record.properties.count(b"__CRC32#") == 1


def full_but(room: int) -> Record:
    """A message whose properties leave `spare` bytes."""
    used = len(consumed(big="").properties)
    return consumed(big="v" * (PROPERTIES_BYTES_MAX - used - room), small="kept")


def test_history_shrinks_before_anything_else() -> None:
    long = HISTORY.with_attempts([AttemptFailure(3, 9, 10, "ValueError", "m" * 500, "t" * 4_000)])
    copy = retry_copy(failed(full_but(1_000), long), "billing", LANE)
    assert copy.has_history
    assert history_of(copy.record).attempts[-1].cut
    assert named(copy)["DT_ORIGIN"] == "12:9"
    copy = retry_copy(failed(full_but(260), long), "billing", LANE)
    assert not copy.has_history
    assert "DT_ATTEMPTS" not in named(copy)
    assert named(copy)["ORIGIN_MESSAGE_ID"]


def test_retry_without_room_is_refused() -> None:
    with pytest.raises(NoRoom, match=r"a retry's properties would take 3\d{4} bytes; the limit is 32767"):
        retry_copy(failed(full_but(100)), "billing", LANE)


def test_dead_letter_without_room_loses_its_longest_property() -> None:
    copy = dead_letter(failed(full_but(40)), "billing", "REJECTED")
    assert copy.lost == ["big"]
    assert {"own": "x", "small": "kept", "TAGS": "t", "RETRY_TOPIC": "orders"}.items() <= named(copy).items()


@given(
    st.integers(0, 2_000),
    st.sampled_from([Wait(), LANE, Wait(18)]),
    st.integers(0, 5),
    st.text(st.characters(codec="utf-8"), max_size=600),
)
def test_copies_fit_into_records_and_through_their_lanes(room: int, wait: Wait, count: int, text: str) -> None:
    history = AttemptHistory().with_attempts(
        [AttemptFailure(number, 5, 6, "E", text, text * 3) for number in range(1, count + 1)]
    )
    found = failed(full_but(room), history)
    dead = dead_letter(found, "g" * 120, "ATTEMPTS_EXHAUSTED").record
    assert record.decode(record.encode(dead)).properties == dead.properties
    try:
        copy = retry_copy(found, "g" * 120, wait).record
    except NoRoom:
        assert room < 500
        return
    data = record.encode(copy)
    if wait.level:
        restored = record.decode(restore(PulledEntry(wait.level, 10**18, 2 * 10**18, data)))
        assert restored.topic == "%RETRY%" + "g" * 120
        assert history_of(restored) == history_of(copy)


def test_text_of_other_makes_survives() -> None:
    found = replace(consumed(), properties=b"UNIQ_KEY\x01A\x02bad\x01\xff\xfe\x02\x01empty\x02name\x01")
    assert named(dead_letter(failed(found), "g", "REJECTED"))["bad"] == "��"
