"""Finding messages: by key and id in any state, pending ones by due time, and transactions."""

from collections.abc import AsyncGenerator
from datetime import datetime
from typing import Any, Literal

from duetime_format.limits import QUERY_COUNT_MAX

from duetime.client.connection import ClosableClient, GatewayConnection
from duetime.client.counts import whole
from duetime.client.errors import InvalidArgument, NotFound, Unavailable
from duetime.client.finding import pending, trace
from duetime.client.finding.pending import Backlog, PendingMessage
from duetime.client.finding.trace import Trace
from duetime.client.finding.transactions import FoundTransaction
from duetime.client.lengths import Length, seconds
from duetime.client.message import MessageRef, at_ms, moment, pending_filter, range_ms
from duetime.client.tokens import TokenSource
from duetime.client.transaction import STATES
from duetime.client.trust import Tls
from duetime.client.view import MessageView
from duetime.v1 import consumer_pb2, gateway_pb2, pending_pb2, transactions_pb2

PAGE_COUNT = 256

State = Literal["stored", "pending", "quarantined", "cancelled", "dead", "prepared", "given up", "rolled back"]

_STATES: dict[int, State] = {
    gateway_pb2.MESSAGE_STATE_STORED: "stored",
    gateway_pb2.MESSAGE_STATE_PENDING: "pending",
    gateway_pb2.MESSAGE_STATE_QUARANTINED: "quarantined",
    gateway_pb2.MESSAGE_STATE_CANCELLED: "cancelled",
    gateway_pb2.MESSAGE_STATE_DEAD: "dead",
    gateway_pb2.MESSAGE_STATE_PREPARED: "prepared",
    gateway_pb2.MESSAGE_STATE_GIVEN_UP: "given up",
    gateway_pb2.MESSAGE_STATE_ROLLED_BACK: "rolled back",
}


class FoundMessage(MessageView, MessageRef):
    """A message that was found, and its state; `cancel` and `reschedule` accept it. Fields are decoded on access.

    A pending, cancelled or quarantined message shows the topic and queue of its destination, and its offset in the
    lane. An uncommitted message of a transaction does the same, with its offset among uncommitted messages.
    """

    __slots__ = ("_found",)

    def __init__(self, found: gateway_pb2.FoundMessage) -> None:
        super().__init__(found.message)
        self._found = found

    @property
    def state(self) -> State:
        """`stored`: in its topic; `pending`: not due yet; `cancelled`: before it was due; `dead`: a dead letter of a
        group; `quarantined`: undeliverable. Of a transaction: `prepared`, `given up` or `rolled back`."""
        return _STATES[self._found.state]

    @property
    def shard(self) -> int:
        return self._found.shard

    @property
    def lane(self) -> int | None:
        """The lane of a pending message: a delay level's number, or from 1000 on for any time; else None."""
        return self._found.lane or None

    @property
    def entry(self) -> int | None:
        """The entry of a pending message in its lane; else None."""
        return self._found.entry if self._found.lane else None

    @property
    def before_count(self) -> int | None:
        """The number of messages in the lane of a pending message that are due before it; else None."""
        return self._found.before_count if self._found.lane else None

    @property
    def offset_id(self) -> str:
        """RocketMQ's id of the record: host and position in the log. Delivery after a delay gives it a new one."""
        return self._found.offset_id

    @property
    def id(self) -> str:
        """The sender's id; without one, the offset id."""
        return self._message.id or self.offset_id

    @property
    def queue(self) -> int:
        return self._message.queue

    @property
    def offset(self) -> int:
        return self._message.offset

    @property
    def flag(self) -> int:
        return self._message.flag

    @property
    def stored_at(self) -> datetime:
        """The time when it entered its queue or its lane, by the server's clock."""
        return moment(self._message.stored_at_ms)

    @property
    def due_at(self) -> datetime | None:
        """The due time, past or future, by the server's clock; None: it was not delayed."""
        return moment(self._message.due_at_ms) if self._message.due_at_ms else None

    @property
    def planned_at(self) -> datetime | None:
        """The time for which its schedule planned it, also if it was due later; None: it is no planned occurrence."""
        return moment(self._found.planned_at_ms) if self._found.planned_at_ms else None

    @property
    def late_ms(self) -> int | None:
        """From due to its store time in the topic, before the flush; None: it was not delayed, or not delivered yet."""
        if self.state != "stored" or not self._message.due_at_ms:
            return None
        return self._message.stored_at_ms - self._message.due_at_ms

    @property
    def delay_level(self) -> int:
        """The delay level; 0: it was not delayed, or its due time matches no level."""
        return self._message.delay_level

    @property
    def attempt(self) -> int:
        """The number of retries so far."""
        return self._message.attempt

    def _ref(self) -> pending_pb2.PendingRef:
        place = {"shard": self.shard, "lane": self.lane, "entry": self.entry} if self.lane else {}
        return pending_pb2.PendingRef(message_id=self.id, topic=self.topic, **place)

    def __repr__(self) -> str:
        return f"FoundMessage({self.id}, {self.state}, topic={self.topic!r}, queue={self.queue}, offset={self.offset})"


class SearchResult(list[FoundMessage]):
    """Messages, newest first. `more`: older messages exceeded the limit."""

    more = False


class AsyncFinder(ClosableClient):
    """Finds messages, and lists pending ones. For one event loop; `Finder` is for plain code.

    Arguments:
        server: HOST:PORT; None: DUETIME_SERVER, else localhost:9800.
        token: the user's token, or a function that returns it; see `Token`. None: DUETIME_TOKEN, or the file of
            DUETIME_TOKEN_FILE.
        tls: the trusted certificates; see `Tls`. None: those of DUETIME_TLS_CA_FILE, or plain text without it.
        timeout: longest time of one call.
    """

    def __init__(
        self,
        server: str | None = None,
        *,
        timeout: Length = "10s",
        token: TokenSource | None = None,
        tls: Tls | None = None,
    ) -> None:
        self._connection = GatewayConnection(server, token, tls)
        self._timeout = seconds(timeout, "timeout")

    async def find(
        self,
        topic: str,
        key: str = "",
        *,
        tag: str = "",
        start: datetime | None = None,
        end: datetime | None = None,
        max: int = 32,  # noqa: A002
        missing_ok: bool = False,
    ) -> SearchResult:
        """Returns the latest messages of a topic with a key or id, or with a tag, at most `max` (up to 64), including
        pending ones.

        `start` and `end` bound the time of storing, both inclusive; local time if they have no time zone.
        `missing_ok`: return nothing for a topic that does not exist.

        Raises:
            NotFound: the topic does not exist, without `missing_ok`.
            DueTimeError: a shard does not answer, so that messages might be missing.
        """
        count = whole("max", max, QUERY_COUNT_MAX)
        from_ms, to_ms = range_ms(start, end)
        request = gateway_pb2.QueryMessagesRequest(
            topic=topic,
            key=key,
            tag=tag,
            from_ms=from_ms,
            to_ms=to_ms,
            max_count=count,
        )
        answer: Any = await self._of_topic("QueryMessages", request, missing_ok)
        if answer is None:
            return SearchResult()
        found = SearchResult(map(FoundMessage, answer.messages))
        found.more = answer.more
        return found

    async def get(self, id: str, *, topic: str = "") -> FoundMessage:  # noqa: A002  the message's own word for it
        """Returns the message with an id or offset id. Ids are unique within a topic; the search is faster if the topic
        is given.

        Raises:
            NotFound: no shard has it.
            InvalidArgument: ID_AMBIGUOUS: messages of several topics have the id, and no topic is given.
            DueTimeError: a shard does not answer, and no other shard has it.
        """
        request = gateway_pb2.GetMessageRequest(id=id, topic=topic)
        return FoundMessage(await self._connection.call("GetMessage", request, self._timeout))

    async def trace(self, id: str, *, topic: str = "") -> Trace:  # noqa: A002  as above
        """Returns the history of the message with an id or offset id, as far as it is stored.

        Raises:
            NotFound: no shard has it.
            DueTimeError: a shard does not answer, and no other shard has it.
        """
        request = consumer_pb2.TraceMessageRequest(id=id, topic=topic)
        return trace.from_proto(await self._connection.call("TraceMessage", request, self._timeout))

    async def pending(
        self,
        topic: str = "",
        *,
        key: str = "",
        after: datetime | None = None,
        before: datetime | None = None,
        bodies: bool = True,
        missing_ok: bool = False,
    ) -> AsyncGenerator[PendingMessage, None]:
        """Lists pending messages by due time; iteration fetches page by page. Filters: a topic, a key, due at or after
        a time, due before a time; local time if it has no time zone. `bodies=False` leaves the bodies empty.
        `missing_ok`: return nothing for a topic that does not exist.

        Raises:
            NotFound: the topic does not exist, without `missing_ok`.
            DueTimeError: a shard does not answer, so that messages might be missing.
        """
        wanted = pending_filter(topic, key, after, before)
        request = pending_pb2.ListPendingRequest(filter=wanted, max_count=PAGE_COUNT, omit_bodies=not bodies)
        while True:
            answer: Any = await self._of_topic("ListPending", request, missing_ok)
            if answer is None:
                return
            for one in answer.messages:
                yield PendingMessage(one)
            if not answer.next_page_token:
                return
            request.page_token = answer.next_page_token

    async def backlog(
        self,
        topic: str = "",
        *,
        after: datetime | None = None,
        before: datetime | None = None,
        by_topic: bool = False,
        by_lane: bool = False,
    ) -> Backlog:
        """Counts pending messages by due time: of all topics or one, due at or after a time, due before a time.

        Raises:
            NotFound: the topic does not exist.
            DueTimeError: the server did not answer. The result names the shards that do not answer.
        """
        request = pending.counted(topic, after, before, by_topic=by_topic, by_lane=by_lane)
        return pending.from_proto(await self._connection.call("Backlog", request, self._timeout))

    async def transactions(
        self,
        group: str = "",
        *,
        topic: str = "",
        state: Literal["open", "given up"] | None = None,
        prepared_before: datetime | None = None,
    ) -> AsyncGenerator[FoundTransaction, None]:
        """Lists transactions that are open or were given up, oldest first within each shard; iteration fetches page by
        page. Filters: a producer group, a topic, a state, prepared before a time; local time if it has no time zone.

        Raises:
            Unavailable: shards do not answer; the transactions of all others were listed.
            DueTimeError: the server did not answer.
        """
        if state not in (None, "open", "given up"):
            raise InvalidArgument.of("state", f"{state!r} is neither 'open' nor 'given up'")
        before_ms = 0 if prepared_before is None else max(at_ms(prepared_before), 1)
        wanted = next((wire for wire, name in STATES.items() if name == state), 0)
        request = transactions_pb2.ListTransactionsRequest(
            group=group, topic=topic, prepared_before_ms=before_ms, page_size=PAGE_COUNT
        )
        request.state = wanted  # type: ignore[assignment]
        missing: set[int] = set()
        while True:
            answer: Any = await self._connection.call("ListTransactions", request, self._timeout)
            for one in answer.transactions:
                yield FoundTransaction(one)
            missing.update(answer.unreachable_shards)
            if not answer.next_page_token:
                break
            request.page_token = answer.next_page_token
        if missing:
            which = ", ".join(map(str, sorted(missing)))
            text = f"shards do not answer, and their transactions are missing: {which}"
            raise Unavailable(text, reason="SHARD_UNAVAILABLE")

    async def transaction(self, id: str, *, topic: str = "") -> FoundTransaction:  # noqa: A002  as above
        """Returns the transaction with an id, or with the id of its message, which names one transaction of each topic;
        of several with the same topic the latest.

        Raises:
            NotFound: no shard has it.
            InvalidArgument: ID_AMBIGUOUS: transactions of several topics have the message's id, and no topic is given.
            DueTimeError: a shard does not answer, and no other shard has it.
        """
        request = transactions_pb2.GetTransactionRequest(id=id, topic=topic)
        answer: Any = await self._connection.call("GetTransaction", request, self._timeout)
        return FoundTransaction(answer.transaction, answer)

    async def _of_topic(self, method: str, request: Any, missing_ok: bool) -> Any:
        """The answer to a call about a topic; None: the topic does not exist, and `missing_ok` is set."""
        try:
            return await self._connection.call(method, request, self._timeout)
        except NotFound:
            if missing_ok:
                return None
            raise

    async def close(self) -> None:
        """Disconnects."""
        await self._connection.close()

    def __repr__(self) -> str:
        return self._connection.described("AsyncFinder")
