"""Replace: a record replaces a pending message in one step, which ends that message.

    reschedule    the message's own record, with another due time and maybe another body; it keeps its id
    upsert        another message in the place of the pending one of the same topic and key, if there is one

    look up (in turns) ──▶ judge, and stage the new record, which names the ended entry ──▶ durable ──▶ answer

Judging and staging are one step of the store's only writer. The end is in the new record itself: after any crash both
exist or neither, and one of the two messages is pending.
"""

from collections import Counter
from collections.abc import Sequence
from zlib import crc32

import numpy as np
from duetime.v1 import message_pb2, pending_pb2, store_pb2
from duetime_core.errors import (
    AlreadyExists,
    DataLoss,
    DueTimeError,
    FailedPrecondition,
    IdReused,
    InvalidArgument,
    MessageEnded,
    Unsupported,
    Violation,
)
from duetime_core.rpc.calls import fault_of
from duetime_format import record
from duetime_format.columns import entry_of
from duetime_format.errors import DamagedBytes
from duetime_format.lanes import TIMER_LANE_FIRST, is_timer_lane, lane_of, place_of
from duetime_format.limits import REPLACE_COUNT_MAX, SCHEDULE_BODY_BYTES_MAX
from duetime_format.names import HALF_TOPIC
from duetime_format.properties import decode_properties
from duetime_format.record import Record
from duetime_format.replacing import LATEST_MAX, RequestedDueTime, asked_by, latest_of, replacing, request_of, with_body
from duetime_format.schedules import pending_schedule, schedule_of
from duetime_format.texts import shown
from duetime_format.units import due_of

from duetime_store.lanes.lane import PENDING, RESTORED, ShardLane
from duetime_store.metrics import StoreMetrics
from duetime_store.pending.endnames import EndNamer
from duetime_store.pending.jobs import Job, RescheduleJob, UpsertJob, job_of
from duetime_store.pending.keys import Name, Upsert, UpsertKeys
from duetime_store.pending.sent import is_same_send
from duetime_store.pending.targets import ROUNDS_MAX, Fate, PendingTargets, Place, contended
from duetime_store.reading.turns import ScanTurns
from duetime_store.writing.ended import EndedEntry, UnsureEnd
from duetime_store.writing.ends import replace, state_of
from duetime_store.writing.flusher import Flusher
from duetime_store.writing.occurrences import StagedOccurrence, StagedOccurrences
from duetime_store.writing.repeats import prepared_before
from duetime_store.writing.staging import OK
from duetime_store.writing.store import Store
from duetime_store.writing.visible import FirstCopy

_NAMES = pending_pb2.RescheduleStatus.keys()
RESCHEDULED = pending_pb2.RESCHEDULE_STATUS_RESCHEDULED
ALREADY_FIRED = pending_pb2.RESCHEDULE_STATUS_ALREADY_FIRED
NOT_FOUND = pending_pb2.RESCHEDULE_STATUS_NOT_FOUND

Result = store_pb2.ReplaceResult
# Maximum reschedules of one message followed back to its send.
CHAIN_MAX = 256
_HALF_TOPIC = HALF_TOPIC.encode()


class MessageReplacer:
    """Serves Replace."""

    def __init__(
        self,
        store: Store,
        targets: PendingTargets,
        keys: UpsertKeys,
        flusher: Flusher,
        turns: ScanTurns,
        metrics: StoreMetrics,
        end_names: EndNamer,
    ) -> None:
        self._store = store
        self._lanes = store.lanes
        self._targets = targets
        self._keys = keys
        self._flusher = flusher
        self._turns = turns
        self._metrics = metrics
        self._end_names = end_names
        # Due times of staged, unpublished entries, whose units do not have them yet.
        self._staged: dict[Place, int] = {}
        self._staged_nexts: list[StagedOccurrences] = []
        store.occurrences.note = self.note_occurrence
        store.occurrences.note_next = self.note_next

    async def replace(self, request: store_pb2.ReplaceRequest) -> store_pb2.ReplaceResponse:
        """Performs the replacements of each key and of each message in order; durable on return.

        Raises:
            InvalidArgument: no replacement, or too many.
            ReadOnly, DiskFull, Stalled: the shard takes no sends now.
        """
        if not 1 <= len(request.replacements) <= REPLACE_COUNT_MAX:
            text = f"{len(request.replacements)} are not 1 to {REPLACE_COUNT_MAX}"
            raise InvalidArgument([Violation("replacements", text)])
        self._store.gate.check_send()
        jobs: list[Job | Result] = []
        for one in request.replacements:
            try:
                jobs.append(job_of(one))
            except InvalidArgument as error:
                jobs.append(Result(fault=fault_of(error)))
        await self._targets.find([job.target for job in jobs if isinstance(job, RescheduleJob)])
        try:
            await self._keys.learn([job.name for job in jobs if isinstance(job, UpsertJob)])
        except DueTimeError as error:
            failed = Result(fault=fault_of(error))
            jobs = [failed if isinstance(job, UpsertJob) else job for job in jobs]
        results = await self._work_all(jobs)
        await self._flusher.durable()
        self._count(request.replacements, results)
        return store_pb2.ReplaceResponse(results=results)

    def _count(self, asked: Sequence[store_pb2.Replacement], results: Sequence[Result]) -> None:
        counts = Counter(
            (one.HasField("reschedule"), _label(one, result)) for one, result in zip(asked, results, strict=True)
        )
        for (is_reschedule, label), count in counts.items():
            counter = self._metrics.reschedules if is_reschedule else self._metrics.replaces
            counter.labels(label).inc(count)

    async def _work_all(self, jobs: Sequence[Job | Result]) -> list[Result]:
        """Each round does the jobs that need no other flush first: one flush for all first jobs of their messages and
        keys, one for all second ones, and so on."""
        results = [job if isinstance(job, Result) else Result() for job in jobs]
        left = [(index, job) for index, job in enumerate(jobs) if not isinstance(job, Result)]
        errors: dict[int, DueTimeError] = {}
        while left:
            left, unclear = await self._work_round(left, results, errors)
            try:
                await self._look_again([job for _, job in unclear])
            except DueTimeError as error:
                errors.update((index, error) for index, _ in unclear)
                left = [one for one in left if one[0] not in errors]
        unsure = {index: one for index, one in errors.items() if isinstance(one, UnsureEnd)}
        if unsure:
            await self._flusher.durable()
            for index, named in (await self._end_names.named(unsure)).items():
                again = self._repeated_after_replacement(jobs[index], unsure[index].ended, named)
                if again is None:
                    errors[index] = named
                else:
                    del errors[index]
                    results[index] = again
        for index, fault in errors.items():
            results[index] = Result(fault=fault_of(fault))
        return results

    async def _work_round(
        self, jobs: Sequence[tuple[int, Job]], results: list[Result], errors: dict[int, DueTimeError]
    ) -> tuple[list[tuple[int, Job]], list[tuple[int, Job]]]:
        """The remaining jobs for the next round, in order, and those of them that have to be looked up again."""
        left: list[tuple[int, Job]] = []
        unclear: list[tuple[int, Job]] = []
        held, is_closed = set[Name | str](), False
        with self._turns.walk() as walk:
            walk.start()
            for index, job in jobs:
                # A key's jobs keep their order, and so do a message's. A reschedule may concern any key: it passes no
                # upsert, and no upsert passes it.
                is_closed = is_closed or (bool(unclear) and type(job) is not type(unclear[0][1]))
                if is_closed or not held.isdisjoint(job.names):
                    left.append((index, job))
                    held.update(job.names)
                    continue
                try:
                    result = self._try(job)
                except DueTimeError as error:
                    errors[index] = error
                else:
                    if result is None:
                        left.append((index, job))
                        unclear.append((index, job))
                        held.update(job.names)
                    else:
                        results[index] = result
                await walk.turn_if_over()
        return left, unclear

    def _try(self, job: Job) -> Result | None:
        """The result. None: a lookup has to come first (again)."""
        return self._reschedule(job) if isinstance(job, RescheduleJob) else self._upsert(job)

    async def _look_again(self, jobs: Sequence[Job]) -> None:
        """Raises: as UpsertKeys.learn and PendingTargets.find."""
        upserts = [job for job in jobs if isinstance(job, UpsertJob)]
        targets = [job.target for job in jobs if isinstance(job, RescheduleJob)]
        if targets or any(self._keys.knows(job.name) for job in upserts):
            # The repeated or replaced record is staged, and can be found once it is published.
            await self._flusher.durable()
        if upserts:
            await self._keys.learn([job.name for job in upserts])
        for job in jobs:
            if isinstance(job, RescheduleJob):
                job.target.forget()
                job.rounds += 1
        if targets:
            await self._targets.find(targets)

    # --- reschedules ------------------------------------------------------------------------------------------------

    def _reschedule(self, job: RescheduleJob) -> Result | None:
        target = job.target
        if target.error is not None:
            raise target.error
        (verdict,) = self._targets.judge([target])
        if verdict.fate is Fate.UNCLEAR:
            if job.rounds >= ROUNDS_MAX:
                raise contended(target)
            return None
        if verdict.lane is None:
            done = self._done_before(job) if verdict.fate is Fate.FIRED else None
            return done or Result(status=ALREADY_FIRED if verdict.fate is Fate.FIRED else NOT_FOUND)
        return self._give_due(job, verdict.lane, verdict.entry)

    def _give_due(self, job: RescheduleJob, lane: ShardLane, entry: int) -> Result:
        known = self.read(lane, entry)
        if job.request_id and request_of(known.properties) == job.request_id:
            return _again(lane.number, entry, self._due_at_ms(lane.number, entry), job.asked)
        schedule = pending_schedule(known.properties)
        if schedule is not None and schedule.paused:
            text = f"schedule {shown(schedule.name)} is paused, and delivers nothing until it is resumed"
            raise FailedPrecondition(text, reason="SCHEDULE_PAUSED")
        if job.body is not None and len(job.body) > SCHEDULE_BODY_BYTES_MAX and schedule is not None:
            text = f"{len(job.body)} bytes exceed the limit of a schedule, {SCHEDULE_BODY_BYTES_MAX}"
            raise InvalidArgument([Violation("reschedule.body", text)])
        found = known if job.body is None else with_body(known, job.body)
        due_at_ms = self._due_at_ms(lane.number, entry)
        is_as_asked = not job.asked.is_delay and is_timer_lane(lane.number) and asked_by(known.properties) == job.asked
        if is_as_asked and found.body == known.body:
            # It was carried out before.
            return _again(lane.number, entry, due_at_ms, job.asked)
        latest = latest_of(known.properties)
        properties = decode_properties(known.properties)
        name = properties.get(record.REAL_TOPIC, ""), properties.get(record.KEYS, "")
        return self.put(found, job.asked, (lane.number, entry), latest, name, job.request_id)

    def hasten(self, lane: ShardLane, entry: int) -> message_pb2.Fault | None:
        """Stages the record of a pending entry once more, due now. Returns the fault if it can't; None: it is
        staged."""
        try:
            self.put(self.read(lane, entry), RequestedDueTime(0, is_delay=True), (lane.number, entry), None, ("", ""))
        except DueTimeError as error:
            return fault_of(error)
        return None

    def _done_before(self, job: RescheduleJob) -> Result | None:
        """The answer to a reschedule that was carried out before, and has been restored since; None: it is a new
        one."""
        for copy in job.target.copies or () if job.request_id else ():
            if not copy.lane or state_of(self._lanes, copy.lane, copy.entry) != RESTORED:
                continue
            try:
                known = self.read(self._lanes[copy.lane], copy.entry)
            except DataLoss:
                continue
            if request_of(known.properties) == job.request_id:
                return _again(copy.lane, copy.entry, self._due_at_ms(copy.lane, copy.entry), job.asked)
        return None

    def read(self, lane: ShardLane, entry: int) -> Record:
        """The record of a published entry. Raises: DataLoss."""
        position, size, _ = lane.units(np.array([entry]))[0].item()
        try:
            return record.decode(self._store.read_record(position, size))
        except DamagedBytes as error:
            raise DataLoss(f"entry {entry} of lane {lane.number} can't be read: {error.text}") from error

    # --- upserts ----------------------------------------------------------------------------------------------------

    def _upsert(self, job: UpsertJob) -> Result | None:
        if not self._keys.knows(job.name):
            return None
        old = self._keys.newest(job.name)
        if old is not None and self.is_staged((old.lane, old.entry)):
            # A power cut might lose it and keep the new one, which ends no other: its predecessor would be pending
            # again.
            return None
        if old is not None and state_of(self._lanes, old.lane, old.entry) != PENDING:
            old = None
        if old is not None and old.is_schedule:
            raise name_taken(*job.name, "a schedule has it as its name")
        first = self._store.first_copies(job.intake, [0]).get(0)
        if first is not None:
            return self._repeated(first, job)
        if old is not None and old.message_id == job.message_id:
            # Its send is older than the window of recent ids.
            return self._upserted_before(old.lane, old.entry, job)
        now_ms = self._store.clock.now_ms()
        latest = min(
            now_ms + job.max_wait_ms if job.max_wait_ms else LATEST_MAX,
            LATEST_MAX if old is None else old.latest_due_at_ms,
        )
        asked = job.asked if job.asked.due_at_ms(now_ms) <= latest else RequestedDueTime(latest, is_delay=False)
        place = None if old is None else (old.lane, old.entry)
        result = self.put(job.record, asked, place, latest, job.name)
        result.was_past = not job.asked.is_delay and job.asked.value < result.due_at_ms
        result.replaced_id = "" if old is None else old.message_id
        return result

    def _repeated(self, first: FirstCopy, job: UpsertJob) -> Result | None:
        """The answer to an upsert whose topic and id are known by this record."""
        ended = self._store.repeats.ends.of(first)
        if ended is not None:
            raise ended
        if first.topic == _HALF_TOPIC:
            raise prepared_before(first)
        if first.lane not in self._lanes:
            raise IdReused(*job.name, job.message_id)
        return self._upserted_before(first.lane, first.queue_offset, job)

    def _repeated_after_replacement(self, job: Job | Result, ended: EndedEntry, named: MessageEnded) -> Result | None:
        """The first answer, for a repeat of a send whose message was since replaced. None: another send with that id,
        or the message was cancelled. One send has one content and one time of birth."""
        if not isinstance(job, UpsertJob) or named.metadata["end"] != "REPLACED":
            return None
        try:
            sent, replaced = self._as_sent(ended.lane, ended.entry)
        except DataLoss:
            # It left the log.
            return None
        if sent.born_at_ms != job.record.born_at_ms or not is_same_send(sent, job.record, job.asked):
            return None
        return self._first_answer(ended.lane, ended.entry, job, replaced)

    def _first_answer(self, lane: int, entry: int, job: UpsertJob, replaced: Record | None) -> Result:
        result = _again(lane, entry, self._due_at_ms(lane, entry), job.asked)
        result.replaced_id = "" if replaced is None else _id_of(replaced)
        return result

    def _upserted_before(self, lane: int, entry: int, job: UpsertJob) -> Result | None:
        """The answer to a repeated upsert; None: its record is staged, and can be read once it is published.

        Raises:
            AlreadyExists: the message was sent with another content.
        """
        if self.is_staged((lane, entry)):
            return None
        sent, replaced = self._as_sent(lane, entry)
        if not is_same_send(sent, job.record, job.asked):
            raise IdReused(*job.name, job.message_id)
        return self._first_answer(lane, entry, job, replaced)

    def _as_sent(self, lane: int, entry: int) -> tuple[Record, Record | None]:
        """The record of an upsert as it was sent, before any reschedules, and that of the message that it replaced."""
        found = self.read(self._lanes[lane], entry)
        for _ in range(CHAIN_MAX):
            place = entry_of(found)
            if place is None or place[0] not in self._lanes:
                break
            try:
                before = self.read(self._lanes[place[0]], place[1])
            except DataLoss:
                # It left the log.
                break
            if _id_of(before) != _id_of(found):
                return found, before
            found = before
        return found, None

    # --- both -------------------------------------------------------------------------------------------------------

    def _due_at_ms(self, number: int, entry: int) -> int:
        staged = self._staged_due((number, entry))
        unit = self._lanes[number].units(np.array([entry]))[0]
        return due_of(int(unit["tags"])) if staged is None else staged

    def put(
        self,
        found: Record,
        asked: RequestedDueTime,
        place: Place | None,
        latest: int | None,
        name: Name,
        request_id: str = "",
    ) -> Result:
        """Stages the record, and the end of the entry that it replaces. `latest`: None if its name is no upsert's.

        Raises:
            DueTimeError: the record is rejected.
        """
        topic, queue = place_of(self._lane_for(found))
        entry = None if place is None else (*place, self._due_at_ms(*place))
        try:
            encoded = replacing(found, topic, queue, asked, entry=entry, latest=latest, request_id=request_id)
        except OverflowError as error:
            raise InvalidArgument([Violation("record", "its properties leave no room")]) from error
        outcome = replace(self._store, encoded, place)
        if outcome.statuses != [OK]:
            raise outcome.error_of(0)
        lane = lane_of(topic, queue)
        assert lane is not None
        new, due_at_ms = (lane, outcome.queue_offsets[0]), outcome.due_at_ms[0]
        upsert = None
        if latest is not None:
            upsert = name, Upsert(*new, _id_of(found), latest, schedule_of(found.properties) is not None)
        self._note(new, due_at_ms, upsert, place)
        result = Result(status=RESCHEDULED, lane=lane, entry=new[1], due_at_ms=due_at_ms, stored_bytes=len(found.body))
        result.was_past = not asked.is_delay and asked.value < due_at_ms
        return result

    def _note(self, new: Place, due_at_ms: int, upsert: tuple[Name, Upsert] | None, place: Place | None = None) -> None:
        """Notes a staged entry until its batch is published, and the entry that it replaces."""
        self._staged[new] = due_at_ms
        if place is not None:
            self._targets.replacing.add(place)
        settle_key = None if upsert is None else self._keys.stage(*upsert)

        def settle(durable: bool) -> None:
            self._staged.pop(new, None)
            if place is not None:
                self._targets.replacing.discard(place)
            if settle_key is not None:
                settle_key(durable)

        self._store.staged.settles.append(settle)

    def note_occurrence(self, one: StagedOccurrence) -> None:
        """Notes an occurrence that a restore has staged: no change of its schedule is judged by an older one."""
        newest = Upsert(one.lane, one.entry, one.message_id, LATEST_MAX, is_schedule=True)
        self._note((one.lane, one.entry), one.due_at_ms, ((one.topic, one.name), newest), one.replaced)

    def note_next(self, staged: StagedOccurrences) -> None:
        """As `note_occurrence`, for occurrences that follow restored ones."""
        settle_keys = self._keys.stage_next(staged)
        self._staged_nexts.append(staged)

        def settle(durable: bool) -> None:
            self._staged_nexts.remove(staged)
            settle_keys(durable)

        self._store.staged.settles.append(settle)

    def is_staged(self, place: Place) -> bool:
        """Whether an entry is staged by a replacement, or by a restore, and not published."""
        return self._staged_due(place) is not None

    def _staged_due(self, place: Place) -> int | None:
        """The due time of such an entry."""
        for one in self._staged_nexts:
            if one.lane == place[0] and 0 <= place[1] - one.first < len(one.due_at_ms):
                return one.due_at_ms[place[1] - one.first]
        return self._staged.get(place)

    def _lane_for(self, found: Record) -> int:
        """The lane for any time of a record: the one that it names, or is in already, else by its id. A lane that is no
        longer offered takes no records."""
        own, offered = lane_of(found.topic, found.queue), self._store.timer_lane_count
        if own is not None and TIMER_LANE_FIRST <= own < TIMER_LANE_FIRST + offered:
            return own
        if not offered:
            raise Unsupported([Violation("lane", "this shard has no lane for any time (setting timer_lanes)")])
        return TIMER_LANE_FIRST + crc32(found.properties) % offered


def name_taken(topic: str, key: str, reason: str) -> AlreadyExists:
    """The error for a key that a schedule and a pending message would share."""
    return AlreadyExists(f"key {shown(key)} of topic {topic} is in use: {reason}", reason="KEY_TAKEN")


def _label(asked: store_pb2.Replacement, result: Result) -> str:
    if result.HasField("fault"):
        return "FAULT"
    if result.duplicate:
        return "REPEATED"
    if asked.HasField("reschedule"):
        return _NAMES[result.status].removeprefix("RESCHEDULE_STATUS_")
    return "REPLACED" if result.replaced_id else "FIRST"


def _id_of(found: Record) -> str:
    return decode_properties(found.properties).get(record.UNIQ_KEY, "")


def _again(lane: int, entry: int, due_at_ms: int, asked: RequestedDueTime) -> Result:
    """The answer to a replacement that was carried out before."""
    was_past = not asked.is_delay and asked.value < due_at_ms
    return Result(status=RESCHEDULED, lane=lane, entry=entry, due_at_ms=due_at_ms, was_past=was_past, duplicate=True)
