"""The state of the process: forked with lost connections or not, and its signals."""

import asyncio
import gc
import os
import signal
import threading
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, Self

from duetime.client.errors import Forked


def after_fork(function: Callable[[], object]) -> None:
    """Calls a function in each forked child, before anything else there."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=function)


class ForkGuard:
    """Whether this process can have connections.

    A forked child lacks gRPC's threads, and inherits their state. Every call of gRPC there crashes or hangs, even with
    a new channel.
    """

    def __init__(self) -> None:
        self._opened = False
        self.lost = False

    def note_opened(self) -> None:
        """Notes that a connection is opened."""
        self._opened = True

    def note_forked(self) -> None:
        """Called in a forked child."""
        self.lost = self.lost or self._opened
        if self.lost:
            # Collecting gRPC's leftovers crashes the child; so no existing object is collected.
            gc.freeze()

    def check(self) -> None:
        """Raises: Forked: no connection is possible."""
        if self.lost:
            raise Forked(
                "this process was forked from one connected to a DueTime server; gRPC does not survive that: "
                "start processes by spawn (multiprocessing.get_context('spawn')), or fork before the first use",
                reason="FORKED",
            )


connections = ForkGuard()
after_fork(connections.note_forked)


class OwnPipes:
    """Ends of pipes that belong to this process alone; in a forked child they are /dev/null. A child that kept them
    open would hide the end of this process from the other ends."""

    def __init__(self) -> None:
        self._fds: set[int] = set()

    def add(self, *fds: int) -> None:
        """Adds open descriptors; programs that this process starts do not inherit them, either."""
        for fd in fds:
            os.set_inheritable(fd, False)
        self._fds.update(fds)

    def discard(self, *fds: int) -> None:
        """Removes descriptors, before they are closed."""
        self._fds.difference_update(fds)

    def replace(self) -> None:
        """Called in a forked child. It closes none: their objects would close others with the same numbers."""
        null_fd = os.open(os.devnull, os.O_RDWR)
        for fd in self._fds:
            os.dup2(null_fd, fd, inheritable=False)
        os.close(null_fd)


own_pipes = OwnPipes()
after_fork(own_pipes.replace)


class Signals:
    """A with block that calls a function on SIGTERM and SIGINT, or on other signals, in the running event loop. It has
    no effect in threads other than the main one."""

    def __init__(self, handle: Callable[[], object], *numbers: signal.Signals) -> None:
        self._handle = handle
        self._numbers = numbers or (signal.SIGTERM, signal.SIGINT)
        self._releases: list[Callable[[], object]] = []

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in self._numbers:
                self._catch(number)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def release(self) -> None:
        """Stops catching signals."""
        while self._releases:
            self._releases.pop()()

    def _catch(self, number: signal.Signals) -> None:
        loop = asyncio.get_running_loop()
        try:
            loop.add_signal_handler(number, self._handle)
            self._releases.append(partial(loop.remove_signal_handler, number))
        except NotImplementedError:
            # Windows: its event loops wake up for signals too.
            def on_signal(*_: Any) -> None:
                loop.call_soon_threadsafe(self._handle)

            self._releases.append(partial(signal.signal, number, signal.signal(number, on_signal)))
