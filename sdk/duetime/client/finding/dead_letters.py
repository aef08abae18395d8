"""Dead letters of a group: listed, redriven or discarded."""

from collections.abc import AsyncGenerator, Collection, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypedDict, Unpack

from duetime.client.connection import ClosableClient, GatewayConnection
from duetime.client.counts import COUNT_MAX, whole
from duetime.client.errors import DueTimeError, from_fault
from duetime.client.lengths import Length, seconds
from duetime.client.message import moment, range_ms
from duetime.client.tokens import TokenSource
from duetime.client.trust import Tls
from duetime.client.view import MessageView
from duetime.v1 import consumer_pb2

PAGE_COUNT = 256

DeadLetterOutcome = Literal["redriven", "discarded", "gone", "matched", "failed"]

_OUTCOMES: dict[int, DeadLetterOutcome] = {
    consumer_pb2.DEAD_LETTER_OUTCOME_REDRIVEN: "redriven",
    consumer_pb2.DEAD_LETTER_OUTCOME_DISCARDED: "discarded",
    consumer_pb2.DEAD_LETTER_OUTCOME_GONE: "gone",
    consumer_pb2.DEAD_LETTER_OUTCOME_MATCHED: "matched",
    consumer_pb2.DEAD_LETTER_OUTCOME_FAILED: "failed",
}


class DeadLetterCriteria(TypedDict, total=False):
    """A filter of dead letters: those that meet all given criteria."""

    start: datetime | None
    """The earliest time of becoming a dead letter; local time if it has no time zone."""
    end: datetime | None
    """The latest time of becoming a dead letter."""
    error: str
    """A part of `TYPE: message` of the last attempt's error; case is ignored."""
    tag: str
    key: str
    ids: Collection[str]
    """The ids to find."""
    topic: str
    """The topic of the first delivery."""


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """A delivery that failed. Fields that the server does not know are empty."""

    attempt: int
    """From 1; a redrive does not reset it."""
    received_at: datetime | None
    failed_at: datetime | None
    error_type: str
    """`LeaseExpired`: no acknowledgement within the lease."""
    error_message: str
    trace: str


def attempts_of(attempts: Iterable[consumer_pb2.FailedAttempt]) -> list[FailedAttempt]:
    return [
        FailedAttempt(
            one.attempt,
            moment(one.received_at_ms) if one.received_at_ms else None,
            moment(one.failed_at_ms) if one.failed_at_ms else None,
            one.error.type,
            one.error.message,
            one.error.trace,
        )
        for one in attempts
    ]


def error_of(attempts: Sequence[consumer_pb2.FailedAttempt]) -> str:
    """`TYPE: message` of the last attempt's error; empty if unknown."""
    if not attempts:
        return ""
    last = attempts[-1].error
    return f"{last.type}: {last.message}" if last.message else last.type


def ids_of(ids: Iterable[str]) -> list[str]:
    """Raises: TypeError: `ids` is one id instead of several."""
    if isinstance(ids, str):
        raise TypeError(f"ids is a str, not a list of them: ids=[{ids!r}]")
    return list(ids)


class DeadLetter(MessageView):
    """A message that its group could not handle. Fields are decoded on access."""

    __slots__ = ("_letter",)

    def __init__(self, letter: consumer_pb2.DeadLetter) -> None:
        super().__init__(letter.message)
        self._letter = letter

    @property
    def queue(self) -> int:
        """The queue of `topic`; 0 if unknown, as for messages written by a RocketMQ broker."""
        return self._message.queue

    @property
    def offset(self) -> int:
        """The offset in `queue`; 0 if unknown."""
        return self._message.offset

    @property
    def group(self) -> str:
        return self._letter.group

    @property
    def place(self) -> tuple[int, int, int]:
        """Shard, queue of %DLQ%group, and offset in that queue."""
        return self._letter.shard, self._letter.queue, self._letter.offset

    @property
    def dead_at(self) -> datetime:
        """The time of becoming a dead letter, by the server's clock."""
        return moment(self._letter.dead_at_ms)

    @property
    def reason(self) -> str:
        """`REJECTED` or `ATTEMPTS_EXHAUSTED`; empty for messages written by a RocketMQ broker."""
        return self._letter.reason

    @property
    def attempts(self) -> list[FailedAttempt]:
        """Oldest first."""
        return attempts_of(self._letter.attempts)

    @property
    def error(self) -> str:
        """`TYPE: message` of the last attempt's error; empty if unknown."""
        return error_of(self._letter.attempts)

    @property
    def redriven_count(self) -> int:
        """The number of redrives so far."""
        return self._letter.redriven_count

    def __repr__(self) -> str:
        return f"DeadLetter({self.id}, topic={self.topic!r}, group={self.group!r}, error={self.error!r})"


class DeadLetterResult:
    """The result of a redrive or discard for one dead letter."""

    __slots__ = ("_result",)

    def __init__(self, result: consumer_pb2.DeadLetterResult) -> None:
        self._result = result

    @property
    def id(self) -> str:
        return self._result.message_id

    @property
    def place(self) -> tuple[int, int, int]:
        """Shard, queue of %DLQ%group, and offset in that queue."""
        return self._result.shard, self._result.queue, self._result.offset

    @property
    def outcome(self) -> DeadLetterOutcome:
        """`redriven`: returned to its group; `discarded`; `gone`: ended by another call first; `matched`: found by a
        dry run; `failed`: it is still a dead letter, see `error`."""
        return _OUTCOMES[self._result.outcome]

    @property
    def error(self) -> DueTimeError | None:
        return from_fault(self._result.fault, self.id) if self._result.HasField("fault") else None

    def __repr__(self) -> str:
        return f"DeadLetterResult({self.id}, {self.outcome})"


class AsyncDeadLetters(ClosableClient):
    """The dead letters of one group. For one event loop; `DeadLetters` is for plain code.

    All three calls take the criteria of `DeadLetterCriteria`. Each returns an iterator that does the work as it
    advances; closing it stops the work.

    Arguments:
        server: HOST:PORT; None: DUETIME_SERVER, else localhost:9800.
        token: the user's token, or a function that returns it; see `Token`. None: DUETIME_TOKEN, or the file of
            DUETIME_TOKEN_FILE.
        tls: the trusted certificates; see `Tls`. None: those of DUETIME_TLS_CA_FILE, or plain text without it.
        timeout: longest time for one page of a list; redrives and discards have no limit.
    """

    def __init__(
        self,
        server: str | None = None,
        group: str = "",
        *,
        timeout: Length = "10s",
        token: TokenSource | None = None,
        tls: Tls | None = None,
    ) -> None:
        self.group = group
        self._connection = GatewayConnection(server, token, tls)
        self._timeout = seconds(timeout, "timeout")

    async def list(
        self, *, newest_first: bool = False, **criteria: Unpack[DeadLetterCriteria]
    ) -> AsyncGenerator[DeadLetter, None]:
        """Lists dead letters shard by shard, oldest first; with `newest_first` those of all shards by time.

        Raises:
            NotFound: the group does not exist.
            DueTimeError: a shard does not answer; the dead letters before were listed.
        """
        request = consumer_pb2.ListDeadLettersRequest(
            filter=self._filter(criteria), max_count=PAGE_COUNT, newest_first=newest_first
        )
        while True:
            answer: Any = await self._connection.call("ListDeadLetters", request, self._timeout)
            for letter in answer.letters:
                yield DeadLetter(letter)
            if not answer.next_page:
                return
            request.page = answer.next_page

    def redrive(
        self,
        *,
        rate: float = 0.0,
        dry_run: bool = False,
        max: int | None = None,  # noqa: A002
        **criteria: Unpack[DeadLetterCriteria],
    ) -> AsyncGenerator[DeadLetterResult, None]:
        """Returns dead letters to this group, and to no other: immediately, and with a new count of attempts.

        A message that fails again becomes a dead letter again, with its whole history. After an interruption, the same
        call continues with the rest: no message is redriven twice.

        Arguments:
            rate: maximum per second; 0: no limit.
            dry_run: only list the dead letters that match.
            max: maximum number in total.

        Raises:
            As `list`; also Unavailable when a server stops. Finished redrives remain; the results of the last few may
            be missing.
        """
        fields = {"rate": rate, "dry_run": dry_run, "max_count": _count(max)}
        request = consumer_pb2.RedriveRequest(filter=self._filter(criteria), **fields)  # type: ignore[arg-type]
        return self._results("RedriveDeadLetters", request)

    def discard(
        self,
        *,
        rate: float = 0.0,
        dry_run: bool = False,
        max: int | None = None,  # noqa: A002
        **criteria: Unpack[DeadLetterCriteria],
    ) -> AsyncGenerator[DeadLetterResult, None]:
        """Deletes dead letters for good. Otherwise as `redrive`."""
        fields = {"rate": rate, "dry_run": dry_run, "max_count": _count(max)}
        request = consumer_pb2.DiscardRequest(filter=self._filter(criteria), **fields)  # type: ignore[arg-type]
        return self._results("DiscardDeadLetters", request)

    async def _results(self, method: str, request: Any) -> AsyncGenerator[DeadLetterResult, None]:
        async with aclosing(self._connection.stream(method, request)) as results:
            async for result in results:
                yield DeadLetterResult(result)

    def _filter(self, criteria: DeadLetterCriteria) -> consumer_pb2.DeadLetterFilter:
        from_ms, to_ms = range_ms(criteria.get("start"), criteria.get("end"))
        return consumer_pb2.DeadLetterFilter(
            group=self.group,
            from_ms=from_ms,
            to_ms=to_ms,
            error=criteria.get("error", ""),
            tag=criteria.get("tag", ""),
            key=criteria.get("key", ""),
            ids=ids_of(criteria.get("ids", ())),
            topic=criteria.get("topic", ""),
        )

    async def close(self) -> None:
        """Disconnects; calls in progress raise Closed."""
        await self._connection.close()

    def __repr__(self) -> str:
        return self._connection.described("AsyncDeadLetters", group=self.group)


def _count(count: int | None) -> int:
    return 0 if count is None else whole("max", count, COUNT_MAX)
