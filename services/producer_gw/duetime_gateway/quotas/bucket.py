"""The tokens of one rate at one gateway. Pure.

All gateways together have `rate` tokens a second and `burst` after a rest; this one has a share of both. A request that
has more than the share of the burst, but not more than the burst, is taken from a full bucket, which is in debt then:
so what fits does not depend on how many gateways there are, and no rate is exceeded.
"""

import math

# How long a caller is told to wait at most: shares change in the meantime.
WAIT_MS_MAX = 60_000


class Bucket:
    """Full at first."""

    __slots__ = ("_at_ms", "_tokens", "asked", "burst", "demand", "own_rate", "rate")

    def __init__(self, rate: int, burst: int, now_ms: float) -> None:
        self.rate = rate
        self.burst = burst
        # This gateway's share of the rate: all of it, until others are known.
        self.own_rate = float(rate)
        # What was asked for since the last `roll`, refused or not, and a second before it.
        self.asked = 0
        self.demand = 0.0
        self._tokens = float(burst)
        self._at_ms = now_ms

    @property
    def own_burst(self) -> float:
        return self.burst * self.own_rate / self.rate

    def bound(self, rate: int, burst: int) -> None:
        """Sets other limits; the share stays what it was of the whole."""
        self.own_rate *= rate / self.rate
        self.rate, self.burst = rate, burst
        self._tokens = min(self._tokens, self.own_burst)

    def share(self, own_rate: float, now_ms: float) -> None:
        """Sets this gateway's share of the rate."""
        self._fill(now_ms)
        self.own_rate = own_rate
        self._tokens = min(self._tokens, self.own_burst)

    def wait_ms(self, cost: int, now_ms: float) -> int:
        """How long until so many tokens may be taken; 0: now. Counts them as asked for."""
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
        """Takes tokens that are known only after the fact, or returns them where it is below 0: the bucket may be in
        debt then."""
        self.asked = max(0, self.asked + cost)
        self._tokens -= cost

    def debt_ms(self, now_ms: float) -> int:
        """How long until the bucket is out of debt; 0: it is in none."""
        self._fill(now_ms)
        return min(math.ceil(max(-self._tokens, 0.0) / self.own_rate * 1000), WAIT_MS_MAX)

    def roll(self, passed_s: float) -> None:
        """Tells the demand from what was asked for: it rises at once, and falls by three quarters a roll."""
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
