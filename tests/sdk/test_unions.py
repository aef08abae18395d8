"""Bodies of several kinds, and kinds with several forms: each is read as the kind that was sent, or is refused."""

from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum, IntEnum, IntFlag
from typing import Any, Literal, NamedTuple
from uuid import UUID

import pytest
from duetime import BadBody, InvalidArgument
from duetime.client.bodies import decoder, encoded
from pydantic import BaseModel


@dataclass
class Cancel:
    order: int


@dataclass
class Refund:
    order: int
    amount: Decimal


@dataclass
class TaggedCancel:
    order: int
    kind: Literal["cancel"] = "cancel"


@dataclass
class TaggedRefund:
    order: int
    amount: Decimal
    kind: Literal["refund", "credit"] = "refund"


class Kind(Enum):
    CANCEL = "cancel"
    REFUND = "refund"


@dataclass
class EnumCancel:
    kind: Literal[Kind.CANCEL] = Kind.CANCEL


@dataclass
class EnumRefund:
    kind: Literal[Kind.REFUND] = Kind.REFUND
    parts: "dict[Literal[Number.ONE], int]" = field(default_factory=dict)


class CancelModel(BaseModel):
    order: int


class TaggedModel(BaseModel):
    amount: Decimal
    kind: Literal["model"] = "model"


class Colour(Enum):
    RED = "red"


class Place(NamedTuple):
    row: int
    day: date


class Odd(Enum):
    PRICE = Decimal("1.50")
    DAY = date(2026, 3, 1)
    PAIR = (1, "a")
    HALF = 0.5
    WHOLE = 2.0


class Number(IntEnum):
    ONE = 1


class Bits(IntFlag):
    A = 1
    B = 2


@dataclass
class Everything:
    odd: list[Odd]
    number: Number
    bits: Bits
    place: Place
    by_number: dict[int, str]
    by_share: dict[float, str] = field(default_factory=dict)
    by_member: dict[Number, int] = field(default_factory=dict)
    some: Decimal | int | None = None


@pytest.mark.parametrize(
    "kind",
    [
        Cancel | Refund,
        Refund | Cancel,
        Cancel | TaggedRefund,
        CancelModel | TaggedModel,
        CancelModel | Cancel,
        dict[str, int] | Cancel,
        Cancel | Any,
        str | datetime,
        datetime | date,
        UUID | Decimal,
        Colour | str,
        Literal[Colour.RED] | str,
        Literal[Colour.RED] | Literal["red"],
        Number | int,
        list[Cancel] | list[Refund],
        list[int] | set[int],
        dict[str, Cancel | Refund],
    ],
    ids=str,
)
def test_kinds_that_json_can_not_distinguish_are_refused_when_they_are_named(kind: Any) -> None:
    with pytest.raises(InvalidArgument, match="can't be distinguished in JSON"):
        decoder(kind)


@pytest.mark.parametrize("kind", [Literal[b"x"], Literal[b"x"] | Cancel, dict[Literal[b"x"], int]])
def test_literal_that_json_can_not_hold_is_refused(kind: Any) -> None:
    with pytest.raises(InvalidArgument, match="has a value that JSON can't hold"):
        decoder(kind)


def test_the_error_names_the_remedy() -> None:
    with pytest.raises(InvalidArgument, match=r"Cancel and Refund .* a field of one name with different Literals"):
        decoder(Cancel | Refund)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (TaggedCancel | TaggedRefund, [TaggedCancel(1), TaggedRefund(2, Decimal("9.90"), "credit")]),
        (TaggedRefund | TaggedModel | None, [TaggedRefund(2, Decimal(3)), TaggedModel(amount=Decimal("2.10"))]),
        (Cancel | list[Refund], [Cancel(1), [Refund(1, Decimal(2))], []]),
        (dict[str, Colour | int], [{"a": Colour.RED, "b": 1}]),
        (list[int] | list[str], [[1], ["a"], []]),
        (EnumCancel | EnumRefund, [EnumCancel(), EnumRefund(parts={Number.ONE: 3})]),
        (EnumCancel | TaggedRefund, [EnumCancel(), TaggedRefund(2, Decimal(3))]),
    ],
)  # fmt: skip
def test_a_union_is_read_as_the_kind_that_was_sent(kind: Any, values: list[Any]) -> None:
    for value in values:
        assert decoder(kind)(*encoded(value)) == value


def test_a_default_does_not_decide_which_kind_it_is() -> None:
    with pytest.raises(BadBody, match="kind is missing: one of 'cancel', "):
        decoder(TaggedCancel | TaggedRefund)(b'{"order": 1, "amount": "5"}', "")


@dataclass
class Basket:
    parts: list[TaggedCancel | TaggedRefund | str | None]


@pytest.mark.parametrize(
    ("kind", "json", "fault"),
    [
        (TaggedCancel | TaggedRefund, b'{"kind": "cancel", "order": "x"}', "order is a text, not a whole number"),
        (TaggedCancel | TaggedRefund, b'{"kind": "cancel"}', "order is missing"),
        (TaggedCancel | TaggedRefund, b'{"kind": "other"}', "kind is a text, not one of 'cancel', "),
        (TaggedCancel | TaggedRefund, b'{"kind": [1]}', "kind is an array, not one of 'cancel', "),
        (TaggedCancel | TaggedRefund, b"[1]", "it is an array, not TaggedCancel or TaggedRefund"),
        (TaggedCancel | TaggedModel, b'{"kind": "model"}', "amount"),
        (Basket, b'{"parts": ["a", {"kind": "cancel"}]}', r"parts\[1\].order is missing"),
        (Basket, b'{"parts": [5]}', r"parts\[0\] is a number, not "),
        (Cancel | str, b'{"order": "x"}', "order is a text, not a whole number"),
        (Cancel | list[Refund], b'[{"order": 1}]', r"\[0\].amount is missing"),
    ],
)
def test_fault_of_a_union_names_the_field(kind: Any, json: bytes, fault: str) -> None:
    with pytest.raises(BadBody, match=fault):
        decoder(kind)(json, "")


@pytest.mark.parametrize(
    ("kind", "json", "value"),
    [(Decimal | int, b"5", 5), (Decimal | int, b'"5"', Decimal(5)), (Literal["a"] | str, b'"b"', "b")],
)
def test_a_number_is_no_decimal_where_both_are_allowed(kind: Any, json: bytes, value: object) -> None:
    found = decoder(kind)(json, "")
    assert (found, type(found)) == (value, type(value))


def test_all_that_can_be_sent_can_be_read() -> None:
    sent = Everything(
        list(Odd), Number.ONE, Bits.A | Bits.B, Place(3, date(2026, 3, 1)),
        {1: "a", -2: "b"}, {0.5: "c"}, {Number.ONE: 4}, Decimal("1.0"),
    )  # fmt: skip
    assert decoder(Everything)(*encoded(sent)) == sent
    assert decoder(datetime)(b'"2026-03-01T00:00:00+00:00"', "") == datetime(2026, 3, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("kind", "json"),
    [
        (Number, b"true"),
        (Odd, b'"1.5"'),
        (Odd, b"[1]"),
        (Odd, b"{}"),
        (dict[int, str], b'{"01": "a"}'),
        (dict[Number, int], b'{"2": 1}'),
        (Place, b"[1]"),
    ],
)
def test_another_value_is_a_bad_body(kind: Any, json: bytes) -> None:
    with pytest.raises(BadBody):
        decoder(kind)(json, "")


def test_keys_that_json_does_not_write_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="date can't be a JSON key"):
        decoder(dict[date, int])
