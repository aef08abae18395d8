"""Announces groups to a store: for RocketMQ's groups file, and for receives that wait while a limit changes."""

import asyncio
from functools import partial

from duetime.v1 import consumer_pb2
from duetime_core.clock import Clock
from duetime_core.errors import DueTimeError
from duetime_core.rpc.gathering import QuestionGatherer
from duetime_core.telemetry.defects import outcome
from duetime_core.telemetry.logs import sparing

from duetime_gateway.shards.client import StoreClient

# Logger for errors that callers can trigger.
log = sparing()

# Groups announced together, by concurrent calls: few enough to keep the store's turns short.
ROUND_MAX = 256
WAITING_MAX = 65_536


class GroupAnnouncer:
    """Keeps one store's groups up to date. A failed announcement is logged, and retried when the group changes or is
    used while the store answers."""

    def __init__(self, shard: int, store: StoreClient, clock: Clock, tasks: asyncio.TaskGroup) -> None:
        self._shard = shard
        self._store = store
        self._tasks = tasks
        self._stopped = False
        # Announced groups and those being announced, by name.
        self._groups: dict[str, consumer_pb2.Group] = {}
        self._rounds: QuestionGatherer[str, consumer_pb2.Group | None] = QuestionGatherer(
            f"groups to be announced to shard {shard}", self._put, clock, round_max=ROUND_MAX, waiting_max=WAITING_MAX
        )

    def start(self) -> None:
        self._rounds.start(self._tasks)

    def stop(self) -> None:
        self._stopped = True
        self._rounds.stop()

    def lose(self) -> None:
        """Forgets all announcements: the store may restart without the groups."""
        self._groups.clear()

    def announce(self, group: consumer_pb2.Group) -> None:
        """Announces the group in the background."""
        if not self._stopped and not self._is_current(group):
            self._groups[group.name] = group
            self._tasks.create_task(self._announce(group))

    async def announced(self, group: consumer_pb2.Group) -> None:
        """Announces the group, and returns when the store has answered or failed."""
        if not self._stopped:
            self._groups[group.name] = group
            await self._announce(group)

    def _is_current(self, group: consumer_pb2.Group) -> bool:
        return self._groups.get(group.name) is group

    async def _announce(self, group: consumer_pb2.Group) -> None:
        announced: consumer_pb2.Group | DueTimeError | None = None
        while self._is_current(group) and announced is not group:
            # A running round may have announced an older version.
            announced = (await self._rounds.ask([group.name]))[group.name]
            if isinstance(announced, DueTimeError):
                log.warning(
                    "cannot announce a group to a shard", shard=self._shard, group=group.name, why=announced.text
                )
                if announced.retriable and self._is_current(group):
                    del self._groups[group.name]
                return

    async def _put(self, names: list[str]) -> dict[str, consumer_pb2.Group | DueTimeError | None]:
        """The announced group of each name; None: it was deleted meanwhile."""
        groups = [group for name in names if (group := self._groups.get(name)) is not None]
        answers = await asyncio.gather(
            *(outcome(partial(self._store.ask, "PutGroup", group), "PutGroup") for group in groups)
        )
        found: dict[str, consumer_pb2.Group | DueTimeError | None] = dict.fromkeys(names)
        for group, (_, error) in zip(groups, answers, strict=True):
            found[group.name] = group if error is None else error
        return found

    async def forget(self, name: str) -> None:
        """Deletes a group at the store, even if it is in use. Raises: DueTimeError."""
        if self._groups.pop(name, None) is not None:
            # A running announcement must finish first.
            await self._rounds.ask([name])
        await self._store.ask("DeleteGroup", consumer_pb2.DeleteGroupRequest(name=name, force=True))
