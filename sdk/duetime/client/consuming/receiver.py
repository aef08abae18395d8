"""Receiving without handlers: messages are leased, and the caller acknowledges or fails each one."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import chain
from typing import TypeVar

from duetime_format.limits import RECEIPTS_MAX, RECEIVE_COUNT_MAX, WAIT_MS_MAX

from duetime.client.connection import ClosableClient, GatewayConnection, repeated
from duetime.client.consuming.failing import Reject, Retry, nack
from duetime.client.consuming.leased import LeasedMessage
from duetime.client.consuming.leases import LeaseCalls, LeaseSubscription, lease_s, lites, named
from duetime.client.counts import whole
from duetime.client.errors import InvalidArgument, from_fault
from duetime.client.lengths import Length, milliseconds, seconds
from duetime.client.message import moment
from duetime.client.retry_policy import Backoff, attempts_max, handler_policy
from duetime.client.tokens import TokenSource
from duetime.client.trust import Tls
from duetime.v1 import consumer_pb2

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FailureDecision:
    """The server's decision about a failed message."""

    message: LeasedMessage
    dead: bool = False
    deliver_at: datetime | None = None
    """The time of the next delivery, by the server's clock; None: it is dead, or its lease had ended."""


class AsyncReceiver(ClosableClient):
    """Leases messages of a topic for a group. For one event loop; `Receiver` is for plain code.

    Unlike in `Consumer`, leases are not renewed and calls are not batched: a message that is neither acknowledged nor
    failed within its lease is redelivered.

    Arguments:
        server: HOST:PORT; None: DUETIME_SERVER, else localhost:9800.
        token: the user's token, or a function that returns it; see `Token`. None: DUETIME_TOKEN, or the file of
            DUETIME_TOKEN_FILE.
        tls: the trusted certificates; see `Tls`. None: those of DUETIME_TLS_CA_FILE, or plain text without it.
        group: created if it does not exist.
        lease: length of the leases: "60s", or a timedelta.
        tags, sql, max_attempts, backoff, lite_topics: as for `Consumer.handler`.
        timeout: longest time for repeats of an unanswered call, beyond the wait of a receive.
    """

    def __init__(
        self,
        server: str | None = None,
        topic: str = "",
        *,
        group: str,
        lease: Length = "60s",
        tags: str | None = None,
        sql: str | None = None,
        max_attempts: int | None = None,
        backoff: Backoff | None = None,
        lite_topics: Iterable[str] | None = None,
        timeout: Length = "10s",
        token: TokenSource | None = None,
        tls: Tls | None = None,
    ) -> None:
        self._connection = GatewayConnection(server, token, tls)
        self._policy = handler_policy(backoff, max_attempts)
        subscription = LeaseSubscription(
            *(named("group", group), named("topic", topic), tags or "", sql or ""),
            *(lease_s(lease), attempts_max([self._policy]), lites(lite_topics)),
        )
        self._leases = LeaseCalls(self._connection, subscription)
        self._timeout = seconds(timeout, "timeout")

    async def receive(self, max: int = 32, wait: Length = "15s") -> list[LeasedMessage]:  # noqa: A002
        """Returns up to `max` messages, at most 1,024, as soon as there are any; none after `wait`, at most 30 s.

        Messages of an ordered group are returned queue by queue, each queue in order.

        Raises:
            DueTimeError: the server rejected the call, or did not answer within the timeout.
        """
        wait_ms = milliseconds(wait, "wait")
        count = whole("max", max, RECEIVE_COUNT_MAX)
        if wait_ms > WAIT_MS_MAX:
            raise InvalidArgument.of("wait", f"{wait!r} is more than {WAIT_MS_MAX} ms")
        runs = await self._repeated(lambda: self._leases.receive(count, wait_ms))
        return list(chain.from_iterable(runs))

    async def ack(self, messages: LeasedMessage | Iterable[LeasedMessage]) -> list[LeasedMessage]:
        """Acknowledges messages; durable on return. Returns those with ended leases: they are redelivered."""
        return await self._for_each(messages, RECEIPTS_MAX, self._leases.ack)

    async def extend(self, messages: LeasedMessage | Iterable[LeasedMessage], lease: Length) -> list[LeasedMessage]:
        """Makes leases end after a length from now. Returns those with ended leases, as `ack` does."""
        length_s = lease_s(lease)
        return await self._for_each(messages, RECEIPTS_MAX, lambda part: self._leases.move(part, length_s))

    async def give_back(self, messages: LeasedMessage | Iterable[LeasedMessage]) -> list[LeasedMessage]:
        """Releases messages for immediate redelivery; this delivery does not count as an attempt. Returns those with
        ended leases, as `ack` does."""
        give_back = self._leases.move
        return await self._for_each(messages, RECEIPTS_MAX, lambda part: give_back(part, 0, not_attempted=True))

    async def nack(
        self,
        message: LeasedMessage,
        error: BaseException | str = "",
        *,
        after: Length | None = None,
        reject: bool = False,
    ) -> FailureDecision:
        """Fails a message: it is redelivered by the policy or after a delay, or becomes a dead letter at once.

        `error`, an exception or a text, is stored for the dead letter.

        Raises:
            DueTimeError: the server rejected the call, or did not answer within the timeout.
        """
        if not isinstance(error, BaseException):
            error = Reject(error) if reject else Retry(reason=error)
        wire = nack(message.receipt, error)
        wire.reject = reject
        if after is not None:
            wire.delay_ms = round((Retry(after).after_s or 0) * 1000)

        async def call() -> consumer_pb2.NackResult:
            (result,) = await self._leases.nack([wire], self._policy)
            if result.HasField("fault"):
                raise from_fault(result.fault, message.id)
            return result

        result = await self._repeated(call)
        return FailureDecision(message, result.dead, moment(result.deliver_at_ms) if result.deliver_at_ms else None)

    async def close(self) -> None:
        """Disconnects. Leased messages are redelivered when their leases end."""
        if not self._connection.can_be_closed():
            return
        try:
            await self._leases.close()
        finally:
            await self._connection.close()

    def __repr__(self) -> str:
        wanted = self._leases.subscription
        return self._connection.described("AsyncReceiver", topic=wanted.topic, group=wanted.group)

    async def _for_each(
        self,
        messages: LeasedMessage | Iterable[LeasedMessage],
        count_max: int,
        call: Callable[[Sequence[LeasedMessage]], Awaitable[list[int]]],
    ) -> list[LeasedMessage]:
        every = [messages] if isinstance(messages, LeasedMessage) else list(messages)
        ended = []
        for at in range(0, len(every), count_max):
            part = every[at : at + count_max]
            statuses = await self._repeated(partial(call, part))
            pairs = zip(part, statuses, strict=True)
            ended += [message for message, status in pairs if status != consumer_pb2.RECEIPT_STATUS_OK]
        return ended

    async def _repeated(self, call: Callable[[], Awaitable[T]]) -> T:
        """A call, repeated until it is answered or the timeout has passed."""
        self._connection.check()
        return await repeated(lambda _: call(), self._timeout)
