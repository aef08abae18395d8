"""Concurrent sends gathered into batches, which grow with the load."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from duetime.client.errors import DueTimeError
from duetime.client.sending.batch import SendBatch

# Concurrent requests: the second is under way while the server flushes the first.
IN_FLIGHT_MAX = 2
LINGER_MS_MAX = 5.0
# Below this a timer costs more than it gains.
LINGER_MS_MIN = 0.1
# The average batch, less one, at which the linger is longest.
LINGER_BATCH = 64
# Roughly how many batches the moving average covers.
AVERAGE_OVER = 8

T = TypeVar("T")


@dataclass(slots=True)
class _Gathered(Generic[T]):
    """A batch, the futures of its senders, and the deadline of the first one (loop time)."""

    deadline: float
    batch: SendBatch = field(default_factory=SendBatch)
    futures: list[asyncio.Future[T | DueTimeError]] = field(default_factory=list)


class Gatherer(Generic[T]):
    """Hands batches of concurrent sends to `deliver`, in order.

    While fewer than two are in flight, a batch is sent when it is full, when it has reached the average size, or after
    a linger. The linger grows with the average, from none for a lone sender to 5 ms.
    """

    def __init__(self, deliver: Callable[[SendBatch, float], Awaitable[Sequence[T | DueTimeError]]]) -> None:
        self._deliver = deliver
        self._waiting: deque[_Gathered[T]] = deque()
        self._timer: asyncio.Handle | None = None
        self._average = 1.0
        # Requests in flight. They end with their sends, which `AsyncProducer.close` waits for.
        self._requests: set[asyncio.Task[None]] = set()

    async def send(self, encoded: bytes, message_id: str, topic: str, deadline: float) -> T | DueTimeError:
        loop = asyncio.get_running_loop()
        if not self._waiting or self._waiting[-1].batch.is_full_for(len(encoded)):
            self._waiting.append(_Gathered(deadline))
        gathered = self._waiting[-1]
        future: asyncio.Future[T | DueTimeError] = loop.create_future()
        gathered.batch.add(encoded, message_id, topic)
        gathered.futures.append(future)
        if self._timer is None and len(self._requests) < IN_FLIGHT_MAX:
            # At the loop's next iteration: sends of other tasks in this one join the batch.
            self._timer = loop.call_soon(self._schedule)
        return await future

    async def close(self) -> None:
        """Cancels the requests whose senders no longer wait."""
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
        enough = len(self._waiting) > 1 or len(self._waiting[0].futures) >= self._average - 1.0
        if enough or linger_ms < LINGER_MS_MIN:
            self._send_first()
        else:
            self._timer = asyncio.get_running_loop().call_later(linger_ms / 1000.0, self._send_first)

    def _send_first(self) -> None:
        self._timer = None
        gathered = self._waiting.popleft()
        self._average += (len(gathered.futures) - self._average) / AVERAGE_OVER
        task = asyncio.get_running_loop().create_task(self._run(gathered))
        self._requests.add(task)
        task.add_done_callback(self._ended)
        self._schedule()

    async def _run(self, gathered: _Gathered[T]) -> None:
        futures = gathered.futures
        try:
            outcomes = await self._deliver(gathered.batch, gathered.deadline)
            for future, outcome in zip(futures, outcomes, strict=True):
                if not future.done():
                    future.set_result(outcome)
        except Exception as error:
            # Raised for each sender; a cancellation would not say why.
            for future in futures:
                if not future.done():
                    future.set_exception(error)
        finally:
            for future in futures:
                future.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._requests.discard(task)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_soon(self._schedule)
