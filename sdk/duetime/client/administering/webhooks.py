"""Webhooks: the server posts the messages of a topic to a URL."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from duetime_format.limits import WEBHOOK_CONCURRENCY_MAX

from duetime.client.connection import GatewayConnection, RepeatingClient, pause
from duetime.client.counts import whole
from duetime.client.errors import Timeout
from duetime.client.lengths import Length, milliseconds, seconds
from duetime.client.message import moment
from duetime.client.tokens import TokenSource
from duetime.client.trust import Tls
from duetime.v1 import webhooks_pb2

TEST_POLL_S = 0.3


@dataclass(frozen=True, slots=True)
class WebhookTest:
    """The last test of a webhook."""

    number: int
    """Counts the tests of the webhook."""
    done: bool
    """Whether a worker has sent it and knows the result."""
    status: int | None
    """The response's status; None: there was no response."""
    error: str
    """Empty: delivered, or not done."""
    took_ms: int


@dataclass(frozen=True, slots=True)
class Webhook:
    """A webhook and the last reports of its workers. The server returns its secret only when it makes one."""

    name: str
    topic: str
    group: str
    url: str
    concurrency: int
    """Maximum requests at once, for each worker."""
    timeout_ms: int
    """Longest time of a request."""
    paused: bool
    pause_reason: str
    """Set: a worker paused it, because the receiver answered 410."""
    created_at: datetime | None
    old_secret_ends_at: datetime | None
    """The previous secret signs too until then; None: there is none."""
    worker_seen_at: datetime | None
    """A running worker renews it every 10 s; None: none has run."""
    delivered_at: datetime | None
    failed_at: datetime | None
    failure: str
    """The error of the last failed request."""
    test: WebhookTest | None


@dataclass(frozen=True, slots=True)
class SignedWebhook:
    """A webhook with the secret that was made for it."""

    webhook: Webhook
    secret: str = field(repr=False)
    """`whsec_` and 32 bytes in base64, for the receiver. No other answer has it."""


def webhook_of(found: webhooks_pb2.Webhook) -> Webhook:
    """The webhook of an answer."""
    return Webhook(
        name=found.name,
        topic=found.topic,
        group=found.group,
        url=found.url,
        concurrency=found.concurrency,
        timeout_ms=found.timeout_ms,
        paused=found.paused,
        pause_reason=found.pause_reason,
        created_at=_moment(found.created_at_ms),
        old_secret_ends_at=_moment(found.old_secret_ends_at_ms),
        worker_seen_at=_moment(found.worker_seen_at_ms),
        delivered_at=_moment(found.delivered_at_ms),
        failed_at=_moment(found.failed_at_ms),
        failure=found.failure,
        test=_test_of(found.test) if found.HasField("test") else None,
    )


def _moment(at_ms: int) -> datetime | None:
    return moment(at_ms) if at_ms else None


def _test_of(test: webhooks_pb2.WebhookTest) -> WebhookTest:
    return WebhookTest(test.number, test.done, test.status or None, test.error, test.took_ms)


class AsyncWebhooks(RepeatingClient):
    """Webhooks, each of one topic and group. For one event loop; `Webhooks` is for plain code.

    Workers of the cluster post the messages. All calls take admin rights, and are repeated until they are answered or
    the timeout has passed.

    Arguments:
        server: HOST:PORT; None: DUETIME_SERVER, else localhost:9800.
        token: the user's token, or a function that returns it; see `Token`. None: DUETIME_TOKEN, or the file of
            DUETIME_TOKEN_FILE.
        tls: the trusted certificates; see `Tls`. None: those of DUETIME_TLS_CA_FILE, or plain text without it.
        timeout: the longest time of one call.
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

    async def create(
        self, name: str, *, topic: str, group: str, url: str, concurrency: int = 16, timeout: Length = "15s"
    ) -> SignedWebhook:
        """Creates a webhook and its signing secret. Workers start it within 2 s.

        Arguments:
            name: 1 to 64 characters of [a-zA-Z0-9_-].
            topic: an existing topic.
            group: its consumer group. A new group begins with the earliest message.
            url: the receiver, https://HOST/PATH.
            concurrency: maximum requests of one worker at once, 1 to 256.
            timeout: longest time of a request, 1 s to 1 min.

        Raises:
            InvalidArgument: an argument breaks its rule.
            NotFound: the topic does not exist.
            AlreadyExists: the name is taken, perhaps by an earlier attempt whose answer was lost; `rotate` returns a
                new secret.
            Conflict: the gateway has no DUETIME_SECRETS_KEY.
        """
        webhook = webhooks_pb2.Webhook(
            name=name,
            topic=topic,
            group=group,
            url=url,
            concurrency=whole("concurrency", concurrency, WEBHOOK_CONCURRENCY_MAX),
            timeout_ms=milliseconds(timeout, "timeout"),
        )
        return _signed(await self._call("CreateWebhook", webhooks_pb2.CreateWebhookRequest(webhook=webhook)))

    async def list(self) -> Sequence[Webhook]:
        """Lists the webhooks, by name."""
        answer = await self._call("ListWebhooks", webhooks_pb2.ListWebhooksRequest())
        return [webhook_of(one) for one in answer.webhooks]

    async def get(self, name: str) -> Webhook:
        """Shows a webhook. Raises: NotFound."""
        answer = await self._call("ListWebhooks", webhooks_pb2.ListWebhooksRequest(name=name))
        return webhook_of(answer.webhooks[0])

    async def update(
        self, name: str, *, url: str | None = None, concurrency: int | None = None, timeout: Length | None = None
    ) -> Webhook:
        """Changes the given values; None leaves one unchanged. Messages that wait go to the new URL.

        Raises:
            InvalidArgument: an argument breaks its rule.
            NotFound: there is no such webhook.
        """
        timeout_ms = None if timeout is None else milliseconds(timeout, "timeout")
        count = None if concurrency is None else whole("concurrency", concurrency, WEBHOOK_CONCURRENCY_MAX)
        request = webhooks_pb2.UpdateWebhookRequest(name=name, url=url, concurrency=count, timeout_ms=timeout_ms)
        return webhook_of(await self._call("UpdateWebhook", request))

    async def pause(self, name: str) -> Webhook:
        """Stops deliveries; messages wait in the topic. Idempotent. Raises: NotFound."""
        return webhook_of(await self._call("PauseWebhook", webhooks_pb2.WebhookRef(name=name)))

    async def resume(self, name: str) -> Webhook:
        """Continues with the messages that wait. Idempotent. Raises: NotFound."""
        return webhook_of(await self._call("ResumeWebhook", webhooks_pb2.WebhookRef(name=name)))

    async def rotate(self, name: str, *, old_valid: Length | None = None) -> SignedWebhook:
        """Replaces the signing secret. The old one signs too for `old_valid`, up to 30 days; None: it ends at once.

        Raises:
            NotFound: there is no such webhook.
            Conflict: the gateway has no DUETIME_SECRETS_KEY.
        """
        old_valid_ms = 0 if old_valid is None else milliseconds(old_valid, "old_valid")
        request = webhooks_pb2.RotateWebhookSecretRequest(name=name, old_valid_ms=old_valid_ms)
        return _signed(await self._call("RotateWebhookSecret", request))

    async def test(self, name: str, *, wait: Length = "30s") -> WebhookTest:
        """Sends a signed test message, which is in no topic, and returns the result. A paused webhook is tested too.

        Raises:
            NotFound: there is no such webhook.
            Timeout: no worker has reported a result within `wait`.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds(wait, "wait")
        asked = webhook_of(await self._call("TestWebhook", webhooks_pb2.WebhookRef(name=name))).test
        found = asked
        while asked is None or found is None or not found.done or found.number < asked.number:
            if loop.time() >= deadline:
                raise Timeout(f"no worker has tested webhook {name} within {wait}")
            await pause(TEST_POLL_S)
            found = (await self.get(name)).test
        return found

    async def delete(self, name: str) -> None:
        """Deletes a webhook and its secret; its topic and group are unchanged. Raises: NotFound: also if an earlier
        call has deleted it."""
        await self._call("DeleteWebhook", webhooks_pb2.WebhookRef(name=name))

    async def close(self) -> None:
        """Disconnects; calls in progress raise Closed."""
        await self._connection.close()

    def __repr__(self) -> str:
        return self._connection.described("AsyncWebhooks")


def _signed(answer: webhooks_pb2.WebhookSecret) -> SignedWebhook:
    return SignedWebhook(webhook_of(answer.webhook), answer.secret)
