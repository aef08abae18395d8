"""The handlers of a topic at work: receives messages, calls handlers, renews leases meanwhile, settles the outcomes.

    receive ──▶ waiting ──▶ up to `concurrency` handlers ──▶ settler: ack, nack, release
                   └──────────── open: renewed ────┘

Messages are fetched ahead for a tenth of a second at the handlers' recent pace. Slow handlers fetch none ahead, so that
no message waits here while another consumer is idle.

For an ordered group the messages of a run (one lease of one queue) are handled one after the other, runs in parallel.

Shutdown order: receiving stops, so that no new messages arrive; waiting messages are released for other consumers;
handlers get time to finish; their outcomes are flushed. Leases are renewed until then.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from itertools import chain
from typing import Any

from duetime_format import record
from duetime_format.limits import RECEIPTS_MAX, RECEIVE_COUNT_MAX

from duetime import deadlines
from duetime.client import tracing
from duetime.client.callables import check_returned
from duetime.client.connection import GatewayConnection, backoff_s, pause
from duetime.client.consuming.failing import Reject, Retry, decision_of, text_of, without_own_frames
from duetime.client.consuming.leased import LeasedMessage, shard_of
from duetime.client.consuming.leases import LeaseCalls, LeaseSubscription
from duetime.client.consuming.logs import current, log, log_about
from duetime.client.consuming.room import ReceiveRoom
from duetime.client.consuming.settling import OutcomeSender, Stats, bytes_of
from duetime.client.errors import Closed, DueTimeError, InvalidArgument, NotFound, PermissionDenied, Unauthenticated
from duetime.client.fault_log import FaultLog
from duetime.client.threads import HandlerThreadPool
from duetime.v1 import consumer_pb2, message_pb2

LONG_POLL_MS = 15_000
# Messages are fetched this long ahead, at the handlers' pace, which is measured over at least the same time.
AHEAD_S = 0.1
AHEAD_COUNT_MAX = 1024
# Receiving pauses while more outcomes than these are unsent.
DECISIONS_MAX = 8192
# A lease is renewed after a third of its length; six checks are made in that length.
RENEW_CHECKS = 6
RENEW_LEFT = 2 / 3
# A warning is logged if the event loop was blocked for longer than this many checks.
BLOCKED_CHECKS = 2
# Longest wait of a stopping receiver for an answer in flight: messages of a lost answer stay leased.
LAST_ANSWER_S = 0.1
# Time for cancelled handlers to end, and for the last outcomes.
CANCEL_S = 1.0
FLUSH_S = 5.0
_OWN_POLICY = record.RETRY.encode()


@dataclass(frozen=True, slots=True)
class Handler:
    """A handler function and its options."""

    function: Callable[[LeasedMessage], Any]
    asynchronous: bool
    timeout_s: float | None = None
    # None: the group's.
    policy: message_pb2.RetryPolicy | None = None


@dataclass(slots=True)
class TopicHandlers:
    """The handlers of a topic, and the subscription that they share."""

    subscription: LeaseSubscription
    concurrency: int
    # Handlers of one tag each, and the handler of all other messages, which may only fail them.
    by_tag: dict[str, Handler]
    rest: Handler
    # The tag of a message, or another name in place of it.
    name_of: Callable[[LeasedMessage], str]


class HandlerRunner:
    """Runs the handlers of a topic until it is stopped or cancelled."""

    def __init__(
        self,
        topic_handlers: TopicHandlers,
        connection: GatewayConnection,
        stats: Stats,
        ordered: bool,
        stopping: asyncio.Event,
        fail: Callable[[BaseException], None],
        memory: ReceiveRoom | None = None,
    ) -> None:
        self._by_tag, self._rest = topic_handlers.by_tag, topic_handlers.rest
        self._name_of = topic_handlers.name_of
        self._concurrency = topic_handlers.concurrency
        self._subscription = topic_handlers.subscription
        self._lease_s = self._subscription.lease_s
        self._topic = self._subscription.topic
        self._leases = LeaseCalls(connection, self._subscription)
        self._stats = stats
        self._ordered = ordered
        self._loop = asyncio.get_running_loop()
        # Each handler starts in a copy of this context.
        self._context = copy_context()
        self._stopping = stopping
        # Ends the consumer with an error.
        self._fail = fail
        self._memory = memory
        self._settler = OutcomeSender(self._leases, stats, self._settled, fail)
        self._threads = HandlerThreadPool(self._concurrency, f"duetime-{self._topic}")
        # Leased and not settled.
        self._open: set[LeasedMessage] = set()
        # Messages, or runs of an ordered group, without a started handler.
        self._waiting: deque[Any] = deque()
        self._handlers: set[asyncio.Task[Any]] = set()
        self._running: asyncio.Task[Any] | None = None
        # The end of a drain has cancelled the handlers.
        self._cancels = False
        self._room = asyncio.Event()
        self._open_max = 0
        self._ahead = 0
        self._begun_count = 0
        self._paced_at_s = 0.0

    async def run(self, drain_s: float) -> None:
        """Returns when the consumer was stopped and everything has ended. Cancellation cancels the handlers."""
        loop = self._loop
        self._running = asyncio.current_task()
        self._paced_at_s = loop.time()
        receiving, renewing = loop.create_task(self._receive_all()), loop.create_task(self._renew_all())
        for task in (receiving, renewing):
            task.add_done_callback(self._fail_on_error)
        try:
            await self._stopping.wait()
            await asyncio.wait({receiving}, timeout=LAST_ANSWER_S)
            receiving.cancel()
            await self._end(drain_s, FLUSH_S)
        except asyncio.CancelledError:
            self._stopping.set()
            receiving.cancel()
            await self._end(0, CANCEL_S)
            raise
        finally:
            receiving.cancel()
            renewing.cancel()
            await asyncio.gather(receiving, renewing, return_exceptions=True)
            self._threads.close()

    async def _end(self, drain_s: float, flush_s: float) -> None:
        while self._waiting:
            item = self._waiting.popleft()
            self._give_back(item if self._ordered else (item,), begun=False)
        if self._handlers and drain_s > 0:
            log.info("%s: stopping; %d handlers are running", self._topic, len(self._handlers))
            await asyncio.wait(self._handlers, timeout=drain_s)
        if self._handlers:
            log.warning("%s: cancelling %d handlers after %g s", self._topic, len(self._handlers), drain_s)
            self._cancels = True
            for task in self._handlers:
                task.cancel()
            await asyncio.wait(self._handlers, timeout=CANCEL_S)
        await self._settler.flush(flush_s)
        await self._leases.close()

    def _fail_on_error(self, task: asyncio.Task[Any]) -> None:
        """Ends the consumer with the error of a task."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    # --- receiving ------------------------------------------------------------------------------------------------

    async def _receive_all(self) -> None:
        fault_log, exists = FaultLog(f"receiving {self._topic}", log), False
        while not self._stopping.is_set():
            count = await self._wait_for_room()
            try:
                runs = await self._receive(count)
            except (InvalidArgument, Unauthenticated, PermissionDenied, Closed) as error:
                # A retry would always be rejected.
                self._fail(error)
                return
            except DueTimeError as error:
                # A topic begins with its first message.
                is_awaited = isinstance(error, NotFound) and not exists
                await fault_log.pause(error, logging.INFO if is_awaited else logging.WARNING)
                continue
            fault_log.clear()
            exists = True
            for run in runs:
                self._open.update(run)
                self._stats.received += len(run)
            self._waiting.extend(runs if self._ordered else chain.from_iterable(runs))
            self._start()

    async def _receive(self, count: int) -> list[list[LeasedMessage]]:
        """Messages by runs. Raises: DueTimeError."""
        if self._memory is None:
            return await self._leases.receive(count, LONG_POLL_MS)
        asked_bytes, found_bytes = await self._memory.take(), 0
        try:
            runs = await self._leases.receive(count, LONG_POLL_MS, asked_bytes)
            found_bytes = bytes_of(chain.from_iterable(runs))
            return runs
        finally:
            self._memory.received(asked_bytes, found_bytes)

    async def _wait_for_room(self) -> int:
        """Waits until messages may be received; returns the number."""
        concurrency = self._concurrency
        while True:
            self._measure()
            room = concurrency + self._ahead - len(self._open)
            if room > self._ahead // 2 and self._settler.waiting_count < DECISIONS_MAX:
                return min(room, RECEIVE_COUNT_MAX)
            self._open_max = concurrency + self._ahead - self._ahead // 2 - 1
            self._room.clear()
            await self._room.wait()

    def _measure(self) -> None:
        """Measures the handlers' pace, and from it how many messages to fetch ahead."""
        now_s = asyncio.get_running_loop().time()
        length_s = now_s - self._paced_at_s
        if length_s >= AHEAD_S:
            self._ahead = min(int(self._begun_count / length_s * AHEAD_S), AHEAD_COUNT_MAX)
            self._begun_count, self._paced_at_s = 0, now_s

    def _settled(self, outcomes: Sequence[Any]) -> None:
        if self._memory is not None:
            self._memory.release(bytes_of(outcomes))
        self._wake_receiver()

    def _wake_receiver(self) -> None:
        if len(self._open) <= self._open_max:
            self._room.set()

    # --- handling -------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        work: Callable[[Any], Any] = self._handle_run if self._ordered else self._handle
        create_task, handlers, copied = self._loop.create_task, self._handlers, self._context.copy
        while self._waiting and len(handlers) < self._concurrency and not self._stopping.is_set():
            # Started by the end of another handler, it must not inherit that one's context.
            handlers.add(create_task(self._work(work, self._waiting.popleft()), context=copied()))

    async def _work(self, work: Callable[[Any], Any], item: Any) -> None:
        """The work of a task; then others may start. A callback of the task would cost a turn of the event loop."""
        try:
            await work(item)
        except Exception as error:
            if self._loop.is_running():  # else an abandoned handler ends with the process
                self._fail(error)
        finally:
            # The task's own loop, even if it has ended: then None.
            self._handlers.discard(asyncio.current_task(self._loop))
            if self._waiting:
                self._start()
            self._wake_receiver()

    async def _handle_run(self, run: list[LeasedMessage]) -> None:
        """Handles messages one after the other; after a failure, the messages behind it are released."""
        for n, message in enumerate(run):
            # A task for each message: changes of a handler to its context must not reach the next message.
            handling = asyncio.get_running_loop().create_task(self._handle(message))
            try:
                done = await handling
            except asyncio.CancelledError:
                self._give_back(run[n + 1 :], begun=False)
                raise
            if not done:
                self._give_back(run[n + 1 :], begun=False)
                return

    async def _handle(self, message: LeasedMessage) -> bool:
        """Calls the handler and settles the message; returns whether it was acknowledged."""
        if self._stopping.is_set():
            self._give_back((message,), begun=False)
            return False
        if message.lost or message.ends_at_s <= self._loop.time():
            self._drop(message)
            return False
        handler = self._by_tag.get(self._name_of(message), self._rest) if self._by_tag else self._rest
        count_max = 0 if handler.policy is None else handler.policy.max_attempts
        if 0 < count_max < message.attempt and not message.text_of(_OWN_POLICY):
            # The end of a lease counts by the most generous handler of the topic.
            self._failed(handler, message, Reject(f"attempt {message.attempt} exceeds max_attempts {count_max}"))
            return False
        current.set(message)
        self._begun_count += 1
        try:
            if tracing.active is None:
                # Without threads and a timeout, only the function is awaited.
                is_plain = handler.asynchronous and handler.timeout_s is None
                result = await (handler.function(message) if is_plain else self._call(handler, message))
            else:
                with tracing.active.processing(message, self._subscription.group):
                    result = await self._call(handler, message)
            if result is not None:
                check_returned(result)
        except asyncio.CancelledError as error:
            if self._is_cancelled():
                self._cancelled(handler, message)
                raise
            self._failed(handler, message, error)
        except Exception as error:
            if not self._loop.is_running():
                raise  # as GeneratorExit below, from its cleanup
            if self._is_cancelled() and not isinstance(decision_of(error), Retry | Reject):
                # A drain cancelled the handler, and its cleanup raised.
                self._cancelled(handler, message)
            else:
                self._failed(handler, message, error)
        except BaseException as error:
            if isinstance(error, GeneratorExit) and not self._loop.is_running():
                # The handler ignored its cancellation and the loop is closed: sends are impossible.
                raise
            # SystemExit, for example: the message has failed, and the consumer ends with the error.
            self._failed(handler, message, error)
            self._fail(error)
        else:
            if self._is_cancelled():
                # The handler swallowed its cancellation by a drain: its work may be incomplete.
                self._cancelled(handler, message)
            elif message in self._open and self._close(message):
                self._settler.ack(message)
                return True
        return False

    def _is_cancelled(self) -> bool:
        """Whether the end of the consumer has cancelled the current handler, even without effect. A handler may cancel
        its own task, as older libraries do for timeouts."""
        task = asyncio.current_task(self._loop)
        ends = self._cancels or (self._running is not None and self._running.cancelling() > 0)
        return ends and task is not None and task.cancelling() > 0

    async def _call(self, handler: Handler, message: LeasedMessage) -> object:
        if not handler.asynchronous:
            await self._call_in_thread(handler, message)
            return None
        if handler.timeout_s is None:
            return await handler.function(message)
        text = f"the handler ran for more than {handler.timeout_s:g} s"
        # A handler that ignores its cancellation has failed too, and keeps its place as a thread does.
        expiry = self._loop.call_later(handler.timeout_s + CANCEL_S, self._failed, handler, message, TimeoutError(text))
        try:
            return await _call_within(handler.function, message, handler.timeout_s, text)
        finally:
            expiry.cancel()

    async def _call_in_thread(self, handler: Handler, message: LeasedMessage) -> None:
        """Returns when the thread is done, even after a timeout: threads cannot be stopped from outside."""
        future = self._threads.run(copy_context(), handler.function, message)
        done, _ = await asyncio.wait({future}, timeout=handler.timeout_s)
        if not done:
            self._failed(handler, message, TimeoutError(f"the handler has run for more than {handler.timeout_s:g} s"))
            await asyncio.wait({future})
            future.exception()
            return
        await future

    def _failed(self, handler: Handler, message: LeasedMessage, error: BaseException) -> None:
        if message not in self._open:
            return
        is_awaited = self._close(message)
        self._stats.failed += 1
        error = decision_of(error)
        without_own_frames(error)
        what = f"{type(error).__qualname__}: {text_of(error)}".removesuffix(": ")
        if isinstance(error, Retry | Reject):
            log_about(logging.INFO, message, "attempt %d: %s", message.attempt, what)
        else:
            log_about(logging.WARNING, message, "attempt %d failed: %s", message.attempt, what, error=error)
        if is_awaited:
            self._settler.nack(message, error, handler.policy)

    def _cancelled(self, handler: Handler, message: LeasedMessage) -> None:
        """Settles a handler that was cancelled because the consumer ends."""
        if message not in self._open:
            return
        if handler.asynchronous:
            self._give_back((message,), begun=True)
        else:
            # The thread runs as long as the process lives: no other consumer should start before the lease ends.
            self._open.discard(message)
            log_about(
                logging.WARNING, message, "its handler is still running; it will be redelivered when its lease ends"
            )

    def _drop(self, message: LeasedMessage) -> None:
        if self._close(message):
            self._settled((message,))
            self._stats.lost += 1
            log_about(logging.WARNING, message, "its lease ended before a handler could start; it will be redelivered")

    def _give_back(self, messages: Iterable[LeasedMessage], *, begun: bool) -> None:
        for message in messages:
            if message in self._open and self._close(message):
                self._settler.give_back(message, begun=begun)

    def _close(self, message: LeasedMessage) -> bool:
        """Ends the work on an open message; returns whether it still has a lease, so that its outcome matters."""
        self._open.discard(message)
        if message.lost:
            self._settled((message,))
        return not message.lost

    # --- renewing -------------------------------------------------------------------------------------------------

    async def _renew_all(self) -> None:
        loop, fault_log = asyncio.get_running_loop(), FaultLog(f"renewing leases of {self._topic}", log)
        length_s, faults = self._lease_s / RENEW_CHECKS, 0
        while True:
            pause_s = length_s if not faults else min(length_s, backoff_s(faults))
            woken_at_s = loop.time() + pause_s
            await pause(pause_s)
            self._warn_if_blocked(loop.time() - woken_at_s)
            until_s = loop.time() + self._lease_s * RENEW_LEFT
            by_shard: dict[bytes, list[LeasedMessage]] = {}
            for message in self._open:
                if message.ends_at_s < until_s and not message.lost:
                    by_shard.setdefault(shard_of(message), []).append(message)
            batches = [
                messages[at : at + RECEIPTS_MAX]
                for messages in by_shard.values()
                for at in range(0, len(messages), RECEIPTS_MAX)
            ]
            errors = list(filter(None, await asyncio.gather(*map(self._renew, batches))))
            faults = faults + 1 if errors else 0
            if errors:
                fault_log.add(errors[0])
            elif batches:
                fault_log.clear()

    def _warn_if_blocked(self, late_s: float) -> None:
        """Logs that a coroutine has blocked the event loop: no lease was renewed meanwhile."""
        if late_s > BLOCKED_CHECKS * self._lease_s / RENEW_CHECKS:
            log.warning(
                "%s: the event loop was blocked for %.1f s, and no lease of %g s was renewed; make a handler that "
                "blocks a plain function",
                *(self._topic, late_s, self._lease_s),
            )

    async def _renew(self, messages: list[LeasedMessage]) -> DueTimeError | None:
        try:
            statuses = await self._leases.move(messages, self._lease_s)
        except DueTimeError as error:
            return error
        for message, status in zip(messages, statuses, strict=True):
            # A message settled meanwhile has no lease to renew.
            if status != consumer_pb2.RECEIPT_STATUS_OK and message in self._open:
                message.lose()
                self._stats.lost += 1
                log_about(
                    logging.WARNING,
                    message,
                    "its lease has ended; it will be redelivered, and is not acknowledged here",
                )
        return None


async def _call_within(
    function: Callable[[LeasedMessage], Any], message: LeasedMessage, timeout_s: float, text: str
) -> object:
    """Raises TimeoutError with the text after the timeout, even if the function swallows its cancellation."""
    try:
        async with deadlines.within(timeout_s) as scope:
            result: object = await function(message)
    except TimeoutError as error:
        if scope.expired():
            raise TimeoutError(text) from error.__cause__
        raise
    if scope.expired():
        raise TimeoutError(text)
    return result
