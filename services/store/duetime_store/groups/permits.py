"""Permits: the rates at which groups receive topics on this shard. Memory only; belongs to the event loop's thread.

A gateway names a group's limits with each Receive, and in PutGroup once they change. So a store that restarts knows
them before it delivers. The limit with the latest time counts, since gateways may be a second behind each other.

A bucket gains credit with the monotonic clock, in whole units:

    a millisecond   `count` x the shard's parts of the rate (`shares`), up to the capacity
    a message       costs `per_ms` x all parts
    capacity        `burst` x `per_ms` x RATE_PARTS, the shard's part of the burst; one message at least

A new bucket is empty, so neither a restart nor a repeated change gives more than burst + rate x t.
"""

import secrets
from collections.abc import Callable, Iterable
from dataclasses import replace

from duetime.v1 import consumer_pb2, store_pb2
from duetime_core.clock import Clock, Timer
from duetime_core.errors import refuse
from duetime_core.rpc import group_limits
from duetime_format import limits as contract
from duetime_format import rates
from duetime_format.errors import Violation, within

from duetime_store.groups.fetch import FetchRequest, LeasedBatch
from duetime_store.groups.shares import RateShare

# Receivers wake for the messages of this time at most, so that a fast rate does not wake one for each message.
WAKE_MS = 50
# The time for which the demand of a shard is measured.
DEMAND_MS = 1_000


class PermitBucket:
    """The permits of one group in one topic."""

    def __init__(self, clock: Clock, rate: consumer_pb2.DeliveryRate, shard_count: int, share: RateShare) -> None:
        self._clock = clock
        self._rate = rate
        self.shard_count = shard_count
        self.share = share
        # Units, as of `_at_ms` of the monotonic clock.
        self._credit = 0
        self._at_ms = self._now_ms()
        # Messages taken since `_used_at_ms`, and in the DEMAND_MS before.
        self._used, self._used_before, self._used_at_ms = 0, 0, self._at_ms
        # The last time at which messages waited for permits.
        self._short_at_ms: int | None = None
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
        return self._rate.per_ms * self.shard_count * contract.RATE_PARTS

    @property
    def _capacity(self) -> int:
        return max(rates.burst_of(self._rate) * self._rate.per_ms * contract.RATE_PARTS, self._cost)

    @property
    def parts(self) -> int:
        """This shard's parts of the rate. Other threads read it too."""
        return contract.RATE_PARTS if self.shard_count == 1 else self.share.parts(self._now_ms())

    @property
    def count(self) -> int:
        """The number of messages that may be delivered now."""
        self._fill()
        return self._credit // self._cost

    def _fill(self) -> None:
        from_ms, self._at_ms = self._at_ms, self._now_ms()
        spans = self.share.spans(from_ms, self._at_ms)
        for length_ms, parts in [(self._at_ms - from_ms, contract.RATE_PARTS)] if self.shard_count == 1 else spans:
            self._credit = min(self._credit + length_ms * self._rate.count * parts, self._capacity)

    def reduced(self, asked: FetchRequest) -> FetchRequest:
        """The request for no more messages than may be delivered now."""
        return replace(asked, max_count=min(asked.max_count, self.count))

    def take(self, count: int) -> None:
        """Uses permits for delivered messages."""
        self._credit -= count * self._cost
        self._roll()
        self._used += count

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
        if rate != self._rate or shard_count != self.shard_count:
            # Credit up to now is that of the former rate.
            _, cost = self.count, self._cost
            if shard_count != self.shard_count:
                self.share.end_borrowed()
            self._rate, self.shard_count = rate, shard_count
            self._credit = min(self._credit * self._cost // cost, self._capacity)

    @property
    def _wake_ms(self) -> int:
        """The time between two calls of receivers: a quarter of the burst, so that late ones lose no permits."""
        return max(min(WAKE_MS, self._capacity // (4 * self._rate.count * max(self.parts, 1))), 1)

    @property
    def wait_ms(self) -> int:
        """Milliseconds until the next permits: one, or those of a while; or until another share."""
        now_ms, parts = self._now_ms(), self.parts
        share_ms = self.share.next_end_ms(now_ms) if self.shard_count > 1 else None
        waits = [] if share_ms is None else [share_ms - now_ms]
        if parts:
            gain = self._rate.count * parts
            wanted = min(max(self._wake_ms * gain, self._cost), self._capacity)
            waits.append(-(-(wanted - self._credit) // gain))
        return max(min(waits), 1)

    # --- shares -----------------------------------------------------------------------------------------------------

    def lend(self, borrower: int, parts: int) -> int:
        """See `RateShare.lend`."""
        self._fill()
        return self.share.lend(borrower, parts, self._at_ms)

    def borrow(self, lender: int, parts: int, asked_at_ms: int) -> None:
        """See `RateShare.borrow`; wakes receivers, which may wait for less time now."""
        self._fill()
        before = self.parts
        self.share.borrow(lender, parts, asked_at_ms, self._at_ms)
        if self.is_held and self.parts > before:
            self.release()

    def note_shortage(self) -> None:
        """Messages wait for permits now."""
        self._short_at_ms = self._now_ms()

    def wanted(self) -> int:
        """The parts of the rate that this shard has a use for: all, if messages waited for permits within DEMAND_MS;
        else those for an eighth more messages than it delivered."""
        all_parts, now_ms = self.shard_count * contract.RATE_PARTS, self._now_ms()
        if self.is_held or (self._short_at_ms is not None and now_ms - self._short_at_ms <= DEMAND_MS):
            return all_parts
        self._roll()
        used = max(self._used, self._used_before) * self._cost
        return min(-(-used * 9 // (8 * DEMAND_MS * self._rate.count)), all_parts)

    def _roll(self) -> None:
        passed_ms = self._now_ms() - self._used_at_ms
        if passed_ms >= DEMAND_MS:
            self._used_before = self._used if passed_ms < 2 * DEMAND_MS else 0
            self._used, self._used_at_ms = 0, self._now_ms() - passed_ms % DEMAND_MS

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
            self.note_shortage()
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
        self._started_ms = self._now_ms()
        # Added to the clock in answers, so that a store accepts no time of another process.
        self._clock_offset_ms = secrets.randbelow(1 << 52)
        # Shares outlive their buckets while they lend.
        self._shares: dict[tuple[str, str], RateShare] = {}

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
        own = [key for key in self._buckets if key[0] == group]
        self._drop([key for key in own if self._rate(*key) is None])
        for key in own:
            if key in self._buckets:
                self._buckets[key].release()
        return True

    def find(self, asked: FetchRequest) -> PermitBucket | None:
        """The bucket for a receive; None: its rate has no limit."""
        rate = self._rate(asked.group, asked.topic)
        if rate is None:
            return None
        key = asked.group, asked.topic
        found = self._buckets.get(key)
        if found is None:
            found = self._buckets[key] = PermitBucket(self._clock, rate, asked.shard_count, self._share(key))
        else:
            found.change(rate, asked.shard_count)
        return found

    def _share(self, key: tuple[str, str]) -> RateShare:
        share = self._shares.get(key)
        if share is None:
            share = self._shares[key] = RateShare(self._started_ms)
        return share

    def shared(self, request: store_pb2.ShareRatesRequest) -> store_pb2.ShareRatesResponse:
        """Lends and borrows parts of rates. A rate that this shard does not know, or with another number of shards, has
        an answer without parts.

        Raises:
            InvalidArgument: a number is out of range.
        """
        faults = within("shares", len(request.shares), 1, contract.RATE_SHARES_MAX)
        loans = [loan for one in request.shares for loan in (*one.lent, *one.borrowed)]
        refuse(faults + [fault for loan in loans for fault in within("parts", loan.parts, 1, contract.RATE_PARTS)])
        response = store_pb2.ShareRatesResponse(now_ms=self._clock_offset_ms + self._now_ms())
        for one in request.shares:
            bucket = self._buckets.get((one.group, one.topic))
            state = response.shares.add()
            if bucket is None or bucket.shard_count != one.shard_count:
                continue
            for loan in one.borrowed:
                bucket.borrow(loan.shard, loan.parts, one.asked_at_ms - self._clock_offset_ms)
            for loan in one.lent:
                state.lent.add(shard=loan.shard, parts=bucket.lend(loan.shard, loan.parts))
            state.is_known, state.wanted_parts = True, bucket.wanted()
        return response

    def parts(self) -> dict[tuple[str, str], float]:
        """This shard's part of each rate, by group and topic: 0 to 1. Other threads call it too."""
        buckets = list(self._buckets.items())
        return {key: bucket.parts / (bucket.shard_count * contract.RATE_PARTS) for key, bucket in buckets}

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
        now_ms = self._now_ms()
        for key, share in list(self._shares.items()):
            if key not in self._buckets and not share.is_lending(now_ms):
                del self._shares[key]

    def _now_ms(self) -> int:
        return int(self._clock.monotonic_ms())

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
