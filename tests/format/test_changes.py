"""Changes of a shard's state: their rows, one for each key of a flush, and damage."""

import json

import pytest
from duetime_format.changes import (
    BODY_BYTES,
    CUT,
    GROUPS,
    LEVELS,
    OFFSETS,
    PAUSES,
    TOPICS,
    StateChange,
    StateChanges,
    bodies,
    decode,
)
from duetime_format.errors import DamagedBytes


def offsets(key: str, value: dict[str, int] | None) -> StateChange:
    return StateChange(OFFSETS, key, value)


def test_rows_come_back() -> None:
    rows = [offsets("orders@billing", {"0": 5, "3": 1 << 62}), offsets("größe@gruppe", None)]
    rows += [
        StateChange(TOPICS, "orders", [8, "FIFO"]),
        StateChange(GROUPS, "billing", [15, False]),
        StateChange(PAUSES, "@billing", [1, 0]),
        StateChange(LEVELS, "", ["1s 5s", 17]),
        StateChange(CUT, "", 1 << 30),
    ]
    (body,) = bodies(rows)
    assert decode(body) == rows


def test_one_row_for_each_key_and_a_removal_before_it() -> None:
    found = StateChanges([offsets("a@g", {"0": 1}), offsets("b@g", {"0": 1}), offsets("a@g", {"0": 2, "1": 3})])
    assert list(found) == [offsets("a@g", {"0": 2, "1": 3}), offsets("b@g", {"0": 1})]
    found.add(offsets("a@g", None))
    assert next(iter(found)) == offsets("a@g", None)
    found.add(offsets("a@g", {"2": 4}))
    found.add(offsets("a@g", {"3": 5}))
    assert list(found)[:2] == [offsets("a@g", None), offsets("a@g", {"2": 4, "3": 5})]


def test_many_rows_take_several_records() -> None:
    rows = [offsets(f"topic-{number}@group", {"0": number}) for number in range(20_000)]
    found = list(bodies(rows))
    assert len(found) > 1
    assert max(map(len, found)) < BODY_BYTES + 100_000
    assert [row for body in found for row in decode(body)] == rows


def test_later_kinds_are_skipped() -> None:
    assert decode(b'[["colours","x",[1]],["offsets","a@b",{"0":1}]]') == [offsets("a@b", {"0": 1})]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[",
        b"7",
        b"[7]",
        b'[["offsets","a@b"]]',
        b'[["offsets","a@b",{"0":1},2]]',
        b'[[7,"a@b",{"0":1}]]',
        b'[["offsets",7,{"0":1}]]',
        b'[["offsets","a@b",7]]',
        b'[["offsets","a@b",{"x":1}]]',
        b'[["offsets","a@b",{"0":-1}]]',
        b'[["offsets","a@b",{"0":1.5}]]',
        b'[["offsets","a@b",{"0":true}]]',
        b'[["offsets","a@b",{"0":9223372036854775808}]]',
        b'[["topics","orders",[1,7]]]',
        b'[["topics","orders",[-1,""]]]',
        b'[["groups","billing",[1]]]',
        b'[["groups","billing",[1,0]]]',
        b'[["pauses","@billing",[-1,0]]]',
        b'[["pauses","@billing",{}]]',
        b'[["levels","",["1s"]]]',
        b'[["levels","",["1x",0]]]',
        b'[["levels","",["1s",-1]]]',
        b"[" * 100_000,
        json.dumps([["offsets", "a@b", {"\u00b2": 1}]]).encode(),
    ],
)
def test_damage(body: bytes) -> None:
    with pytest.raises(DamagedBytes):
        decode(body)
