"""One webhook at work: a consumer of its group, whose handler sends a request for each message.

Leases, retries, dead letters and order are the consumer's and the server's; see docs/consuming.md.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

import structlog
from duetime.client.bodies import CONTENT_TYPE
from duetime.client.consuming.consumer import Consumer
from duetime.client.consuming.failing import Retry
from duetime.client.consuming.leased import LeasedMessage
from duetime.client.errors import DueTimeError
from duetime.client.trust import Tls
from duetime_core.clock import Clock
from duetime_core.metadata.webhooks import StoredWebhook

from duetime_webhooks.memory import MessageMemory
from duetime_webhooks.metrics import WebhookMetrics
from duetime_webhooks.posting import AddressRefused, DeliveryError, Poster
from duetime_webhooks.reports import OutcomeReports
from duetime_webhooks.responses import Verdict, verdict_of
from duetime_webhooks.signing import headers

log = structlog.get_logger()

PAUSE_MS_MIN, PAUSE_MS_MAX = 1_000, 30_000
# More than a request takes, so that a stop waits for the requests in progress.
DRAIN_MORE_MS = 1_000


class HttpError(Exception):
    """A response other than 2xx: status and the first bytes of its body."""


class OpenedWebhook(NamedTuple):
    """A webhook with its decrypted secrets."""

    stored: StoredWebhook
    secret: str
    # Empty: none.
    old_secret: str = ""

    def secrets_at(self, now_ms: int) -> Sequence[str]:
        """The valid secrets, the newest first."""
        is_old_valid = self.old_secret and now_ms < self.stored.old_ends_at_ms
        return [self.secret, self.old_secret] if is_old_valid else [self.secret]


@dataclass(frozen=True)
class DeliveryParts:
    """The parts that all webhooks of a worker share."""

    poster: Poster
    memory: MessageMemory
    clock: Clock
    metrics: WebhookMetrics
    reports: OutcomeReports
    # Pauses a webhook whose receiver is gone; gets the response, too.
    pause: Callable[[StoredWebhook, str], Awaitable[None]]
    # The gateway, and its trusted CA.
    server: str
    tls: Tls | None
    retry_after_ms_max: int
    # Time until messages of a dead worker are delivered by another one.
    lease_ms: int


class WebhookDelivery:
    """Delivers one webhook's messages until it is stopped."""

    def __init__(self, parts: DeliveryParts, webhook: OpenedWebhook) -> None:
        self._parts = parts
        self.webhook = webhook
        # Held by one answer at a time that pauses the webhook: the first ends this delivery.
        self.pausing = asyncio.Lock()
        self._consumer: Consumer | None = None
        self._stopping: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def accepts(self, webhook: OpenedWebhook) -> bool:
        """Takes a change over, unless it takes another subscription; returns whether it did."""
        if _subscription(webhook) != _subscription(self.webhook):
            return False
        self.webhook = webhook
        return True

    def stop(self) -> None:
        """Makes `run` drain and end. Idempotent."""
        if not self._stopping.done():
            self._stopping.set_result(None)
        if self._consumer is not None:
            self._consumer.stop()

    async def run(self) -> None:
        """Consumes until it is stopped. An error that ends the consumer, such as a missing right, is repeated later."""
        pause_ms = PAUSE_MS_MIN
        name = self.webhook.stored.name
        while not self._stopping.done():
            began_ms = self._parts.clock.monotonic_ms()
            room = self._parts.memory.room(name)
            try:
                self._consumer = self._make_consumer()
                self._consumer.room = room
                await self._consumer.run_async()
            except DueTimeError as error:
                log.warning("webhook cannot receive", webhook=name, why=str(error), again_in_ms=pause_ms)
                self._parts.reports.failed(name, f"cannot receive: {error}")
            finally:
                room.close()
            if self._stopping.done():
                return
            if self._parts.clock.monotonic_ms() - began_ms > PAUSE_MS_MAX:
                pause_ms = PAUSE_MS_MIN
            await self._parts.clock.wait_for(self._stopping, pause_ms)
            pause_ms = min(2 * pause_ms, PAUSE_MS_MAX)

    def _make_consumer(self) -> Consumer:
        """Raises: InvalidArgument: the token can't be used, or the group's or the topic's name."""
        parts, stored = self._parts, self.webhook.stored
        drain = timedelta(milliseconds=stored.timeout_ms + DRAIN_MORE_MS)
        consumer = Consumer(parts.server, group=stored.group, drain=drain, tls=parts.tls)
        lease = timedelta(milliseconds=parts.lease_ms)
        consumer.handler(stored.topic, concurrency=stored.concurrency, lease=lease)(self.deliver)
        return consumer

    async def deliver(self, message: LeasedMessage) -> None:
        """The consumer's handler. Raises: Retry: it was not delivered."""
        parts, webhook = self._parts, self.webhook
        name = webhook.stored.name
        content_type = message.properties.get(CONTENT_TYPE, "")
        try:
            verdict = await send(parts, webhook, message.id, message.body, content_type)
        except DeliveryError as error:
            parts.reports.failed(name, str(error))
            raise Retry() from error
        if not verdict.error:
            parts.reports.delivered(name)
            return
        parts.reports.failed(name, verdict.error)
        if verdict.gone:
            await parts.pause(webhook.stored, verdict.error)
        after = None if verdict.retry_after_ms is None else timedelta(milliseconds=verdict.retry_after_ms)
        raise Retry(after) from HttpError(verdict.error)


async def send(
    parts: DeliveryParts, webhook: OpenedWebhook, message_id: str, body: bytes, content_type: str = ""
) -> Verdict:
    """Sends a signed request. Raises: DeliveryError: there is no response."""
    stored, clock, metrics = webhook.stored, parts.clock, parts.metrics
    now_ms = clock.now_ms()
    signed = headers(webhook.secrets_at(now_ms), message_id, now_ms // 1_000, body, content_type)
    began_ms, outcome = clock.monotonic_ms(), "no_response"
    metrics.in_flight.inc()
    try:
        response = await parts.poster.post(stored.name, stored.url, signed, body, stored.timeout_ms / 1_000)
        outcome = f"{response.status // 100}xx"
    except AddressRefused:
        outcome = "refused"
        raise
    finally:
        metrics.in_flight.dec()
        metrics.requests.labels(stored.name, outcome).inc()
        metrics.seconds.labels(stored.name).observe((clock.monotonic_ms() - began_ms) / 1_000)
    return verdict_of(response, clock.now_ms(), parts.retry_after_ms_max)


async def send_test(parts: DeliveryParts, webhook: OpenedWebhook, number: int) -> str:
    """Sends a test message and returns the result in JSON: fields of duetime.v1.WebhookTest."""
    name, clock = webhook.stored.name, parts.clock
    body = json.dumps({"type": "duetime.test", "data": {"webhook": name, "number": number}}).encode()
    began_ms, status = clock.monotonic_ms(), 0
    try:
        verdict = await send(parts, webhook, f"test-{name}-{number}", body)
        status, error = verdict.status, verdict.error
    except DeliveryError as fault:
        error = str(fault)
    return json.dumps({"status": status, "error": error, "took_ms": round(clock.monotonic_ms() - began_ms)})


def _subscription(webhook: OpenedWebhook) -> tuple[str, str, int]:
    stored = webhook.stored
    return stored.topic, stored.group, stored.concurrency
