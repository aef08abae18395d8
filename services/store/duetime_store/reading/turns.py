"""The event loop's time for what walks: filters, searches, traces, long lists. Others wait for one step of it at most.

    scan A: a step of 1 ms ──▶ a rest as long: what is due, sent, flushed goes on ──▶ scan B: a step ──▶ a rest ──▶ ...

A shard has one event loop, and whoever holds it holds up everybody: what is due too. So a scan works in steps, looks at
the clock between short pieces of one, and asks for its next turn when its time is up. Turns go round, first come, first
served; however many scans there are, together they have half of the loop's time.

Measured beside chains of eight callbacks, as a send is one: p50 2.7 ms alone, 5 ms beside steps of 1 or 2 ms, 45 ms
beside a thread that scans, since with the GIL it keeps others waiting for 5 ms each time. With a switch interval of
0.5 ms a thread costs 7 ms, takes 0.9 of the processor instead of half, and would need locks around all that it reads.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

from duetime_core.clock import turn

STEP_S = 0.001
# A scan's rest is its step times this: 1 is half of the loop's time.
REST = 1.0
# After a large answer: it is yet to be encoded and written, here and in a gateway. 250 MB/s are left of one shard.
REST_S_PER_BYTE = 4e-9
# What may be owed when the next turn begins. Without it a look at one record would cost a timer, which take whole ms.
SLACK_S = 0.000_25
_TIMER_S = 0.001
# A scan that has found nothing for so long says how far it is, and is asked again.
LONG_S = 0.5


class Wanted(Protocol):
    """A filter."""

    @property
    def passes_all(self) -> bool: ...

    @property
    def sql(self) -> object | None: ...


class Turns:
    """Of one event loop."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        """`now`: seconds of processor-like time, which goes on while the loop is held."""
        self.now = now
        # Of the loop, by all scans, and turns given. For metrics.
        self.taken_s = 0.0
        self.count = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._free_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        # A turn was given and has not ended.
        self._given = False

    @property
    def waiting_count(self) -> int:
        """Scans that wait for their turn."""
        return sum(not one.done() for one in self._waiting)

    def walk(self) -> "Walk":
        """A scan that has not begun."""
        return Walk(self)

    @property
    def is_free(self) -> bool:
        """Whether a scan may begin at once."""
        return not self._given and not self._waiting and self._free_at - self.now() <= SLACK_S

    async def next(self) -> None:
        """Returns when it is the caller's turn, which ends with `end`."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        self._pass()
        try:
            await future
        except asyncio.CancelledError:
            if not future.cancelled():
                self.end(0.0, given=True)
            raise

    def end(self, used_s: float, rest_s: float = 0.0, *, given: bool) -> None:
        """A step has ended; `rest_s`: beyond that for the time used; `given`: it was a turn, and not the first step of
        a scan."""
        self.taken_s += used_s
        self.count += 1
        self._free_at = max(self._free_at, self.now()) + used_s * REST + rest_s
        if given:
            self._given = False
        if self._waiting:
            self._pass()

    def _pass(self) -> None:
        while self._waiting and self._timer is None and not self._given:
            future, rest_s = self._waiting[0], self._free_at - self.now()
            if future.done():
                self._waiting.popleft()
            elif rest_s > SLACK_S:
                self._timer = asyncio.get_running_loop().call_later(max(rest_s, _TIMER_S), self._go_on)
            else:
                self._waiting.popleft()
                self._given = True
                future.set_result(None)

    def _go_on(self) -> None:
        self._timer = None
        self._pass()


class Walk:
    """One scan. Between `begin` (or `start`) and `end` it has the loop, and awaits nothing but `turn`."""

    __slots__ = ("_began", "_first_began", "_given", "_rest_s", "_running", "_turns", "_until", "turn_count")

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._began = self._first_began = self._until = 0.0
        self._given = self._running = False
        # Beyond that for the time it took.
        self._rest_s = 0.0
        # How often it has waited for its turn: others had theirs in between.
        self.turn_count = 0

    def start(self) -> None:
        """Begins at once: a short look is a call like any other, and only what goes on waits for turns."""
        self._began = self._turns.now()
        self._first_began = self._first_began or self._began
        self._until = self._began + STEP_S
        self._running = True

    def start_freely(self) -> None:
        """As `start`, for what searches nothing: its time is no scan's, until it takes turns."""
        self.start()
        self._running = False

    async def begin(self) -> None:
        """Begins in its turn: for looks that are dear, or that many wait for at the same time."""
        if not self._turns.is_free:
            await self._next()
        self.start()

    async def begin_for(self, wanted: Wanted) -> None:
        """As a look for messages begins: at once, but for expressions, which are dear."""
        if wanted.sql is not None:
            await self.begin()
        elif wanted.passes_all:
            self.start_freely()
        else:
            self.start()

    @property
    def is_over(self) -> bool:
        """The step's time is up: what can be told is told, or `turn` awaited."""
        return self._turns.now() >= self._until

    @property
    def is_long(self) -> bool:
        """It goes on for so long that an answer without anything found is better than none."""
        return self._turns.now() - self._first_began >= LONG_S

    async def breathe(self) -> None:
        """Lets all that is ready run once: for what gives out much, and does not search."""
        await turn()
        self._began = self._turns.now()
        self._until = self._began + STEP_S

    def charge(self, size: int) -> None:
        """It has given out so many bytes that its step counts as a scan's, and what follows is at their expense."""
        self._running = True
        self._rest_s = size * REST_S_PER_BYTE

    async def turn(self) -> None:
        """Ends the step and returns with the next one."""
        self.end()
        await self._next()
        self.start()

    async def turn_if_over(self) -> None:
        """Between two pieces of work."""
        if self.is_over:
            await self.turn()

    async def _next(self) -> None:
        self.turn_count += 1
        await self._turns.next()
        self._given = True

    def end(self) -> None:
        """The loop is others' again. Idempotent."""
        if self._running:
            self._turns.end(self._turns.now() - self._began, self._rest_s, given=self._given)
            self._given = self._running = False
            self._rest_s = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
