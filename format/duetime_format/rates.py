"""Rates of deliveries to a group as text, and the limits of their fields. Pure.

50/s              50 messages a second; after a rest as many at once as in one second
3000/m,burst=1    3,000 a minute (also h, d), one at a time
"""

import re
from typing import Any

from duetime_format.errors import Violation, within

RATE_COUNT_MAX = 1_000_000
_UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_RATE = re.compile(r"([0-9]{1,9})/([smhd])(?:,burst=([0-9]{1,9}))?")

# A message `duetime.v1.DeliveryRate`, or an object with its fields: this package imports no contract.
DeliveryRate = Any
# `duetime.v1.GroupLimit`, in the same way.
GroupLimit = Any


def fill(rate: DeliveryRate, text: str) -> None:
    """Parses the text into an empty rate, which is then within all limits.

    Raises:
        ValueError: the text is not a rate, or breaks a limit.
    """
    match = _RATE.fullmatch(text.replace(" ", ""))
    if match is None:
        raise ValueError(f"{text!r} is not a rate such as 50/s, 3000/m or 100/h,burst=10 (units s, m, h, d)")
    rate.count, rate.per_ms = int(match[1]), _UNIT_MS[match[2]]
    if match[3] is not None:
        rate.burst = int(match[3])
        if not rate.burst:
            raise ValueError(f"{text!r}: burst=0 lets no message through; the least is 1")
    found = faults(rate)
    if found:
        raise ValueError(f"{text!r}: " + "; ".join(f"{one.field} {one.description}" for one in found))


def written(rate: DeliveryRate) -> str:
    """The text that `fill` reads, if the rate has no faults."""
    unit = next((name for name, ms in _UNIT_MS.items() if ms == rate.per_ms), f"{rate.per_ms}ms")
    return f"{rate.count}/{unit}" + (f",burst={rate.burst}" if rate.burst else "")


def rate_of(limit: GroupLimit) -> str:
    """The rate of a limit as text; empty: none."""
    return written(limit.rate) if limit.HasField("rate") else ""


def limit_text(limit: GroupLimit) -> str:
    """A limit of a group, such as `50/s, 1 per key`; empty: there is none."""
    return ", ".join(filter(None, [rate_of(limit), f"{limit.per_key} per key" if limit.per_key else ""]))


def faults(rate: DeliveryRate, prefix: str = "") -> list[Violation]:
    """All violations of a rate; `prefix` precedes the fields."""
    found = within(f"{prefix}count", rate.count, 1, RATE_COUNT_MAX)
    if rate.per_ms not in _UNIT_MS.values():
        found.append(Violation(f"{prefix}per_ms", f"{rate.per_ms} is not 1000, 60000, 3600000 or 86400000"))
    return found + within(f"{prefix}burst", rate.burst, 0, RATE_COUNT_MAX)


def burst_of(rate: DeliveryRate) -> int:
    """The messages at once after a rest: by default those of one second."""
    return int(rate.burst or max(rate.count * 1_000 // rate.per_ms, 1))
