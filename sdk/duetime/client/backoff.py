"""Retry policies as people write them, and their wire form.

    "levels"                                    RocketMQ's table: 10 s, 30 s, 1 min, 2 min, ... 2 h
    "exponential:1s..10m"                       1 s, then twice the delay before, 10 min at most
    "exponential:1s..10m,factor=3,jitter=0.1"   three times; each delay is shortened by up to a tenth, by chance
    "1s,5s,30s", or a list of lengths           these, then the last one again and again
    "...,max=5"                                 behind any of them, or alone: five deliveries in all

Delays are whole numbers with ms, s, m, h or d. The server reads the same text and has the same limits.
"""

import re
from collections.abc import Sequence
from datetime import timedelta
from functools import lru_cache

from duetime.client.connection import seconds
from duetime.client.errors import InvalidArgument, InvalidMessage
from duetime.v1 import message_pb2

Backoff = str | Sequence[str | float | timedelta]

ATTEMPTS_MAX = 1_000
_DELAY_MS_MAX = 12 * 3_600_000
_DELAYS_MAX = 64
_FACTOR_MAX = 10.0

_DELAY = re.compile(r"([0-9]{1,15})(ms|s|m|h|d)")
_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_FORMS = "'levels', 'exponential:1s..10m' or delays such as '1s,5s,30s'"
_EXPONENTIAL = "exponential:"


def handler_policy(backoff: Backoff | None, max_attempts: int | None) -> message_pb2.RetryPolicy | None:
    """The policy of a handler; None: it has none of its own.

    Raises:
        InvalidArgument: it is none, or breaks a limit.
    """
    try:
        policy = message_pb2.RetryPolicy() if backoff is None else _policy(backoff)
    except ValueError as error:
        raise InvalidArgument.of("backoff", str(error)) from None
    if max_attempts is not None:
        description = ""
        if not 1 <= max_attempts <= ATTEMPTS_MAX:
            description = f"{max_attempts} is not within 1 and {ATTEMPTS_MAX}"
        elif policy.max_attempts not in (0, max_attempts):
            description = f"is {max_attempts}, and max={policy.max_attempts} in the backoff; give one"
        if description:
            raise InvalidArgument.of("max_attempts", description)
        policy.max_attempts = max_attempts
    return policy if policy.ByteSize() else None


@lru_cache(maxsize=1024)
def message_policy(text: str) -> message_pb2.RetryPolicy:
    """The policy of a message, shared by all that have the same text.

    Raises:
        InvalidMessage: it is none, or breaks a limit.
    """
    try:
        return _parse(text)
    except ValueError as error:
        raise InvalidMessage.of("retry", str(error)) from None


def _policy(backoff: Backoff) -> message_pb2.RetryPolicy:
    if isinstance(backoff, str):
        return _parse(backoff)
    policy = message_pb2.RetryPolicy()
    policy.intervals.delays_ms.extend(round(seconds(delay, "backoff") * 1000) for delay in backoff)
    if not policy.intervals.delays_ms:
        raise ValueError(f"has no delay; a backoff is {_FORMS}")
    _check(policy, list(backoff))
    return policy


def _parse(text: str) -> message_pb2.RetryPolicy:
    policy = message_pb2.RetryPolicy()
    parts = [part.strip() for part in text.split(",")]
    options: dict[str, str] = {}
    while parts and "=" in parts[-1]:
        name, value = (side.strip() for side in parts.pop().split("=", 1))
        if name in options:
            raise ValueError(f"{text!r} says {name} twice")
        options[name] = value
    if "max" in options:
        policy.max_attempts = _attempts(options.pop("max"))
    if parts and parts[0].startswith(_EXPONENTIAL):
        initial, dots, most = parts.pop(0).removeprefix(_EXPONENTIAL).partition("..")
        if parts or not dots:
            raise ValueError(f"{text!r} is not 'exponential:FIRST..MOST', such as 'exponential:1s..10m'")
        backoff = policy.exponential
        backoff.initial_ms, backoff.max_ms = _delay_ms(initial, text), _delay_ms(most, text)
        for name in ("factor", "jitter"):
            if name in options:
                setattr(backoff, name, _number(name, options.pop(name)))
    elif parts == ["levels"]:
        policy.levels.SetInParent()
    elif parts:
        policy.intervals.delays_ms.extend(_delay_ms(part, text) for part in parts)
    elif not policy.max_attempts:
        raise ValueError(f"{text!r} is none of {_FORMS}")
    if options:
        raise ValueError(f"{text!r}: option {next(iter(options))!r} does not belong to it")
    _check(policy, text)
    return policy


def _delay_ms(text: str, whole: str) -> int:
    match = _DELAY.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} in {whole!r} is no whole number with ms, s, m, h or d; a backoff is {_FORMS}")
    return min(int(match[1]) * _UNIT_MS[match[2]], 1 << 62)


def _attempts(text: str) -> int:
    if not re.fullmatch("[0-9]{1,9}", text) or not 1 <= int(text) <= ATTEMPTS_MAX:
        raise ValueError(f"max={text} is no whole number from 1 to {ATTEMPTS_MAX}")
    return int(text)


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{name}={text} is no number") from None


def _check(policy: message_pb2.RetryPolicy, given: object) -> None:
    """Raises ValueError for what is beyond the server's limits."""
    if policy.HasField("exponential"):
        backoff = policy.exponential
        if not 1 <= backoff.initial_ms <= backoff.max_ms <= _DELAY_MS_MAX:
            raise ValueError(f"{given!r}: the first delay is above 0, the most not below it and at most 12 h")
        if backoff.factor and not 1 <= backoff.factor <= _FACTOR_MAX:
            raise ValueError(f"{given!r}: factor {backoff.factor:g} is not within 1 and {_FACTOR_MAX:g}")
        if not 0 <= backoff.jitter <= 1:
            raise ValueError(f"{given!r}: jitter {backoff.jitter:g} is not within 0 and 1")
    elif policy.HasField("intervals"):
        delays_ms = policy.intervals.delays_ms
        if not 1 <= len(delays_ms) <= _DELAYS_MAX:
            raise ValueError(f"{given!r} has {len(delays_ms)} delays, not 1 to {_DELAYS_MAX}")
        if max(delays_ms) > _DELAY_MS_MAX:
            raise ValueError(f"{given!r}: a delay is at most 12 h")
