"""Leased messages and the four calls about them: receive, acknowledge, move the end of the lease, fail.

Each call is made once; the caller decides whether to repeat it.
"""

import asyncio
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from duetime_format import record
from duetime_format.limits import (
    INVISIBLE_MS_MAX,
    INVISIBLE_MS_MIN,
    RECEIVE_COUNT_MAX,
)

from duetime.client.connection import Connection, seconds
from duetime.client.errors import Damaged, InvalidArgument
from duetime.client.message import moment
from duetime.client.record import ReceivedMessage, slices
from duetime.v1 import consumer_pb2, message_pb2

RECEIVE_BYTES_MAX = 4 * 1024 * 1024
LEASE_S_MIN, LEASE_S_MAX = INVISIBLE_MS_MIN / 1000, INVISIBLE_MS_MAX / 1000
_UNIQ_KEY, _ORIGIN_MESSAGE_ID, _ORIGIN, _VISIBLE_AT = (
    name.encode() for name in (record.UNIQ_KEY, record.ORIGIN_MESSAGE_ID, record.ORIGIN, record.VISIBLE_AT)
)

# What an answer may take beyond the wait of a receive.
CALL_TIMEOUT_S = 5.0
# The leading bytes that receipts of one shard share. Calls are grouped by them, so that a shard that does not answer
# holds up only its own receipts. Nothing else depends on them.
_SHARD_BYTES = 2


class LeasedMessage(ReceivedMessage):
    """A message that nobody else receives until its lease ends.

    A retry is a copy in a topic of the group; it shows the topic, queue and offset of the first delivery.
    """

    __slots__ = ("_attempt", "_lease_ends_at_ms", "_retry", "_topic", "ends_at_s", "lost", "receipt")

    def __init__(
        self,
        record: bytes,
        queue: int,
        topic: str,
        retry: bool,
        receipt: bytes,
        attempt: int,
        lease_ends_at_ms: int,
        ends_at_s: float,
    ) -> None:
        super().__init__(record, queue)
        self._topic = topic
        self._retry = retry
        self.receipt = receipt
        self._attempt = attempt
        self._lease_ends_at_ms = lease_ends_at_ms
        # The approximate end of the lease on the event loop's clock; whether the server has said that it ended.
        self.ends_at_s = ends_at_s
        self.lost = False

    @property
    def id(self) -> str:
        """The id that the sender knows; if it has none, RocketMQ's, which is its first place in the log."""
        return self.text_of(_UNIQ_KEY) or self.text_of(_ORIGIN_MESSAGE_ID) or self._place

    @property
    def topic(self) -> str:
        """The topic that was received from, also for retries."""
        return self._topic

    @property
    def attempt(self) -> int:
        """The number of this delivery to the group, from 1."""
        return self._attempt

    @property
    def queue(self) -> int:
        return int(self._origin[0]) if self._retry else super().queue

    @property
    def offset(self) -> int:
        """Logical position in (topic, queue)."""
        return int(self._origin[1]) if self._retry else super().offset

    @property
    def due_at(self) -> datetime | None:
        """When this delivery was due, by the server's clock, after a delay or as a retry; None: it was not delayed."""
        visible = self.text_of(_VISIBLE_AT) if self._retry else ""
        return moment(int(visible)) if visible.isdigit() else super().due_at

    @property
    def late_ms(self) -> int | None:
        """From due to stored in its topic, 0 or more; None: it was not delayed, or is a retry."""
        return None if self._retry else super().late_ms

    @property
    def lease_ends_at(self) -> datetime:
        """When the lease ends, by the server's clock; a consumer renews it while the handler runs."""
        return moment(self._lease_ends_at_ms)

    def moved(self, ends_at_s: float) -> None:
        """Moves the end of the lease to another moment of the loop's clock."""
        self._lease_ends_at_ms += round((ends_at_s - self.ends_at_s) * 1000)
        self.ends_at_s = ends_at_s

    def __repr__(self) -> str:
        return f"LeasedMessage({self.id}, topic={self.topic!r}, attempt={self.attempt})"

    @property
    def _origin(self) -> list[str]:
        """Queue and offset of the first delivery; those of the retry if it does not have them."""
        parts = self.text_of(_ORIGIN).split(":")
        if len(parts) != 2 or not all(part.isdigit() for part in parts):
            return [str(super().queue), str(super().offset)]
        return parts


@dataclass(frozen=True, slots=True)
class Subscription:
    """What is received and how: the part of a receive that stays the same."""

    group: str
    topic: str
    tags: str = ""
    sql: str = ""
    lease_s: float = 60.0
    policy: message_pb2.RetryPolicy | None = None

    def request(self, count: int, wait_ms: int) -> consumer_pb2.ReceiveRequest:
        return consumer_pb2.ReceiveRequest(
            group=self.group,
            topic=self.topic,
            max_count=min(count, RECEIVE_COUNT_MAX),
            max_bytes=RECEIVE_BYTES_MAX,
            invisible_ms=round(self.lease_s * 1000),
            wait_ms=wait_ms,
            tags=self.tags,
            sql=self.sql,
            encoding=consumer_pb2.RECEIVE_ENCODING_RECORDS,
            max_attempts=self.policy.max_attempts if self.policy is not None else 0,
            member=f"{socket.gethostname()}-{os.getpid()}"[:255],
        )


class Leases:
    """The calls of one subscription."""

    def __init__(self, connection: Connection, subscription: Subscription) -> None:
        self._connection = connection
        self.subscription = subscription

    async def receive(self, count: int, wait_ms: int) -> list[list[LeasedMessage]]:
        """Messages by runs: each run is of one queue, in order.

        Raises:
            DueTimeError: the server refuses, or does not answer.
            Damaged: the answer is inconsistent.
        """
        request = self.subscription.request(count, wait_ms)
        response: consumer_pb2.ReceiveResponse = await self._connection.call(
            "Receive", request, wait_ms / 1000.0 + CALL_TIMEOUT_S
        )
        ends_at_s = asyncio.get_running_loop().time() + self.subscription.lease_s
        return [self._messages(run, ends_at_s) for run in response.runs]

    def _messages(self, run: consumer_pb2.LeasedRun, ends_at_s: float) -> list[LeasedMessage]:
        topic, queue, ends_at_ms = self.subscription.topic, run.queue, run.lease_ends_at_ms
        records, retry = slices(run.records), run.topic != topic
        if not len(records) == len(run.receipts) == len(run.attempts):
            text = f"{len(records)} records came with {len(run.receipts)} receipts and {len(run.attempts)} attempts"
            raise Damaged(text, reason="RUN_DAMAGED")
        return [
            LeasedMessage(record, queue, topic, retry, receipt, attempt, ends_at_ms, ends_at_s)
            for record, receipt, attempt in zip(records, run.receipts, run.attempts, strict=True)
        ]

    async def ack(self, messages: Sequence[LeasedMessage]) -> list[int]:
        """A ReceiptStatus for each."""
        request = consumer_pb2.AckRequest(
            group=self.subscription.group, receipts=[message.receipt for message in messages]
        )
        return _statuses(await self._connection.call("Ack", request, CALL_TIMEOUT_S), len(messages))

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
        for message, status in zip(messages, statuses, strict=True):
            if status == consumer_pb2.RECEIPT_STATUS_OK:
                message.moved(asked_at_s + length_s)
        return statuses

    async def nack(self, nacks: Sequence[consumer_pb2.Nack]) -> Sequence[consumer_pb2.NackResult]:
        """A result for each."""
        request = consumer_pb2.NackRequest(group=self.subscription.group, nacks=nacks, policy=self.subscription.policy)
        answer: consumer_pb2.NackResponse = await self._connection.call("Nack", request, CALL_TIMEOUT_S)
        if len(answer.results) != len(nacks):
            raise Damaged(
                f"the server returned {len(answer.results)} results for {len(nacks)} messages", reason="RESULTS_MISSING"
            )
        return answer.results


def _statuses(answer: Any, count: int) -> list[int]:
    statuses = answer.statuses
    if not statuses:
        return [consumer_pb2.RECEIPT_STATUS_OK] * count
    if len(statuses) != count:
        raise Damaged(f"the server returned {len(statuses)} statuses for {count} receipts", reason="RESULTS_MISSING")
    return list(statuses)


def shard_of(message: LeasedMessage) -> bytes:
    """A key that the messages of one shard share."""
    return message.receipt[:_SHARD_BYTES]


def lease_s(lease: str | float | timedelta) -> float:
    """Seconds of a lease. Raises: InvalidArgument."""
    length = seconds(lease, "lease")
    if not LEASE_S_MIN <= length <= LEASE_S_MAX:
        description = f"{lease!r} is not within 10 ms and 12 h"
        raise InvalidArgument.of("lease", description)
    return length


def named(field: str, name: str) -> str:
    """A name that is not empty. Raises: InvalidArgument."""
    if not name:
        raise InvalidArgument.of(field, "is empty")
    return name
