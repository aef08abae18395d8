"""How a delay becomes a lane and a rest."""

import pytest
from duetime_format.levels import DEFAULT_DELAY_LEVELS, DelayLevels
from duetime_retry.delays import Wait, wait_of
from hypothesis import given
from hypothesis import strategies as st

LEVELS = DelayLevels.parse(DEFAULT_DELAY_LEVELS)
NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize(
    ("delay_ms", "expected"),
    [
        (0, Wait(0, 0)),
        (1, Wait(0, NOW_MS + 1)),
        (999, Wait(0, NOW_MS + 999)),
        (1_000, Wait(1, 0)),
        (1_001, Wait(1, NOW_MS + 1_001)),
        (4_999, Wait(1, NOW_MS + 4_999)),
        (10_000, Wait(3, 0)),
        (7_200_000, Wait(18, 0)),
        (43_200_000, Wait(18, NOW_MS + 43_200_000)),
    ],
)
def test_longest_lane_then_the_rest(delay_ms: int, expected: Wait) -> None:
    assert wait_of(delay_ms, NOW_MS, LEVELS) == expected


def test_table_need_not_be_in_order() -> None:
    levels = DelayLevels.parse("1m 1s 2h 5s")
    assert wait_of(60_000, NOW_MS, levels) == Wait(1, 0)
    assert wait_of(59_999, NOW_MS, levels) == Wait(4, NOW_MS + 59_999)


@given(
    st.integers(0, 43_200_000),
    st.integers(0, 30_000),
    st.lists(st.integers(1, 50_000), min_size=1, max_size=20, unique=True),
)
def test_never_early_and_no_later_than_the_way_to_the_log(delay_ms: int, way_ms: int, seconds: list[int]) -> None:
    levels = DelayLevels.parse(" ".join(f"{one}s" for one in seconds))
    wait = wait_of(delay_ms, NOW_MS, levels)
    stored_at_ms = NOW_MS + way_ms
    seen_at_ms = max(stored_at_ms + (levels.delay_ms(wait.level) if wait.level else 0), wait.visible_at_ms)
    assert NOW_MS + delay_ms <= seen_at_ms <= NOW_MS + delay_ms + way_ms
