"""Webhooks in the metadata database: changed by gateways, followed by workers, which report to the same rows.

Each function is part of the caller's transaction.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, cast

from sqlalchemy import CursorResult, bindparam, delete, func, select, update
from sqlalchemy.orm import Session

from duetime_core.errors import AlreadyExists, NotFound, Overloaded
from duetime_core.metadata.models import PAUSE_REASON_CHARS_MAX, WebhookModel, table_of

WEBHOOKS_MAX = 256
_TABLE = table_of(WebhookModel)


class WebhooksExhausted(Overloaded):
    """The number of webhooks is at its limit: delete some."""

    reason = "WEBHOOKS_EXHAUSTED"
    retriable = False


class StoredWebhook(NamedTuple):
    """A webhook as callers set it, with its encrypted secrets."""

    name: str
    topic: str
    group: str
    url: str
    concurrency: int
    timeout_ms: int
    sealed: str
    created_at_ms: int
    paused: bool = False
    # A worker's; empty: a caller paused it, or nobody.
    pause_reason: str = ""
    # The previous secret, used until a time; empty: none.
    old_sealed: str = ""
    old_ends_at_ms: int = 0


class WebhookReport(NamedTuple):
    """The rows' other columns, as workers write them; 0: never."""

    # Number of the last test that was asked for, of the last one taken, and its result in JSON; empty: none yet.
    test_number: int = 0
    test_taken: int = 0
    test_result: str = ""
    worker_seen_at_ms: int = 0
    delivered_at_ms: int = 0
    failed_at_ms: int = 0
    failure: str = ""


_COLUMNS = [getattr(WebhookModel, name) for name in (*StoredWebhook._fields, *WebhookReport._fields)]
_READ = select(*_COLUMNS).order_by(WebhookModel.name)
_SEEN = update(_TABLE).where(_TABLE.c.worker_seen_at_ms < bindparam("now")).values(worker_seen_at_ms=bindparam("now"))


def read_webhooks(session: Session, name: str = "") -> dict[str, tuple[StoredWebhook, WebhookReport]]:
    """Webhooks by name, sorted: one, if it exists, or all."""
    wanted = _READ.where(WebhookModel.name == name) if name else _READ
    size = len(StoredWebhook._fields)
    return {row[0]: (StoredWebhook(*row[:size]), WebhookReport(*row[size:])) for row in session.execute(wanted)}


def create_webhook(session: Session, webhook: StoredWebhook) -> None:
    """Raises: AlreadyExists, WebhooksExhausted."""
    if session.get(WebhookModel, webhook.name) is not None:
        raise AlreadyExists(f"webhook {webhook.name} exists; update or delete it", reason="WEBHOOK_EXISTS")
    if (session.scalar(select(func.count()).select_from(WebhookModel)) or 0) >= WEBHOOKS_MAX:
        raise WebhooksExhausted(f"there are {WEBHOOKS_MAX} webhooks, the limit: delete some")
    session.add(WebhookModel(**webhook._asdict(), **WebhookReport()._asdict()))
    session.flush()


def change_webhook(session: Session, name: str, values: Mapping[str, Any]) -> tuple[StoredWebhook, WebhookReport]:
    """Sets columns, and returns the whole. Raises: NotFound."""
    if values and not _changed(session, update(_TABLE).where(_TABLE.c.name == name).values(**values)):
        raise no_webhook(name)
    found = read_webhooks(session, name)
    if name not in found:
        raise no_webhook(name)
    return found[name]


def delete_webhook(session: Session, name: str) -> None:
    """Raises: NotFound."""
    if not _changed(session, delete(_TABLE).where(_TABLE.c.name == name)):
        raise no_webhook(name)


def ask_for_test(session: Session, name: str) -> tuple[StoredWebhook, WebhookReport]:
    """Asks workers for one more test. Raises: NotFound."""
    return change_webhook(session, name, {"test_number": _TABLE.c.test_number + 1})


# --- workers ------------------------------------------------------------------------------------------------------


def report_seen(session: Session, now_ms: int) -> None:
    """Notes that a worker follows the webhooks."""
    session.execute(_SEEN, {"now": now_ms})


def report_outcomes(session: Session, outcomes: Iterable[Mapping[str, Any]]) -> None:
    """Stores last deliveries and failures: columns by name, with that of the webhook. A later report of another worker
    is kept."""
    for one in outcomes:
        for column in ("delivered_at_ms", "failed_at_ms"):
            if at_ms := one.get(column):
                older = (_TABLE.c.name == one["name"]) & (_TABLE.c[column] < at_ms)
                values = {column: at_ms} | ({"failure": one["failure"]} if column == "failed_at_ms" else {})
                session.execute(update(_TABLE).where(older).values(**values))


def pause_by_worker(session: Session, webhook: StoredWebhook, reason: str) -> bool:
    """Pauses a webhook, unless it was changed meanwhile; returns whether it did."""
    same = (_TABLE.c.name == webhook.name) & (_TABLE.c.url == webhook.url) & _TABLE.c.paused.is_(False)
    same &= _TABLE.c.created_at_ms == webhook.created_at_ms
    return _changed(
        session, update(_TABLE).where(same).values(paused=True, pause_reason=reason[:PAUSE_REASON_CHARS_MAX])
    )


def take_test(session: Session, name: str, number: int) -> bool:
    """Takes a test for one worker; False: another one was faster."""
    free = (_TABLE.c.name == name) & (_TABLE.c.test_number == number) & (_TABLE.c.test_taken < number)
    return _changed(session, update(_TABLE).where(free).values(test_taken=number, test_result=""))


def report_test(session: Session, name: str, number: int, result: str) -> None:
    """Stores the result of a test, unless a later one was taken."""
    taken = (_TABLE.c.name == name) & (_TABLE.c.test_taken == number)
    session.execute(update(_TABLE).where(taken).values(test_result=result))


def _changed(session: Session, statement: Any) -> bool:
    return bool(cast("CursorResult[Any]", session.execute(statement)).rowcount)


def no_webhook(name: str) -> NotFound:
    """The error for an unknown webhook."""
    return NotFound(f"there is no webhook {name}", reason="WEBHOOK_NOT_FOUND")


def seal_name(name: str) -> str:
    """The name under which a webhook's secrets are encrypted: they cannot be moved to another row."""
    return f"webhook/{name}"
