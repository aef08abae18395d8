"""Sends the outcomes of handlers to the server: acknowledgements, failures, released messages.

Each kind is batched for each shard, with one call in flight; outcomes of the meantime form the next batch. A failed
call is repeated until the leases have ended. A shard that does not answer delays only its own outcomes.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextvars import Context
from dataclasses import dataclass
from time import time_ns
from typing import Any

from duetime_format.limits import NACKS_MAX, RECEIPTS_MAX

from duetime.client import tracing
from duetime.client.connection import pause
from duetime.client.consuming.failing import nack
from duetime.client.consuming.leased import LeasedMessage, lease_of, shard_of
from duetime.client.consuming.leases import LeaseCalls
from duetime.client.consuming.logs import log, log_about
from duetime.client.errors import Closed, DueTimeError, InvalidArgument, Unavailable
from duetime.client.fault_log import FaultLog
from duetime.client.message import moment
from duetime.v1 import consumer_pb2, message_pb2

_OK = consumer_pb2.RECEIPT_STATUS_OK
# Messages named in one log line.
_IDS_SHOWN = 5


@dataclass(slots=True)
class Stats:
    """Counts of a consumer since it was made."""

    received: int = 0
    """Deliveries received."""
    handled: int = 0
    """Acknowledged, as confirmed by the server."""
    failed: int = 0
    """Handlers that raised, including Retry and Reject."""
    retried: int = 0
    """Failed messages that will be redelivered, as confirmed by the server."""
    dead: int = 0
    """Failed messages that became dead letters."""
    lost: int = 0
    """Leases that ended before their handlers did: these messages are redelivered."""
    returned: int = 0
    """Messages released when the consumer stopped: not started, or cancelled."""


@dataclass(slots=True)
class _Failure:
    message: LeasedMessage
    wire: consumer_pb2.Nack
    # The handler's; None: the group's.
    policy: message_pb2.RetryPolicy | None


class OutcomeSender:
    """Accepts outcomes without waiting and sends them to the server."""

    def __init__(
        self,
        leases: LeaseCalls,
        stats: Stats,
        progress: Callable[[Sequence[Any]], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._leases = leases
        self._stats = stats
        # `progress` is called with answered outcomes; `fail` with an internal error.
        self._progress = progress
        self._fail = fail
        self._outboxes: dict[tuple[str, bytes, int], _Outbox] = {}
        # The lease of the last ack, and the outbox for acks of its shard.
        self._acked_lease: bytes | None = None
        self._acks: _Outbox
        self._calls: dict[str, tuple[Callable[[list[Any], bool], Awaitable[list[Any]]], int]] = {
            "ack": (self._ack, RECEIPTS_MAX),
            "nack": (self._nack, NACKS_MAX),
            "give back": (self._give_back_unstarted, RECEIPTS_MAX),
            "give back started": (self._give_back_started, RECEIPTS_MAX),
        }

    @property
    def waiting_count(self) -> int:
        """Outcomes that the server has not answered yet."""
        return sum(len(outbox.waiting) + outbox.sent_count for outbox in self._outboxes.values())

    def ack(self, message: LeasedMessage) -> None:
        lease = lease_of(message)
        if lease is not self._acked_lease:
            # Messages of one lease usually follow each other.
            self._acked_lease, self._acks = lease, self._outbox("ack", message)
        self._acks.add(message)

    def nack(self, message: LeasedMessage, error: BaseException, policy: message_pb2.RetryPolicy | None = None) -> None:
        # A call has one policy; a handler's lives as long as the handler, so its identity names it.
        self._outbox("nack", message, id(policy)).add(_Failure(message, nack(message.receipt, error), policy))

    def give_back(self, message: LeasedMessage, *, begun: bool) -> None:
        """Releases the message for immediate redelivery, as the same attempt if no handler had started."""
        self._stats.returned += 1
        self._outbox("give back started" if begun else "give back", message).add(message)

    async def flush(self, within_s: float) -> None:
        """Waits until all are answered. The rest is dropped after `within_s` with a warning: their leases expire."""
        tasks = [outbox.task for outbox in self._outboxes.values() if outbox.task is not None]
        if not tasks:
            return
        _, late = await asyncio.wait(tasks, timeout=within_s)
        if late:
            log.warning("%d decisions did not reach the server: these messages will be redelivered", self.waiting_count)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)

    def _outbox(self, kind: str, message: LeasedMessage, policy: int = 0) -> "_Outbox":
        key = kind, shard_of(message), policy
        outbox = self._outboxes.get(key)
        if outbox is None:
            call, count_max = self._calls[kind]
            outbox = self._outboxes[key] = _Outbox(kind, call, count_max, self._progress, self._fail)
        return outbox

    async def _ack(self, messages: list[LeasedMessage], again: bool) -> list[LeasedMessage]:
        began_ns = time_ns()
        statuses = await self._leases.ack(messages)
        if tracing.active is not None:
            outcomes = ["" if status == _OK else "the lease had ended" for status in statuses]
            tracing.active.settled("ack", messages, began_ns, outcomes)
        handled = statuses.count(_OK)
        self._stats.handled += handled
        if handled < len(messages):
            for message, status in zip(messages, statuses, strict=True):
                if status != _OK:
                    self._count_late(message, "acknowledged too late")
        return []

    async def _nack(self, failures: list[_Failure], again: bool) -> list[_Failure]:
        began_ns = time_ns()
        results = await self._leases.nack([failure.wire for failure in failures], failures[0].policy)
        if tracing.active is not None:
            outcomes = [result.fault.message if result.HasField("fault") else "" for result in results]
            tracing.active.settled("nack", [failure.message for failure in failures], began_ns, outcomes)
        rest = []
        for failure, result in zip(failures, results, strict=True):
            message = failure.message
            if result.HasField("fault"):
                if result.fault.retriable and not _ended(failure):
                    rest.append(failure)
                else:
                    log_about(
                        logging.ERROR,
                        message,
                        "the server rejected its failure: %s; it will be redelivered",
                        result.fault.message,
                    )
            elif result.status != _OK:
                # The answer to the first call may be lost.
                if not again:
                    self._count_late(message, "failed too late")
            elif result.dead:
                self._stats.dead += 1
                log_about(
                    logging.ERROR,
                    message,
                    "became a dead letter of %s after attempt %d",
                    *(self._group, result.attempt),
                )
            else:
                self._stats.retried += 1
                at = moment(result.deliver_at_ms).isoformat(sep=" ", timespec="milliseconds")
                log_about(logging.INFO, message, "will be redelivered at %s", at)
        return rest

    async def _give_back_unstarted(self, messages: list[LeasedMessage], again: bool) -> list[LeasedMessage]:
        await self._leases.move(messages, 0, not_attempted=True)
        return []

    async def _give_back_started(self, messages: list[LeasedMessage], again: bool) -> list[LeasedMessage]:
        await self._leases.move(messages, 0)
        return []

    @property
    def _group(self) -> str:
        return self._leases.subscription.group

    def _count_late(self, message: LeasedMessage, what: str) -> None:
        self._stats.lost += 1
        log_about(logging.WARNING, message, "%s: its lease had ended, and it will be redelivered", what)


class _Outbox:
    """Outcomes of one kind for one shard. Has a task while it is not empty."""

    def __init__(
        self,
        kind: str,
        call: Callable[[list[Any], bool], Awaitable[list[Any]]],
        count_max: int,
        progress: Callable[[Sequence[Any]], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._kind = kind
        self._call = call
        self._count_max = count_max
        self._progress = progress
        self._fail = fail
        self.waiting: deque[Any] = deque()
        self.sent_count = 0
        self.task: asyncio.Task[None] | None = None

    def add(self, item: Any) -> None:
        self.waiting.append(item)
        if self.task is None:
            # An empty context: the task logs about all messages, not about the current one.
            self.task = asyncio.get_running_loop().create_task(self._run(), context=Context())
            self.task.add_done_callback(self._done)

    async def _run(self) -> None:
        # Outcomes of other handlers in this iteration of the loop join the batch.
        await pause(0)
        while self.waiting:
            batch = [self.waiting.popleft() for _ in range(min(len(self.waiting), self._count_max))]
            self.sent_count = len(batch)
            await self._settle(batch)
            self.sent_count = 0
            self._progress(batch)
        # No await since the check of `waiting`: the next outcome starts a new task.
        self.task = None

    def _done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    async def _settle(self, batch: list[Any]) -> None:
        fault_log = FaultLog(self._kind, log)
        again = False
        while batch:
            try:
                batch = await self._call(batch, again)
                if batch:
                    again = True
                    unsettled = Unavailable(f"{len(batch)} failures are not accepted yet", reason="NOT_TAKEN")
                    await fault_log.pause(unsettled)
            except (Closed, InvalidArgument) as error:
                log.error("%s: %s; to be redelivered: %s", self._kind, error, _names(batch))
                return
            except DueTimeError as error:
                again = True
                await fault_log.pause(error)
                if ended := [item for item in batch if _ended(item)]:
                    log.warning(
                        "%s: no answer before the leases of %s ended: they will be redelivered",
                        self._kind,
                        _names(ended),
                    )
                    batch = [item for item in batch if not _ended(item)]
            except Exception as error:
                # A malformed answer must end neither the consumer nor its other outcomes.
                log.error("%s: %r; to be redelivered: %s", self._kind, error, _names(batch), exc_info=error)
                return
        fault_log.clear()


def bytes_of(outcomes: Iterable[Any]) -> int:
    """The size of the records of outcomes."""
    return sum(_message(one).record_bytes for one in outcomes)


def _message(item: LeasedMessage | _Failure) -> LeasedMessage:
    return item.message if isinstance(item, _Failure) else item


def _ended(item: LeasedMessage | _Failure) -> bool:
    return _message(item).ends_at_s <= asyncio.get_running_loop().time()


def _names(items: list[Any]) -> str:
    """The ids of the first few, and the number of the rest."""
    ids = ", ".join(_message(item).id for item in items[:_IDS_SHOWN])
    more = len(items) - _IDS_SHOWN
    return f"{ids} and {more} more" if more > 0 else ids
