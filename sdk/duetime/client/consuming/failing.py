"""How a handler says that a message failed, and what is told of it to the server.

raise Retry(after="30s")        comes back in 30 s
raise Retry() from error        comes back by the policy; the dead letter would tell of `error`
raise Reject("no such order")   becomes a dead letter at once
any other exception             comes back by the policy
"""

import os
import traceback
from datetime import timedelta
from pathlib import Path

from duetime_format.attempts import MESSAGE_CHARS_MAX, TRACE_CHARS_MAX, TYPE_CHARS_MAX
from duetime_format.limits import BACKOFF_MS_MAX

from duetime.client.connection import seconds
from duetime.client.errors import InvalidArgument
from duetime.v1 import consumer_pb2

# Frames of a trace: more than fit, and few enough that a deep recursion costs little.
_FRAMES_MAX = 40

# The package: the command is a user of the client, and its frames tell a user nothing.
_FOLDER = f"{Path(__file__).parents[2]}{os.sep}"

RETRY_AFTER_S_MAX = BACKOFF_MS_MAX // 1000


class Retry(Exception):
    """Raised by a handler: the message comes back, after a delay or, without one, by the policy.

    It counts as an attempt. `after`: "30s", seconds or a timedelta, 12 h at most; never less, but up to the server's
    smallest delay level more.
    """

    def __init__(self, reason: str = "", *, after: str | float | timedelta | None = None) -> None:
        super().__init__(reason)
        self.after_s = None if after is None else seconds(after, "after")
        if self.after_s is not None and self.after_s > RETRY_AFTER_S_MAX:
            description = f"{after!r} is more than 12 h"
            raise InvalidArgument.of("after", description)


class Reject(Exception):
    """Raised by a handler: the message becomes a dead letter at once."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)


def handler_error(error: BaseException) -> consumer_pb2.HandlerError:
    """An exception as the server keeps it: cut to its limits, the end of the trace is kept."""
    if isinstance(error, Retry | Reject) and error.__cause__ is not None:
        error = error.__cause__
    trace = ""
    if not isinstance(error, Retry | Reject):
        trace = "".join(traceback.format_exception(error, limit=-_FRAMES_MAX))
    return consumer_pb2.HandlerError(
        type=_clean(type(error).__qualname__)[:TYPE_CHARS_MAX],
        message=_clean(text_of(error))[:MESSAGE_CHARS_MAX],
        trace=_clean(trace)[-TRACE_CHARS_MAX:],
    )


def without_own_frames(error: BaseException) -> None:
    """Cuts the SDK's frames off the beginning of a trace: it begins with the handler."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_FOLDER):
        frames = frames.tb_next
    error.__traceback__ = frames


def nack(receipt: bytes, error: BaseException) -> consumer_pb2.Nack:
    """What the server is told of a delivery that failed."""
    wire = consumer_pb2.Nack(receipt=receipt, reject=isinstance(error, Reject), error=handler_error(error))
    if isinstance(error, Retry) and error.after_s is not None:
        wire.delay_ms = round(error.after_s * 1000)
    return wire


def text_of(error: BaseException) -> str:
    """`str()` of an error of which nothing is known."""
    try:
        return str(error)
    except Exception as fault:
        return f"(no text: {type(fault).__qualname__} in __str__)"


def _clean(text: str) -> str:
    """Without lone surrogates, which protobuf refuses."""
    return text.encode("utf-8", "backslashreplace").decode()
