"""What of a limit one of several gateways has, by what is asked for at each. Pure.

A tenth is shared out evenly, so that nobody waits for a gateway to learn of its first caller. Of the rest each has what
is asked for there, as far as that goes evenly, and of what nobody asks for an even part. All that gateways have by the
same figures is the limit.
"""

from collections.abc import Sequence

_EVEN = 0.1


def share_of(limit: float, own: float, others: Sequence[float]) -> float:
    """The share of a gateway at which `own` is asked for, beside these others."""
    count = 1 + len(others)
    rest = limit * (1 - _EVEN)
    asked = sorted([min(own, limit), *(min(one, limit) for one in others)])
    total = sum(asked)
    if total <= rest:
        return limit * _EVEN / count + min(own, limit) + (rest - total) / count
    # The most that anybody gets, so that all that is asked for up to it is the rest.
    level = left = rest
    for at, one in enumerate(asked):
        level = left / (count - at)
        if one >= level:
            break
        left -= one
    return limit * _EVEN / count + min(own, level)
