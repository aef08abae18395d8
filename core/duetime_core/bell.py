"""One timer that is set again and again: by a timerfd to some 0.1 ms, where the loop's own count whole milliseconds."""

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
    """struct itimerspec: the interval, then the delay. Zero as delay would stop the timer."""

    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("delay_s", ctypes.c_long),
        ("delay_ns", ctypes.c_long),
    )


# PyDLL: the calls take a microsecond, in which no other thread need get Python's lock.
_libc = ctypes.PyDLL(None, use_errno=True)
IS_PRECISE = sys.platform == "linux" and hasattr(_libc, "timerfd_create")


class Bell(ABC):
    """Runs its callback on the loop once the delay that was set last has passed. Belongs to the loop's thread."""

    @abstractmethod
    def set(self, delay_ms: float) -> None:
        """Replaces what was set before."""

    @abstractmethod
    def cancel(self) -> None:
        """It does not ring until it is set again."""

    @abstractmethod
    def close(self) -> None:
        """It does not ring any more."""


class PreciseBell(Bell):
    """By a timerfd. Raises: OSError: there is no descriptor."""

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
            # It was set again, or cancelled, after the loop had seen it.
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
