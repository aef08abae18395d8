"""Lengths of time as written by people and programs: the one parser.

    "1h30m"  "90s"  "500ms"  "1.5h"  "30min"  "2w"          timedelta(minutes=30)

Numbers of w, d, h, m (or min), s and ms, each unit once and the largest first; a number may have decimals. A bare
number is rejected: it does not show whether it is seconds or milliseconds.
"""

import re
from datetime import timedelta
from fractions import Fraction

# Milliseconds by unit, the largest first.
_UNIT_MS = {"w": 604_800_000, "d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
_NAMES = {"w": "w", "d": "d", "h": "h", "m": "m(?:in)?(?!s)", "s": "s", "ms": "ms"}
_LENGTH = re.compile("".join(rf"(?:([0-9]{{1,15}}(?:\.[0-9]{{1,9}})?){_NAMES[unit]})?" for unit in _UNIT_MS))
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")
_MILLISECOND = timedelta(milliseconds=1)

Length = str | timedelta


def parse_ms(text: str) -> Fraction | None:
    """Milliseconds, exact; None: it is not a length."""
    match = _LENGTH.fullmatch(text)
    if match is None or not text:
        return None
    counts = zip(match.groups(), _UNIT_MS.values(), strict=True)
    return sum((Fraction(count) * unit_ms for count, unit_ms in counts if count), Fraction())


def whole_ms(length: Length) -> int:
    """Milliseconds; a timedelta is rounded up, as due times are: `appointment - now` has microseconds.

    Raises:
        ValueError: it is not a length, has no unit, is negative, or is a text with a fraction of a millisecond.
    """
    if isinstance(length, timedelta):
        if length < timedelta(0):
            raise ValueError(f"{length!r} is negative")
        return -(-length // _MILLISECOND)
    if not isinstance(length, str):
        raise ValueError(_unfit(length))
    length_ms = parse_ms(length)
    if length_ms is None:
        raise ValueError(_unfit(length))
    if length_ms.denominator != 1:
        raise ValueError(f"{length!r} is not a whole number of milliseconds")
    return length_ms.numerator


def written(length_ms: int) -> str:
    """A length in the form that `parse_ms` reads, exactly: `1h30m`, `3660d1ms`, `0ms`."""
    parts, rest = [], length_ms
    for unit in ("d", "h", "m", "s", "ms"):
        count, rest = divmod(rest, _UNIT_MS[unit])
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0ms"


def _unfit(length: object) -> str:
    text = str(length)
    if isinstance(length, str | int | float) and not isinstance(length, bool):
        if text.startswith("-"):
            return f"{length!r} is negative"
        if _NUMBER.fullmatch(text):
            return f"{length!r} has no unit: {text} seconds are '{text}s' or timedelta(seconds={text})"
    return f"{length!r} is neither a length such as '1h30m', '90s', '500ms' or '2w', nor a timedelta"
