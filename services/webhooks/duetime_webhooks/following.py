"""Follows the webhooks in the metadata database: starts, changes and stops their deliveries, and reports outcomes.

Any number of workers follow the same webhooks: their consumers share the messages of each group. While the database is
unavailable, the known webhooks continue, and changes wait.
"""

import asyncio
import secrets
import socket
from collections.abc import Mapping

import structlog
from duetime_core.access.sealing import Seal
from duetime_core.audit.events import AuditedCall, plain
from duetime_core.clock import Clock
from duetime_core.errors import DueTimeError
from duetime_core.metadata import AuditRow, Database
from duetime_core.metadata import webhooks as table
from duetime_core.metadata.audit import add_rows
from duetime_core.metadata.webhooks import StoredWebhook, WebhookReport
from duetime_core.telemetry.logs import sparing
from sqlalchemy.orm import Session

from duetime_webhooks.delivering import DeliveryParts, OpenedWebhook, WebhookDelivery, send_test
from duetime_webhooks.metrics import WebhookMetrics
from duetime_webhooks.reports import OutcomeReports

log = structlog.get_logger()
rare = sparing()

POLL_MS = 1_000
# Interval of the report that a worker follows the webhooks.
SEEN_MS = 10_000

Rows = Mapping[str, tuple[StoredWebhook, WebhookReport]]


class WebhookFollower:
    """The loop of a worker, and the deliveries that it runs. Created within a running event loop."""

    def __init__(
        self, database: Database, seal: Seal, clock: Clock, reports: OutcomeReports, metrics: WebhookMetrics
    ) -> None:
        self._database = database
        self._seal = seal
        self._clock = clock
        self._reports = reports
        self._metrics = metrics
        self._deliveries: dict[str, WebhookDelivery] = {}
        # Webhooks with an unreadable secret, by name: each is logged once.
        self._unreadable: dict[str, StoredWebhook] = {}
        self._seen_at_ms = -float(SEEN_MS)
        self._stopping: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self, parts: DeliveryParts) -> None:
        """Follows until it is stopped and all deliveries have ended."""
        async with asyncio.TaskGroup() as tasks:
            while not self._stopping.done():
                await self.follow(parts, tasks)
                await self._clock.wait_for(self._stopping, POLL_MS)
            for name in list(self._deliveries):
                self._end(name)
        # The last outcomes.
        await self._exchange()

    def stop(self) -> None:
        """Makes `run` end once the requests in progress have. Idempotent."""
        if not self._stopping.done():
            self._stopping.set_result(None)

    async def follow(self, parts: DeliveryParts, tasks: asyncio.TaskGroup) -> None:
        """One exchange with the database; on failure all deliveries continue."""
        rows = await self._exchange()
        if rows is None or self._stopping.done():
            return
        for name in [name for name in self._deliveries if name not in rows]:
            self._end(name)
        await parts.poster.divide(rows.keys())
        parts.memory.divide(len(rows))
        self._metrics.show_paused({name: stored.paused for name, (stored, _) in rows.items()})
        for name, (stored, report) in rows.items():
            opened = self._opened(stored)
            running = self._deliveries.get(name)
            if running is not None and (opened is None or stored.paused or not running.accepts(opened)):
                self._end(name)
            if opened is not None and not stored.paused and name not in self._deliveries:
                log.info("webhook started", webhook=name, topic=stored.topic, group=stored.group)
                delivery = self._deliveries[name] = WebhookDelivery(parts, opened)
                tasks.create_task(delivery.run())
            if opened is not None and report.test_taken < report.test_number:
                tasks.create_task(self._test(parts, opened, report.test_number))

    async def _exchange(self) -> Rows | None:
        """Writes the reports and reads the webhooks; None: the database does not answer."""
        outcomes = self._reports.take()
        now_ms = self._clock.monotonic_ms()
        is_seen = now_ms - self._seen_at_ms >= SEEN_MS

        def work(session: Session) -> Rows:
            table.report_outcomes(session, outcomes)
            rows = table.read_webhooks(session)
            # A new webhook has a worker at once.
            if is_seen or any(not report.worker_seen_at_ms for _, report in rows.values()):
                table.report_seen(session, self._clock.now_ms())
            return rows

        try:
            rows = await self._database.run(work)
        except DueTimeError as error:
            self._reports.give_back(outcomes)
            self._metrics.polls.labels("failed").inc()
            rare.warning("cannot read webhooks: the known ones continue", why=error.text)
            return None
        self._metrics.polls.labels("done").inc()
        if is_seen:
            self._seen_at_ms = now_ms
        return rows

    def _end(self, name: str) -> None:
        log.info("webhook stopped", webhook=name)
        self._deliveries.pop(name).stop()

    def _opened(self, stored: StoredWebhook) -> OpenedWebhook | None:
        """The webhook with its secrets; None: they cannot be decrypted."""
        delivery = self._deliveries.get(stored.name)
        if delivery is not None and delivery.webhook.stored == stored:
            return delivery.webhook
        if self._unreadable.get(stored.name) == stored:
            return None
        sealed = table.seal_name(stored.name)
        try:
            secret = self._seal.open(sealed, stored.sealed)
            old = self._seal.open(sealed, stored.old_sealed) if stored.old_sealed else ""
        except DueTimeError as error:
            self._unreadable[stored.name] = stored
            log.error("webhook not started", webhook=stored.name, why=error.text)
            self._reports.failed(stored.name, error.text)
            return None
        return OpenedWebhook(stored, secret, old)

    async def _test(self, parts: DeliveryParts, opened: OpenedWebhook, number: int) -> None:
        name = opened.stored.name
        try:
            if await self._database.run(lambda session: table.take_test(session, name, number)):
                result = await send_test(parts, opened, number)
                await self._database.run(lambda session: table.report_test(session, name, number, result))
        except DueTimeError as error:
            rare.warning("test of a webhook failed", webhook=name, why=error.text)

    async def pause(self, stored: StoredWebhook, error: str) -> None:
        """Pauses a webhook whose receiver wants no more messages, unless it was changed or paused meanwhile."""
        delivery = self._deliveries.get(stored.name)
        # An equal webhook may be one that was resumed after this answer.
        if delivery is None or delivery.webhook.stored is not stored:
            return
        async with delivery.pausing:
            if self._deliveries.get(stored.name) is delivery:
                await self._pause(stored, f"the receiver answered {error}")

    async def _pause(self, stored: StoredWebhook, reason: str) -> None:
        def work(session: Session) -> bool:
            paused = table.pause_by_worker(session, stored, reason)
            if paused:
                add_rows(session, [self._act(f"webhook {stored.name}, by 410 Gone")])
            return paused

        try:
            paused = await self._database.run(work)
        except DueTimeError as fault:
            # The next message meets the same answer.
            rare.warning("cannot pause a webhook", webhook=stored.name, why=fault.text)
            return
        if paused:
            log.warning("webhook paused", webhook=stored.name, why=reason)
            delivery = self._deliveries.get(stored.name)
            if delivery is not None and delivery.webhook.stored == stored:
                self._end(stored.name)

    def _act(self, resource: str) -> AuditRow:
        """A row of the audit log for a pause by this worker, which no caller asked for."""
        method = "worker/PauseWebhook"
        event = AuditedCall(self._clock.now_ms(), "", plain(socket.gethostname()), "", method, resource, "OK", "")
        return AuditRow(secrets.token_hex(16), "webhooks", event)
