"""The token bucket of one rate at one gateway. Pure.

All gateways together have `rate` tokens a second and, after idle time, `burst`; each has a share of both. A request
above the share of the burst, but within the burst, is taken from a full bucket, which is then in debt. So the largest
request does not depend on the number of gateways, and no rate is exceeded.
"""

import math

# Longest wait returned to a caller: shares change in the meantime.
WAIT_MS_MAX = 60_000


class TokenBucket:
    """A token bucket, full at first."""

    __slots__ = ("_at_ms", "_tokens", "asked", "burst", "demand", "own_rate", "rate")

    def __init__(self, rate: int, burst: int, now_ms: float) -> None:
        self.rate = rate
        self.burst = burst
        # This gateway's share of the rate: all of it, until others are known.
        self.own_rate = float(rate)
        # Tokens requested since the last `roll`, rejected or not; demand per second before it.
        self.asked = 0
        self.demand = 0.0
        self._tokens = float(burst)
        self._at_ms = now_ms

    @property
    def own_burst(self) -> float:
        return self.burst * self.own_rate / self.rate

    def bound(self, rate: int, burst: int) -> None:
        """Sets new limits; the share keeps its proportion."""
        self.own_rate *= rate / self.rate
        self.rate, self.burst = rate, burst
        self._tokens = min(self._tokens, self.own_burst)

    def share(self, own_rate: float, now_ms: float) -> None:
        """Sets this gateway's share of the rate."""
        self._fill(now_ms)
        self.own_rate = own_rate
        self._tokens = min(self._tokens, self.own_burst)

    def wait_ms(self, cost: int, now_ms: float) -> int:
        """Time until `cost` tokens may be taken; 0: now. Counts them as requested."""
        self.asked += cost
        self._fill(now_ms)
        missing = min(cost, self.own_burst) - self._tokens
        if missing <= 0:
            return 0
        return min(math.ceil(missing / self.own_rate * 1000), WAIT_MS_MAX) or 1

    def take(self, cost: int) -> None:
        """Takes tokens, after `wait_ms` was 0."""
        self._tokens -= cost

    def settle(self, cost: int) -> None:
        """Takes tokens known only afterwards, or returns them if `cost` is below 0. The bucket may go into debt."""
        self.asked = max(0, self.asked + cost)
        self._tokens -= cost

    def debt_ms(self, now_ms: float) -> int:
        """Time until the bucket is out of debt; 0: no debt."""
        self._fill(now_ms)
        return min(math.ceil(max(-self._tokens, 0.0) / self.own_rate * 1000), WAIT_MS_MAX)

    def roll(self, passed_s: float) -> None:
        """Updates the demand from the requested tokens: it rises at once, and falls by three quarters per roll."""
        rate, self.asked = self.asked / passed_s, 0
        self.demand = max(rate, (self.demand + 3 * rate) / 4)
        if self.demand < 0.01:
            self.demand = 0.0

    def is_full(self, now_ms: float) -> bool:
        self._fill(now_ms)
        return self._tokens >= self.own_burst

    def _fill(self, now_ms: float) -> None:
        self._tokens = min(self.own_burst, self._tokens + self.own_rate * (now_ms - self._at_ms) / 1000)
        self._at_ms = now_ms
