"""Delivers batches by one method: unanswered messages are requested again until the deadline.

batch ──▶ request ──▶ answer or error of each message
  ▲          │ retriable
  └──────────┘ after a pause, only the messages concerned
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

import grpc

from duetime.client import tracing
from duetime.client.connection import GatewayConnection, attempt_timeout_s, backoff_s, pause
from duetime.client.errors import DueTimeError, ServerError, from_fault, from_status, unreadable
from duetime.client.sending.batch import MessageBatch, SendBatch
from duetime.client.sending.outcomes import errors_of

T = TypeVar("T")


class BatchDeliverer(Generic[T]):
    """Delivers batches by one unary method, whose answers have a result for each message.

    Arguments:
        method: the full name, `/duetime.v1.Gateway/Send`.
        response: the class of answers.
        read: converts a result and the message's topic to the caller's result.
        common: encoded fields added to every request.
    """

    def __init__(
        self,
        connection: GatewayConnection,
        method: str,
        response: Any,
        read: Callable[[Any, str], T],
        *,
        common: bytes = b"",
    ) -> None:
        self._connection = connection
        self._method = method
        self._response = response
        self._read = read
        self._common = common
        self._call: grpc.aio.UnaryUnaryMultiCallable[bytes, Any] | None = None

    async def deliver(self, batch: MessageBatch, deadline: float) -> Sequence[T | DueTimeError]:
        """Sends a batch until each message is stored or rejected, or the deadline comes."""
        began_s = asyncio.get_running_loop().time()
        attempts = 1
        outcomes = await self._request(batch, deadline, attempts)
        while again := [n for n, error in errors_of(outcomes).items() if error.retriable]:
            errors = errors_of(outcomes)
            pause_s, outcomes = backoff_s(attempts, *(errors[n] for n in again)), list(outcomes)
            if asyncio.get_running_loop().time() + pause_s >= deadline:
                self._give_up(outcomes, again, attempts, asyncio.get_running_loop().time() - began_s)
                break
            await pause(pause_s)
            attempts += 1
            answers = await self._request(batch.part(again), deadline, attempts)
            for n, outcome in zip(again, answers, strict=True):
                outcomes[n] = outcome
        return outcomes

    @staticmethod
    def _give_up(outcomes: list[T | DueTimeError], indices: Iterable[int], attempts: int, took_s: float) -> None:
        for n in indices:
            error = outcomes[n]
            if isinstance(error, DueTimeError):
                outcomes[n] = given_up(error, attempts, took_s)

    async def _request(self, batch: MessageBatch, deadline: float, attempt: int) -> Sequence[T | DueTimeError]:
        """One attempt: an outcome for each message."""
        left_s = deadline - asyncio.get_running_loop().time()
        timeout, is_first = attempt_timeout_s(attempt, left_s), attempt == 1
        payload = batch.request() + self._common
        try:
            response = await self._ask(batch, payload, timeout, is_first=is_first)
        except DueTimeError as error:
            return for_each(error, batch)
        return self._outcomes(response, batch)

    async def _ask(self, batch: MessageBatch, payload: bytes, timeout: float, *, is_first: bool) -> Any:
        """The answer to a request. Raises: DueTimeError."""
        try:
            if tracing.active is None:
                response = await self._send(payload, timeout=timeout)
            else:
                with tracing.active.requesting(self._method, payload) as metadata:
                    response = await self._send(payload, timeout=timeout, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            raise from_status(error, self._connection.server) from error
        if response is None:
            raise unreadable(self._connection.server)
        return response

    def _outcomes(self, response: Any, batch: MessageBatch) -> Sequence[T | DueTimeError]:
        """The outcomes of the messages in an answer."""
        assert isinstance(batch, SendBatch), "only answers of Send have ranges"
        results = response.results
        if len(results) != len(batch):
            text = f"the server returned {len(results)} results for {len(batch)} messages"
            return for_each(ServerError(text, reason="RESULTS_MISSING"), batch)
        return [
            from_fault(result.fault, message_id) if result.HasField("fault") else self._read(result, topic)
            for result, message_id, topic in zip(results, batch.ids, batch.topics, strict=True)
        ]

    @property
    def _send(self) -> "grpc.aio.UnaryUnaryMultiCallable[bytes, Any]":
        if self._call is None:
            self._call = self._connection.channel.unary_unary(
                self._method, response_deserializer=self._response.FromString
            )
        return self._call


def given_up(error: DueTimeError, attempts: int, took_s: float) -> DueTimeError:
    """The last error of a message that is not retried again."""
    tried = f"stopped retrying after {attempts} attempt{'s' if attempts > 1 else ''} in {took_s:.3g} s"
    return error.about(error.message_id, f"{error.text}; {tried}")


def for_each(error: DueTimeError, batch: MessageBatch) -> list[Any]:
    """The request's error, once per message."""
    return [error.about(message_id) for message_id in batch.ids]
