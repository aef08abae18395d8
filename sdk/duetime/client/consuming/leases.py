"""The calls about leases: receive, acknowledge, change the end of the lease, fail.

Each call is made once; callers decide about repeats.
"""

import asyncio
import os
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from duetime_format.admission import is_tag, is_word
from duetime_format.limits import (
    INVISIBLE_MS_MAX,
    INVISIBLE_MS_MIN,
    LITE_CHARS_MAX,
    LITE_SUBSCRIPTIONS_MAX,
    RECEIVE_COUNT_MAX,
)
from duetime_format.names import is_lite_topic

from duetime.client.connection import STREAMLESS_S, GatewayConnection
from duetime.client.consuming.leased import (
    OK,
    LeasedMessage,
    by_lease,
    has_names,
    moved,
    received,
    statuses_of,
    taken,
)
from duetime.client.errors import Damaged, DueTimeError, InvalidArgument, from_status
from duetime.client.lengths import Length, seconds
from duetime.client.streaming import StreamErrors, StreamTasks
from duetime.streams import LeaseStreamClient
from duetime.v1 import consumer_pb2, leases_pb2, message_pb2

RECEIVE_BYTES_MAX = 4 * 1024 * 1024
LEASE_S_MIN, LEASE_S_MAX = INVISIBLE_MS_MIN / 1000, INVISIBLE_MS_MAX / 1000
# Time for an answer, beyond the wait of a receive.
CALL_TIMEOUT_S = 5.0
# Longest wait of a close for leases in flight.
CLOSE_S = 1.0


@dataclass(frozen=True, slots=True)
class LeaseSubscription:
    """A subscription: the constant part of a receive."""

    group: str
    topic: str
    tags: str = ""
    sql: str = ""
    lease_s: float = 60.0
    # Deliveries before an expired lease makes a dead letter; 0: the group's.
    max_attempts: int = 0
    lite_topics: tuple[str, ...] = ()

    def request(self, count: int, wait_ms: int, bytes_max: int = RECEIVE_BYTES_MAX) -> consumer_pb2.ReceiveRequest:
        return consumer_pb2.ReceiveRequest(
            group=self.group,
            topic=self.topic,
            max_count=min(count, RECEIVE_COUNT_MAX),
            max_bytes=bytes_max,
            invisible_ms=round(self.lease_s * 1000),
            wait_ms=wait_ms,
            tags=self.tags,
            sql=self.sql,
            encoding=consumer_pb2.RECEIVE_ENCODING_RECORDS,
            max_attempts=self.max_attempts,
            lite_topics=self.lite_topics,
            member=f"{socket.gethostname()}-{os.getpid()}"[:255],
        )


class NoStream(Exception):
    """The server has no stream left for this caller."""


class _LeaseErrors(StreamErrors):
    def failed(self, status: grpc.aio.AioRpcError) -> Exception:
        error = from_status(status, self._server)
        return NoStream() if error.reason == "STREAMS_EXHAUSTED" else error


class LeaseCalls:
    """The calls of one subscription: receives and acks use a stream while the server has one for it."""

    def __init__(self, connection: GatewayConnection, subscription: LeaseSubscription) -> None:
        self._connection = connection
        self.subscription = subscription
        self._errors, self._tasks = _LeaseErrors(connection), StreamTasks()
        request = subscription.request(0, 0)
        self._stream = LeaseStreamClient(
            lambda: connection.stub.ReceiveStream(),
            self._errors,
            self._tasks.start,
            lambda _: request,
            lambda taken: self._tasks.start(self._return(taken.runs)),
        )
        self._is_closed = False
        # Loop time until which the server has no stream.
        self._streamless_until_s = 0.0

    async def receive(self, count: int, wait_ms: int, bytes_max: int = RECEIVE_BYTES_MAX) -> list[list[LeasedMessage]]:
        """Messages by runs: each run is of one queue, in order. `bytes_max`: one larger message may come.

        Raises:
            DueTimeError: the server rejects the request, or does not answer.
            Damaged: the answer is inconsistent.
        """
        topic, timeout = self.subscription.topic, wait_ms / 1000.0 + CALL_TIMEOUT_S
        if self._has_stream():
            try:
                count = min(count, RECEIVE_COUNT_MAX)
                answer = await self._stream.take(self.subscription, count, bytes_max, wait_ms, timeout)
            except NoStream:
                self._miss_streams()
            else:
                ends_at_s = self._ends_at_s()
                return [taken(run, topic, ends_at_s) for run in answer.runs]
        request = self.subscription.request(count, wait_ms, bytes_max)
        response: consumer_pb2.ReceiveResponse = await self._connection.call("Receive", request, timeout)
        ends_at_s = self._ends_at_s()
        return [received(run, topic, ends_at_s) for run in response.runs]

    def _has_stream(self) -> bool:
        """Raises: Closed."""
        if asyncio.get_running_loop().time() < self._streamless_until_s:
            return False
        if self._is_closed:
            raise self._errors.stopped()
        return True

    def _miss_streams(self) -> None:
        self._streamless_until_s = asyncio.get_running_loop().time() + STREAMLESS_S

    def _ends_at_s(self) -> float:
        return asyncio.get_running_loop().time() + self.subscription.lease_s

    async def ack(self, messages: Sequence[LeasedMessage]) -> list[int]:
        """A ReceiptStatus for each."""
        if all(map(has_names, messages)) and self._has_stream():
            try:
                unacked = await self._stream.ack(self.subscription, by_lease(messages), CALL_TIMEOUT_S)
                return statuses_of(messages, unacked)
            except NoStream:
                self._miss_streams()
        request = consumer_pb2.AckRequest(
            group=self.subscription.group, receipts=[message.receipt for message in messages]
        )
        return _statuses(await self._connection.call("Ack", request, CALL_TIMEOUT_S), len(messages))

    async def _return(self, runs: Sequence[leases_pb2.LeaseRun]) -> None:
        """Releases messages whose receiver has stopped waiting."""
        try:
            for run in runs:
                await self.move(taken(run, self.subscription.topic, 0), 0, not_attempted=True)
        except DueTimeError:
            # The leases expire by themselves.
            return

    async def close(self, within_s: float = CLOSE_S) -> None:
        """Ends the stream; leases that still arrive are released, within `within_s`."""
        self._is_closed = True
        stream = self._stream.close(within_s)
        if stream is not None:
            stream.fail(self._errors.stopped())
        await self._tasks.end(within_s)

    async def move(
        self, messages: Sequence[LeasedMessage], length_s: float, *, not_attempted: bool = False
    ) -> list[int]:
        """Makes the leases end after a length from now; 0: at once. A ReceiptStatus for each."""
        request = consumer_pb2.ChangeInvisibleRequest(
            group=self.subscription.group,
            receipts=[message.receipt for message in messages],
            invisible_ms=round(length_s * 1000),
            not_attempted=not_attempted,
        )
        asked_at_s = asyncio.get_running_loop().time()
        answer = await self._connection.call("ChangeInvisible", request, CALL_TIMEOUT_S)
        statuses = _statuses(answer, len(messages))
        moved((one for one, status in zip(messages, statuses, strict=True) if status == OK), asked_at_s + length_s)
        return statuses

    async def nack(
        self, nacks: Sequence[consumer_pb2.Nack], policy: message_pb2.RetryPolicy | None
    ) -> Sequence[consumer_pb2.NackResult]:
        """A result for each. `policy`: None: the group's."""
        request = consumer_pb2.NackRequest(group=self.subscription.group, nacks=nacks, policy=policy)
        answer: consumer_pb2.NackResponse = await self._connection.call("Nack", request, CALL_TIMEOUT_S)
        if len(answer.results) != len(nacks):
            raise Damaged(
                f"the server returned {len(answer.results)} results for {len(nacks)} messages", reason="RESULTS_MISSING"
            )
        return answer.results


def _statuses(answer: Any, count: int) -> list[int]:
    statuses = answer.statuses
    if not statuses:
        return [OK] * count
    if len(statuses) != count:
        raise Damaged(f"the server returned {len(statuses)} statuses for {count} receipts", reason="RESULTS_MISSING")
    return list(statuses)


def lease_s(lease: Length) -> float:
    """Seconds of a lease. Raises: InvalidArgument."""
    length = seconds(lease, "lease")
    if not LEASE_S_MIN <= length <= LEASE_S_MAX:
        description = f"{lease!r} is not within 10 ms and 12 h"
        raise InvalidArgument.of("lease", description)
    return length


def lites(names: Iterable[str] | None) -> tuple[str, ...]:
    """The lite topics of a subscription. Raises: InvalidArgument: there is none, or one has a wrong name."""
    if names is None:
        return ()
    found = (names,) if isinstance(names, str) else tuple(names)
    if not found:
        raise InvalidArgument.of("lite_topics", "is empty; leave it out to receive all messages")
    if len(found) > LITE_SUBSCRIPTIONS_MAX:
        raise InvalidArgument.of("lite_topics", f"{len(found)} names exceed the limit of {LITE_SUBSCRIPTIONS_MAX}")
    for name in found:
        if not isinstance(name, str) or not is_lite_topic(name):
            raise InvalidArgument.of("lite_topics", f"{name!r} is not 1 to {LITE_CHARS_MAX} of [%|a-zA-Z0-9_-]")
    return found


def named(field: str, name: str) -> str:
    """A name that is not empty. Raises: InvalidArgument."""
    if not isinstance(name, str):
        raise InvalidArgument.of(field, f"{name!r} is {type(name).__name__}, not str")
    if not name:
        raise InvalidArgument.of(field, "is empty")
    return name


def tag_named(field: str, tag: str) -> str:
    """One tag. Raises: InvalidArgument."""
    if not (isinstance(tag, str) and is_word(tag) and is_tag(tag)):
        raise InvalidArgument.of(field, f"{tag!r} is not one tag")
    return tag
