"""Schedules: each call goes to the one shard that the schedule's name selects, like a message with that key."""

from dataclasses import dataclass, replace
from itertools import pairwise

from duetime.v1 import pending_pb2, schedules_pb2, store_pb2
from duetime_core.clock import Clock
from duetime_core.errors import DueTimeError, InvalidArgument, Violation, refuse
from duetime_core.planning import first_times, rule_violations
from duetime_format import limits
from duetime_format.admission import Draft, schedule_violations, topic_violations
from duetime_format.errors import within
from duetime_format.levels import DELAY_MS_MAX

from duetime_gateway.deadlines import timeout_of
from duetime_gateway.pending.listing import PendingLister
from duetime_gateway.routing.topics import TopicRegistry
from duetime_gateway.sending.drafts import Caller, DraftList
from duetime_gateway.sending.encoding import DraftBatch, Encoder
from duetime_gateway.shards.route import Route
from duetime_gateway.shards.shard import Shard
from duetime_gateway.shards.shards import Shards

Change = store_pb2.ScheduleChange
# Share of a call's time by which a new topic must be known to the shard.
READY_BY = 0.5
_MESSAGE = "schedule.message"
_TIMES_CHECKED = 2


@dataclass(frozen=True, slots=True)
class ScheduleChanges:
    """A requested change of a schedule, or a look at it."""

    topic: str
    name: str
    change: Change = Change.SCHEDULE_CHANGE_UNSPECIFIED
    request_id: str = ""
    next_count: int = 0


class ScheduleRouter:
    """Routes calls about schedules."""

    def __init__(
        self,
        topics: TopicRegistry,
        shards: Shards,
        encoder: Encoder,
        listing: PendingLister,
        clock: Clock,
        *,
        timeout_ms: int,
    ) -> None:
        self._topics = topics
        self._shards = shards
        self._encoder = encoder
        self._listing = listing
        self._clock = clock
        self._timeout_ms = timeout_ms

    async def put(
        self, draft: Draft, request: schedules_pb2.PutScheduleRequest, caller: Caller
    ) -> schedules_pb2.PutScheduleResponse:
        """Creates or changes a schedule. `draft`: its message.

        Raises:
            InvalidArgument: the message or the schedule breaks rules.
            DueTimeError: the topic can't be created, or an error of the shard.
        """
        name = request.schedule.name
        refuse(list(_draft_violations(draft, name)))
        if request.dry_run:
            return _preview(request, self._clock.now_ms())
        timeout_ms = timeout_of(self._timeout_ms, caller.remaining_ms)
        # The shard decides on the due time; the topic's max_delay limits the longest wait.
        own = replace(
            draft, keys=[name], replace=True, delay_ms=_longest_wait_ms(request.schedule, self._clock.now_ms())
        )
        kind = request.schedule.WhichOneof("times") or "times"
        shard, record = await self._encoded(own, kind, caller, timeout_ms)
        asked = store_pb2.PutStoredScheduleRequest(record=record, create_only=request.create_only)
        asked.schedule.CopyFrom(request.schedule)
        asked.schedule.ClearField("message")
        answer: schedules_pb2.PutScheduleResponse = await shard.store.ask("PutSchedule", asked, timeout_ms)
        return answer

    async def _encoded(self, draft: Draft, kind: str, caller: Caller, timeout_ms: float) -> tuple[Shard, bytes]:
        """The shard of the draft, and its record."""
        routes = await self._topics.routes_to_write([draft.topic], timeout_ms * READY_BY, caller.sharer)
        batch = DraftBatch(DraftList([draft]), self._clock.now_ms(), caller.host)
        self._encoder.encode(batch, [0], routes)
        if batch.unready:
            ((_, number),) = batch.unready
            batch.unready.clear()
            route = routes[draft.topic]
            assert isinstance(route, Route), "a draft without a route has a fault"
            (error,) = (await self._shards.get(number).all_ready([route], timeout_ms * READY_BY)).values()
            if error is not None:
                raise error
            self._encoder.encode(batch, [0], routes)
        if 0 in batch.faults:
            raise _about_message(batch.faults[0], kind)
        ((number, group),) = batch.replacing.items()
        return self._shards.get(number), group.records[0]

    async def change(self, asked: ScheduleChanges, remaining_ms: float | None) -> store_pb2.ChangeScheduleResponse:
        """Changes a schedule, or reads it.

        Raises:
            NotFound: no such topic or schedule.
            DueTimeError: an error of the shard.
        """
        found = [*schedule_violations("name", asked.name), *topic_violations("topic", asked.topic)]
        found += within("next_count", asked.next_count, 0, limits.SCHEDULE_NEXT_MAX)
        named = asked.request_id
        if named and not (len(named) <= limits.REQUEST_ID_CHARS_MAX and named.isascii() and named.isalnum()):
            text = f"{len(named)} characters are not 1 to {limits.REQUEST_ID_CHARS_MAX} letters and digits"
            found.append(Violation("request_id", text))
        refuse(found)
        route = await self._topics.route_to_read(asked.topic)
        number, _ = route.places[route.choose_for_key(asked.name)]
        request = store_pb2.ChangeScheduleRequest(
            topic=asked.topic,
            name=asked.name,
            change=asked.change,
            request_id=asked.request_id,
            next_count=asked.next_count,
        )
        timeout_ms = timeout_of(self._timeout_ms, remaining_ms)
        answer: store_pb2.ChangeScheduleResponse = await self._shards.get(number).store.ask(
            "ChangeSchedule", request, timeout_ms
        )
        return answer

    async def page(
        self, request: schedules_pb2.ListSchedulesRequest, remaining_ms: float | None
    ) -> schedules_pb2.ListSchedulesResponse:
        """A page of a topic's schedules. Raises: as PendingLister.page."""
        refuse(list(topic_violations("topic", request.topic)))
        asked = pending_pb2.ListPendingRequest(
            filter=pending_pb2.PendingFilter(topic=request.topic),
            max_count=request.max_count,
            page_token=request.page_token,
            omit_bodies=request.omit_bodies,
            schedules_only=True,
        )
        found = await self._listing.page(asked, remaining_ms)
        schedules = [listed(one) for one in found.messages]
        return schedules_pb2.ListSchedulesResponse(schedules=schedules, next_page_token=found.next_page_token)


def listed(one: pending_pb2.PendingMessage) -> schedules_pb2.Schedule:
    """The schedule of a pending occurrence, with its message."""
    schedule, found = one.schedule, one.message
    message = schedule.message
    message.topic, message.body, message.tags, message.flag = found.topic, found.body, found.tags, found.flag
    message.properties.update(found.properties)
    schedule.due_at_ms, schedule.message_id = found.due_at_ms, found.id
    schedule.shard, schedule.lane, schedule.entry = one.shard, one.lane, found.offset
    return schedule


def _draft_violations(draft: Draft, name: str) -> list[Violation]:
    """Violations of a schedule's name, and of fields that its message must not have."""
    found = list(schedule_violations("schedule.name", name))
    set_fields = {
        "keys": bool(draft.keys),
        "sharding_key": bool(draft.sharding_key),
        "queue": draft.queue is not None,
        "delay_level": draft.delay_level != 0,
        "delay_ms": draft.delay_ms != 0,
        "deliver_at_ms": draft.deliver_at_ms is not None,
        "id": bool(draft.id),
        "born_at_ms": draft.born_at_ms != 0,
        "replace": draft.replace,
        "max_wait_ms": draft.max_wait_ms != 0,
        "priority": draft.priority is not None,
        "lite_topic": bool(draft.lite_topic),
    }
    found += [
        Violation(f"{_MESSAGE}.{field}", "is set: the schedule decides it")
        for field, is_set in set_fields.items()
        if is_set
    ]
    if len(draft.body) > limits.SCHEDULE_BODY_BYTES_MAX:
        text = f"{len(draft.body)} bytes exceed the limit of a schedule, {limits.SCHEDULE_BODY_BYTES_MAX}"
        found.append(Violation(f"{_MESSAGE}.body", text))
    return found


def _preview(request: schedules_pb2.PutScheduleRequest, now_ms: int) -> schedules_pb2.PutScheduleResponse:
    """The answer to a dry run. Raises: InvalidArgument."""
    schedule, kind = request.schedule, request.schedule.WhichOneof("times")
    violations = [*topic_violations("schedule.message.topic", schedule.message.topic), *rule_violations(schedule)]
    violations += within("next_count", request.next_count, 0, limits.SCHEDULE_NEXT_MAX)
    refuse(violations)
    answer = schedules_pb2.PutScheduleResponse(schedule=schedule)
    try:
        times = first_times(schedule, now_ms, request.next_count or 1)
    except ValueError as error:
        raise InvalidArgument([Violation("schedule.cron", str(error))]) from error
    if not times:
        raise InvalidArgument([Violation(f"schedule.{kind}", "none of its times is ahead")])
    answer.schedule.next_at_ms.extend(times)
    return answer


def _longest_wait_ms(schedule: schedules_pb2.Schedule, now_ms: int) -> int:
    """The longest time between now and the first two occurrences, or all listed ones: those that a cron expression has
    later are similar. 1: the shard rejects the times."""
    count = limits.SCHEDULE_TIMES_MAX if schedule.HasField("at") else _TIMES_CHECKED
    try:
        times = first_times(schedule, now_ms, count)
    except (KeyError, ValueError, OverflowError):
        return 1
    return min(max((later - at for at, later in pairwise([now_ms, *times])), default=1), DELAY_MS_MAX)


def _about_message(error: DueTimeError, kind: str) -> DueTimeError:
    """The error with its fields within the schedule. `kind`: the field of the times, which decide the delay."""
    if type(error) is not InvalidArgument:
        return error
    names = {"delay_ms": f"schedule.{kind}"}
    found = [Violation(names.get(one.field, f"{_MESSAGE}.{one.field}"), one.description) for one in error.violations]
    return InvalidArgument(found, reason=error.reason)
