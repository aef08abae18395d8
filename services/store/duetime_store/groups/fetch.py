"""One fetch of messages for a group: returned messages and retries, alternating with new ones, queue after queue.

    again   returned messages of all places, then new records of %RETRY%group
    fresh   new messages of the topic

A call begins with `again`. If that alone fills it, the next call begins with `fresh`, so that neither starves. Both
rotate over the queues, each call starting with the next one. A fetch awaits nothing: it ends when its step of the event
loop's time is over (turns.py), and another one continues.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from duetime_core.telemetry.logs import sparing
from duetime_format import record
from duetime_format.columns import retries, values
from duetime_format.properties import number_of
from duetime_format.units import FILLER_SIZE

from duetime_store.groups.groups import GroupRegistry
from duetime_store.groups.holds import GroupPlace, Hold, Lease
from duetime_store.groups.lapsing import expired
from duetime_store.lanes.alarm import ShardClock
from duetime_store.queues.consumequeue import ConsumeQueue
from duetime_store.queues.queues import Queues
from duetime_store.reading.filters import Filter
from duetime_store.reading.reader import Reader, ScanResult, fitting, picked
from duetime_store.reading.turns import YieldingScan

log = sparing()

_ALL = Filter.parse("")
# Messages that follow expired ones, read together: at first, and while all of them have expired.
_AHEAD, _AHEAD_MAX = 16, 256
_RETRY_TOPIC, _VISIBLE_AT = record.RETRY_TOPIC.encode(), record.VISIBLE_AT.encode()
# Offsets of a lease with the same attempt, and their past.
LeasePart = tuple[list[int], int, Hold | None]


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """A Receive with valid fields."""

    group: str
    topic: str
    # Queues on this shard.
    queues: tuple[int, ...]
    retry_queues: tuple[int, ...]
    max_count: int
    max_bytes: int
    invisible_ms: int
    wait_ms: int
    wanted: Filter
    max_attempts: int
    ordered: bool
    start_at_ms: int
    member: str
    # The caller that its messages count for.
    caller: str
    # Shards with queues of the topic: they share the group's rate.
    shard_count: int = 1
    # The lite topics of `topic` that it is for, by key; none: it is for the topic itself.
    lites: tuple[str, ...] = ()


@dataclass(slots=True)
class LeasedBatch:
    """Messages of one place under one lease; the columns have one value for each."""

    lease: Lease
    records: bytes
    sizes: list[int]
    offsets: list[int]
    attempts: list[int]
    until_ms: int


@dataclass(slots=True)
class FetchProgress:
    """The progress of one fetch: the limits left, and the messages leased so far."""

    asked: FetchRequest
    count: int
    size: int
    # Remaining number of messages that may become outstanding.
    fresh: int
    # Leases nothing: only checks for messages.
    peek: bool
    walk: YieldingScan
    given: list[LeasedBatch] = field(default_factory=list)
    found: bool = False
    # The scan has stopped before the end of a queue.
    unfinished: bool = False
    # The limit of outstanding messages left no room for new ones.
    refused: bool = False
    # Returned messages and retries filled the call.
    only_again: bool = False
    # Messages had expired.
    lapsed: bool = False
    # Lite topics left for another fetch.
    unvisited: Sequence[str] = ()

    @property
    def is_over(self) -> bool:
        return self.count <= 0 or self.size <= 0 or (self.peek and self.found)

    def pause(self) -> bool:
        """Whether the step is over; another fetch continues then."""
        over = self.walk.is_over
        self.unfinished |= over
        return over


@dataclass(slots=True)
class Columns:
    """Records back to back, and a value for each."""

    records: bytes
    sizes: list[int]
    offsets: list[int]
    attempts: list[int]


class Fetcher:
    """Fetches available messages for a group."""

    def __init__(self, queues: Queues, clock: ShardClock, reader: Reader, groups: GroupRegistry) -> None:
        self._queues = queues
        self._clock = clock
        self.reader = reader
        self._groups = groups

    def queue(self, place: GroupPlace) -> ConsumeQueue:
        return self._queues.get_bytes(place.key.queue_topic.encode(), place.key.queue)

    def may_have_more(self, places: Iterable[GroupPlace]) -> bool:
        """Whether another fetch may find something."""
        return any(place.has_returned or self._has_unread(place) for place in places)

    def unread_count(self, places: Iterable[GroupPlace]) -> int:
        """The most messages that fetches may find now."""
        return sum(
            max(place.available - place.parked, 0) + max(self.queue(place).max_offset - place.frontier, 0)
            for place in places
        )

    def _has_unread(self, place: GroupPlace) -> bool:
        is_full = place.keys is not None and place.keys.is_full
        return not is_full and place.frontier < self.queue(place).max_offset

    def fetch(
        self,
        asked: FetchRequest,
        own: list[GroupPlace],
        retries: list[GroupPlace],
        walk: YieldingScan,
        *,
        fresh_first: bool,
        peek: bool,
    ) -> FetchProgress:
        """Takes messages of the places, up to the limits, within a step of the walk."""
        fetched = self._begun(asked, (*own, *retries), walk, peek=peek)
        if fresh_first:
            self._fresh(fetched, own)
        for place in (*retries, *own):
            self._again(fetched, place)
        for place in retries:
            self._retried(fetched, place)
        if not fresh_first:
            fetched.only_again = fetched.is_over
            self._fresh(fetched, own)
        return fetched

    def _begun(
        self, asked: FetchRequest, places: Iterable[GroupPlace], walk: YieldingScan, *, peek: bool
    ) -> FetchProgress:
        groups = self._groups
        groups.expire()
        room = groups.progress.room(asked.group, asked.caller)
        for place in places:
            groups.drop_before(place, self.queue(place).min_offset)
        return FetchProgress(asked, asked.max_count, asked.max_bytes, room, peek, walk)

    def _again(self, fetched: FetchProgress, place: GroupPlace) -> None:
        """Takes returned messages."""
        if fetched.asked.ordered and place.is_blocked:
            return
        while place.has_returned and not fetched.is_over:
            if fetched.peek:
                fetched.found = True
                return
            offsets = place.take_again(fetched.count)
            kept, records, sizes = self._read(place, offsets)
            fit = fitting(sizes, fetched.size, least=0 if fetched.given else 1)
            place.put_again(kept[fit:])
            if fit < len(kept):
                kept, sizes = kept[:fit], sizes[:fit]
                records = records[: sum(sizes)]
                fetched.size = min(fetched.size, sum(sizes))
            if kept:
                entries = place.entries
                by_hold: dict[int, LeasePart] = {}
                attempts = []
                for offset in kept:
                    hold = entries[offset]
                    attempts.append(hold.attempt)
                    by_hold.setdefault(id(hold), ([], hold.attempt, hold))[0].append(offset)
                held = Columns(records, sizes, kept, attempts)
                if not self._lease(fetched, place, list(by_hold.values()), place.frontier, held):
                    if fetched.lapsed:
                        self._lapse_ahead(fetched, place, partial(self._returned, place, fetched))
                    if fetched.pause():
                        return
                    continue
            if fetched.asked.ordered or not kept:
                return

    def _returned(self, place: GroupPlace, fetched: FetchProgress, count: int) -> tuple[Columns, int]:
        """Returned messages, which stay so."""
        offsets = place.take_again(count)
        units = self.queue(place).read_at(np.array(offsets, np.int64))
        fit = fitting(units["size"].tolist(), fetched.asked.max_bytes)
        place.put_again(offsets[fit:])
        offsets, records, sizes = self._read(place, offsets[:fit])
        place.put_again(offsets)
        return Columns(records, sizes, offsets, []), place.frontier

    def _read(self, place: GroupPlace, offsets: list[int]) -> tuple[list[int], bytes, list[int]]:
        """Offsets, records and sizes of outstanding messages; ends deleted and damaged ones."""
        queue = self.queue(place)
        kept: list[int] = []
        parts: list[bytes] = []
        sizes: list[int] = []
        at = 0
        while at < len(offsets):
            first = offsets[at]
            stop = at + 1
            while stop < len(offsets) and offsets[stop] == first + stop - at:
                stop += 1
            units = queue.read(first, stop - at) if first >= queue.min_offset else queue.read(0, 0)
            if not len(units):
                at += 1
                continue
            there = np.flatnonzero(units["size"] != FILLER_SIZE)
            records, found, _, _ = self.reader.read(queue, first + there, units[there])
            parts.append(records)
            kept += [first + index for index, size in zip(there.tolist(), found, strict=True) if size]
            sizes += [size for size in found if size]
            at += len(units)
        if len(kept) < len(offsets):
            there_too = set(kept)
            lost = [offset for offset in offsets if offset not in there_too]
            log.warning("outstanding messages can't be read", **place.key._asdict(), count=len(lost), first=lost[0])
            self._groups.drop(place, lost)
        return kept, b"".join(parts), sizes

    def _fresh(self, fetched: FetchProgress, places: Iterable[GroupPlace]) -> None:
        """Takes new messages of the topic."""
        for place in places:
            if fetched.is_over:
                return
            queue = self.queue(place)
            if not self._has_unread(place) or (fetched.asked.ordered and place.entries):
                continue
            if place.keys is not None and place.has_returned:
                # Earlier messages of a key come first.
                continue
            if fetched.fresh <= 0:
                fetched.refused = True
                return
            count = 1 if fetched.peek else min(fetched.count, fetched.fresh)
            scanned = self.reader.scan(queue, place.frontier, fetched.asked.wanted, count, fetched.size, fetched.walk)
            fetched.unfinished |= not scanned.sizes and scanned.next_offset < queue.max_offset
            if not scanned.sizes:
                self._pass(place, scanned.next_offset)
                if fetched.pause():
                    return
                continue
            offsets = scanned.offsets.tolist()
            if fetched.peek:
                self._pass(place, offsets[0])
                fetched.found = True
                return
            if fetched.given and sum(scanned.sizes) > fetched.size:
                return
            attempts = [count + 1 for count in retries(scanned.records, scanned.sizes)]
            held = Columns(scanned.records, scanned.sizes, offsets, attempts)
            leased = self._lease(fetched, place, by_attempt(offsets, attempts), scanned.next_offset, held)
            if not leased:
                if fetched.lapsed:
                    self._lapse_ahead(fetched, place, partial(self._unread, place, fetched))
                fetched.unfinished |= place.frontier < queue.max_offset
            if not (leased and fetched.asked.wanted.passes_all) and fetched.pause():
                return

    def _unread(self, place: GroupPlace, fetched: FetchProgress, count: int) -> tuple[Columns, int]:
        """Messages after the frontier, and the offset after them."""
        queue, asked = self.queue(place), fetched.asked
        scanned = self.reader.scan(queue, place.frontier, asked.wanted, count, asked.max_bytes, fetched.walk)
        return Columns(scanned.records, scanned.sizes, scanned.offsets.tolist(), []), scanned.next_offset

    def _lapse_ahead(
        self, fetched: FetchProgress, place: GroupPlace, read: Callable[[int], tuple[Columns, int]]
    ) -> None:
        """Ends the expired messages that follow an expired one, many with one event: receives of one message would end
        them one by one. `read` returns up to a number of messages, and the frontier after them."""
        count = _AHEAD
        while not fetched.walk.is_over:
            held, after = read(count)
            late = expired(place, held.records, held.sizes, self._clock.now_ms())
            run = next((index for index, at in enumerate(late) if index != at), len(late))
            if run:
                self._groups.lapse(place, held.offsets[:run])
            self._pass(place, held.offsets[run] if run < len(held.offsets) else after)
            if run < count:
                return
            count = _AHEAD_MAX

    def _pass(self, place: GroupPlace, offset: int) -> None:
        """Moves the frontier to `offset`: no message before it is for the group."""
        if offset > place.frontier:
            self._groups.move(place, offset)

    def _others_pass(
        self, place: GroupPlace, offsets: Sequence[int], topics: Sequence[bytes | None], stop: int
    ) -> None:
        """Moves the places of the group's other topics past records of %RETRY%group before `stop` that are not theirs.

        Those records are about to belong to this place, or to none; only places that are as far move, up to their own
        records. So a topic that the group no longer receives blocks nothing.
        """
        for other in self._groups.progress.retries[place.key.queue_topic, place.key.queue]:
            if other is not place and place.frontier <= other.frontier < stop:
                topic, least = other.key.topic.encode(), other.frontier
                own = (at for at, of in zip(offsets, topics, strict=True) if at >= least and of == topic)
                self._pass(other, min(next(own, stop), stop))

    def _retried(self, fetched: FetchProgress, place: GroupPlace) -> None:
        """Takes new records of %RETRY%group for this topic; those that are not due yet wait for their time."""
        if fetched.asked.ordered and place.entries:
            return
        queue = self.queue(place)
        while not fetched.is_over and self._has_unread(place):
            if fetched.fresh <= 0:
                fetched.refused = True
                return
            count = min(max(fetched.count, 1), fetched.fresh)
            scanned = self.reader.scan(queue, place.frontier, _ALL, count, fetched.size, fetched.walk)
            if not scanned.sizes:
                if scanned.next_offset == place.frontier:
                    return
                self._others_pass(place, [], [], scanned.next_offset)
                self._pass(place, scanned.next_offset)
            elif not self._take_retries(fetched, place, scanned) and fetched.lapsed:
                self._lapse_ahead(fetched, place, partial(self._unread_retries, place, fetched))
            if fetched.pause() or (fetched.asked.ordered and place.entries):
                return

    def _unread_retries(self, place: GroupPlace, fetched: FetchProgress, count: int) -> tuple[Columns, int]:
        """The topic's records of %RETRY%group after the frontier, up to one that is not due, and the offset after
        them."""
        asked = fetched.asked
        scanned = self.reader.scan(self.queue(place), place.frontier, _ALL, count, asked.max_bytes, fetched.walk)
        now_ms, topic = self._clock.now_ms(), asked.topic.encode()
        topics, times = values(scanned.records, scanned.sizes, (_RETRY_TOPIC, _VISIBLE_AT))
        offsets, stop, own = scanned.offsets.tolist(), scanned.next_offset, []
        for index, (of_topic, at) in enumerate(zip(topics, times, strict=True)):
            if of_topic == topic:
                if (number_of(at) or 0) > now_ms:
                    stop = offsets[index]
                    break
                own.append(index)
        self._others_pass(place, offsets, topics, stop)
        records = picked(scanned.records, scanned.sizes, own)
        return Columns(records, [scanned.sizes[at] for at in own], [offsets[at] for at in own], []), stop

    def _take_retries(self, fetched: FetchProgress, place: GroupPlace, scanned: ScanResult) -> bool:
        """Returns whether some were leased."""
        now_ms, topic = self._clock.now_ms(), fetched.asked.topic.encode()
        topics, times = values(scanned.records, scanned.sizes, (_RETRY_TOPIC, _VISIBLE_AT))
        offsets = scanned.offsets.tolist()
        attempts = [count + 1 for count in retries(scanned.records, scanned.sizes)]
        hidden: dict[tuple[int, int], list[int]] = {}
        taken: list[int] = []
        stop, leased = scanned.next_offset, False
        for index, (of_topic, at) in enumerate(zip(topics, times, strict=True)):
            if of_topic != topic:
                continue
            visible_at_ms = number_of(at) or 0
            if visible_at_ms > now_ms:
                hidden.setdefault((visible_at_ms, attempts[index]), []).append(offsets[index])
            elif fetched.peek or (fetched.given and sum(scanned.sizes[: index + 1]) > fetched.size):
                stop = offsets[index]
                break
            else:
                taken.append(index)
        self._others_pass(place, offsets, topics, stop)
        self._groups.hide(place, hidden, place.frontier if taken else stop, fetched.asked.caller)
        fetched.fresh -= sum(map(len, hidden.values()))
        if taken:
            records = picked(scanned.records, scanned.sizes, taken)
            sizes, own = [scanned.sizes[index] for index in taken], [offsets[index] for index in taken]
            of_own = [attempts[index] for index in taken]
            parts = by_attempt(own, of_own)
            leased = self._lease(fetched, place, parts, stop, Columns(records, sizes, own, of_own))
        elif not hidden:
            self._pass(place, stop)
        self._groups.armed()
        if fetched.peek and stop < scanned.next_offset:
            fetched.found = True
        return leased

    def _lease(
        self,
        fetched: FetchProgress,
        place: GroupPlace,
        parts: Sequence[LeasePart],
        after: int,
        held: "Columns",
    ) -> bool:
        """Makes one lease over messages of a place; each of the parts has its own attempt and past. The place's
        frontier becomes `after`. Ends expired messages, and parks those of busy keys; returns False if there are no
        others."""
        asked, groups = fetched.asked, self._groups
        now_ms = self._clock.now_ms()
        if late := expired(place, held.records, held.sizes, now_ms):
            groups.lapse(place, [held.offsets[index] for index in late])
            fetched.lapsed = True
            parts, held = _without(parts, held, late)
            if not parts:
                self._pass(place, after)
                return False
        if place.keys is not None:
            parts, held = self._slotted(fetched, place, parts, after, held)
            if not parts:
                return False
        until_ms, before = now_ms + asked.invisible_ms, place.frontier
        lease = groups.progress.new_lease(place, now_ms, asked.max_attempts, ordered=asked.ordered, caller=asked.caller)
        outstanding = groups.progress.outstanding
        for number, (offsets, attempt, past) in enumerate(parts, 1):
            groups.give(lease, offsets, until_ms, attempt, after if number == len(parts) else before, past)
        fetched.fresh -= groups.progress.outstanding - outstanding
        fetched.given.append(LeasedBatch(lease, held.records, held.sizes, held.offsets, held.attempts, until_ms))
        fetched.found = True
        fetched.count -= len(held.offsets)
        fetched.size -= len(held.records)
        return True

    def _slotted(
        self, fetched: FetchProgress, place: GroupPlace, parts: Sequence[LeasePart], after: int, held: "Columns"
    ) -> tuple[Sequence[LeasePart], "Columns"]:
        """The parts and columns of the messages that get a slot of their key; parks the others. If there are none, the
        place's frontier becomes `after`."""
        slots = place.keys
        assert slots is not None
        keys, busy = slots.judge(place, held.offsets, held.records, held.sizes)
        if busy:
            new: dict[tuple[int, int], list[int]] = {}
            for index in busy:
                if held.offsets[index] not in place.entries:
                    new.setdefault((0, held.attempts[index]), []).append(held.offsets[index])
            is_all = len(busy) == len(held.offsets)
            reached = after if is_all else place.frontier
            self._groups.hide(place, new, reached, fetched.asked.caller, parked=True)
            fetched.fresh -= sum(map(len, new.values()))
            slots.park(place, {held.offsets[index]: keys[index] for index in busy})
            parts, held = _without(parts, held, busy)
            if is_all:
                self._pass(place, after)
        slots.take(place, held.offsets, [key for index, key in enumerate(keys) if index not in set(busy)])
        return parts, held


def by_attempt(offsets: list[int], attempts: list[int]) -> list[LeasePart]:
    """The parts of a lease over new messages (see `Fetcher._lease`)."""
    first = attempts[0]
    if attempts.count(first) == len(attempts):
        return [(offsets, first, None)]
    found: dict[int, list[int]] = {}
    for offset, attempt in zip(offsets, attempts, strict=True):
        found.setdefault(attempt, []).append(offset)
    return [(own, attempt, None) for attempt, own in found.items()]


def _without(parts: Sequence[LeasePart], held: Columns, late: Sequence[int]) -> tuple[list[LeasePart], Columns]:
    """The parts and columns of a lease without the messages at these indices."""
    left = sorted(set(range(len(held.offsets))).difference(late))
    offsets, sizes, attempts = ([row[at] for at in left] for row in (held.offsets, held.sizes, held.attempts))
    kept = set(offsets)
    rest = [([one for one in own if one in kept], attempt, past) for own, attempt, past in parts]
    records = picked(held.records, held.sizes, left)
    return [part for part in rest if part[0]], Columns(records, sizes, offsets, attempts)
