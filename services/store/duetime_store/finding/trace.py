"""The life of one message, as the shard's log records it.

    its records      prepared, and committed, rolled back or given up; accepted, deferred, restored; copies in
                     %RETRY%group and %DLQ%group; quarantined in DT_QUARANTINE
    DT_CHECKS        of a transaction: the number of checks of its producers
    DT_ATTEMPTS      of the copies: failed deliveries, and their errors
    DT_GROUPS        the journal, from the first possible delivery: received, acknowledged, lapsed, leases that ended

A delivery is identified by its group and the time of receiving; facts from several sources are merged. Nothing is
guessed: parts that were not read, or are no longer stored, are reported as gaps.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from duetime.v1 import consumer_pb2
from duetime_core.errors import NotFound
from duetime_format import attempts as histories
from duetime_format import events, halves, record
from duetime_format.attempts import LEASE_EXPIRED, UNREADABLE, AttemptFailure
from duetime_format.errors import DamagedBytes
from duetime_format.names import (
    CANCELLED_TOPIC,
    CHECKS_TOPIC,
    DLQ_PREFIX,
    GIVEN_UP_TOPIC,
    GROUPS_TOPIC,
    HALF_TOPIC,
    OP_TOPIC,
    QUARANTINE_TOPIC,
    RETRY_PREFIX,
)
from duetime_format.properties import as_text, number_of, value_of
from duetime_format.schedules import has_pause
from duetime_format.units import are_ended, due_of

from duetime_store.finding.check_search import last_check
from duetime_store.finding.end_search import ends_among
from duetime_store.finding.event_search import MessageEvent, message_events
from duetime_store.finding.finder import FoundRecord, MessageFinder
from duetime_store.finding.journals import JournalReading, Journals, Place, view_of
from duetime_store.reading.reader import Reader
from duetime_store.reading.turns import ScanTurns
from duetime_store.writing.store import Store

# Maximum records of one message in a trace, the newest ones.
TRACE_RECORDS_MAX = 1_024

ACCEPTED = consumer_pb2.TRACE_KIND_ACCEPTED
DEFERRED = consumer_pb2.TRACE_KIND_DEFERRED
RESTORED = consumer_pb2.TRACE_KIND_RESTORED
RECEIVED = consumer_pb2.TRACE_KIND_RECEIVED
FAILED = consumer_pb2.TRACE_KIND_FAILED
EXPIRED = consumer_pb2.TRACE_KIND_EXPIRED
ACKNOWLEDGED = consumer_pb2.TRACE_KIND_ACKNOWLEDGED
DEAD = consumer_pb2.TRACE_KIND_DEAD
REDRIVEN = consumer_pb2.TRACE_KIND_REDRIVEN
DISCARDED = consumer_pb2.TRACE_KIND_DISCARDED
QUARANTINED = consumer_pb2.TRACE_KIND_QUARANTINED
CANCELLED = consumer_pb2.TRACE_KIND_CANCELLED
RESCHEDULED = consumer_pb2.TRACE_KIND_RESCHEDULED
REPLACED = consumer_pb2.TRACE_KIND_REPLACED
PREPARED = consumer_pb2.TRACE_KIND_PREPARED
COMMITTED = consumer_pb2.TRACE_KIND_COMMITTED
ROLLED_BACK = consumer_pb2.TRACE_KIND_ROLLED_BACK
GIVEN_UP = consumer_pb2.TRACE_KIND_GIVEN_UP
CHECKED = consumer_pb2.TRACE_KIND_CHECKED
LAPSED = consumer_pb2.TRACE_KIND_LAPSED
# Order of the events of one attempt within one millisecond: as they can happen.
_ORDER = (
    *(PREPARED, CHECKED, ROLLED_BACK, GIVEN_UP, COMMITTED),
    *(ACCEPTED, RESTORED, REDRIVEN, RECEIVED, ACKNOWLEDGED, EXPIRED, FAILED, DEFERRED, RESCHEDULED, DEAD, DISCARDED),
    LAPSED,
    *(CANCELLED, REPLACED, QUARANTINED),
)

# One of them is the first event.
_FIRST = (ACCEPTED, QUARANTINED, PREPARED, COMMITTED)

Event = consumer_pb2.TraceEvent
# Topics without receivers.
_UNREAD = (HALF_TOPIC, GIVEN_UP_TOPIC)
_LANE_ENTRY = record.LANE_ENTRY.encode()


@dataclass(slots=True)
class _Delivery:
    """A delivery to a group; 0: no source has the time."""

    received_at_ms: int = 0
    attempt: int = 0
    place: Place = ("", 0, 0)
    until_ms: int = 0
    # Its end, if known.
    end: int = 0
    ended_at_ms: int = 0
    due_at_ms: int = 0
    error: consumer_pb2.HandlerError | None = None

    def ends(self, kind: int, at_ms: int) -> None:
        """Records its end. The first call counts: histories, which are read first, have more facts than the journal."""
        if not self.end:
            self.end, self.ended_at_ms = kind, at_ms


@dataclass(slots=True)
class _Life:
    """The facts collected so far."""

    shard: int
    events: list[Event] = field(default_factory=list)
    # Deliveries by group, attempt, and time of receiving; if that time is unknown, by the negative lease.
    deliveries: dict[tuple[str, int, int], _Delivery] = field(default_factory=dict)
    # Attempts before a redrive, by place: after it the journal counts from 1 again.
    before: dict[Place, int] = field(default_factory=dict)
    # Deliveries by group, place and lease; None: the lease is a retry service's.
    leases: dict[tuple[str, Place, int], _Delivery | None] = field(default_factory=dict)
    # Copies without their group's errors.
    silent: list[FoundRecord] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)

    def add(self, kind: int, at_ms: int, place: Place, **fields: object) -> None:
        topic, queue, offset = place
        more = {name: value for name, value in fields.items() if value}
        event = Event(kind=kind, at_ms=at_ms, shard=self.shard, topic=topic, queue=queue, offset=offset, **more)  # type: ignore[arg-type]
        self.events.append(event)

    def add_gaps(self, reading: JournalReading, subject: str) -> None:
        if reading.damaged:
            self.gaps.append(f"{reading.damaged} records with {subject} are damaged")
        self.gaps += [f"{subject} {text}" for text in reading.gaps]

    def delivery(self, group: str, received_at_ms: int, attempt: int, place: Place | None = None) -> _Delivery:
        key = (group, attempt, received_at_ms)
        one = self.deliveries.setdefault(key, _Delivery(max(received_at_ms, 0), attempt))
        if place is not None:
            one.place = place
        return one


class MessageTraces:
    """Traces messages. Reads only published records."""

    def __init__(self, store: Store, reader: Reader, finder: MessageFinder, turns: ScanTurns, *, shard: int) -> None:
        self._store = store
        self._log = store.log
        self._queues = store.queues
        self._halves = store.halves
        self._lanes = store.lanes
        self._turns = turns
        self._finder = finder
        self._reader = reader
        self._shard = shard

    async def trace(self, message_id: str, topic: str) -> consumer_pb2.TraceMessageResponse:
        """Events by time; places have this shard's numbers.

        Raises:
            NotFound: the shard has no record of it.
            InvalidArgument, Unavailable, Unsupported: as MessageFinder.get.
        """
        records, more = await self._finder.records_of(message_id, topic, TRACE_RECORDS_MAX)
        if not records:
            raise NotFound(f"no message {message_id} on shard {self._shard}", reason="MESSAGE_NOT_FOUND")
        view = await view_of(self._finder)
        with self._turns.walk() as walk:
            await walk.begin()
            used = self._queues, self._log, self._store.indexed
            journals = Journals(*used, self._reader, self._finder, walk, view)
            life = await self._life(journals, records, more=more)
        life.events.sort(key=_order)
        message_id = records[-1].id or message_id
        return consumer_pb2.TraceMessageResponse(id=message_id, events=life.events, gaps=life.gaps)

    async def _life(self, journals: Journals, records: list[FoundRecord], *, more: bool) -> _Life:
        life = _Life(self._shard)
        if more:
            life.gaps.append(f"the message has more than {TRACE_RECORDS_MAX} records; the oldest are left out")
        for seen in records:
            self._add_record(life, seen)
            await journals.walk.turn_if_over()
        if not more and all(event.kind not in _FIRST for event in life.events):
            life.gaps.append("the record with which it was accepted is no longer stored: retention has deleted it")
        await self._add_checks(journals, life, records)
        await self._add_ends(journals, life, records)
        # No message is received from a lane, so the journal of the time in the lane is not read.
        given = [seen for seen in records if seen.lane is None and seen.record.topic not in _UNREAD]
        if given:
            places = {_place(seen) for seen in given}
            await self._read_journal(journals, life, places, min(seen.record.stored_at_ms for seen in given))
        self._add_deliveries(life)
        return life

    # --- records ----------------------------------------------------------------------------------------------------

    def _add_record(self, life: _Life, seen: FoundRecord) -> None:
        found, place, topic = seen.record, _place(seen), seen.real_topic
        at_ms = found.stored_at_ms
        group = _group_of(topic)
        entry = {"level": seen.entry[0], "due_at_ms": seen.entry[2]} if seen.entry else {}
        if found.topic == QUARANTINE_TOPIC:
            error = consumer_pb2.HandlerError(message=seen.properties.get(record.FAULT, ""))
            life.add(QUARANTINED, at_ms, place, error=error, **entry)
            return
        if found.topic in _UNREAD:
            self._add_half(life, seen, place)
            return
        first = ACCEPTED if halves.commits(found.sys_flag, found.properties) is None else COMMITTED
        copy = {"group": group, "attempt": _attempt_of(seen)} if group else {}
        life.before[place] = _attempt_of(seen) - found.reconsume_times
        if seen.lane is not None:
            is_paused = has_pause(seen.properties.get(record.SCHEDULE, ""))
            due_at_ms, said = self._due_at_ms(seen), {"level": seen.lane, "paused": is_paused, **copy}
            if value_of(found.properties, _LANE_ENTRY) and any(
                event.kind in (ACCEPTED, COMMITTED) for event in life.events
            ):
                life.add(RESCHEDULED, at_ms, place, due_at_ms=due_at_ms, **said)
                return
            self._add_copy(life, seen, group, due_at_ms) if group else life.add(first, at_ms, place)
            life.add(DEFERRED, at_ms, place, due_at_ms=due_at_ms, **said)
        elif seen.entry:
            life.add(RESTORED, at_ms, place, late_ms=at_ms - seen.entry[2], **entry, **copy)
            _note(life, group, _attempts_of(seen), 0)
        elif group:
            self._add_copy(life, seen, group, at_ms)
        else:
            life.add(first, at_ms, place)

    def _add_half(self, life: _Life, seen: FoundRecord, place: Place) -> None:
        """Adds a half message, which brokers append again when they ask, or the copy of one given up."""
        found = seen.record
        said = {"group": halves.group_of(found.properties)}
        if found.topic == GIVEN_UP_TOPIC:
            life.add(GIVEN_UP, found.stored_at_ms, place, checks=halves.checks_of(found.properties), **said)
            return
        if all(event.kind != PREPARED for event in life.events):
            life.add(PREPARED, found.stored_at_ms, place, **said)
        _, _, end = self._halves.published(found.queue_offset)
        if end is not None and end.code == halves.ROLLED_BACK:
            op = self._store.visible_log.record_at(end.position) if end.position >= self._log.min_position else None
            if op is None:
                life.gaps.append("it was rolled back; the record of that is no longer stored")
            else:
                life.add(ROLLED_BACK, op.stored_at_ms, (OP_TOPIC, op.queue, op.queue_offset), **said)

    async def _add_checks(self, journals: Journals, life: _Life, records: Sequence[FoundRecord]) -> None:
        """Adds the number of checks of the newest half message, at the time of the last check."""
        newest = next((seen.record for seen in reversed(records) if seen.record.topic == HALF_TOPIC), None)
        if newest is None:
            return
        offset = newest.queue_offset
        _, _, end = self._halves.published(offset)
        stop = self._log.published_end if end is None else end.position
        reading = journals.reading(CHECKS_TOPIC)
        last = await last_check(reading, offset, newest.stored_at_ms, stop)
        if last is not None:
            place, group = (CHECKS_TOPIC, 0, last.offset), halves.group_of(newest.properties)
            life.add(CHECKED, last.at_ms, place, checks=last.checks, group=group)
        life.add_gaps(reading, "checks of transactions")

    def _due_at_ms(self, seen: FoundRecord) -> int:
        unit = self._queues.find(seen.record.topic, seen.record.queue).read(seen.record.queue_offset, 1)
        return due_of(int(unit["tags"][0])) if len(unit) else 0

    async def _add_ends(self, journals: Journals, life: _Life, records: Sequence[FoundRecord]) -> None:
        """Adds the ends of lane entries that were not restored: the message's newest entry, and those of its copies."""
        own = [seen for seen in records if seen.lane is not None and not _group_of(seen.real_topic)]
        copies = [seen for seen in records if seen.lane is not None and _group_of(seen.real_topic)]
        # A hastened copy has another record: its event is RESCHEDULED.
        followed = {seen.ends[:2] for seen in copies}
        ended = [one for seen in (*own[-1:], *copies) if (one := self._ended(seen)) and one not in followed]
        if not ended:
            return
        by_place = {(seen.lane, seen.record.queue_offset): seen for seen in (*own, *copies)}
        reading = journals.reading(CANCELLED_TOPIC)
        since_ms = min(by_place[one].record.stored_at_ms for one in ended)
        found_at = await ends_among(reading, set(ended), since_ms)
        for one in ended:
            await self._add_end(journals, life, by_place[one], found_at.get(one))
        if len(found_at) < len(ended):
            life.add_gaps(reading, "cancels")

    def _ended(self, seen: FoundRecord) -> tuple[int, int] | None:
        """Lane and entry of a record whose entry ended; None: it did not."""
        number, entry = seen.lane, seen.record.queue_offset
        if number is None or number not in self._lanes:
            return None
        # Staged ends don't count before they are published.
        return (number, entry) if are_ended(self._lanes[number].units(np.array([entry]))["tags"])[0] else None

    async def _add_end(self, journals: Journals, life: _Life, seen: FoundRecord, at_ms: int | None) -> None:
        """Adds the end of an entry. `at_ms`: the time of its cancel; None: no record has it."""
        group, said = _group_of(seen.real_topic), {"level": seen.lane, "due_at_ms": self._due_at_ms(seen)}
        if at_ms is not None:
            copy = {"group": group, "attempt": _attempt_of(seen)} if group else {}
            life.add(DISCARDED if group else CANCELLED, at_ms, _place(seen), **said, **copy)
            return
        successor = await self._finder.successor(journals.walk, seen)
        if successor is not None:
            life.add(REPLACED, successor.record.stored_at_ms, _place(seen), replaced_by_id=successor.id, **said)
        else:
            life.gaps.append("it ended before it was due; the record of that was not found")

    def _add_copy(self, life: _Life, seen: FoundRecord, group: str, due_at_ms: int) -> None:
        """Adds a message in a group's retries or dead letters, and the earlier deliveries that it names."""
        found, place, is_dead = seen.record, _place(seen), seen.real_topic.startswith(DLQ_PREFIX)
        attempts, at_ms = _attempts_of(seen), found.stored_at_ms
        is_redriven = not is_dead and not found.reconsume_times and record.REDRIVEN in seen.properties
        due_at_ms = number_of(seen.properties.get(record.VISIBLE_AT)) or due_at_ms
        if is_dead:
            error = _error_of(attempts[-1]) if attempts else None
            life.add(DEAD, at_ms, place, group=group, attempt=_attempt_of(seen), error=error)
        elif is_redriven:
            life.add(REDRIVEN, at_ms, place, group=group)
        elif not attempts:
            life.silent.append(seen)
        _note(life, group, attempts, 0 if is_dead or is_redriven else due_at_ms)

    # --- the journal ------------------------------------------------------------------------------------------------

    async def _read_journal(self, journals: Journals, life: _Life, places: set[Place], since_ms: int) -> None:
        reading = journals.reading(GROUPS_TOPIC)
        async for found in reading.records(places, since_ms):
            try:
                for one in message_events(found.body, places):
                    self._add_event(life, one, found.stored_at_ms)
            except DamagedBytes:
                reading.damaged += 1
        if reading.is_front_gone:
            life.gaps.append("the first events of groups are no longer stored: retention has deleted them")
        life.add_gaps(reading, "events of groups")

    def _add_event(self, life: _Life, one: MessageEvent, stored_at_ms: int) -> None:
        assert one.key is not None
        group, place = one.key.group, (one.key.queue_topic, one.key.queue, one.offset)
        if one.kind == events.TAKEN:
            life.add(DISCARDED, stored_at_ms, place, group=group)
            return
        if one.kind == events.END and one.lease in (events.SUPERSEDED, events.LAPSED):
            life.add(DISCARDED if one.lease == events.SUPERSEDED else LAPSED, stored_at_ms, place, group=group)
            return
        if one.kind == events.LEFT:
            said = (DISCARDED, *place)
            life.events = [e for e in life.events if (e.kind, e.topic, e.queue, e.offset) != said]
            return
        if one.kind == events.GIVE:
            attempt = one.attempt + life.before.get(place, 0)
            for number, (received, ended) in enumerate(reversed(one.expired), 1):
                life.delivery(group, received, attempt - number, place).ends(EXPIRED, ended)
            delivery = life.delivery(group, one.at_ms, attempt, place) if one.attempt else None
            life.leases[group, place, one.lease] = delivery
            if delivery is not None:
                delivery.until_ms = one.until_ms
            return
        unknown = life.delivery(group, -one.lease, 0, place) if (group, place, one.lease) not in life.leases else None
        delivery = life.leases.get((group, place, one.lease), unknown)
        if delivery is None:
            return
        if one.kind == events.CHANGE:
            delivery.until_ms = one.until_ms
        elif one.kind == events.END and one.lease:
            delivery.ends(ACKNOWLEDGED, stored_at_ms)
        elif one.kind == events.BACK and one.counted:
            delivery.ends(EXPIRED, one.at_ms)
        elif one.kind == events.BACK:
            delivery.until_ms = 0
        elif one.kind == events.DEFER:
            _note(life, group, _attempts(as_text(one.history)), one.until_ms)
            delivery.ends(FAILED, stored_at_ms)
            delivery.due_at_ms = one.until_ms
        elif one.kind == events.SETTLE and self._is_there(one.copy):
            delivery.ends(FAILED, stored_at_ms)

    def _is_there(self, place: Place) -> bool:
        queue = self._queues.known(place[0].encode(), place[1])
        return queue is not None and queue.max_offset > place[2]

    def _add_deliveries(self, life: _Life) -> None:
        now_ms = self._store.clock.now_ms()
        for (group, _, _), one in life.deliveries.items():
            if 0 < one.until_ms <= now_ms:
                one.ends(EXPIRED, one.until_ms)
            said = {"group": group, "attempt": one.attempt}
            if one.received_at_ms:
                life.add(RECEIVED, one.received_at_ms, one.place, **said)
            if one.end:
                due_at_ms = one.due_at_ms if one.end == FAILED else 0
                life.add(one.end, one.ended_at_ms, one.place, due_at_ms=due_at_ms, error=one.error, **said)
        for seen in life.silent:
            group, attempt = _group_of(seen.real_topic), _attempt_of(seen)
            ended = {(of, number) for (of, number, _), one in life.deliveries.items() if one.end}
            if (group, attempt) not in ended:
                # A broker wrote it, or the part of the journal that was read does not reach it.
                life.add(FAILED, seen.record.stored_at_ms, _place(seen), group=group, attempt=attempt)


def _order(event: Event) -> tuple[int, bool, int, int]:
    """By time. A message lapses after its deliveries of the same millisecond."""
    return event.at_ms, event.kind == LAPSED, event.attempt, _ORDER.index(event.kind)


def _note(life: _Life, group: str, attempts: Sequence[AttemptFailure], due_at_ms: int) -> None:
    """Notes failed deliveries; after the last of them the message is redelivered at `due_at_ms`, unless that is 0."""
    for index, one in enumerate(attempts, 1):
        delivery = life.delivery(group, one.received_at_ms, one.number)
        delivery.ends(EXPIRED if one.type == LEASE_EXPIRED else FAILED, one.failed_at_ms)
        # Later copies may have shortened it.
        delivery.error = delivery.error or _error_of(one)
        if index == len(attempts) and due_at_ms:
            delivery.due_at_ms = due_at_ms


def _attempt_of(seen: FoundRecord) -> int:
    """Number of the last failed delivery, counted from the very first: a redrive counts from 1 again, the history does
    not."""
    attempts = _attempts_of(seen)
    return attempts[-1].number if attempts else seen.record.reconsume_times


def _attempts_of(seen: FoundRecord) -> Sequence[AttemptFailure]:
    return _attempts(seen.properties.get(record.ATTEMPTS, ""))


def _attempts(text: str) -> Sequence[AttemptFailure]:
    """The readable attempts of a history."""
    return [one for one in histories.decode(text).attempts if one.type != UNREADABLE] if text else []


def _error_of(attempt: AttemptFailure) -> consumer_pb2.HandlerError:
    return consumer_pb2.HandlerError(type=attempt.type, message=attempt.message or "", trace=attempt.trace or "")


def _place(seen: FoundRecord) -> Place:
    return seen.record.topic, seen.record.queue, seen.record.queue_offset


def _group_of(topic: str) -> str:
    """The group whose retries or dead letters are in the topic; empty: none."""
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if topic.startswith(prefix):
            return topic.removeprefix(prefix)
    return ""
