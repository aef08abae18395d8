"""Sending: batched requests, retried with the same ids until the timeout.

send ──▶ gathered ──▶ batch ──▶ delivery ──▶ receipt or error of each message
send_many ──────────▶   │
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, Self, TypeVar, overload

from duetime.client import tracing
from duetime.client.bodies import Body
from duetime.client.connection import ClosableClient, GatewayConnection
from duetime.client.errors import DueTimeError
from duetime.client.lengths import Length, seconds
from duetime.client.message import CancelResult, Message, MessageRef, Receipt, listed
from duetime.client.sending.batch import whole_batches
from duetime.client.sending.calls import Calls
from duetime.client.sending.capacity import Capacity
from duetime.client.sending.checking import UndecidedMessage
from duetime.client.sending.ending import CancelProgress, PendingUpdater, Rescheduled
from duetime.client.sending.gatherer import SendGatherer
from duetime.client.sending.handing import ThreadBridge
from duetime.client.sending.letters import MessageEncoder
from duetime.client.sending.lone import ThreadSender
from duetime.client.sending.many import BulkSender
from duetime.client.sending.outcomes import OnError, Outcome, Outcomes, check_errors, judged, only
from duetime.client.sending.packs import Bodies
from duetime.client.sending.sends import SendDeliverer, whole_deliverer
from duetime.client.sending.transacting import Ended, Prepared, ProducerTransactions
from duetime.client.sending.transaction import AsyncTransaction
from duetime.client.tokens import TokenSource
from duetime.client.transaction import Decision, TransactionRef
from duetime.client.trust import Tls

PENDING_BYTES_MAX = 64 * 1024 * 1024

F = TypeVar("F", bound=Callable[[UndecidedMessage], Any])


class AsyncProducer(ClosableClient):
    """Sends messages to one server. For one event loop; `Producer` is for plain code.

    Arguments:
        server: HOST:PORT; None: DUETIME_SERVER, else localhost:9800.
        token: the user's token, or a function that returns it; see `Token`. None: DUETIME_TOKEN, or the file of
            DUETIME_TOKEN_FILE.
        tls: the trusted certificates; see `Tls`. None: those of DUETIME_TLS_CA_FILE, or plain text without it.
        timeout: longest time of a send, including all attempts and the wait for capacity.
        max_pending: maximum unanswered messages; further sends wait.
    """

    def __init__(
        self,
        server: str | None = None,
        *,
        timeout: Length = "10s",
        max_pending: int = 20_000,
        token: TokenSource | None = None,
        tls: Tls | None = None,
    ) -> None:
        self._connection = GatewayConnection(server, token, tls)
        self._timeout = timeout_s = seconds(timeout, "timeout")
        self._capacity = Capacity(max_pending, PENDING_BYTES_MAX)
        self._sends = SendDeliverer(self._connection)
        self._letters = MessageEncoder()
        self._gatherer = SendGatherer(self._sends.deliver)
        self._ending = PendingUpdater(self._connection, timeout_s)
        self._calls = Calls(self._connection.check)
        self._many = BulkSender(timeout_s, self._capacity, self._calls, self._sends, whole_deliverer(self._connection))
        bridge = ThreadBridge(timeout_s, self._capacity, self._calls, self._letters, self._gatherer)
        self._threads = ThreadSender(self._connection, timeout_s, self._capacity, bridge)
        self._transacting = ProducerTransactions(self._connection, timeout_s, self._capacity, self._calls)

    async def send(
        self,
        topic: str,
        body: Body,
        *,
        delay: Length | None = None,
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
        max_wait: Length | None = None,
        priority: int | None = None,
        lite_topic: str = "",
        expires: Length | None = None,
    ) -> Receipt:
        """Sends one message; concurrent calls share requests. The arguments are those of `Message`.

        A return means that the message is stored, as durably as the server's flush mode says.

        Raises:
            DueTimeError: the message was rejected, or not acknowledged within the timeout.
            TypeError: `Message` does not accept the body, or keys is a str.
        """
        first = topic, body, delay, level, tags, keys, properties or {}, sharding_key, queue, id, flag, retry
        message = Message(*first, deliver_at, key, replace, max_wait, priority, lite_topic, expires)
        return await self.send_message(message)

    async def send_message(self, message: Message) -> Receipt:
        """Sends one message, as `send` does."""
        with self._calls:
            if tracing.active is None:
                outcome = await self._send_gathered(message)
            else:
                with tracing.active.sending(message) as carrying:
                    outcome = await self._send_gathered(carrying)
        if isinstance(outcome, DueTimeError):
            raise outcome
        return outcome

    @overload
    async def send_many(self, messages: Iterable[Message], *, errors: Literal["raise"] = "raise") -> list[Receipt]: ...

    @overload
    async def send_many(self, messages: Iterable[Message], *, errors: Literal["return"]) -> list[Outcome]: ...

    @overload
    async def send_many(
        self,
        topic: str,
        /,
        *,
        bodies: Iterable[bytes],
        delay: Length | None = None,
        level: int | None = None,
        deliver_at: datetime | None = None,
        tags: str = "",
        errors: OnError = "raise",
    ) -> Outcomes: ...

    @overload
    async def send_many(
        self,
        messages: Iterable[Message] | str,
        *,
        bodies: Iterable[bytes] | None = None,
        delay: Length | None = None,
        level: int | None = None,
        deliver_at: datetime | None = None,
        tags: str = "",
        errors: OnError = "raise",
    ) -> Sequence[Outcome]: ...

    async def send_many(
        self,
        messages: Iterable[Message] | str,
        *,
        bodies: Iterable[bytes] | None = None,
        delay: Length | None = None,
        level: int | None = None,
        deliver_at: datetime | None = None,
        tags: str = "",
        errors: OnError = "raise",
    ) -> Sequence[Any]:
        """Sends messages and returns a receipt for each, in order. A rejected message does not affect the others.

            send_many([Message("orders", b"1"), Message("orders", b"2", delay="30m")])
            send_many("orders", bodies=[b"1", b"2"], delay="30m")

        Bodies for one topic, with one delay and tags, cost much less: no message is built, encoded or answered alone,
        and receipts are made on access. Messages that differ in the body only are sent in the same way: 16 or more in a
        row without an id, keys, properties or any other fields of their own.

        Up to four requests are in flight at once, each of up to 512 messages or 2,048 bodies. Requests with messages
        that name a queue, sharding key, priority or lite topic, or replace others, are sent one after the other: their
        messages keep their order, except when retried after an error. Each request has the whole timeout.

        `errors`: with "return" the error of a message takes the place of its receipt, and is not raised.

        Raises:
            SomeFailed: messages were rejected, or not acknowledged within the timeout; `outcomes` has the receipt or
                the error of each. The others are stored: do not send all of them again.
            InvalidMessage: the topic, delay, due time or tags of bodies are malformed; none is sent.
            TypeError: a body is not bytes; some may have been sent. Both bodies and messages are given, or neither.
        """
        check_errors(errors)
        outcomes: Sequence[Outcome]
        if isinstance(messages, str):
            if bodies is None:
                raise TypeError(f"send_many({messages!r}) has no messages: give bodies=[...]")
            outcomes = await self._many.bodies(Bodies(messages, bodies, delay, level, deliver_at, tags))
        elif bodies is not None:
            raise TypeError("give either messages, or a topic and bodies")
        elif tracing.active is None:
            outcomes = await self._many.messages(messages)
        else:
            with tracing.active.sending_many(messages) as carrying:
                outcomes = await self._many.messages(carrying)
        return judged(outcomes, errors)

    def transaction(
        self,
        topic: str,
        body: Body,
        *,
        group: str,
        delay: Length | None = None,
        level: int | None = None,
        deliver_at: datetime | None = None,
        tags: str = "",
        key: str = "",
        keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        sharding_key: str = "",
        queue: int | None = None,
        id: str = "",  # noqa: A002  as above
        flag: int = 0,
        retry: str | None = None,
        check_after: Length | None = None,
        priority: int | None = None,
        expires: Length | None = None,
    ) -> AsyncTransaction:
        """A message as a with block: stored at the beginning and invisible, committed at the end, rolled back if an
        exception leaves the block. A delay counts from the commit.

        Arguments:
            group: the producer group. Its members (`check`) are asked about transactions that are not ended.
            check_after: time before the group is asked, "30s" or a timedelta: 1 s to 72 h, in whole seconds rounded up.
                None: the server's 6 s. Must exceed the duration of the block.

        The other arguments are those of `Message`. The beginning of the block raises the errors of `send`.
        """
        first = topic, body, delay, level, tags, keys, properties or {}, sharding_key, queue, id, flag, retry
        message = Message(*first, deliver_at, key, priority=priority, expires=expires)
        return AsyncTransaction(self._transacting, message, group, check_after)

    @overload
    async def prepare_many(
        self,
        messages: Iterable[Message],
        *,
        group: str,
        check_after: Length | None = None,
        errors: Literal["raise"] = "raise",
    ) -> list[Prepared]: ...

    @overload
    async def prepare_many(
        self, messages: Iterable[Message], *, group: str, check_after: Length | None = None, errors: OnError
    ) -> list[Prepared | DueTimeError]: ...

    async def prepare_many(
        self, messages: Iterable[Message], *, group: str, check_after: Length | None = None, errors: OnError = "raise"
    ) -> list[Any]:
        """Prepares messages, each a transaction of its own, and returns a reference to each, in order. `end_many` ends
        them. The arguments are those of `transaction`; requests and `errors` are as in `send_many`.

        Raises:
            SomeFailed: messages were rejected, or not acknowledged within the timeout; the others are prepared, and
                `outcomes` has their references.
        """
        check_errors(errors)
        return judged(await self._transacting.prepare_many(messages, group, check_after), errors)

    @overload
    async def end_many(
        self,
        transactions: Iterable[TransactionRef],
        decision: Decision,
        *,
        given_up: bool = False,
        errors: Literal["raise"] = "raise",
    ) -> list[Ended]: ...

    @overload
    async def end_many(
        self, transactions: Iterable[TransactionRef], decision: Decision, *, given_up: bool = False, errors: OnError
    ) -> list[Ended | DueTimeError]: ...

    async def end_many(
        self,
        transactions: Iterable[TransactionRef],
        decision: Decision,
        *,
        given_up: bool = False,
        errors: OnError = "raise",
    ) -> list[Any]:
        """Commits or rolls back transactions that were prepared or found, and returns the end of each, in order. The
        first decision is final: see `Ended.state`. `errors` is as in `send_many`.

        `given_up`: for operators: also end transactions that the server has given up.

        Raises:
            SomeFailed: an end was rejected, or is unknown; `outcomes` has the end or the error of each.
            TypeError: an argument is not a prepared or found transaction.
        """
        check_errors(errors)
        return judged(await self._transacting.end_many(transactions, decision, given_up=given_up), errors)

    def check(self, group: str, *, concurrency: int = 8) -> Callable[[F], F]:
        """Makes a function the check handler of a producer group: it receives messages with open transactions, and
        returns COMMIT, ROLLBACK or UNKNOWN. Coroutine functions run on the event loop, others in threads.

        An exception is logged, and means UNKNOWN: the server asks again. The handler works until the producer is
        closed. It starts now if an event loop runs, else with the first transaction or with block.

        Arguments:
            concurrency: maximum messages checked at once.

        Raises:
            InvalidArgument: an argument breaks its rule, or the group already has a handler.
        """
        return self._transacting.checks.handler(group, concurrency)

    async def send_batch(
        self,
        topic: str,
        messages: Iterable[Message | bytes],
        *,
        queue: int | None = None,
        sharding_key: str = "",
        split: bool = False,
    ) -> list[Receipt]:
        """Sends messages of one topic that are stored all or none, in one queue. Messages without a delay get
        consecutive offsets; no reader sees a part of them, even after a crash. Each message may have its own delay.

        `split`: send as many batches as the size requires, one after the other, each of them all or none; an error
        means that the batches before it are stored.

        Raises:
            DueTimeError: none of the batch is stored; `violations` names the faults by message. After a timeout the
                result is unknown.
            TypeError: a body is not bytes.
        """
        if tracing.active is None:
            return await self._many.batches(whole_batches(topic, messages, queue, sharding_key, split=split))
        given = [one if isinstance(one, Message) else Message(topic, one) for one in messages]
        with tracing.active.sending_many(given) as carrying:
            return await self._many.batches(whole_batches(topic, carrying, queue, sharding_key, split=split))

    # A str is an id, although it is also an iterable of them.
    @overload
    async def cancel(  # type: ignore[overload-overlap]
        self, messages: MessageRef | str, *, topic: str = ""
    ) -> CancelResult: ...

    @overload
    async def cancel(
        self, messages: Iterable[MessageRef | str], *, topic: str = "", errors: Literal["raise"] = "raise"
    ) -> list[CancelResult]: ...

    @overload
    async def cancel(
        self, messages: Iterable[MessageRef | str], *, topic: str = "", errors: OnError
    ) -> list[CancelResult | DueTimeError]: ...

    @overload
    async def cancel(
        self, messages: MessageRef | str | Iterable[MessageRef | str], *, topic: str = "", errors: OnError = "raise"
    ) -> CancelResult | list[CancelResult | DueTimeError]: ...

    async def cancel(
        self, messages: MessageRef | str | Iterable[MessageRef | str], *, topic: str = "", errors: OnError = "raise"
    ) -> CancelResult | list[Any]:
        """Cancels the pending message of a receipt, a found message or an id; or of any number of these, with a result
        for each, in order.

        A message with the result CANCELLED is never delivered. A receipt needs a call to one shard only. Ids are unique
        within a topic; `topic` names it. `errors`, for several messages, is as in `send_many`.

        Raises:
            InvalidMessage: ID_AMBIGUOUS: messages of several topics have the id, and no topic is given.
            SomeFailed: for several: some results are unknown; `outcomes` has all results.
            DueTimeError: for a single message: the result is unknown.
        """
        check_errors(errors)
        if isinstance(messages, MessageRef | str):
            return only(await self._ending.cancel([messages], topic))
        return judged(await self._ending.cancel(listed(messages), topic), errors)

    @overload
    async def reschedule(  # type: ignore[overload-overlap]
        self,
        messages: MessageRef | str,
        *,
        topic: str = "",
        delay: Length | None = None,
        deliver_at: datetime | None = None,
        body: Body | None = None,
    ) -> Rescheduled: ...

    @overload
    async def reschedule(
        self,
        messages: Iterable[MessageRef | str],
        *,
        topic: str = "",
        delay: Length | None = None,
        deliver_at: datetime | None = None,
        body: Body | None = None,
        errors: Literal["raise"] = "raise",
    ) -> list[Rescheduled]: ...

    @overload
    async def reschedule(
        self,
        messages: Iterable[MessageRef | str],
        *,
        topic: str = "",
        delay: Length | None = None,
        deliver_at: datetime | None = None,
        body: Body | None = None,
        errors: OnError,
    ) -> list[Rescheduled | DueTimeError]: ...

    @overload
    async def reschedule(
        self,
        messages: MessageRef | str | Iterable[MessageRef | str],
        *,
        topic: str = "",
        delay: Length | None = None,
        deliver_at: datetime | None = None,
        body: Body | None = None,
        errors: OnError = "raise",
    ) -> Rescheduled | list[Rescheduled | DueTimeError]: ...

    async def reschedule(
        self,
        messages: MessageRef | str | Iterable[MessageRef | str],
        *,
        topic: str = "",
        delay: Length | None = None,
        deliver_at: datetime | None = None,
        body: Body | None = None,
        errors: OnError = "raise",
    ) -> Rescheduled | list[Any]:
        """Gives pending messages another due time, counted from now or absolute, and optionally another body.

        Each keeps its id and is delivered once. Otherwise as `cancel`.

        Raises:
            InvalidMessage: neither or both of `delay` and `deliver_at` are given, or one is malformed.
            SomeFailed: for several: some results are unknown; `outcomes` has the result or the error of each.
            DueTimeError: for a single message: the result is unknown.
        """
        check_errors(errors)
        if isinstance(messages, MessageRef | str):
            return only(await self._ending.reschedule([messages], delay, deliver_at, body, topic))
        return judged(await self._ending.reschedule(listed(messages), delay, deliver_at, body, topic), errors)

    def cancel_matching(
        self,
        topic: str = "",
        *,
        key: str = "",
        after: datetime | None = None,
        before: datetime | None = None,
        dry_run: bool = False,
    ) -> AsyncGenerator[CancelProgress, None]:
        """Cancels all pending messages that match every given filter: a topic, a key, due at or after a time, due
        before a time; at least a topic or a time. Yields the progress about once a second, and at the end.

        `dry_run` only counts them. Closing the iterator stops the work; another call continues it.

        Raises:
            NotFound: the topic does not exist.
            DueTimeError: a shard does not answer; messages cancelled before stay cancelled.
        """
        return self._ending.cancel_matching(topic, key, after, before, dry_run)

    async def close(self) -> None:
        """Waits for pending sends, each up to its timeout, and for check handlers. Later sends raise Closed."""
        if not self._connection.can_be_closed():
            return
        self._threads.end()
        await self._calls.drain()
        await self._threads.close()
        await self._transacting.close()
        await self._gatherer.close()
        await self._sends.close()
        await self._connection.close()

    async def __aenter__(self) -> Self:
        self._transacting.checks.start()
        return self

    def __repr__(self) -> str:
        return self._connection.described("AsyncProducer")

    async def _send_gathered(self, message: Message) -> Outcome:
        deadline = asyncio.get_running_loop().time() + self._timeout
        letter = self._letters.letter(message)
        await self._capacity.acquire_within(1, len(letter), deadline, self._timeout)
        try:
            return await self._gatherer.send(letter, deadline)
        finally:
            self._capacity.release(1, len(letter))
