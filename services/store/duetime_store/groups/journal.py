"""The journal of groups: what is written into records of the log (group_events.py), and what they do at a start."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from duetime_core.ondisk.gone import GoneLetters
from duetime_format.errors import Damaged
from duetime_format.events import (
    BACK,
    BACK_FIELDS,
    CHANGE,
    CHANGE_FIELDS,
    DEFER,
    DEFER_FIELDS,
    DELETE,
    END,
    END_FIELDS,
    EVENT_FIELDS,
    GIVE,
    GIVE_FIELDS,
    HEAD_FIELDS,
    HIDE,
    HIDE_FIELDS,
    LEFT,
    LETTER,
    LETTER_FIELDS,
    ORDERED_FLAG,
    PAIR_FIELDS,
    PLACE_FIELDS,
    RESET,
    RESET_FIELDS,
    SCAN,
    SCAN_FIELDS,
    SETTLE,
    SETTLE_FIELDS,
    TAKEN,
    TAKEN_FIELDS,
    TAKEN_FLAG,
    VERSION,
    Key,
    Letter,
    events_in,
    keys_of,
    letters_of,
    offsets_of,
    ranges,
    reading,
)
from duetime_format.names import GROUPS_TOPIC
from duetime_format.record import Record, encode, with_crc_mark

from duetime_store.groups.state import Lease, Pairs, Place, Progress

# Bytes of events in one record; it has one event at least.
RECORD_BYTES = 256 * 1024


@dataclass(slots=True)
class Event:
    """One event, and the place that it names; None: it names none."""

    kind: int
    payload: bytes
    place: Place | None = None


class Journal:
    """Events that are not staged yet, and who waits for them."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.waiters: list[asyncio.Future[None]] = []
        self.bytes = 0

    # --- writing ----------------------------------------------------------------------------------------------------

    def _add(self, kind: int, payload: bytes, place: Place | None = None) -> None:
        self.events.append(Event(kind, payload, place))
        self.bytes += len(payload)

    def give(
        self, lease: Lease, offsets: list[int], until_ms: int, attempt: int, before: int, after: int, expired: Pairs
    ) -> None:
        flags = ORDERED_FLAG * lease.ordered | TAKEN_FLAG * lease.is_taken
        place, received = lease.place, lease.received_at_ms
        fixed = (place.number, lease.id, received, until_ms, lease.max_attempts, flags, attempt, before, after)
        head = GIVE_FIELDS.pack(*fixed, len(expired))
        if expired:
            head += b"".join([PAIR_FIELDS.pack(*pair) for pair in expired])
        self._add(GIVE, head + ranges(offsets), place)

    def end(self, place: Place, lease_id: int, offsets: list[int]) -> None:
        self._add(END, END_FIELDS.pack(place.number, lease_id) + ranges(offsets), place)

    def change(self, place: Place, lease_id: int, offsets: list[int], until_ms: int) -> None:
        self._add(CHANGE, CHANGE_FIELDS.pack(place.number, lease_id, until_ms) + ranges(offsets), place)

    def back(self, place: Place, lease_id: int, offsets: list[int], ended_at_ms: int, *, counted: bool) -> None:
        self._add(BACK, BACK_FIELDS.pack(place.number, lease_id, ended_at_ms, counted) + ranges(offsets), place)

    def defer(self, place: Place, lease_id: int, offset: int, until_ms: int, history: bytes) -> None:
        self._add(DEFER, DEFER_FIELDS.pack(place.number, lease_id, offset, until_ms) + history, place)

    def settle(self, place: Place, lease_id: int, offset: int, copy: Letter) -> None:
        topic, queue, copy_offset = copy
        head = SETTLE_FIELDS.pack(place.number, lease_id, offset, copy_offset, queue)
        self._add(SETTLE, head + topic.encode(), place)

    def scan(self, place: Place, before: int, after: int) -> None:
        self._add(SCAN, SCAN_FIELDS.pack(place.number, before, after), place)

    def hide(self, place: Place, offsets: list[int], until_ms: int, attempt: int, before: int, after: int) -> None:
        self._add(HIDE, HIDE_FIELDS.pack(place.number, until_ms, attempt, before, after) + ranges(offsets), place)

    def reset(self, place: Place, offset: int) -> None:
        self._add(RESET, RESET_FIELDS.pack(place.number, offset), place)

    def delete(self, group: str) -> None:
        self._add(DELETE, group.encode())

    def taken(self, topic: str, queue: int, offsets: list[int]) -> None:
        """Dead letters are gone."""
        self._letters(TAKEN, topic, queue, offsets)

    def left(self, topic: str, queue: int, offsets: list[int]) -> None:
        """Dead letters are there, whatever was said before."""
        self._letters(LEFT, topic, queue, offsets)

    def _letters(self, kind: int, topic: str, queue: int, offsets: list[int]) -> None:
        name = topic.encode()
        self._add(kind, TAKEN_FIELDS.pack(queue, len(name)) + name + ranges(offsets))

    def letter(self, letter: Letter, copy: Letter) -> None:
        """A dead letter is gone if the copy is there."""
        (topic, queue, offset), (copy_topic, copy_queue, copy_offset) = letter, copy
        name = topic.encode()
        head = LETTER_FIELDS.pack(queue, offset, copy_offset, copy_queue, len(name))
        self._add(LETTER, head + name + copy_topic.encode())

    # --- towards the log --------------------------------------------------------------------------------------------

    def drain(self) -> "tuple[list[Event], list[asyncio.Future[None]]]":
        """All events and waiters; the journal is empty then."""
        drained = self.events, self.waiters
        self.events, self.waiters, self.bytes = [], [], 0
        return drained

    def requeue(self, events: Iterable[Event], waiters: "Iterable[asyncio.Future[None]]") -> None:
        """What was drained is not stored: it goes first next time, but for what settles by records that are gone."""
        kept = [event for event in events if event.kind not in (SETTLE, LETTER)]
        self.events[:0] = kept
        self.waiters[:0] = waiters
        self.bytes += sum(len(event.payload) for event in kept)


def bodies(events: list[Event], bytes_max: int = RECORD_BYTES) -> Iterator[bytes]:
    """The events as bodies of records."""
    at = 0
    while at < len(events):
        places: dict[int, Place] = {}
        parts: list[bytes] = []
        size = 0
        while at < len(events) and (not parts or size + len(events[at].payload) <= bytes_max):
            event = events[at]
            if event.place is not None:
                places[event.place.number] = event.place
            parts += (EVENT_FIELDS.pack(event.kind, len(event.payload)), event.payload)
            size += EVENT_FIELDS.size + len(event.payload)
            at += 1
        named = [_place(place) for place in places.values()]
        yield b"".join([HEAD_FIELDS.pack(VERSION, len(named)), *named, *parts])


def event_records(events: list[Event], now_ms: int) -> Iterator[bytes]:
    """The events as records of the log."""
    for body in bodies(events):
        yield encode(Record(GROUPS_TOPIC, 0, body, with_crc_mark(b""), born_at_ms=now_ms))


def _place(place: Place) -> bytes:
    key = place.key
    names = [name.encode() for name in (key.group, key.topic, key.queue_topic)]
    return PLACE_FIELDS.pack(place.number, key.queue) + b"".join([bytes([len(name)]) + name for name in names])


@dataclass(slots=True)
class Replayed:
    """What a replay found."""

    events: int = 0
    # Messages that come back because events are lost.
    lost_range: int = 0
    faults: list[str] = field(default_factory=list)
    # Of settles whose copy is not there: (place, lease, offset).
    open_again: list[tuple[Place, int, int]] = field(default_factory=list)
    # Dead letters whose copy is not there.
    left: list[Letter] = field(default_factory=list)


class Replay:
    """Applies the events of records, in their order."""

    def __init__(
        self,
        progress: Progress,
        gone: GoneLetters,
        ends: Callable[[str, int], tuple[int, int]],
        start: Callable[[Key], int],
    ) -> None:
        """`ends`: min and max offset of a topic's queue on the shard; `start`: where a place is, that nothing else is
        known of; -1: nobody knows."""
        self._progress = progress
        self._gone = gone
        self._ends = ends
        self._start = start
        self._places: dict[int, Place] = {}
        self.found = Replayed()

    def apply(self, body: bytes) -> None:
        """Raises: Damaged: what comes behind the fault is not applied."""
        with reading():
            for kind, payload in events_in(body, self._read_places(body)):
                self._event(kind, payload)
                self.found.events += 1

    def _read_places(self, body: bytes) -> int:
        keys, at = keys_of(body)
        self._places = {}
        for number, key in keys.items():
            known = self._progress.places.get(key)
            self._places[number] = known or self._progress.place(key, self._start(key))
        return at

    def _event(self, kind: int, payload: bytes) -> None:
        progress = self._progress
        if kind == GIVE:
            self._give(payload)
        elif kind == END:
            number, _ = END_FIELDS.unpack_from(payload)
            progress.end_whoever(self._places[number], offsets_of(payload[END_FIELDS.size :]))
        elif kind == CHANGE:
            number, lease, until_ms = CHANGE_FIELDS.unpack_from(payload)
            progress.change(self._places[number], lease, offsets_of(payload[CHANGE_FIELDS.size :]), until_ms)
        elif kind == BACK:
            number, lease, ended, counted = BACK_FIELDS.unpack_from(payload)
            offsets = offsets_of(payload[BACK_FIELDS.size :])
            progress.give_back(self._places[number], lease, offsets, ended, counted=bool(counted))
        elif kind == DEFER:
            number, lease, offset, until_ms = DEFER_FIELDS.unpack_from(payload)
            progress.defer(self._places[number], lease, offset, until_ms, payload[DEFER_FIELDS.size :])
        elif kind == SETTLE:
            number, lease, offset, copy_offset, queue = SETTLE_FIELDS.unpack_from(payload)
            place = self._places[number]
            if self._ends(payload[SETTLE_FIELDS.size :].decode(), queue)[1] > copy_offset:
                progress.end_whoever(place, [offset])
            else:
                self.found.open_again.append((place, lease, offset))
        else:
            self._rarer(kind, payload)

    def _rarer(self, kind: int, payload: bytes) -> None:
        progress = self._progress
        if kind == SCAN:
            number, before, after = SCAN_FIELDS.unpack(payload)
            place = self._places[number]
            self._reach(place, before)
            place.frontier = after
        elif kind == HIDE:
            number, until_ms, attempt, before, after = HIDE_FIELDS.unpack_from(payload)
            place = self._places[number]
            self._reach(place, before)
            progress.hide(place, offsets_of(payload[HIDE_FIELDS.size :]), until_ms, attempt, after)
        elif kind == RESET:
            number, offset = RESET_FIELDS.unpack(payload)
            progress.reset(self._places[number], offset)
        elif kind == DELETE:
            progress.delete(payload.decode())
            self._places = {
                number: progress.place(place.key, -1) if place.key.group == payload.decode() else place
                for number, place in self._places.items()
            }
        elif kind in (TAKEN, LEFT):
            topic, queue, data = letters_of(payload)
            letters = ((topic, queue, offset) for offset in offsets_of(data))
            if kind == TAKEN:
                self._gone.taken(letters)
            else:
                self._gone.left(letters)
        elif kind == LETTER:
            queue, offset, copy_offset, copy_queue, length = LETTER_FIELDS.unpack_from(payload)
            at = LETTER_FIELDS.size + length
            topic, copy_topic = payload[LETTER_FIELDS.size : at].decode(), payload[at:].decode()
            if self._ends(copy_topic, copy_queue)[1] > copy_offset:
                self._gone.taken([(topic, queue, offset)])
            else:
                self.found.left.append((topic, queue, offset))
        else:
            raise Damaged(f"group event {kind} is not known")

    def _give(self, payload: bytes) -> None:
        progress = self._progress
        number, lease_id, received, until_ms, most, flags, attempt, before, after, count = GIVE_FIELDS.unpack_from(
            payload
        )
        place = self._places[number]
        at = GIVE_FIELDS.size + count * PAIR_FIELDS.size
        expired = tuple(PAIR_FIELDS.iter_unpack(payload[GIVE_FIELDS.size : at]))
        self._reach(place, before)
        lease = progress.leases.get(lease_id)
        if lease is None or lease.place is not place:
            ordered, is_taken = bool(flags & ORDERED_FLAG), bool(flags & TAKEN_FLAG)
            lease = Lease(lease_id, place, received, most, ordered=ordered, is_taken=is_taken)
        offsets = offsets_of(payload[at:])
        self._end_before(place, lease, offsets)
        by_history: dict[bytes, list[int]] = {}
        for offset in offsets:
            hold = place.entries.get(offset)
            by_history.setdefault(hold.history if hold else b"", []).append(offset)
        for history, own in by_history.items():
            progress.give(lease, own, until_ms, attempt, after, expired=expired, history=history)

    def _end_before(self, place: Place, lease: Lease, offsets: list[int]) -> None:
        """Messages that are given again were under leases that expired, which is no event: of an ordered one, what
        followed the first of them came back too, uncounted."""
        firsts: dict[Lease, int] = {}
        for offset in offsets:
            hold = place.entries.get(offset)
            if hold is not None and hold.lease is not None and hold.lease is not lease and hold.lease.ordered:
                firsts.setdefault(hold.lease, offset)
        for expired, first in firsts.items():
            later = [offset for offset in self._progress.later_of(expired, first) if offset not in offsets]
            self._progress.give_back(place, expired.id, later, lease.received_at_ms, counted=False)

    def _reach(self, place: Place, before: int) -> None:
        """What lies between the frontier and where the event found it: nobody knows what became of it. Without anything
        known of a place, that is all there is."""
        if place.frontier < 0:
            place.frontier = self._ends(place.key.queue_topic, place.key.queue)[0]
        if place.frontier < before:
            self.found.lost_range += before - place.frontier
            lost = [one for one in range(place.frontier, before) if one not in place.entries]
            self._progress.put_back(place, lost, 1, before)
