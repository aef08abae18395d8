"""TakeChecks and ReportChecks: gateways take checks of open transactions, ask the producers, and report the results.

    a check is due ──▶ ready ──▶ the first caller that waits for its group ──▶ heard: it counts, durably
                         ▲                        │                       └──▶ unheard: it does not
                         └── its next check is due, or nobody heard ──┘

Callers wait in a line for each of their groups. A check that falls due wakes the first caller in its group's line. If
that caller leaves others ready, it wakes the next. A caller owns the checks that it takes until the next check is due:
one that dies only delays them.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from duetime.v1 import store_pb2
from duetime_core.errors import InvalidArgument, Violation, refuse
from duetime_core.telemetry.logs import sparing
from duetime_format import checks
from duetime_format.errors import within
from duetime_format.limits import (
    CHECK_GROUPS_MAX,
    CHECKS_REPORTED_MAX,
    CHECKS_TAKEN_MAX,
    GROUP_CHARS_MAX,
    MEMBER_CHARS_MAX,
    PULL_ANSWER_BYTES_MAX,
    WAIT_MS_MAX,
)
from duetime_format.names import CHECKS_TOPIC
from duetime_format.units import Ints

from duetime_store.lanes.alarm import ClockAlarm
from duetime_store.metrics import StoreMetrics
from duetime_store.transactions.giving_up import TransactionExpirer
from duetime_store.transactions.table import OpenTransactions
from duetime_store.transactions.wheel import NEVER
from duetime_store.writing.flusher import Flusher
from duetime_store.writing.store import Store

log = sparing()


@dataclass(eq=False, slots=True)
class _Waiter:
    """A call that waits for checks of its groups."""

    groups: Sequence[str]
    future: "asyncio.Future[None]"

    def wake(self) -> None:
        if not self.future.done():
            self.future.set_result(None)


class CheckDispatcher:
    """See the module."""

    def __init__(
        self,
        store: Store,
        table: OpenTransactions,
        giving_up: TransactionExpirer,
        alarm: ClockAlarm,
        flusher: Flusher,
        metrics: StoreMetrics,
        *,
        interval_ms: int,
    ) -> None:
        self._store = store
        self._clock = store.clock
        self._gate = store.gate
        self._table = table
        self._giving_up = giving_up
        self._alarm = alarm
        self._flusher = flusher
        self._metrics = metrics
        self._interval_ms = interval_ms
        # Waiting calls, by group, in order of arrival.
        self.lines: dict[str, dict[_Waiter, None]] = {}
        self._earlier: asyncio.Future[None] | None = None
        table.changed = self._falls_due_earlier

    # --- waking waiters -----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Makes checks ready when they fall due, and wakes their waiters."""
        while True:
            self._wake(self._table.turn(self._clock.now_ms()))
            self._giving_up.look()
            self._earlier = asyncio.get_running_loop().create_future()
            if self._table.next_due_ms != NEVER:
                self._alarm.set(self._table.next_due_ms, self._earlier)
            await self._earlier

    def _falls_due_earlier(self) -> None:
        if self._earlier is not None and not self._earlier.done():
            self._earlier.set_result(None)

    def _wake(self, groups: Iterable[str]) -> None:
        """Wakes the first waiter of each group. If it is awake already, it will wake the next one."""
        for group in groups:
            if line := self.lines.get(group):
                next(iter(line)).wake()

    # --- calls --------------------------------------------------------------------------------------------------------

    async def take(self, request: store_pb2.TakeChecksRequest) -> store_pb2.TakeChecksResponse:
        """Takes checks, after waiting for the first.

        Raises:
            InvalidArgument.
            ReadOnly: ends of transactions could not be stored.
        """
        _check_take(request)
        self._gate.check_write()
        groups = list(dict.fromkeys(request.groups))
        clock = self._clock
        give_up_ms = clock.monotonic_ms() + min(request.wait_ms, WAIT_MS_MAX)
        waiter: _Waiter | None = None
        try:
            while True:
                taken = self._take(groups, request.max_count)
                left_ms = give_up_ms - clock.monotonic_ms()
                if taken or left_ms <= 0:
                    return store_pb2.TakeChecksResponse(checks=taken)
                if waiter is None:
                    waiter = _Waiter(groups, asyncio.get_running_loop().create_future())
                    self._line_up(waiter)
                elif waiter.future.done():
                    waiter.future = asyncio.get_running_loop().create_future()
                await clock.wait_for(waiter.future, left_ms)
        finally:
            if waiter is not None:
                self._leave(waiter)
            # A call that ends after being woken must wake the next one.
            self._wake(group for group in groups if self._table.has_ready(group))

    def _line_up(self, waiter: _Waiter) -> None:
        for group in waiter.groups:
            self.lines.setdefault(group, {})[waiter] = None

    def _leave(self, waiter: _Waiter) -> None:
        for group in waiter.groups:
            line = self.lines[group]
            del line[waiter]
            if not line:
                del self.lines[group]

    def _take(self, groups: Sequence[str], count: int) -> list[store_pb2.TakenCheck]:
        store, now_ms = self._store, self._clock.now_ms()
        rows = self._table.take(groups, count, now_ms, now_ms + self._interval_ms)
        if not len(rows.offsets):
            return []
        units = store.halves.units(rows.offsets)
        taken: list[store_pb2.TakenCheck] = []
        size, columns = 0, zip(rows.offsets.tolist(), rows.groups.tolist(), rows.checks.tolist(), strict=True)
        for index, (offset, group, heard) in enumerate(columns):
            position, length, _ = units[index].item()
            if taken and size + length > PULL_ANSWER_BYTES_MAX:
                self._table.give_back(rows.offsets[index:], now_ms)
                break
            record = store.read_record(position, length) if length else b""
            if not record:
                # Its producer can't be asked: the transaction expires in time.
                log.error("half message can't be read", offset=offset, position=position)
                continue
            size += length
            half = store_pb2.Half(offset=offset, position=position)
            name = self._table.group_name(group)
            taken.append(store_pb2.TakenCheck(half=half, group=name, checks=heard, record=record))
        self._metrics.checks.labels("taken").inc(len(taken))
        return taken

    async def report(self, request: store_pb2.ReportChecksRequest) -> store_pb2.ReportChecksResponse:
        """Durable on return.

        Raises:
            InvalidArgument.
            ReadOnly: a write or flush failed before.
        """
        count = len(request.heard) + len(request.unheard)
        if count > CHECKS_REPORTED_MAX:
            raise InvalidArgument(
                [Violation("heard", f"{count} checks with `unheard`; the limit is {CHECKS_REPORTED_MAX}")]
            )
        self._gate.check_write()
        self._heard(np.array(request.heard, np.int64))
        unheard = self._table.unheard(np.array(request.unheard, np.int64), self._clock.now_ms())
        self._metrics.checks.labels("unheard").inc(len(unheard.offsets))
        await self._flusher.durable()
        return store_pb2.ReportChecksResponse()

    def _heard(self, offsets: Ints) -> None:
        rows, now_ms = self._table.heard(offsets), self._clock.now_ms()
        self._metrics.checks.labels("heard").inc(len(rows.offsets))
        if len(rows.offsets):
            since = self._store.indexed.since(CHECKS_TOPIC)
            data = checks.heard_record(rows.offsets, rows.next_check_at_ms, rows.checks, now_ms, since)
            self._store.stage_own(data)
            counted = rows.offsets, rows.checks
            self._store.staged.settles.append(lambda stored: self._table.count(*counted, are_stored=stored))


def _check_take(request: store_pb2.TakeChecksRequest) -> None:
    found = []
    if len(request.gateway) > MEMBER_CHARS_MAX:
        found.append(Violation("gateway", f"has more than {MEMBER_CHARS_MAX} characters"))
    if not 1 <= len(request.groups) <= CHECK_GROUPS_MAX:
        found.append(Violation("groups", f"{len(request.groups)} are not 1 to {CHECK_GROUPS_MAX}"))
    if not all(1 <= len(group) <= GROUP_CHARS_MAX for group in request.groups):
        found.append(Violation("groups", f"one is not 1 to {GROUP_CHARS_MAX} characters long"))
    found += within("max_count", request.max_count, 1, CHECKS_TAKEN_MAX)
    refuse(found + within("wait_ms", request.wait_ms, 0, WAIT_MS_MAX))
