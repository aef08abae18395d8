"""Time limits of awaited code: `asyncio.timeout` and `timeout_at`, for each supported Python.

Before Python 3.11.3 (Debian 12 has 3.11.2) these raise CancelledError instead of TimeoutError in a task that is being
cancelled, for instance in the `finally` of a handler.
"""

import asyncio
import sys
from types import TracebackType
from typing import Self


class MendedTimeout(asyncio.Timeout):  # type: ignore[misc]  # final for type checkers only
    """`asyncio.Timeout` as of 3.11.3: it counts the cancellations before it."""

    async def __aenter__(self) -> Self:
        task = asyncio.current_task()
        self._cancelling_before = 0 if task is None else task.cancelling()
        await super().__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await super().__aexit__(kind, error, trace)
        task = asyncio.current_task()
        is_own = task is not None and task.cancelling() <= self._cancelling_before
        if self.expired() and is_own and isinstance(error, asyncio.CancelledError):
            raise TimeoutError from error


_Timeout = asyncio.Timeout if sys.version_info >= (3, 11, 3) else MendedTimeout


def within(timeout_s: float | None) -> asyncio.Timeout:
    """As `asyncio.timeout`."""
    return until(None if timeout_s is None else asyncio.get_running_loop().time() + timeout_s)


def until(deadline_s: float | None) -> asyncio.Timeout:
    """As `asyncio.timeout_at`: a time of the event loop's clock."""
    return _Timeout(deadline_s)
