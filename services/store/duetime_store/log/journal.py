"""The journal of consumer groups: events (duetime_format.events) on their way to the log."""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from duetime_format import events, subjects
from duetime_format.events import PlaceKey
from duetime_format.names import GROUPS_TOPIC
from duetime_format.ranges import RANGE
from duetime_format.record import Record, encode

# Maximum bytes of events in one record, but at least one event.
RECORD_BYTES = 256 * 1024


class NumberedPlace(Protocol):
    """A group's place in a queue, with the number by which events name it."""

    @property
    def number(self) -> int: ...

    @property
    def key(self) -> PlaceKey: ...


@dataclass(slots=True)
class JournalEntry:
    """One event as logged, the place that it names, if any, and its index words."""

    kind: int
    payload: bytes
    place: NumberedPlace | None = None
    words: Sequence[str] = ()


class Journal:
    """Events that are not staged yet, and their waiters."""

    def __init__(self) -> None:
        self.entries: list[JournalEntry] = []
        self.waiters: list[asyncio.Future[None]] = []

    def add(self, event: events.GroupEvent, place: NumberedPlace | None = None) -> None:
        self.entries.append(JournalEntry(event.kind, event.payload(), place, _words_of(event, place)))

    def drain(self) -> "tuple[list[JournalEntry], list[asyncio.Future[None]]]":
        """Removes and returns all entries and waiters."""
        drained = self.entries, self.waiters
        self.entries, self.waiters = [], []
        return drained

    def requeue(self, entries: Iterable[JournalEntry], waiters: "Iterable[asyncio.Future[None]]") -> None:
        """Puts drained, unstored entries back in front, except settlements, whose records are gone."""
        kept = [entry for entry in entries if entry.kind not in (events.SETTLE, events.LETTER)]
        self.entries[:0] = kept
        self.waiters[:0] = waiters


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
    for body, words in bodies(entries):
        yield encode(Record(GROUPS_TOPIC, 0, body, subjects.properties_of(words, since), born_at_ms=now_ms))


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
