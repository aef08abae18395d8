"""Keys of new records: kept until the index has them, in any order of events, and bounded."""

from itertools import pairwise

import numpy as np
import pytest
from duetime_format import record
from duetime_format.keys import ROW, Rows
from duetime_store.log import newkeys
from duetime_store.log.intake import parse
from duetime_store.log.newkeys import NewKeys
from hypothesis import given
from hypothesis import strategies as st

# Beyond all that these tests keep.
END = 1 << 40


def rows(*positions: int) -> Rows:
    """A key of each record at these positions; its hash is its position."""
    return np.array([(position, position, 0) for position in positions], ROW)


def positions(found: Rows) -> list[int]:
    return [int(position) for position in found["position"]]


def between(keys: NewKeys, start: int, stop: int) -> list[int]:
    return [position for part in keys.between(start, stop) for position in positions(part)]


def test_keys_are_taken_from_where_the_index_is() -> None:
    keys = NewKeys(100)
    keys.publish([(150, rows(100, 120)), (200, rows(150, 180))])
    keys.publish([(300, rows(200))])
    assert [positions(keys.first(100, count, END)[0]) for count in (1, 3, 4, 5)] == [
        [100],
        [100, 120, 150],
        [100, 120, 150, 180],
        [100, 120, 150, 180, 200],
    ]
    assert [keys.first(100, count, END)[1] for count in (1, 3, 4, 5, 9)] == [120, 180, 200, 300, 300]
    # A step that failed has written the first of them.
    assert positions(keys.first(150, 9, END)[0]) == [150, 180, 200]
    keys.drop_before(180)
    assert (keys.start, positions(keys.first(180, 9, END)[0])) == (150, [180, 200])
    keys.drop_before(200)
    assert (keys.start, positions(keys.first(200, 9, END)[0])) == (200, [200])
    keys.drop_before(300)
    assert (keys.start, keys.first(300, 9, END)[1]) == (300, 300)


def test_keys_of_undurable_records_are_not_given() -> None:
    keys = NewKeys(0)
    keys.publish([(100, rows(0, 50)), (150, rows())])
    keys.publish([(200, rows(150, 180))])
    for stop, found in ((100, [0, 50]), (150, [0, 50]), (200, [0, 50, 150, 180])):
        given, end = keys.first(0, 9, stop)
        assert (positions(given), end) == (found, stop)


def test_keys_of_one_record_stay_together() -> None:
    keys = NewKeys(0)
    keys.publish([(300, rows(0, *[100] * 5, 200))])
    assert [positions(keys.first(0, count, END)[0]) for count in (1, 3, 6)] == [[0], [0], [0, *[100] * 5]]
    found, end = keys.first(100, 2, END)
    assert (positions(found), end) == ([100] * 5, 200)


def test_those_of_a_part_of_the_log_are_given_in_its_order() -> None:
    keys = NewKeys(0)
    for at in range(0, 1000, 10):
        keys.publish([(at + 10, rows(at, at + 5))])
    assert between(keys, 0, 1000) == list(range(0, 1000, 5))
    assert between(keys, 15, 35) == [15, 20, 25, 30]
    assert between(keys, 900, 100) == between(keys, 1000, 2000) == []
    # As they were kept when it was asked.
    found = keys.between(0, 20)
    keys.drop_before(1000)
    assert [position for part in found for position in positions(part)] == [0, 5, 10, 15]


def test_the_oldest_are_dropped_for_space() -> None:
    keys = NewKeys(0, 100)
    for at in range(0, 1000, 10):
        keys.publish([(at + 10, rows(at, at + 1, at + 2, at + 3))])
    # Each put takes room for 16 more.
    assert keys.start == 950
    assert positions(keys.first(950, 1, END)[0]) == [950]
    assert keys.are_many
    keys.drop_before(980)
    assert not keys.are_many


def test_publishes_without_keys_take_no_room() -> None:
    keys = NewKeys(0, 100)
    for at in range(0, 100_000, 10):
        keys.publish([(at + 10, rows())])
    assert keys.start == 0
    assert keys.first(0, 5, END)[1] == 100_000
    assert not keys.are_many


def test_keys_larger_than_their_records_are_not_kept() -> None:
    keys = NewKeys(0)
    for words, kept in ((5, True), (500, False)):
        properties = b"KEYS\x01" + b" ".join(b"k%d" % number for number in range(words))
        intake = parse(record.encode(record.Record("orders", 0, b"", properties)))
        assert (keys.of(intake, bytearray(intake.data)) is not None) == kept


def test_put_without_kept_keys_is_read_from_the_log() -> None:
    keys = NewKeys(0)
    keys.publish([(50, rows(0))])
    keys.publish([(100, rows(50)), (200, None), (300, rows(200))])
    assert (keys.start, between(keys, 0, 300)) == (200, [200])
    keys.publish([(400, rows(300))])
    assert between(keys, 0, 400) == [200, 300]


def test_nothing_is_kept_for_no_index() -> None:
    keys = NewKeys(0, 0)
    keys.publish([(100, None)])
    assert (keys.start, keys.are_many) == (100, False)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newkeys, "_JOINED_ROWS", 8)


@given(st.lists(st.lists(st.integers(0, 4), max_size=4), max_size=12), st.integers(1, 9), st.integers(0, 60))
def test_steps_reach_every_key_once(puts: list[list[int]], step: int, start: int) -> None:
    """`puts`: how many keys each record has; a record takes ten bytes."""
    keys, at, expected = NewKeys(0), 0, []
    for counts in puts:
        own = [at + 10 * index for index, count in enumerate(counts) for _ in range(count)]
        at += 10 * len(counts)
        keys.publish([(at, rows(*own))])
        expected += own
    assert between(keys, start, at) == [position for position in expected if position >= start]
    reached, steps = [], [0]
    while steps[-1] < at:
        found, end = keys.first(steps[-1], step, at)
        reached += positions(found)
        steps.append(end)
        keys.drop_before(end)
    assert reached == expected
    assert all(before < after for before, after in pairwise(steps))
