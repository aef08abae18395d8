"""Consumers: run handlers of topics until a signal, a call of `stop`, or an error that retries cannot fix.

When a handler returns, its message is acknowledged; when it raises, the message has failed (`failing.py`). All handlers
of a consumer share one connection; `handling.py` runs each.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from operator import attrgetter
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from duetime.client.callables import is_asynchronous
from duetime.client.connection import GatewayConnection, resolve_server
from duetime.client.consuming.failing import Reject
from duetime.client.consuming.handling import CANCEL_S, Handler, HandlerRunner, TopicHandlers
from duetime.client.consuming.leased import LeasedMessage
from duetime.client.consuming.leases import CALL_TIMEOUT_S, LeaseSubscription, lease_s, lites, named, tag_named
from duetime.client.consuming.logs import log
from duetime.client.consuming.room import ReceiveRoom
from duetime.client.consuming.settling import Stats
from duetime.client.consuming.wrapping import BadBodies, HandlerCallOptions, Middleware, checked, decoding
from duetime.client.counts import whole
from duetime.client.errors import (
    AlreadyExists,
    Closed,
    Conflict,
    DueTimeError,
    InvalidArgument,
    PermissionDenied,
    Unauthenticated,
)
from duetime.client.fault_log import FaultLog
from duetime.client.groups import new_group
from duetime.client.lengths import Length, limit_seconds, seconds
from duetime.client.process import Signals
from duetime.client.retry_policy import Backoff, attempts_max, handler_policy
from duetime.client.tokens import TokenSource, credentials_for
from duetime.client.trust import Tls, followed_for
from duetime.v1 import consumer_pb2

F = TypeVar("F", bound=Callable[..., Any])

Unhandled = Literal["retry", "reject"]

CONCURRENCY_MAX = 10_000


class Consumer:
    """Calls handlers with messages of topics, for a group: each message is with one consumer of the group at a time.

    Arguments:
        server: HOST:PORT; None: DUETIME_SERVER, else localhost:9800.
        token: the user's token, or a function that returns it; see `Token`. None: DUETIME_TOKEN, or the file of
            DUETIME_TOKEN_FILE.
        tls: the trusted certificates; see `Tls`. None: those of DUETIME_TLS_CA_FILE, or plain text without it.
        group: created if it does not exist.
        ordered: for a new group: messages of one queue are handled one after the other, and a failed message blocks its
            queue. None: as the existing group.
        start: for a new group: "earliest", "latest" or a datetime (messages stored then or later; local time if it has
            no time zone).
        drain: time for running handlers to finish when the consumer is stopped; then they are cancelled.
        middleware: called around every handler; the first one is outermost.
        unhandled: for a message with a tag that no handler of its topic has: "retry": it fails, so that another
            consumer of the group may handle it, by the group's policy; "reject": a dead letter at once.
    """

    def __init__(
        self,
        server: str | None = None,
        *,
        group: str,
        ordered: bool | None = None,
        start: Literal["earliest", "latest"] | datetime = "earliest",
        drain: Length = "30s",
        middleware: Sequence[Middleware] = (),
        unhandled: Unhandled = "retry",
        token: TokenSource | None = None,
        tls: Tls | None = None,
    ) -> None:
        self._server = resolve_server(server)
        # Rejects the same arguments as a connection would.
        credentials_for(self._server, token, encrypted=followed_for(tls) is not None)
        self._token = token
        self._tls = tls
        self.group = named("group", group)
        self._ordered = ordered
        self._new_group = new_group(group, bool(ordered), start)
        self._drain_s = seconds(drain, "drain")
        self._middleware = checked(middleware)
        if unhandled not in ("retry", "reject"):
            raise InvalidArgument.of("unhandled", f"{unhandled!r} is neither 'retry' nor 'reject'")
        self._unhandled = unhandled
        # Handlers by topic and tag; the one for the rest of the topic is at None.
        self._handlers: dict[str, dict[str | None, Handler]] = {}
        self._subscriptions: dict[str, tuple[LeaseSubscription, int]] = {}
        # The name in a message that chooses among handlers of one tag each; tasks may have it in a property.
        self.name_of: Callable[[LeasedMessage], str] = attrgetter("tags")
        # The memory for messages, if several consumers of this process share one.
        self.room: ReceiveRoom | None = None
        self._stats = Stats()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = asyncio.Event()
        self._started = asyncio.Event()
        self._stop_asked = False
        self._error: BaseException | None = None
        self._running: asyncio.Task[None] | None = None

    def handler(
        self,
        topic: str,
        *,
        tag: str | None = None,
        body: Any = None,
        bad_body: BadBodies = "reject",
        tags: str | None = None,
        sql: str | None = None,
        concurrency: int = 32,
        max_attempts: int | None = None,
        backoff: Backoff | None = None,
        lease: Length = "60s",
        timeout: Length | None = None,
        lite_topics: Iterable[str] | None = None,
        middleware: Sequence[Middleware] = (),
    ) -> Callable[[F], F]:
        """Makes a function the handler of a topic. Coroutine functions run on the event loop, others in threads.

        Handlers of one topic share a subscription: tags, sql, concurrency, lease and lite_topics must be equal.

        Arguments:
            tag: the handler receives only messages with this tag, and others of the topic may have the other tags. One
                without a tag receives the rest; see also `Consumer(unhandled=...)`. Unlike `tags`, it filters nothing.
            body: a type: the handler receives the body as a value of it, and also the message if it takes two
                arguments. A dataclass, a pydantic model, `list[Order]`, str, or any other type of `message.json`. None:
                the handler receives the message.
            bad_body: for a body of another type: "reject": a dead letter at once; "retry": a failed message, as if the
                handler had raised BadBody.
            tags, sql: a filter: messages must have one of these tags (`"a || b"`) and match the SQL92 expression over
                the properties. All consumers of a group must use the same.
            concurrency: maximum messages of the topic handled at once; for an ordered group, maximum queues.
            max_attempts, backoff: number and times of the deliveries of a failed message; None: the group's policy. A
                message's own policy (`Message.retry`) takes precedence. Backoffs: "exponential:1s..10m",
                "exponential:1s..10m,factor=3,jitter=0.1", "1s,5s,30s", a list of lengths, "levels".
            lease: time until a message is redelivered after this process dies; renewed while the handler runs.
            timeout: a handler that runs longer has failed, and a coroutine is cancelled. None: no limit.
            lite_topics: up to 2,000, for a topic of the type `lite`: only their messages are received, those of each
                lite topic in order, one after the other. Without a filter.
            middleware: called around this handler, inside that of the consumer.

        Raises:
            InvalidArgument: an argument breaks its rule, the topic or tag already has a handler, or the function does
                not accept a message.
        """
        self._check_free(topic, tag)
        concurrency = whole("concurrency", concurrency, CONCURRENCY_MAX)
        policy = handler_policy(backoff, max_attempts)
        subscription = LeaseSubscription(
            *(self.group, named("topic", topic), tags or "", sql or "", lease_s(lease)),
            lite_topics=lites(lite_topics),
        )
        shared = subscription, concurrency
        self._check_shared(topic, shared)
        timeout_s = limit_seconds(timeout, "timeout")
        around = (*self._middleware, *checked(middleware))
        wrapping = HandlerCallOptions(around, decoding(body, bad_body), bad_body)

        def register(function: F) -> F:
            self._check_free(topic, tag)
            self._check_shared(topic, shared)
            handler = Handler(wrapping.wrapped(function), is_asynchronous(function), timeout_s, policy)
            self._handlers.setdefault(topic, {})[tag] = handler
            self._subscriptions[topic] = shared
            return function

        return register

    @property
    def stats(self) -> Stats:
        """Counts since the consumer was made; a copy."""
        return replace(self._stats)

    def run(self) -> None:
        """Handles messages until SIGTERM, SIGINT or `stop`; then drains.

        Draining: receiving stops, unstarted messages are released, running handlers get `drain` to finish, and their
        outcomes are sent to the server. A second signal cancels running handlers, a third one ends the process.

        Raises:
            InvalidArgument: there is no handler, or the server rejects the arguments, such as a malformed filter.
            Closed: the consumer is already running, or this thread runs an event loop: use `run_async`.
            Forked: this process was forked from one that had connected.
            BaseException: raised by a handler, and not an Exception: SystemExit, for example.
        """
        if _running_loop() is not None:
            raise Closed("an event loop runs here: use `await consumer.run_async()`", reason="RUNNING")
        # Not asyncio.run: it would wait forever for a handler that ignores its cancellation.
        loop = asyncio.new_event_loop()
        try:
            loop.run_until_complete(self._run_with_signals())
        finally:
            loop.run_until_complete(_end_tasks())
            loop.close()

    async def run_async(self) -> None:
        """As `run`, in an event loop, without signals. Cancellation cancels the handlers and releases all messages."""
        if not self._handlers:
            raise InvalidArgument.of("handler", "there is none; decorate a function with @consumer.handler(TOPIC)")
        if self._loop is not None:
            raise Closed("the consumer is already running", reason="RUNNING")
        connection = GatewayConnection(self._server, self._token, self._tls)
        self._loop, self._error, self._stopping = asyncio.get_running_loop(), None, asyncio.Event()
        if self._stop_asked:
            self._stopping.set()
        try:
            await self._work(connection)
        finally:
            await connection.close()
            self._loop, self._stop_asked = None, False
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Makes the consumer drain and end. Callable from any thread; idempotent; before `run`, makes `run` return."""
        self._stop_asked = True
        loop = self._loop
        if loop is not None and loop is _running_loop():
            self._stopping.set()
        elif loop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended
                loop.call_soon_threadsafe(self._stopping.set)

    async def __aenter__(self) -> Self:
        """Runs the consumer during the block; leaving the block drains it."""
        self._started = asyncio.Event()
        self._running = asyncio.get_running_loop().create_task(self.run_async())
        started = asyncio.get_running_loop().create_task(self._started.wait())
        try:
            await asyncio.wait({self._running, started}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            started.cancel()
        if self._running.done():
            self._running.result()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if self._running is not None:
            await self._running

    def __repr__(self) -> str:
        state = "stopped" if self._loop is None else "running"
        return f"Consumer({self._server}, group={self.group!r}, topics={list(self._handlers)}, {state})"

    def _check_free(self, topic: str, tag: str | None) -> None:
        if tag is not None:
            tag_named("tag", tag)
        if tag in self._handlers.get(topic, {}):
            of_tag = "; give each a tag of its own" if tag is None else f" for the tag {tag}"
            raise InvalidArgument.of("topic", f"{topic} already has a handler{of_tag}")
        if self._loop is not None:
            raise Closed(
                f"the consumer is already running; add the handler of {topic} before it starts", reason="RUNNING"
            )

    def _check_shared(self, topic: str, shared: tuple[LeaseSubscription, int]) -> None:
        """Raises: InvalidArgument: an earlier handler of the topic has other options of the subscription."""
        if self._subscriptions.get(topic, shared) != shared:
            text = f"{topic} already has a handler with other ones; its handlers share them"
            raise InvalidArgument.of("tags, sql, concurrency, lease or lite_topics", text)

    def _topic_handlers(self, topic: str) -> TopicHandlers:
        """The handlers of a topic, with one for messages that have none."""
        subscription, concurrency = self._subscriptions[topic]
        found = self._handlers[topic]
        subscription = replace(subscription, max_attempts=attempts_max(one.policy for one in found.values()))
        by_tag = {tag: one for tag, one in found.items() if tag is not None}

        async def fail(message: LeasedMessage) -> None:
            text = f"no handler of {topic} is for {self.name_of(message)!r}: there are {', '.join(sorted(by_tag))}"
            raise Reject(text) if self._unhandled == "reject" else LookupError(text)

        rest = found.get(None) or Handler(fail, asynchronous=True)
        return TopicHandlers(subscription, concurrency, by_tag, rest, self.name_of)

    async def _run_with_signals(self) -> None:
        work, count = asyncio.current_task(), 0

        def on_signal() -> None:
            nonlocal count
            count += 1
            if count == 1:
                log.info("draining; a second signal cancels running handlers")
                self.stop()
            elif work is not None:
                work.cancel()
                # The default handler is back: the next signal ends the process.
                signals.release()

        with Signals(on_signal) as signals:
            try:
                await self.run_async()
            except asyncio.CancelledError:
                if count < 2:
                    raise

    async def _work(self, connection: GatewayConnection) -> None:
        asking_group = asyncio.get_running_loop().create_task(self._group_order(connection))
        stopping = asyncio.get_running_loop().create_task(self._stopping.wait())
        try:
            await asyncio.wait({asking_group, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not asking_group.done():
                return
            ordered = asking_group.result()
        finally:
            asking_group.cancel()
            stopping.cancel()
            await asyncio.gather(asking_group, stopping, return_exceptions=True)
        self._started.set()
        async with asyncio.TaskGroup() as tasks:
            for topic in self._handlers:
                log.info("consuming %s as %s", topic, self.group)
                handlers = self._topic_handlers(topic)
                # Leases of lite topics are ordered in every group.
                in_order = ordered or bool(handlers.subscription.lite_topics)
                work = HandlerRunner(handlers, connection, self._stats, in_order, self._stopping, self._fail, self.room)
                tasks.create_task(work.run(self._drain_s))

    def _fail(self, error: BaseException) -> None:
        """Drains and ends with this error, unless an earlier one was recorded."""
        if self._error is None:
            self._error = error
            # `run` raises the error after draining; a with block raises it only at its end, so it is logged now.
            level = logging.INFO if self._running is None else logging.ERROR
            log.log(level, "draining because of an error: %s: %s", type(error).__qualname__, error)
        self._stopping.set()

    async def _group_order(self, connection: GatewayConnection) -> bool:
        """Whether the group is ordered. Creates the group if it does not exist; waits for a server."""
        fault_log = FaultLog(f"group {self.group}", log)
        while True:
            try:
                answer = await connection.call("ListGroups", consumer_pb2.ListGroupsRequest(), CALL_TIMEOUT_S)
                group = next((group for group in answer.groups if group.name == self.group), None)
                if group is None:
                    request = consumer_pb2.CreateGroupRequest(group=self._new_group)
                    group = await connection.call("CreateGroup", request, CALL_TIMEOUT_S)
                await self._prepare(connection, group)
                break
            except (InvalidArgument, Unauthenticated, PermissionDenied, Conflict, Closed):
                raise
            except AlreadyExists:
                continue  # another consumer was faster: its settings hold
            except DueTimeError as error:
                await fault_log.pause(error)
        if self._ordered is not None and group.ordered != self._ordered:
            kind = "is ordered" if group.ordered else "is not ordered"
            raise InvalidArgument.of("ordered", f"group {self.group} exists and {kind}; delete it, or change `ordered`")
        return bool(group.ordered)

    async def _prepare(self, connection: GatewayConnection, group: consumer_pb2.Group) -> None:
        """Runs before the first receive, and again after an error that a repetition may mend. For subclasses."""


async def _end_tasks() -> None:
    """Cancels tasks that handlers have left behind, and waits briefly for them."""
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    if rest:
        _, late = await asyncio.wait(rest, timeout=CANCEL_S)
        if late:
            log.warning("%d tasks ignore their cancellation and are abandoned", len(late))
    await asyncio.get_running_loop().shutdown_asyncgens()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
