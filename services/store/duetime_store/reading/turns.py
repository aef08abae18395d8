"""Shares the event loop's time among scans: filters, searches, traces, long lists. Others wait for one step at most.

    scan A: a step of 1 ms ──▶ a rest as long: due entries, sends, flushes run ──▶ scan B: a step ──▶ a rest ──▶ ...

A shard has one event loop, and a long callback delays every other, due messages too. So a scan works in steps: it reads
the clock between short pieces of a step, and asks for its next turn when the time is up. Turns are first come, first
served; all scans together get half of the loop's time.

Measured with chains of eight callbacks, like those of a send: p50 2.7 ms alone, 5 ms beside steps of 1 or 2 ms, 45 ms
beside a thread that scans, since with the GIL it keeps others waiting for 5 ms each time. With a switch interval of 0.5
ms a thread costs 7 ms, takes 0.9 of the processor instead of half, and would need locks around all data that it reads.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

from duetime_core.clock import turn

STEP_S = 0.001
# Ratio of a scan's rest to its step: 1 is half of the loop's time.
REST = 1.0
# Rest after a large answer, still to be encoded and written, here and in a gateway. This leaves 250 MB/s per shard.
REST_S_PER_BYTE = 4e-9
# Rest that may be owed when the next turn begins. Without it, reading one record would cost a timer, which takes whole
# ms.
SLACK_S = 0.000_25
_TIMER_S = 0.001
# A scan that has found nothing for this long answers its position; its caller asks again.
LONG_S = 0.5


class ScanFilter(Protocol):
    """The parts of a filter that turns need."""

    @property
    def passes_all(self) -> bool: ...

    @property
    def sql(self) -> object | None: ...


class ScanTurns:
    """Gives out the turns of one event loop."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        """`now`: a clock in seconds that advances while the loop is busy."""
        self.now = now
        # The loop's time taken by all scans, and the turns given; for metrics.
        self.taken_s = 0.0
        self.count = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._free_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        # A turn was given and has not ended.
        self._given = False

    @property
    def waiting_count(self) -> int:
        """Scans waiting for their turn."""
        return sum(not one.done() for one in self._waiting)

    def walk(self) -> "YieldingScan":
        """A scan that has not begun."""
        return YieldingScan(self)

    @property
    def is_free(self) -> bool:
        """Whether a scan may begin at once."""
        return not self._given and not self._waiting and self._free_at - self.now() <= SLACK_S

    async def next(self) -> None:
        """Returns when it is the caller's turn; `end` ends it."""
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
        """Notes the end of a step. `rest_s`: rest beyond that for the time used. `given`: the step was a turn, not the
        first step of a scan."""
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
                self._timer = asyncio.get_running_loop().call_later(max(rest_s, _TIMER_S), self._resume)
            else:
                self._waiting.popleft()
                self._given = True
                future.set_result(None)

    def _resume(self) -> None:
        self._timer = None
        self._pass()


class YieldingScan:
    """One scan. Between `begin` (or `start`) and `end` it has the loop, and awaits only `turn`."""

    __slots__ = ("_began", "_first_began", "_given", "_rest_s", "_running", "_turns", "_until", "turn_count")

    def __init__(self, turns: ScanTurns) -> None:
        self._turns = turns
        self._began = self._first_began = self._until = 0.0
        self._given = self._running = False
        # Rest beyond that for the time it took.
        self._rest_s = 0.0
        # Number of waits for its turn; others had theirs in between.
        self.turn_count = 0

    def start(self) -> None:
        """Begins at once: a short scan is a call like any other, and only longer ones wait for turns."""
        self._began = self._turns.now()
        self._first_began = self._first_began or self._began
        self._until = self._began + STEP_S
        self._running = True

    def start_freely(self) -> None:
        """As `start`, for reads without a search: their time does not count as a scan's until they take turns."""
        self.start()
        self._running = False

    async def begin(self) -> None:
        """Begins in its turn: for expensive scans, or those that many callers start at the same time."""
        if not self._turns.is_free:
            await self._next()
        self.start()

    async def begin_for(self, wanted: ScanFilter) -> None:
        """Begins a scan for messages: at once, except with an expression, which is expensive."""
        if wanted.sql is not None:
            await self.begin()
        elif wanted.passes_all:
            self.start_freely()
        else:
            self.start()

    @property
    def is_over(self) -> bool:
        """Whether the step's time is up: then the scan answers its results so far, or awaits `turn`."""
        return self._turns.now() >= self._until

    @property
    def is_long(self) -> bool:
        """Whether the scan has lasted so long that an empty answer is better than none."""
        return self.lasted_s >= LONG_S

    @property
    def lasted_s(self) -> float:
        """Seconds since the scan began, including those of others' turns."""
        return self._turns.now() - self._first_began

    async def breathe(self) -> None:
        """Lets all ready callbacks run once: for large answers without a search."""
        await turn()
        self._began = self._turns.now()
        self._until = self._began + STEP_S

    def charge(self, size: int) -> None:
        """Counts the step as a scan's, with a longer rest for the `size` bytes given out."""
        self._running = True
        self._rest_s = size * REST_S_PER_BYTE

    async def turn(self) -> None:
        """Ends the step and returns with the next one."""
        self.end()
        await self._next()
        self.start()

    async def turn_if_over(self) -> None:
        """Call it between two pieces of work."""
        if self.is_over:
            await self.turn()

    async def _next(self) -> None:
        self.turn_count += 1
        await self._turns.next()
        self._given = True

    def end(self) -> None:
        """Gives the loop back to others. Idempotent."""
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
