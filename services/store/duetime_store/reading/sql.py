r"""SQL92 expressions over message properties, as in RocketMQ: text in, a condition out.

    a = 'x'   a <> 5   a > 1.5   >= < <=   a BETWEEN 1 AND 9   a IN ('x', 'y')   a IS NULL   a = TRUE
    NOT, AND, OR, parentheses;  NOT BETWEEN, NOT IN, IS NOT NULL;  -- and /* */ comments

Errors name the place and the expected words:

    line 1, column 7: LIKE where =, <>, ... is expected: color ⟨here⟩LIKE 'r%'

The parser is table-driven and makes each part as soon as it is complete: no expression is too deep for the stack.
Expressions deeper than SQL_DEPTH_MAX are rejected, since conditions call each other.

Source: RocketMQ 5.x filter: SelectorParser.jj, ComparisonExpression.
"""

import math
import re
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
from duetime_core.errors import InvalidArgument
from duetime_format import limits, record
from lark import Lark, Token, Transformer, UnexpectedCharacters, UnexpectedToken, v_args

from duetime_store.reading.conditions import (
    TRUE,
    Columns,
    Condition,
    Constant,
    ExpressionNode,
    Property,
    all_of,
    any_of,
    as_condition,
    compared,
    constant,
    is_condition,
    is_null,
    named,
    negative,
    none_of,
    refused,
    within,
)

# System properties that expressions may use.
USABLE = frozenset({record.TAGS, record.KEYS, record.UNIQ_KEY})
# Maximum nesting, not counting parentheses.
SQL_DEPTH_MAX = 64

_GRAMMAR = r"""
?start: disjunction
?disjunction: conjunction (_OR conjunction)*
?conjunction: negation (_AND negation)*
?negation: equality | negated
negated: _NOT (negated | operand)
?equality: comparison
    | equality EQUAL comparison -> equal
    | equality UNEQUAL comparison -> equal
    | equality _IS NULL -> null_is
    | equality _IS _NOT NULL -> null_is_not
?comparison: operand
    | comparison GREATER operand -> ordered
    | comparison GREATER_EQUAL operand -> ordered
    | comparison LESS operand -> ordered
    | comparison LESS_EQUAL operand -> ordered
    | comparison _BETWEEN operand _AND operand -> between
    | comparison _NOT _BETWEEN operand _AND operand -> not_between
    | comparison _IN _LPAR STRING (_COMMA STRING)* _RPAR -> within
    | comparison _NOT _IN _LPAR STRING (_COMMA STRING)* _RPAR -> not_within
?operand: _PLUS operand
    | MINUS operand -> negative
    | STRING -> text
    | NUMBER -> number
    | TRUE -> true
    | FALSE -> false
    | NULL -> null
    | NAME -> property
    | _LPAR disjunction _RPAR

_OR: "OR"i
_AND: "AND"i
_NOT: "NOT"i
_IS: "IS"i
_BETWEEN: "BETWEEN"i
_IN: "IN"i
NULL: "NULL"i
TRUE: "TRUE"i
FALSE: "FALSE"i
EQUAL: "="
UNEQUAL: "<>"
GREATER: ">"
GREATER_EQUAL: ">="
LESS: "<"
LESS_EQUAL: "<="
_LPAR: "("
_RPAR: ")"
_COMMA: ","
_PLUS: "+"
MINUS: "-"
NAME: /[a-z_$][a-z0-9_$]*/i
STRING: /'([^']|'')*'/
NUMBER: /([0-9]+\.[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?|[0-9]+e[+-]?[0-9]+|(0|[1-9][0-9]*)l?/i

%ignore /[ \t\n\r\f]+/
%ignore /--[^\n\r]*/
%ignore /\/\*([^*]|\*+[^*\/])*\*+\//
"""

# Names of the terminals in errors, in this order.
_SHOWN = {
    "NAME": "a property", "NUMBER": "a number", "STRING": "a 'text'", "TRUE": "TRUE", "FALSE": "FALSE", "NULL": "NULL",
    "EQUAL": "=", "UNEQUAL": "<>", "GREATER": ">", "GREATER_EQUAL": ">=", "LESS": "<", "LESS_EQUAL": "<=",
    "_BETWEEN": "BETWEEN", "_IN": "IN", "_IS": "IS", "_NOT": "NOT", "_AND": "AND", "_OR": "OR",
    "_LPAR": "(", "_RPAR": ")", "_COMMA": ",", "_PLUS": "+", "MINUS": "-", "$END": "the end",
}  # fmt: skip
_HINTS = {"!": "not equal is <>", '"': "texts are enclosed in single quotes", "'": "the text is not terminated"}
_COMPARING = frozenset({"EQUAL", "UNEQUAL", "GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL", "_BETWEEN", "_IN", "_IS"})
# Characters shown on each side of the place of an error.
_EXCERPT_CHARS = 40
_WORDS = re.compile(r"'(?:[^']|'')*'|[\w$.]+|<=|>=|<>|[^\s\w]")
_COMPARISONS = {"=": 1, "<>": 1, "<": 1, "<=": 1, ">": 1, ">=": 1, "IS": 1, "IN": 1, "BETWEEN": 2}
_BLANKS = re.compile(r"('(?:[^']|'')*')|(?:\s|--[^\n\r]*|/\*(?:[^*]|\*+[^*/])*\*+/)+")
_I64_MAX = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Sql:
    """A parsed expression; `text` is equal for those that differ in blanks and comments only."""

    text: str
    # Properties that it uses.
    names: tuple[bytes, ...]
    # The number of its words.
    cost: int
    _condition: Condition

    def passing(self, columns: Columns, count: int) -> npt.NDArray[np.bool_]:
        """Whether it is true, for each of `count` messages; there is a column for each of `names`."""
        return np.equal(self._condition.truth(columns, count), TRUE)


def parse(text: str) -> Sql:
    """Raises: InvalidArgument: with line, column, and the expected words."""
    if len(text) > limits.FILTER_CHARS_MAX:
        raise refused("sql", f"has {len(text)} characters, more than {limits.FILTER_CHARS_MAX}")
    plain = _BLANKS.sub(lambda found: found[1] or " ", text).strip()
    cost = _cost(plain)
    try:
        node = _truth_of(_parser().parse(text))  # type: ignore[arg-type]
    except _WrongError as error:
        raise _wrong(text, *error.args) from None
    except UnexpectedToken as error:
        raise _wrong(text, *_misplaced(text, error.token, error.accepts or error.expected)) from None
    except UnexpectedCharacters as error:
        at = error.pos_in_stream or 0
        hint = _HINTS.get(text[at], "no word begins like this")
        raise _wrong(text, at, f"{text[at]!r} means nothing: {hint}") from None
    return Sql(plain, tuple(sorted(node.names)), cost, node)


def _cost(text: str) -> int:
    """Counts the words of an expression before it is parsed. Raises: InvalidArgument: there are too many."""
    words = _WORDS.findall(text)
    comparisons = sum(_COMPARISONS.get(word.upper(), 0) for word in words)
    for count, most, what in (
        (len(words), limits.SQL_WORDS_MAX, "words, numbers, texts and signs"),
        (comparisons, limits.SQL_COMPARISONS_MAX, "comparisons"),
    ):
        if count > most:
            raise refused("sql", f"has {count} {what}, more than {most}")
    return len(words)


def _misplaced(text: str, token: Token, expected: set[str]) -> tuple[int, str]:
    ends = token.type == "$END"
    if token.type in _COMPARING and "_AND" in expected:
        # RocketMQ reads `NOT a = 1` as `(NOT a) = 1`, which is never true.
        return token.start_pos or 0, "NOT applies only to the next operand: put the negated part in parentheses"
    shown = ", ".join(shown for name, shown in _SHOWN.items() if name in expected)
    found = "the end" if ends else str(token)[:_EXCERPT_CHARS]
    return len(text) if ends else token.start_pos or 0, f"{found} where {shown} is expected"


def _wrong(text: str, at: int, what: str) -> InvalidArgument:
    line, column = text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)
    excerpt = text[max(at - _EXCERPT_CHARS, 0) : at] + "⟨here⟩" + text[at : at + _EXCERPT_CHARS]
    return refused("sql", f"line {line}, column {column}: {what}: {' '.join(excerpt.split())}")


class _WrongError(Exception):
    """An error in an expression: its place and its text."""

    def __init__(self, at: int, what: str) -> None:
        super().__init__(at, what)


def _truth_of(node: ExpressionNode) -> Condition:
    if not is_condition(node):
        raise _WrongError(node.at, "this is neither true nor false")
    return _shallow(as_condition(node))


def _shallow(condition: Condition) -> Condition:
    if condition.depth > SQL_DEPTH_MAX:
        raise _WrongError(condition.at, f"conditions are nested more than {SQL_DEPTH_MAX} deep")
    return condition


def _text_of(token: Token) -> str:
    return token[1:-1].replace("''", "'")


@v_args(inline=True)
class _Maker(Transformer[Token, ExpressionNode]):
    """Makes each part as soon as it is parsed."""

    def text(self, token: Token) -> ExpressionNode:
        return constant(token.start_pos or 0, _text_of(token).encode())

    def number(self, token: Token) -> ExpressionNode:
        at = token.start_pos or 0
        plain = token.rstrip("lL")
        value = int(plain) if plain.isdigit() else float(plain)
        if value > _I64_MAX if isinstance(value, int) else math.isinf(value):
            raise _WrongError(at, f"{plain[:_EXCERPT_CHARS]} is too large a number")
        return constant(at, value)

    def true(self, token: Token) -> ExpressionNode:
        return constant(token.start_pos or 0, True)

    def false(self, token: Token) -> ExpressionNode:
        return constant(token.start_pos or 0, False)

    def null(self, token: Token) -> ExpressionNode:
        return constant(token.start_pos or 0, None)

    def property(self, token: Token) -> ExpressionNode:
        name = str(token)
        if name.startswith("DT_") or (name in record.RESERVED_PROPERTIES and name not in USABLE):
            usable = "users' properties, " + ", ".join(sorted(USABLE))
            raise _WrongError(token.start_pos or 0, f"{name} is a system property; an expression may use {usable}")
        return named(token.start_pos or 0, name.encode())

    def negative(self, minus: Token, node: ExpressionNode) -> ExpressionNode:
        return negative(minus.start_pos or 0, node)

    def negated(self, node: ExpressionNode) -> ExpressionNode:
        return _shallow(none_of(node.at, _truth_of(node)))

    def conjunction(self, *nodes: ExpressionNode) -> ExpressionNode:
        return _shallow(all_of([_truth_of(node) for node in nodes]))

    def disjunction(self, *nodes: ExpressionNode) -> ExpressionNode:
        return _shallow(any_of([_truth_of(node) for node in nodes]))

    def equal(self, left: ExpressionNode, sign: Token, right: ExpressionNode) -> ExpressionNode:
        for node in (left, right):
            if isinstance(node, Constant) and node.value is None:
                raise _WrongError(node.at, "a comparison with NULL is never true: use IS NULL or IS NOT NULL")
        values = [node.value for node in (left, right) if isinstance(node, Constant)]
        if len(values) == 2 and isinstance(values[0], bool) != isinstance(values[1], bool):
            raise _WrongError(right.at, "TRUE and FALSE compare with each other and with properties")
        return _shallow(compared(left, sign, right))

    def ordered(self, left: ExpressionNode, sign: Token, right: ExpressionNode) -> ExpressionNode:
        return _shallow(_ordered(left, sign, right))

    def null_is(self, node: ExpressionNode, _: Token) -> ExpressionNode:
        return _shallow(is_null(node))

    def null_is_not(self, node: ExpressionNode, _: Token) -> ExpressionNode:
        return _shallow(none_of(node.at, is_null(node)))

    def between(self, node: ExpressionNode, low: ExpressionNode, high: ExpressionNode) -> ExpressionNode:
        parts = [_ordered(node, ">=", low), _ordered(node, "<=", high)]
        if isinstance(low, Constant) and isinstance(high, Constant) and low.value > high.value:  # type: ignore[operator]
            raise _WrongError(
                low.at, f"nothing is BETWEEN {low.value!r} AND {high.value!r}: the lower bound comes first"
            )
        return _shallow(all_of(parts))

    def not_between(self, node: ExpressionNode, low: ExpressionNode, high: ExpressionNode) -> ExpressionNode:
        return _shallow(any_of([_ordered(node, "<", low), _ordered(node, ">", high)]))

    def within(self, node: ExpressionNode, *texts: Token) -> Condition:
        if not isinstance(node, Property):
            raise _WrongError(node.at, "IN needs a property")
        return within(node, frozenset(_text_of(token).encode() for token in texts))

    def not_within(self, node: ExpressionNode, *texts: Token) -> ExpressionNode:
        return none_of(node.at, self.within(node, *texts))


def _ordered(left: ExpressionNode, sign: str, right: ExpressionNode) -> Condition:
    for node in (left, right):
        number = isinstance(node, Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool)
        if isinstance(node, Condition | Constant) and not number:
            raise _WrongError(node.at, f"{sign} compares numbers, and properties that are numbers, only")
    return compared(left, sign, right)


@cache
def _parser() -> Lark:
    return Lark(_GRAMMAR, parser="lalr", lexer="basic", transformer=_Maker())
