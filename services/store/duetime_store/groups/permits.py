"""Permits: the rates at which groups receive topics on this shard. Memory only; belongs to the event loop's thread.

A gateway names a group's limits with each Receive, and in PutGroup once they change. So a store that restarts knows
them before it delivers. The limit with the latest time counts, since gateways may be a second behind each other.

A bucket gains credit with the monotonic clock, in whole units:

    a millisecond   `count` units, up to the capacity
    a message       costs `per_ms` x shards: the part of each shard is equal
    capacity        `burst` x `per_ms`, the shard's part of the burst; one message at least

A new bucket is empty, so neither a restart nor a repeated change gives more than burst + rate x t.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

from duetime.v1 import consumer_pb2
from duetime_core.clock import Clock, Timer
from duetime_core.errors import refuse
from duetime_core.rpc import group_limits
from duetime_format import limits as contract
from duetime_format import rates
from duetime_format.errors import Violation

from duetime_store.groups.fetch import FetchRequest, LeasedBatch

# Receivers wake for the messages of this time at most, so that a fast rate does not wake one for each message.
WAKE_MS = 50


class PermitBucket:
    """The permits of one group in one topic."""

    def __init__(self, clock: Clock, rate: consumer_pb2.DeliveryRate, shard_count: int) -> None:
        self._clock = clock
        self._rate = rate
        self._shard_count = shard_count
        # Units, as of `_at_ms` of the monotonic clock.
        self._credit = 0
        self._at_ms = self._now_ms()
        # Called at the next permits, for messages that wait for them while there are receivers.
        self._wakes: dict[Callable[[], None], None] = {}
        self._alarm: Timer | None = None
        self._is_offered = False
        self._held_since_ms = 0
        self._held_ms = 0

    def _now_ms(self) -> int:
        return int(self._clock.monotonic_ms())

    @property
    def _cost(self) -> int:
        return self._rate.per_ms * self._shard_count

    @property
    def _capacity(self) -> int:
        return max(rates.burst_of(self._rate) * self._rate.per_ms, self._cost)

    @property
    def count(self) -> int:
        """The number of messages that may be delivered now."""
        now_ms = self._now_ms()
        if now_ms > self._at_ms:
            self._credit = min(self._credit + (now_ms - self._at_ms) * self._rate.count, self._capacity)
            self._at_ms = now_ms
        return self._credit // self._cost

    def reduced(self, asked: FetchRequest) -> FetchRequest:
        """The request for no more messages than may be delivered now."""
        return replace(asked, max_count=min(asked.max_count, self.count))

    def take(self, count: int) -> None:
        """Uses permits for delivered messages."""
        self._credit -= count * self._cost

    def give(self, given: Iterable[LeasedBatch]) -> None:
        """Uses permits for leases, which give them back for unread messages."""
        for one in given:
            self.take(len(one.sizes))
            one.lease.permits = self

    def refund(self, count: int) -> None:
        """Gives back the permits of messages that were returned unread; receivers that wait may take them at once."""
        self._credit = min(self._credit + count * self._cost, self._capacity)
        if self.is_held:
            self.release()

    def change(self, rate: consumer_pb2.DeliveryRate, shard_count: int) -> None:
        """Sets another rate or part. The credit remains the same number of messages, up to the new capacity."""
        if rate != self._rate or shard_count != self._shard_count:
            # Credit up to now is that of the former rate.
            _, cost = self.count, self._cost
            self._rate, self._shard_count = rate, shard_count
            self._credit = min(self._credit * self._cost // cost, self._capacity)

    @property
    def _wake_ms(self) -> int:
        """The time between two calls of receivers: a quarter of the burst, so that late ones lose no permits."""
        return max(min(WAKE_MS, self._capacity // (4 * self._rate.count)), 1)

    @property
    def wait_ms(self) -> int:
        """Milliseconds until the next permits: one, or those of a while."""
        wanted = max(self._wake_ms * self._rate.count, self._cost)
        return max(-(-(min(wanted, self._capacity) - self._credit) // self._rate.count), 1)

    # --- messages that wait -----------------------------------------------------------------------------------------

    @property
    def is_held(self) -> bool:
        """Whether messages wait for permits, and receivers for the messages."""
        return self._alarm is not None

    def hold(self, wake: Callable[[], None]) -> None:
        """Calls `wake` once, at the next permits."""
        self._set_alarm(wake, self.wait_ms)

    def offer(self, wake: Callable[[], None]) -> None:
        """As `hold`, for a receiver that looked and comes to take its messages: the first call that does not wait."""
        self._is_offered = True
        self._set_alarm(wake, max(self.wait_ms, self._wake_ms))

    def accept(self) -> bool:
        """Whether there was an offer, which is used up."""
        offered, self._is_offered = self._is_offered, False
        return offered

    def _set_alarm(self, wake: Callable[[], None], delay_ms: int) -> None:
        self._wakes[wake] = None
        if self._alarm is None:
            self._held_since_ms = self._now_ms()
            self._alarm = self._clock.call_later(delay_ms, self.release)

    def release(self) -> None:
        """Wakes all that wait: there are permits, or another rate."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._held_ms, self._alarm = self.held_ms, None
        self._is_offered = False
        wakes, self._wakes = self._wakes, {}
        for wake in wakes:
            wake()

    @property
    def held_ms(self) -> int:
        """Time in which messages waited for permits while there were receivers. Other threads read it too."""
        return self._held_ms + (self._now_ms() - self._held_since_ms if self._alarm is not None else 0)


class GroupPermits:
    """All limits that gateways have named, and a bucket for each topic that a limited group receives."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # Keys: group, then topic; an empty topic means all topics without their own limit.
        self._limits: dict[str, dict[str, consumer_pb2.GroupLimit]] = {}
        self._set_at_ms: dict[str, int] = {}
        self._buckets: dict[tuple[str, str], PermitBucket] = {}

    def learn(self, group: str, limits: consumer_pb2.GroupLimits) -> bool:
        """Applies a group's limits, unless they are older than the known ones. Returns whether they are new.

        Raises:
            InvalidArgument: a rate breaks a limit, or there are too many.
        """
        if limits.set_at_ms <= self._set_at_ms.get(group, 0):
            return False
        if not (limits.limits or limits.HasField("pause") or group in self._limits):
            return False
        _check(limits)
        self._set_at_ms[group] = limits.set_at_ms
        self._limits[group] = group_limits.effective(limits)
        for key, bucket in list(self._buckets.items()):
            if key[0] == group:
                if self._rate(*key) is None:
                    del self._buckets[key]
                bucket.release()
        return True

    def find(self, asked: FetchRequest) -> PermitBucket | None:
        """The bucket for a receive; None: its rate has no limit."""
        rate = self._rate(asked.group, asked.topic)
        if rate is None:
            return None
        key = asked.group, asked.topic
        found = self._buckets.get(key)
        if found is None:
            found = self._buckets[key] = PermitBucket(self._clock, rate, asked.shard_count)
        else:
            found.change(rate, asked.shard_count)
        return found

    def limit_of(self, group: str, topic: str) -> consumer_pb2.GroupLimit | None:
        """The limit of a group in a topic."""
        of_group = self._limits.get(group)
        return None if of_group is None else of_group.get(topic) or of_group.get("")

    def _rate(self, group: str, topic: str) -> consumer_pb2.DeliveryRate | None:
        limit = self.limit_of(group, topic)
        return limit.rate if limit is not None and limit.HasField("rate") else None

    def forget(self, group: str) -> None:
        """Removes the limits of a deleted group."""
        self._limits.pop(group, None)
        self._set_at_ms.pop(group, None)
        self._drop([key for key in self._buckets if key[0] == group])

    def forget_topic(self, topic: str) -> None:
        """Removes the buckets of a deleted topic."""
        self._drop([key for key in self._buckets if key[1] == topic])

    def _drop(self, keys: list[tuple[str, str]]) -> None:
        for key in keys:
            self._buckets.pop(key).release()

    def held_ms(self) -> dict[str, int]:
        """The time in which messages waited for permits, by limited group. Other threads call it too."""
        found: dict[str, int] = {}
        for (group, _), bucket in list(self._buckets.items()):
            found[group] = found.get(group, 0) + bucket.held_ms
        return found


def _check(limits: consumer_pb2.GroupLimits) -> None:
    """Raises: InvalidArgument."""
    found = [fault for one in limits.limits for fault in group_limits.violations("limits", one)]
    if len(limits.limits) > contract.GROUP_LIMITS_MAX:
        text = f"{len(limits.limits)} are above {contract.GROUP_LIMITS_MAX}"
        found.append(Violation("limits.limits", text))
    refuse(found)
