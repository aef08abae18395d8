"""Appends to the log and flushes it on a thread of its own, for the event loop.

The compiled twin's thread writes and flushes without the GIL: the event loop hands it an append and gets the result
with one wake-up each. A thread of Python waits for the GIL before the write and again after the flush, up to
`SWITCH_S` each time while the event loop is busy (docs/adr/0094).
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from os import strerror
from typing import Any, ParamSpec, TypeVar

from duetime_format.compiled import twin

from duetime_store.files.disk import Buffer
from duetime_store.log.segment import Segment

P = ParamSpec("P")
T = TypeVar("T")

_twin = twin("duetime_store.log._disk_thread")
_WRITE = 1


class WriteFailed(Exception):
    """The write failed, so that nothing was flushed; an OSError of `append` is one of a flush."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error


class DiskThread(Executor):
    """The compiled thread: does one work after the other, for one event loop."""

    def __init__(self) -> None:
        assert _twin is not None
        self._thread = _twin.Thread()
        # Watches for results since the first work.
        self._loop: asyncio.AbstractEventLoop | None = None

    def submit(self, work: Callable[P, T], /, *args: P.args, **named: P.kwargs) -> "Future[T]":
        self._watch()
        future: Future[T] = Future()
        self._thread.call(future, partial(work, *args, **named))
        return future

    def append(self, segment: Segment, position: int, buffers: Sequence[Buffer], flushed: Sequence[Segment]) -> Any:
        """See the function; the segments' disk is the machine's."""
        future = self._watch().create_future()
        at = position - segment.base
        self._thread.append(future, segment.file, at, list(buffers), [one.file for one in flushed])
        return future

    def _watch(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(self._thread.fileno(), self._take)
        return self._loop

    def _take(self) -> None:
        for result in self._thread.take():
            _settle(*result)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Returns when all work is done, regardless of the arguments."""
        if self._loop is not None:
            self._loop.remove_reader(self._thread.fileno())
            self._loop = None
        for result in self._thread.close():
            _settle(*result)


def _settle(
    future: "Future[Any] | asyncio.Future[Any]", failed: int, number: int, result: tuple[bool, Any] | None
) -> None:
    if future.done():
        return
    if result is not None:
        returned, value = result
        (future.set_result if returned else future.set_exception)(value)
    elif failed:
        error = OSError(number, strerror(number))
        future.set_exception(WriteFailed(error) if failed == _WRITE else error)
    else:
        future.set_result(None)


def make_disk_thread(name: str) -> Executor:
    """An executor of one thread."""
    return ThreadPoolExecutor(1, name) if _twin is None else DiskThread()


def append(
    executor: Executor, segment: Segment, position: int, buffers: Sequence[Buffer], flushed: Sequence[Segment]
) -> "asyncio.Future[None]":
    """Writes buffers one after the other into a segment, then flushes `flushed`. The future is done when all is
    durable; its errors are WriteFailed and OSError."""
    if isinstance(executor, DiskThread) and segment.is_plain:
        future: asyncio.Future[None] = executor.append(segment, position, buffers, flushed)
        return future
    work = partial(_append, segment, position, buffers, flushed)
    return asyncio.get_running_loop().run_in_executor(executor, work)


def _append(segment: Segment, position: int, buffers: Sequence[Buffer], flushed: Sequence[Segment]) -> None:
    try:
        segment.write(position, buffers)
    except OSError as error:
        raise WriteFailed(error) from error
    for one in flushed:
        one.flush()
