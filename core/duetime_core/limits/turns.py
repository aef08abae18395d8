"""Shares the work on requests among users: the requests in progress of one user are limited to a part.

    a request is read ──▶ is there capacity in its user's part? ── yes ──▶ decoded, processed, answered ──▶ released
                                       │ no
                                       └──▶ waits for earlier ones of the same user

A user without requests in progress never waits, so a request competes at most with one part per other user. A user who
was alone lately has no limit: nobody else has to be protected.
"""

import asyncio
from collections import deque

from prometheus_client import CollectorRegistry, Counter, Gauge

from duetime_core.clock import Clock

# Capacity for requests in progress of all users, beyond one request each; users with requests in progress have equal
# parts. With twice as much, a flood of single sends made another user's wait more than twice as long
# (docs/adr/0050).
WORK_BYTES = 64 * 1024
# Cost of a request in body bytes, beside its size.
REQUEST_COST = 8 * 1024
# Users with calls within this time limit each other.
RECENT_MS = 10_000
_SWEEP_MS = 1_000
# Longest time in progress of a request that may wait for an event.
POLL_S = 0.02


class _User:
    """One user's requests: in progress, and waiting for them."""

    __slots__ = ("held", "seen_ms", "waiting")

    def __init__(self) -> None:
        self.held = 0
        self.seen_ms = 0.0
        self.waiting: deque[tuple[int, asyncio.Future[None]]] = deque()


class Turn:
    """A request in progress, until `leave`."""

    __slots__ = ("_cost", "_timer", "_turns", "_user")

    def __init__(self, turns: "RequestTurns", user: _User, cost: int) -> None:
        self._turns = turns
        self._user = user
        self._cost = cost
        self._timer: asyncio.TimerHandle | None = None

    def leave(self) -> None:
        """Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
        if self._cost:
            self._turns._leave(self._user, self._cost)
            self._cost = 0

    def leave_soon(self) -> None:
        """Releases the turn soon: a request that waits for long is not in progress."""
        self._timer = asyncio.get_running_loop().call_later(POLL_S, self.leave)

    def __enter__(self) -> "Turn":
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()


class RequestTurns:
    """The requests in progress at one server. State changes in synchronous methods only."""

    def __init__(self, clock: Clock, registry: CollectorRegistry | None = None) -> None:
        self._clock = clock
        self._users: dict[str, _User] = {}
        # Number of users with requests in progress.
        self._busy_count = 0
        self._swept_ms = 0.0
        self.waiting_count = 0
        name, text = "duetime_turns_waiting", "Requests waiting for others of the same user"
        Gauge(name, text, registry=registry).set_function(lambda: self.waiting_count)
        self._waited = Counter(
            "duetime_turns_waited", "Requests that waited for others of the same user", registry=registry
        )

    async def enter(self, name: str, size: int) -> Turn:
        """Waits until a request of `size` bytes may be processed."""
        user, cost = self._user(name), REQUEST_COST + size
        if user.waiting or not self._fits(user, cost):
            await self._wait(user, cost)
        else:
            self._take(user, cost)
        return Turn(self, user, cost)

    def _user(self, name: str) -> _User:
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._swept_ms >= _SWEEP_MS:
            self._swept_ms = now_ms
            self._users = {key: one for key, one in self._users.items() if one.held or now_ms - one.seen_ms < RECENT_MS}
        user = self._users.get(name)
        if user is None:
            user = self._users[name] = _User()
        user.seen_ms = now_ms
        return user

    def _fits(self, user: _User, cost: int) -> bool:
        return not user.held or len(self._users) == 1 or user.held + cost <= WORK_BYTES // self._busy_count

    def _take(self, user: _User, cost: int) -> None:
        self._busy_count += not user.held
        user.held += cost

    def _leave(self, user: _User, cost: int) -> None:
        user.held -= cost
        self._busy_count -= not user.held
        # A waiting user has requests in progress, and is checked again at their end: so no other user need be checked
        # now.
        while user.waiting:
            own, turn = user.waiting[0]
            # A cancelled waiter leaves the queue when its task runs next, possibly later.
            if not turn.cancelled():
                if not self._fits(user, own):
                    return
                self._take(user, own)
                turn.set_result(None)
            user.waiting.popleft()

    async def _wait(self, user: _User, cost: int) -> None:
        self._waited.inc()
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        place = cost, turn
        user.waiting.append(place)
        self.waiting_count += 1
        try:
            await turn
        except BaseException:
            if not turn.cancelled():
                self._leave(user, cost)
            elif place in user.waiting:
                user.waiting.remove(place)
            raise
        finally:
            self.waiting_count -= 1
