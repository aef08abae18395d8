"""A message's failed deliveries in its property DT_ATTEMPTS: compact JSON of a bounded size. Pure.

    {"attempts":[[n,received_at_ms,failed_at_ms,"type","message","trace"],...],"shortened":2,"left_out":3}

Oldest first. If the whole does not fit into its room, parts of it are dropped, in this order:

    1. traces, then messages, of all but the first and the last attempt, oldest first     replaced by null
    2. those attempts themselves, oldest first                                            `left_out` counts them
    3. trace and message of the first attempt; the last one's trace is halved (its end is kept), then dropped, then its
       message; then the first attempt, then the last one

`shortened` counts the attempts that lack something; counts of 0 are absent. The order keeps the most useful parts: the
last failure, and the first one.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

HISTORY_BYTES_MAX = 16 * 1024
TYPE_CHARS_MAX = 256
MESSAGE_CHARS_MAX = 1_024
TRACE_CHARS_MAX = 4_096
LEASE_EXPIRED = "LeaseExpired"
# The type of the single attempt that replaces an unreadable history.
UNREADABLE = "HistoryUnreadable"
_TRACE_CHARS_MIN = 64
_BRACKETS_BYTES = len('{"attempts":[]}')
_COUNTS_BYTES_MAX = len(',"shortened":1000,"left_out":1000000000')


@dataclass(frozen=True, slots=True)
class AttemptFailure:
    """A failed delivery. `message`, `trace`: None if dropped for room; `cut`: part of the trace was dropped."""

    number: int
    received_at_ms: int
    failed_at_ms: int
    type: str = ""
    message: str | None = ""
    trace: str | None = ""
    cut: bool = False

    @classmethod
    def of_error(
        cls, number: int, received_at_ms: int, failed_at_ms: int, kind: str, message: str, trace: str
    ) -> "AttemptFailure":
        """An attempt from a handler's error, cut to the limits: the beginnings of kind and message, the end of the
        trace."""
        kind, message = kind[:TYPE_CHARS_MAX], message[:MESSAGE_CHARS_MAX]
        return cls(number, received_at_ms, failed_at_ms, kind, message, trace[-TRACE_CHARS_MAX:])

    @property
    def is_shortened(self) -> bool:
        return self.cut or self.message is None or self.trace is None


@dataclass(frozen=True, slots=True)
class AttemptHistory:
    """Failed deliveries, oldest first, and the number of those left out."""

    attempts: tuple[AttemptFailure, ...] = ()
    left_out: int = 0

    @property
    def last_number(self) -> int:
        return self.attempts[-1].number if self.attempts else self.left_out

    def with_attempts(self, further: Sequence[AttemptFailure]) -> "AttemptHistory":
        """Appends attempts. After a redrive deliveries are counted from 1 again, but their numbers here continue."""
        attempts, last = list(self.attempts), self.last_number
        for one in further:
            last = max(last + 1, one.number)
            attempts.append(replace(one, number=last))
        return AttemptHistory(tuple(attempts), self.left_out)


def encode(history: AttemptHistory, room: int = HISTORY_BYTES_MAX) -> str | None:
    """The text, in UTF-8 at most `room` bytes and HISTORY_BYTES_MAX; None: it is empty, or there is no room for it."""
    room = min(room, HISTORY_BYTES_MAX)
    if not history.attempts and not history.left_out:
        return None
    text = _text(_fitted(history, room))
    return text if len(text.encode()) <= room else None


def decode(text: str) -> AttemptHistory:
    """Reads text from `encode`. An unreadable text gives one attempt of the type HistoryUnreadable."""
    try:
        parsed = json.loads(text)
        return AttemptHistory(tuple(_attempt(fields) for fields in parsed["attempts"]), int(parsed.get("left_out", 0)))
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        return AttemptHistory((AttemptFailure(0, 0, 0, UNREADABLE, str(error)[:MESSAGE_CHARS_MAX]),))


def _attempt(fields: list[object]) -> AttemptFailure:
    number, received_at_ms, failed_at_ms, kind, message, trace, *cut = fields
    numbers, texts = (number, received_at_ms, failed_at_ms), (message, trace)
    if not all(type(one) is int for one in numbers) or not isinstance(kind, str):
        raise TypeError(f"attempt {fields!r:.100} does not begin with three numbers and a text")
    if not all(one is None or isinstance(one, str) for one in texts):
        raise TypeError(f"attempt {fields!r:.100} has a message or trace that is not text")
    return AttemptFailure(*numbers, kind, *texts, bool(cut))  # type: ignore[arg-type]


def _fields(attempt: AttemptFailure) -> list[object]:
    one = attempt
    fields = [one.number, one.received_at_ms, one.failed_at_ms, one.type, one.message, one.trace]
    return [*fields, 1] if one.cut else fields


def _json(value: object) -> str:
    # Control characters are escaped, so that the text may be a property's value.
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _text(history: AttemptHistory) -> str:
    parts: dict[str, object] = {"attempts": [_fields(attempt) for attempt in history.attempts]}
    if shortened := sum(attempt.is_shortened for attempt in history.attempts):
        parts["shortened"] = shortened
    if history.left_out:
        parts["left_out"] = history.left_out
    return _json(parts)


class _AttemptFitter:
    """Attempts that are being shortened to a size; None: left out."""

    def __init__(self, attempts: Sequence[AttemptFailure], room: int) -> None:
        self.attempts: list[AttemptFailure | None] = list(attempts)
        self._sizes = [len(_json(_fields(attempt)).encode()) + 1 for attempt in attempts]
        self._over = sum(self._sizes) + _BRACKETS_BYTES + _COUNTS_BYTES_MAX - room

    @property
    def fits(self) -> bool:
        return self._over <= 0

    def put(self, index: int, attempt: AttemptFailure | None) -> None:
        size = len(_json(_fields(attempt)).encode()) + 1 if attempt else 0
        self._over += size - self._sizes[index]
        self.attempts[index], self._sizes[index] = attempt, size

    def give_up_trace(self, index: int) -> None:
        attempt = self.attempts[index]
        if not self.fits and attempt is not None and attempt.trace:
            self.put(index, replace(attempt, trace=None))

    def give_up_message(self, index: int) -> None:
        attempt = self.attempts[index]
        if not self.fits and attempt is not None and attempt.message:
            self.put(index, replace(attempt, message=None))

    def leave_out(self, index: int) -> None:
        if not self.fits:
            self.put(index, None)

    def halve_trace(self, index: int) -> None:
        attempt = self.attempts[index]
        while not self.fits and attempt is not None and attempt.trace and len(attempt.trace) > _TRACE_CHARS_MIN:
            attempt = replace(attempt, trace=attempt.trace[len(attempt.trace) // 2 :], cut=True)
            self.put(index, attempt)


def _fitted(history: AttemptHistory, room: int) -> AttemptHistory:
    fitting = _AttemptFitter(history.attempts, room)
    last = len(history.attempts) - 1
    for give_up in (fitting.give_up_trace, fitting.give_up_message, fitting.leave_out):
        for index in range(1, last):
            give_up(index)
    if last > 0:
        fitting.give_up_trace(0)
        fitting.give_up_message(0)
    if last >= 0:
        fitting.halve_trace(last)
        fitting.give_up_trace(last)
        fitting.give_up_message(last)
        fitting.leave_out(0)
        fitting.leave_out(last)
    kept = tuple(attempt for attempt in fitting.attempts if attempt is not None)
    return AttemptHistory(kept, history.left_out + len(history.attempts) - len(kept))
