"""SQL expressions: their result for properties, and errors with their position, the same as by a plain evaluator."""

import string
from contextlib import suppress
from typing import Any

import pytest
from duetime_core.errors import InvalidArgument
from duetime_format import limits, record
from duetime_format.properties import encode_properties
from duetime_store.reading.filters import Filter
from duetime_store.reading.sql import SQL_DEPTH_MAX
from hypothesis import given
from hypothesis import strategies as st

A5 = {"a": "5"}


def made(properties: dict[str, str]) -> bytes:
    return record.encode(record.Record("orders", 0, b"body", record.with_crc_mark(encode_properties(properties))))


def matched(sql: str, properties: dict[str, str], tags: str = "") -> bool:
    return Filter.parse(tags, sql).match(encode_properties(properties))


@pytest.mark.parametrize(
    ("sql", "properties", "expected"),
    [
        # text
        ("color = 'red'", {"color": "red"}, True),
        ("color = 'red'", {"color": "Red"}, False),
        ("Color = 'red'", {"color": "red"}, False),
        ("color <> 'red'", {"color": "blue"}, True),
        ("name = 'it''s'", {"name": "it's"}, True),
        ("name = ''", {"a": "5"}, False),
        ("name = 'größe'", {"name": "größe"}, True),
        ("color IN ('red', 'blue')", {"color": "blue"}, True),
        ("color IN ('red')", {"color": "blue"}, False),
        ("color not in ('red')", {"color": "blue"}, True),
        ("a = b", {"a": "x", "b": "x"}, True),
        # numbers
        ("a = 5", A5, True),
        ("a = '5'", A5, True),
        ("a = 5.0", A5, True),
        ("5 = a", A5, True),
        ("a = 5L", A5, True),
        ("a > 4.9 AND a >= 5 AND a < 5.1 AND a <= 5", A5, True),
        ("4 < a", A5, True),
        ("a > 5", A5, False),
        ("a > -6", {"a": "-5.5"}, True),
        ("a = 1e2", {"a": "100"}, True),
        ("a > .5", {"a": ".75"}, True),
        ("a < b", {"a": "9", "b": "10"}, True),
        ("a > 9007199254740992", {"a": "9007199254740993"}, True),
        ("a BETWEEN 1 AND 5", A5, True),
        ("a BETWEEN 5 AND 5 AND b = 1", {"a": "5", "b": "1"}, True),
        ("a BETWEEN -1 AND 4", A5, False),
        ("a NOT BETWEEN 1 AND 4", A5, True),
        ("a NOT BETWEEN 9 AND 1", A5, True),
        ("-a < 0", A5, False),
        ("- -5 = a", A5, True),
        ("+5 = a", A5, True),
        # TRUE and FALSE
        ("TRUE", {}, True),
        ("FALSE OR NULL", {}, False),
        ("paid = TRUE", {"paid": "True"}, True),
        ("TRUE = paid", {"paid": "true"}, True),
        ("paid = FALSE", {"paid": "no"}, True),
        ("paid <> TRUE", {"paid": "true"}, False),
        ("(a = 5) = TRUE", A5, True),
        ("a = 5 = TRUE", A5, True),
        # a property alone is no truth
        ("paid", {"paid": "true"}, False),
        ("NOT paid", {"paid": "true"}, True),
        ("NOT paid", {}, False),
        # missing properties
        ("a = 5", {}, False),
        ("a <> 5", {}, False),
        ("NOT (a = 5)", {}, False),
        ("a > 5", {}, False),
        ("a NOT IN ('x')", {}, False),
        ("a NOT BETWEEN 1 AND 2", {}, False),
        ("a IS NULL", {}, True),
        ("a IS NULL", A5, False),
        ("a IS NOT NULL", A5, True),
        ("a = 1 OR b = 2", {"b": "2"}, True),
        ("(a = 1) IS NULL", {}, True),
        ("NOT (a = 1 AND b = 2)", {"b": "3"}, True),
        # RocketMQ's: a missing right side differs, two missing sides are equal
        ("5 = a", {}, False),
        ("5 <> a", {}, True),
        ("a = b", {}, True),
        # values that are not numbers
        ("a = 5", {"a": "abc"}, False),
        ("a <> 5", {"a": "abc"}, False),
        ("a > 5", {"a": "nan"}, False),
        ("a > 5 OR b = 'x'", {"a": "abc", "b": "x"}, True),
        ("a > 5", {"a": "9" * 65}, False),
        ("a > 5", {"a": "99999999999"}, True),
        ("a = 5", {"a": "5.0"}, True),
        ("a = 5", {"a": " 5"}, False),
        ("a = 5", {"a": "\u0665"}, False),
        # order of words
        ("a = 1 OR a = 5 AND b = 2", A5, False),
        ("a = 5 OR a = 1 AND b = 2", A5, True),
        ("NOT (a = 1) AND a = 5", A5, True),
        ("NOT NOT (a = 5)", A5, True),
        ("not(a=5)or a=5", A5, True),
        ("notable = 1", {"notable": "1"}, True),
        ("$x_1 = 1", {"$x_1": "1"}, True),
        ("a /* one */ = -- two\n 5", A5, True),
        # system properties
        ("TAGS = 'paid' AND KEYS IS NOT NULL", {"TAGS": "paid", "KEYS": "k1 k2"}, True),
        ("UNIQ_KEY = '17'", {"UNIQ_KEY": "17"}, True),
    ],
)
def test_expression_matches(sql: str, properties: dict[str, str], expected: bool) -> None:
    assert matched(sql, properties) is expected


@pytest.mark.parametrize(
    ("sql", "place", "text"),
    [
        ("a LIKE 'x%'", "line 1, column 3", "LIKE where =, <>, >, >=, <, <=, BETWEEN, IN, IS, NOT, AND, OR, the end"),
        ("a = ", "line 1, column 5", "the end where a property, a number, a 'text', TRUE, FALSE, NULL, (, +, - is"),
        ("a = 1 AND\n\nOR b = 2", "line 3, column 1", "OR where"),
        ("a = 'x", "line 1, column 5", "the text is not terminated"),
        ('a = "x"', "line 1, column 5", "texts are enclosed in single quotes"),
        ("a != 1", "line 1, column 3", "not equal is <>"),
        ("(a = 1", "line 1, column 7", "the end where"),
        ("a = 1)", "line 1, column 6", ") where"),
        ("a IN (1)", "line 1, column 7", "1 where a 'text' is expected"),
        ("a IN ('x', 2)", "line 1, column 12", "2 where a 'text' is expected"),
        ("a IN ()", "line 1, column 7", ") where a 'text' is expected"),
        ("5 IN ('x')", "line 1, column 1", "IN needs a property"),
        ("a = NULL", "line 1, column 5", "a comparison with NULL is never true"),
        ("NULL <> a", "line 1, column 1", "a comparison with NULL is never true"),
        ("a > 'x'", "line 1, column 5", "> compares numbers"),
        ("a >= TRUE", "line 1, column 6", ">= compares numbers"),
        ("(a = 1) < 2", "line 1, column 2", "< compares numbers"),
        ("a BETWEEN 'a' AND 'b'", "line 1, column 11", ">= compares numbers"),
        ("a BETWEEN 5 AND 1", "line 1, column 11", "nothing is BETWEEN 5 AND 1"),
        ("a BETWEEN -1 AND -5", "line 1, column 11", "nothing is BETWEEN -1 AND -5"),
        ("a BETWEEN NULL AND 5", "line 1, column 11", ">= compares numbers"),
        ("TRUE = 5", "line 1, column 8", "TRUE and FALSE compare"),
        ("5", "line 1, column 1", "neither true nor false"),
        ("a = 1 AND 'x'", "line 1, column 11", "neither true nor false"),
        ("NOT a = 1", "line 1, column 7", "NOT applies only to the next operand"),
        ("NOT a IS NULL", "line 1, column 7", "NOT applies only to the next operand"),
        ("a + 1 = 2", "line 1, column 3", "+ where"),
        ("a = 9223372036854775808", "line 1, column 5", "too large a number"),
        ("a = 1e999", "line 1, column 5", "too large a number"),
        ("a = 007", "line 1, column 6", "0 where"),
        ("größe = 1", "line 1, column 3", "'ö' means nothing"),
        ("DELAY = 3", "line 1, column 1", "DELAY is a system property"),
        ("a = 1 OR DT_ENTRY IS NULL", "line 1, column 10", "DT_ENTRY is a system property"),
        ("a.b = 1", "line 1, column 2", "'.' means nothing"),
        ("NOT " * (SQL_DEPTH_MAX + 1) + "a", "line 1, column", f"more than {SQL_DEPTH_MAX} deep"),
        ("a OR (b AND (" * 33 + "a" + "))" * 33, "line 1, column", f"more than {SQL_DEPTH_MAX} deep"),
    ],
)
def test_wrong_expression_is_reported_with_its_position(sql: str, place: str, text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        Filter.parse("", sql)
    (violation,) = caught.value.violations
    assert (violation.field, caught.value.reason) == ("sql", "FILTER_INVALID")
    assert violation.description.startswith(place)
    assert text in violation.description
    assert "⟨here⟩" in violation.description
    assert "\n" not in violation.description


def test_too_long_values_are_refused() -> None:
    most = limits.FILTER_CHARS_MAX
    Filter.parse("t" * most, "a".rjust(most))
    for field, tags, sql in (("tags", "t" * (most + 1), ""), ("sql", "", "a".rjust(most + 1))):
        with pytest.raises(InvalidArgument) as caught:
            Filter.parse(tags, sql)
        (violation,) = caught.value.violations
        assert (violation.field, violation.description) == (field, f"has {most + 1} characters, more than {most}")


@pytest.mark.parametrize(
    ("sql", "description"),
    [
        (" OR ".join(["a = 1"] * 65), "has 65 comparisons, more than 64"),
        (" or ".join(["a between 1 and 2"] * 33), "has 66 comparisons, more than 64"),
        (" OR ".join(["a IN ('x', 'y')", "b is null"] * 33), "has 66 comparisons, more than 64"),
        ("a IN (" + ", ".join(["'x'"] * 256) + ")", "has 515 words, numbers, texts and signs, more than 512"),
        ("(" * 256 + "a = 1" + ")" * 256, "has 515 words, numbers, texts and signs, more than 512"),
    ],
)
def test_too_costly_expression_is_refused(sql: str, description: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        Filter.parse("", sql)
    (violation,) = caught.value.violations
    assert (violation.field, violation.description, caught.value.reason) == ("sql", description, "FILTER_INVALID")


def test_the_dearest_expressions_are_taken() -> None:
    Filter.parse("", " OR ".join(["a = 1"] * 64))
    Filter.parse("", " OR ".join(["a BETWEEN 1 AND 2"] * 32))
    Filter.parse("", "a IN (" + ", ".join(["'=IN'"] * 254) + ")")
    Filter.parse("", "(" * 254 + "a = 1" + ")" * 254)
    names = [f"p{number}" for number in range(256)]
    assert len(Filter.parse("", " OR ".join(names)).sql.names) == 256  # type: ignore[union-attr]


def test_a_filter_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    first = Filter.parse("paid", "a = 77")
    assert Filter.known("paid", "a = 77") is first is Filter.parse("paid", "a = 77")
    assert Filter.known("paid", "a = 78") is None
    for number in range(300):
        Filter.parse("", f"a = {number}")
    assert Filter.known("paid", "a = 77") is None


def test_a_tag_that_no_message_can_have_is_refused() -> None:
    with pytest.raises(
        InvalidArgument, match=r"tags: 'a \| b' contains \|, which is not allowed in a tag; `a \|\| b` matches either"
    ):
        Filter.parse("a | b || c")


@pytest.mark.parametrize("tags", ["||", " || ", "||||"])
def test_tags_without_a_name_are_rejected(tags: str) -> None:
    with pytest.raises(InvalidArgument, match="names no tag; empty, or \\*, is for all"):
        Filter.parse(tags)
    assert Filter.parse(" ").passes_all


def test_equivalent_filters_have_one_text() -> None:
    texts = {Filter.parse(tags, " a\n=  'x  y' -- no").text for tags in ("p || q", " q||p ||", "q || p || q")}
    assert texts == {"tags: p || q; sql: a = 'x  y'"}
    assert Filter.parse("a || *", " ").text == Filter.parse("", "").text == ""
    assert Filter.parse("", "a = 'x y'").text != Filter.parse("", "a = 'x  y'").text


def test_tags_and_sql_must_both_hold() -> None:
    for tags, size, expected in (("paid", "6", True), ("lost", "6", False), ("paid", "4", False)):
        assert matched("size > 5", {"TAGS": "paid", "size": size}, tags=tags) is expected


def test_records_are_judged_as_their_properties_are() -> None:
    colors = ["red", "blue", "red", "", "green"]
    records = [made({"color": color, "UNIQ_KEY": f"{n}"}) for n, color in enumerate(colors)]
    sizes = [len(one) for one in records]
    wanted = Filter.parse("", "color IN ('red', 'green') AND UNIQ_KEY <> '0'")
    assert wanted.passing(b"".join(records), sizes).tolist() == [False, False, True, False, True]
    # A damaged record has size 0 and no bytes.
    assert Filter.parse("", "x IS NULL").passing(records[0], [0, sizes[0], 0]).tolist() == [False, True, False]
    assert Filter.parse("").passing(records[0], [0, sizes[0]]).tolist() == [False, True]


# --- A plain evaluator: expressions as nested tuples, judged one message at a time ---------------------------------

Tree = tuple[Any, ...]
NAMES = ["a", "b", "c"]
numbers = st.one_of(st.integers(-9, 9), st.sampled_from([0.5, 2.0, 1e3, 10**15]))
words = st.sampled_from(["x", "it's", "5", "true", "2.0", ""])
properties_of = st.dictionaries(
    st.sampled_from(NAMES), st.sampled_from(["x", "it's", "5", "-3", "2.0", "0.5", "true", "FALSE", "1e3", "5x"])
)
name = st.sampled_from(NAMES).map(lambda one: ("name", one))
number = numbers.map(lambda one: ("value", one))
word = words.map(lambda one: ("value", one))
measure = st.one_of(name, number)
leaves = st.one_of(
    st.tuples(st.sampled_from(["=", "<>"]), st.one_of(name, number, word), st.one_of(name, number, word)),
    st.tuples(st.sampled_from(["=", "<>"]), name, st.booleans().map(lambda one: ("value", one))),
    st.tuples(st.sampled_from([">", ">=", "<", "<="]), measure, measure),
    st.tuples(st.sampled_from(["IN", "NOT IN"]), name, st.lists(words, min_size=1, max_size=3)),
    st.tuples(st.sampled_from(["IS NULL", "IS NOT NULL"]), st.one_of(name, number, word)),
    st.tuples(st.sampled_from(["BETWEEN", "NOT BETWEEN"]), measure, number, number).filter(
        lambda one: one[2][1] <= one[3][1]
    ),
    st.tuples(st.sampled_from(["TRUE", "FALSE", "NULL"])),
    name,
)
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.tuples(st.just("NOT"), inner),
        st.tuples(st.sampled_from(["AND", "OR"]), inner, inner),
    ),
    max_leaves=8,
)


def written(tree: Tree) -> str:
    sign, *parts = tree
    match sign:
        case "name":
            return str(parts[0])
        case "value":
            return literal(parts[0])
        case "TRUE" | "FALSE" | "NULL":
            return str(sign)
        case "NOT":
            return f"NOT ({written(parts[0])})"
        case "AND" | "OR":
            return f"({written(parts[0])}) {sign} ({written(parts[1])})"
        case "IS NULL" | "IS NOT NULL":
            return f"{written(parts[0])} {sign}"
        case "IN" | "NOT IN":
            return f"{written(parts[0])} {sign} ({', '.join(map(literal, parts[1]))})"
        case "BETWEEN" | "NOT BETWEEN":
            return f"{written(parts[0])} {sign} {written(parts[1])} AND {written(parts[2])}"
    return f"{written(parts[0])} {sign} {written(parts[1])}"


def literal(value: object) -> str:
    if isinstance(value, bool):
        return str(value).upper()
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else repr(value)


def judge(tree: Tree, properties: dict[str, str]) -> bool | None:
    """True, False, or None for unknown, as RocketMQ's classes say it."""
    sign, *parts = tree
    match sign:
        case "TRUE" | "FALSE" | "NULL":
            return {"TRUE": True, "FALSE": False, "NULL": None}[sign]
        case "name":
            return None if parts[0] not in properties else False
        case "NOT":
            return negated(judge(parts[0], properties))
        case "AND" | "OR":
            both = [judge(part, properties) for part in parts]
            decisive = sign == "OR"
            return decisive if decisive in both else None if None in both else not decisive
    left = value_of(parts[0], properties)
    match sign:
        case "IS NULL" | "IS NOT NULL":
            return (left is None) == (sign == "IS NULL")
        case "IN" | "NOT IN":
            return None if left is None else (left in parts[1]) == (sign == "IN")
        case "BETWEEN":
            return judge(("AND", (">=", *parts[:2]), ("<=", parts[0], parts[2])), properties)
        case "NOT BETWEEN":
            return judge(("OR", ("<", *parts[:2]), (">", parts[0], parts[2])), properties)
        case "<>":
            return negated(judge(("=", *parts), properties))
    right = value_of(parts[1], properties)
    if sign == "=" and (left is None or right is None):
        return True if left is right else None if left is None else False
    if left is None or right is None:
        return None
    if isinstance(right, bool):
        return (str(left).lower() == "true") is right
    if sign == "=" and isinstance(left, str) and isinstance(right, str):
        return left == right
    try:
        one, other = float(left), float(right)
    except ValueError:
        return None
    return {"=": one == other, ">": one > other, ">=": one >= other, "<": one < other, "<=": one <= other}[sign]


def negated(truth: bool | None) -> bool | None:
    return None if truth is None else not truth


def value_of(part: Tree, properties: dict[str, str]) -> str | float | None:
    kind, value = part
    found: str | float | None = properties.get(value) if kind == "name" else value
    return found


@given(trees, st.lists(properties_of, min_size=1, max_size=6))
def test_expressions_agree_with_a_plain_evaluator(tree: Tree, messages: list[dict[str, str]]) -> None:
    wanted = Filter.parse("", written(tree))
    records = [made(properties) for properties in messages]
    found = wanted.passing(b"".join(records), [len(one) for one in records]).tolist()
    expected = [judge(tree, properties) is True for properties in messages]
    assert found == expected == [wanted.match(encode_properties(properties)) for properties in messages]


@given(st.text(st.sampled_from("ab 15.'()=<>-,/*\n" + string.ascii_letters), max_size=40))
def test_any_text_is_an_expression_or_refused(text: str) -> None:
    with suppress(InvalidArgument):
        Filter.parse("", text).match(b"a\x015")
