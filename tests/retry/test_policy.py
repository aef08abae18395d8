"""The decision about a failed message."""

import pytest
from duetime.v1.message_pb2 import RetryPolicy
from duetime_core.rpc import retry_policy
from duetime_core.rpc.retry_policy import backoff_ms
from duetime_format.levels import DEFAULT_DELAY_LEVELS, DelayLevels
from duetime_retry.policy import DeadLetterDecision, Decision, Redeliver, decide, decide_sent_back
from hypothesis import given
from hypothesis import strategies as st

LEVELS = DelayLevels.parse(DEFAULT_DELAY_LEVELS)
REJECTED, EXHAUSTED = DeadLetterDecision("REJECTED"), DeadLetterDecision("ATTEMPTS_EXHAUSTED")


def policy(text: str) -> RetryPolicy:
    return retry_policy.completed(retry_policy.parse(text))


def test_levels_are_rocketmqs_timetable() -> None:
    decisions = [decide(attempt, policy("levels"), LEVELS, 0.5) for attempt in range(1, 18)]
    names = "10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h".split()
    assert decisions == [*(Redeliver(LEVELS.delay_ms(LEVELS.names.index(name) + 1)) for name in names), EXHAUSTED]


# attempt, policy, chance, requested delay, reject: the decision.
TABLE: list[tuple[int, str, float, int | None, bool, Decision]] = [
    (1, "levels,max=1", 0, None, False, EXHAUSTED),
    (2, "levels,max=2", 0, None, False, EXHAUSTED),
    (1, "levels,max=2", 0, None, False, Redeliver(10_000)),
    (500, "levels,max=1000", 0, None, False, Redeliver(7_200_000)),
    (1_000, "levels,max=1000", 0, None, False, EXHAUSTED),
    (1, "exponential:1s..10m,jitter=0", 0, None, False, Redeliver(1_000)),
    (2, "exponential:1s..10m,jitter=0", 0, None, False, Redeliver(2_000)),
    (10, "exponential:1s..10m,jitter=0", 0, None, False, Redeliver(512_000)),
    (11, "exponential:1s..10m,jitter=0", 0, None, False, Redeliver(600_000)),
    (999, "exponential:1s..10m,jitter=0,factor=10,max=1000", 0, None, False, Redeliver(600_000)),
    (3, "exponential:1s..1m,jitter=0,factor=1.5", 0, None, False, Redeliver(2_250)),
    (9, "exponential:5s..5s,jitter=0,factor=1", 0, None, False, Redeliver(5_000)),
    (1, "exponential:1s..10m", 0, None, False, Redeliver(1_000)),
    (1, "exponential:1s..10m", 0.5, None, False, Redeliver(900)),
    (1, "exponential:1s..10m,jitter=1", 0.75, None, False, Redeliver(250)),
    (1, "1s,5s,30s", 0, None, False, Redeliver(1_000)),
    (3, "1s,5s,30s", 0, None, False, Redeliver(30_000)),
    (16, "1s,5s,30s", 0, None, False, Redeliver(30_000)),
    (17, "1s,5s,30s", 0, None, False, EXHAUSTED),
    (1, "0s", 0, None, False, Redeliver(0)),
    # A delay that is asked for goes before the policy's, not before its end.
    (1, "levels", 0, 0, False, Redeliver(0)),
    (1, "1s", 0, 43_200_000, False, Redeliver(43_200_000)),
    (17, "levels", 0, 5_000, False, EXHAUSTED),
    (1, "levels", 0, None, True, REJECTED),
    (1, "levels", 0, 5_000, True, REJECTED),
    (17, "levels", 0, None, True, REJECTED),
]


@pytest.mark.parametrize(("attempt", "text", "chance", "delay_ms", "reject", "expected"), TABLE)
def test_decision(
    attempt: int, text: str, chance: float, delay_ms: int | None, reject: bool, expected: Decision
) -> None:
    assert decide(attempt, policy(text), LEVELS, chance, delay_ms=delay_ms, reject=reject) == expected


def test_short_level_table_bounds_the_backoff() -> None:
    assert decide(1, policy("levels"), DelayLevels.parse("7s"), 0) == Redeliver(7_000)


@st.composite
def exponentials(draw: st.DrawFn) -> RetryPolicy:
    found = RetryPolicy(max_attempts=1_000)
    found.exponential.initial_ms = draw(st.integers(1, 43_200_000))
    found.exponential.max_ms = draw(st.integers(found.exponential.initial_ms, 43_200_000))
    found.exponential.factor = draw(st.floats(1, 10))
    found.exponential.jitter = draw(st.floats(0, 1))
    return found


@given(exponentials(), st.integers(1, 999), st.floats(0, 1, exclude_max=True))
def test_backoff_is_within_its_spread_and_its_cap(found: RetryPolicy, attempt: int, chance: float) -> None:
    plain = backoff_ms(attempt, found, LEVELS, 0)
    delay_ms = backoff_ms(attempt, found, LEVELS, chance)
    assert found.exponential.initial_ms <= plain <= found.exponential.max_ms
    assert max(plain * (1 - found.exponential.jitter) - 1, 0) <= delay_ms <= plain


@given(exponentials(), st.integers(1, 998))
def test_backoff_without_chance_never_falls(found: RetryPolicy, attempt: int) -> None:
    assert backoff_ms(attempt, found, LEVELS, 0) <= backoff_ms(attempt + 1, found, LEVELS, 0)


@pytest.mark.parametrize(
    ("attempts", "level", "attempts_max", "expected"),
    [
        (0, None, None, Redeliver(10_000)),
        (0, 0, None, Redeliver(10_000)),
        (1, None, None, Redeliver(30_000)),
        (15, None, None, Redeliver(7_200_000)),
        (0, 1, None, Redeliver(1_000)),
        (5, 18, None, Redeliver(7_200_000)),
        (0, 19, None, Redeliver(7_200_000)),
        (0, 2**31 - 1, None, Redeliver(7_200_000)),
        (20, None, 100, Redeliver(7_200_000)),
        (16, None, None, EXHAUSTED),
        (17, None, None, EXHAUSTED),
        (0, None, 0, EXHAUSTED),
        (2, None, 2, EXHAUSTED),
        (1, None, 2, Redeliver(30_000)),
        (0, -1, None, REJECTED),
        (16, 5, None, EXHAUSTED),
        (16, -1, None, EXHAUSTED),
    ],
)
def test_send_back(attempts: int, level: int | None, attempts_max: int | None, expected: Decision) -> None:
    assert decide_sent_back(attempts, level, attempts_max, LEVELS) == expected


def test_send_back_within_a_short_level_table() -> None:
    assert decide_sent_back(0, None, None, DelayLevels.parse("1s 5s")) == Redeliver(5_000)
