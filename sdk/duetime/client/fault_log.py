"""Logs errors that repeat."""

import logging

from duetime.client.connection import backoff_s, pause
from duetime.client.errors import DueTimeError

_WARN_EVERY_COUNT = 30


class FaultLog:
    """Logs repeated errors of one place: at first, when the reason changes, and about every minute."""

    def __init__(self, place: str, log: logging.Logger) -> None:
        self._place = place
        self._log = log
        self._count = 0
        self._reason = ""

    def add(self, error: DueTimeError, level: int = logging.WARNING) -> None:
        """Counts one more error, and logs it at the level, or for debugging."""
        loud = error.reason != self._reason or self._count % _WARN_EVERY_COUNT == 0
        self._count, self._reason = self._count + 1, error.reason
        self._log.log(level if loud else logging.DEBUG, "%s: %s; trying again", self._place, error)

    async def pause(self, error: DueTimeError, level: int = logging.WARNING) -> None:
        """As `add`; then waits until the next attempt."""
        self.add(error, level)
        await pause(backoff_s(self._count, error))

    def clear(self) -> None:
        """Logs that the place works again."""
        if self._count:
            self._log.info("%s: working again after %d errors", self._place, self._count)
            self._count, self._reason = 0, ""
