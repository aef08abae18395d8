"""What consumers log, to `duetime.consumer`: which message a line is about, and faults that go on for a while.

A line about a message has its id in the text and, as fields of the log record, `message_id`, `topic` and `attempt`.
`MessageFilter` gives these fields to every other line that is logged while a handler runs.
"""

import logging
from contextvars import ContextVar

from duetime.client.connection import backoff_s, pause
from duetime.client.consuming.leases import LeasedMessage
from duetime.client.errors import DueTimeError

log = logging.getLogger("duetime.consumer")

# The message that the running handler was called with; threads and tasks of a handler have it too.
current: ContextVar[LeasedMessage | None] = ContextVar("duetime_message", default=None)

_WARN_EVERY_FAULTS = 30


class MessageFilter(logging.Filter):
    """Add it to a log handler: each record gets `message_id`, `topic` and `attempt`, "-" where no handler runs.

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
    """A line about one message; `error`: with its trace."""
    if log.isEnabledFor(level):
        log.log(level, "%s: " + text, message.id, *values, exc_info=error, extra=_fields(message))


def _fields(message: LeasedMessage) -> dict[str, object]:
    return {"message_id": message.id, "topic": message.topic, "attempt": message.attempt}


class FaultLog:
    """What goes wrong again and again in one place: a warning first, when it changes, and about each minute."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._count = 0
        self._reason = ""

    def add(self, error: DueTimeError) -> None:
        """One more fault."""
        loud = error.reason != self._reason or self._count % _WARN_EVERY_FAULTS == 0
        self._count, self._reason = self._count + 1, error.reason
        log.log(logging.WARNING if loud else logging.DEBUG, "%s: %s; tries again", self._place, error)

    async def pause(self, error: DueTimeError) -> None:
        """Tells of one more fault and waits until it is time to try again."""
        self.add(error)
        await pause(backoff_s(self._count))

    def clear(self) -> None:
        """It went well."""
        if self._count:
            log.info("%s: goes on after %d faults", self._place, self._count)
            self._count, self._reason = 0, ""
