"""Schedules: put, paused, resumed, deleted, run and shown.

A schedule is its pending occurrence (adr/0077). A change finds that record by topic and name, and stores one that ends
it and has the changed schedule. Judging and staging are one step of the store's only writer, as are a restore and its
next occurrence: a change finds either this occurrence pending, or the next one.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple, TypeVar
from weakref import WeakValueDictionary

import numpy as np
from duetime.v1 import schedules_pb2, store_pb2
from duetime_core.errors import (
    AlreadyExists,
    DataLoss,
    DueTimeError,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    Unavailable,
    Violation,
    refuse,
)
from duetime_core.planning import time_after, times_ahead
from duetime_core.rpc.calls import fault_of
from duetime_format import limits, record
from duetime_format.errors import within
from duetime_format.lanes import is_timer_lane, lane_of
from duetime_format.properties import VALUE_END, as_text, value_of
from duetime_format.record import Record
from duetime_format.replacing import DEFERRAL, LATEST_MAX, TRACING
from duetime_format.schedules import StoredSchedule, occurrence_id, pending_schedule, with_schedule
from duetime_format.texts import shown
from duetime_format.units import dues_of

from duetime_store.lanes.lane import PENDING, RESTORED
from duetime_store.log.intake import parse
from duetime_store.pending.keys import Name, UpsertKeys
from duetime_store.pending.replacing import MessageReplacer, name_taken
from duetime_store.pending.rules import asked_schedule, shown_message, shown_rule
from duetime_store.pending.targets import ROUNDS_MAX, Place
from duetime_store.reading.turns import ScanTurns
from duetime_store.writing.ends import cancel, state_of
from duetime_store.writing.flusher import Flusher
from duetime_store.writing.occurrences import as_occurrence, paused, topic_of
from duetime_store.writing.staging import DUPLICATE, OK
from duetime_store.writing.store import Store

Change = store_pb2.ScheduleChange
Result = TypeVar("Result")
_UNIQ_KEY, _KEYS, _SCHEDULE = (name.encode() for name in (record.UNIQ_KEY, record.KEYS, record.SCHEDULE))
# Properties that differ between the occurrences of one schedule.
_NOT_COMPARED = frozenset((*DEFERRAL, *(name.encode() for name in TRACING), _UNIQ_KEY, _SCHEDULE))


class PendingOccurrence(NamedTuple):
    """The pending occurrence of a schedule."""

    lane: int
    entry: int
    due_at_ms: int
    record: Record
    schedule: StoredSchedule

    @property
    def place(self) -> Place:
        return self.lane, self.entry


class PutOccurrence(NamedTuple):
    """The result of a put."""

    one: PendingOccurrence
    is_new: bool = False
    is_unchanged: bool = False
    # It was the last one, and is delivered.
    is_ended: bool = False


@dataclass(slots=True, eq=False)
class ScheduleJob(Generic[Result]):
    """An act on the pending occurrence of a name; its argument is None if there is none."""

    name: Name
    act: Callable[[PendingOccurrence | None], Result]
    result: Result | None = None
    error: DueTimeError | None = None
    # The place whose end was durable at the last look.
    settled: Place | None = None
    rounds: int = 0
    # Whether `ended` is wanted: the last occurrence, delivered, as long as the log has it.
    looks_back: bool = False
    ended: PendingOccurrence | None = None

    def outcome(self) -> Result:
        """Raises: DueTimeError: that of the act."""
        if self.error is not None:
            raise self.error
        assert self.result is not None, "the act was performed"
        return self.result


class ScheduleKeeper:
    """Serves PutSchedule, PutSchedules and ChangeSchedule."""

    def __init__(
        self,
        store: Store,
        keys: UpsertKeys,
        replacing: MessageReplacer,
        flusher: Flusher,
        turns: ScanTurns,
        *,
        shard: int,
    ) -> None:
        self._store = store
        self._shard = shard
        self._keys = keys
        self._replacing = replacing
        self._flusher = flusher
        self._turns = turns
        # Calls of one name take turns: otherwise each flush would let one pass, and make all others look again.
        self._locks: WeakValueDictionary[Name, asyncio.Lock] = WeakValueDictionary()

    # --- putting ------------------------------------------------------------------------------------------------------

    async def put(self, request: store_pb2.PutStoredScheduleRequest) -> schedules_pb2.PutScheduleResponse:
        """Creates or changes a schedule; durable on return.

        Raises:
            InvalidArgument: a schedule or record that breaks rules.
            AlreadyExists: another has the name, or a pending message its key.
            ReadOnly, DiskFull, Stalled: the shard takes no sends now.
        """
        self._store.gate.check_send()
        job = self._put_job(request)
        await self._do([job])
        await self._flusher.durable()
        return self._put_answer(job.outcome())

    async def put_all(self, request: store_pb2.PutStoredSchedulesRequest) -> schedules_pb2.PutSchedulesResponse:
        """As `put` for each, those of one name in their order; durable on return.

        Raises:
            InvalidArgument: none, or too many.
            ReadOnly, DiskFull, Stalled: the shard takes no sends now.
        """
        refuse(within("puts", len(request.puts), 1, limits.SCHEDULES_PUT_MAX))
        self._store.gate.check_send()
        jobs: list[ScheduleJob[PutOccurrence] | DueTimeError] = []
        answer = schedules_pb2.PutSchedulesResponse()
        with self._turns.walk() as walk:
            walk.start_freely()
            for one in request.puts:
                try:
                    jobs.append(self._put_job(one))
                except DueTimeError as error:
                    jobs.append(error)
                if walk.is_over:
                    await walk.breathe()
        await self._do([job for job in jobs if isinstance(job, ScheduleJob)])
        await self._flusher.durable()
        with self._turns.walk() as walk:
            walk.start_freely()
            for job in jobs:
                answer.results.append(self._put_result(job))
                if walk.is_over:
                    await walk.breathe()
        return answer

    def _put_result(self, job: ScheduleJob[PutOccurrence] | DueTimeError) -> schedules_pb2.PutScheduleResult:
        try:
            if isinstance(job, DueTimeError):
                raise job
            return schedules_pb2.PutScheduleResult(put=self._put_answer(job.outcome(), with_message=False))
        except DueTimeError as error:
            return schedules_pb2.PutScheduleResult(fault=fault_of(error))

    def _put_job(self, request: store_pb2.PutStoredScheduleRequest) -> ScheduleJob[PutOccurrence]:
        """The put of a schedule. Raises: InvalidArgument, or an error of the record."""
        now_ms = self._store.clock.now_ms()
        wanted = asked_schedule(request.schedule, now_ms)
        found = self._asked_record(request.record, wanted.name)
        keeps_start = request.schedule.HasField("every") and not request.schedule.every.start_at_ms
        name = topic_of(found), wanted.name

        def act(old: PendingOccurrence | None) -> PutOccurrence:
            latest = old or job.ended
            if not wanted.planned:
                # It was put before its times passed.
                if latest is not None and _is_same(latest, wanted, found):
                    return PutOccurrence(latest, is_unchanged=True, is_ended=old is None)
                raise InvalidArgument([Violation("schedule.at", "none of its times is ahead")])
            if old is None:
                first = paused(wanted) if request.schedule.paused else wanted
                return PutOccurrence(self._store_next(found, first, None), is_new=True)
            known = old.schedule
            is_kept = keeps_start and known.every_ms == wanted.every_ms
            asked = replace(wanted, start_at_ms=known.start_at_ms) if is_kept else wanted
            is_same_rule = asked.rule == known.rule
            is_same = _is_same(old, asked, found)
            # The times can be computed again: the schedule resumes.
            if is_same and (request.create_only or not known.fault):
                return PutOccurrence(old, is_unchanged=True)
            if request.create_only:
                text = f"topic {name[0]} has another schedule {shown(name[1])}"
                raise AlreadyExists(text, reason="SCHEDULE_EXISTS")
            asked = replace(asked, made_at_ms=known.made_at_ms, seed=known.seed, version=known.version + 1)
            if known.paused and not known.fault:
                asked = paused(asked)
            elif is_same_rule and not known.paused:
                asked = replace(asked, planned=known.planned, after=known.after, moved_from=known.moved_from)
            elif is_kept:
                asked = replace(asked, planned=time_after(asked, now_ms) or asked.planned)
            return PutOccurrence(self._store_next(found, asked, old.place))

        job = ScheduleJob(name, act, looks_back=not wanted.planned)
        return job

    def _put_answer(self, put: PutOccurrence, *, with_message: bool = True) -> schedules_pb2.PutScheduleResponse:
        shown_schedule = self._shown(put.one, 1, with_message=with_message)
        if put.is_ended:
            del shown_schedule.next_at_ms[:]
        return schedules_pb2.PutScheduleResponse(
            schedule=shown_schedule,
            created=put.is_new,
            unchanged=put.is_unchanged,
            stored_bytes=0 if put.is_unchanged else len(put.one.record.body),
        )

    def _asked_record(self, data: bytes, name: str) -> Record:
        """Raises: InvalidArgument."""
        if parse(data).count != 1:
            raise InvalidArgument([Violation("record", "is not one record")])
        found, faults = record.decode(data, check_crc=False), []
        lane = lane_of(found.topic, found.queue)
        if lane is None or not is_timer_lane(lane):
            faults.append(Violation("record", f"goes to queue {found.queue} of {found.topic}, no lane for any time"))
        if as_text(value_of(found.properties, _KEYS)) != name or not topic_of(found):
            faults.append(Violation("record", "has another key than its schedule's name, or no destination"))
        if len(found.body) > limits.SCHEDULE_BODY_BYTES_MAX or 3 * len(data) > self._store.log.record_bytes_max:
            most = min(limits.SCHEDULE_BODY_BYTES_MAX, self._store.log.record_bytes_max // 3)
            text = f"{len(found.body)} bytes are above {most}, the limit of a schedule on this shard"
            faults.append(Violation("schedule.message.body", text))
        if faults:
            raise InvalidArgument(faults)
        return found

    # --- other changes ------------------------------------------------------------------------------------------------

    async def change(self, request: store_pb2.ChangeScheduleRequest) -> store_pb2.ChangeScheduleResponse:
        """Durable on return.

        Raises:
            NotFound: there is no such schedule.
            FailedPrecondition: a paused one has no further time.
            ReadOnly, DiskFull, Stalled: the shard takes no sends now.
        """
        name, change = (request.topic, request.name), request.change
        if change not in (Change.SCHEDULE_CHANGE_UNSPECIFIED, Change.SCHEDULE_CHANGE_DELETE):
            self._store.gate.check_send()
        message_id = ""

        def act(old: PendingOccurrence | None) -> PendingOccurrence:
            nonlocal message_id
            if old is None:
                raise not_found(*name)
            if change == Change.SCHEDULE_CHANGE_PAUSE:
                return self._pause(old)
            if change == Change.SCHEDULE_CHANGE_RESUME:
                return self._resume(old)
            if change == Change.SCHEDULE_CHANGE_DELETE:
                lane = self._store.lanes[old.lane]
                cancel(self._store, [(lane, np.array([old.entry]), np.array([old.due_at_ms]))])
            elif change == Change.SCHEDULE_CHANGE_RUN:
                message_id = self._run(old, request.request_id)
            return old

        job = ScheduleJob(name, act)
        await self._do([job])
        one = job.outcome()
        if change != Change.SCHEDULE_CHANGE_UNSPECIFIED:
            await self._flusher.durable()
        return store_pb2.ChangeScheduleResponse(
            schedule=self._shown(one, request.next_count or 1), message_id=message_id
        )

    def _pause(self, old: PendingOccurrence) -> PendingOccurrence:
        if old.schedule.paused:
            return old
        changed = replace(paused(old.schedule), version=old.schedule.version + 1)
        return self._store_next(old.record, changed, old.place)

    def _resume(self, old: PendingOccurrence) -> PendingOccurrence:
        if not old.schedule.paused:
            return old
        try:
            planned = time_after(old.schedule, self._store.clock.now_ms())
        except ValueError as error:
            raise FailedPrecondition(str(error), reason="SCHEDULE_ENDED") from error
        if planned is None:
            text = f"schedule {shown(old.schedule.name)} has no further time"
            raise FailedPrecondition(text, reason="SCHEDULE_ENDED")
        known = old.schedule
        changed = replace(known, planned=planned, paused=False, fault="", version=known.version + 1)
        return self._store_next(old.record, changed, old.place)

    def _run(self, old: PendingOccurrence, request_id: str) -> str:
        """Stages an additional occurrence in its topic. Returns its id."""
        now_ms, topic = self._store.clock.now_ms(), topic_of(old.record)
        extra = replace(old.schedule, planned=now_ms, paused=False, fault="", extra=True)
        salt = f"run {request_id}" if request_id else f"run {now_ms} {self._store.published_end} {old.entry}"
        # A request repeated after a change of the schedule is the same request.
        named = replace(extra, version=0) if request_id else extra
        message_id = occurrence_id(topic, named, salt)
        properties = with_schedule(_own(old.record), extra, message_id)
        queue = int(value_of(old.record.properties, record.REAL_QID.encode()) or 0)
        sent = replace(
            old.record,
            topic=topic,
            queue=queue,
            properties=record.with_crc_mark(properties),
            born_at_ms=now_ms,
            prepared_transaction_offset=0,
            queue_offset=0,
            position=0,
            stored_at_ms=0,
        )
        outcome = self._store.put(record.encode(sent))
        if outcome.statuses[0] not in (OK, DUPLICATE):
            raise outcome.error_of(0)
        return message_id

    # --- both ---------------------------------------------------------------------------------------------------------

    async def _do(self, jobs: Sequence[ScheduleJob[Any]]) -> None:
        """Performs each act on the pending occurrence of its name, in one step of the writer; those of one name in
        their order. Each round does all that need no other flush first."""
        async with AsyncExitStack() as held:
            # Sorted: two calls that wait for each other's names would never end.
            for name in sorted({job.name for job in jobs}):
                await held.enter_async_context(self._locks.setdefault(name, asyncio.Lock()))
            left = jobs
            while left:
                await self._keys.learn([job.name for job in left])
                left = await self._round(left)
                if left:
                    await self._flusher.durable()

    async def _round(self, jobs: Sequence[ScheduleJob[Any]]) -> list[ScheduleJob[Any]]:
        """The jobs for the next round."""
        left, met = [], set[Name]()
        with self._turns.walk() as walk:
            walk.start_freely()
            for job in jobs:
                if job.name in met or not self._try(job):
                    left.append(job)
                met.add(job.name)
                if walk.is_over:
                    await walk.breathe()
        return left

    def _try(self, job: ScheduleJob[Any]) -> bool:
        """Returns whether the job is done; False: a flush or a look-up has to come first."""
        try:
            return self._act(job)
        except DueTimeError as error:
            job.error = error
            return True

    def _act(self, job: ScheduleJob[Any]) -> bool:
        """As `_try`.

        Raises:
            AlreadyExists: a pending message has the name as its key.
            Unavailable: other calls keep changing the schedule.
        """
        job.rounds += 1
        if job.rounds > ROUNDS_MAX:
            raise Unavailable(f"other calls keep changing schedule {shown(job.name[1])}", reason="CONTENDED")
        if not self._keys.knows(job.name):
            return False
        newest = self._keys.newest(job.name)
        if newest is None:
            job.result = job.act(None)
            return True
        place = newest.lane, newest.entry
        state = state_of(self._store.lanes, *place)
        if self._replacing.is_staged(place) or (state != PENDING and job.settled != place):
            # A power cut might lose it, or its end, and keep a record that relies on it, or contradict an answer.
            job.settled = place
            return False
        one = self._read(place) if state == PENDING else None
        if one is None and state == PENDING:
            raise name_taken(*job.name, "a pending message has it as its key")
        if state == RESTORED and job.looks_back:
            with suppress(DataLoss):
                job.ended = self._read(place)
        job.result = job.act(one)
        return True

    def _read(self, place: Place) -> PendingOccurrence | None:
        """The occurrence in an entry; None: a message of another kind."""
        lane = self._store.lanes[place[0]]
        found = self._replacing.read(lane, place[1])
        schedule = pending_schedule(found.properties)
        due_at_ms = int(dues_of(lane.units(np.array([place[1]]))["tags"])[0])
        return None if schedule is None else PendingOccurrence(*place, due_at_ms, found, schedule)

    def _store_next(self, found: Record, schedule: StoredSchedule, place: Place | None) -> PendingOccurrence:
        """Stages an occurrence, and the end of the one that it replaces."""
        own, asked = as_occurrence(found, schedule, self._store.clock.now_ms())
        if len(own.properties) + limits.SCHEDULE_SPARE_BYTES > limits.PROPERTIES_BYTES_MAX:
            text = f"{len(own.properties)} bytes encoded leave no {limits.SCHEDULE_SPARE_BYTES} bytes"
            raise InvalidArgument([Violation("schedule.message.properties", text)])
        result = self._replacing.put(own, asked, place, LATEST_MAX, (topic_of(found), schedule.name))
        return PendingOccurrence(result.lane, result.entry, result.due_at_ms, own, schedule)

    def _shown(self, one: PendingOccurrence, count: int, *, with_message: bool = True) -> schedules_pb2.Schedule:
        answer = shown_rule(one.schedule)
        if with_message:
            answer.message.CopyFrom(shown_message(one.record))
        answer.shard, answer.lane, answer.entry, answer.due_at_ms = self._shard, one.lane, one.entry, one.due_at_ms
        answer.message_id = as_text(value_of(one.record.properties, _UNIQ_KEY))
        del answer.next_at_ms[:]
        answer.next_at_ms.extend(times_ahead(one.schedule, count))
        return answer


def not_found(topic: str, name: str) -> NotFound:
    """The error for a schedule that does not exist."""
    return NotFound(f"topic {shown(topic)} has no schedule {shown(name)}", reason="SCHEDULE_NOT_FOUND")


def _own(found: Record) -> bytes:
    """The properties of a schedule's record without those of its way."""
    parts = found.properties.split(VALUE_END)
    return VALUE_END.join(part for part in parts if part and part.split(b"\x01", 1)[0] not in DEFERRAL)


def _is_same(known: PendingOccurrence, asked: StoredSchedule, found: Record) -> bool:
    """Whether a put asks for a schedule as it is."""
    old = known.schedule
    return asked.rule == old.rule and asked.missed == old.missed and _content(found) == _content(known.record)


def _content(found: Record) -> tuple[object, ...]:
    """All that makes the message of a schedule."""
    parts = found.properties.split(VALUE_END)
    own = frozenset(part for part in parts if part and part.split(b"\x01", 1)[0] not in _NOT_COMPARED)
    return found.body, found.flag, own
