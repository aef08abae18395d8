"""A timer that is set repeatedly: a timerfd, precise to some 0.1 ms; the loop's own timers count whole milliseconds."""

import asyncio
import ctypes
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable

_MONOTONIC = 1
_NS_MIN = 1
_NS_PER_MS, _NS_PER_S = 1_000_000, 1_000_000_000


class _Spec(ctypes.Structure):
    """struct itimerspec: the interval, then the delay. A delay of zero would stop the timer."""

    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("delay_s", ctypes.c_long),
        ("delay_ns", ctypes.c_long),
    )


# PyDLL keeps Python's lock: the calls take only a microsecond.
_libc = ctypes.PyDLL(None, use_errno=True)
IS_PRECISE = sys.platform == "linux" and hasattr(_libc, "timerfd_create")


class Bell(ABC):
    """Runs its callback on the loop after the last set delay. Belongs to the loop's thread."""

    @abstractmethod
    def set(self, delay_ms: float) -> None:
        """Replaces the current delay."""

    @abstractmethod
    def cancel(self) -> None:
        """Stops the timer until it is set again."""

    @abstractmethod
    def close(self) -> None:
        """Stops the timer permanently."""


class PreciseBell(Bell):
    """Uses a timerfd. Raises: OSError: no descriptor is available."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback = callback
        self._fd: int = _libc.timerfd_create(_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise _error()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._fd, self._ring)

    def set(self, delay_ms: float) -> None:
        self._arm(max(int(delay_ms * _NS_PER_MS), _NS_MIN))

    def cancel(self) -> None:
        self._arm(0)

    def _arm(self, delay_ns: int) -> None:
        spec = _Spec(0, 0, *divmod(delay_ns, _NS_PER_S))
        if self._fd >= 0 and _libc.timerfd_settime(self._fd, 0, ctypes.byref(spec), None):
            raise _error()

    def _ring(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            # The timer was set again, or cancelled, after the loop had seen it.
            return
        self._callback()

    def close(self) -> None:
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1


def _error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))
