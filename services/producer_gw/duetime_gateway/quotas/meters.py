"""The use of one user or topic at this gateway, checked against its quota. Pure."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from duetime_core.errors import DueTimeError, InvalidArgument, QuotaExceeded, Violation

from duetime_gateway.quotas.bucket import TokenBucket
from duetime_gateway.quotas.limits import Limits, QuotaOwner
from duetime_gateway.quotas.shares import share_of

# Counts of connections, streams and pending messages are refreshed at this interval; earlier retries are useless.
AGAIN_MS = 1_000
# Assumed size of a body that is stored again, until the first sizes are known.
COPIED_BYTES = 16 * 1024
# Reasons of quota rejections.
REFUSALS = frozenset({QuotaExceeded.reason, "QUOTA_BURST_EXCEEDED"})


class Cost(NamedTuple):
    """The cost of one request to one quota. `pending_*`: the part that is delayed."""

    messages: int
    size: int
    pending_count: int = 0
    pending_bytes: int = 0


class Use(NamedTuple):
    """The use at one gateway, as reported to the others."""

    messages_per_s: float = 0.0
    bytes_per_s: float = 0.0
    connections: int = 0
    streams: int = 0
    pending_per_s: float = 0.0


class PendingMeter:
    """Pending messages of a topic: the last count, and those accepted since."""

    def __init__(self) -> None:
        # Counts by shard. None: not counted yet, and nothing is rejected.
        self.counted: dict[int, int] | None = None
        # This gateway's share of the capacity left at the count.
        self.part = 1.0
        self.since = 0
        self.demand = 0.0
        # Number and size of accepted bodies, older ones weighing less: counts times their mean estimate bytes.
        self._bodies = 0.0
        self._bytes = 0.0

    @property
    def count(self) -> int:
        return sum(self.counted.values()) if self.counted else 0

    @property
    def mean_bytes(self) -> float:
        return self._bytes / self._bodies if self._bodies else 0.0

    def add(self, cost: Cost) -> None:
        self.since += cost.pending_count
        self._bodies += cost.pending_count
        self._bytes += cost.pending_bytes

    def note(self, counted: dict[int, int], before: int) -> None:
        """Takes a new count; it includes `before` of the messages accepted since the last one."""
        self.counted = counted
        self.demand = float(before)
        self.since -= before
        if self._bodies > 1_000_000:
            self._bodies, self._bytes = self._bodies / 2, self._bytes / 2

    def fits(self, limit: int, cost: int, unit: float) -> bool:
        """Whether `cost` more is within the limit; `unit`: 1 for messages, the mean size for bytes."""
        return cost <= (limit - self.count * unit) * self.part - self.since * unit


class Meter:
    """The meter of one user or topic. `refused`: rejections by limit, shared by all users of one quota."""

    def __init__(self, of: QuotaOwner, limits: Limits, now_ms: float, refused: Counter[str]) -> None:
        self.of = of
        self.limits = limits
        self.messages: TokenBucket | None = None
        self.bytes: TokenBucket | None = None
        # Peers of a user with limited connections.
        self.peers: set[str] = set()
        self.streams = 0
        # Use at other gateways.
        self.other_connections = self.other_streams = 0
        self.pending: PendingMeter | None = None
        # Mean size of bodies stored again, newer ones weighing more.
        self.copied_bytes = float(COPIED_BYTES)
        self.bound(limits, now_ms, refused)

    def bound(self, limits: Limits, now_ms: float, refused: Counter[str]) -> None:
        """Sets the limits, regardless of the current use."""
        self.limits = limits
        self._refused = refused
        self.messages = _bound(self.messages, limits.messages_per_s, limits.messages_at_once, now_ms)
        self.bytes = _bound(self.bytes, limits.bytes_per_s, limits.bytes_at_once, now_ms)
        if not limits.connections:
            self.peers.clear()
        if not (limits.pending_count or limits.pending_bytes):
            self.pending = None
        elif self.pending is None:
            self.pending = PendingMeter()

    def check(self, cost: Cost, now_ms: float) -> None:
        """Raises: QuotaExceeded: no capacity now; InvalidArgument: above the limit itself."""
        if self.messages is not None:
            self._check_rate(self.messages, cost.messages, now_ms, "messages")
        if self.bytes is not None:
            self._check_rate(self.bytes, cost.size, now_ms, "bytes")
        if self.pending is not None and cost.pending_count:
            self._check_pending(self.pending, cost)

    def take(self, cost: Cost) -> None:
        """Counts a checked cost."""
        if self.messages is not None:
            self.messages.take(cost.messages)
        if self.bytes is not None:
            self.bytes.take(cost.size)
        if self.pending is not None:
            self.pending.add(cost)

    def settle(self, messages: int, size: int) -> None:
        """Corrects the count by the difference between stored and taken; below 0: less was stored."""
        if self.messages is not None:
            self.messages.settle(messages)
        if self.bytes is not None:
            self.bytes.settle(size)

    def fitted(self, cost: Cost) -> Cost:
        """The part of a cost that fits into a burst; the rest is settled later."""
        messages = cost.messages if self.messages is None else min(cost.messages, self.messages.burst)
        size = cost.size if self.bytes is None else min(cost.size, self.bytes.burst)
        return cost._replace(messages=messages, size=size)

    def debt_ms(self, now_ms: float) -> int:
        """Time until no rate is exceeded; 0: now."""
        return max((bucket.debt_ms(now_ms) for bucket in self._buckets()), default=0)

    def _check_rate(self, bucket: TokenBucket, cost: int, now_ms: float, what: str) -> None:
        if cost > bucket.burst:
            raise self._never(f"{what}_per_s", cost, f"the burst of {self.of}, {bucket.burst} {what}")
        if wait_ms := bucket.wait_ms(cost, now_ms):
            text = f"{cost} {what} exceed the remaining quota of {self.of}, {bucket.rate} {what}/s"
            raise self._exceeded(f"{what}_per_s", text, wait_ms)

    def _check_pending(self, pending: PendingMeter, cost: Cost) -> None:
        limits = self.limits
        for name, limit, own, unit, what in (
            ("pending_count", limits.pending_count, cost.pending_count, 1.0, "pending messages"),
            ("pending_bytes", limits.pending_bytes, cost.pending_bytes, pending.mean_bytes, "bytes of pending bodies"),
        ):
            if not limit:
                continue
            if own > limit:
                raise self._never(name, own, f"the quota of {self.of}, {limit} {what}")
            if pending.counted is not None and not pending.fits(limit, own, unit):
                has = int(pending.count * unit)
                text = f"{own} more {what} exceed the remaining quota of {self.of}, which has {has} of {limit}"
                raise self._exceeded(name, text, AGAIN_MS)

    def check_one_more(self, name: str, used: int, limit: int, what: str) -> None:
        """Checks connections and streams. `used`: here. Raises: QuotaExceeded."""
        others = self.other_connections if name == "connections" else self.other_streams
        if used + others >= limit:
            text = f"{self.of} has {used + others} {what}; its quota is {limit}"
            raise self._exceeded(name, text, AGAIN_MS)

    def _exceeded(self, name: str, text: str, wait_ms: int) -> QuotaExceeded:
        self._refused[name] += 1
        return QuotaExceeded(f"{text}: retry in {wait_ms} ms", wait_ms)

    def _never(self, name: str, cost: int, limit: str) -> DueTimeError:
        self._refused[name] += 1
        text = f"{cost} exceed {limit}: split the request"
        return InvalidArgument([Violation("messages", text)], reason="QUOTA_BURST_EXCEEDED")

    def used(self) -> dict[str, float]:
        """Use in the last second, by the limits that are set."""
        limits, pending = self.limits, self.pending or PendingMeter()
        used = {
            "messages_per_s": self.messages.demand if self.messages else 0.0,
            "bytes_per_s": self.bytes.demand if self.bytes else 0.0,
            "connections": len(self.peers),
            "streams": self.streams,
            "pending_count": pending.count + pending.since,
            "pending_bytes": (pending.count + pending.since) * pending.mean_bytes,
        }
        return {name: value for name, value in used.items() if getattr(limits, name)}

    # --- once a second ----------------------------------------------------------------------------------------------

    def roll(self, passed_s: float) -> Use:
        """Returns the use here over the last `passed_s` seconds."""
        for bucket in self._buckets():
            bucket.roll(passed_s)
        return Use(
            self.messages.demand if self.messages else 0.0,
            self.bytes.demand if self.bytes else 0.0,
            len(self.peers),
            self.streams,
            self.pending.demand if self.pending else 0.0,
        )

    def share(self, others: Sequence[Use], now_ms: float) -> None:
        """Takes this gateway's share beside other live gateways."""
        if self.messages is not None:
            demands = [one.messages_per_s for one in others]
            self.messages.share(share_of(self.messages.rate, self.messages.demand, demands), now_ms)
        if self.bytes is not None:
            demands = [one.bytes_per_s for one in others]
            self.bytes.share(share_of(self.bytes.rate, self.bytes.demand, demands), now_ms)
        if self.pending is not None:
            asked = [self.pending.demand, *(one.pending_per_s for one in others)]
            # Shares of the whole capacity: only the proportions count.
            scale = sum(asked) or 1.0
            self.pending.part = share_of(1.0, asked[0] / scale, [one / scale for one in asked[1:]])
        self.other_connections = sum(one.connections for one in others)
        self.other_streams = sum(one.streams for one in others)

    def is_idle(self, now_ms: float) -> bool:
        """Whether the meter can be dropped without loss."""
        return (
            not self.peers
            and not self.streams
            and all(not bucket.demand and bucket.is_full(now_ms) for bucket in self._buckets())
        )

    def _buckets(self) -> Iterator[TokenBucket]:
        for bucket in (self.messages, self.bytes):
            if bucket is not None:
                yield bucket


def _bound(bucket: TokenBucket | None, rate: int, burst: int, now_ms: float) -> TokenBucket | None:
    if not rate:
        return None
    if bucket is None:
        return TokenBucket(rate, burst, now_ms)
    bucket.bound(rate, burst)
    return bucket
