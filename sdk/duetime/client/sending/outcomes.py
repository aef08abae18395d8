"""Outcomes of sent messages: each a receipt or an error, stored as runs where possible."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar, overload

from duetime.client.errors import DueTimeError, InvalidArgument, SomeFailed
from duetime.client.message import Receipt

T = TypeVar("T")
O = TypeVar("O", bound=Sequence[Any])  # noqa: E741

# Errors of a call about many messages: "raise" them as one SomeFailed, or "return" them in place of results.
OnError = Literal["raise", "return"]
Outcome = Receipt | DueTimeError


class Outcomes(Sequence[Outcome]):
    """A receipt or an error for each of many messages, in order. Receipts are made on access from the server's results
    for runs of messages; without errors, reading `errors` costs nothing."""

    __slots__ = ("_count", "_errors", "_firsts", "_starts")

    def __init__(self) -> None:
        # The index and the outcome of the first message of each run. A run of errors has one message.
        self._starts: list[int] = []
        self._firsts: list[Outcome] = []
        self._errors: dict[int, DueTimeError] = {}
        self._count = 0

    def add(self, first: Outcome, count: int = 1) -> None:
        """Adds `count` messages in a row whose receipts follow this one; or one error."""
        if isinstance(first, DueTimeError):
            self._errors[self._count] = first
        self._starts.append(self._count)
        self._firsts.append(first)
        self._count += count

    def extend(self, others: Iterable[Outcome]) -> None:
        """Appends others."""
        if not isinstance(others, Outcomes):
            for one in others:
                self.add(one)
            return
        for first, count in others._runs():
            self.add(first, count)

    @property
    def errors(self) -> Mapping[int, DueTimeError]:
        """Errors by index of the message; empty: all are stored."""
        return self._errors

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Outcome: ...

    @overload
    def __getitem__(self, index: slice) -> list[Outcome]: ...

    def __getitem__(self, index: int | slice) -> Outcome | list[Outcome]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(self._count))]
        at = index + self._count if index < 0 else index
        if not 0 <= at < self._count:
            raise IndexError(f"outcome {index} of {self._count}")
        run = bisect_right(self._starts, at) - 1
        return _nth(self._firsts[run], at - self._starts[run])

    def __iter__(self) -> Iterator[Outcome]:
        for first, count in self._runs():
            yield first
            for nth in range(1, count):
                yield _nth(first, nth)

    def _runs(self) -> Iterator[tuple[Outcome, int]]:
        stops = [*self._starts[1:], self._count]
        return ((first, stop - start) for first, start, stop in zip(self._firsts, self._starts, stops, strict=False))

    def __repr__(self) -> str:
        return f"<Outcomes of {self._count:,} messages, {len(self._errors):,} errors>"


def errors_of(outcomes: Sequence[T | DueTimeError]) -> Mapping[int, DueTimeError]:
    """By index."""
    if isinstance(outcomes, Outcomes):
        return outcomes.errors
    return {n: outcome for n, outcome in enumerate(outcomes) if isinstance(outcome, DueTimeError)}


def check_errors(errors: OnError) -> None:
    """Raises: InvalidArgument: `errors` is neither "raise" nor "return"."""
    if errors not in ("raise", "return"):
        raise InvalidArgument.of("errors", f"{errors!r} is neither 'raise' nor 'return'")


def judged(outcomes: O, errors: OnError) -> O:
    """The outcomes. Raises: SomeFailed: there are errors among them, and `errors` is "raise"."""
    if errors == "raise" and (found := errors_of(outcomes)):
        raise SomeFailed(outcomes, found) from found[min(found)]
    return outcomes


def only(outcomes: Sequence[T | DueTimeError]) -> T:
    """The result of one message. Raises: DueTimeError: its error."""
    (outcome,) = outcomes
    if isinstance(outcome, DueTimeError):
        raise outcome
    return outcome


def _nth(first: Outcome, nth: int) -> Outcome:
    return first.after(nth) if nth and isinstance(first, Receipt) else first
