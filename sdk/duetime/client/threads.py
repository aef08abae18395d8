"""Threads for plain handlers.

`ThreadPoolExecutor` is unsuitable: the interpreter waits for its threads at exit, and a hanging handler would keep a
drained process alive forever.
"""

import asyncio
import queue
import threading
from collections.abc import Callable
from contextvars import Context
from typing import Any

from duetime.client.callables import check_returned

_Job = tuple[Context, Callable[[Any], object], Any, asyncio.Future[None]]


class HandlerThreadPool:
    """Up to `count_max` threads, started on demand; they end when the pool is closed."""

    def __init__(self, count_max: int, name: str) -> None:
        self._count_max = count_max
        self._name = name
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._busy = 0

    def run(self, context: Context, function: Callable[[Any], object], argument: object) -> asyncio.Future[None]:
        """Calls the function in one of the threads. Its result is dropped; its exception is raised by the future."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.add_done_callback(self._ended)
        self._busy += 1
        if self._busy > len(self._threads) < self._count_max:
            name = f"{self._name}-{len(self._threads)}"
            thread = threading.Thread(target=_work, args=(self._jobs,), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()
        self._jobs.put((context, function, argument, future))
        return future

    def close(self) -> None:
        """Lets each thread end after its current call."""
        for _ in self._threads:
            self._jobs.put(None)

    def _ended(self, _future: asyncio.Future[None]) -> None:
        self._busy -= 1


def _work(jobs: "queue.SimpleQueue[_Job | None]") -> None:
    while (job := jobs.get()) is not None:
        context, function, argument, future = job
        error: BaseException | None = None
        try:
            check_returned(context.run(function, argument))
        except BaseException as raised:
            error = raised
        loop = future.get_loop()
        try:
            loop.call_soon_threadsafe(_settle, future, error)
        except RuntimeError:
            return  # the loop is closed, and no caller waits
        del job, context, function, argument, future, error


def _settle(future: asyncio.Future[None], error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    elif isinstance(error, StopIteration):
        # A future rejects StopIteration: it would end the awaiting coroutine.
        future.set_exception(RuntimeError("the handler raised StopIteration"))
    else:
        future.set_exception(error)
