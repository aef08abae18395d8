"""Checks: the server asks a producer group about its open transactions, and check handlers answer.

    stream ──▶ checks ──▶ up to `concurrency` handlers ──▶ answers ──▶ stream
                              coroutines, or threads

Each group with a handler has one stream. A broken stream is reopened after a pause, on any gateway behind the address;
it then carries the unsent answers. The server repeats unanswered checks.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

import grpc
from duetime_format.limits import ENDS_COUNT_MAX

from duetime import deadlines
from duetime.client import tracing
from duetime.client.callables import check_callable, is_asynchronous
from duetime.client.connection import GatewayConnection, backoff_s, pause
from duetime.client.counts import whole
from duetime.client.errors import (
    Closed,
    DueTimeError,
    Forked,
    InvalidArgument,
    NotFound,
    Unavailable,
    Unsupported,
    unreadable,
)
from duetime.client.fault_log import FaultLog
from duetime.client.message import moment
from duetime.client.threads import HandlerThreadPool
from duetime.client.transaction import Decision, TransactionRef
from duetime.client.view import MessageView
from duetime.v1 import transactions_pb2 as pb

CONCURRENCY_MAX = 1_000
# The pause before another request for a group without a prepared transaction.
GROUP_WAIT_S = 5.0
# Time for running handlers to finish when the producer is closed, and then for the last answers.
DRAIN_S = 5.0
LAST_ANSWERS_S = 2.0

log = logging.getLogger("duetime.producer")
F = TypeVar("F", bound=Callable[["UndecidedMessage"], Any])

Answer = Callable[[str, Sequence[pb.TransactionEnd], float], Awaitable[None]]


class UndecidedMessage(MessageView, TransactionRef):
    """A message with an open transaction: its producer group is asked about it. Fields are decoded on access."""

    __slots__ = ("_check", "_group")

    def __init__(self, check: pb.TransactionCheck, group: str) -> None:
        super().__init__(check.message)
        self._check = check
        self._group = group

    @property
    def id(self) -> str:
        return self._check.transaction_id

    @property
    def message_id(self) -> str:
        return self._message.id

    @property
    def group(self) -> str:
        return self._group

    @property
    def prepared_at(self) -> datetime:
        """By the server's clock."""
        return moment(self._message.stored_at_ms)

    @property
    def number(self) -> int:
        """This check's number, from 1."""
        return self._check.number

    def __repr__(self) -> str:
        return f"UndecidedMessage({self.message_id}, topic={self.topic!r}, check {self.number} of {self.id})"


@dataclass(frozen=True, slots=True)
class CheckHandler:
    """A deciding function and its options."""

    function: Callable[[UndecidedMessage], Any]
    group: str
    concurrency: int


class CheckRegistry:
    """The check handlers of one producer. They start with the first `start` in an event loop."""

    def __init__(self, connection: GatewayConnection, answer: Answer) -> None:
        self._connection = connection
        self._answer = answer
        self._watchers: dict[str, CheckRunner] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._closed = False

    def handler(self, group: str, concurrency: int) -> Callable[[F], F]:
        """Returns a decorator that makes a function the handler of a group, and starts it if an event loop runs.

        Raises:
            InvalidArgument: an argument breaks its rule, the group has a handler, or (from the decorator) the function
                does not accept a message.
        """
        if not group or not isinstance(group, str):
            raise InvalidArgument.of("group", f"{group!r} is not a valid name of a producer group")
        concurrency = whole("concurrency", concurrency, CONCURRENCY_MAX)
        self._check_free(group)

        def register(function: F) -> F:
            self._check_free(group)
            check_callable(function, "check", ["message"])
            self._watchers[group] = CheckRunner(
                CheckHandler(function, group, concurrency), self._connection, self._answer
            )
            with contextlib.suppress(RuntimeError):  # no loop runs here
                asyncio.get_running_loop()
                self.start()
            return function

        return register

    def _check_free(self, group: str) -> None:
        """Raises: InvalidArgument: the group has a handler. Closed."""
        if self._closed:
            raise Closed("the producer is closed", reason="CLOSED")
        if group in self._watchers:
            raise InvalidArgument.of("group", f"{group} already has a check handler; a producer has one for each group")

    def start(self) -> None:
        """Starts all handlers that are not started."""
        if self._closed or len(self._tasks) == len(self._watchers):
            return
        for group, watcher in self._watchers.items():
            if group not in self._tasks:
                self._tasks[group] = asyncio.get_running_loop().create_task(watcher.run())

    def has(self, group: str) -> bool:
        return group in self._watchers

    def note_prepared(self, group: str) -> None:
        """Notes that the server knows the group from now on."""
        if group in self._watchers:
            self._watchers[group].known.set()

    async def close(self) -> None:
        """Stops taking checks, lets running handlers finish, and sends their answers."""
        self._closed = True
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        await asyncio.gather(*(watcher.close() for watcher in self._watchers.values()))


class CheckRunner:
    """The stream of one group and its running handlers."""

    def __init__(self, handler: CheckHandler, connection: GatewayConnection, answer: Answer) -> None:
        self._handler = handler
        self._group = handler.group
        self._connection = connection
        self._answer = answer
        # Set once the group has prepared a transaction.
        self.known = asyncio.Event()
        self._room = asyncio.Semaphore(handler.concurrency)
        self._asynchronous = is_asynchronous(handler.function)
        self._threads = HandlerThreadPool(handler.concurrency, f"duetime-check-{handler.group}")
        # Running handlers by transaction id.
        self._running: dict[str, asyncio.Task[None]] = {}
        # Decided, and not yet sent in a stream.
        self._decided: list[pb.TransactionEnd] = []
        self._more = asyncio.Event()

    async def run(self) -> None:
        """Answers checks until it is cancelled, or the server rejects the group's name."""
        faults = FaultLog(f"checks of producer group {self._group}", log)
        missing = 0
        while True:
            self.known.clear()
            try:
                await self._watch(faults)
                await faults.pause(Unavailable("the server ended the stream", reason="STREAM_ENDED"))
            except NotFound:
                missing += 1
                await self._wait_until_known()
                # Another gateway may learn of the group later than the one of the prepare.
                await pause(backoff_s(missing))
            except Closed:
                return
            except DueTimeError as error:
                # A proxy may reject a call in place of the gateway: UNIMPLEMENTED.
                if isinstance(error, InvalidArgument | Forked) and not isinstance(error, Unsupported):
                    # A retry would always be rejected.
                    log.error("checks of producer group %s are not answered: %s", self._group, error)
                    return
                await faults.pause(error)

    async def close(self) -> None:
        """Lets handlers finish, and sends the answers that no stream has taken."""
        if self._running:
            _, late = await asyncio.wait(self._running.values(), timeout=DRAIN_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        self._threads.close()
        for at in range(0, len(self._decided), ENDS_COUNT_MAX):
            try:
                await self._answer(self._group, self._decided[at : at + ENDS_COUNT_MAX], LAST_ANSWERS_S)
            except DueTimeError as error:
                left = len(self._decided) - at
                log.warning("producer group %s: %d checks are not answered: %s", self._group, left, error)
                return

    async def _wait_until_known(self) -> None:
        """Waits until a producer has prepared the group's first transaction: until then the server does not know it."""
        log.debug("producer group %s has prepared no transaction yet", self._group)
        with contextlib.suppress(TimeoutError):
            async with deadlines.within(GROUP_WAIT_S):
                await self.known.wait()

    async def _watch(self, faults: FaultLog) -> None:
        """Receives checks until the stream ends."""
        async with self._connection.both_ways("WatchTransactions") as call:
            answering = asyncio.get_running_loop().create_task(self._answer_all(call))
            try:
                while (response := await call.read()) is not grpc.aio.EOF:
                    if response is None:
                        raise unreadable(self._connection.server)
                    faults.clear()
                    for check in response.checks:
                        await self._begin(check)
            finally:
                answering.cancel()
                await asyncio.gather(answering, return_exceptions=True)

    async def _answer_all(self, call: Any) -> None:
        """Names the group, then writes the answers to the stream."""
        try:
            await call.write(pb.WatchTransactionsRequest(group=self._group))
            while True:
                self._more.clear()
                while self._decided:
                    part = self._decided[:ENDS_COUNT_MAX]
                    await call.write(pb.WatchTransactionsRequest(ends=part))
                    del self._decided[: len(part)]
                await self._more.wait()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError, grpc.aio.UsageError):
            return  # the stream has ended; its reader learns the reason

    async def _begin(self, check: pb.TransactionCheck) -> None:
        """Starts the handler when fewer than `concurrency` run; until then nothing is read from the stream."""
        if check.transaction_id in self._running:
            return  # repeated by the server while the handler still runs
        await self._room.acquire()
        task = asyncio.get_running_loop().create_task(self._decide(UndecidedMessage(check, self._group)))
        self._running[check.transaction_id] = task
        task.add_done_callback(lambda _: self._ended(check.transaction_id))

    def _ended(self, transaction_id: str) -> None:
        del self._running[transaction_id]
        self._room.release()

    async def _decide(self, message: UndecidedMessage) -> None:
        """Calls the handler; an exception means UNKNOWN."""
        decision = Decision.UNKNOWN
        try:
            if tracing.active is None:
                found = await self._call(message)
            else:
                with tracing.active.checking(message.topic, message.message_id, message.properties):
                    found = await self._call(message)
            if not isinstance(found, Decision):
                raise TypeError(f"the check handler returned {found!r}, not a Decision")
            decision = found
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            log.warning("%s: the check handler was cancelled; the check will be repeated", message.message_id)
        except (Exception, SystemExit) as error:
            log.warning("%s: the check handler failed; the check will be repeated", message.message_id, exc_info=error)
        self._decided.append(pb.TransactionEnd(transaction_id=message.id, decision=decision.wire))
        self._more.set()

    async def _call(self, message: UndecidedMessage) -> object:
        function = self._handler.function
        if self._asynchronous:
            return await function(message)
        found: list[object] = []

        def noting(one: UndecidedMessage) -> object:
            found.append(function(one))
            return found[0]

        await self._threads.run(copy_context(), noting, message)
        return found[0]
