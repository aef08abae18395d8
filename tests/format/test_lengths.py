"""Lengths of time as people write them."""

from fractions import Fraction

import pytest
from duetime_format.lengths import parse_ms, written
from hypothesis import given
from hypothesis import strategies as st

MS_OF = {"w": 604_800_000, "d": 86_400_000, "h": 3_600_000, "m": 60_000, "min": 60_000, "s": 1_000, "ms": 1}


@pytest.mark.parametrize(
    ("text", "length_ms"),
    [
        ("30s", 30_000),
        ("500ms", 500),
        ("5m", 300_000),
        ("5min", 300_000),
        ("5m5ms", 300_005),
        ("1h30m", 5_400_000),
        ("1.5h", 5_400_000),
        ("0.0005s", Fraction(1, 2)),
        ("1d2h3m4s5ms", 93_784_005),
        ("0s", 0),
        ("2w", 1_209_600_000),
        ("1w2d", 777_600_000),
    ],
)
def test_lengths_are_read_exactly(text: str, length_ms: Fraction | int) -> None:
    assert parse_ms(text) == length_ms


@pytest.mark.parametrize(
    "text",
    ["", "5", "s", "-1s", "+1s", "1 s", " 1s", "1s ", "1s1s", "1s1m", "1.s", ".5s", "1e3s", "1mins", "1S", "\u0661s"],
)
def test_all_else_is_none(text: str) -> None:
    assert parse_ms(text) is None


@given(st.dictionaries(st.sampled_from(["w", "d", "h", "m", "s", "ms"]), st.integers(0, 10**12), min_size=1))
def test_parts_are_summed(parts: dict[str, int]) -> None:
    text = "".join(f"{parts[unit]}{unit}" for unit in MS_OF if unit in parts)
    assert parse_ms(text) == sum(count * MS_OF[unit] for unit, count in parts.items())


@given(st.integers(0, 10**15))
def test_a_written_length_is_read_as_the_same(length_ms: int) -> None:
    assert parse_ms(written(length_ms)) == length_ms


def test_a_written_length_has_no_empty_parts() -> None:
    assert [written(one) for one in (0, 1, 5_400_000, 316_224_000_001)] == ["0ms", "1ms", "1h30m", "3660d1ms"]
