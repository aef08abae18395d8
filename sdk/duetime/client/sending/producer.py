"""Sending: batched requests, repeated with the same ids until the timeout.

send ──▶ gathered ──▶ batch ──▶ request ──▶ receipt or error of each message
send_many ──────────▶   │          ▲   │ retriable
                                   └───┘ after a pause, only the messages concerned, `retry` set
"""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from datetime import datetime, timedelta
from types import TracebackType
from typing import Self, TypeVar, overload

import grpc

from duetime.client import tracing
from duetime.client.connection import Connection, backoff_s, pause
from duetime.client.errors import Closed, DueTimeError, Overloaded, ServerError, from_fault, from_status, unreadable
from duetime.client.message import CancelResult, Message, MessageRef, Receipt, listed
from duetime.client.sending.batch import Chunks, Outcome, SendBatch, encode, now_ms
from duetime.client.sending.capacity import Capacity
from duetime.client.sending.ending import CancelProgress, Ending, Rescheduled
from duetime.client.sending.gatherer import Gatherer
from duetime.client.sending.ids import new_id
from duetime.v1 import gateway_pb2

# Requests of one send_many at once: enough to keep the server busy while answers travel.
REQUESTS_IN_FLIGHT_MAX = 4
PENDING_BYTES_MAX = 64 * 1024 * 1024
# One attempt of several: a server that hangs must leave time for the next.
ATTEMPT_TIMEOUT_S = 5.0
ATTEMPT_TIMEOUT_S_MIN = 0.001

T = TypeVar("T")

_SEND = "/duetime.v1.Gateway/Send"
_RETRY = gateway_pb2.SendRequest(retry=True).SerializeToString()


class AsyncProducer:
    """Sends messages to one server. For one event loop; `Producer` is for plain code.

    Arguments:
        server: HOST:PORT; None: DUETIME_SERVER, else localhost:9800.
        timeout: seconds that a send may take, including all attempts and the wait for capacity.
        max_pending: messages that may be on their way; further sends wait.
    """

    def __init__(self, server: str | None = None, *, timeout: float = 10.0, max_pending: int = 20_000) -> None:
        self._connection = Connection(server)
        self._timeout = timeout
        self._capacity = Capacity(max_pending, PENDING_BYTES_MAX)
        self._gatherer = Gatherer(self._deliver)
        self._ending = Ending(self._connection, timeout)
        self._call: grpc.aio.UnaryUnaryMultiCallable[bytes, gateway_pb2.SendResponse] | None = None
        self._closing = False
        self._sends_open = 0
        self._drained = asyncio.Event()

    async def send(
        self,
        topic: str,
        body: bytes,
        *,
        delay: str | timedelta | int | None = None,
        level: int | None = None,
        deliver_at: datetime | None = None,
        tags: str = "",
        key: str = "",
        keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        sharding_key: str = "",
        queue: int | None = None,
        id: str = "",  # noqa: A002  the message's own word for it
        flag: int = 0,
        retry: str | None = None,
        replace: bool = False,
        max_wait: str | timedelta | int | None = None,
    ) -> Receipt:
        """Sends one message; concurrent calls share requests. The arguments are those of `Message`.

        When it returns the message is stored, as durably as the server's flush mode says.

        Raises:
            DueTimeError: the message was refused, or not acknowledged within the timeout.
            TypeError: the body is not bytes, or keys is a str.
        """
        message = Message(topic, body, delay, level, tags, keys, properties or {}, sharding_key, queue, id, flag, retry)
        message.deliver_at, message.key, message.replace, message.max_wait = deliver_at, key, replace, max_wait
        return await self.send_message(message)

    async def send_message(self, message: Message) -> Receipt:
        """Sends one message, as `send` does."""
        self._enter()
        try:
            if tracing.active is None:
                outcome = await self._send_gathered(message)
            else:
                with tracing.active.sending(message) as carrying:
                    outcome = await self._send_gathered(carrying)
        finally:
            self._leave()
        if isinstance(outcome, DueTimeError):
            raise outcome
        return outcome

    async def send_many(self, messages: Iterable[Message]) -> list[Outcome]:
        """Sends messages and returns a receipt or an error for each, in order. A bad one does not affect the others.

        Up to four requests of up to 512 messages each are in flight at once. Requests with messages that name a queue
        or a sharding key, or replace others, go one after the other, so that these messages keep their order (except
        those that are sent again after an error). Each request has the whole timeout.
        """
        if tracing.active is None:
            return await self._send_many(messages)
        with tracing.active.sending_many(messages) as carrying:
            return await self._send_many(carrying)

    async def _send_many(self, messages: Iterable[Message]) -> list[Outcome]:
        self._enter()
        try:
            chunks, turn = Chunks(messages), asyncio.Lock()
            batches = iter(chunks)
            async with asyncio.TaskGroup() as senders:
                for _ in range(REQUESTS_IN_FLIGHT_MAX):
                    senders.create_task(self._send_batches(batches, chunks.outcomes, turn))
        except ExceptionGroup as group:
            # Only iterating over `messages` raises; the caller expects that error, not a group.
            raise group.exceptions[0] from None
        finally:
            self._leave()
        return [outcome for outcome in chunks.outcomes if outcome is not None]

    # A str is an id, though it is an iterable of them too.
    @overload
    async def cancel(  # type: ignore[overload-overlap]
        self, messages: MessageRef | str
    ) -> CancelResult: ...

    @overload
    async def cancel(self, messages: Iterable[MessageRef | str]) -> list[CancelResult | DueTimeError]: ...

    @overload
    async def cancel(
        self, messages: MessageRef | str | Iterable[MessageRef | str]
    ) -> CancelResult | list[CancelResult | DueTimeError]: ...

    async def cancel(
        self, messages: MessageRef | str | Iterable[MessageRef | str]
    ) -> CancelResult | list[CancelResult | DueTimeError]:
        """Cancels pending messages: of a receipt, a message that was found, or an id; or of any number of these, which
        returns a result for each, in order, or an error where it is not known.

        What is answered CANCELLED is never delivered. With a receipt one shard is asked, by an id all are.

        Raises:
            DueTimeError: of a single message: it is not known whether it is pending.
        """
        if isinstance(messages, MessageRef | str):
            return _only(await self._ending.cancel([messages]))
        return await self._ending.cancel(listed(messages))

    @overload
    async def reschedule(  # type: ignore[overload-overlap]
        self,
        messages: MessageRef | str,
        *,
        delay: str | timedelta | int | None = None,
        deliver_at: datetime | None = None,
        body: bytes | None = None,
    ) -> Rescheduled: ...

    @overload
    async def reschedule(
        self,
        messages: Iterable[MessageRef | str],
        *,
        delay: str | timedelta | int | None = None,
        deliver_at: datetime | None = None,
        body: bytes | None = None,
    ) -> list[Rescheduled | DueTimeError]: ...

    @overload
    async def reschedule(
        self,
        messages: MessageRef | str | Iterable[MessageRef | str],
        *,
        delay: str | timedelta | int | None = None,
        deliver_at: datetime | None = None,
        body: bytes | None = None,
    ) -> Rescheduled | list[Rescheduled | DueTimeError]: ...

    async def reschedule(
        self,
        messages: MessageRef | str | Iterable[MessageRef | str],
        *,
        delay: str | timedelta | int | None = None,
        deliver_at: datetime | None = None,
        body: bytes | None = None,
    ) -> Rescheduled | list[Rescheduled | DueTimeError]:
        """Gives pending messages another due time, counted from now or absolute, and another body if one is given.

        Each keeps its id and is delivered once. Otherwise as `cancel`.

        Raises:
            InvalidMessage: neither or both of `delay` and `deliver_at` are given, or one is malformed.
            DueTimeError: of a single message: it is not known whether it was rescheduled.
        """
        if isinstance(messages, MessageRef | str):
            return _only(await self._ending.reschedule([messages], delay, deliver_at, body))
        return await self._ending.reschedule(listed(messages), delay, deliver_at, body)

    def cancel_matching(
        self,
        topic: str = "",
        *,
        key: str = "",
        after: datetime | None = None,
        before: datetime | None = None,
        dry_run: bool = False,
    ) -> AsyncGenerator[CancelProgress, None]:
        """Cancels all pending messages of a topic, with a key, due at or after a time, and before one: those that meet
        all that is given, at least a topic or a time. Yields how far it is about once a second, and at the end.

        `dry_run` only counts them. Closing the iterator ends the work; another call continues it.

        Raises:
            NotFound: the topic does not exist.
            DueTimeError: a shard does not answer; what was cancelled by then stays so.
        """
        return self._ending.cancel_matching(topic, key, after, before, dry_run)

    async def close(self) -> None:
        """Waits for pending sends, each up to its timeout, then disconnects. Later sends raise Closed."""
        self._closing = True
        if self._sends_open:
            await self._drained.wait()
        await self._gatherer.close()
        await self._connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _enter(self) -> None:
        if self._closing:
            raise Closed("the producer is closed", reason="CLOSED")
        self._sends_open += 1

    def _leave(self) -> None:
        self._sends_open -= 1
        if self._closing and not self._sends_open:
            self._drained.set()

    async def _send_gathered(self, message: Message) -> Outcome:
        deadline = asyncio.get_running_loop().time() + self._timeout
        message_id = message.id or new_id()
        encoded = encode(message, message_id, now_ms())
        await self._acquire(1, len(encoded), deadline)
        try:
            return await self._gatherer.send(encoded, message_id, message.topic, deadline)
        finally:
            self._capacity.release(1, len(encoded))

    async def _send_batches(
        self, batches: Iterator[tuple[list[int], SendBatch]], outcomes: list[Outcome | None], turn: asyncio.Lock
    ) -> None:
        """One of the concurrent senders of a send_many: takes batches until none are left."""
        for indices, batch in batches:
            # The lock is fair: the sender of the earlier batch gets it first.
            async with turn if batch.ordered else nullcontext():
                results = await self._send_batch(batch)
            for index, outcome in zip(indices, results, strict=True):
                outcomes[index] = outcome

    async def _send_batch(self, batch: SendBatch) -> list[Outcome]:
        count, deadline = len(batch.ids), asyncio.get_running_loop().time() + self._timeout
        try:
            await self._acquire(count, batch.size, deadline)
        except Overloaded as error:
            return [error.about(message_id) for message_id in batch.ids]
        try:
            return await self._deliver(batch, deadline)
        finally:
            self._capacity.release(count, batch.size)

    async def _acquire(self, count: int, size: int, deadline: float) -> None:
        if self._capacity.try_acquire(count, size):
            return
        try:
            async with asyncio.timeout_at(deadline):
                await self._capacity.acquire(count, size)
        except TimeoutError:
            text = f"the producer's pending messages left no room within {self._timeout:g} s"
            raise Overloaded(text, reason="TOO_MANY_PENDING") from None

    async def _deliver(self, batch: SendBatch, deadline: float) -> list[Outcome]:
        """Sends a batch until each message is stored or refused for good, or the deadline comes."""
        outcomes = await self._request(batch, deadline, retry=False)
        attempts = 1
        while again := [
            n for n, outcome in enumerate(outcomes) if type(outcome) is not Receipt and _retriable(outcome)
        ]:
            pause_s = backoff_s(attempts)
            if asyncio.get_running_loop().time() + pause_s >= deadline:
                self._give_up(outcomes, again, attempts)
                break
            await pause(pause_s)
            answers = await self._request(batch.part(again), deadline, retry=True)
            for n, outcome in zip(again, answers, strict=True):
                outcomes[n] = outcome
            attempts += 1
        return outcomes

    def _give_up(self, outcomes: list[Outcome], indices: Iterable[int], attempts: int) -> None:
        tried = f"given up after {attempts} attempt{'s' if attempts > 1 else ''} in {self._timeout:g} s"
        for n in indices:
            error = outcomes[n]
            if isinstance(error, DueTimeError):
                outcomes[n] = error.about(error.message_id, f"{error.text}; {tried}")

    async def _request(self, batch: SendBatch, deadline: float, *, retry: bool) -> list[Outcome]:
        """One attempt: an outcome for each message."""
        left_s = deadline - asyncio.get_running_loop().time()
        timeout = min(max(left_s, ATTEMPT_TIMEOUT_S_MIN), ATTEMPT_TIMEOUT_S)
        payload = b"".join(batch.encoded) + (_RETRY if retry else b"")
        try:
            if tracing.active is None:
                response = await self._send(payload, timeout=timeout)
            else:
                with tracing.active.requesting(_SEND, payload) as metadata:
                    response = await self._send(payload, timeout=timeout, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            return _for_each(from_status(error, self._connection.server), batch)
        if response is None:
            return _for_each(unreadable(self._connection.server), batch)
        results = response.results
        if len(results) != len(batch.ids):
            text = f"the server returned {len(results)} results for {len(batch.ids)} messages"
            return _for_each(ServerError(text, reason="RESULTS_MISSING"), batch)
        return [
            from_fault(result.fault, message_id) if result.HasField("fault") else Receipt(result, topic)
            for result, message_id, topic in zip(results, batch.ids, batch.topics, strict=True)
        ]

    @property
    def _send(self) -> "grpc.aio.UnaryUnaryMultiCallable[bytes, gateway_pb2.SendResponse]":
        if self._call is None:
            self._call = self._connection.channel.unary_unary(
                _SEND, response_deserializer=gateway_pb2.SendResponse.FromString
            )
        return self._call


def _for_each(error: DueTimeError, batch: SendBatch) -> list[Outcome]:
    """The request's error, once per message."""
    return [error.about(message_id) for message_id in batch.ids]


def _only(outcomes: list[T | DueTimeError]) -> T:
    """Raises: DueTimeError: it is one."""
    (outcome,) = outcomes
    if isinstance(outcome, DueTimeError):
        raise outcome
    return outcome


def _retriable(outcome: Outcome) -> bool:
    return isinstance(outcome, DueTimeError) and outcome.retriable
