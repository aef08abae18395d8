"""Splits a limit among gateways by their demand. Pure.

A tenth is split evenly, so that a gateway's first callers need not wait for the next exchange. The rest goes to the
gateways by demand, evenly where demand exceeds it; unclaimed parts are split evenly. Shares computed from the same
figures add up to the limit.
"""

from collections.abc import Sequence

_EVEN = 0.1


def share_of(limit: float, own: float, others: Sequence[float]) -> float:
    """The share of a gateway with demand `own`, beside these others."""
    count = 1 + len(others)
    rest = limit * (1 - _EVEN)
    asked = sorted([min(own, limit), *(min(one, limit) for one in others)])
    total = sum(asked)
    if total <= rest:
        return limit * _EVEN / count + min(own, limit) + (rest - total) / count
    # The cap on each demand at which the capped demands add up to the rest.
    level = left = rest
    for at, one in enumerate(asked):
        level = left / (count - at)
        if one >= level:
            break
        left -= one
    return limit * _EVEN / count + min(own, level)
