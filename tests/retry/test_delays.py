"""How a delay becomes a level's lane or a due time."""

import pytest
from duetime_format.levels import DEFAULT_DELAY_LEVELS, DelayLevels
from duetime_retry.delays import Wait, wait_of

LEVELS = DelayLevels.parse(DEFAULT_DELAY_LEVELS)
NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize(
    ("delay_ms", "expected"),
    [
        (0, Wait()),
        (1, Wait(0, NOW_MS + 1)),
        (999, Wait(0, NOW_MS + 999)),
        (1_000, Wait(1)),
        (1_001, Wait(0, NOW_MS + 1_001)),
        (10_000, Wait(3)),
        (7_200_000, Wait(18)),
        (43_200_000, Wait(0, NOW_MS + 43_200_000)),
    ],
)
def test_a_level_or_the_time_itself(delay_ms: int, expected: Wait) -> None:
    assert wait_of(delay_ms, NOW_MS, LEVELS) == expected


def test_table_need_not_be_in_order() -> None:
    levels = DelayLevels.parse("1m 1s 2h 5s")
    assert wait_of(60_000, NOW_MS, levels) == Wait(1)
    assert wait_of(59_999, NOW_MS, levels) == Wait(0, NOW_MS + 59_999)
