"""All meters of a gateway: which of them a request, a stream or a connection is counted by.

Where no quota is set, callers find `active` False and ask nothing more.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from duetime_core.callers import host_of
from duetime_core.clock import Clock
from duetime_core.sockets import Sockets
from duetime_core.within.server import PEER

from duetime_gateway.quotas.limits import EVERYBODY, HOST, TOPIC, USER, Limits, Of
from duetime_gateway.quotas.meters import Cost, Meter, Use

# Users counted one by one under the quota of everybody; past it those that are new are counted together.
USERS_MAX = 10_000
OTHERS = "(others)"
_EVERYBODY = Of(USER, EVERYBODY)
# A roll tells no rate of a shorter time.
ROLL_S_MIN = 0.25
# By topic: messages, bytes of their bodies; and of these, what is delayed.
TopicCosts = Mapping[str, tuple[int, int, int, int]]
# A record beside its body, or an event of the journal.
RECORD_BYTES = 256
# Takes the bytes of each copy's body.
Settle = Callable[[Sequence[int]], None]


class Copy(NamedTuple):
    """A message that a call stores again. `topic`: the one whose quota counts it; empty: none. `given`: bytes of its
    body, where the call brings it; None: its answer has them."""

    topic: str = ""
    given: int | None = None


# By gateway: what it uses of each.
Told = Mapping[str, Mapping[Of, Use]]


class Quotas:
    """Decides by the limits and shares that it was given last. State changes in synchronous methods only."""

    def __init__(self, clock: Clock, sockets: Sockets | None = None) -> None:
        self._clock = clock
        self._sockets = sockets or Sockets()
        # Whether any quota is set.
        self.active = False
        # As they are set.
        self.limits: dict[Of, Limits] = {}
        self.meters: dict[Of, Meter] = {}
        # At other gateways that live.
        self.others: Told = {}
        # By quota and limit.
        self.refused: dict[Of, Counter[str]] = {}
        self._has_topics = False
        self._rolled_ms = clock.monotonic_ms()
        self._told: dict[Of, Use] = {}

    def send(self, user: str, peer: str, messages: int, size: int, topics: Callable[[], TopicCosts]) -> None:
        """Counts a request; `topics` is asked only where topics have quotas.

        Raises:
            QuotaExceeded: a quota has no room for it now, and nothing is counted.
            InvalidArgument: it has more than a burst, and never fits.
        """
        now_ms = self._clock.monotonic_ms()
        costs: list[tuple[Meter, Cost]] = []
        meter = self._of_caller(user, peer)
        if meter is not None:
            costs.append((meter, Cost(messages, size)))
        if self._has_topics:
            for topic, cost in topics().items():
                found = self.meters.get(Of(TOPIC, topic))
                if found is not None:
                    costs.append((found, Cost(*cost)))
        for meter, cost in costs:
            meter.check(cost, now_ms)
        for meter, cost in costs:
            meter.take(cost)

    def store(self, user: str, peer: str, size: int, copies: Sequence[Copy]) -> Settle:
        """Counts a call that stores something beside messages that are sent. A body that the call does not bring counts
        by the mean of earlier ones until the answer has its size. Of more than a burst the rest counts afterwards.

        Returns: takes the bytes of the body of each copy, once they are known; called with none if nothing was stored.

        Raises:
            QuotaExceeded: a quota has no room for it now, and nothing is counted.
        """
        now_ms = self._clock.monotonic_ms()
        asked: list[tuple[Meter, Cost, Cost, list[int]]] = []
        for meter, own, indices in self._of_copies(user, peer, size, copies):
            unknown = [index for index in indices if copies[index].given is None]
            least = Cost(len(indices), own)
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
        self, user: str, peer: str, size: int, copies: Sequence[Copy]
    ) -> Iterator[tuple[Meter, int, list[int]]]:
        """The meters that count a call: the bytes that it brings of each, and which of its copies."""
        caller = self._of_caller(user, peer)
        if caller is not None:
            yield caller, size + RECORD_BYTES * max(1, len(copies)), list(range(len(copies)))
        if self._has_topics:
            for topic in {copy.topic for copy in copies}:
                found = self.meters.get(Of(TOPIC, topic))
                if found is not None:
                    indices = [index for index, copy in enumerate(copies) if copy.topic == topic]
                    yield found, sum(copies[index].given or 0 for index in indices), indices

    async def pace(self, user: str, peer: str, messages: int, size: int) -> None:
        """Counts what a stream stores on its way, and waits until the caller's quota has room again."""
        meter = self._of_caller(user, peer)
        if meter is None:
            return
        meter.settle(messages, size + RECORD_BYTES)
        while wait_ms := meter.debt_ms(self._clock.monotonic_ms()):
            await self._clock.sleep(wait_ms)

    @contextmanager
    def stream(self, user: str, peer: str) -> Iterator[None]:
        """While a stream or a long poll lasts. Raises: QuotaExceeded."""
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
        """The meter of a user, or of a host where there are no users; None: it has no quota."""
        everybody = self.limits.get(_EVERYBODY)
        if user:
            of, limits = Of(USER, user), everybody if user != EVERYBODY else None
        elif everybody is not None and everybody.per_host:
            of, limits = Of(HOST, host_of(peer)), everybody
        else:
            return None
        meter = self.meters.get(of)
        if meter is not None or limits is None:
            return meter
        if len(self.meters) >= USERS_MAX + len(self.limits):
            of = Of(of.kind, OTHERS)
        meter = self.meters.get(of)
        if meter is None:
            meter = self.meters[of] = Meter(of, limits, self._clock.monotonic_ms(), self.refused[_EVERYBODY])
            self._share(meter)
        return meter

    def used(self) -> dict[Of, Counter[str]]:
        """What is used here of each quota, by limit; of that of everybody by all its users together."""
        used = {of: Counter[str]() for of in self.limits}
        for of, meter in self.meters.items():
            quota = of if of in used else _EVERYBODY
            for name, value in meter.used().items():
                used[quota][name] += value  # type: ignore[assignment]
        return used

    def used_by_all(self) -> dict[Of, Counter[str]]:
        """As `used`, with what other gateways have told. What is pending is counted as a whole anyway."""
        used = self.used()
        for told in self.others.values():
            for of, use in told.items():
                found = used.get(of if of in used else _EVERYBODY)
                if found is not None:
                    found.update(use._asdict())
        return used

    # --- once a second ----------------------------------------------------------------------------------------------

    def roll(self) -> dict[Of, Use]:
        """What is used here, to be told to others; users that rest are forgotten."""
        now_ms = self._clock.monotonic_ms()
        passed_s = (now_ms - self._rolled_ms) / 1000
        if passed_s < ROLL_S_MIN:
            return self._told
        self._rolled_ms = now_ms
        if any(meter.peers for meter in self.meters.values()):
            self._sockets.scan()
        used: dict[Of, Use] = {}
        for of, meter in list(self.meters.items()):
            self._drop_ended(meter)
            used[of] = meter.roll(passed_s)
            if of not in self.limits and meter.is_idle(now_ms):
                del self.meters[of], used[of]
        self._told = {of: use for of, use in used.items() if any(use)}
        return self._told

    def set(self, limits: Mapping[Of, Limits]) -> None:
        """Keeps these quotas from now on, and no others."""
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
        """Takes this gateway's shares beside others that live."""
        self.others = others
        for meter in self.meters.values():
            self._share(meter)

    def _share(self, meter: Meter) -> None:
        none = Use()
        meter.share([told.get(meter.of, none) for told in self.others.values()], self._clock.monotonic_ms())
