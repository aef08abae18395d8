"""Operations of relays and operators on the rows of an outbox; each method needs a transaction of its own."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Text, bindparam, cast, delete, func, select, text, update

from duetime.client.message import Message
from duetime.client.sending.batch import REQUEST_BYTES_MAX
from duetime.outbox.table import DOUBTFUL, FAILED, SENT, WAITING, Outbox, message_of, now_ms
from duetime.outbox.verdicts import RowVerdict

# Rows that `status` lists.
FAULTY_MAX = 1_000


@dataclass(frozen=True, slots=True)
class ClaimedRow:
    """A row claimed by a relay. `handed_at_ms`: the time of its first handover; None: it was never handed over."""

    id: int
    message: Message
    order_key: str
    attempts: int
    handed_at_ms: int | None


@dataclass(frozen=True, slots=True)
class UnreadableRow:
    """A row without a message that this release can send: an option of a newer release, or damage."""

    id: int
    message_id: str
    topic: str
    why: str


@dataclass(frozen=True, slots=True)
class ClaimedRows:
    """The rows of one claim."""

    rows: list[ClaimedRow]
    unreadable: list[UnreadableRow]

    def __bool__(self) -> bool:
        return bool(self.rows or self.unreadable)


@dataclass(frozen=True, slots=True)
class Faulty:
    """A row that needs an operator."""

    message_id: str
    topic: str
    state: str
    error: str
    created_at_ms: int


@dataclass(frozen=True, slots=True)
class OutboxStatus:
    """Counts of rows. `oldest_ms`: wait of the oldest waiting row; `retried`: waiting rows that were tried before."""

    waiting: int
    retried: int
    oldest_ms: int
    failed: int
    doubtful: int
    sent: int
    faulty: Sequence[Faulty]


class Rows:
    """The rows of one outbox."""

    def __init__(self, outbox: Outbox) -> None:
        self._table = outbox.table
        self._lock_name = outbox.table.fullname

    def now(self, connection: Connection) -> int:
        """The database's clock."""
        return int(connection.execute(select(now_ms())).scalar_one())

    def claim(self, connection: Connection, claim: str, now: int, until: int, count: int) -> ClaimedRows:
        """Claims the oldest rows until a time: unclaimed rows, if no row with the same order key is claimed.

        The claim marks them as handed over: after a crash, the next relay then knows that they may have been sent.
        """
        self._lock(connection)
        row, other = self._table.c, self._table.alias().c
        held = select(other.order_key).where(other.state == WAITING, other.next_at_ms > now, other.order_key != "")
        free = (row.state == WAITING, row.next_at_ms <= now, row.order_key.not_in(held))
        found = connection.execute(
            select(row.id, row.handed_at_ms, func.length(row.body).label("size"))
            .where(*free)
            .order_by(row.id)
            .limit(count)
            .with_for_update(skip_locked=True)
        )
        handed: dict[int, int | None] = {}
        size = 0
        for each in found:
            size += each.size
            if handed and size > REQUEST_BYTES_MAX:
                break
            handed[each.id] = each.handed_at_ms
        if not handed:
            return ClaimedRows([], [])
        taken = (
            update(self._table)
            .where(row.id.in_(handed))
            .values(
                claim=claim,
                next_at_ms=until,
                attempts=row.attempts + 1,
                handed_at_ms=func.coalesce(row.handed_at_ms, now),
            )
        )
        connection.execute(taken)
        # The options as text: a damaged value must not fail the whole query.
        columns = [column for column in row if column is not row.options]
        wanted = select(*columns, cast(row.options, Text).label("options"))
        claims = ClaimedRows([], [])
        for one in connection.execute(wanted.where(row.id.in_(handed)).order_by(row.id)):
            try:
                message = message_of(one, json.loads(one.options))
            except Exception as error:
                why = f"this release can't read the row: {type(error).__name__}: {error}"
                claims.unreadable.append(UnreadableRow(one.id, one.message_id, one.topic, why))
            else:
                claims.rows.append(ClaimedRow(one.id, message, one.order_key, one.attempts, handed[one.id]))
        return claims

    def hand_again(self, connection: Connection, ids: Sequence[int], now: int) -> None:
        """Hands rows over as for the first time; they were never stored."""
        connection.execute(update(self._table).where(self._table.c.id.in_(ids)).values(handed_at_ms=now))

    def settle(self, connection: Connection, claim: str, verdicts: Mapping[int, RowVerdict], keep_until: int) -> None:
        """Gives claimed rows their next state; sent rows are kept until a time, 0: deleted. Rows that another relay has
        claimed meanwhile are left to it.
        """
        row = self._table.c
        mine = row.claim == claim, row.state == WAITING
        sent = row.id.in_([number for number, verdict in verdicts.items() if verdict.state == SENT])
        if keep_until:
            kept = update(self._table).where(*mine, sent).values(state=SENT, next_at_ms=keep_until, error="", claim="")
            connection.execute(kept)
        else:
            connection.execute(delete(self._table).where(*mine, sent))
        others = [
            {"row": number, "to": verdict.state, "why": verdict.error, "at": verdict.next_at_ms}
            for number, verdict in verdicts.items()
            if verdict.state != SENT
        ]
        if others:
            changed = update(self._table).where(*mine, row.id == bindparam("row"))
            changed = changed.values(
                state=bindparam("to"), error=bindparam("why"), next_at_ms=bindparam("at"), claim=""
            )
            connection.execute(changed, others)

    def purge(self, connection: Connection, now: int, count: int) -> int:
        """Deletes sent rows after their retention; returns the number."""
        row = self._table.c
        old = select(row.id).where(row.state == SENT, row.next_at_ms <= now).limit(count)
        return connection.execute(delete(self._table).where(row.id.in_(old))).rowcount

    def next_at(self, connection: Connection, now: int) -> int | None:
        """The earliest time in the future at which a waiting row becomes free."""
        row = self._table.c
        wanted = select(func.min(row.next_at_ms)).where(row.state == WAITING, row.next_at_ms > now)
        found: int | None = connection.execute(wanted).scalar_one()
        return found

    def status(self, connection: Connection) -> OutboxStatus:
        """Counts of rows, and the first faulty rows."""
        row = self._table.c
        counted = connection.execute(select(row.state, func.count()).group_by(row.state))
        counts: dict[str, int] = {each[0]: each[1] for each in counted}
        waiting = row.state == WAITING
        retried = select(func.count()).where(waiting, row.attempts > 0, row.error != "")
        oldest = connection.execute(select(func.min(row.created_at_ms)).where(waiting)).scalar_one()
        listed = connection.execute(
            select(row.message_id, row.topic, row.state, row.error, row.created_at_ms)
            .where(row.state.in_((FAILED, DOUBTFUL)))
            .order_by(row.id)
            .limit(FAULTY_MAX)
        )
        return OutboxStatus(
            waiting=counts.get(WAITING, 0),
            retried=connection.execute(retried).scalar_one(),
            oldest_ms=0 if oldest is None else max(self.now(connection) - oldest, 0),
            failed=counts.get(FAILED, 0),
            doubtful=counts.get(DOUBTFUL, 0),
            sent=counts.get(SENT, 0),
            faulty=[Faulty(*each) for each in listed],
        )

    def resolve(self, connection: Connection, message_ids: Sequence[str], *, resend: bool) -> list[str]:
        """Resolves failed and doubtful rows: they are sent again, or counted as sent and deleted. Returns the ids that
        no such row has."""
        row = self._table.c
        faulty = (row.message_id.in_(message_ids), row.state.in_((FAILED, DOUBTFUL)))
        found = set(connection.execute(select(row.message_id).where(*faulty).with_for_update()).scalars())
        if resend:
            reset: dict[str, Any] = {
                "state": WAITING,
                "next_at_ms": 0,
                "attempts": 0,
                "handed_at_ms": None,
                "error": "",
            }
            connection.execute(update(self._table).where(*faulty).values(reset))
        else:
            connection.execute(delete(self._table).where(*faulty))
        return [each for each in message_ids if each not in found]

    def _lock(self, connection: Connection) -> None:
        """Serializes claims: a second relay must see the claimed rows, to keep the order of their keys."""
        if connection.dialect.name == "postgresql":
            connection.execute(select(func.pg_advisory_xact_lock(func.hashtext(cast(self._lock_name, Text)))))
        else:
            # Takes the write lock of SQLite before any read.
            connection.execute(update(self._table).where(text("0 = 1")).values(claim=""))
