"""Lengths of time as people write them.

    "1h30m"  "90s"  "500ms"  "1.5h"  "30min"

Numbers of d, h, m (or min), s and ms, each unit once and the largest first; a number may have decimals.
"""

import re
from fractions import Fraction

# By unit, the largest first.
_UNIT_MS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
_NAMES = {"d": "d", "h": "h", "m": "m(?:in)?(?!s)", "s": "s", "ms": "ms"}
_LENGTH = re.compile("".join(rf"(?:([0-9]{{1,15}}(?:\.[0-9]{{1,9}})?){_NAMES[unit]})?" for unit in _UNIT_MS))


def parse_ms(text: str) -> Fraction | None:
    """Milliseconds, exact; None: it is no length."""
    match = _LENGTH.fullmatch(text)
    if match is None or not text:
        return None
    counts = zip(match.groups(), _UNIT_MS.values(), strict=True)
    return sum((Fraction(count) * unit_ms for count, unit_ms in counts if count), Fraction())
