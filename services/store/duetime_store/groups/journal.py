"""What happens to groups as events: written into records of the log, read back at a start.

A record of topic DT_GROUPS, queue 0, has all events of some calls, in order. It can be read without those before it:

    body    | u8 version | u16 count | places ... | events ... |
    place   | u32 number | i32 queue | u8 length, group | u8 length, topic | u8 length, topic of the queue |
    event   | u8 kind | u32 length | payload |            big-endian; `place` is a number of this record

    1 GIVE      place u32, lease u64, received i64, until i64, most attempts u16, flags u8 (1 ordered, 2 taken),
                attempt u32, before i64, after i64, count u8, count * (received i64, ended i64), ranges
    2 END       place u32, lease u64, ranges
    3 CHANGE    place u32, lease u64, until i64, ranges
    4 BACK      place u32, lease u64, ended i64, counted u8, ranges
    5 DEFER     place u32, lease u64, offset i64, until i64, history
    6 SETTLE    place u32, lease u64, offset i64, copy's offset i64, copy's queue i32, copy's topic
    7 SCAN      place u32, before i64, after i64
    8 HIDE      place u32, until i64, attempt u32, before i64, after i64, ranges
    9 RESET     place u32, offset i64
   10 DELETE    group
   11 TAKEN     queue i32, length u8, topic, ranges
   12 LETTER    SETTLE of a dead letter: queue i32, offset i64, copy's offset i64, copy's queue i32, length u8, topic,
                copy's topic
   13 LEFT      as TAKEN: they are there after all
    ranges      (first i64, count u32) each, to the end

`before` and `after` are the place's frontier. Where `before` is ahead of what is known, events between are lost: all
messages between come back. A SETTLE counts only if the copy is there: it lies in front of it in the log, and the log
may end between the two.
"""

import asyncio
import struct
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from struct import Struct

from duetime_core.errors import Damaged
from duetime_core.names import DLQ_PREFIX

from duetime_store.gone import GoneLetters
from duetime_store.groups.state import Key, Lease, Pairs, Place, Progress

GIVE, END, CHANGE, BACK, DEFER, SETTLE, SCAN, HIDE, RESET, DELETE, TAKEN, LETTER, LEFT = range(1, 14)
_VERSION = 1
_ORDERED, _TAKEN = 1, 2

# Bytes of events in one record; it has one event at least.
RECORD_BYTES = 256 * 1024

_HEAD = Struct(">BH")
_PLACE = Struct(">Ii")
_EVENT = Struct(">BI")
_GIVE = Struct(">IQqqHBIqqB")
_PAIR = Struct(">qq")
_END = Struct(">IQ")
_CHANGE = Struct(">IQq")
_BACK = Struct(">IQqB")
_DEFER = Struct(">IQqq")
_SETTLE = Struct(">IQqqi")
_SCAN = Struct(">Iqq")
_HIDE = Struct(">IqIqq")
_RESET = Struct(">Iq")
_TAKEN_HEAD = Struct(">iB")
_LETTER = Struct(">iqqiB")
_RANGE = Struct(">qI")

Letter = tuple[str, int, int]


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
        flags = _ORDERED * lease.ordered | _TAKEN * lease.is_taken
        place, received = lease.place, lease.received_at_ms
        fixed = (place.number, lease.id, received, until_ms, lease.max_attempts, flags, attempt, before, after)
        head = _GIVE.pack(*fixed, len(expired))
        if expired:
            head += b"".join([_PAIR.pack(*pair) for pair in expired])
        self._add(GIVE, head + ranges(offsets), place)

    def end(self, place: Place, lease_id: int, offsets: list[int]) -> None:
        self._add(END, _END.pack(place.number, lease_id) + ranges(offsets), place)

    def change(self, place: Place, lease_id: int, offsets: list[int], until_ms: int) -> None:
        self._add(CHANGE, _CHANGE.pack(place.number, lease_id, until_ms) + ranges(offsets), place)

    def back(self, place: Place, lease_id: int, offsets: list[int], ended_at_ms: int, *, counted: bool) -> None:
        self._add(BACK, _BACK.pack(place.number, lease_id, ended_at_ms, counted) + ranges(offsets), place)

    def defer(self, place: Place, lease_id: int, offset: int, until_ms: int, history: bytes) -> None:
        self._add(DEFER, _DEFER.pack(place.number, lease_id, offset, until_ms) + history, place)

    def settle(self, place: Place, lease_id: int, offset: int, copy: Letter) -> None:
        topic, queue, copy_offset = copy
        head = _SETTLE.pack(place.number, lease_id, offset, copy_offset, queue)
        self._add(SETTLE, head + topic.encode(), place)

    def scan(self, place: Place, before: int, after: int) -> None:
        self._add(SCAN, _SCAN.pack(place.number, before, after), place)

    def hide(self, place: Place, offsets: list[int], until_ms: int, attempt: int, before: int, after: int) -> None:
        self._add(HIDE, _HIDE.pack(place.number, until_ms, attempt, before, after) + ranges(offsets), place)

    def reset(self, place: Place, offset: int) -> None:
        self._add(RESET, _RESET.pack(place.number, offset), place)

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
        self._add(kind, _TAKEN_HEAD.pack(queue, len(name)) + name + ranges(offsets))

    def letter(self, letter: Letter, copy: Letter) -> None:
        """A dead letter is gone if the copy is there."""
        (topic, queue, offset), (copy_topic, copy_queue, copy_offset) = letter, copy
        name = topic.encode()
        head = _LETTER.pack(queue, offset, copy_offset, copy_queue, len(name))
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
            parts += (_EVENT.pack(event.kind, len(event.payload)), event.payload)
            size += _EVENT.size + len(event.payload)
            at += 1
        named = [_place(place) for place in places.values()]
        yield b"".join([_HEAD.pack(_VERSION, len(named)), *named, *parts])


def _place(place: Place) -> bytes:
    key = place.key
    names = [name.encode() for name in (key.group, key.topic, key.queue_topic)]
    return _PLACE.pack(place.number, key.queue) + b"".join([bytes([len(name)]) + name for name in names])


def ranges(offsets: list[int]) -> bytes:
    """Ascending offsets as runs of neighbours."""
    count = len(offsets)
    if not count:
        return b""
    first = offsets[0]
    if offsets[-1] - first == count - 1:
        return _RANGE.pack(first, count)
    parts, start, expected = [], first, first
    for offset in offsets:
        if offset != expected:
            parts.append(_RANGE.pack(start, expected - start))
            start = offset
        expected = offset + 1
    parts.append(_RANGE.pack(start, expected - start))
    return b"".join(parts)


def offsets_of(data: bytes) -> list[int]:
    """Raises: Damaged."""
    if len(data) % _RANGE.size:
        raise Damaged(f"{len(data)} bytes are not whole ranges")
    found: list[int] = []
    for first, count in _RANGE.iter_unpack(data):
        found += range(first, first + count)
    return found


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
        try:
            version, count = _HEAD.unpack_from(body)
            if version != _VERSION:
                raise Damaged(f"version {version} of group events is not known")
            at = self._read_places(body, count)
            while at < len(body):
                kind, length = _EVENT.unpack_from(body, at)
                at += _EVENT.size
                if at + length > len(body):
                    raise Damaged(f"an event of {length} bytes is cut short")
                self._event(kind, body[at : at + length])
                at += length
                self.found.events += 1
        except (struct.error, KeyError, IndexError, UnicodeDecodeError) as error:
            raise Damaged(f"group events can't be read: {error!r}") from error

    def _read_places(self, body: bytes, count: int) -> int:
        keys, at = _keys(body, count)
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
            number, _ = _END.unpack_from(payload)
            progress.end_whoever(self._places[number], offsets_of(payload[_END.size :]))
        elif kind == CHANGE:
            number, lease, until_ms = _CHANGE.unpack_from(payload)
            progress.change(self._places[number], lease, offsets_of(payload[_CHANGE.size :]), until_ms)
        elif kind == BACK:
            number, lease, ended, counted = _BACK.unpack_from(payload)
            offsets = offsets_of(payload[_BACK.size :])
            progress.give_back(self._places[number], lease, offsets, ended, counted=bool(counted))
        elif kind == DEFER:
            number, lease, offset, until_ms = _DEFER.unpack_from(payload)
            progress.defer(self._places[number], lease, offset, until_ms, payload[_DEFER.size :])
        elif kind == SETTLE:
            number, lease, offset, copy_offset, queue = _SETTLE.unpack_from(payload)
            place = self._places[number]
            if self._ends(payload[_SETTLE.size :].decode(), queue)[1] > copy_offset:
                progress.end_whoever(place, [offset])
            else:
                self.found.open_again.append((place, lease, offset))
        else:
            self._rarer(kind, payload)

    def _rarer(self, kind: int, payload: bytes) -> None:
        progress = self._progress
        if kind == SCAN:
            number, before, after = _SCAN.unpack(payload)
            place = self._places[number]
            self._reach(place, before)
            place.frontier = after
        elif kind == HIDE:
            number, until_ms, attempt, before, after = _HIDE.unpack_from(payload)
            place = self._places[number]
            self._reach(place, before)
            progress.hide(place, offsets_of(payload[_HIDE.size :]), until_ms, attempt, after)
        elif kind == RESET:
            number, offset = _RESET.unpack(payload)
            progress.reset(self._places[number], offset)
        elif kind == DELETE:
            progress.delete(payload.decode())
            self._places = {
                number: progress.place(place.key, -1) if place.key.group == payload.decode() else place
                for number, place in self._places.items()
            }
        elif kind in (TAKEN, LEFT):
            queue, length = _TAKEN_HEAD.unpack_from(payload)
            at = _TAKEN_HEAD.size + length
            topic = payload[_TAKEN_HEAD.size : at].decode()
            letters = ((topic, queue, offset) for offset in offsets_of(payload[at:]))
            if kind == TAKEN:
                self._gone.taken(letters)
            else:
                self._gone.left(letters)
        elif kind == LETTER:
            queue, offset, copy_offset, copy_queue, length = _LETTER.unpack_from(payload)
            at = _LETTER.size + length
            topic, copy_topic = payload[_LETTER.size : at].decode(), payload[at:].decode()
            if self._ends(copy_topic, copy_queue)[1] > copy_offset:
                self._gone.taken([(topic, queue, offset)])
            else:
                self.found.left.append((topic, queue, offset))
        else:
            raise Damaged(f"group event {kind} is not known")

    def _give(self, payload: bytes) -> None:
        progress = self._progress
        number, lease_id, received, until_ms, most, flags, attempt, before, after, count = _GIVE.unpack_from(payload)
        place = self._places[number]
        at = _GIVE.size + count * _PAIR.size
        expired = tuple(_PAIR.iter_unpack(payload[_GIVE.size : at]))
        self._reach(place, before)
        lease = progress.leases.get(lease_id)
        if lease is None or lease.place is not place:
            ordered, is_taken = bool(flags & _ORDERED), bool(flags & _TAKEN)
            lease = Lease(lease_id, place, received, most, ordered=ordered, is_taken=is_taken)
        offsets = offsets_of(payload[at:])
        by_history: dict[bytes, list[int]] = {}
        for offset in offsets:
            hold = place.entries.get(offset)
            by_history.setdefault(hold.history if hold else b"", []).append(offset)
        for history, own in by_history.items():
            progress.give(lease, own, until_ms, attempt, after, expired=expired, history=history)

    def _reach(self, place: Place, before: int) -> None:
        """What lies between the frontier and where the event found it: nobody knows what became of it. Without anything
        known of a place, that is all there is."""
        if place.frontier < 0:
            place.frontier = self._ends(place.key.queue_topic, place.key.queue)[0]
        if place.frontier < before:
            self.found.lost_range += before - place.frontier
            lost = [one for one in range(place.frontier, before) if one not in place.entries]
            self._progress.put_back(place, lost, 1, before)


# --- what is told of one message --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Told:
    """What an event says of one message: `key` is of its place, which is none for TAKEN."""

    kind: int
    offset: int
    key: Key | None = None
    lease: int = 0
    # GIVE: received. BACK: ended, and counted as an attempt.
    at_ms: int = 0
    counted: bool = False
    # Of the lease, or of the pause.
    until_ms: int = 0
    # GIVE: which delivery it is, and the ones before it whose leases ended; 0: a retry service took it.
    attempt: int = 0
    expired: Pairs = ()
    history: bytes = b""
    # SETTLE: the record that it settles by.
    copy: Letter = ("", 0, 0)


def told(body: bytes, messages: Collection[Letter]) -> Iterator[Told]:
    """What the events of a record say of messages, which are named by topic, queue and offset.

    Raises: Damaged.
    """
    try:
        version, count = _HEAD.unpack_from(body)
        if version != _VERSION:
            raise Damaged(f"version {version} of group events is not known")
        keys, at = _keys(body, count)
        # By number of a place, whose own they are.
        offsets = {
            number: {offset for topic, queue, offset in messages if (topic, queue) == (key.queue_topic, key.queue)}
            for number, key in keys.items()
        }
        while at < len(body):
            kind, length = _EVENT.unpack_from(body, at)
            at += _EVENT.size
            payload, at = body[at : at + length], at + length
            if kind == TAKEN:
                yield from _told_taken(payload, messages)
            elif kind in (GIVE, END, CHANGE, BACK, DEFER, SETTLE):
                number = int.from_bytes(payload[:4], "big")
                if offsets[number]:
                    yield from _told(kind, payload, keys[number], offsets[number])
    except (struct.error, KeyError, IndexError, UnicodeDecodeError) as error:
        raise Damaged(f"group events can't be read: {error!r}") from error


def _keys(body: bytes, count: int) -> tuple[dict[int, Key], int]:
    """Places by their numbers, and where they end."""
    keys, at = {}, _HEAD.size
    for _ in range(count):
        number, queue = _PLACE.unpack_from(body, at)
        at += _PLACE.size
        names = []
        for _ in range(3):
            length = body[at]
            names.append(body[at + 1 : at + 1 + length].decode())
            at += 1 + length
        keys[number] = Key(names[0], names[1], names[2], queue)
    return keys, at


def _told_taken(payload: bytes, messages: Collection[Letter]) -> Iterator[Told]:
    queue, length = _TAKEN_HEAD.unpack_from(payload)
    at = _TAKEN_HEAD.size + length
    topic = payload[_TAKEN_HEAD.size : at].decode()
    wanted = {offset for name, number, offset in messages if (name, number) == (topic, queue)}
    for offset in _among(wanted, payload[at:]):
        yield Told(TAKEN, offset, Key(topic.removeprefix(DLQ_PREFIX), "", topic, queue))


def _told(kind: int, payload: bytes, key: Key, wanted: set[int]) -> Iterator[Told]:
    if kind == GIVE:
        _, lease, received, until_ms, _, flags, attempt, _, _, count = _GIVE.unpack_from(payload)
        at = _GIVE.size + count * _PAIR.size
        expired = tuple(_PAIR.iter_unpack(payload[_GIVE.size : at]))
        times = {"at_ms": received, "until_ms": until_ms, "attempt": 0 if flags & _TAKEN else attempt}
        for offset in _among(wanted, payload[at:]):
            yield Told(kind, offset, key, lease, **times, expired=expired)
    elif kind == END:
        _, lease = _END.unpack_from(payload)
        yield from (Told(kind, offset, key, lease) for offset in _among(wanted, payload[_END.size :]))
    elif kind == CHANGE:
        _, lease, until_ms = _CHANGE.unpack_from(payload)
        for offset in _among(wanted, payload[_CHANGE.size :]):
            yield Told(kind, offset, key, lease, until_ms=until_ms)
    elif kind == BACK:
        _, lease, ended, counted = _BACK.unpack_from(payload)
        for offset in _among(wanted, payload[_BACK.size :]):
            yield Told(kind, offset, key, lease, at_ms=ended, counted=bool(counted))
    elif kind == DEFER:
        _, lease, offset, until_ms = _DEFER.unpack_from(payload)
        if offset in wanted:
            yield Told(kind, offset, key, lease, until_ms=until_ms, history=payload[_DEFER.size :])
    else:
        _, lease, offset, copy_offset, queue = _SETTLE.unpack_from(payload)
        if offset in wanted:
            yield Told(kind, offset, key, lease, copy=(payload[_SETTLE.size :].decode(), queue, copy_offset))


def _among(wanted: set[int], data: bytes) -> list[int]:
    """Those that the ranges hold."""
    if len(data) % _RANGE.size:
        raise Damaged(f"{len(data)} bytes are not whole ranges")
    found = _RANGE.iter_unpack(data)
    return sorted({offset for first, count in found for offset in wanted if first <= offset < first + count})
