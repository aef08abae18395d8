"""Gathers concurrent sends into batches, which grow with the load."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from duetime.client.errors import DueTimeError
from duetime.client.sending.batch import MessageBatch
from duetime.client.sending.letters import OutgoingBatch, OutgoingMessage

# Concurrent requests: the second is in flight while the server flushes the first.
IN_FLIGHT_MAX = 2
LINGER_MS_MAX = 1.0
# Below this length a timer costs more than it gains.
LINGER_MS_MIN = 0.1
# The average batch size, less one, at which the linger is longest.
LINGER_BATCH = 64
# Roughly how many batches the moving average covers.
AVERAGE_OVER = 8

T = TypeVar("T")
OutcomeT = TypeVar("OutcomeT", contravariant=True)


class OutcomeWaiter(Protocol[OutcomeT]):
    """A future, or its equivalent for a thread."""

    def done(self) -> bool: ...

    def set_result(self, outcome: OutcomeT, /) -> None: ...

    def set_exception(self, error: Exception, /) -> None: ...

    def cancel(self) -> object: ...


@dataclass(slots=True)
class _OpenBatch(Generic[T]):
    """A batch, its senders, and the deadline of the first one (loop time)."""

    deadline: float
    batch: OutgoingBatch = field(default_factory=OutgoingBatch)
    waiters: "list[OutcomeWaiter[T | DueTimeError]]" = field(default_factory=list)


class SendGatherer(Generic[T]):
    """Hands batches of concurrent sends to `deliver`, in order.

    While fewer than two are in flight, a batch is sent when it is full, when it has reached the average size, or after
    a linger. The linger grows with the average, from none for a lone sender to 1 ms.
    """

    def __init__(self, deliver: Callable[[MessageBatch, float], Awaitable[Sequence[T | DueTimeError]]]) -> None:
        self._deliver = deliver
        self._waiting: deque[_OpenBatch[T]] = deque()
        self._timer: asyncio.Handle | None = None
        self._average = 1.0
        # Requests in flight. They end with their sends; `AsyncProducer.close` waits for those.
        self._requests: set[asyncio.Task[None]] = set()

    async def send(self, letter: OutgoingMessage, deadline: float) -> T | DueTimeError:
        future: asyncio.Future[T | DueTimeError] = asyncio.get_running_loop().create_future()
        self.add(letter, deadline, future)
        return await future

    def add(self, letter: OutgoingMessage, deadline: float, waiter: "OutcomeWaiter[T | DueTimeError]") -> None:
        """Takes a message; the waiter receives its outcome."""
        if not self._waiting or self._waiting[-1].batch.is_full_for(letter):
            self._waiting.append(_OpenBatch(deadline))
        gathered = self._waiting[-1]
        gathered.batch.add(letter)
        gathered.waiters.append(waiter)
        if self._timer is None and len(self._requests) < IN_FLIGHT_MAX:
            # Scheduled for the loop's next iteration: sends of other tasks in this one join the batch.
            self._timer = asyncio.get_running_loop().call_soon(self._schedule)

    async def close(self) -> None:
        """Cancels the requests whose senders have stopped waiting."""
        if self._timer is not None:
            self._timer.cancel()
        requests = list(self._requests)
        for request in requests:
            request.cancel()
        await asyncio.gather(*requests, return_exceptions=True)

    def _schedule(self) -> None:
        """Sends the first batch, or starts its linger."""
        self._timer = None
        if not self._waiting or len(self._requests) >= IN_FLIGHT_MAX:
            return
        linger_ms = LINGER_MS_MAX * min(1.0, (self._average - 1.0) / LINGER_BATCH)
        enough = len(self._waiting) > 1 or len(self._waiting[0].waiters) >= self._average - 1.0
        if enough or linger_ms < LINGER_MS_MIN:
            self._send_first()
        else:
            self._timer = asyncio.get_running_loop().call_later(linger_ms / 1000.0, self._send_first)

    def _send_first(self) -> None:
        self._timer = None
        gathered = self._waiting.popleft()
        self._average += (len(gathered.waiters) - self._average) / AVERAGE_OVER
        task = asyncio.get_running_loop().create_task(self._run(gathered))
        self._requests.add(task)
        task.add_done_callback(self._ended)
        self._schedule()

    async def _run(self, gathered: _OpenBatch[T]) -> None:
        waiters = gathered.waiters
        try:
            outcomes = await self._deliver(gathered.batch.closed(), gathered.deadline)
            for waiter, outcome in zip(waiters, outcomes, strict=True):
                if not waiter.done():
                    waiter.set_result(outcome)
        except Exception as error:
            # Raised for each sender; a cancellation would hide the reason.
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_exception(error)
        finally:
            for waiter in waiters:
                waiter.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._requests.discard(task)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_soon(self._schedule)
