"""Commits of half messages, ends in units, and the bodies of op records."""

from dataclasses import replace

import numpy as np
import pytest
from duetime_format import halves, layout, record
from duetime_format.errors import DamagedBytes
from duetime_format.halves import COMMITTED, ENDED, GIVEN_UP, ROLLED_BACK
from duetime_format.levels import DELAY_MS_MAX
from duetime_format.limits import PROPERTIES_BYTES_MAX
from duetime_format.names import GIVEN_UP_TOPIC, HALF_TOPIC, OP_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from duetime_format.properties import decode_properties, encode_properties
from duetime_format.record import Record
from hypothesis import given
from hypothesis import strategies as st

MESSAGE = {"colour": "green", "UNIQ_KEY": "m1", "KEYS": "order-7", "TAGS": "paid", "WAIT": "true"}
HALF_OF_IT = {"REAL_TOPIC": "orders", "REAL_QID": "6", "TRAN_MSG": "true", "PGROUP": "billing"}
POSITION, OFFSET = 8_000, 17


def half(sys_flag: int = 0, **properties: str) -> Record:
    """As it is read from the half topic."""
    encoded = record.with_crc_mark(encode_properties({**MESSAGE, **HALF_OF_IT, **properties}))
    data = record.encode(
        Record(
            HALF_TOPIC,
            0,
            b"body",
            encoded,
            flag=7,
            sys_flag=sys_flag,
            born_at_ms=5,
            reconsume_times=2,
            stored_at_ms=9,
            position=POSITION,
            queue_offset=OFFSET,
        )
    )
    return record.decode(data, check_crc=False)


def committed(found: Record) -> Record:
    return record.decode(halves.committed(found, highest=18, timer_lanes=4), check_crc=False)


def names(found: Record) -> list[str]:
    return list(decode_properties(found.properties))


def test_committed_message_goes_to_its_topic() -> None:
    found = committed(half(layout.SYS_COMPRESSED))
    assert (found.topic, found.queue, found.body) == ("orders", 6, b"body")
    assert found.sys_flag == layout.SYS_TRANSACTION_COMMIT | layout.SYS_COMPRESSED
    assert found.prepared_transaction_offset == POSITION
    assert (found.flag, found.born_at_ms, found.reconsume_times) == (7, 5, 2)
    assert (found.stored_at_ms, found.position, found.queue_offset) == (0, 0, 0)
    properties = decode_properties(found.properties)
    assert {**MESSAGE, **HALF_OF_IT, "DT_HALF": "17"}.items() <= properties.items()
    assert names(found)[-2:] == ["DT_HALF", "__CRC32#"]
    assert halves.commits(found.sys_flag, found.properties) == OFFSET


@pytest.mark.parametrize(("asked", "level"), [("3", 3), ("18", 18), ("19", 18)])
def test_committed_message_with_a_level_goes_to_its_lane(asked: str, level: int) -> None:
    found = committed(half(DELAY=asked))
    assert (found.topic, found.queue) == (SCHEDULE_TOPIC, level - 1)
    assert names(found)[-4:] == ["DT_HALF", "REAL_TOPIC", "REAL_QID", "__CRC32#"]
    assert decode_properties(found.properties)["DELAY"] == asked


def test_committed_message_for_any_time_goes_to_a_lane_of_its_kind() -> None:
    found = committed(half(TIMER_DELAY_MS="5000"))
    assert (found.topic, found.queue) == (TIMER_TOPIC, 6 % 4)
    assert names(found)[-5:] == ["DT_HALF", "TIMER_OUT_MS", "REAL_TOPIC", "REAL_QID", "__CRC32#"]
    properties = decode_properties(found.properties)
    assert (properties["TIMER_OUT_MS"], properties["TIMER_DELAY_MS"]) == ("0000000005000", "5000")
    found = committed(half(TIMER_DELIVER_MS="1700000000000"))
    assert decode_properties(found.properties)["TIMER_OUT_MS"] == "1699999999999"


def test_delay_of_a_broker_beyond_ours_is_the_longest() -> None:
    found = committed(half(TIMER_DELAY_SEC="9999999999"))
    assert decode_properties(found.properties)["TIMER_OUT_MS"] == f"{DELAY_MS_MAX:013}"


def test_level_counts_before_other_delays() -> None:
    found = committed(half(DELAY="2", TIMER_DELAY_MS="5000"))
    assert (found.topic, found.queue) == (SCHEDULE_TOPIC, 1)
    found = committed(half(DELAY="0", TIMER_DELAY_MS="5000"))
    assert found.topic == TIMER_TOPIC


def test_names_of_the_store_are_not_inherited() -> None:
    found = committed(half(DT_ENTRY="1:2:3", DT_UPSERT="9", DT_HALF="99"))
    properties = decode_properties(found.properties)
    assert properties["DT_HALF"] == "17"
    assert not {"DT_ENTRY", "DT_UPSERT"} & properties.keys()


@pytest.mark.parametrize("named", [{"REAL_TOPIC": ""}, {"REAL_QID": "x"}, {"REAL_TOPIC": HALF_TOPIC}])
def test_half_message_without_a_destination_is_not_committed(named: dict[str, str]) -> None:
    with pytest.raises(DamagedBytes, match="REAL_"):
        committed(half(0, **named))


def test_full_half_message_of_a_broker_is_committed_without_a_checksum() -> None:
    full = half()
    unmarked = record.without_crc_mark(full.properties)
    room = PROPERTIES_BYTES_MAX - len(unmarked) - len(".x." + ".DT_HALF.17")
    found = committed(replace(full, properties=unmarked + b"\x02x\x01" + b"y" * room))
    assert not record.has_crc_mark(found.properties)
    assert halves.commits(found.sys_flag, found.properties) == OFFSET
    with pytest.raises(DamagedBytes, match="the limit is 32767"):
        committed(replace(full, properties=unmarked + b"\x02x\x01" + b"y" * (room + 1)))


def test_restored_and_replacing_records_commit_nothing() -> None:
    found = committed(half(DELAY="2"))
    restored = found.properties + b"\x02DT_ENTRY\x012:5:99"
    assert halves.commits(found.sys_flag, restored) is None
    assert halves.commits(0, found.properties) is None


def test_message_given_up_is_copied_with_its_checks() -> None:
    found = record.decode(halves.given_up(half(TRANSACTION_CHECK_TIMES="3"), 15), check_crc=False)
    assert (found.topic, found.queue, found.body, found.sys_flag) == (GIVEN_UP_TOPIC, 0, b"body", 0)
    assert (halves.half_of(found.properties), halves.checks_of(found.properties)) == (OFFSET, 15)
    assert halves.group_of(found.properties) == "billing"


def test_half_names_its_group_and_kind() -> None:
    properties = half().properties
    assert (halves.group_of(properties), halves.message_id_of(properties)) == ("billing", "m1")
    assert halves.checks_of(properties) == 0


@pytest.mark.parametrize(
    ("asked", "waits_ms"),
    [({}, 6_000), ({"CHECK_IMMUNITY_TIME_IN_SECONDS": "60"}, 60_000), ({"CHECK_IMMUNITY_TIME_IN_SECONDS": "1"}, 1_000)],
)
def test_immunity_equals_the_request(asked: dict[str, str], waits_ms: int) -> None:
    assert halves.immunity_ms(half(0, **asked).properties, 6_000) == waits_ms


@pytest.mark.parametrize("asked", ["-1", "0", "soon"])
def test_immunity_is_the_timeout_by_default(asked: str) -> None:
    assert halves.immunity_ms(half(CHECK_IMMUNITY_TIME_IN_SECONDS=asked).properties, 6_000) == 6_000


def test_op_bodies_are_brokers() -> None:
    assert list(halves.op_bodies([25, 17, 18])) == [b"17,18,25,"]
    assert halves.ended_by(b"17") == [17]
    assert halves.ended_by(b"17,18,25,") == [17, 18, 25]
    assert halves.ended_by(b" 17,, 18 ") == [17, 18]
    assert halves.ended_by(b"") == []


@pytest.mark.parametrize("body", [b"17,x,", b"-1", b"1.5", b"9" * 20, "\u0661".encode()])
def test_damaged_op_bodies_end_nothing(body: bytes) -> None:
    with pytest.raises(DamagedBytes, match="is not an offset"):
        halves.ended_by(body)


@given(st.lists(st.integers(0, 2**63 - 1), unique=True, max_size=600))
def test_op_bodies_hold_all_offsets(offsets: list[int]) -> None:
    bodies = list(halves.op_bodies(offsets))
    assert all(len(body) <= halves.OP_CHARS_MAX for body in bodies)
    assert [offset for body in bodies for offset in halves.ended_by(body)] == sorted(offsets)


@pytest.mark.parametrize("code", [COMMITTED, ROLLED_BACK, GIVEN_UP, ENDED])
def test_op_record_has_the_decision(code: int) -> None:
    found = record.decode(halves.op_record(b"17,", code, 5), check_crc=False)
    assert (found.topic, found.queue, found.body, found.born_at_ms) == (OP_TOPIC, 0, b"17,", 5)
    assert decode_properties(found.properties)["TAGS"] == "d"
    assert halves.decision_of(found.properties) == code


@given(st.sampled_from([ENDED, COMMITTED, ROLLED_BACK, GIVEN_UP]), st.integers(0, 2**60))
def test_tags_say_how_a_half_message_ended(code: int, position: int) -> None:
    tags = np.array([halves.end_tag(code, position)], ">i8")
    assert halves.are_ended(tags).all()
    ends = halves.ends_of(tags)
    assert (ends.codes.tolist(), ends.positions.tolist()) == ([code], [position])


@pytest.mark.parametrize("tags", [-(2**31), -1, 0, 100, 2**31 - 1])
def test_tags_of_open_ones_are_hashes(tags: int) -> None:
    assert not halves.are_ended(np.array([tags])).any()


# --- the compiled twin -----------------------------------------------------------------------------------------------

OWN = [b"DT_HALF\x014", b"DT_ENTRY\x011000:4:5", b"DT_UPSERT\x015", b"__CRC32#\x015"]
OTHERS = [
    b"UNIQ_KEY\x01m1",
    b"DT_HALFS\x014",
    b"",
    b"x",
    b"DT_ENTRY",
    b"y\x01" + b"z" * 300,
    b"REAL_QID\x016",
    b"\x01v",
]
PARTS = st.sampled_from([*OWN, *OTHERS])


@given(
    parts=st.lists(PARTS, max_size=6),
    marked=st.booleans(),
    body=st.binary(max_size=20),
    host_bytes=st.sampled_from([8, 20]),
    offset=st.integers(0, (1 << 63) - 1),
    flags=st.sampled_from([0, layout.SYS_COMPRESSED]),
)
def test_compiled_run_is_the_python_one(
    parts: list[bytes], marked: bool, body: bytes, host_bytes: int, offset: int, flags: int
) -> None:
    properties = b"\x02".join(parts)
    one = Record(
        HALF_TOPIC,
        0,
        body,
        record.with_crc_mark(properties) if marked else properties,
        sys_flag=flags,
        queue_offset=offset,
        position=POSITION,
        born_host=bytes(host_bytes),
        born_at_ms=7,
    )
    encoded = record.encode(one)
    arguments = encoded * 2, [len(encoded)] * 2, [b"orders", b"o" * 127], [6, 0]
    found = halves.quickest_run(*arguments)
    assert found == halves.committed_run(*arguments)
    # The mark takes the place of a separator at the end.
    are_whole = all(record.without_crc_mark(one.properties).split(b"\x02"))
    is_plain = are_whole and {*OWN, b"DT_ENTRY"}.isdisjoint(parts)
    assert (found[0] is not None) == is_plain


def test_run_equals_single_commits() -> None:
    made = [half(), half(layout.SYS_COMPRESSED, colour="red")]
    data = [record.encode(one) for one in made]
    found = halves.quickest_run(b"".join(data), [len(one) for one in data], [b"orders"] * 2, [6] * 2)
    assert found == [halves.committed(one, highest=18, timer_lanes=4) for one in made]
