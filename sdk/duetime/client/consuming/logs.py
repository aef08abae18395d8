"""What consumers log, to `duetime.consumer`: lines about a message, and errors that repeat.

A line about a message has its id in the text, and `message_id`, `topic` and `attempt` as fields of the log record.
`MessageFilter` adds these fields to every other line that is logged while a handler runs.
"""

import logging
from contextvars import ContextVar

from duetime.client.connection import backoff_s, pause
from duetime.client.consuming.leases import LeasedMessage
from duetime.client.errors import DueTimeError

log = logging.getLogger("duetime.consumer")

# The message of the running handler, also in threads and tasks that the handler starts.
current: ContextVar[LeasedMessage | None] = ContextVar("duetime_message", default=None)

_WARN_EVERY_COUNT = 30


class MessageFilter(logging.Filter):
    """For log handlers: each record gets `message_id`, `topic` and `attempt`, "-" if no message handler runs.

    logging.getLogger().handlers[0].addFilter(MessageFilter())      # format="%(message_id)s %(message)s"
    """

    def filter(self, record: logging.LogRecord) -> bool:
        if not hasattr(record, "message_id"):
            message = current.get()
            fields = {"message_id": "-", "topic": "-", "attempt": "-"} if message is None else _fields(message)
            record.__dict__.update(fields)
        return True


def log_about(
    level: int, message: LeasedMessage, text: str, *values: object, error: BaseException | None = None
) -> None:
    """Logs a line about one message, with the trace of an error if one is given."""
    if log.isEnabledFor(level):
        log.log(level, "%s: " + text, message.id, *values, exc_info=error, extra=_fields(message))


def _fields(message: LeasedMessage) -> dict[str, object]:
    return {"message_id": message.id, "topic": message.topic, "attempt": message.attempt}


class FaultLog:
    """Logs an error that repeats in one place: a warning at first, when its reason changes, and about every minute."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._count = 0
        self._reason = ""

    def add(self, error: DueTimeError) -> None:
        """Counts and logs one more error."""
        loud = error.reason != self._reason or self._count % _WARN_EVERY_COUNT == 0
        self._count, self._reason = self._count + 1, error.reason
        log.log(logging.WARNING if loud else logging.DEBUG, "%s: %s; trying again", self._place, error)

    async def pause(self, error: DueTimeError) -> None:
        """As `add`; then waits until it is time to try again."""
        self.add(error)
        await pause(backoff_s(self._count))

    def clear(self) -> None:
        """Logs that it works again."""
        if self._count:
            log.info("%s: working again after %d errors", self._place, self._count)
            self._count, self._reason = 0, ""
