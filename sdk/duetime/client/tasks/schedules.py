"""Schedules of an app's functions: their times, their way to the server, and their leftovers."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import aclosing
from typing import Any, TypedDict, cast

from duetime_format import rates
from duetime_format.limits import SCHEDULE_EVERY_MS_MIN

from duetime.client.administering.schedules import (
    AsyncSchedules,
    FoldPolicy,
    GapPolicy,
    MissedPolicy,
    Schedule,
    ScheduleTimes,
    times_fields,
)
from duetime.client.connection import GatewayConnection
from duetime.client.consuming.consumer import Consumer
from duetime.client.consuming.leases import CALL_TIMEOUT_S
from duetime.client.consuming.logs import log
from duetime.client.errors import (
    AlreadyExists,
    Closed,
    DueTimeError,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    Unauthenticated,
)
from duetime.client.fault_log import FaultLog
from duetime.client.lengths import Length, milliseconds
from duetime.client.message import Message
from duetime.client.retry_policy import Backoff
from duetime.client.tasks.naming import APP
from duetime.client.tasks.task import Task
from duetime.v1 import consumer_pb2

# Schedules of a topic that are searched for those without a function.
SEARCHED_MAX = 4_096


class EverySettings(TypedDict, total=False):
    """The options of `App.every`: those of the times, as in `ScheduleTimes`, and those of `App.task`."""

    zone: str
    missed: MissedPolicy
    in_gap: GapPolicy
    in_fold: FoldPolicy
    topic: str
    name: str
    retry: Backoff
    max_attempts: int
    timeout: Length
    process: bool


def schedule_times(times: Length, settings: EverySettings) -> ScheduleTimes:
    """The times of `App.every`: a text with a space, or with @ before it, is a cron expression, else an interval.

    Raises:
        InvalidArgument: they break a rule that needs no calendar. The server checks expression and zone.
    """
    is_cron = isinstance(times, str) and (" " in times.strip() or times.startswith("@"))
    if unknown := settings.keys() - EverySettings.__annotations__.keys():
        raise TypeError(f"every() has no argument {min(unknown)!r}")
    own = {name: settings[name] for name in ("missed", "zone", "in_gap", "in_fold") if name in settings}
    found = cast("ScheduleTimes", {"cron" if is_cron else "every": times, **own})
    if not is_cron:
        every_ms = milliseconds(times, "every")
        if every_ms < SCHEDULE_EVERY_MS_MIN:
            raise InvalidArgument.of("every", f"{times!r} is below {SCHEDULE_EVERY_MS_MIN} ms")
    times_fields(found)
    return found


def scheduled_message(app: str, task: Task[..., Any]) -> Message:
    """The message of a task's schedule."""
    return Message(task.topic, {}, tags=task.name, properties=task.named({APP: app}))


class SchedulePutter:
    """Puts the schedules of an app's tasks. `client` makes the connection."""

    def __init__(self, app: str, tasks: Iterable[Task[..., Any]], client: Callable[[], AsyncSchedules]) -> None:
        self._app = app
        self._tasks = [*tasks]
        self._client = client

    async def put(self) -> None:
        """Puts each schedule once, and logs those of the app that have no function any more.

        Raises:
            DueTimeError: as `Schedules.put`.
        """
        async with self._client() as client:
            names = set()
            for task in self._tasks:
                if task.options.times is not None:
                    message = scheduled_message(self._app, task)
                    found = await client.put(task.name, message, **task.options.times)
                    names.add((task.topic, task.name))
                    log.info("schedule %s of %s: %s", task.name, task.topic, _state(found))
            for topic in {task.topic for task in self._tasks}:
                await self._warn(client, topic, names)

    async def put_when_reachable(self) -> None:
        """As `put`, again and again until the server takes them.

        Raises:
            DueTimeError: a repetition would not help.
        """
        fault_log = FaultLog("schedules", log)
        while True:
            try:
                await self.put()
            except (InvalidArgument, AlreadyExists, Unauthenticated, PermissionDenied, Closed):
                raise
            except DueTimeError as error:
                await fault_log.pause(error)
            else:
                return

    async def _warn(self, client: AsyncSchedules, topic: str, names: set[tuple[str, str]]) -> None:
        """Logs the schedules of a topic that a former version of the app has put. A user decides about their end."""
        count = 0
        try:
            async with aclosing(client.list(topic)) as found:
                async for one in found:
                    count += 1
                    if one.properties.get(APP) == self._app and (topic, one.name) not in names:
                        command = f"duetime schedules delete {one.name} --topic {topic}"
                        log.warning(
                            "schedule %s of %s has no function any more; to end it: %s", one.name, topic, command
                        )
                    if count == SEARCHED_MAX:
                        return
        except (NotFound, PermissionDenied):
            pass  # nothing was sent to the topic yet, or its schedules are not for this user to see


class TaskConsumer(Consumer):
    """A consumer of tasks that declares their limits before it receives, and puts their schedules, if it has any, while
    it runs. A fault that a repetition would not mend ends it."""

    limits: Sequence[consumer_pb2.GroupLimit] = ()
    schedules: SchedulePutter | None = None

    async def run_async(self) -> None:
        putting = asyncio.get_running_loop().create_task(self._put_schedules())
        try:
            await super().run_async()
        finally:
            putting.cancel()
            await asyncio.gather(putting, return_exceptions=True)

    async def _prepare(self, connection: GatewayConnection, group: consumer_pb2.Group) -> None:
        if [one for one in group.limits.limits if one.declared] != [*self.limits]:
            request = consumer_pb2.DeclareGroupLimitsRequest(name=self.group, limits=self.limits)
            await connection.call("DeclareGroupLimits", request, CALL_TIMEOUT_S)
            log.info("limits of %s: %s", self.group, "; ".join(map(_limit, self.limits)) or "none")

    async def _put_schedules(self) -> None:
        try:
            if self.schedules is not None:
                await self.schedules.put_when_reachable()
        except DueTimeError as error:
            self._fail(error)


def _limit(found: consumer_pb2.GroupLimit) -> str:
    return f"{rates.limit_text(found)} in {found.topic}"


def _state(found: Schedule) -> str:
    if found.paused:
        return f"paused: {found.pause_reason}" if found.pause_reason else "paused"
    return f"next at {found.next_at[0]:%Y-%m-%d %H:%M:%S} UTC" if found.next_at else "ended"
