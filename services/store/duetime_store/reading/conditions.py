"""Conditions over message properties, evaluated for many messages at once.

A property is text, or NULL if a message has none. Compared with a number, it counts as the number that it spells;
compared with TRUE and FALSE, as whether it spells `true`. Undecidable conditions are unknown. A condition over n
messages is a column of n small integers,

    TRUE 1, UNKNOWN 0, FALSE -1        AND is the least, OR the greatest, NOT the negative

so only comparing a property with a value works on single messages, and equal properties of a batch are compared once.

Where RocketMQ has a result, this one is the same, oddities included (docs/adr/0017). Where RocketMQ drops the message,
because a text is not a number or not an integer, this module compares as numbers, or the result is unknown.

Source: RocketMQ 5.x filter: ComparisonExpression, LogicExpression, UnaryExpression.
"""

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, reduce

import numpy as np
import numpy.typing as npt
from duetime_core.errors import InvalidArgument, Violation

TRUE, UNKNOWN, FALSE = 1, 0, -1

Truth = npt.NDArray[np.int8]
Columns = Mapping[bytes, Sequence[bytes | None]]
# A property or a constant.
Value = bytes | int | float | bool | None
# Judges a left and a right value.
Judge = Callable[[Value, Value], int]

_NUMBER = re.compile(rb"[+-]?(?:[0-9]+|((?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][+-]?[0-9]+)?))")
# Longer texts do not count as numbers: no real value is so long, and parsing is costly.
_NUMBER_BYTES_MAX = 64
_NUMBERS_REMEMBERED = 4_096
_OBJECTS: dict[int, bool | None] = {TRUE: True, UNKNOWN: None, FALSE: False}
_NO_NAMES: frozenset[bytes] = frozenset()


@dataclass(frozen=True, slots=True)
class ExpressionNode:
    """A part of an expression that begins at `at`. `values` gives one value for each of `count` messages."""

    at: int
    values: Callable[[Columns, int], Sequence[Value]]
    names: frozenset[bytes] = _NO_NAMES
    depth: int = 1


@dataclass(frozen=True, slots=True)
class Constant(ExpressionNode):
    value: Value = None


@dataclass(frozen=True, slots=True)
class Property(ExpressionNode):
    pass


@dataclass(frozen=True, slots=True)
class Condition(ExpressionNode):
    truth: Callable[[Columns, int], Truth] = field(kw_only=True)


def refused(field: str, text: str) -> InvalidArgument:
    """The error of a wrong filter."""
    return InvalidArgument([Violation(field, text)], reason="FILTER_INVALID")


def constant(at: int, value: Value) -> Constant:
    return Constant(at, lambda _, count: [value] * count, value=value)


def named(at: int, name: bytes) -> Property:
    return Property(at, lambda columns, _: columns[name], frozenset({name}))


def negative(at: int, node: ExpressionNode) -> ExpressionNode:
    """The negative of a number; NULL for anything else, properties included."""
    if isinstance(node, Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
        return constant(at, -node.value)
    return ExpressionNode(at, lambda _, count: [None] * count, node.names, node.depth + 1)


def is_condition(node: ExpressionNode) -> bool:
    """Whether it has a truth value: a condition, TRUE, FALSE, NULL, or a property, which alone is never true."""
    if isinstance(node, Constant):
        return node.value is None or isinstance(node.value, bool)
    return isinstance(node, Condition | Property)


def as_condition(node: ExpressionNode) -> Condition:
    if isinstance(node, Condition):
        return node
    if isinstance(node, Constant):
        return _judged(node.at, _equal, node, constant(node.at, True))
    return _judged(node.at, lambda value, _: UNKNOWN if value is None else FALSE, node, _NULL)


def all_of(conditions: Sequence[Condition]) -> Condition:
    return _folded(conditions, np.minimum)


def any_of(conditions: Sequence[Condition]) -> Condition:
    return _folded(conditions, np.maximum)


def none_of(at: int, condition: Condition) -> Condition:
    return _condition(at, (condition,), lambda columns, count: -condition.truth(columns, count))


def compared(left: ExpressionNode, sign: str, right: ExpressionNode) -> Condition:
    if sign == "<>":
        return none_of(left.at, compared(left, "=", right))
    return _judged(left.at, _JUDGES[sign], left, right)


def is_null(node: ExpressionNode) -> Condition:
    return _judged(node.at, lambda value, _: TRUE if value is None else FALSE, node, _NULL)


def within(node: ExpressionNode, texts: frozenset[bytes]) -> Condition:
    return _judged(
        node.at, lambda value, _: UNKNOWN if value is None else TRUE if value in texts else FALSE, node, _NULL
    )


def _folded(conditions: Sequence[Condition], fold: Callable[[Truth, Truth], Truth]) -> Condition:
    def truth(columns: Columns, count: int) -> Truth:
        return reduce(fold, [condition.truth(columns, count) for condition in conditions])

    return _condition(conditions[0].at, conditions, truth)


def _condition(at: int, parts: Sequence[ExpressionNode], truth: Callable[[Columns, int], Truth]) -> Condition:
    def values(columns: Columns, count: int) -> Sequence[Value]:
        return [_OBJECTS[one] for one in truth(columns, count).tolist()]

    names = _NO_NAMES.union(*(part.names for part in parts))
    return Condition(at, values, names, 1 + max(part.depth for part in parts), truth=truth)


def _judged(at: int, judge: Judge, left: ExpressionNode, right: ExpressionNode) -> Condition:
    def truth(columns: Columns, count: int) -> Truth:
        values = left.values(columns, count)
        if isinstance(right, Constant):
            seen = _ValueResults(judge, right.value)
            return np.fromiter(map(seen.__getitem__, values), np.int8, count)
        return np.fromiter(map(judge, values, right.values(columns, count)), np.int8, count)

    return _condition(at, (left, right), truth)


class _ValueResults(dict[Value, int]):
    """The results for the values of a batch: equal values are judged once."""

    def __init__(self, judge: Judge, right: Value) -> None:
        self._judge = judge
        self._right = right

    def __missing__(self, value: Value) -> int:
        judged = self[value] = self._judge(value, self._right)
        return judged


def _equal(left: Value, right: Value) -> int:
    if left is None or right is None:
        # Unlike SQL: unknown if the left side is missing, false if the right side is, true if both are.
        return TRUE if left is right else UNKNOWN if left is None else FALSE
    if isinstance(left, bool) or isinstance(right, bool):
        # A number is neither TRUE nor FALSE.
        return TRUE if _flag(left) is _flag(right) else FALSE
    if isinstance(left, bytes) and isinstance(right, bytes):
        return TRUE if left == right else FALSE
    return _equal_numbers(left, right)


def _flag(value: Value) -> bool | None:
    if isinstance(value, bytes):
        return value.lower() == b"true"
    return value if isinstance(value, bool) else None


def _numeric(compare: Callable[[int | float, int | float], bool]) -> Judge:
    def judge(left: Value, right: Value) -> int:
        one, other = _number(left), _number(right)
        if one is None or other is None:
            return UNKNOWN
        return TRUE if compare(one, other) else FALSE

    return judge


def _number(value: Value) -> int | float | None:
    if not isinstance(value, bytes):
        return value
    return _spelled(value) if len(value) <= _NUMBER_BYTES_MAX else None


@lru_cache(_NUMBERS_REMEMBERED)
def _spelled(value: bytes) -> int | float | None:
    """The number that a property spells. Cached: comparisons of an expression, and its batches, repeat values."""
    found = _NUMBER.fullmatch(value) if len(value) <= _NUMBER_BYTES_MAX else None
    if found is None:
        return None
    return int(value) if found[1] is None else float(value)


_NULL = constant(0, None)
_equal_numbers = _numeric(operator.eq)
_JUDGES: dict[str, Judge] = {
    "=": _equal,
    ">": _numeric(operator.gt),
    ">=": _numeric(operator.ge),
    "<": _numeric(operator.lt),
    "<=": _numeric(operator.le),
}
