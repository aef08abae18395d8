"""The database side of lane leases: one tick is a heartbeat, a read of all rows, and claims by compare-and-swap."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from duetime_core.metadata import Database, LaneLeaseModel, SchedulerModel, table_of
from duetime_core.metadata.heartbeats import beat, forget
from duetime_core.node.members import MemberWatch
from sqlalchemy import delete, insert, select, update
from sqlalchemy.orm import Session

from duetime_scheduler.sharing import LaneKey, LeaseRow, claims, held

_LEASES, _MEMBERS = table_of(LaneLeaseModel).c, table_of(SchedulerModel).c
_READ_LEASES = select(_LEASES.shard, _LEASES.level, _LEASES.owner, _LEASES.epoch, _LEASES.paused).order_by(
    _LEASES.shard, _LEASES.level
)
_READ_MEMBERS = select(_MEMBERS.member_id, _MEMBERS.heartbeat)


@dataclass(frozen=True, slots=True)
class Tick:
    """The state after a tick."""

    held: frozenset[LaneKey]
    paused: frozenset[LaneKey]
    live: frozenset[str]
    dead: frozenset[str]
    # Lanes of all shards without a lease of a live member.
    unowned: frozenset[LaneKey] = frozenset()

    def with_pauses(self, changes: Mapping[LaneKey, bool]) -> "Tick":
        """The tick as if these lanes had been paused (True) or resumed before it."""
        resumed = {key for key, paused in changes.items() if not paused}
        return replace(self, paused=(self.paused - resumed) | (changes.keys() - resumed))


class LaneLeases:
    """One member's place among the schedulers, and its lane leases."""

    def __init__(
        self, database: Database, watch: MemberWatch, me: str, address: Callable[[], str], started_at_ms: int
    ) -> None:
        """`address`: returns this member's listening address, once it has one."""
        self._database = database
        self._watch = watch
        self._me = me
        self._address = address
        self._started_at_ms = started_at_ms

    async def tick(self, lanes: Mapping[int, Collection[int]], now_ms: float) -> Tick:
        """Renews this member's place and takes the lanes that are due to it.

        `lanes` are the levels of each shard whose store has answered; `now_ms` is monotonic.

        Raises:
            Unavailable: the database does not answer.
        """
        heartbeats, rows = await self._database.run(lambda session: self._read_rows(session, lanes))
        live, dead = self._watch.observe(heartbeats, now_ms)
        claimed = claims(rows, live, self._me)
        gone = {member: heartbeats[member] for member in dead}
        if claimed or gone:
            rows = await self._database.run(lambda session: self._take(session, claimed, gone))
        paused = frozenset(row.key for row in rows if row.paused)
        unowned = frozenset(row.key for row in rows if row.owner not in live)
        return Tick(frozenset(held(rows, self._me)), paused, frozenset(live), frozenset(dead), unowned)

    async def release(self) -> None:
        """Gives all lanes back and leaves, so that others need not wait for the leases to expire."""
        await self._database.run(self._leave)

    def _read_rows(
        self, session: Session, lanes: Mapping[int, Collection[int]]
    ) -> tuple[dict[str, int], list[LeaseRow]]:
        self._beat(session)
        rows = _rows(session)
        if _correct_lanes(session, {row.key for row in rows}, lanes):
            rows = _rows(session)
        return dict(session.execute(_READ_MEMBERS).all()), rows

    def _beat(self, session: Session) -> None:
        current, first = {"address": self._address()}, {"started_at_ms": self._started_at_ms}
        beat(session, SchedulerModel, self._me, current, first)

    def _take(self, session: Session, claimed: Iterable[LeaseRow], gone: Mapping[str, int]) -> list[LeaseRow]:
        for row in claimed:
            # Updates only rows with the epoch that was read: a faster member has moved others on.
            unchanged = _is_lane(row.key) & (LaneLeaseModel.epoch == row.epoch)
            session.execute(update(LaneLeaseModel).where(unchanged).values(owner=self._me, epoch=row.epoch + 1))
        forget(session, SchedulerModel, gone)
        return _rows(session)

    def _leave(self, session: Session) -> None:
        mine = LaneLeaseModel.owner == self._me
        session.execute(update(LaneLeaseModel).where(mine).values(owner="", epoch=LaneLeaseModel.epoch + 1))
        session.execute(delete(SchedulerModel).where(SchedulerModel.member_id == self._me))


def _is_lane(key: LaneKey) -> Any:
    return (LaneLeaseModel.shard == key[0]) & (LaneLeaseModel.level == key[1])


def _rows(session: Session) -> list[LeaseRow]:
    return [LeaseRow(*row) for row in session.execute(_READ_LEASES)]


def _correct_lanes(session: Session, known: set[LaneKey], lanes: Mapping[int, Collection[int]]) -> bool:
    """Adds rows of new lanes, and deletes those of lanes that their store no longer has. Returns whether any
    changed."""
    actual = {(shard, level) for shard, levels in lanes.items() for level in levels}
    new = actual - known
    if new:
        session.execute(
            insert(LaneLeaseModel),
            [
                {"shard": shard, "level": level, "owner": "", "epoch": 0, "paused": False}
                for shard, level in sorted(new)
            ],
        )
    stale = {key for key in known - actual if key[0] in lanes}
    for key in stale:
        session.execute(delete(LaneLeaseModel).where(_is_lane(key)))
    return bool(new or stale)
