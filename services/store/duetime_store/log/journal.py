"""The journal of a shard: events of consumer groups (duetime_format.events) and changes of other state
(duetime_format.changes) on their way to the log.

A change counts, for readers too, once it is published: `learners` then apply it.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from duetime_format import changes, events, subjects
from duetime_format.changes import StateChange, StateChanges
from duetime_format.events import PlaceKey
from duetime_format.names import GROUPS_TOPIC, STATE_TOPIC
from duetime_format.ranges import RANGE
from duetime_format.record import Record, encode, with_crc_mark

# Maximum bytes of events in one record, but at least one event.
RECORD_BYTES = 256 * 1024
# The kind of an entry that is no event.
CHANGES = 0


class NumberedPlace(Protocol):
    """A group's place in a queue, with the number by which events name it."""

    @property
    def number(self) -> int: ...

    @property
    def key(self) -> PlaceKey: ...


@dataclass(slots=True)
class JournalEntry:
    """One event as logged, the place that it names, if any, and its index words; or changes of state, of the kind
    CHANGES."""

    kind: int
    payload: bytes
    place: NumberedPlace | None = None
    words: Sequence[str] = ()
    changes: StateChanges | None = None


class Journal:
    """Events that are not staged yet, and their waiters."""

    def __init__(self) -> None:
        self.entries: list[JournalEntry] = []
        self.waiters: list[asyncio.Future[None]] = []
        # Applies published changes, by kind.
        self.learners: dict[str, Callable[[StateChange], None]] = {}
        # Changes among the entries.
        self._changes: StateChanges | None = None

    def add(self, event: events.GroupEvent, place: NumberedPlace | None = None) -> None:
        self.entries.append(JournalEntry(event.kind, event.payload(), place, _words_of(event, place)))

    def change(self, change: StateChange) -> None:
        """Adds a change; all of one flush share an entry."""
        if self._changes is None:
            self._changes = StateChanges()
            self.entries.append(JournalEntry(CHANGES, b"", changes=self._changes))
        self._changes.add(change)

    def drain(self) -> "tuple[list[JournalEntry], list[asyncio.Future[None]]]":
        """Removes and returns all entries and waiters."""
        drained = self.entries, self.waiters
        self.entries, self.waiters, self._changes = [], [], None
        return drained

    def settle(self, entries: Iterable[JournalEntry], durable: bool) -> None:
        """Applies the changes of drained entries, if they are published."""
        for entry in entries if durable else ():
            for change in entry.changes or ():
                self.learners[change.kind](change)

    def requeue(self, entries: Iterable[JournalEntry], waiters: "Iterable[asyncio.Future[None]]") -> None:
        """Puts drained, unstored entries back in front, except settlements, whose records are gone."""
        kept = [entry for entry in entries if entry.kind not in (events.SETTLE, events.LETTER)]
        self.entries[:0] = kept
        self.waiters[:0] = waiters


def changes_of(entries: Iterable[JournalEntry]) -> StateChanges:
    """The changes of state among entries."""
    return StateChanges(change for entry in entries for change in entry.changes or ())


def bodies(entries: list[JournalEntry], bytes_max: int = RECORD_BYTES) -> Iterator[tuple[bytes, list[str]]]:
    """The bodies of the records that hold the events, each with its index words."""
    at = 0
    while at < len(entries):
        places: dict[int, PlaceKey] = {}
        parts: list[bytes] = []
        words: dict[str, None] = {}
        size = 0
        while at < len(entries):
            entry = entries[at]
            if parts and (size + len(entry.payload) > bytes_max or len(words) + len(entry.words) > subjects.WORDS_MAX):
                break
            if entry.place is not None:
                places[entry.place.number] = entry.place.key
            parts.append(events.framed(entry.kind, entry.payload))
            words.update(dict.fromkeys(entry.words))
            size += events.EVENT_BYTES + len(entry.payload)
            at += 1
        yield b"".join([events.begin_body(places), *parts]), list(words)


def event_records(entries: list[JournalEntry], now_ms: int, since: int) -> Iterator[bytes]:
    """The log records that hold the events. `since`: see duetime_format.subjects."""
    for body, words in bodies([entry for entry in entries if entry.changes is None]):
        yield encode(Record(GROUPS_TOPIC, 0, body, subjects.properties_of(words, since), born_at_ms=now_ms))
    for body in changes.bodies(changes_of(entries)):
        yield encode(Record(STATE_TOPIC, 0, body, with_crc_mark(b""), born_at_ms=now_ms))


def _words_of(event: events.GroupEvent, place: NumberedPlace | None) -> list[str]:
    """The index words of an event's messages; none if traces do not show its kind."""
    match event:
        case events.GiveEvent() | events.EndEvent() | events.ChangeEvent() | events.ReturnEvent():
            runs = event.ranges
        case events.DeferEvent() | events.SettleEvent():
            runs = RANGE.pack(event.offset, 1)
        case events.DeadLetterRemoveEvent() | events.DeadLetterKeepEvent():
            return subjects.words_of(event.topic, event.queue, event.ranges)
        case _:
            return []
    assert place is not None
    return subjects.words_of(place.key.queue_topic, place.key.queue, runs)
