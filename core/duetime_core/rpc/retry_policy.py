"""Retry policies of the contract: their text (duetime_format.policy), meaning and violations. Pure."""

import math

from duetime.v1.message_pb2 import ExponentialBackoff, RetryPolicy
from duetime_format import limits
from duetime_format import policy as policies
from duetime_format.levels import DelayLevels
from duetime_format.policy import render

from duetime_core.errors import Violation

__all__ = ["LEVELS_BEFORE_FIRST", "RetryPolicy", "backoff_ms", "completed", "parse", "render", "violations"]

# RocketMQ's value: the first retry waits on level 3, each further one on the next.
LEVELS_BEFORE_FIRST = 2


def parse(text: str) -> RetryPolicy:
    """Parses a policy, within all limits.

    Raises:
        ValueError: not a policy, or above a limit; the error has the place.
    """
    policy = RetryPolicy()
    policies.fill(policy, text)
    return policy


def completed(policy: RetryPolicy) -> RetryPolicy:
    """A copy with every field set, including defaults."""
    full = RetryPolicy()
    full.CopyFrom(policy)
    full.max_attempts = policy.max_attempts or limits.DELIVERIES_DEFAULT
    if full.WhichOneof("backoff") is None:
        full.levels.SetInParent()
    elif full.HasField("exponential"):
        full.exponential.factor = policy.exponential.factor or limits.BACKOFF_FACTOR_DEFAULT
        if not policy.exponential.HasField("jitter"):
            full.exponential.jitter = limits.BACKOFF_JITTER_DEFAULT
    return full


def backoff_ms(attempt: int, policy: RetryPolicy, levels: DelayLevels, chance: float) -> int:
    """The delay after delivery `attempt`, from 1. `policy` is complete; `chance` in [0, 1)."""
    kind = policy.WhichOneof("backoff")
    if kind == "exponential":
        return _exponential_ms(attempt, policy.exponential, chance)
    if kind == "intervals":
        delays_ms = policy.intervals.delays_ms
        return delays_ms[min(attempt, len(delays_ms)) - 1]
    return levels.delay_at_most_ms(LEVELS_BEFORE_FIRST + attempt)


def _exponential_ms(attempt: int, backoff: ExponentialBackoff, chance: float) -> int:
    # Compare logarithms first: the power itself may exceed a float.
    growth = (attempt - 1) * math.log(backoff.factor)
    delay_ms = float(backoff.max_ms)
    if growth < math.log(backoff.max_ms / backoff.initial_ms):
        delay_ms = min(backoff.initial_ms * backoff.factor ** (attempt - 1), delay_ms)
    return int(delay_ms * (1 - backoff.jitter * chance))


def violations(field: str, policy: RetryPolicy) -> list[Violation]:
    """All violations of a policy; `field` is its place, such as `group.retry`."""
    return policies.faults(policy, f"{field}." if field else "")
