"""Retry policies as text: accepted forms, error texts, and lossless round trips."""

import math

import pytest
from duetime.v1.message_pb2 import ExponentialBackoff, IntervalBackoff, LevelBackoff, RetryPolicy
from duetime_core.rpc import retry_policy
from duetime_format import limits
from hypothesis import given
from hypothesis import strategies as st

HOUR = 3_600_000
LEVELS = LevelBackoff()


def exponential(initial_ms: int, max_ms: int, **others: float) -> ExponentialBackoff:
    return ExponentialBackoff(initial_ms=initial_ms, max_ms=max_ms, **others)


def intervals(*delays_ms: int) -> IntervalBackoff:
    return IntervalBackoff(delays_ms=delays_ms)


UNDERSTOOD = [
    ("levels", RetryPolicy(levels=LEVELS)),
    ("max=5", RetryPolicy(max_attempts=5)),
    ("levels,max=1000", RetryPolicy(levels=LEVELS, max_attempts=1_000)),
    ("exponential:1s..10m", RetryPolicy(exponential=exponential(1_000, 600_000))),
    ("exponential:250ms..12h,max=3", RetryPolicy(exponential=exponential(250, 12 * HOUR), max_attempts=3)),
    (
        " exponential:1s..10m , factor=3, jitter=0.1 ",
        RetryPolicy(exponential=exponential(1_000, 600_000, factor=3, jitter=0.1)),
    ),
    ("exponential:1s..1s,jitter=0", RetryPolicy(exponential=exponential(1_000, 1_000, jitter=0))),
    ("1s,5s,30s", RetryPolicy(intervals=intervals(1_000, 5_000, 30_000))),
    ("0s, 90s,max=2", RetryPolicy(intervals=intervals(0, 90_000), max_attempts=2)),
    ("1m30s,1.5h", RetryPolicy(intervals=intervals(90_000, 5_400_000))),
]


@pytest.mark.parametrize(("text", "policy"), UNDERSTOOD)
def test_text_is_understood(text: str, policy: RetryPolicy) -> None:
    assert retry_policy.parse(text) == policy


REFUSED = [
    ("", "'' is not one of levels, exponential"),
    ("later", "'later' is not one of levels"),
    ("1s,soon", "'soon' in '1s,soon' is not one of"),
    ("1s,,5s", "'' in '1s,,5s'"),
    ("-1s", "'-1s' is not one of"),
    ("1.0005s", "'1.0005s' is not one of"),
    ("levels,1s", "'levels' in 'levels,1s'"),
    ("max=5,levels", "'max=5' in 'max=5,levels'"),
    ("levels,max=0", "max=0 is not a number of deliveries"),
    ("levels,max=-1", "max=-1 is not a whole number"),
    ("levels,max=1001", "max_attempts 1001 is not within 1 and 1000"),
    ("levels,max=5,max=6", "has max twice"),
    ("levels,factor=2", "option 'factor' does not belong to it"),
    ("exponential:1s", "'1s' is not FIRST..MOST"),
    ("exponential:1s..10m,5s", "'5s' is not allowed after"),
    ("exponential:1s..10m,pace=2", "option 'pace' does not belong"),
    ("exponential:1s..10m,factor=fast", "factor=fast is not a number"),
    ("exponential:1s..10m,factor=11", "exponential.factor 11 is not within 1 and 10"),
    ("exponential:1s..10m,factor=nan", "exponential.factor nan is not within"),
    ("exponential:1s..10m,jitter=1.1", "exponential.jitter 1.1 is not within 0 and 1"),
    ("exponential:10m..1s", "exponential.max_ms 1000 ms is not within the first delay, 600000, and"),
    ("exponential:0s..1s", "exponential.initial_ms 0 ms is not within 1 and"),
    ("13h", r"intervals.delays_ms\[0\] 46800000 ms is not within 0 and 43200000 \(12 h\)"),
    ("999999999999999d", "is not within 0 and"),
    (",".join(["1s"] * 65), "intervals has 65 delays, not 1 to 64"),
]


@pytest.mark.parametrize(("text", "why"), REFUSED)
def test_refusal_has_the_position(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        retry_policy.parse(text)


delays = st.integers(0, limits.BACKOFF_MS_MAX)
policies = st.builds(
    RetryPolicy,
    max_attempts=st.integers(0, limits.ATTEMPTS_MAX),
    levels=st.sampled_from([None, LEVELS]),
) | st.builds(
    lambda most, backoff: RetryPolicy(max_attempts=most, exponential=backoff),
    st.integers(0, limits.ATTEMPTS_MAX),
    st.builds(
        lambda pair, factor, jitter: exponential(min(pair), max(pair), factor=factor, jitter=jitter),
        st.tuples(st.integers(1, limits.BACKOFF_MS_MAX), st.integers(1, limits.BACKOFF_MS_MAX)),
        st.just(0.0) | st.floats(1, 10),
        st.floats(0, 1) | st.none(),
    ),
)
listed = st.builds(
    lambda most, delays_ms: RetryPolicy(max_attempts=most, intervals=intervals(*delays_ms)),
    st.integers(0, limits.ATTEMPTS_MAX),
    st.lists(delays, min_size=1, max_size=64),
)


@given(policies | listed)
def test_text_has_all_of_a_policy(policy: RetryPolicy) -> None:
    assert not retry_policy.violations("", policy)
    read = retry_policy.parse(retry_policy.render(policy))
    assert retry_policy.completed(read) == retry_policy.completed(policy)


def test_unset_fields_have_rocketmqs_defaults() -> None:
    full = retry_policy.completed(RetryPolicy())
    assert full == RetryPolicy(max_attempts=17, levels=LEVELS)
    assert retry_policy.render(RetryPolicy()) == "levels"
    full = retry_policy.completed(RetryPolicy(exponential=exponential(1, 2)))
    assert (full.exponential.factor, full.exponential.jitter) == (2.0, 0.2)


def test_all_that_is_wrong_is_named_with_its_place() -> None:
    backoff = exponential(0, 99 * HOUR, factor=math.inf, jitter=-1)
    found = retry_policy.violations("group.retry", RetryPolicy(max_attempts=-1, exponential=backoff))
    assert [one.field for one in found] == [
        "group.retry.max_attempts",
        "group.retry.exponential.initial_ms",
        "group.retry.exponential.max_ms",
        "group.retry.exponential.factor",
        "group.retry.exponential.jitter",
    ]
    found = retry_policy.violations("", RetryPolicy(intervals=IntervalBackoff()))
    assert [(one.field, one.description) for one in found] == [("intervals", "has 0 delays, not 1 to 64")]
