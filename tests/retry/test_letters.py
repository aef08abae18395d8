"""Dead letters: their fields, filters, and redriven messages."""

from dataclasses import replace
from typing import Any

import pytest
from duetime.v1 import consumer_pb2
from duetime_core.errors import InvalidArgument
from duetime_format import record
from duetime_format.properties import decode_properties
from duetime_retry.letters import (
    LetterCriteria,
    NotRedrivable,
    ShardQueue,
    StoredDeadLetter,
    dead_letter_of,
    newest_page_of,
    page_of,
    parse_newest_page,
    parse_page,
    redriven,
    split,
)
from hypothesis import given
from hypothesis import strategies as st

from tests.retry.letter_store import GROUP, RETRY, START_MS, dead

PLACE = ShardQueue(2, 1, 0)


def letter(number: int = 4, **properties: str) -> StoredDeadLetter:
    return StoredDeadLetter(dead(number, **properties), PLACE, number)


def a_brokers(number: int = 4) -> StoredDeadLetter:
    """As a RocketMQ broker leaves it: none of our properties."""
    ours = ("DT_ORIGIN", "DT_DEAD_REASON", "DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID", "DT_ATTEMPTS")
    return letter(number, DELAY="0", WAIT="false", REAL_TOPIC="%RETRY%billing", REAL_QID="0", **dict.fromkeys(ours, ""))


def test_dead_letter_has_all_fields() -> None:
    found = dead_letter_of(letter(4, DT_REDRIVEN="1"))
    message = found.message
    assert (message.topic, message.queue, message.offset, message.id) == ("orders", 3, 74, "id4")
    assert (message.body, message.tags, message.keys, message.properties) == (
        b"4",
        "paid",
        ["key4", "all"],
        {"color": "red"},
    )
    assert (found.group, found.shard, found.queue, found.offset) == (GROUP, 1, 2, 4)
    assert (found.dead_at_ms, found.reason, found.redriven_count) == (START_MS + 4_000, "ATTEMPTS_EXHAUSTED", 1)
    assert [(one.attempt, one.received_at_ms, one.failed_at_ms) for one in found.attempts] == [(1, 5, 6), (2, 7, 8)]
    last = found.attempts[1].error
    assert (last.type, last.message, last.trace) == ("TimeoutError", "Bank is away", "t2")


def test_brokers_dead_letter_has_empty_fields() -> None:
    found = dead_letter_of(a_brokers())
    assert (found.message.topic, found.message.id, found.reason, len(found.attempts)) == ("orders", "id4", "", 0)
    without_id = letter(UNIQ_KEY="", ORIGIN_MESSAGE_ID="0A000001")
    assert dead_letter_of(without_id).message.id == "0A000001"


@pytest.mark.parametrize(
    ("given_", "fits"),
    [
        ({}, True),
        ({"from_ms": START_MS + 4_000}, True),
        ({"from_ms": START_MS + 4_001}, False),
        ({"to_ms": START_MS + 4_000}, True),
        ({"to_ms": START_MS + 3_999}, False),
        ({"error": "timeouterror: BANK is"}, True),
        ({"error": "away"}, True),
        ({"error": "ValueError"}, False),
        ({"tag": "paid"}, True),
        ({"tag": "pai"}, False),
        ({"key": "all"}, True),
        ({"key": "key"}, False),
        ({"ids": ["x", "id4"]}, True),
        ({"ids": ["x"]}, False),
        ({"topic": "orders"}, True),
        ({"topic": "order"}, False),
        ({"topic": "orders", "tag": "refunded"}, False),
    ],
)
def test_filters(given_: dict[str, Any], fits: bool) -> None:
    wanted = LetterCriteria.of(consumer_pb2.DeadLetterFilter(group=GROUP, **given_))
    assert wanted.fits(letter()) is fits


def test_an_error_is_not_found_where_none_is_known() -> None:
    assert not LetterCriteria(GROUP, error="a").fits(a_brokers())


def test_redriven_dead_letter_restarts_its_attempts_and_keeps_its_history() -> None:
    before = letter(4)
    copy = redriven(before, START_MS)
    names = decode_properties(copy.properties)
    assert (copy.topic, copy.queue, copy.body, copy.reconsume_times) == (RETRY, 0, b"4", 0)
    assert (names["RETRY_TOPIC"], names["DT_ORIGIN"], names["DT_REDRIVEN"]) == ("orders", "3:74", "1")
    assert names["DT_ATTEMPTS"] == before.properties["DT_ATTEMPTS"]
    gone = {"DT_DEAD_REASON", "DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID", "DELAY", "REAL_TOPIC", "DT_VISIBLE_AT"}
    assert not gone & names.keys()
    assert record.has_crc_mark(copy.properties)
    again = StoredDeadLetter(replace(copy, topic="%DLQ%billing"), PLACE, 9)
    assert decode_properties(redriven(again, START_MS).properties)["DT_REDRIVEN"] == "2"


def test_a_brokers_dead_letter_is_redriven() -> None:
    names = decode_properties(redriven(a_brokers(), START_MS).properties)
    assert (names["RETRY_TOPIC"], names["UNIQ_KEY"], names["DT_REDRIVEN"]) == ("orders", "id4", "1")
    assert not {"DELAY", "REAL_TOPIC", "REAL_QID"} & names.keys()


def test_dead_letter_without_origin_or_space_is_not_redriven() -> None:
    with pytest.raises(NotRedrivable, match="neither RETRY_TOPIC nor DLQ_ORIGIN_TOPIC"):
        redriven(letter(RETRY_TOPIC="", DLQ_ORIGIN_TOPIC=""), START_MS)
    assert redriven(letter(RETRY_TOPIC=""), START_MS).topic == RETRY
    with pytest.raises(NotRedrivable, match="the limit is 32767"):
        redriven(letter(note="x" * 32_600), START_MS)


def test_records_are_split() -> None:
    records = [dead(number) for number in range(3)]
    found = list(split(b"".join(map(record.encode, records)), [5, 7, 9], PLACE))
    assert [(one.id, one.offset) for one in found] == [("id0", 5), ("id1", 7), ("id2", 9)]


@given(st.integers(0, 1_023), st.integers(0, 10**18 - 1))
def test_a_page_is_read_as_it_was_written(queue: int, offset: int) -> None:
    assert parse_page(page_of(queue, offset)) == (queue, offset)


@given(st.dictionaries(st.integers(0, 1_023), st.integers(1, 10**18 - 1), min_size=1))
def test_newest_page_is_read_as_it_was_written(cursors: dict[int, int]) -> None:
    assert parse_newest_page(newest_page_of(cursors)) == cursors


@pytest.mark.parametrize("text", ["x", "PA==", "PDE6Mix4", page_of(1, 2)])
def test_no_other_text_is_a_newest_page(text: str) -> None:
    with pytest.raises(InvalidArgument, match="is not the next_page of an answer"):
        parse_newest_page(text)


@pytest.mark.parametrize("text", ["x", "x y", "ä", "AAAA", page_of(1, 2)[:-1], page_of(-1, 2), page_of(1, 10**18)])
def test_no_other_text_is_a_page(text: str) -> None:
    with pytest.raises(InvalidArgument, match="is not the next_page of an answer"):
        parse_page(text)
