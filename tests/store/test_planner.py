"""Planned times of many occurrences: those of one at a time, and bounded memory."""

from dataclasses import replace

import numpy as np
import pytest
from duetime_format.columns import parse
from duetime_format.following import readings
from duetime_format.schedules import StoredSchedule
from duetime_store.writing.occurrences import next_of
from duetime_store.writing.planner import PAUSE_MS, SLOW_AT_ONCE, UNPLANNED, OccurrencePlanner
from hypothesis import given
from hypothesis import strategies as st

from tests.format.test_following import restored_of

NOW = 1_800_000_000_000
DAY_MS = 86_400_000
RULES = (
    {"every_ms": 60_000, "start_at_ms": NOW - 5},
    {"every_ms": 1_000, "start_at_ms": NOW + DAY_MS},
    {"every_ms": PAUSE_MS, "start_at_ms": NOW},
    {"cron": "*/7 * * * *", "zone": "Europe/Berlin"},
    {"cron": "30 2 * * *", "zone": "America/New_York", "in_gap": "skip", "in_fold": "both"},
    {"cron": "0 0 30 2 *", "zone": "UTC"},
    {"cron": "bad", "zone": "UTC"},
    {"cron": "0 0 * * *", "zone": "Moon"},
    {"at_ms": (NOW, NOW + 1)},
    {"at_ms": (NOW, NOW + DAY_MS)},
)
SCHEDULES = st.builds(
    lambda own, missed, planned: StoredSchedule("a", missed=missed, planned=planned, **own),
    st.sampled_from(RULES),
    st.sampled_from(["one", "all", "skip"]),
    st.sampled_from([NOW - DAY_MS, NOW - 60_000, NOW]),
)


@given(st.lists(SCHEDULES, min_size=1, max_size=8), st.integers(0, 2 * DAY_MS))
def test_times_equal_those_of_one_at_a_time(given_ones: list[StoredSchedule], late_ms: int) -> None:
    run = parse(b"".join(map(restored_of, given_ones)))
    planned = OccurrencePlanner().plan(run, readings(run), NOW + late_ms).tolist()
    for one, at_ms in zip(given_ones, planned, strict=True):
        following = next_of(one, NOW + late_ms)
        if following is None:
            assert at_ms == 0
        else:
            assert at_ms == (UNPLANNED if following.paused else following.planned)


def test_memory_of_times_is_bounded() -> None:
    asked: list[tuple[bytes, int]] = []
    planner = OccurrencePlanner(2, lambda rule, at_ms: asked.append((rule, at_ms)) or NOW + 1)
    rules = [StoredSchedule("a", cron=f"{minute} * * * *", zone="UTC", planned=NOW) for minute in range(3)]
    run = parse(b"".join(map(restored_of, rules)))
    for _ in range(2):
        assert planner.plan(run, readings(run), NOW).tolist() == [NOW + 1] * 3
    assert len(asked) == 6
    last = parse(b"".join(map(restored_of, rules[1:])))
    planner.plan(last, readings(last), NOW)
    assert len(asked) == 6


@pytest.mark.parametrize("kind", ["rules", "odd"])
def test_few_slow_ones_are_planned_at_once(kind: str) -> None:
    planner = OccurrencePlanner()
    quick = [StoredSchedule("a", every_ms=1_000, planned=NOW)] * 5
    slow = [
        StoredSchedule("a", cron=f"0 {n % 24} {1 + n // 24} 1 *", zone="UTC", planned=NOW)
        for n in range(SLOW_AT_ONCE + 2)
    ]
    if kind == "odd":
        slow = [replace(quick[0], fault="x")] * len(slow)
    run = parse(b"".join(map(restored_of, [*quick, *slow, *quick])))
    assert planner.count_at_once(run, readings(run)) == len(quick) + SLOW_AT_ONCE
    part = parse(b"".join(map(restored_of, [*quick, *slow[:SLOW_AT_ONCE], *quick])))
    assert planner.count_at_once(part, readings(part)) == part.count
    planner = OccurrencePlanner(time_of=lambda *_: NOW + 1)
    planner.plan(run, readings(run), NOW)
    assert (planner.count_at_once(run, readings(run)) == run.count) == (kind == "rules")
    assert np.array_equal(planner.plan(run, readings(run), NOW) > 0, readings(run)[0] < 3)
