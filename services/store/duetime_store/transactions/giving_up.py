"""Gives up open transactions that are too old, or at their maximum number of checks.

Their half messages are copied to TRANS_CHECK_MAX_TIME_TOPIC and thereby ended, in one step of the store's only writer.
An end that was staged earlier counts; a later one is rejected, except an operator's.
"""

import asyncio
from collections.abc import Sequence

import numpy as np
from duetime_core.errors import DueTimeError
from duetime_core.telemetry.logs import sparing
from duetime_format import halves
from duetime_format.errors import DamagedBytes
from duetime_format.halves import GIVEN_UP
from duetime_format.units import Units, spans

from duetime_store.lanes.alarm import ClockAlarm
from duetime_store.metrics import StoreMetrics
from duetime_store.transactions.ending import STEP_BYTES, STEP_COUNT
from duetime_store.transactions.reading import read_half
from duetime_store.transactions.table import OpenRows, OpenTransactions
from duetime_store.transactions.wheel import NEVER
from duetime_store.writing.flusher import Flusher
from duetime_store.writing.halves import HalfResolutions, end
from duetime_store.writing.store import Store

log = sparing()

# Interval between attempts to store the ends.
RETRY_MS = 10_000


class TransactionExpirer:
    """See the module."""

    def __init__(
        self,
        store: Store,
        table: OpenTransactions,
        alarm: ClockAlarm,
        flusher: Flusher,
        metrics: StoreMetrics,
        *,
        keep_ms: int,
    ) -> None:
        self._store = store
        self._log = store.log
        self._clock = store.clock
        self._halves = store.halves
        self._table = table
        self._alarm = alarm
        self._flusher = flusher
        self._metrics = metrics
        self._keep_ms = keep_ms
        self._woken: asyncio.Future[None] | None = None
        self._wakes_at_ms = NEVER

    def look(self) -> None:
        """Wakes it if there are transactions to give up now, or before it would wake by itself."""
        if self._woken is None or self._woken.done():
            return
        if self._table.has_exhausted or self._table.next_expiry_ms(self._keep_ms) < self._wakes_at_ms:
            self._woken.set_result(None)

    async def run(self) -> None:
        while True:
            self._woken = asyncio.get_running_loop().create_future()
            try:
                while await self._step():
                    pass
                self._wakes_at_ms = self._table.next_expiry_ms(self._keep_ms)
            except DueTimeError as error:
                self._wakes_at_ms = self._clock.now_ms() + RETRY_MS
                log.warning("transactions not given up yet", error=error.text)
            if self._wakes_at_ms != NEVER:
                self._alarm.set(self._wakes_at_ms, self._woken)
            await self._woken

    async def _step(self) -> bool:
        """Gives up some, durably. Returns whether there were any.

        Raises:
            DueTimeError: they can't be stored now.
        """
        now_ms = self._clock.now_ms()
        rows = self._table.take_exhausted(STEP_COUNT, now_ms, now_ms + RETRY_MS)
        if not len(rows.offsets):
            rows = self._table.expired(now_ms - self._keep_ms, STEP_COUNT)
        units = self._halves.units(rows.offsets)
        for first, stop in spans(units, STEP_BYTES, STEP_COUNT):
            self._store.gate.check_write()
            part = rows.part(first, stop)
            count = self._stage(part, units[first:stop])
            await self._flusher.durable()
            # Other ends may have come first, or the offsets have left the queue.
            self._table.end(part.offsets[~self._halves.are_open(part.offsets)])
            self._metrics.given_up.inc(count)
            if count:
                log.warning("transactions given up", count=count, first_offset=int(part.offsets[0]))
        return bool(len(rows.offsets))

    def _stage(self, rows: OpenRows, units: Units) -> int:
        """Stages the ends of the open ones. Returns their number."""
        chosen = np.flatnonzero(self._halves.are_open(rows.offsets))
        offsets = rows.offsets[chosen].tolist()
        columns = zip(offsets, rows.checks[chosen].tolist(), units[chosen].tolist(), strict=True)
        copies = [self._copy(offset, position, size, checks) for offset, checks, (position, size, _) in columns]
        placed = end(self._store, HalfResolutions(offsets, [GIVEN_UP] * len(offsets), copies), self._ended)
        if placed.refused:
            refused = [offsets[index] for index in placed.refused]
            log.error("transactions given up without a copy", count=len(refused), first_offset=refused[0])
            without = HalfResolutions(refused, [GIVEN_UP] * len(refused), [b""] * len(refused))
            end(self._store, without, self._ended)
        return len(offsets)

    def _ended(self, offsets: Sequence[int]) -> None:
        self._table.end(np.array(offsets, np.int64))

    def _copy(self, offset: int, position: int, size: int, checks: int) -> bytes:
        """The record of the copy; empty: impossible."""
        found = read_half(self._log, offset, position, size)
        try:
            if found is None:
                raise DamagedBytes("it can't be read")
            return halves.given_up(found, checks)
        except DamagedBytes as error:
            log.error("transaction given up without a copy", offset=offset, position=position, damage=error.text)
            return b""
