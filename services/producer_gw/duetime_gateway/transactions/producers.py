"""Groups of producers that have prepared a transaction: rows of the metadata database.

The first Prepare of a group registers it, and the gateway caches it, so later ones need no database. Above the limit
the oldest groups are deleted. Such a group is registered again by its next Prepare, or by a watcher while it has open
transactions.
"""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

import structlog
from duetime_core.clock import Clock
from duetime_core.errors import DueTimeError, Unavailable
from duetime_core.gathering import Gathering
from duetime_core.metadata import Database, ProducerGroupModel
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


class ProducerGroups:
    """Groups by name."""

    def __init__(self, database: Database, clock: Clock, *, groups_max: int = PRODUCER_GROUPS_MAX) -> None:
        self._database = database
        self._groups_max = groups_max
        self._clock = clock
        self._known: set[str] = set()
        self._questions: Gathering[Question, bool] = Gathering(
            "groups of producers", self._answer, clock, round_max=MADE_AT_ONCE, waiting_max=WAITING_MAX
        )

    def start(self, tasks: asyncio.TaskGroup) -> None:
        self._questions.start(tasks)

    def stop(self) -> None:
        self._questions.stop()

    def is_known(self, name: str) -> bool:
        """Whether the group is cached."""
        return name in self._known

    async def ensure(self, name: str, wait_ms: float) -> None:
        """Registers the group.

        Raises:
            Unavailable: the database does not answer, and the group is not cached.
        """
        if name not in self._known:
            await self._ask(Question(name, to_be_made=True), wait_ms)

    async def find(self, name: str, wait_ms: float) -> bool:
        """Whether the group is registered. Raises: Unavailable: as `ensure`."""
        return name in self._known or await self._ask(Question(name, to_be_made=False), wait_ms)

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
        wanted = {one.name for one in questions if one.to_be_made}
        created_at_ms = self._clock.now_ms()

        def work(session: Session) -> tuple[set[str], list[str]]:
            column = ProducerGroupModel.name
            found = set(session.scalars(select(column).where(column.in_(names))))
            return found | wanted, _make(session, sorted(wanted - found), created_at_ms, self._groups_max)

        known, forgotten = await self._database.run(work)
        if forgotten:
            log.warning(
                "producer groups deleted: too many", count=len(forgotten), first=forgotten[0], most=self._groups_max
            )
        if len(self._known) >= 2 * self._groups_max:
            self._known.clear()
        self._known |= known
        return {one: one.name in known for one in questions}


def _make(session: Session, names: Sequence[str], created_at_ms: int, groups_max: int) -> list[str]:
    """Registers groups. Returns the oldest groups, deleted to stay within the limit."""
    if not names:
        return []
    count = session.scalar(select(func.count()).select_from(ProducerGroupModel)) or 0
    forgotten: list[str] = []
    if (excess := count + len(names) - groups_max) > 0:
        oldest = select(ProducerGroupModel.name).order_by(ProducerGroupModel.created_at_ms, ProducerGroupModel.name)
        forgotten = list(session.scalars(oldest.limit(excess)))
        session.execute(delete(ProducerGroupModel).where(ProducerGroupModel.name.in_(forgotten)))
    session.add_all(ProducerGroupModel(name=name, created_at_ms=created_at_ms) for name in names)
    return forgotten
