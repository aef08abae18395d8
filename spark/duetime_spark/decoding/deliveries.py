"""Deliveries to groups and their ends, from the journal of their store (duetime_format.events).

    acked      the group has finished the message
    failed     the message is delivered again: later, or as a copy in %RETRY%group
    dead       the last delivery: the message is a dead letter, in %DLQ%group
    expired    the lease ended, or the receiver returned the message and the attempt counts
    returned   the message was returned and the attempt does not count
    open       the lease is still running
    lapsed     no delivery: the message had expired, and is done for the group

The journal has no event for an expired lease. The next lease of the message has the times of the earlier ones, and a
message that lapses has no next one; at the end of the journal the clock decides. In an ordered lease the first message
expires, and later ones are returned. After a message's last lease expires, a retry service takes it under a lease
without a delivery: its outcome tells whether the delivery before was the last.

Open deliveries are kept as ranges of offsets, as in the events; rows are made from ranges. So memory grows with open
deliveries, and a range costs as much as a message.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from duetime_format import events
from duetime_format.errors import DamagedBytes
from duetime_format.events import Letter, PlaceKey, events_in, keys_of, reading
from duetime_format.names import DLQ_PREFIX
from duetime_format.ranges import ranges_of

SCHEMA = pa.schema(
    [
        ("shard", pa.int32()),
        ("group", pa.string()),
        # The topic received by the group.
        ("topic", pa.string()),
        # The topic of the message's queue: the same, or %RETRY%group.
        ("queue_topic", pa.string()),
        ("queue", pa.int32()),
        ("offset", pa.int64()),
        ("lease", pa.int64()),
        # Counted from 1; a copy in %RETRY%group continues the message's count. 0, and lease 0: it has lapsed.
        ("attempt", pa.int32()),
        # Null: it has lapsed.
        ("received_at_ms", pa.int64()),
        # Null: the lease is still running.
        ("ended_at_ms", pa.int64()),
        ("end", pa.string()),
    ]
)
ENDS = ("open", "acked", "failed", "dead", "expired", "returned", "lapsed")
OPEN, ACKED, FAILED, DEAD, EXPIRED, RETURNED, LAPSED = range(len(ENDS))
ROWS_MAX = 262_144

_COLUMNS = {"lease": 3, "attempt": 4, "received_at_ms": 5, "ended_at_ms": 6}
_I64_MAX = (1 << 63) - 1
# Above the limit of every lease.
_EVENT_MESSAGES_MAX = 1 << 24
# A settle is void if its copy is missing. The start after a crash writes that to its first record of the journal, at
# most this many records later.
_RECORDS_BETWEEN_MAX = 64

Ints = npt.NDArray[np.int64]
Span = tuple[int, int]  # offsets [start, stop)


class Spans:
    """Offsets as ascending ranges without overlap."""

    __slots__ = ("_first", "_stop")

    def __init__(self, spans: Sequence[Span]) -> None:
        """`spans` ascend."""
        self._first = [first for first, _ in spans]
        self._stop = [stop for _, stop in spans]

    def __bool__(self) -> bool:
        return bool(self._first)

    def __iter__(self) -> Iterator[Span]:
        return iter(zip(self._first, self._stop, strict=True))

    def take(self, first: int, stop: int) -> list[Span]:
        """Removes offsets in [first, stop); returns those that were present."""
        if len(self._first) == 1 and first <= self._first[0] and stop >= self._stop[0]:
            return [(self._first.pop(), self._stop.pop())]
        at = end = bisect_right(self._stop, first)
        found = []
        while end < len(self._first) and self._first[end] < stop:
            found.append((max(self._first[end], first), min(self._stop[end], stop)))
            end += 1
        if found:
            rest = [(self._first[at], found[0][0]), (found[-1][1], self._stop[end - 1])]
            rest = [span for span in rest if span[0] < span[1]]
            self._first[at:end] = [span[0] for span in rest]
            self._stop[at:end] = [span[1] for span in rest]
        return found


@dataclass(slots=True)
class OpenDelivery:
    """Open deliveries under one lease, equal except for their offsets."""

    spans: Spans
    lease: int
    attempt: int
    received_at_ms: int
    until_ms: int
    is_ordered: bool
    # Time of expiry, if a retry service has taken them: they are under its lease then.
    expired_at_ms: int | None = None


@dataclass(slots=True)
class _GroupQueue:
    """A group's open deliveries in one queue."""

    code: int
    leases: dict[int, list[OpenDelivery]] = field(default_factory=dict)
    # The leases of deliveries, by time of receipt.
    by_received: dict[int, list[int]] = field(default_factory=dict)

    def add(self, lease: int, given: OpenDelivery) -> None:
        self.leases.setdefault(lease, []).append(given)
        known = self.by_received.setdefault(given.received_at_ms, [])
        if lease not in known:
            known.append(lease)

    def forget(self, lease: int) -> None:
        """Removes deliveries of a lease without remaining offsets."""
        parts = self.leases.get(lease, [])
        kept = [given for given in parts if given.spans]
        if len(kept) == len(parts):
            return
        for received in {given.received_at_ms for given in parts} - {given.received_at_ms for given in kept}:
            known = self.by_received[received]
            known.remove(lease)
            if not known:
                del self.by_received[received]
        if kept:
            self.leases[lease] = kept
        elif parts:
            del self.leases[lease]


@dataclass(slots=True)
class _SettledDelivery:
    """A delivery ended by a copy, if the copy exists."""

    given: OpenDelivery
    ended_at_ms: int
    end: int
    copy: Letter
    record: int


class Deliveries:
    """A shard's deliveries: takes bodies of records of DT_GROUPS in order, gives rows of ended deliveries."""

    def __init__(self, shard: int = 0, *, columns: Collection[str] = SCHEMA.names, rows_max: int = ROWS_MAX) -> None:
        self.schema = pa.schema([SCHEMA.field(name) for name in columns])
        # Rows that can be taken.
        self.rows = 0
        # Ends without a beginning, which is no longer in the journal.
        self.unknown = 0
        self.rows_max = rows_max
        self._shard = shard
        self._keys: dict[PlaceKey, int] = {}
        self._places: list[_GroupQueue] = []
        # Columns: place, first, count, lease, attempt, received, ended, end.
        self._ended: list[tuple[int, int, int, int, int, int, int, int]] = []
        self._settled: dict[tuple[int, int, int], _SettledDelivery] = {}
        self._settles: deque[tuple[int, int, int]] = deque()
        self._record = 0

    # --- input ------------------------------------------------------------------------------------------------------

    def feed(self, body: bytes, stored_at_ms: int) -> None:
        """Applies the events of one record. Raises: DamagedBytes: the events after the fault are not applied."""
        self._record += 1
        self._confirm(self._record - _RECORDS_BETWEEN_MAX)
        with reading():
            keys, at = keys_of(body)
            places = {number: self._place(key) for number, key in keys.items()}
            for kind, payload in events_in(body, at):
                self._event(events.read(kind, payload), places, stored_at_ms)

    def finish(self, now_ms: int, max_offset: Callable[[str, int], int] | None = None) -> None:
        """Ends the journal at `now_ms`: open deliveries become rows too. `max_offset`: the end of a topic's queue (0:
        there is no queue), to check that copies exist; without it all do."""
        for (code, lease, _), one in list(self._settled.items()):
            topic, queue, offset = one.copy
            if max_offset is not None and max_offset(topic, queue) <= offset:
                self._places[code].add(lease, one.given)
            else:
                self._end(code, one.given, list(one.given.spans), one.ended_at_ms, one.end)
        self._settled.clear()
        self._settles.clear()
        for place in self._places:
            for parts in place.leases.values():
                self._end_at(place.code, parts, now_ms)
            place.leases.clear()
            place.by_received.clear()

    def _place(self, key: PlaceKey) -> _GroupQueue:
        code = self._keys.get(key)
        if code is None:
            code = self._keys[key] = len(self._places)
            self._places.append(_GroupQueue(code))
        return self._places[code]

    def _event(self, event: events.GroupEvent, places: dict[int, _GroupQueue], stored_at_ms: int) -> None:
        match event:
            case events.GiveEvent():
                self._give(event, places[event.place])
            case events.EndEvent(lease=lease):
                # Lease 0: a returned message could not be read. SUPERSEDED: it was not delivered.
                if lease == events.LAPSED:
                    self._lapse(places[event.place], spans_of(event.ranges), stored_at_ms)
                elif lease not in (0, events.SUPERSEDED):
                    self._leave(places[event.place], lease, spans_of(event.ranges), stored_at_ms, ACKED)
            case events.ChangeEvent(lease=lease):
                self._change(places[event.place], lease, spans_of(event.ranges), event.until_ms)
            case events.ReturnEvent(lease=lease):
                end = EXPIRED if event.counted else RETURNED
                self._leave(places[event.place], lease, spans_of(event.ranges), event.ended_at_ms, end)
            case events.DeferEvent(lease=lease, offset=offset):
                self._leave(places[event.place], lease, [(offset, offset + 1)], stored_at_ms, FAILED)
            case events.SettleEvent():
                self._settle(event, places[event.place], stored_at_ms)
            case events.ResetEvent():
                self._reset(places[event.place], stored_at_ms)
            case events.DeleteEvent(group=group):
                for key, code in self._keys.items():
                    if key.group == group:
                        self._reset(self._places[code], stored_at_ms)

    # --- events -----------------------------------------------------------------------------------------------------

    def _give(self, event: events.GiveEvent, place: _GroupQueue) -> None:
        lease, attempt, received, until_ms = event.lease, event.attempt, event.received_at_ms, event.until_ms
        if lease > _I64_MAX:
            raise DamagedBytes(f"lease {lease} is invalid")
        spans = spans_of(event.ranges)
        if self._settled and len(spans) == 1 and self._opened_again(place, lease, spans[0], until_ms):
            return
        before = self._expired(place, spans, *event.expired[-1]) if event.expired else []
        if not event.is_taken:
            for given, expired_at_ms in before:
                self._end(place.code, given, list(given.spans), expired_at_ms, EXPIRED)
            place.add(lease, OpenDelivery(Spans(spans), lease, attempt, received, until_ms, event.ordered))
            return
        for given, expired_at_ms in before:
            place.add(lease, replace(given, expired_at_ms=expired_at_ms))

    def _opened_again(self, place: _GroupQueue, lease: int, span: Span, until_ms: int) -> bool:
        """Reopens a delivery after a crash, if its copy is missing."""
        one = self._settled.pop((place.code, lease, span[0]), None) if span[1] - span[0] == 1 else None
        if one is None:
            return False
        one.given.until_ms = until_ms
        place.add(lease, one.given)
        return True

    def _expired(
        self, place: _GroupQueue, spans: list[Span], received: int, ended: int
    ) -> list[tuple[OpenDelivery, int]]:
        """Removes deliveries that expired before a new one of the same messages; the new one has their expiry time."""
        found = []
        for lease in list(place.by_received.get(received, ())):
            parts = place.leases[lease]
            is_ordered, least = False, _I64_MAX
            for given in parts:
                taken = (
                    [one for span in spans for one in given.spans.take(*span)]
                    if given.received_at_ms == received
                    else []
                )
                if taken:
                    found.append((replace(given, spans=Spans(taken)), ended))
                    is_ordered, least = given.is_ordered and given.expired_at_ms is None, min(least, taken[0][0])
            if is_ordered:
                for given in parts:
                    self._end(place.code, given, given.spans.take(least + 1, _I64_MAX), ended, RETURNED)
            place.forget(lease)
        return found

    def _leave(self, place: _GroupQueue, lease: int, spans: list[Span], ended_at_ms: int, end: int) -> None:
        """Ends deliveries of a lease."""
        known = 0
        parts = place.leases.get(lease, ())
        for given in parts:
            if given.expired_at_ms is None:
                taken = [one for span in spans for one in given.spans.take(*span)]
                self._end(place.code, given, taken, ended_at_ms, end)
            elif end == ACKED:
                # The record is unreadable, so there can be no dead letter.
                taken = [one for span in spans for one in given.spans.take(*span)]
                self._end(place.code, given, taken, given.expired_at_ms, EXPIRED)
            else:
                # The message waits for a retry service again.
                taken = [one for span in spans for one in overlap(given.spans, span)]
            known += sum(stop - first for first, stop in taken)
        self.unknown += sum(stop - first for first, stop in spans) - known
        place.forget(lease)

    def _lapse(self, place: _GroupQueue, spans: list[Span], at_ms: int) -> None:
        """Ends expired messages. The leases of their deliveries had ended."""
        for lease, parts in list(place.leases.items()):
            if parts[0].is_ordered and parts[0].expired_at_ms is None:
                if any(overlap(given.spans, span) for given in parts for span in spans):
                    self._end_at(place.code, parts, _I64_MAX)
            else:
                for given in parts:
                    taken = [one for span in spans for one in given.spans.take(*span)]
                    ended_at_ms = given.until_ms if given.expired_at_ms is None else given.expired_at_ms
                    self._end(place.code, given, taken, ended_at_ms, EXPIRED)
            place.forget(lease)
        for first, stop in spans:
            self._ended.append((place.code, first, stop - first, 0, 0, -1, at_ms, LAPSED))
            self.rows += stop - first

    def _change(self, place: _GroupQueue, lease: int, spans: list[Span], until_ms: int) -> None:
        for given in list(place.leases.get(lease, ())):
            taken = [one for span in spans for one in given.spans.take(*span)]
            if taken and not given.spans:
                given.spans, given.until_ms = Spans(taken), until_ms
            elif taken:
                place.add(lease, replace(given, spans=Spans(taken), until_ms=until_ms))

    def _settle(self, event: events.SettleEvent, place: _GroupQueue, stored_at_ms: int) -> None:
        lease, offset, (topic, _, _) = event.lease, event.offset, event.copy
        for given in place.leases.get(lease, ()):
            taken = given.spans.take(offset, offset + 1)
            if taken:
                end, ended_at_ms = DEAD if topic.startswith(DLQ_PREFIX) else FAILED, stored_at_ms
                if given.expired_at_ms is not None:
                    end, ended_at_ms = DEAD if end == DEAD else EXPIRED, given.expired_at_ms
                settled = _SettledDelivery(
                    replace(given, spans=Spans(taken)), ended_at_ms, end, event.copy, self._record
                )
                self._settled[place.code, lease, offset] = settled
                self._settles.append((place.code, lease, offset))
                place.forget(lease)
                return
        self.unknown += 1

    def _confirm(self, before: int) -> None:
        """Makes settles of records before this one final."""
        while self._settles:
            one = self._settled.get(self._settles[0])
            if one is not None and one.record >= before:
                return
            code, _, _ = key = self._settles.popleft()
            if one is not None:
                del self._settled[key]
                self._end(code, one.given, list(one.given.spans), one.ended_at_ms, one.end)

    def _reset(self, place: _GroupQueue, at_ms: int) -> None:
        """Ends all leases of a place."""
        for parts in place.leases.values():
            for given in parts:
                if given.expired_at_ms is None:
                    self._end(place.code, given, list(given.spans), at_ms, RETURNED)
                else:
                    self._end(place.code, given, list(given.spans), given.expired_at_ms, EXPIRED)
        place.leases.clear()
        place.by_received.clear()

    # --- the end ----------------------------------------------------------------------------------------------------

    def _end_at(self, code: int, parts: list[OpenDelivery], now_ms: int) -> None:
        """Ends the rest of a lease at the end of the journal."""
        for given in sorted(parts, key=lambda given: given.until_ms):
            if given.expired_at_ms is not None:
                self._end(code, given, list(given.spans), given.expired_at_ms, EXPIRED)
            elif given.until_ms > now_ms:
                self._end(code, given, list(given.spans), -1, OPEN)
            elif not given.is_ordered:
                self._end(code, given, list(given.spans), given.until_ms, EXPIRED)
            elif given.spans:
                first = next(iter(given.spans))[0]
                self._end(code, given, given.spans.take(first, first + 1), given.until_ms, EXPIRED)
                # Later messages were not reached.
                for other in parts:
                    self._end(code, other, other.spans.take(first + 1, _I64_MAX), given.until_ms, RETURNED)

    def _end(self, code: int, given: OpenDelivery, spans: list[Span], ended_at_ms: int, end: int) -> None:
        for first, stop in spans:
            self._ended.append(
                (code, first, stop - first, given.lease, given.attempt, given.received_at_ms, ended_at_ms, end)
            )
            self.rows += stop - first

    # --- output -----------------------------------------------------------------------------------------------------

    def take(self) -> Iterator[pa.RecordBatch]:
        """Returns the rows so far, in the order of their ends, and removes them."""
        ended = np.array(self._ended, np.int64).reshape(-1, 8)
        self._ended.clear()
        self.rows = 0
        counts = ended[:, 2]
        totals = np.cumsum(counts)
        start = 0
        while start < len(ended):
            taken = int(totals[start - 1]) if start else 0
            stop = max(int(np.searchsorted(totals, taken + self.rows_max, "right")), start + 1)
            yield self._batch(ended[start:stop])
            start = stop

    def _batch(self, ended: Ints) -> pa.RecordBatch:
        counts = ended[:, 2]
        of = np.repeat(np.arange(len(ended)), counts)
        return pa.record_batch([self._column(one, ended, of) for one in self.schema], schema=self.schema)

    def _column(self, column: pa.Field, ended: Ints, of: Ints) -> pa.Array:
        """`of`: the number of each row's range."""
        name = column.name
        if name == "shard":
            return pa.repeat(pa.scalar(self._shard, column.type), len(of))
        if name in PlaceKey._fields:
            values = pa.array([getattr(key, name) for key in self._keys], column.type)
            return values.take(pa.array(ended[:, 0][of]))
        if name == "offset":
            counts = ended[:, 2]
            return pa.array(np.arange(len(of)) + (ended[:, 1] - np.cumsum(counts) + counts)[of])
        if name == "end":
            return pa.array(ENDS, column.type).take(pa.array(ended[:, 7][of]))
        values = ended[:, _COLUMNS[name]][of]
        return pa.array(values, pa.int64(), mask=values < 0 if name.endswith("_at_ms") else None).cast(column.type)


def rows_of(
    deliveries: Deliveries,
    records: Iterable[tuple[bytes, int]],
    now_ms: int,
    max_offset: Callable[[str, int], int] | None = None,
    damaged: Callable[[int, str], None] = lambda index, words: None,
) -> Iterator[pa.RecordBatch]:
    """The rows of a whole journal: bodies and store times of its records, in order. `damaged` is called for unreadable
    records, with their number from 0 on."""
    for index, (body, stored_at_ms) in enumerate(records):
        try:
            deliveries.feed(body, stored_at_ms)
        except DamagedBytes as error:
            damaged(index, error.text)
        if deliveries.rows >= deliveries.rows_max:
            yield from deliveries.take()
    deliveries.finish(now_ms, max_offset)
    yield from deliveries.take()


def spans_of(data: bytes) -> list[Span]:
    """The ascending ranges of an event. Raises: DamagedBytes."""
    found: list[Span] = []
    least = total = 0
    for first, count in ranges_of(data):
        total += count
        if not (least <= first <= _I64_MAX - count and count > 0 and total <= _EVENT_MESSAGES_MAX):
            raise DamagedBytes(f"an event of {count} messages from offset {first} on")
        least = first + count
        found.append((first, least))
    return found


def overlap(spans: Iterable[Span], other: Span) -> list[Span]:
    """The offsets in both."""
    both = ((max(first, other[0]), min(stop, other[1])) for first, stop in spans)
    return [span for span in both if span[0] < span[1]]
