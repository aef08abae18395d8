"""Tasks that run in the process of their sender, on a clock that a test moves: no server, no worker.

A task runs when it is due: at once, inside `send`, or inside `advance`. A task that another one sends runs after it.
Exceptions reach the caller of `send` or `advance`; only `Retry` with a delay makes another attempt.

Occurrences of schedules run inside `advance`, from the beginning of the mode on. Cron expressions are read by the
server's own code, in the distribution `duetime-server`.
"""

import asyncio
import heapq
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from importlib import import_module
from itertools import count
from typing import Any, Protocol

from duetime_format.schedules import ONE, is_late, next_planned

from duetime.client.administering.schedules import ScheduleTimes, times_fields
from duetime.client.consuming.failing import Retry, decision_of
from duetime.client.errors import Closed, InvalidArgument, MessageCancelled
from duetime.client.ids import new_id
from duetime.client.lengths import Length, milliseconds
from duetime.client.message import CancelResult, Message, MessageRef, Receipt, moment, ref_of, to_proto
from duetime.client.view import MessageView
from duetime.v1 import message_pb2, schedules_pb2


class EagerClock(Protocol):
    """A clock that moves by steps, such as the test kit's `FakeClock`."""

    def now_ms(self) -> int: ...

    def move(self, by_ms: float) -> None: ...


class SteppedClock:
    """Starts at the real time, and then stops."""

    def __init__(self) -> None:
        self._now_ms = time.time_ns() // 1_000_000

    def now_ms(self) -> int:
        return self._now_ms

    def move(self, by_ms: float) -> None:
        self._now_ms += round(by_ms)


class EagerMessage(MessageView):
    """A message as its task and middleware see it."""

    __slots__ = ("attempt", "due_at", "planned_at", "since_ms")

    def __init__(
        self,
        message: message_pb2.StoredMessage,
        attempt: int,
        due_at: datetime | None,
        since_ms: int | None = None,
        planned_at: datetime | None = None,
    ) -> None:
        """`since_ms`: when the first of its chain of replacements was sent; None: it takes no part in one.
        `planned_at`: None: it is no occurrence of a schedule."""
        super().__init__(message)
        self.attempt, self.due_at, self.since_ms, self.planned_at = attempt, due_at, since_ms, planned_at

    @property
    def schedule(self) -> str:
        """The name of the schedule that it is an occurrence of; empty: of none."""
        return self.keys[0] if self.planned_at is not None else ""

    def text_of(self, name: bytes) -> str:
        """The value of a property; empty: it has none."""
        return self._message.properties.get(name.decode(), "")

    def again(self, due_ms: int) -> "EagerMessage":
        """The message of the next attempt."""
        return EagerMessage(self._message, self.attempt + 1, moment(due_ms), planned_at=self.planned_at)


class EagerSchedule:
    """A schedule in the eager mode: the message of its occurrences, without an id, and its times."""

    def __init__(self, name: str, message: Message, times: ScheduleTimes) -> None:
        self.name = name
        self.message = message
        self._times = times
        # When an interval began.
        self._start_ms: int | None = None

    def after(self, moment_ms: int) -> int | None:
        """The first time after a moment, Unix ms; None: there is none. An interval counts from the first moment.

        Raises:
            InvalidArgument: the expression or the zone is not understood, or no code here can read them.
        """
        fields = times_fields(self._times)
        if "every" in fields:
            every_ms = int(fields["every"].every_ms)
            self._start_ms = moment_ms if self._start_ms is None else self._start_ms
            return moment_ms - (moment_ms - self._start_ms) % every_ms + every_ms
        try:
            # The client does not depend on the server, whose code has the calendar.
            planning = import_module("duetime_core.planning")
        except ImportError:
            reason = "a cron expression in app.eager() needs the server's code: pip install 'duetime[server]'"
            raise InvalidArgument.of(self.name, reason) from None
        try:
            planned = planning.with_times(schedules_pb2.Schedule(name=self.name, **fields), moment_ms)
            found: int | None = planning.time_after(planned, moment_ms)
        except ValueError as error:
            raise InvalidArgument.of(self.name, str(error)) from error
        return found

    def following(self, planned_ms: int, now_ms: int) -> int | None:
        """The planned time after one that is due now: past times count by the policy for missed ones."""
        return next_planned(self.after, planned_ms, now_ms, self._times.get("missed", ONE))

    def is_missed(self, planned_ms: int, now_ms: int) -> bool:
        """Whether an occurrence is too late to be delivered."""
        return is_late(self._times.get("missed", ONE), planned_ms, now_ms)


class EagerQueue:
    """The tasks that are not due yet; see the module. `call` runs one: its result is awaited if it is a coroutine."""

    def __init__(
        self, call: Callable[[Any], Any], clock: EagerClock | None = None, schedules: Iterable[EagerSchedule] = ()
    ) -> None:
        self._call = call
        self.clock = clock or SteppedClock()
        self._began_ms = self.clock.now_ms()
        self._schedules = {one.name: one for one in schedules}
        # Planned by the first `advance`: other tests do not need the code for it.
        self._unplanned = [*self._schedules.values()]
        self._waiting: list[tuple[int, int, EagerMessage]] = []
        self._numbers = count()
        # Ids of messages that have run, and those of cancelled and replaced ones, by topic and id.
        self._ended: set[str] = set()
        self._withdrawn: dict[tuple[str, str], str] = {}
        # Results of sends by topic and id, for repeated ids.
        self._results: dict[tuple[str, str], message_pb2.SendResult] = {}
        self._runs = False

    @property
    def pending(self) -> list[EagerMessage]:
        """The messages that are not due yet, in order of their due times, without the next occurrences of
        schedules."""
        waiting = sorted(self._waiting, key=lambda one: one[:2])
        return [message for _, _, message in waiting if message.planned_at is None or message.attempt > 1]

    def send(self, message: Message) -> Receipt:
        """Runs the task if it is due, else keeps it."""
        receipt = self._add(message)
        self._run(0)
        return receipt

    async def asend(self, message: Message) -> Receipt:
        """As `send`, in an event loop."""
        receipt = self._add(message)
        await self._run_async(0)
        return receipt

    def advance(self, by: Length) -> None:
        """Moves the clock by "2h" or a timedelta, from due time to due time, and runs the tasks.

        Raises:
            InvalidArgument: a schedule's times can't be computed here; see `EagerSchedule`.
        """
        self._plan_all()
        self._run(milliseconds(by, "by"))

    async def aadvance(self, by: Length) -> None:
        """As `advance`, in an event loop."""
        self._plan_all()
        await self._run_async(milliseconds(by, "by"))

    def cancel(self, message: MessageRef | str) -> CancelResult:
        """See `Task.cancel`."""
        message_id = ref_of(message).message_id
        for one in self._take(lambda one: one.id == message_id):
            self._withdrawn[one.topic, one.id] = "CANCELLED"
        if any(message_id == one for _, one in self._withdrawn):
            return CancelResult.CANCELLED
        return CancelResult.ALREADY_FIRED if message_id in self._ended else CancelResult.NOT_FOUND

    def _add(self, message: Message) -> Receipt:
        wire, now_ms = to_proto(message), self.clock.now_ms()
        if end := self._withdrawn.get((wire.topic, wire.id)):
            text = f"message {wire.id!r} of topic {wire.topic} was {end.lower()} and is never delivered"
            error = MessageCancelled(text, reason="MESSAGE_CANCELLED", message_id=wire.id)
            error.metadata = {"topic": wire.topic, "id": wire.id, "end": end}
            raise error
        if first := self._results.get((wire.topic, wire.id)):
            result = message_pb2.SendResult(duplicate=True)
            result.MergeFrom(first)
            return Receipt(result, wire.topic)
        due_ms = max(wire.deliver_at_ms, now_ms + wire.delay_ms)
        stored = _stored(wire, now_ms)
        result = message_pb2.SendResult(message_id=stored.id)
        since_ms = None
        if wire.replace:
            names, since_ms = (stored.topic, MessageView(stored).keys), now_ms
            for old in self._take(lambda one: one.since_ms is not None and (one.topic, one.keys) == names):
                result.replaced_id, since_ms = old.id, old.since_ms
                self._withdrawn[old.topic, old.id] = "REPLACED"
            if wire.max_wait_ms and since_ms is not None:
                due_ms = min(due_ms, since_ms + wire.max_wait_ms)
        due_at = None
        if due_ms > now_ms or wire.deliver_at_ms:
            result.deliver_at_ms, due_at = due_ms, moment(due_ms)
        self._put(due_ms, EagerMessage(stored, 1, due_at, since_ms))
        if wire.id:
            self._results[wire.topic, wire.id] = result
        return Receipt(result, wire.topic)

    def _plan_all(self) -> None:
        while self._unplanned:
            self._plan(self._unplanned[-1], self._unplanned[-1].after(self._began_ms))
            self._unplanned.pop()

    def _plan(self, schedule: EagerSchedule, planned_ms: int | None) -> None:
        if planned_ms is not None:
            stored = _stored(to_proto(schedule.message), planned_ms)
            stored.keys.append(schedule.name)
            self._put(planned_ms, EagerMessage(stored, 1, moment(planned_ms), planned_at=moment(planned_ms)))

    def _is_missed(self, message: EagerMessage, planned_ms: int) -> bool:
        """Whether it is an occurrence that is not delivered. The next occurrence is planned before each is."""
        schedule = self._schedules.get(message.schedule) if message.attempt == 1 else None
        if schedule is None:
            return False
        now_ms = self.clock.now_ms()
        self._plan(schedule, schedule.following(planned_ms, now_ms))
        return schedule.is_missed(planned_ms, now_ms)

    def _put(self, due_ms: int, message: EagerMessage) -> None:
        heapq.heappush(self._waiting, (due_ms, next(self._numbers), message))

    def _take(self, wanted: Callable[[EagerMessage], bool]) -> list[EagerMessage]:
        taken = [message for _, _, message in self._waiting if wanted(message)]
        self._waiting = [one for one in self._waiting if one[2] not in taken]
        heapq.heapify(self._waiting)
        return taken

    def _due(self, by_ms: int) -> Iterator[EagerMessage]:
        """The messages that are due within a step of the clock. The clock moves to each."""
        if self._runs:
            return  # a task sends: the run of that task continues with this one
        self._runs = True
        end_ms = self.clock.now_ms() + by_ms
        try:
            while self._waiting and self._waiting[0][0] <= end_ms:
                due_ms, _, message = heapq.heappop(self._waiting)
                self._ended.add(message.id)
                self.clock.move(max(due_ms - self.clock.now_ms(), 0))
                if not self._is_missed(message, due_ms):
                    yield message
            self.clock.move(end_ms - self.clock.now_ms())
        finally:
            self._runs = False

    def _run(self, by_ms: int) -> None:
        for message in self._due(by_ms):
            try:
                result = self._call(message)
                if asyncio.iscoroutine(result):
                    _run_in_loop(result)
            except Exception as error:
                self._retry(message, error)

    async def _run_async(self, by_ms: int) -> None:
        for message in self._due(by_ms):
            try:
                result = self._call(message)
                if asyncio.iscoroutine(result):
                    await result
            except Exception as error:
                self._retry(message, error)

    def _retry(self, message: EagerMessage, error: Exception) -> None:
        """Raises: the error, if it is no `Retry` with a delay."""
        decision = decision_of(error)
        if not isinstance(decision, Retry) or decision.after_s is None:
            raise decision
        due_ms = self.clock.now_ms() + round(decision.after_s * 1000)
        self._put(due_ms, message.again(due_ms))


def _stored(wire: message_pb2.Message, born_ms: int) -> message_pb2.StoredMessage:
    """A message as a server would store it."""
    stored = message_pb2.StoredMessage(id=wire.id or new_id(), topic=wire.topic, tags=wire.tags, body=wire.body)
    stored.keys.extend(wire.keys)
    stored.properties.update(wire.properties)
    stored.born_at_ms = born_ms
    return stored


def _run_in_loop(work: Any) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        asyncio.run(work)
        return
    work.close()
    raise Closed("an event loop runs here: await asend(...), or aadvance(...)", reason="RUNNING")
