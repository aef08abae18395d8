"""Checks on their way from shards to watchers, by group.

    taken by a `CheckTaker` ──▶ held here ──▶ handed to a waiting watcher ──▶ written to its stream: heard
                               └──▶ no watcher is left, or none fetches them: unheard

Watchers fetch in turn when they are ready, so a slow one delays nobody. Shards are asked for a group only while one of
its watchers waits without held checks.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from duetime_core.clock import Clock, Timer
from duetime_core.limits.seats import Seats
from duetime_format.record import Record

from duetime_gateway.errors import stopping
from duetime_gateway.metrics import TransactionMetrics
from duetime_gateway.transactions.names import TransactionName

# Most checks handed to a watcher at a time: it answers these before others wait for it.
HANDED_COUNT_MAX = 64
HANDED_BYTES_MAX = 1024 * 1024
# Bytes of held checks above which none are taken.
HELD_BYTES_MAX = 32 * 1024 * 1024
# Time after which checks not fetched by a watcher are left to other gateways.
HELD_MS_MAX = 5_000


class TransactionQuestion(NamedTuple):
    """A question about an open transaction."""

    name: TransactionName
    group: str
    # Number of this check, from 1.
    number: int
    # The half message.
    found: Record


# Reports half messages to a shard: shard, offsets, heard by a producer or not.
Report = Callable[[int, Sequence[int], bool], None]


class CheckWatcher:
    """A producer that answers for its group."""

    def __init__(self, group: str, caller: str) -> None:
        """`caller`: the owner of its seat."""
        self.group = group
        self.caller = caller
        # Set while it waits; done when there may be checks for it.
        self.waiting: asyncio.Future[None] | None = None
        self.ended = False
        # Reason for an involuntary end.
        self.error: Exception | None = None

    def wake(self) -> None:
        if self.waiting is not None and not self.waiting.done():
            self.waiting.set_result(None)

    def end(self, error: Exception | None = None) -> None:
        """Ends the watcher. The first error counts."""
        if not self.ended:
            self.ended, self.error = True, error
        self.wake()


class _GroupWatchers:
    """The watchers of one group, and the checks held for them."""

    __slots__ = ("checks", "timer", "waiting", "watchers")

    def __init__(self) -> None:
        self.watchers: set[CheckWatcher] = set()
        # Waiting watchers, the longest waiting first.
        self.waiting: dict[CheckWatcher, None] = {}
        self.checks: deque[TransactionQuestion] = deque()
        # Ends the holding time.
        self.timer: Timer | None = None

    @property
    def is_ready(self) -> bool:
        return bool(self.waiting) and not self.checks


class Desk:
    """All held checks and waiting watchers. State changes in synchronous methods only."""

    def __init__(self, clock: Clock, metrics: TransactionMetrics, report: Report, *, watchers_max: int) -> None:
        self._clock = clock
        self._metrics = metrics
        self._report = report
        self._seats = Seats(
            watchers_max,
            "streams watch transactions",
            reason="WATCHERS_EXHAUSTED",
            used=metrics.watchers,
            most=metrics.watchers_max,
        )
        self._groups: dict[str, _GroupWatchers] = {}
        self._watchers: set[CheckWatcher] = set()
        self._held_bytes = 0
        self._ending = False
        # Done when a group becomes ready; created when a taker waits for it.
        self._changed: asyncio.Future[None] | None = None

    # --- for watchers -----------------------------------------------------------------------------------------------

    def join(self, group: str, caller: str) -> CheckWatcher:
        """Raises: Overloaded: too many watchers, in total or of this caller. Unavailable: the gateway is stopping."""
        if self._ending:
            raise stopping()
        self._seats.take(caller)
        watcher = CheckWatcher(group, caller)
        self._watchers.add(watcher)
        self._groups.setdefault(group, _GroupWatchers()).watchers.add(watcher)
        return watcher

    def leave(self, watcher: CheckWatcher) -> None:
        """Removes a watcher. If it was the group's last, held checks are unheard."""
        self._watchers.discard(watcher)
        self._seats.give(watcher.caller)
        group = self._groups[watcher.group]
        group.watchers.discard(watcher)
        if not group.watchers:
            self._give_up(group)
            del self._groups[watcher.group]
        elif group.checks:
            # It may have been woken for these checks.
            _wake_next(group)

    async def fetch(self, watcher: CheckWatcher) -> list[TransactionQuestion]:
        """The next checks for this watcher; none: it has ended. Raises: the error that ended it."""
        group = self._groups[watcher.group]
        while not watcher.ended:
            if group.checks:
                return self._hand(group)
            watcher.waiting = asyncio.get_running_loop().create_future()
            group.waiting[watcher] = None
            self._tell()
            try:
                await watcher.waiting
            finally:
                watcher.waiting = None
                group.waiting.pop(watcher, None)
        if watcher.error is not None:
            raise watcher.error
        return []

    def _hand(self, group: _GroupWatchers) -> list[TransactionQuestion]:
        """Takes a fair part of the held checks for one of the waiting watchers."""
        fair = -(-len(group.checks) // (1 + len(group.waiting)))
        handed: list[TransactionQuestion] = []
        size = 0
        while group.checks and len(handed) < min(fair, HANDED_COUNT_MAX):
            size += group.checks[0].found.size
            if handed and size > HANDED_BYTES_MAX:
                break
            handed.append(group.checks.popleft())
        self._held_bytes -= sum(check.found.size for check in handed)
        if group.checks:
            _wake_next(group)
        elif group.timer is not None:
            group.timer.cancel()
            group.timer = None
        self._tell()
        return handed

    @contextmanager
    def handing(self, checks: Sequence[TransactionQuestion]) -> Iterator[None]:
        """Guards the writing of checks to a watcher: on success they are heard."""
        heard = False
        try:
            yield
            heard = True
        finally:
            self._tell_shards(checks, heard=heard)

    # --- for takers -------------------------------------------------------------------------------------------------

    def ready(self) -> list[str]:
        """Groups for which checks may be taken now."""
        if self._ending or self._held_bytes > HELD_BYTES_MAX:
            return []
        return [name for name, group in self._groups.items() if group.is_ready]

    def changed(self) -> "asyncio.Future[None]":
        """Done when a group may have become ready since this call."""
        if self._changed is None or self._changed.done():
            self._changed = asyncio.get_running_loop().create_future()
        return self._changed

    @property
    def ending(self) -> bool:
        return self._ending

    def hold(self, checks: Sequence[TransactionQuestion]) -> None:
        """Holds checks for the watchers of their groups; without watchers they are unheard."""
        unheard: list[TransactionQuestion] = []
        for check in checks:
            group = self._groups.get(check.group)
            if group is None or self._ending:
                unheard.append(check)
                continue
            group.checks.append(check)
            self._held_bytes += check.found.size
            if group.timer is None:
                group.timer = self._clock.call_later(HELD_MS_MAX, lambda group=group: self._give_up(group))  # type: ignore[misc]
                _wake_next(group)
        self._tell_shards(unheard, heard=False)

    def end(self) -> None:
        """Ends all watchers, so that their producers use other gateways; held checks are unheard."""
        self._ending = True
        for watcher in self._watchers:
            watcher.end(stopping())
        for group in self._groups.values():
            self._give_up(group)
        self._tell()

    # --- both -------------------------------------------------------------------------------------------------------

    def _give_up(self, group: _GroupWatchers) -> None:
        """Leaves the checks held for a group to other gateways."""
        if group.timer is not None:
            group.timer.cancel()
            group.timer = None
        checks = list(group.checks)
        group.checks.clear()
        self._held_bytes -= sum(check.found.size for check in checks)
        self._tell_shards(checks, heard=False)
        self._tell()

    def _tell_shards(self, checks: Sequence[TransactionQuestion], *, heard: bool) -> None:
        if not checks:
            return
        (self._metrics.heard if heard else self._metrics.unheard).inc(len(checks))
        offsets: dict[int, list[int]] = {}
        for check in checks:
            offsets.setdefault(check.name.shard, []).append(check.name.offset)
        for shard, those in offsets.items():
            self._report(shard, those, heard)

    def _tell(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)


def _wake_next(group: _GroupWatchers) -> None:
    """Wakes the longest waiting watcher."""
    for watcher in group.waiting:
        watcher.wake()
        return
