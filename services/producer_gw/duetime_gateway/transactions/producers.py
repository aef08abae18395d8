"""Groups of producers that have prepared a transaction: rows of the metadata database.

The first Prepare of a group registers it, and the gateway caches it, so later ones need no database. A caller above its
share loses its oldest groups; above the limit the caller with the most does. A deleted group is registered again by its
next Prepare, or by a watcher while it has open transactions.
"""

import asyncio
from collections.abc import Mapping
from heapq import heapify, heapreplace
from typing import NamedTuple

import structlog
from duetime_core.clock import Clock
from duetime_core.errors import DueTimeError, Unavailable
from duetime_core.limits.shares import Shares
from duetime_core.metadata import Database, ProducerGroupModel
from duetime_core.rpc.gathering import QuestionGatherer
from duetime_format.limits import PRODUCER_GROUPS_MAX
from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

log = structlog.get_logger()

# Groups per database transaction, and groups that wait.
MADE_AT_ONCE = 512
WAITING_MAX = 4_096


class Question(NamedTuple):
    """A group to look up, and to register if `to_be_made`."""

    name: str
    to_be_made: bool
    # The caller that asks, and that a new group counts for.
    owner: str


class ProducerGroups:
    """Groups by name."""

    def __init__(self, database: Database, clock: Clock, *, groups_max: int = PRODUCER_GROUPS_MAX) -> None:
        self._database = database
        self._groups_max = groups_max
        self._clock = clock
        self._known: set[str] = set()
        self._questions: QuestionGatherer[Question, bool] = QuestionGatherer(
            "groups of producers",
            self._answer,
            clock,
            round_max=MADE_AT_ONCE,
            waiting_max=WAITING_MAX,
            sharer=lambda question: question.owner,
        )

    def start(self, tasks: asyncio.TaskGroup) -> None:
        self._questions.start(tasks)

    def stop(self) -> None:
        self._questions.stop()

    def is_known(self, name: str) -> bool:
        """Whether the group is cached."""
        return name in self._known

    async def ensure(self, name: str, owner: str, wait_ms: float) -> None:
        """Registers the group; a new one counts for `owner`.

        Raises:
            Overloaded: too many questions wait, in total or of this caller.
            Unavailable: the database does not answer, and the group is not cached.
        """
        if name not in self._known:
            await self._ask(Question(name, to_be_made=True, owner=owner), wait_ms)

    async def find(self, name: str, owner: str, wait_ms: float) -> bool:
        """Whether the group is registered; `owner` asks. Raises: as `ensure`."""
        return name in self._known or await self._ask(Question(name, to_be_made=False, owner=owner), wait_ms)

    async def _ask(self, question: Question, wait_ms: float) -> bool:
        answer = (await self._questions.ask([question], wait_ms)).get(question)
        if answer is None:
            text = f"the metadata database did not find {question.name} within {max(wait_ms, 0):.0f} ms"
            raise Unavailable(text, reason="METADATA_UNAVAILABLE")
        if isinstance(answer, DueTimeError):
            raise answer
        return answer

    async def _answer(self, questions: list[Question]) -> dict[Question, bool | DueTimeError]:
        names = {one.name for one in questions}
        # The first of two different callers decides.
        wanted = {one.name: one.owner for one in reversed(questions) if one.to_be_made}
        created_at_ms = self._clock.now_ms()

        def work(session: Session) -> tuple[set[str], list[str]]:
            column = ProducerGroupModel.name
            found = set(session.scalars(select(column).where(column.in_(names))))
            new = {name: wanted[name] for name in sorted(wanted.keys() - found)}
            return found | new.keys(), _make(session, new, created_at_ms, self._groups_max)

        known, forgotten = await self._database.run(work)
        if forgotten:
            log.warning(
                "producer groups deleted: too many", count=len(forgotten), first=forgotten[0], most=self._groups_max
            )
        if len(self._known) >= 2 * self._groups_max:
            self._known.clear()
        self._known |= known
        return {one: one.name in known for one in questions}


def _make(session: Session, new: Mapping[str, str], created_at_ms: int, groups_max: int) -> list[str]:
    """Registers groups, each for its owner. Returns the groups deleted for them."""
    if not new:
        return []
    shares: Shares[str] = Shares(groups_max)
    for owner, count in session.execute(
        select(ProducerGroupModel.owner, func.count()).group_by(ProducerGroupModel.owner)
    ):
        shares.take(owner, count)
    for owner in new.values():
        shares.take(owner)
    forgotten: list[str] = []
    for owner, count in _losses(shares).items():
        own = select(ProducerGroupModel.name).where(ProducerGroupModel.owner == owner)
        oldest = own.order_by(ProducerGroupModel.created_at_ms, ProducerGroupModel.name).limit(count)
        forgotten += session.scalars(oldest)
    session.execute(delete(ProducerGroupModel).where(ProducerGroupModel.name.in_(forgotten)))
    session.add_all(
        ProducerGroupModel(name=name, owner=owner, created_at_ms=created_at_ms) for name, owner in new.items()
    )
    return forgotten


def _losses(shares: Shares[str]) -> dict[str, int]:
    """The number of groups to delete, by owner: those above its share, then one after the other of the owner with the
    most."""
    holders = shares.holders()
    losses = {owner: max(shares.held(owner) - shares.share, 0) for owner in holders}
    heap = [(losses[owner] - shares.held(owner), owner) for owner in holders]
    heapify(heap)
    for _ in range(shares.used - sum(losses.values()) - shares.limit):
        left, owner = heap[0]
        losses[owner] += 1
        heapreplace(heap, (left + 1, owner))
    return {owner: count for owner, count in losses.items() if count}
