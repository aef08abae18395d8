"""The groups' settings: one row each, read by every gateway and retry service, and cached for a second.

A reader with an older copy reads the row again, while others use the copy. So a change takes effect everywhere within
about a second, a busy group costs one read a second, and known groups remain usable while the database is unavailable.
A slow database delays no caller: after a moment the reader uses the copy too.
"""

from collections.abc import Callable, Iterable

from duetime.v1 import consumer_pb2, message_pb2
from duetime_format.limits import GROUPS_MAX
from sqlalchemy import case, func, select
from sqlalchemy.orm import Session

from duetime_core.clock import Clock
from duetime_core.errors import AlreadyExists, NotFound, Overloaded
from duetime_core.limits.seats import Seats
from duetime_core.metadata.database import Database
from duetime_core.metadata.models import GroupModel
from duetime_core.rpc import group_limits, retry_policy

FRESH_MS = 1_000


class GroupsExhausted(Overloaded):
    """The number of groups is at its limit: delete some."""

    reason = "GROUPS_EXHAUSTED"
    retriable = False


class _CachedGroup:
    """A group as last read, and the time."""

    __slots__ = ("group", "read_at_ms")

    def __init__(self, group: consumer_pb2.Group, read_at_ms: float) -> None:
        self.group = group
        self.read_at_ms = read_at_ms


class GroupTable:
    """Groups by name. Their policies are completed; the object of a group changes only with its settings."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._known: dict[str, _CachedGroup] = {}

    async def find(self, name: str) -> consumer_pb2.Group | None:
        """The group, at most about a second old; None: there is none.

        Raises:
            Unavailable: the database does not answer, and the group is not cached.
        """
        known, now_ms = self._known.get(name), self._clock.monotonic_ms()
        if known is not None:
            if now_ms < known.read_at_ms + FRESH_MS:
                return known.group
            # Other callers need not read it too.
            known.read_at_ms = now_ms
            await self._database.refresh(_reading(name), lambda row: self._note(name, row))
            known = self._known.get(name)
            return None if known is None else known.group
        return self._remember(name, await self._database.run(_reading(name)))

    def _note(self, name: str, row: GroupModel | None) -> None:
        self._remember(name, row)

    async def get(self, name: str) -> consumer_pb2.Group:
        """As `find`. Raises: NotFound, Unavailable."""
        group = await self.find(name)
        if group is None:
            raise _not_found(name)
        return group

    async def ensure(
        self, name: str, owner: str = "", retry: message_pb2.RetryPolicy | None = None
    ) -> consumer_pb2.Group:
        """The group, created with this policy and defaults if missing. Raises: Unavailable, GroupsExhausted."""
        return await self.find(name) or await self._make(consumer_pb2.Group(name=name, retry=retry), owner)

    async def create(self, group: consumer_pb2.Group, owner: str = "") -> consumer_pb2.Group:
        """The group, created now or before. A group that starts LATEST starts at `start_at_ms`, or else now by this
        process's clock. A new one counts for the owner.

        Raises:
            AlreadyExists: it was created with other settings.
            GroupsExhausted: there are too many, or too many of this owner.
            Unavailable: the database does not answer.
        """
        made = await self._make(group, owner)
        different = _differences(made, group)
        if different:
            raise AlreadyExists(f"group {group.name} exists with {different}", reason="GROUP_EXISTS")
        return made

    async def _make(self, group: consumer_pb2.Group, owner: str) -> consumer_pb2.Group:
        created_at_ms = self._clock.now_ms()

        def work(session: Session) -> GroupModel:
            found = session.get(GroupModel, group.name)
            if found is None:
                _check_room(session, owner)
                found = _insert(session, group, created_at_ms, owner)
            return found

        made = self._remember(group.name, await self._database.run(work))
        assert made is not None
        return made

    async def adopt(self, groups: Iterable[consumer_pb2.Group]) -> list[str]:
        """Creates missing groups, up to the limit. Returns their names."""
        wanted = {group.name: group for group in groups}
        created_at_ms = self._clock.now_ms()

        def work(session: Session) -> list[str]:
            missing = sorted(wanted.keys() - set(session.scalars(select(GroupModel.name))))
            missing = missing[: max(0, GROUPS_MAX - _count(session))]
            for name in missing:
                _insert(session, wanted[name], created_at_ms)
            return missing

        return await self._database.run(work) if wanted else []

    async def update(self, name: str, retry: message_pb2.RetryPolicy) -> consumer_pb2.Group:
        """The group with a new policy. Raises: NotFound, Unavailable."""

        def change(row: GroupModel) -> None:
            row.retry = retry_policy.render(retry)

        return await self._change(name, change)

    async def limit(self, name: str, limit: consumer_pb2.GroupLimit) -> consumer_pb2.Group:
        """The group with another limit. Raises: NotFound, Unavailable, GroupLimitsExhausted."""
        now_ms = self._clock.now_ms()
        return await self._set_limits(name, lambda known: group_limits.replaced(known, limit, now_ms))

    async def declare(self, name: str, limits: Iterable[consumer_pb2.GroupLimit]) -> consumer_pb2.Group:
        """The group with these declared limits. Raises: as `limit`."""
        now_ms, found = self._clock.now_ms(), [*limits]
        return await self._set_limits(name, lambda known: group_limits.declared(known, found, now_ms))

    async def pause(self, name: str, pause: consumer_pb2.GroupPause | None) -> consumer_pb2.Group:
        """The group with this pause in all topics; None: without one. Raises: NotFound, Unavailable."""
        now_ms = self._clock.now_ms()
        return await self._set_limits(name, lambda known: group_limits.paused(known, pause, now_ms))

    async def _set_limits(
        self, name: str, changed: Callable[[consumer_pb2.GroupLimits], consumer_pb2.GroupLimits]
    ) -> consumer_pb2.Group:
        def change(row: GroupModel) -> None:
            known = group_limits.known_of(_message(row))
            new = changed(known)
            if new is not known:
                row.limits = group_limits.render(new)

        return await self._change(name, change)

    async def _change(self, name: str, change: Callable[[GroupModel], None]) -> consumer_pb2.Group:
        """The group after a change of its row, which is locked. Raises: as `change`, NotFound, Unavailable."""

        def work(session: Session) -> GroupModel | None:
            row = session.get(GroupModel, name, with_for_update=True)
            if row is not None:
                change(row)
            return row

        group = self._remember(name, await self._database.run(work))
        if group is None:
            raise _not_found(name)
        return group

    async def list(self) -> list[consumer_pb2.Group]:
        """All groups, by name. Raises: Unavailable."""
        query = select(GroupModel).order_by(GroupModel.name)
        return [_message(row) for row in await self._database.run(lambda session: session.scalars(query).all())]

    async def delete(self, name: str) -> None:
        """Idempotent. Raises: Unavailable."""

        def work(session: Session) -> None:
            row = session.get(GroupModel, name)
            if row is not None:
                session.delete(row)

        await self._database.run(work)
        self._known.pop(name, None)

    def _remember(self, name: str, row: GroupModel | None) -> consumer_pb2.Group | None:
        if row is None:
            self._known.pop(name, None)
            return None
        group, known = _message(row), self._known.get(name)
        if known is not None and known.group == group:
            group = known.group
        self._known[name] = _CachedGroup(group, self._clock.monotonic_ms())
        return group


def _reading(name: str) -> Callable[[Session], GroupModel | None]:
    return lambda session: session.get(GroupModel, name)


def _check_room(session: Session, owner: str) -> None:
    """Raises: GroupsExhausted."""
    seats = Seats(GROUPS_MAX, "groups exist", error=GroupsExhausted)
    holder = case((GroupModel.owner == owner, GroupModel.owner), else_="").label("holder")
    for name, count in session.execute(select(holder, func.count()).group_by("holder")):
        seats.hold(name, count)
    seats.check(owner)


def _insert(session: Session, group: consumer_pb2.Group, created_at_ms: int, owner: str = "") -> GroupModel:
    row = GroupModel(
        name=group.name,
        start=group.start,
        start_at_ms=0 if group.start == consumer_pb2.GROUP_START_EARLIEST else group.start_at_ms or created_at_ms,
        ordered=group.ordered,
        retry=retry_policy.render(group.retry),
        created_at_ms=created_at_ms,
        owner=owner,
    )
    session.add(row)
    return row


def _count(session: Session) -> int:
    return session.scalar(select(func.count()).select_from(GroupModel)) or 0


def _message(row: GroupModel) -> consumer_pb2.Group:
    return consumer_pb2.Group(
        name=row.name,
        start=row.start,  # type: ignore[arg-type]
        start_at_ms=row.start_at_ms,
        ordered=row.ordered,
        retry=retry_policy.completed(retry_policy.parse(row.retry)),
        created_at_ms=row.created_at_ms,
        limits=group_limits.parse(row.limits) if row.limits else None,
    )


def _differences(made: consumer_pb2.Group, asked: consumer_pb2.Group) -> str:
    """The settings of `made` that differ from `asked`; empty: none."""
    found = []
    same_moment = asked.start != consumer_pb2.GROUP_START_TIME or made.start_at_ms == asked.start_at_ms
    if made.start != asked.start or not same_moment:
        at = f" {made.start_at_ms}" if made.start == consumer_pb2.GROUP_START_TIME else ""
        found.append(f"start {consumer_pb2.GroupStart.Name(made.start).removeprefix('GROUP_START_')}{at}")
    if made.ordered != asked.ordered:
        found.append(f"ordered {str(made.ordered).lower()}")
    if made.retry != retry_policy.completed(asked.retry):
        found.append(f"retry {retry_policy.render(made.retry)}")
    return ", ".join(found)


def _not_found(name: str) -> NotFound:
    return NotFound(f"group {name} does not exist", reason="GROUP_NOT_FOUND")
