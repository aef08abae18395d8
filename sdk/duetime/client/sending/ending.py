"""Cancels and reschedules of any number of messages: split into requests, and repeated until the timeout.

A request with a lost answer is sent again for its unanswered messages. This is safe: a cancelled message stays
cancelled, and the server recognizes a completed reschedule by its id.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypeVar

from duetime_format import limits

from duetime.client.bodies import Body, encoded
from duetime.client.connection import GatewayConnection, attempt_timeout_s, backoff_s, pause
from duetime.client.errors import DueTimeError, InvalidMessage, ServerError, from_fault
from duetime.client.ids import new_id
from duetime.client.lengths import Length
from duetime.client.message import CancelResult, MessageRef, delay_ms, due_ms, moment, pending_filter, ref_of
from duetime.v1 import pending_pb2 as pb

REQUEST_COUNT_MAX = 1_024
REQUEST_BYTES_MAX = 4 * 1024 * 1024
# Concurrent requests of one call.
REQUESTS_IN_FLIGHT_MAX = 4

_CANCEL_RESULTS = {
    pb.CANCEL_STATUS_CANCELLED: CancelResult.CANCELLED,
    pb.CANCEL_STATUS_ALREADY_FIRED: CancelResult.ALREADY_FIRED,
    pb.CANCEL_STATUS_NOT_FOUND: CancelResult.NOT_FOUND,
}
RescheduleStatus = Literal["rescheduled", "already fired", "not found"]
_RESCHEDULE_STATUSES: dict[int, RescheduleStatus] = {
    pb.RESCHEDULE_STATUS_RESCHEDULED: "rescheduled",
    pb.RESCHEDULE_STATUS_ALREADY_FIRED: "already fired",
    pb.RESCHEDULE_STATUS_NOT_FOUND: "not found",
}

T = TypeVar("T")
Request = pb.CancelRequest | pb.RescheduleRequest


class Rescheduled:
    """The result of a reschedule. Receipts of the message remain valid."""

    __slots__ = ("_result", "message_id")

    def __init__(self, result: pb.RescheduleResult, message_id: str) -> None:
        self._result = result
        self.message_id = message_id

    @property
    def status(self) -> RescheduleStatus:
        """`rescheduled`; `already fired`: it is in its topic, or about to be; `not found`: no shard has it, or it was
        cancelled."""
        return _RESCHEDULE_STATUSES[self._result.status]

    @property
    def deliver_at(self) -> datetime | None:
        """The new delivery time, by the server's clock; None: it was not rescheduled."""
        return moment(self._result.deliver_at_ms) if self._result.deliver_at_ms else None

    @property
    def was_past(self) -> bool:
        """Whether the time was in the past: the message is delivered at once."""
        return self._result.was_past

    @property
    def place(self) -> tuple[int, int, int]:
        """Shard, lane and entry of its new place."""
        return self._result.shard, self._result.lane, self._result.entry

    def __repr__(self) -> str:
        due = f", deliver_at={self.deliver_at}" if self.deliver_at else ""
        due += ", was_past=True" if self.was_past else ""
        return f"Rescheduled({self.message_id}, {self.status}{due})"


@dataclass(frozen=True, slots=True)
class CancelProgress:
    """The progress of a `cancel_matching`."""

    seen: int
    """Pending messages that were read."""
    matched: int
    cancelled: int
    already_fired: int
    """Matched, but due before they could be cancelled."""
    looked_until: datetime | None
    """All messages due before this time were read."""
    done: bool


class PendingUpdater:
    """Sends the requests of one client."""

    def __init__(self, connection: GatewayConnection, timeout: float) -> None:
        self._connection = connection
        self._timeout = timeout

    async def cancel(self, messages: Sequence[MessageRef | str], topic: str) -> list[CancelResult | DueTimeError]:
        """One result each, in order; an error if the result is unknown."""
        refs = [ref_of(message, topic) for message in messages]

        def read(ref: pb.PendingRef, result: pb.CancelResult) -> CancelResult:
            return _CANCEL_RESULTS[result.status]

        return await self._all("Cancel", refs, lambda part: pb.CancelRequest(messages=part), read)

    async def reschedule(
        self,
        messages: Sequence[MessageRef | str],
        delay: Length | None,
        deliver_at: datetime | None,
        body: Body | None,
        topic: str,
    ) -> list[Rescheduled | DueTimeError]:
        """As `cancel`.

        Raises:
            InvalidMessage: neither or both of delay and due time are given, or one is malformed; the body is too large.
            TypeError: `Message` does not accept the body.
        """
        if delay is not None and deliver_at is None:
            due = {"delay_ms": delay_ms(delay)}
        elif deliver_at is not None and delay is None:
            due = {"deliver_at_ms": due_ms(deliver_at)}
        else:
            raise InvalidMessage.of("delay", "give either delay or deliver_at")
        content = None if body is None else _content(body)
        asked = [
            pb.Reschedule(message=ref_of(one, topic), body=content, request_id=new_id(), **due) for one in messages
        ]

        def read(one: pb.Reschedule, result: pb.RescheduleResult) -> Rescheduled:
            return Rescheduled(result, one.message.message_id)

        return await self._all("Reschedule", asked, lambda part: pb.RescheduleRequest(messages=part), read)

    async def cancel_matching(
        self, topic: str, key: str, after: datetime | None, before: datetime | None, dry_run: bool
    ) -> AsyncGenerator[CancelProgress, None]:
        """Not repeated: another call continues the work. Raises: DueTimeError."""
        request = pb.CancelMatchingRequest(filter=pending_filter(topic, key, after, before), dry_run=dry_run)
        async with aclosing(self._connection.stream("CancelMatching", request)) as answers:
            async for one in answers:
                yield CancelProgress(
                    one.seen_count,
                    one.matched_count,
                    one.cancelled_count,
                    one.fired_count,
                    moment(one.due_at_ms) if one.due_at_ms else None,
                    one.done,
                )

    async def _all(
        self, method: str, items: list[Any], request: Callable[[list[Any]], Request], read: Callable[[Any, Any], T]
    ) -> list[T | DueTimeError]:
        outcomes: list[T | DueTimeError | None] = [None] * len(items)
        chunks = _chunks(items)

        async def work() -> None:
            for start, stop in chunks:
                outcomes[start:stop] = await self._repeated(method, items[start:stop], request, read)

        async with asyncio.TaskGroup() as workers:
            for _ in range(min(REQUESTS_IN_FLIGHT_MAX, len(items))):
                workers.create_task(work())
        return [outcome for outcome in outcomes if outcome is not None]

    async def _repeated(
        self, method: str, items: list[Any], request: Callable[[list[Any]], Request], read: Callable[[Any, Any], T]
    ) -> list[T | DueTimeError]:
        """One request, until each message has a result or the deadline comes."""
        loop = asyncio.get_running_loop()
        deadline, attempt = loop.time() + self._timeout, 0
        outcomes: list[T | DueTimeError] = []
        again = list(range(len(items)))
        while True:
            attempt += 1
            asked = [items[n] for n in again]
            timeout = attempt_timeout_s(attempt, deadline - loop.time())
            answers = await self._once(method, request(asked), asked, read, timeout)
            if not outcomes:
                outcomes = answers
            else:
                for n, answer in zip(again, answers, strict=True):
                    outcomes[n] = answer
            again = [n for n, one in enumerate(outcomes) if isinstance(one, DueTimeError) and one.retriable]
            failed = (outcomes[n] for n in again)
            pause_s = backoff_s(attempt, *(one for one in failed if isinstance(one, DueTimeError)))
            if not again or loop.time() + pause_s >= deadline:
                return outcomes
            await pause(pause_s)

    async def _once(
        self, method: str, request: Request, asked: list[Any], read: Callable[[Any, Any], T], timeout: float
    ) -> list[T | DueTimeError]:
        ids = [_id_of(item) for item in asked]
        try:
            results = (await self._connection.call(method, request, timeout)).results
        except DueTimeError as error:
            return [error.about(message_id) for message_id in ids]
        if len(results) != len(asked):
            text = f"the server returned {len(results)} results for {len(asked)} messages"
            return [ServerError(text, reason="RESULTS_MISSING", message_id=message_id) for message_id in ids]
        return [
            from_fault(result.fault, message_id) if result.HasField("fault") else read(item, result)
            for item, message_id, result in zip(asked, ids, results, strict=True)
        ]


def _content(body: Body) -> bytes:
    """The body's bytes; the message keeps its properties, including the content type."""
    content, _ = encoded(body)
    if len(content) > limits.BODY_BYTES_MAX:
        raise InvalidMessage.of("body", f"{len(content)} bytes exceed the limit of {limits.BODY_BYTES_MAX}")
    return content


def _id_of(item: pb.PendingRef | pb.Reschedule) -> str:
    return item.message_id if isinstance(item, pb.PendingRef) else item.message.message_id


def _chunks(items: Sequence[Any]) -> Iterator[tuple[int, int]]:
    """[start, stop) of the parts, each of which fits into a request."""
    start = size = 0
    for index, item in enumerate(items):
        item_size = item.ByteSize()
        if index - start >= REQUEST_COUNT_MAX or (size and size + item_size > REQUEST_BYTES_MAX):
            yield start, index
            start, size = index, 0
        size += item_size
    if items:
        yield start, len(items)
