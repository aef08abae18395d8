"""Retry policies in text form, and their wire form.

    "levels"                                    RocketMQ's table: 10 s, 30 s, 1 min, 2 min, ... 2 h
    "exponential:1s..10m"                       1 s, then twice the previous delay, 10 min at most
    "exponential:1s..10m,factor=3,jitter=0.1"   three times; each delay is shortened by up to a random tenth
    "1s,5s,30s", or a list of lengths           these delays; then the last one is repeated
    "...,max=5"                                 after any of them, or alone: at most five deliveries

Delays are lengths in whole milliseconds. The server reads the same text with the same limits.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache

from duetime_format.lengths import Length, whole_ms
from duetime_format.limits import ATTEMPTS_MAX
from duetime_format.policy import faults, fill

from duetime.client.counts import whole
from duetime.client.errors import InvalidArgument, InvalidMessage
from duetime.v1 import message_pb2

Backoff = str | Sequence[Length]


def handler_policy(backoff: Backoff | None, max_attempts: int | None) -> message_pb2.RetryPolicy | None:
    """The policy of a handler; None: the handler has none.

    Raises:
        InvalidArgument: the policy is malformed, or exceeds a limit.
    """
    try:
        policy = message_pb2.RetryPolicy() if backoff is None else _policy(backoff)
    except ValueError as error:
        raise InvalidArgument.of("backoff", str(error)) from None
    if max_attempts is not None:
        count = whole("max_attempts", max_attempts, ATTEMPTS_MAX)
        if policy.max_attempts not in (0, count):
            description = f"is {count}, and max={policy.max_attempts} in the backoff; give one"
            raise InvalidArgument.of("max_attempts", description)
        policy.max_attempts = count
    return policy if policy.ByteSize() else None


def attempts_max(policies: Iterable[message_pb2.RetryPolicy | None]) -> int:
    """The most deliveries that any of the policies allows; 0: one of them has no number of its own."""
    counts = [0 if policy is None else policy.max_attempts for policy in policies]
    return max(counts) if all(counts) else 0


@lru_cache(maxsize=1024)
def message_policy(text: str) -> message_pb2.RetryPolicy:
    """The policy of a message, shared by all that have the same text.

    Raises:
        InvalidMessage: the policy is malformed, or exceeds a limit.
    """
    try:
        return _parse(text)
    except ValueError as error:
        raise InvalidMessage.of("retry", str(error)) from None


def _policy(backoff: Backoff) -> message_pb2.RetryPolicy:
    if isinstance(backoff, str):
        return _parse(backoff)
    policy = message_pb2.RetryPolicy()
    policy.intervals.delays_ms.extend(whole_ms(delay) for delay in backoff)
    if found := faults(policy):
        raise ValueError("; ".join(f"{one.field} {one.description}" for one in found))
    return policy


def _parse(text: str) -> message_pb2.RetryPolicy:
    policy = message_pb2.RetryPolicy()
    fill(policy, text)
    return policy
