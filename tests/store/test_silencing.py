"""Records of ended entries, rewritten for an export: as long as before, and nothing that a broker delivers."""

import pytest
from duetime_format import record
from duetime_format.properties import decode_properties, encode_properties
from duetime_format.record import Record
from duetime_store.offline.silencing import silenced_level, silenced_timer, with_out, with_roll
from hypothesis import given
from hypothesis import strategies as st

LEVEL = {"DELAY": "3", "REAL_TOPIC": "o", "REAL_QID": "0"}
TIMER = {"TIMER_DELAY_MS": "1", "TIMER_OUT_MS": "1700000000000", "REAL_TOPIC": "orders", "REAL_QID": "0"}
WORDS = st.text(st.characters(codec="utf-8", min_codepoint=3), min_size=1, max_size=30)
OTHERS = st.dictionaries(WORDS.map(lambda word: "u" + word), WORDS, max_size=6)


def found(properties: dict[str, str], *, marked: bool = True, ending: bytes = b"") -> Record:
    encoded = encode_properties(properties)
    return Record("SCHEDULE_TOPIC_XXXX", 2, b"body", record.with_crc_mark(encoded) if marked else encoded + ending)


@given(OTHERS, st.booleans(), st.sampled_from([b"", b"\x02"]))
def test_silenced_level_goes_to_a_dropped_or_unread_topic(others: dict[str, str], marked: bool, ending: bytes) -> None:
    before = found({**others, **LEVEL}, marked=marked, ending=ending)
    after = silenced_level(before, {"o", "_"})
    assert len(after) == len(before.properties)
    topic = decode_properties(after)["REAL_TOPIC"]
    room = len(before.properties) - len(encode_properties(LEVEL)) - 1
    assert topic == ("RMQ_SYS_TRANS_HALF_TOPIC" if room == 23 or room >= 30 else topic)
    assert topic not in {"o", "_"}
    assert {key: decode_properties(after)[key] for key in ("DELAY", "REAL_QID")} == {"DELAY": "3", "REAL_QID": "0"}


@given(OTHERS, st.booleans(), st.sampled_from([b"", b"\x02"]))
def test_silenced_timer_is_a_mark_or_goes_to_an_unread_topic(
    others: dict[str, str], marked: bool, ending: bytes
) -> None:
    before = found({**others, **TIMER}, marked=marked, ending=ending)
    after = silenced_timer(before, 1_700_000_000_001, {"orders"})
    properties = decode_properties(after)
    assert len(after) == len(before.properties)
    assert (properties["REAL_TOPIC"], properties["REAL_QID"]) == ("______", "0")
    assert properties["TIMER_OUT_MS"] == ("1700000000001" if "TIMER_DEL_UNIQKEY" in properties else "1700000000000")


def test_records_of_duetime_have_the_room() -> None:
    assert "TIMER_DEL_UNIQKEY" in decode_properties(silenced_timer(found(TIMER), 1_700_000_000_001, set()))
    level = {**LEVEL, "UNIQ_KEY": "A" * 32}
    assert decode_properties(silenced_level(found(level), set()))["REAL_TOPIC"] == "RMQ_SYS_TRANS_HALF_TOPIC"


def test_ids_and_keys_are_dropped_last() -> None:
    properties = {"KEYS": "k", "UNIQ_KEY": "A" * 32, "CLUSTER": "DefaultCluster", "TRACE_ON": "true", **LEVEL}
    assert decode_properties(silenced_level(found(properties), set()))["UNIQ_KEY"] == "A" * 32


@pytest.mark.parametrize("marked", [True, False])
def test_timer_gets_another_time_and_nothing_else_changes(marked: bool) -> None:
    before = found({**TIMER, "UNIQ_KEY": "id"}, marked=marked).properties
    after = with_out(before, 1_800_000_000_000)
    assert after == before.replace(b"1700000000000", b"1800000000000")


@pytest.mark.parametrize("out", ["5", "17000000000000"])
def test_time_of_another_length_stays(out: str) -> None:
    before = found({**TIMER, "TIMER_OUT_MS": out}).properties
    assert with_out(before, 1_800_000_000_000) == before


@given(OTHERS, st.booleans(), st.sampled_from(["", "1", "9"]))
def test_timer_that_is_appended_counts_as_rolled_once_more(others: dict[str, str], marked: bool, rolls: str) -> None:
    own = {**others, **({"TIMER_ROLL_TIMES": rolls} if rolls else {}), **TIMER}
    after = with_roll(found(own, marked=marked).properties)
    assert record.has_crc_mark(after) == marked
    properties = decode_properties(after)
    properties.pop("__CRC32#", None)
    assert properties == {**own, "TIMER_ROLL_TIMES": str(int(rolls or 0) + 1)}


def test_timer_without_room_for_its_rolls_is_appended_as_it_is() -> None:
    before = found({**TIMER, "u": "x" * (32_760 - len(encode_properties(TIMER)))}, marked=False).properties
    assert with_roll(before) == before
