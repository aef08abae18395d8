"""The journal of consumer groups: events (duetime_format.events) on their way to the log."""

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from duetime_format import events
from duetime_format.events import Key
from duetime_format.names import GROUPS_TOPIC
from duetime_format.record import Record, encode, with_crc_mark

# At most so many bytes of events in one record, but at least one event.
RECORD_BYTES = 256 * 1024


class Numbered(Protocol):
    """A group's place in a queue, which events name by its number."""

    @property
    def number(self) -> int: ...

    @property
    def key(self) -> Key: ...


@dataclass(slots=True)
class Entry:
    """One event as it is logged, and the place that it names, if any."""

    kind: int
    payload: bytes
    place: Numbered | None = None


class Journal:
    """Events that are not staged yet, and the waiters for them."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.waiters: list[asyncio.Future[None]] = []

    def add(self, event: events.Event, place: Numbered | None = None) -> None:
        self.entries.append(Entry(event.kind, event.payload(), place))

    def drain(self) -> "tuple[list[Entry], list[asyncio.Future[None]]]":
        """All entries and waiters; the journal is empty then."""
        drained = self.entries, self.waiters
        self.entries, self.waiters = [], []
        return drained

    def requeue(self, entries: Iterable[Entry], waiters: "Iterable[asyncio.Future[None]]") -> None:
        """Drained entries were not stored: they come first next time, except settlements, whose records are gone."""
        kept = [entry for entry in entries if entry.kind not in (events.SETTLE, events.LETTER)]
        self.entries[:0] = kept
        self.waiters[:0] = waiters


def bodies(entries: list[Entry], bytes_max: int = RECORD_BYTES) -> Iterator[bytes]:
    """The bodies of the records that hold the events."""
    at = 0
    while at < len(entries):
        places: dict[int, Key] = {}
        parts: list[bytes] = []
        size = 0
        while at < len(entries) and (not parts or size + len(entries[at].payload) <= bytes_max):
            entry = entries[at]
            if entry.place is not None:
                places[entry.place.number] = entry.place.key
            parts.append(events.framed(entry.kind, entry.payload))
            size += events.EVENT_BYTES + len(entry.payload)
            at += 1
        yield b"".join([events.begin_body(places), *parts])


def event_records(entries: list[Entry], now_ms: int) -> Iterator[bytes]:
    """The log records that hold the events."""
    for body in bodies(entries):
        yield encode(Record(GROUPS_TOPIC, 0, body, with_crc_mark(b""), born_at_ms=now_ms))
