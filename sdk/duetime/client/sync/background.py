"""The thread with the event loop that all synchronous clients of a process share."""

import asyncio
import atexit
import threading
from collections.abc import Callable, Coroutine
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from duetime.client.errors import Closed
from duetime.client.process import after_fork, connections

T = TypeVar("T")

# Time for unclosed clients to end at the exit of the interpreter.
EXIT_TIMEOUT_S = 2.0


class Background:
    """See the module. The thread is a daemon: an unclosed client does not keep the interpreter alive."""

    def __init__(self) -> None:
        self._exiting = False
        self.forget()

    def forget(self) -> None:
        """Forgets the thread in a forked child: it exists only in the parent."""
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._end: asyncio.Event | None = None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine and returns its result; cancels it when the caller is interrupted.

        Raises:
            Closed: the interpreter is shutting down.
            Forked: this process can't have connections.
        """
        self._check(work)
        call = _BackgroundCall(work)
        try:
            self._started().call_soon_threadsafe(call.start)
            ended = call.wait()
        except BaseException:
            self._started().call_soon_threadsafe(call.cancel)
            raise
        try:
            return ended.result()
        except asyncio.CancelledError:
            if not self._exiting:
                raise
            raise Closed("closed: interpreter shutdown", reason="CLOSED") from None

    async def run_async(self, work: Coroutine[Any, Any, T]) -> T:
        """As `run`, for a caller in another event loop, which runs meanwhile."""
        self._check(work)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._started()))

    def call(self, function: Callable[[], None]) -> None:
        """Schedules a function in the loop's thread. Raises: Closed: the interpreter is shutting down."""
        if self._exiting:
            raise Closed("closed: interpreter shutdown", reason="CLOSED")
        self._started().call_soon_threadsafe(function)

    def _check(self, work: Coroutine[Any, Any, Any]) -> None:
        if self._exiting or connections.lost:
            work.close()
            connections.check()
            raise Closed("closed: interpreter shutdown", reason="CLOSED")

    def exit(self) -> None:
        """Ends all running work, so that none is interrupted when the interpreter tears down the loop."""
        self._exiting = True
        if self._loop is not None and self._thread is not None and self._end is not None:
            self._loop.call_soon_threadsafe(self._end.set)
            self._thread.join(EXIT_TIMEOUT_S)

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop, self._end = asyncio.new_event_loop(), asyncio.Event()
                arguments = (self._loop, self._end)
                self._thread = threading.Thread(target=self._serve, args=arguments, name="duetime", daemon=True)
                self._thread.start()
            return self._loop

    @staticmethod
    def _serve(loop: asyncio.AbstractEventLoop, end: asyncio.Event) -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            # The runner cancels the rest after the return.
            runner.run(_wait(end))


class _BackgroundCall(Generic[T]):
    """A coroutine with a waiting thread.

    A `concurrent.futures.Future` is not safe with Ctrl-C: an interrupt while the future's lock is held leaves it
    locked, and the loop's thread waits for it forever. `SimpleQueue` is C code and holds no lock across a signal.
    """

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self._work = work
        self._task: asyncio.Task[T] | None = None
        self._done: SimpleQueue[asyncio.Task[T]] = SimpleQueue()

    def start(self) -> None:
        """Starts the task, in the loop's thread."""
        self._task = asyncio.ensure_future(self._work)
        self._task.add_done_callback(self._done.put)

    def cancel(self) -> None:
        """Cancels the task, in the loop's thread; an unstarted coroutine never starts."""
        if self._task is None:
            self._work.close()
        else:
            self._task.cancel()

    def wait(self) -> asyncio.Task[T]:
        """Blocks the calling thread until the task has ended, and returns the task."""
        return self._done.get()


async def _wait(end: asyncio.Event) -> None:
    await end.wait()


background = Background()
after_fork(background.forget)
atexit.register(background.exit)
