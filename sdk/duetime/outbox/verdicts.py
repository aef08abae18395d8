"""The next state of a row, from the server's answer to its message, or to a question for its id. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from duetime.client.errors import (
    AlreadyExists,
    Conflict,
    DueTimeError,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    Unauthenticated,
)
from duetime.client.finding.finder import FoundMessage
from duetime.client.message import Receipt, moment
from duetime.outbox.table import DOUBTFUL, FAILED, SENT, WAITING

# Pauses of a single row; they double.
PAUSE_MS_MIN = 100
PAUSE_MS_MAX = 30_000

# The server has read and rejected the message. Any other error leaves open whether it was stored.
_REFUSALS = (InvalidArgument, NotFound, AlreadyExists, Conflict)
# The server did not read the message: it rejects the relay, or this call.
_SHUT_OUT = (Unauthenticated, PermissionDenied)
# The server has no message with the id, or not even the topic.
_ABSENT = ("MESSAGE_NOT_FOUND", "TOPIC_NOT_FOUND")
# States of an undelivered message at the server.
_UNDELIVERED = ("cancelled", "prepared", "rolled back", "given up")
# gRPC's own reason: no process answers at the address. Rejections by a shard or a limit have other reasons.
_AWAY = ("UNAVAILABLE", "CANCELLED")


@dataclass(frozen=True, slots=True)
class RowVerdict:
    """The next state of a row. `next_at_ms`: the time of the next attempt of a waiting row."""

    state: str
    error: str = ""
    next_at_ms: int = 0


@dataclass(frozen=True, slots=True)
class Trust:
    """The times for which the server's answers about an id are proof, counted from the first handover.

    window: a repeat is answered with the first result.
    retention: a stored message is found.
    """

    window: timedelta
    retention: timedelta

    def repeats(self, handed_at_ms: int | None, now_ms: int) -> bool:
        """Whether the message can be sent without a question: again, or for the first time."""
        return handed_at_ms is None or now_ms - handed_at_ms < self.window // timedelta(milliseconds=1)

    def of_answer(
        self, answer: FoundMessage | DueTimeError | None, handed_at_ms: int, now_ms: int
    ) -> RowVerdict | None:
        """The next state of a row, by the answer about its id; an answer of None: it was stored, and replaced since.
        Returns None: it was never stored, and can be sent."""
        if answer is None:
            return RowVerdict(SENT)
        if isinstance(answer, FoundMessage):
            if answer.state in _UNDELIVERED:
                return RowVerdict(FAILED, f"message {answer.id} is known to the server: {answer.state}, not delivered")
            return RowVerdict(SENT)
        if answer.retriable or isinstance(answer, _SHUT_OUT):
            return RowVerdict(WAITING, str(answer), now_ms + PAUSE_MS_MAX)
        if answer.reason in _ABSENT and now_ms - handed_at_ms < self.retention // timedelta(milliseconds=1):
            return None
        handed = f"first handed over at {moment(handed_at_ms).isoformat(timespec='seconds')}, no answer is known"
        return RowVerdict(DOUBTFUL, f"{handed}; the server's answer for the id: {answer}")


def of_outcomes(outcomes: Sequence[Receipt | DueTimeError], attempts: Sequence[int], now_ms: int) -> list[RowVerdict]:
    """The next states of rows that were sent together. If the server is unavailable, all can be retried as soon as it
    answers again; otherwise the unsent ones wait separately, and block no others."""
    away = is_away(outcomes)
    verdicts = []
    for outcome, count in zip(outcomes, attempts, strict=True):
        if isinstance(outcome, Receipt):
            verdicts.append(RowVerdict(SENT))
        elif isinstance(outcome, _REFUSALS):
            verdicts.append(RowVerdict(FAILED, str(outcome)))
        else:
            pause_ms = 0 if away else min(PAUSE_MS_MIN << min(count, 16), PAUSE_MS_MAX)
            verdicts.append(RowVerdict(WAITING, str(outcome), now_ms + pause_ms))
    return verdicts


def is_away(outcomes: Sequence[Receipt | DueTimeError]) -> bool:
    """Whether no process answers at the address."""
    reasons = [outcome.reason if isinstance(outcome, DueTimeError) else "" for outcome in outcomes]
    return bool(reasons) and all(reason in _AWAY for reason in reasons)
