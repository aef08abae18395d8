"""Log lines of consumers about messages, in `duetime.consumer`.

A line about a message has its id in the text, and `message_id`, `topic` and `attempt` as fields of the log record.
`MessageFilter` adds these fields to every other line that is logged while a handler runs.
"""

import logging
from contextvars import ContextVar

from duetime.client.consuming.leased import LeasedMessage

log = logging.getLogger("duetime.consumer")

# The message of the running handler, also in threads and tasks that the handler starts.
current: ContextVar[LeasedMessage | None] = ContextVar("duetime_message", default=None)


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
