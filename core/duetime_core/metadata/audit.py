"""The table of the audit log: written in batches, read in pages from the latest on, limited by age and number of
rows."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import Select, and_, delete, or_, select, text
from sqlalchemy.orm import Session

from duetime_core.audit.events import AuditedCall
from duetime_core.metadata.database import Database
from duetime_core.metadata.models import AuditModel

# Limit of rows of acts, and of rows of rejections: many rejections cannot evict acts.
ROWS_MAX = 100_000
_COLUMNS = ("key", "process", "is_refusal", *AuditedCall._fields)
# Quoted, because `user` is an SQL keyword.
_NAMES = ", ".join(f'"{name}"' for name in _COLUMNS)
_VALUES = ", ".join(f":{name}" for name in _COLUMNS)
_INSERT = text(f"INSERT INTO audit_events ({_NAMES}) VALUES ({_VALUES}) ON CONFLICT DO NOTHING")  # noqa: S608 (names)


class AuditRow(NamedTuple):
    """An event as recorded by one process, with a unique key."""

    key: str
    process: str
    event: AuditedCall


class AuditFilter(NamedTuple):
    """Selects events; an empty or zero field matches all."""

    from_ms: int = 0
    before_ms: int = 0
    user: str = ""
    # Name with or without its service.
    method: str = ""


class AuditPlace(NamedTuple):
    """A row's place in the order of the list."""

    at_ms: int
    id: int


class AuditPage(NamedTuple):
    """Rows, newest first, and the place of the last one if there are more."""

    rows: Sequence[AuditRow]
    last: AuditPlace | None


def add_rows(session: Session, rows: Sequence[AuditRow]) -> None:
    """Part of the caller's transaction. Idempotent by key."""
    values = [
        {"key": row.key, "process": row.process, "is_refusal": row.event.is_refusal, **row.event._asdict()}
        for row in rows
    ]
    session.execute(_INSERT, values)


class AuditTable:
    """The rows of all processes."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, rows: Sequence[AuditRow]) -> None:
        """Idempotent by key. Raises: Unavailable."""
        if rows:
            await self._database.run(lambda session: add_rows(session, rows))

    async def page(self, wanted: AuditFilter, count: int, after: AuditPlace | None = None) -> AuditPage:
        """The next `count` rows. Raises: Unavailable."""
        query = _query(wanted, after).limit(count + 1)
        found: Sequence[AuditModel] = await self._database.run(lambda session: session.scalars(query).all())
        rows = found[:count]
        last = AuditPlace(rows[-1].at_ms, rows[-1].id) if len(found) > count else None
        return AuditPage([_row(one) for one in rows], last)

    async def forget(self, before_ms: int) -> None:
        """Deletes rows older than `before_ms`, and the oldest above the limit. Raises: Unavailable."""

        def work(session: Session) -> None:
            options = {"synchronize_session": False}
            session.execute(delete(AuditModel).where(AuditModel.at_ms < before_ms), execution_options=options)
            for is_refusal in (False, True):
                of_kind = AuditModel.is_refusal == is_refusal
                newest = select(AuditModel.id).where(of_kind).order_by(AuditModel.id.desc())
                first_surplus = session.scalar(newest.offset(ROWS_MAX).limit(1))
                if first_surplus is not None:
                    surplus = delete(AuditModel).where(of_kind, AuditModel.id <= first_surplus)
                    session.execute(surplus, execution_options=options)

        await self._database.run(work)


def _query(wanted: AuditFilter, after: AuditPlace | None) -> Select[Any]:
    query = select(AuditModel).order_by(AuditModel.at_ms.desc(), AuditModel.id.desc())
    if wanted.from_ms:
        query = query.where(AuditModel.at_ms >= wanted.from_ms)
    if wanted.before_ms:
        query = query.where(AuditModel.at_ms < wanted.before_ms)
    if wanted.user:
        query = query.where(AuditModel.user == wanted.user)
    if "/" in wanted.method:
        query = query.where(AuditModel.method == wanted.method)
    elif wanted.method:
        query = query.where(AuditModel.method.endswith("/" + wanted.method, autoescape=True))
    if after is not None:
        earlier_then = and_(AuditModel.at_ms == after.at_ms, AuditModel.id < after.id)
        query = query.where(or_(AuditModel.at_ms < after.at_ms, earlier_then))
    return query


def _row(model: AuditModel) -> AuditRow:
    event = AuditedCall(**{name: getattr(model, name) for name in AuditedCall._fields})
    return AuditRow(model.key, model.process, event)
