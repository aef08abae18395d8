"""The certain facts about pending messages, and whether a shard's log, lanes, counts and lists agree (pending_life.py).

An entry of a lane keeps its place for good once it is durable. So facts are kept by place:

    entries      contents of the record at a place, by an answer or after a crash
    gone         how the entry ended: restored, cancelled, replaced
    delivered    the one place from which a message came to its topic

Each message that was answered as sent is in one state: pending at one place, delivered, cancelled, or replaced by
another message.
"""

from copy import deepcopy
from dataclasses import dataclass, field

import numpy as np
from duetime_format import record
from duetime_format.errors import DamagedBytes
from duetime_format.lanes import is_timer_lane, lane_of
from duetime_format.names import CANCELLED_TOPIC, DELETED_TOPIC, PLANS_TOPIC, QUARANTINE_TOPIC, STATE_TOPIC
from duetime_format.properties import decode_properties
from duetime_format.record import Record
from duetime_format.replacing import latest_of
from duetime_format.units import FILLER_SIZE, dues_of
from duetime_store.lanes.lane import CANCELLED, PENDING, RESTORED
from duetime_store.writing.store import Store

MANY = 100_000
Place = tuple[int, int]  # lane, entry


@dataclass(frozen=True, slots=True)
class Seen:
    """Contents of a lane's record."""

    message_id: str
    body: str
    due_at_ms: int
    # The place that the record ends.
    ends: Place | None = None
    # The key of a message sent with `replace`, and its latest due time.
    key: str = ""
    latest_due_at_ms: int = 0


@dataclass
class Found:
    """Contents of a shard."""

    entries: dict[Place, Seen] = field(default_factory=dict)
    states: dict[Place, int] = field(default_factory=dict)
    dues: dict[Place, int] = field(default_factory=dict)
    # Entries whose records were torn before they were answered.
    torn: set[Place] = field(default_factory=set)
    # Id and body by place; both empty if the record was put aside.
    restored: dict[Place, tuple[str, str]] = field(default_factory=dict)
    # Ids of messages that were sent without a delay.
    plain: set[str] = field(default_factory=set)
    # The log's oldest record.
    min_position: int = 0

    @property
    def pending(self) -> dict[Place, Seen | None]:
        places = (place for place, state in self.states.items() if state == PENDING)
        return {place: self.entries.get(place) for place in places}


def body_of(found: Record) -> str:
    """The word that a body repeats."""
    return found.body.split(b".", 1)[0].decode()


def look(store: Store) -> Found:
    """Reads all that the shard has."""
    found = Found(min_position=store.log.min_position)
    for lane in store.lanes:
        entries = np.arange(lane.queue.min_offset, lane.queue.max_offset)
        dues = dues_of(lane.units(entries)["tags"]).tolist()
        for entry, state, due_at_ms in zip(entries.tolist(), lane.states(entries).tolist(), dues, strict=True):
            found.states[lane.number, entry] = state
            found.dues[lane.number, entry] = due_at_ms
    for queue in store.queues.all():
        if queue.topic in (CANCELLED_TOPIC, DELETED_TOPIC, PLANS_TOPIC, STATE_TOPIC):
            continue
        lane = lane_of(queue.topic, queue.queue)
        units = queue.read_at(np.arange(queue.min_offset, queue.max_offset)).tolist()
        for offset, (position, size, _) in enumerate(units, queue.min_offset):
            try:
                one = record.decode(store.read_record(position, size))
            except DamagedBytes:
                if lane is not None and (position >= found.min_position or size == FILLER_SIZE):
                    found.torn.add((lane, offset))
                continue
            assert (one.topic, one.queue, one.queue_offset) == (queue.topic, queue.queue, offset)
            if lane is not None:
                found.entries[lane, offset] = _seen(one, found.dues[lane, offset])
            else:
                _take_delivered(found, one)
    return found


def _seen(one: Record, due_at_ms: int) -> Seen:
    properties = decode_properties(one.properties)
    ends = properties.get(record.LANE_ENTRY, "")
    lane, entry, _ = map(int, ends.split(":")) if ends else (0, 0, 0)
    latest = latest_of(one.properties)
    key = "" if latest is None else properties[record.KEYS]
    return Seen(properties[record.UNIQ_KEY], body_of(one), due_at_ms, (lane, entry) if ends else None, key, latest or 0)


def _take_delivered(found: Found, one: Record) -> None:
    entry = record.find_lane_entry(one.properties)
    if entry is None:
        message_id = decode_properties(one.properties)[record.UNIQ_KEY]
        assert message_id not in found.plain, f"{message_id} is there twice"
        found.plain.add(message_id)
        return
    place, is_aside = entry[:2], one.topic == QUARANTINE_TOPIC
    assert place not in found.restored, f"entry {place} was restored twice"
    assert one.stored_at_ms >= entry[2], f"entry {place} was restored early"
    message_id = "" if is_aside else decode_properties(one.properties)[record.UNIQ_KEY]
    found.restored[place] = message_id, "" if is_aside else body_of(one)


@dataclass
class Truth:
    """The facts (see the module). The life adds answers; `check` adds the outcome of a crash."""

    # A power cut may take records answered since the last flush, and leave later ones.
    loses: bool = False
    entries: dict[Place, Seen] = field(default_factory=dict)
    gone: dict[Place, int] = field(default_factory=dict)
    delivered: dict[str, Place] = field(default_factory=dict)
    # Ids of messages with a delay that were answered as stored, as cancelled, and as fired before.
    sent: set[str] = field(default_factory=set)
    cancelled: set[str] = field(default_factory=set)
    fired: set[str] = field(default_factory=set)
    replaced: set[str] = field(default_factory=set)
    # Cancelled or replaced.
    stopped: set[str] = field(default_factory=set)
    # Those sent without a delay.
    plain: set[str] = field(default_factory=set)
    # Bodies of refused messages.
    refused: set[str] = field(default_factory=set)
    # Messages that calls may have ended or moved since the last check, and the bodies that the calls gave them.
    aimed_at: set[str] = field(default_factory=set)
    bodies: dict[str, set[str]] = field(default_factory=dict)

    def go_back_to(self, certain: "Truth") -> None:
        """Power was cut: answers since `earlier` are uncertain, but refused messages stay unstored."""
        known = deepcopy(certain)
        known.aimed_at |= self.aimed_at | self.cancelled | self.replaced | self.stopped
        known.aimed_at |= {self.entries[place].message_id for place in self.gone.keys() & self.entries.keys()}
        known.refused |= self.refused
        known.bodies = self.bodies
        self.__dict__.update(known.__dict__)

    def check(self, store: Store) -> None:
        found = look(store)
        self._check_places(found)
        self._check_ends(found)
        self._check_delivered(found)
        self._check_messages(found)
        self._check_keys(found)
        lost = self.plain - found.plain
        assert not lost or found.min_position, f"{lost} were answered and are not there"
        self.plain |= found.plain
        self.aimed_at.clear()

    def _check_places(self, found: Found) -> None:
        """Every record that was answered as stored has the answered place."""
        for place, seen in self.entries.items():
            state = found.states.get(place)
            if place in found.entries:
                assert found.entries[place] == seen, f"{place} is {found.entries[place]}, not {seen}"
            else:
                assert place not in found.torn or state != PENDING, f"{place}, {seen}, is torn"
                assert found.min_position, f"{place}, {seen}, is not there"
                assert state in (None, RESTORED, CANCELLED), f"the record of {place}, {seen}, is not there"
            if place in self.gone:
                assert state in (None, self.gone[place]), f"{place}, {seen}, came back: {state}"
            elif state is None:
                raise AssertionError(f"{place}, {seen}, was pending and is not there")
        for place, seen in found.entries.items():
            assert seen.body not in self.refused, f"{place}, {seen}, was refused and is there"
            self.entries[place] = seen

    def _check_ends(self, found: Found) -> None:
        takers: dict[Place, Place] = {}
        for place, seen in found.entries.items():
            if seen.ends is None:
                continue
            assert seen.ends not in takers, f"{place} and {takers[seen.ends]} took the place of {seen.ends}"
            takers[seen.ends] = place
            assert found.states.get(seen.ends) in (None, CANCELLED), f"{seen.ends} and {place} are both there"
            old = self.entries.get(seen.ends)
            if old is None:
                continue
            if old.message_id == seen.message_id:
                assert seen.body in {old.body, *self.bodies.get(seen.message_id, ())}
                assert (seen.key, seen.latest_due_at_ms) == (old.key, old.latest_due_at_ms)
            else:
                assert seen.key == old.key
                assert seen.latest_due_at_ms <= old.latest_due_at_ms
                self.replaced.add(old.message_id)
        for place, state in found.states.items():
            if state != CANCELLED or place in self.gone or place not in self.entries:
                continue
            seen = self.entries[place]
            assert seen.message_id in self.aimed_at, f"{place}, {seen}, has ended, and nobody wanted it"
            self.gone[place] = CANCELLED
            if place not in takers:
                self.cancelled.add(seen.message_id)

    def _check_delivered(self, found: Found) -> None:
        for place, (message_id, body) in found.restored.items():
            assert found.states.get(place) in (None, RESTORED), f"{place} was delivered, and is {found.states[place]}"
            seen = self.entries.get(place)
            if not message_id:
                assert seen is None, f"{place}, {seen}, was put aside"
                continue
            if seen is None and self.loses:
                seen = Seen(message_id, body, 0)
            assert seen is not None, f"{place} was delivered and never sent"
            assert (message_id, body) == (seen.message_id, seen.body), f"{place}, {seen}, was delivered as another"
            before = self.delivered.setdefault(message_id, place)
            assert before == place, f"{message_id} was delivered from {before} and {place}"
        for place, state in found.states.items():
            if state == RESTORED and place in self.entries:
                assert place in self.gone or place in found.restored, f"{place} is not pending, and was not delivered"
                self.gone[place] = RESTORED

    def _check_messages(self, found: Found) -> None:
        """Each message is one thing."""
        places: dict[str, Place] = {}
        for place, seen in found.pending.items():
            if seen is None:
                assert place in found.torn, f"{place} is pending, and has no record"
                continue
            other = places.setdefault(seen.message_id, place)
            assert other == place, f"{seen.message_id} is pending twice, at {other} and {place}"
        self.sent |= {seen.message_id for seen in found.entries.values()}
        assert self.stopped <= self.cancelled | self.replaced, "said to be cancelled"
        assert self.fired <= self.delivered.keys(), "fired, and not delivered"
        for message_id in self.sent:
            fates = [message_id in fate for fate in (places, self.delivered.keys(), self.cancelled, self.replaced)]
            assert sum(fates) == 1, f"{message_id}: pending, delivered, cancelled, replaced are {fates}"

    def _check_keys(self, found: Found) -> None:
        keys = [seen.key for seen in found.pending.values() if seen is not None and seen.key]
        assert len(keys) == len(set(keys)), f"several are pending of one key: {sorted(keys)}"


def check_order(store: Store) -> list[tuple[int, int, int]]:
    """Heads, ranks and numbers of pending entries are those of a sorted list. Returns it: due time, lane, entry."""
    every: list[tuple[int, int, int]] = []
    for lane in store.lanes:
        entries = np.arange(lane.queue.min_offset, lane.queue.max_offset)
        pending = entries[lane.states(entries) == PENDING]
        dues = dues_of(lane.units(pending)["tags"])
        rows = sorted(zip(dues.tolist(), pending.tolist(), strict=True))
        head = lane.head(b"", MANY)
        assert [*zip(dues_of(head.units["tags"]).tolist(), head.entries.tolist(), strict=True)] == rows
        assert lane.pending_count == len(rows)
        for index in {0, len(rows) // 2, len(rows) - 1} if rows else ():
            assert lane.pending_before(rows[index][1]) == index
            by_ms = rows[index][0]
            assert lane.count_due(by_ms) == sum(due <= by_ms for due, _ in rows)
        assert is_timer_lane(lane.number) or [entry for _, entry in rows] == pending.tolist()
        every += [(due, lane.number, entry) for due, entry in rows]
    return sorted(every)
