"""The ways of a handler to fail a message, and the reports of failures to the server.

raise Retry("30s")              is delivered again in 30 s
raise Retry() from error        is delivered again by the policy; a dead letter would show `error`
raise Reject("no such order")   becomes a dead letter at once
any other exception             is delivered again by the policy
an ExceptionGroup with these    counts as the Reject within it, else as the Retry with the longest delay
"""

import os
import traceback
from collections.abc import Iterator
from pathlib import Path

from duetime_format.attempts import MESSAGE_CHARS_MAX, TRACE_CHARS_MAX, TYPE_CHARS_MAX
from duetime_format.limits import BACKOFF_MS_MAX

from duetime.client.errors import InvalidArgument
from duetime.client.lengths import Length, seconds
from duetime.v1 import consumer_pb2

# Frames of a trace: more than are stored, and few enough to make a deep recursion cheap.
_FRAMES_MAX = 40

# The whole package: frames of the command, which uses the client, do not help a user either.
_FOLDER = f"{Path(__file__).parents[2]}{os.sep}"

RETRY_AFTER_S_MAX = BACKOFF_MS_MAX // 1000


class Retry(Exception):
    """Raised by a handler: the message is redelivered, after a delay or, without one, by the policy.

    This counts as an attempt. `after` is "30s" or a timedelta, 12 h at most. The delay is never shorter, and
    longer by at most the server's smallest delay level.

    Raises:
        InvalidArgument: `after` is no length, or too long; a reason is given by its name, `Retry(reason="why")`.
    """

    def __init__(self, after: Length | None = None, *, reason: str = "") -> None:
        super().__init__(reason)
        self.after_s = None if after is None else seconds(after, "after")
        if self.after_s is not None and self.after_s > RETRY_AFTER_S_MAX:
            description = f"{after!r} is more than 12 h"
            raise InvalidArgument.of("after", description)


class Reject(Exception):
    """Raised by a handler: the message becomes a dead letter at once."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)


class HostedError(Exception):
    """An exception of a task in another process: the name of its type, its text, and its trace as a text."""

    def __init__(self, kind: str, text: str, trace: str) -> None:
        super().__init__(text)
        self.kind, self.trace = kind, trace
        self.add_note(trace or kind)


def decision_of(error: BaseException) -> BaseException:
    """The Reject or Retry within an exception group, such as an asyncio.TaskGroup's; else the error itself."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    leaves = list(_leaves(error))
    rejects = [leaf for leaf in leaves if isinstance(leaf, Reject)]
    retries = [leaf for leaf in leaves if isinstance(leaf, Retry)]
    if rejects:
        return rejects[0]
    return max(retries, key=lambda retry: -1.0 if retry.after_s is None else retry.after_s, default=error)


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


def handler_error(error: BaseException) -> consumer_pb2.HandlerError:
    """An exception in the form that the server stores: cut to its limits; the end of the trace is kept."""
    if isinstance(error, Retry | Reject) and error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, HostedError):
        return consumer_pb2.HandlerError(type=error.kind, message=text_of(error), trace=error.trace)
    trace = ""
    if not isinstance(error, Retry | Reject):
        trace = "".join(traceback.format_exception(error, limit=-_FRAMES_MAX))
    return consumer_pb2.HandlerError(
        type=_clean(type(error).__qualname__)[:TYPE_CHARS_MAX],
        message=_clean(text_of(error))[:MESSAGE_CHARS_MAX],
        trace=_clean(trace)[-TRACE_CHARS_MAX:],
    )


def without_own_frames(error: BaseException) -> None:
    """Removes the SDK's frames from a trace, so that it starts with the handler."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_FOLDER):
        frames = frames.tb_next
    error.__traceback__ = frames


def nack(receipt: bytes, error: BaseException) -> consumer_pb2.Nack:
    """The wire form of a failed delivery."""
    wire = consumer_pb2.Nack(receipt=receipt, reject=isinstance(error, Reject), error=handler_error(error))
    if isinstance(error, Retry) and error.after_s is not None:
        wire.delay_ms = round(error.after_s * 1000)
    return wire


def text_of(error: BaseException) -> str:
    """`str()` of any error, even if its `__str__` raises."""
    try:
        return str(error)
    except Exception as fault:
        return f"(no text: {type(fault).__qualname__} in __str__)"


def _clean(text: str) -> str:
    """Removes lone surrogates, which protobuf rejects."""
    return text.encode("utf-8", "backslashreplace").decode()
