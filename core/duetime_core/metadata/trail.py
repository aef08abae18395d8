"""Writes audit events into the metadata database: no call waits for it, and lost events are counted."""

import asyncio
import secrets
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice

from prometheus_client import CollectorRegistry, Counter, Gauge

from duetime_core.audit.events import AuditedCall
from duetime_core.clock import Clock
from duetime_core.errors import Unavailable
from duetime_core.metadata.audit import AuditRow, AuditTable
from duetime_core.metadata.database import Database
from duetime_core.telemetry.defects import outcome
from duetime_core.telemetry.logs import sparing

# Logger for errors that callers can trigger.
often = sparing()

# Events that may wait for the database; more are dropped. Rows per transaction.
WAITING_MAX = 10_000
BATCH_MAX = 500
# Pause before retrying a database that does not answer, and between deletions of old rows.
RETRY_MS = 1_000
FORGET_MS = 3_600_000
# Longest wait of a stop for the last events.
FINISH_S = 2.0
DAY_MS = 86_400_000


class Trail:
    """The unwritten events of one process, and their writer."""

    def __init__(
        self, process: str, database: Database, clock: Clock, registry: CollectorRegistry, keep_days: int = 0
    ) -> None:
        """`keep_days`: retention of rows, of all processes; 0: others delete them."""
        self._process = process
        self._table = AuditTable(database)
        self._clock = clock
        self._keep_ms = keep_days * DAY_MS
        # A row written again after a lost answer is recognised by its key.
        self._prefix = secrets.token_hex(8)
        self._count = 0
        self._waiting: deque[AuditRow] = deque()
        self._some = asyncio.Event()
        self._events = Counter(
            "duetime_audit_events", "Events of the audit log: acts and rejections", ["kind"], registry=registry
        )
        self._dropped = Counter(
            "duetime_audit_dropped", "Events of the audit log that exist only as log lines", registry=registry
        )
        waiting = Gauge(
            "duetime_audit_waiting_events", "Events of the audit log not in the database yet", registry=registry
        )
        waiting.set_function(lambda: len(self._waiting))

    def add(self, event: AuditedCall) -> None:
        """Queues an event; returns at once."""
        self._events.labels("refusal" if event.is_refusal else "act").inc()
        if len(self._waiting) >= WAITING_MAX:
            self._drop(1)
            return
        self._count += 1
        self._waiting.append(AuditRow(f"{self._prefix}-{self._count}", self._process, event))
        self._some.set()

    async def run(self) -> None:
        """Writes waiting events in batches until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            if self._keep_ms:
                tasks.create_task(self._forget())
            while True:
                await self._some.wait()
                if not await self._write():
                    await self._clock.sleep(RETRY_MS)

    async def finish(self) -> None:
        """Writes the last events, once no more are added; those rejected by the database are dropped."""
        # Not `asyncio.timeout`: before Python 3.11.3 it does not work in a task that is being cancelled.
        with suppress(TimeoutError):
            await asyncio.wait_for(self._write_all(), FINISH_S)
        if self._waiting:
            self._drop(len(self._waiting))

    async def _write_all(self) -> None:
        """Until the database rejects a batch."""
        while self._waiting and await self._write():
            pass

    async def _write(self) -> bool:
        """Whether the oldest events have left the queue, written or dropped."""
        batch = list(islice(self._waiting, BATCH_MAX))
        _, error = await outcome(lambda: self._table.add(batch), "audit")
        if isinstance(error, Unavailable):
            return False
        if error is not None:
            # The database will never accept these rows; keeping them would block the others.
            self._drop(len(batch))
        self._left(batch)
        return True

    def _left(self, batch: Sequence[AuditRow]) -> None:
        for _ in batch:
            self._waiting.popleft()
        if not self._waiting:
            self._some.clear()

    def _drop(self, count: int) -> None:
        self._dropped.inc(count)
        often.warning("audit events not written to the database", count=count, waiting=len(self._waiting))

    async def _forget(self) -> None:
        while True:
            before_ms = self._clock.now_ms() - self._keep_ms
            await outcome(lambda before_ms=before_ms: self._table.forget(before_ms), "audit")  # type: ignore[misc]
            await self._clock.sleep(FORGET_MS)
