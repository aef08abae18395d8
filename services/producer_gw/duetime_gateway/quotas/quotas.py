"""All meters of a gateway: selects the meters of a request, a stream or a connection.

While no quota is set, `active` is False and callers skip all checks.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from duetime_core.access.callers import host_of
from duetime_core.clock import Clock
from duetime_core.limits.sockets import Sockets
from duetime_core.within.server import PEER

from duetime_gateway.quotas.limits import EVERYBODY, HOST, TOPIC, USER, Limits, QuotaOwner
from duetime_gateway.quotas.meters import Cost, Meter, Use

# Users counted one by one under the quota of everybody; later ones are counted together.
USERS_MAX = 10_000
OTHERS = "(others)"
_EVERYBODY = QuotaOwner(USER, EVERYBODY)
# Shortest time over which a roll measures a rate.
ROLL_S_MIN = 0.25
# Costs by topic: messages and bytes of their bodies; then the delayed part of both.
TopicCosts = Mapping[str, tuple[int, int, int, int]]
# Size of a record without its body, or of an event of the journal.
RECORD_BYTES = 256
# Takes the size of each copy's body.
Settle = Callable[[Sequence[int]], None]


class CopyCharge(NamedTuple):
    """A message that a call stores again. `topic`: counted by its quota; empty: by none. `given`: size of the body, if
    the call contains it; None: the answer has the size. `is_pending`: it adds to the topic's pending messages."""

    topic: str = ""
    given: int | None = None
    is_pending: bool = False


# The use reported by each gateway, by user or topic.
Told = Mapping[str, Mapping[QuotaOwner, Use]]


class Quotas:
    """Decides by the last limits and shares. State changes in synchronous methods only."""

    def __init__(self, clock: Clock, sockets: Sockets | None = None) -> None:
        self._clock = clock
        self._sockets = sockets or Sockets()
        # Whether any quota is set.
        self.active = False
        # The limits as set.
        self.limits: dict[QuotaOwner, Limits] = {}
        self.meters: dict[QuotaOwner, Meter] = {}
        # Use at other live gateways.
        self.others: Told = {}
        # Rejections by quota and limit.
        self.refused: dict[QuotaOwner, Counter[str]] = {}
        self._has_topics = False
        self._rolled_ms = clock.monotonic_ms()
        self._told: dict[QuotaOwner, Use] = {}

    def send(self, user: str, peer: str, messages: int, size: int, topics: Callable[[], TopicCosts]) -> None:
        """Counts a request; `topics` is called only if topics have quotas.

        Raises:
            QuotaExceeded: a quota has no capacity now; nothing is counted.
            InvalidArgument: it exceeds a burst, and can never be accepted.
        """
        now_ms = self._clock.monotonic_ms()
        costs: list[tuple[Meter, Cost]] = []
        meter = self._of_caller(user, peer)
        if meter is not None:
            costs.append((meter, Cost(messages, size)))
        if self._has_topics:
            for topic, cost in topics().items():
                found = self.meters.get(QuotaOwner(TOPIC, topic))
                if found is not None:
                    costs.append((found, Cost(*cost)))
        for meter, cost in costs:
            meter.check(cost, now_ms)
        for meter, cost in costs:
            meter.take(cost)

    def store(self, user: str, peer: str, size: int, copies: Sequence[CopyCharge]) -> Settle:
        """Counts a call that stores data besides sent messages. A body missing from the call counts with the mean size
        of earlier ones until the answer has its size. The part above a burst counts afterwards.

        Returns: takes the size of each copy's body, once known; called with none if nothing was stored.

        Raises:
            QuotaExceeded: a quota has no capacity now; nothing is counted.
        """
        now_ms = self._clock.monotonic_ms()
        asked: list[tuple[Meter, Cost, Cost, list[int]]] = []
        for meter, own, indices in self._of_copies(user, peer, size, copies):
            unknown = [index for index in indices if copies[index].given is None]
            waiting = [copies[index].given or 0 for index in indices if copies[index].is_pending]
            least = Cost(len(indices), own, len(waiting), sum(waiting))
            expected = least._replace(size=own + round(meter.copied_bytes * len(unknown)))
            asked.append((meter, least, meter.fitted(expected), unknown))
        for meter, _, cost, _ in asked:
            meter.check(cost, now_ms)
        for meter, _, cost, _ in asked:
            meter.take(cost)

        def settle(stored: Sequence[int]) -> None:
            for meter, least, taken, unknown in asked:
                sizes = [stored[index] for index in unknown if index < len(stored)]
                meter.settle(least.messages - taken.messages, least.size + sum(sizes) - taken.size)
                if any(sizes):
                    meter.copied_bytes = (meter.copied_bytes + sum(sizes) / len(sizes)) / 2

        return settle

    def _of_copies(
        self, user: str, peer: str, size: int, copies: Sequence[CopyCharge]
    ) -> Iterator[tuple[Meter, int, list[int]]]:
        """The meters of a call, each with the bytes in the call and the copies that it counts."""
        caller = self._of_caller(user, peer)
        if caller is not None:
            yield caller, size + RECORD_BYTES * max(1, len(copies)), list(range(len(copies)))
        if self._has_topics:
            for topic in {copy.topic for copy in copies}:
                found = self.meters.get(QuotaOwner(TOPIC, topic))
                if found is not None:
                    indices = [index for index, copy in enumerate(copies) if copy.topic == topic]
                    yield found, sum(copies[index].given or 0 for index in indices), indices

    async def pace(self, user: str, peer: str, messages: int, size: int) -> None:
        """Counts data stored by a running stream, and waits while the caller's quota is exceeded."""
        meter = self._of_caller(user, peer)
        if meter is None:
            return
        meter.settle(messages, size + RECORD_BYTES)
        while wait_ms := meter.debt_ms(self._clock.monotonic_ms()):
            await self._clock.sleep(wait_ms)

    @contextmanager
    def stream(self, user: str, peer: str) -> Iterator[None]:
        """Counts a stream or a long poll while it lasts. Raises: QuotaExceeded."""
        meter = self._of_caller(user, peer)
        if meter is None:
            yield
            return
        if meter.limits.streams:
            meter.check_one_more("streams", meter.streams, meter.limits.streams, "streams and long polls")
        meter.streams += 1
        try:
            yield
        finally:
            meter.streams -= 1

    def connect(self, user: str, peer: str) -> None:
        """Counts the connection of a call, once. Raises: QuotaExceeded."""
        meter = self._of_caller(user, peer)
        if meter is None or not meter.limits.connections or peer in meter.peers or peer.startswith(PEER):
            return
        if len(meter.peers) >= meter.limits.connections - meter.other_connections:
            self._sockets.scan()
            self._drop_ended(meter)
        meter.check_one_more("connections", len(meter.peers), meter.limits.connections, "connections")
        meter.peers.add(peer)

    def _drop_ended(self, meter: Meter) -> None:
        meter.peers = {peer for peer in meter.peers if self._sockets.knows(peer)}

    def _of_caller(self, user: str, peer: str) -> Meter | None:
        """The meter of a user, or of a host if users are off; None: no quota."""
        everybody = self.limits.get(_EVERYBODY)
        if user:
            of, limits = QuotaOwner(USER, user), everybody if user != EVERYBODY else None
        elif everybody is not None and everybody.per_host:
            of, limits = QuotaOwner(HOST, host_of(peer)), everybody
        else:
            return None
        meter = self.meters.get(of)
        if meter is not None or limits is None:
            return meter
        if len(self.meters) >= USERS_MAX + len(self.limits):
            of = QuotaOwner(of.kind, OTHERS)
        meter = self.meters.get(of)
        if meter is None:
            meter = self.meters[of] = Meter(of, limits, self._clock.monotonic_ms(), self.refused[_EVERYBODY])
            self._share(meter)
        return meter

    def used(self) -> dict[QuotaOwner, Counter[str]]:
        """Use here by quota and limit; the quota of everybody sums up its users."""
        used = {of: Counter[str]() for of in self.limits}
        for of, meter in self.meters.items():
            quota = of if of in used else _EVERYBODY
            for name, value in meter.used().items():
                used[quota][name] += value  # type: ignore[assignment]
        return used

    def used_by_all(self) -> dict[QuotaOwner, Counter[str]]:
        """As `used`, plus the use reported by other gateways. Pending counts already cover all gateways."""
        used = self.used()
        for told in self.others.values():
            for of, use in told.items():
                found = used.get(of if of in used else _EVERYBODY)
                if found is not None:
                    found.update(use._asdict())
        return used

    # --- once a second ----------------------------------------------------------------------------------------------

    def roll(self) -> dict[QuotaOwner, Use]:
        """Returns the use here, for the other gateways; drops idle users."""
        now_ms = self._clock.monotonic_ms()
        passed_s = (now_ms - self._rolled_ms) / 1000
        if passed_s < ROLL_S_MIN:
            return self._told
        self._rolled_ms = now_ms
        if any(meter.peers for meter in self.meters.values()):
            self._sockets.scan()
        used: dict[QuotaOwner, Use] = {}
        for of, meter in list(self.meters.items()):
            self._drop_ended(meter)
            used[of] = meter.roll(passed_s)
            if of not in self.limits and meter.is_idle(now_ms):
                del self.meters[of], used[of]
        self._told = {of: use for of, use in used.items() if any(use)}
        return self._told

    def set(self, limits: Mapping[QuotaOwner, Limits]) -> None:
        """Replaces all quotas."""
        now_ms = self._clock.monotonic_ms()
        self.limits = dict(limits)
        self.refused = {of: self.refused.get(of, Counter()) for of in limits}
        everybody = limits.get(_EVERYBODY)
        for of, meter in list(self.meters.items()):
            own = limits.get(of)
            if own is None and (of.kind == USER or (of.kind == HOST and everybody and everybody.per_host)):
                own = everybody
            if own is None:
                del self.meters[of]
            else:
                meter.bound(own, now_ms, self.refused[of if of in limits else _EVERYBODY])
        for of, one in limits.items():
            if of not in self.meters and of != _EVERYBODY:
                self.meters[of] = Meter(of, one, now_ms, self.refused[of])
        self._has_topics = any(of.kind == TOPIC for of in limits)
        self.active = bool(limits)

    def share(self, others: Told) -> None:
        """Takes this gateway's shares beside other live gateways."""
        self.others = others
        for meter in self.meters.values():
            self._share(meter)

    def _share(self, meter: Meter) -> None:
        none = Use()
        meter.share([told.get(meter.of, none) for told in self.others.values()], self._clock.monotonic_ms())
