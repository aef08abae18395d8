"""Redelivery times and attempts of a failed message: a retry policy as text, and the limits of its fields. Pure.

Parts are separated by commas; the first one is the kind of backoff:

    levels                                    after failure n, the delay of level 2 + n: RocketMQ's table
    exponential:1s..10m                       1 s, then twice the previous delay, 10 min at most
    exponential:1s..10m,factor=3,jitter=0.1   three times; each delay is randomly shortened by up to a tenth
    1s,5s,30s                                 these, then the last one again and again
    ...,max=5                                 after any of them: five deliveries in total
    max=5                                     alone: levels

Delays are lengths (`lengths.py`) in whole milliseconds. A policy is text in a message's property DT_RETRY, in a group's
row of the metadata database, and in user input. Omitted parts have their defaults.
"""

from typing import Any

from duetime_format import limits
from duetime_format.errors import Violation, within
from duetime_format.lengths import parse_ms

_UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000}
_FORMS = "levels, exponential:1s..10m or delays such as 1s,5s,30s"
_EXPONENTIAL = "exponential:"
_EXPONENTIAL_OPTIONS = ("factor", "jitter")


# A message `duetime.v1.RetryPolicy`, or an object with its fields: this package imports no contract.
Policy = Any


def fill(policy: Policy, text: str) -> None:
    """Parses the text into an empty policy, which is then within all limits.

    Raises:
        ValueError: the text is not a policy, or breaks a limit; the error has the place.
    """
    parts = [part.strip() for part in text.split(",")]
    options: dict[str, str] = {}
    while parts and "=" in parts[-1]:
        name, _, value = parts.pop().partition("=")
        name = name.strip()
        if name in options:
            raise ValueError(f"retry policy {text!r} has {name} twice")
        options[name] = value.strip()
    if "max" in options:
        policy.max_attempts = _whole("max", options.pop("max"))
        if not policy.max_attempts:
            raise ValueError(f"retry policy {text!r}: max=0 is not a number of deliveries")
    if parts and parts[0].startswith(_EXPONENTIAL):
        _parse_exponential(policy.exponential, parts.pop(0).removeprefix(_EXPONENTIAL), options)
    elif parts == ["levels"]:
        parts.clear()
        policy.levels.SetInParent()
    elif parts:
        policy.intervals.delays_ms.extend(_parse_delay(part, text) for part in parts)
        parts.clear()
    elif not policy.max_attempts:
        raise ValueError(f"retry policy {text!r} is not one of {_FORMS}")
    if parts:
        raise ValueError(f"retry policy {text!r}: {parts[0]!r} is not allowed after {_EXPONENTIAL}FIRST..MOST")
    if options:
        raise ValueError(f"retry policy {text!r}: option {next(iter(options))!r} does not belong to it")
    found = faults(policy)
    if found:
        raise ValueError(f"retry policy {text!r}: " + "; ".join(f"{one.field} {one.description}" for one in found))


def _parse_exponential(backoff: Any, span: str, options: dict[str, str]) -> None:
    """Takes its options out of `options`."""
    initial, dots, most = span.partition("..")
    if not dots:
        raise ValueError(f"exponential backoff {span!r} is not FIRST..MOST, such as 1s..10m")
    backoff.initial_ms, backoff.max_ms = _parse_delay(initial, span), _parse_delay(most, span)
    for name in _EXPONENTIAL_OPTIONS:
        if name in options:
            setattr(backoff, name, _number(name, options.pop(name)))


def _parse_delay(text: str, whole: str) -> int:
    delay_ms = parse_ms(text)
    if delay_ms is None or delay_ms.denominator != 1:
        where = f" in {whole!r}" if whole != text else ""
        raise ValueError(f"{text!r}{where} is not one of {_FORMS}, in whole milliseconds")
    return min(delay_ms.numerator, (1 << 63) - 1)


def _whole(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 9:
        raise ValueError(f"{name}={text} is not a whole number up to {limits.ATTEMPTS_MAX}")
    return int(text)


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise ValueError(f"{name}={text} is not a number") from error


def render(policy: Policy) -> str:
    """The text from which `fill` makes an equal policy; fields with their defaults are left out."""
    kind = policy.WhichOneof("backoff")
    if kind == "exponential":
        backoff = policy.exponential
        parts = [f"{_EXPONENTIAL}{_delay_text(backoff.initial_ms)}..{_delay_text(backoff.max_ms)}"]
        if backoff.factor not in (0, limits.BACKOFF_FACTOR_DEFAULT):
            parts.append(f"factor={_number_text(backoff.factor)}")
        if backoff.HasField("jitter") and backoff.jitter != limits.BACKOFF_JITTER_DEFAULT:
            parts.append(f"jitter={_number_text(backoff.jitter)}")
    elif kind == "intervals":
        parts = [_delay_text(delay_ms) for delay_ms in policy.intervals.delays_ms]
    else:
        parts = ["levels"]
    return ",".join([*parts, *([f"max={policy.max_attempts}"] if policy.max_attempts else [])])


def _delay_text(delay_ms: int) -> str:
    """The delay in the largest unit with a whole number, up to hours."""
    for unit in ("h", "m", "s"):
        if delay_ms and delay_ms % _UNIT_MS[unit] == 0:
            return f"{delay_ms // _UNIT_MS[unit]}{unit}"
    return f"{delay_ms}ms" if delay_ms else "0s"


def _number_text(number: float) -> str:
    return repr(number).removesuffix(".0")


def faults(policy: Policy, prefix: str = "") -> list[Violation]:
    """All faults of a policy. `prefix` precedes the fields."""
    found = []
    if policy.max_attempts:
        found += within(f"{prefix}max_attempts", policy.max_attempts, 1, limits.ATTEMPTS_MAX)
    kind = policy.WhichOneof("backoff")
    if kind == "exponential":
        found += _exponential_faults(f"{prefix}exponential.", policy.exponential)
    elif kind == "intervals":
        delays = policy.intervals.delays_ms
        if not 1 <= len(delays) <= limits.BACKOFF_INTERVALS_MAX:
            text = f"has {len(delays)} delays, not 1 to {limits.BACKOFF_INTERVALS_MAX}"
            found.append(Violation(f"{prefix}intervals", text))
        for index, delay_ms in enumerate(delays):
            field = f"{prefix}intervals.delays_ms[{index}]"
            found += within(field, delay_ms, 0, limits.BACKOFF_MS_MAX, unit=" ms", note=" (12 h)")
    return found


def _exponential_faults(prefix: str, backoff: Any) -> list[Violation]:
    most_ms = limits.BACKOFF_MS_MAX
    found = within(f"{prefix}initial_ms", backoff.initial_ms, 1, most_ms, unit=" ms", note=" (12 h)")
    if not backoff.initial_ms <= backoff.max_ms <= most_ms:
        text = f"{backoff.max_ms} ms is not within the first delay, {backoff.initial_ms}, and {most_ms} (12 h)"
        found.append(Violation(f"{prefix}max_ms", text))
    if backoff.factor != 0:
        found += within(f"{prefix}factor", backoff.factor, 1, limits.BACKOFF_FACTOR_MAX)
    return found + within(f"{prefix}jitter", backoff.jitter, 0, 1)
