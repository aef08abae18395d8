"""Webhooks: rows of the metadata database, which workers follow. A gateway sends no request to their URLs."""

import base64
import re
import secrets
from collections.abc import Mapping
from typing import Any
from urllib.parse import SplitResult, urlsplit

from duetime_core.access.sealing import Seal
from duetime_core.clock import Clock
from duetime_core.errors import FailedPrecondition, Violation, refuse
from duetime_core.metadata import Database
from duetime_core.metadata import webhooks as table
from duetime_core.metadata.models import WEBHOOK_CHARS_MAX
from duetime_core.metadata.webhooks import StoredWebhook, WebhookReport
from duetime_format.admission import group_violations
from duetime_format.errors import within
from duetime_format.limits import (
    WEBHOOK_CONCURRENCY_MAX,
    WEBHOOK_OLD_SECRET_MS_MAX,
    WEBHOOK_TIMEOUT_MS_MAX,
    WEBHOOK_TIMEOUT_MS_MIN,
    WEBHOOK_URL_CHARS_MAX,
)
from duetime_format.texts import shown

from duetime_gateway.routing.topics import TopicRegistry
from duetime_gateway.rules import group_read_violations

CONCURRENCY_DEFAULT, TIMEOUT_MS_DEFAULT = 16, 15_000
# Standard Webhooks: 24 to 64 bytes.
SECRET_BYTES = 32
SECRET_PREFIX = "whsec_"  # noqa: S105 (the prefix of secrets)
_NAME = re.compile(rf"[A-Za-z0-9_-]{{1,{WEBHOOK_CHARS_MAX}}}")
# Printable ASCII: an URL with other characters is written with escapes.
_URL = re.compile(rf"[!-~]{{1,{WEBHOOK_URL_CHARS_MAX}}}")

Found = tuple[StoredWebhook, WebhookReport]


class WebhookRegistry:
    """Creates, changes and lists webhooks."""

    def __init__(self, database: Database, topics: TopicRegistry, clock: Clock, seal: Seal | None) -> None:
        """`seal`: encrypts secrets; None: no webhook can be created."""
        self._database = database
        self._topics = topics
        self._clock = clock
        self._seal = seal

    async def create(
        self, name: str, topic: str, group: str, url: str, *, concurrency: int, timeout_ms: int
    ) -> tuple[Found, str]:
        """Returns the webhook and its secret. `concurrency`, `timeout_ms`: 0: the default.

        Raises:
            InvalidArgument, AlreadyExists, Unavailable, WebhooksExhausted, NotFound: the topic does not exist,
            FailedPrecondition: the gateway has no key.
        """
        concurrency, timeout_ms = concurrency or CONCURRENCY_DEFAULT, timeout_ms or TIMEOUT_MS_DEFAULT
        values = {"url": url, "concurrency": concurrency, "timeout_ms": timeout_ms}
        found = [*_name_violations(name), *group_read_violations("topic", topic), *group_violations("group", group)]
        refuse([*found, *change_violations(values)])
        await self._topics.describe(topic)
        secret, sealed = self._new_secret(name)
        made = StoredWebhook(name, topic, group, url, concurrency, timeout_ms, sealed, self._clock.now_ms())
        await self._database.run(lambda session: table.create_webhook(session, made))
        return (made, WebhookReport()), secret

    async def update(self, name: str, values: Mapping[str, Any]) -> Found:
        """Sets `url`, `concurrency` or `timeout_ms`. Raises: InvalidArgument, NotFound, Unavailable."""
        refuse([*_name_violations(name), *change_violations(values)])
        return await self._database.run(lambda session: table.change_webhook(session, name, values))

    async def list(self, name: str) -> list[Found]:
        """All, or the one of this name. Raises: InvalidArgument, NotFound, Unavailable."""
        if name:
            return [await self.update(name, {})]
        return list((await self._database.run(table.read_webhooks)).values())

    async def pause(self, name: str, *, paused: bool) -> Found:
        """Pauses or resumes it. Raises: InvalidArgument, NotFound, Unavailable."""
        refuse(_name_violations(name))
        values = {"paused": paused, "pause_reason": ""}
        return await self._database.run(lambda session: table.change_webhook(session, name, values))

    async def rotate(self, name: str, old_valid_ms: int) -> tuple[Found, str]:
        """Replaces the secret; the old one signs too for a time. Raises: as `create`, and NotFound."""
        refuse([*_name_violations(name), *within("old_valid_ms", old_valid_ms, 0, WEBHOOK_OLD_SECRET_MS_MAX)])
        secret, sealed = self._new_secret(name)
        ends_at_ms = self._clock.now_ms() + old_valid_ms if old_valid_ms else 0

        def work(session: Any) -> Found:
            old, _ = table.change_webhook(session, name, {})
            values = {"sealed": sealed, "old_sealed": old.sealed if ends_at_ms else "", "old_ends_at_ms": ends_at_ms}
            return table.change_webhook(session, name, values)

        return await self._database.run(work), secret

    async def ask_for_test(self, name: str) -> Found:
        """Asks workers for a test. Raises: InvalidArgument, NotFound, Unavailable."""
        refuse(_name_violations(name))
        return await self._database.run(lambda session: table.ask_for_test(session, name))

    async def delete(self, name: str) -> None:
        """Raises: InvalidArgument, NotFound, Unavailable."""
        refuse(_name_violations(name))
        await self._database.run(lambda session: table.delete_webhook(session, name))

    def _new_secret(self, name: str) -> tuple[str, str]:
        """A new secret, and the same encrypted. Raises: FailedPrecondition."""
        if self._seal is None:
            text = "the gateway has no DUETIME_SECRETS_KEY to encrypt the secret; `duetime up --webhooks` makes one"
            raise FailedPrecondition(text, reason="SECRETS_KEY_MISSING")
        secret = SECRET_PREFIX + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()
        return secret, self._seal.close(table.seal_name(name), secret)


def change_violations(values: Mapping[str, Any]) -> list[Violation]:
    """Violations of the columns that can be changed."""
    found = _url_violations(values["url"]) if "url" in values else []
    if "concurrency" in values:
        found += within("concurrency", values["concurrency"], 1, WEBHOOK_CONCURRENCY_MAX)
    if "timeout_ms" in values:
        found += within("timeout_ms", values["timeout_ms"], WEBHOOK_TIMEOUT_MS_MIN, WEBHOOK_TIMEOUT_MS_MAX)
    return found


def _name_violations(name: str) -> list[Violation]:
    if _NAME.fullmatch(name):
        return []
    return [Violation("name", f"{shown(name)} is not 1 to {WEBHOOK_CHARS_MAX} characters of [a-zA-Z0-9_-]")]


def _url_violations(url: str) -> list[Violation]:
    """The text of an error omits the URL's path and query, which may have secrets of the receiver."""
    if not _URL.fullmatch(url):
        return [Violation("url", f"is not 1 to {WEBHOOK_URL_CHARS_MAX} characters of ASCII without blanks")]
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        return [Violation("url", f"is malformed: {str(error).lower()}")]
    return [Violation("url", text) for text in _faults(parts, port)]


def _faults(parts: SplitResult, port: int | None) -> list[str]:
    found = []
    if parts.scheme not in ("https", "http"):
        found.append(f"begins with {shown(parts.scheme)}, not https://")
    if not parts.hostname:
        found.append("has no host")
    if port == 0:
        found.append("has port 0")
    if parts.username is not None or parts.password is not None:
        found.append("has a user or password; the signature authenticates the sender")
    if parts.fragment:
        found.append("has a fragment, which is not sent")
    return found
