"""Batches delivered by one method: requests, repeated for what has no answer until the deadline.

batch ──▶ request ──▶ answer or error of each message
  ▲          │ retriable
  └──────────┘ after a pause, only the messages concerned
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

import grpc

from duetime.client import tracing
from duetime.client.connection import Connection, backoff_s, pause
from duetime.client.errors import DueTimeError, ServerError, from_fault, from_status, unreadable
from duetime.client.sending.batch import SendBatch

# One attempt of several: a server that hangs must leave time for the next.
ATTEMPT_TIMEOUT_S = 5.0
ATTEMPT_TIMEOUT_S_MIN = 0.001

T = TypeVar("T")


class Delivery(Generic[T]):
    """Delivers batches by one unary method, whose answers have a result for each message.

    Arguments:
        timeout: seconds up to a deadline, for the text of errors.
        method: the full name, `/duetime.v1.Gateway/Send`.
        response: the class of answers.
        read: makes what the caller is given of a result and the message's topic.
        common: encoded fields that each request has besides.
        repeated: those that a request has besides if it repeats another.
    """

    def __init__(
        self,
        connection: Connection,
        timeout: float,
        method: str,
        response: Any,
        read: Callable[[Any, str], T],
        *,
        common: bytes = b"",
        repeated: bytes = b"",
    ) -> None:
        self._connection = connection
        self._timeout = timeout
        self._method = method
        self._response = response
        self._read = read
        self._common = common
        self._repeated = repeated
        self._call: grpc.aio.UnaryUnaryMultiCallable[bytes, Any] | None = None

    async def deliver(self, batch: SendBatch, deadline: float) -> list[T | DueTimeError]:
        """Sends a batch until each message is answered or refused for good, or the deadline comes."""
        outcomes = await self._request(batch, deadline, self._common)
        attempts = 1
        while again := [n for n, one in enumerate(outcomes) if isinstance(one, DueTimeError) and one.retriable]:
            pause_s = backoff_s(attempts)
            if asyncio.get_running_loop().time() + pause_s >= deadline:
                self._give_up(outcomes, again, attempts)
                break
            await pause(pause_s)
            answers = await self._request(batch.part(again), deadline, self._common + self._repeated)
            for n, outcome in zip(again, answers, strict=True):
                outcomes[n] = outcome
            attempts += 1
        return outcomes

    def _give_up(self, outcomes: list[T | DueTimeError], indices: Iterable[int], attempts: int) -> None:
        tried = f"given up after {attempts} attempt{'s' if attempts > 1 else ''} in {self._timeout:g} s"
        for n in indices:
            error = outcomes[n]
            if isinstance(error, DueTimeError):
                outcomes[n] = error.about(error.message_id, f"{error.text}; {tried}")

    async def _request(self, batch: SendBatch, deadline: float, besides: bytes) -> list[T | DueTimeError]:
        """One attempt: an outcome for each message."""
        left_s = deadline - asyncio.get_running_loop().time()
        timeout = min(max(left_s, ATTEMPT_TIMEOUT_S_MIN), ATTEMPT_TIMEOUT_S)
        payload = b"".join(batch.encoded) + besides
        try:
            if tracing.active is None:
                response = await self._send(payload, timeout=timeout)
            else:
                with tracing.active.requesting(self._method, payload) as metadata:
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


def _for_each(error: DueTimeError, batch: SendBatch) -> list[T | DueTimeError]:
    """The request's error, once per message."""
    return [error.about(message_id) for message_id in batch.ids]
