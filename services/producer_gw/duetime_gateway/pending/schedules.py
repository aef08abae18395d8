"""Schedules: each call goes to the one shard that the schedule's name selects, like a message with that key."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, starmap

from duetime.v1 import pending_pb2, schedules_pb2, store_pb2
from duetime_core.clock import Clock, turn
from duetime_core.errors import DueTimeError, InvalidArgument, Violation, refuse
from duetime_core.planning import first_times, rule_violations
from duetime_core.rpc.calls import fault_of
from duetime_format import limits
from duetime_format.admission import Draft, schedule_violations, topic_violations
from duetime_format.errors import within
from duetime_format.levels import DELAY_MS_MAX

from duetime_gateway.deadlines import timeout_of
from duetime_gateway.pending.listing import PendingLister
from duetime_gateway.routing.topics import TopicRegistry
from duetime_gateway.sending.drafts import Caller, DraftList
from duetime_gateway.sending.encoding import DraftBatch, RecordGroup
from duetime_gateway.sending.permitted import faults_of, tell_refused
from duetime_gateway.sending.sender import STEP_S, Sender
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
        sender: Sender,
        listing: PendingLister,
        clock: Clock,
        *,
        timeout_ms: int,
    ) -> None:
        self._topics = topics
        self._shards = shards
        self._sender = sender
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
        refuse(list(_draft_violations(draft, request.schedule.name)))
        if request.dry_run:
            return _preview(request, self._clock.now_ms())
        timeout_ms = timeout_of(self._timeout_ms, caller.remaining_ms)
        batch = await self._encoded([draft], [request], caller, timeout_ms)
        if 0 in batch.faults:
            raise _about_message(batch.faults[0], request.schedule)
        ((number, group),) = batch.replacing.items()
        asked = _stored(request, group.records[0])
        answer: schedules_pb2.PutScheduleResponse
        answer = await self._shards.get(number).store.ask("PutSchedule", asked, timeout_ms)
        return answer

    async def put_all(
        self, drafts: Sequence[Draft], request: schedules_pb2.PutSchedulesRequest, caller: Caller
    ) -> schedules_pb2.PutSchedulesResponse:
        """As `put` for each, with one call of each shard. `drafts`: their messages.

        Raises:
            InvalidArgument: none, too many or too large ones, or a dry run. Other errors, such as a missing right, are
                faults of single ones.
        """
        puts, size = request.puts, request.ByteSize()
        found = list(within("puts", len(puts), 1, limits.SCHEDULES_PUT_MAX))
        if size > limits.SCHEDULES_PUT_BYTES_MAX:
            found.append(Violation("puts", f"{size} bytes exceed the limit of {limits.SCHEDULES_PUT_BYTES_MAX}"))
        if any(one.dry_run for one in puts):
            found.append(Violation("puts.dry_run", "is set: PutSchedule has it"))
        refuse(found)
        timeout_ms = timeout_of(self._timeout_ms, caller.remaining_ms)
        results: dict[int, schedules_pb2.PutScheduleResult | DueTimeError] = {}
        valid: list[int] = []
        denied = faults_of(caller.access, {draft.topic for draft in drafts})
        tell_refused(denied)
        for index, (draft, one) in enumerate(zip(drafts, puts, strict=True)):
            if draft.topic in denied:
                results[index] = denied[draft.topic]
            elif violations := list(_draft_violations(draft, one.schedule.name)):
                results[index] = InvalidArgument(violations)
            else:
                valid.append(index)
        batch = await self._encoded([drafts[at] for at in valid], [puts[at] for at in valid], caller, timeout_ms)
        for at, error in batch.faults.items():
            results[valid[at]] = _about_message(error, puts[valid[at]].schedule)

        async def put(number: int, group: RecordGroup) -> None:
            places = [valid[at] for at in group.indices]
            stored = [_stored(puts[at], record) for at, record in zip(places, group.records, strict=True)]
            asked = store_pb2.PutStoredSchedulesRequest(puts=stored)
            try:
                answer = await self._shards.get(number).store.ask("PutSchedules", asked, timeout_ms)
            except DueTimeError as error:
                results.update(dict.fromkeys(places, error))
            else:
                results.update(zip(places, answer.results, strict=True))

        await asyncio.gather(*starmap(put, batch.replacing.items()))
        ordered = [results[index] for index in range(len(puts))]
        return schedules_pb2.PutSchedulesResponse(results=map(_result, ordered))

    async def _encoded(
        self,
        drafts: Sequence[Draft],
        puts: Sequence[schedules_pb2.PutScheduleRequest],
        caller: Caller,
        timeout_ms: float,
    ) -> DraftBatch:
        """The batch with each draft in the group of its shard, or among the faults."""
        now_ms = self._clock.now_ms()
        # The shard decides on the due time; the topic's max_delay limits the longest wait.
        own: list[Draft] = []
        began_s = time.perf_counter()
        for draft, one in zip(drafts, puts, strict=True):
            wait_ms = _longest_wait_ms(one.schedule, now_ms)
            own.append(replace(draft, keys=[one.schedule.name], replace=True, delay_ms=wait_ms))
            if time.perf_counter() - began_s > STEP_S:
                await turn()
                began_s = time.perf_counter()
        known_by_ms = self._clock.monotonic_ms() + timeout_ms * READY_BY
        batch = DraftBatch(DraftList(own), now_ms, caller.host)
        routes = await self._topics.routes_to_write(batch.drafts.topics(), timeout_ms * READY_BY, caller.sharer)
        await self._sender.encode(batch, range(len(own)), routes, known_by_ms)
        return batch

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


def _about_message(error: DueTimeError, schedule: schedules_pb2.Schedule) -> DueTimeError:
    """The error with its fields within the schedule, whose times decide the delay."""
    if type(error) is not InvalidArgument:
        return error
    names = {"delay_ms": f"schedule.{schedule.WhichOneof('times') or 'times'}"}
    found = [Violation(names.get(one.field, f"{_MESSAGE}.{one.field}"), one.description) for one in error.violations]
    return InvalidArgument(found, reason=error.reason)


def _result(found: schedules_pb2.PutScheduleResult | DueTimeError) -> schedules_pb2.PutScheduleResult:
    return schedules_pb2.PutScheduleResult(fault=fault_of(found)) if isinstance(found, DueTimeError) else found


def _stored(request: schedules_pb2.PutScheduleRequest, record: bytes) -> store_pb2.PutStoredScheduleRequest:
    """The put as stores take it."""
    asked = store_pb2.PutStoredScheduleRequest(record=record, create_only=request.create_only)
    asked.schedule.CopyFrom(request.schedule)
    asked.schedule.ClearField("message")
    return asked
