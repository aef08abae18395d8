"""The delay level table: accepted values, rejected values, and texts."""

import pytest
from duetime_format.levels import DEFAULT_DELAY_LEVELS, LEVEL_COUNT_MAX, DelayLevels, parse_delay_ms

MINUTE, HOUR = 60_000, 3_600_000


def test_default_levels_are_rocketmqs() -> None:
    levels = DelayLevels.parse(DEFAULT_DELAY_LEVELS)
    minutes = [MINUTE * count for count in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30)]
    assert list(levels.delays_ms) == [1_000, 5_000, 10_000, 30_000, *minutes, HOUR, 2 * HOUR]
    assert levels.highest == 18
    assert str(levels) == DEFAULT_DELAY_LEVELS


def test_level_and_delay_name_each_other() -> None:
    levels = DelayLevels.parse("2s 1s 3m")
    assert [levels.delay_ms(level) for level in (1, 2, 3)] == [2_000, 1_000, 3 * MINUTE]
    assert [levels.level_of(delay) for delay in (2_000, 1_000, 3 * MINUTE)] == [1, 2, 3]
    assert levels.level_of(1_001) is None
    assert levels.level_of(0) is None


@pytest.mark.parametrize(("text", "ms"), [("1s", 1_000), ("30m", 30 * MINUTE), ("2h", 2 * HOUR), ("1d", 24 * HOUR)])
def test_delay_is_a_number_and_its_unit(text: str, ms: int) -> None:
    assert parse_delay_ms(text) == ms


@pytest.mark.parametrize("text", ["", "s", "5", "0s", "-1s", "1.5s", "1 s", "1S", "1ms", "\uff11s", "²s", "1w"])
def test_malformed_delay_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a whole number above 0 followed by s, m, h or d") as caught:
        parse_delay_ms(text)
    assert repr(text) in str(caught.value)


def test_delay_past_ten_years_is_refused() -> None:
    assert parse_delay_ms("3660d") == 3660 * 24 * HOUR
    with pytest.raises(ValueError, match="'3661d' is longer than ten years"):
        parse_delay_ms("3661d")


def test_delay_of_thousands_of_digits_is_refused() -> None:
    with pytest.raises(ValueError, match="longer than ten years"):
        parse_delay_ms("9" * 10_000 + "s")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "0 delay levels; the table has 1 to 256"),
        (" ".join(f"{n + 1}s" for n in range(LEVEL_COUNT_MAX + 1)), "257 delay levels; the table has 1 to 256"),
        ("1s 60s 1m", "delay levels '1s 60s 1m' hold one delay twice"),
        ("1s nonsense", "delay 'nonsense' is not a whole number"),
    ],
)
def test_faulty_table_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence.replace(";", ".")):
        DelayLevels.parse(text)
