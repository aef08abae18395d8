"""Receive: what has come back and retries first, in turn with new messages; queue after queue; waiters in order.

    again   returned messages of all places, then new records of %RETRY%group
    fresh   new messages of the topic

A call begins with `again`; where that alone fills it, the next one begins with `fresh`, so that neither waits for ever.
Both go round the queues, each call from the next one on.

Waiters of one (group, topic) form a line. An arrival wakes the first; who was given something and left more behind
wakes the next. So one message costs one wake-up, however many wait.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
import structlog
from duetime_core import record
from duetime_core.clock import turn
from duetime_core.errors import FailedPrecondition, Overloaded
from duetime_core.names import retry_topic

from duetime_store.alarm import Alarm
from duetime_store.consumequeue import FILLER_SIZE, ConsumeQueue
from duetime_store.filters import Filter
from duetime_store.flusher import Flusher
from duetime_store.group_offsets import GroupOffsets
from duetime_store.groups.groups import Groups, Open
from duetime_store.groups.state import Hold, Key, Lease, Place
from duetime_store.offsets import first_stored_at
from duetime_store.properties import columns
from duetime_store.reader import Reader, Scanned
from duetime_store.store import Store

log = structlog.get_logger()

# Another filter of a group is refused while this one was used so lately.
FILTER_MS = 60_000
_ALL = Filter.parse("")
_RETRY_TOPIC, _VISIBLE_AT = record.RETRY_TOPIC.encode(), record.VISIBLE_AT.encode()
_RECONSUME_AT = 72
_I64_DIGITS_MAX = 18


@dataclass(frozen=True, slots=True)
class Asked:
    """A Receive, checked."""

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


@dataclass(slots=True)
class Given:
    """Messages of one place under one lease; the columns have one value for each."""

    lease: Lease
    records: bytes
    sizes: list[int]
    offsets: list[int]
    attempts: list[int]
    until_ms: int


@dataclass(eq=False, slots=True)
class _Waiter:
    future: "asyncio.Future[None]"


@dataclass(eq=False, slots=True)
class _Line:
    """Of one (group, topic): who waits, and whose turn it is."""

    waiters: deque[_Waiter] = field(default_factory=deque)
    # Which queue comes first.
    turn: int = 0
    fresh_first: bool = False
    filter_text: str = ""
    filter_used_ms: int | None = None
    queues: set[ConsumeQueue] = field(default_factory=set)

    @property
    def is_waking(self) -> bool:
        """Somebody was woken and has not looked yet."""
        return bool(self.waiters) and self.waiters[0].future.done()

    def wake(self) -> None:
        """Whoever is first looks."""
        if self.waiters and not self.waiters[0].future.done():
            self.waiters[0].future.set_result(None)


@dataclass(slots=True)
class _Look:
    """What one look of a call may still take, and what it has found."""

    asked: Asked
    count: int
    size: int
    # So many messages more may be outstanding.
    fresh: int
    # Leases nothing: whether there is something is all that is asked.
    peek: bool
    given: list[Given] = field(default_factory=list)
    found: bool = False
    # The scan has stopped before the end of a queue.
    unfinished: bool = False
    refused: bool = False

    @property
    def is_over(self) -> bool:
        return self.count <= 0 or self.size <= 0 or (self.peek and self.found)


class Receiver:
    """Serves Receive and AwaitMessages."""

    def __init__(
        self, store: Store, reader: Reader, groups: Groups, offsets: GroupOffsets, flusher: Flusher, alarm: Alarm
    ) -> None:
        self._store = store
        self._reader = reader
        self._groups = groups
        self._offsets = offsets
        self._flusher = flusher
        self._alarm = alarm
        self._lines: dict[tuple[str, str], _Line] = {}
        groups.arrived = self._arrived
        groups.deleted = self._deleted

    async def run(self) -> None:
        """The loop that ends leases in time, so that who waits is woken."""
        groups = self._groups
        while True:
            while groups.expire():
                await turn()
            deadline, changed = groups.when_deadline_changes()
            if deadline is not None:
                self._alarm.set(deadline, changed)
            await changed

    # --- calls ------------------------------------------------------------------------------------------------------

    async def receive(self, asked: Asked) -> list[Given]:
        """Leases messages, after waiting for the first; durable on return. A caller that goes away meanwhile gives
        them back.

        Raises:
            FailedPrecondition: the group uses another filter.
            Overloaded: as many messages are outstanding as may be.
            NotFound: no such topic or queue.
        """
        given: list[Given] = []

        def take(line: _Line) -> _Look:
            look = self._look(asked, line, peek=False)
            given.extend(look.given)
            return look

        try:
            await self._until_found(asked, take)
            if given:
                await self.durable()
        except BaseException:
            self._groups.not_received([one.lease for one in given])
            self._flusher.wake()
            raise
        self._groups.gave(asked.group, asked.topic, asked.member, sum(len(one.sizes) for one in given))
        return given

    async def ready(self, asked: Asked) -> bool:
        """Whether there is something, after waiting for it."""
        return await self._until_found(asked, lambda line: self._look(asked, line, peek=True))

    async def take_exhausted(self, count: int, invisible_ms: int, wait_ms: float) -> list[Open]:
        """Leases exhausted messages, after waiting for the first; durable on return."""
        self._store.gate.check_write()
        clock, groups = self._store.clock.clock, self._groups
        give_up_ms = clock.monotonic_ms() + wait_ms
        while True:
            groups.expire()
            taken = groups.take_exhausted(count, invisible_ms)
            left_ms = give_up_ms - clock.monotonic_ms()
            if taken or left_ms <= 0:
                break
            await clock.wait_for(groups.when_exhausted(), left_ms)
        try:
            await self.durable()
        except BaseException:
            groups.not_received([one.lease for one in taken])
            raise
        return taken

    async def durable(self) -> None:
        """Everything that happened to groups so far is."""
        future = self._store.when_events_durable()
        if future is not None:
            self._flusher.wake()
            await future

    async def _until_found(self, asked: Asked, take: Callable[[_Line], _Look]) -> bool:
        """Looks whenever it is this call's turn, until it finds something or its time is over."""
        self._store.gate.check_write()
        line = self._line(asked)
        await self._make_places(asked, line)
        clock = self._store.clock.clock
        give_up_ms = clock.monotonic_ms() + asked.wait_ms
        waiter: _Waiter | None = None
        try:
            while True:
                if waiter is not None or not asked.wait_ms or not line.is_waking:
                    look = take(line)
                    if look.found:
                        return True
                    if look.unfinished:
                        await turn()
                        continue
                left_ms = give_up_ms - clock.monotonic_ms()
                if left_ms <= 0:
                    return False
                if waiter is None:
                    waiter = _Waiter(asyncio.get_running_loop().create_future())
                    line.waiters.append(waiter)
                elif waiter.future.done():
                    waiter.future = asyncio.get_running_loop().create_future()
                await clock.wait_for(waiter.future, left_ms)
        finally:
            if waiter is not None:
                line.waiters.remove(waiter)
            if line.waiters and self._may_have_more(asked):
                line.wake()

    def _line(self, asked: Asked) -> _Line:
        key = asked.group, asked.topic
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = _Line()
        now_ms, text = self._store.clock.now_ms(), asked.wanted.text
        used_ms = line.filter_used_ms
        if used_ms is not None and line.filter_text != text and now_ms - used_ms < FILTER_MS:
            other = line.filter_text or "*"
            raise FailedPrecondition(
                f"group {asked.group} received {asked.topic} with filter {other!r} less than {FILTER_MS // 1000} s "
                f"ago, and {text or '*'!r} is another: what one filter drops, the other never gets",
                reason="FILTER_CONFLICT",
            )
        line.filter_text, line.filter_used_ms = text, now_ms
        return line

    def _arrived(self, group: str, topic: str) -> None:
        line = self._lines.get((group, topic))
        if line is not None:
            line.wake()

    def _deleted(self, group: str) -> None:
        """Nothing listens for it any more; who waits is told by the end of its time."""
        for key in [key for key in self._lines if key[0] == group]:
            line = self._lines.pop(key)
            for queue in line.queues:
                queue.listeners.remove(line.wake)

    # --- places -----------------------------------------------------------------------------------------------------

    def _queue(self, place: Place) -> ConsumeQueue:
        return self._store.queues.get_bytes(place.key.queue_topic.encode(), place.key.queue)

    async def _make_places(self, asked: Asked, line: _Line) -> None:
        places = self._groups.progress.places
        group, topic, back = asked.group, asked.topic, retry_topic(asked.group)
        for queue_id in asked.queues:
            key = Key(group, topic, topic, queue_id)
            if key not in places:
                queue = self._store.queues.find(topic, queue_id)
                offset = await self._start(key, queue, asked.start_at_ms)
                self._make(key, queue, offset, line)
        for queue_id in asked.retry_queues:
            key = Key(group, topic, back, queue_id)
            if key not in places:
                queue = self._store.queues.get_bytes(back.encode(), queue_id)
                self._make(key, queue, await self._start(key, queue, 0), line)
        if len(line.queues) < len(asked.queues) + len(asked.retry_queues):
            # After a start there are places that nobody listens to yet.
            for name, queue_ids in ((topic, asked.queues), (back, asked.retry_queues)):
                for queue_id in queue_ids:
                    self._listen(line, self._store.queues.get_bytes(name.encode(), queue_id))

    def _make(self, key: Key, queue: ConsumeQueue, offset: int, line: _Line) -> None:
        if key not in self._groups.progress.places:
            self._groups.new_place(key, offset)
            self._listen(line, queue)
            log.info("group begins in a queue", **key._asdict(), offset=offset)

    def _listen(self, line: _Line, queue: ConsumeQueue) -> None:
        if queue not in line.queues:
            line.queues.add(queue)
            queue.listeners.append(line.wake)

    async def _start(self, key: Key, queue: ConsumeQueue, start_at_ms: int) -> int:
        """Where a group begins: where it was with offsets of its own, or by time, or with the first message."""
        known = self._offsets.find(key.group, key.queue_topic).get(key.queue)
        if known is not None:
            return min(max(known, queue.min_offset), queue.max_offset)
        if start_at_ms > 0:
            return await first_stored_at(self._store.log, queue, start_at_ms)
        return queue.min_offset

    def _places(self, asked: Asked) -> tuple[list[Place], list[Place]]:
        """Those of the topic, and those of %RETRY%group."""
        get, group, topic = self._groups.progress.places.get, asked.group, asked.topic
        own = [get(Key(group, topic, topic, queue_id)) for queue_id in asked.queues]
        back = retry_topic(group)
        retries = [get(Key(group, topic, back, queue_id)) for queue_id in asked.retry_queues]
        return [place for place in own if place], [place for place in retries if place]

    def _may_have_more(self, asked: Asked) -> bool:
        own, retries = self._places(asked)
        return any(place.available or place.frontier < self._queue(place).max_offset for place in (*own, *retries))

    # --- looking ----------------------------------------------------------------------------------------------------

    def _look(self, asked: Asked, line: _Line, *, peek: bool) -> _Look:
        """Takes what is there, up to the limits. Awaits nothing."""
        groups = self._groups
        groups.expire()
        room = groups.leases_max - groups.progress.outstanding
        look = _Look(asked, asked.max_count, asked.max_bytes, room, peek)
        own, retries = self._places(asked)
        line.turn += 1
        own, retries = _from(own, line.turn), _from(retries, line.turn)
        for place in (*own, *retries):
            groups.drop_before(place, self._queue(place).min_offset)
        fresh_first, line.fresh_first = line.fresh_first, False
        if fresh_first:
            self._fresh(look, own)
        for place in (*retries, *own):
            self._again(look, place)
        for place in retries:
            self._retried(look, place)
        if not fresh_first:
            line.fresh_first = look.is_over
            self._fresh(look, own)
        if look.refused and not look.found:
            raise Overloaded(
                f"{groups.progress.outstanding} messages of all groups are outstanding on this shard, "
                f"{groups.leases_max} at most",
                reason="LEASES_EXHAUSTED",
            )
        return look

    def _again(self, look: _Look, place: Place) -> None:
        """Messages that came back."""
        if look.asked.ordered and place.is_blocked:
            return
        while place.available and not look.is_over:
            if look.peek:
                look.found = True
                return
            offsets = place.take_again(look.count)
            kept, records, sizes = self._read(place, offsets)
            fit = _fitting(sizes, look.size, least=0 if look.given else 1)
            place.put_again(kept[fit:])
            if fit < len(kept):
                kept, sizes = kept[:fit], sizes[:fit]
                records = records[: sum(sizes)]
                look.size = min(look.size, sum(sizes))
            if kept:
                entries = place.entries
                by_hold: dict[int, tuple[list[int], int, Hold | None]] = {}
                attempts = []
                for offset in kept:
                    hold = entries[offset]
                    attempts.append(hold.attempt)
                    by_hold.setdefault(id(hold), ([], hold.attempt, hold))[0].append(offset)
                self._lease(
                    look, place, list(by_hold.values()), place.frontier, Columns(records, sizes, kept, attempts)
                )
            if look.asked.ordered or not kept:
                return

    def _read(self, place: Place, offsets: list[int]) -> tuple[list[int], bytes, list[int]]:
        """Offsets, records and sizes of outstanding messages; those that are gone or damaged are done."""
        queue = self._queue(place)
        kept: list[int] = []
        parts: list[bytes] = []
        sizes: list[int] = []
        at = 0
        while at < len(offsets):
            first = offsets[at]
            behind = at + 1
            while behind < len(offsets) and offsets[behind] == first + behind - at:
                behind += 1
            units = queue.read(first, behind - at) if first >= queue.min_offset else queue.read(0, 0)
            if not len(units):
                at += 1
                continue
            there = np.flatnonzero(units["size"] != FILLER_SIZE)
            records, found, _, _ = self._reader.read(queue, first + there, units[there])
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

    def _fresh(self, look: _Look, places: Iterable[Place]) -> None:
        """New messages of the topic."""
        for place in places:
            if look.is_over:
                return
            queue = self._queue(place)
            if place.frontier >= queue.max_offset or (look.asked.ordered and place.entries):
                continue
            if look.fresh <= 0:
                look.refused = True
                return
            count = 1 if look.peek else min(look.count, look.fresh)
            scanned = self._reader.scan(queue, place.frontier, look.asked.wanted, count, look.size)
            look.unfinished |= not scanned.sizes and scanned.next_offset < queue.max_offset
            if not scanned.sizes:
                self._pass(place, scanned.next_offset)
                continue
            offsets = scanned.offsets.tolist()
            if look.peek:
                self._pass(place, offsets[0])
                look.found = True
                return
            if look.given and sum(scanned.sizes) > look.size:
                return
            attempts = [count + 1 for count in reconsume_times(scanned.records, scanned.sizes)]
            held = Columns(scanned.records, scanned.sizes, offsets, attempts)
            self._lease(look, place, _by_attempt(offsets, attempts), scanned.next_offset, held)

    def _pass(self, place: Place, offset: int) -> None:
        """Nothing before `offset` is for the group."""
        if offset > place.frontier:
            self._store.journal.scan(place, place.frontier, offset)
            place.frontier = offset

    def _retried(self, look: _Look, place: Place) -> None:
        """New records of %RETRY%group, those that are for this topic; those whose time is still ahead wait for it."""
        if look.asked.ordered and place.entries:
            return
        queue = self._queue(place)
        while not look.is_over and place.frontier < queue.max_offset:
            if look.fresh <= 0:
                look.refused = True
                return
            count = min(max(look.count, 1), look.fresh)
            scanned = self._reader.scan(queue, place.frontier, _ALL, count, look.size)
            if not scanned.sizes:
                if scanned.next_offset == place.frontier:
                    return
                self._pass(place, scanned.next_offset)
                continue
            self._take_retries(look, place, scanned)
            if look.asked.ordered and place.entries:
                return

    def _take_retries(self, look: _Look, place: Place, scanned: Scanned) -> None:
        now_ms, topic = self._store.clock.now_ms(), look.asked.topic.encode()
        topics, times = columns(scanned.records, scanned.sizes, (_RETRY_TOPIC, _VISIBLE_AT))
        offsets = scanned.offsets.tolist()
        attempts = [count + 1 for count in reconsume_times(scanned.records, scanned.sizes)]
        hidden: dict[tuple[int, int], list[int]] = {}
        taken: list[int] = []
        behind = scanned.next_offset
        for index, (of_topic, at) in enumerate(zip(topics, times, strict=True)):
            if of_topic != topic:
                continue
            visible_at_ms = _number(at)
            if visible_at_ms > now_ms:
                hidden.setdefault((visible_at_ms, attempts[index]), []).append(offsets[index])
            elif look.peek or (look.given and sum(scanned.sizes[: index + 1]) > look.size):
                behind = offsets[index]
                break
            else:
                taken.append(index)
        before = place.frontier
        for number, ((until_ms, attempt), own) in enumerate(hidden.items(), 1):
            # The last event moves the frontier: a log that ends before it leaves the messages to be scanned again.
            after = behind if number == len(hidden) and not taken else before
            self._store.journal.hide(place, own, until_ms, attempt, before, after)
            self._groups.progress.hide(place, own, until_ms, attempt, after)
            look.fresh -= len(own)
        if taken:
            records = _picked(scanned.records, scanned.sizes, taken)
            sizes, own = [scanned.sizes[index] for index in taken], [offsets[index] for index in taken]
            of_own = [attempts[index] for index in taken]
            self._lease(look, place, _by_attempt(own, of_own), behind, Columns(records, sizes, own, of_own))
        elif not hidden:
            self._pass(place, behind)
        self._groups.armed()
        if look.peek and behind < scanned.next_offset:
            look.found = True

    def _lease(
        self,
        look: _Look,
        place: Place,
        parts: Sequence[tuple[list[int], int, Hold | None]],
        after: int,
        held: "Columns",
    ) -> None:
        """One lease over messages of a place; each of the parts has an attempt and a past of its own."""
        asked, groups = look.asked, self._groups
        now_ms = self._store.clock.now_ms()
        until_ms, before = now_ms + asked.invisible_ms, place.frontier
        lease = groups.progress.new_lease(place, now_ms, asked.max_attempts, ordered=asked.ordered)
        outstanding = groups.progress.outstanding
        for number, (offsets, attempt, past) in enumerate(parts, 1):
            groups.give(lease, offsets, until_ms, attempt, after if number == len(parts) else before, past)
        look.fresh -= groups.progress.outstanding - outstanding
        look.given.append(Given(lease, held.records, held.sizes, held.offsets, held.attempts, until_ms))
        look.found = True
        look.count -= len(held.offsets)
        look.size -= len(held.records)


@dataclass(slots=True)
class Columns:
    """Records back to back, and a value for each."""

    records: bytes
    sizes: list[int]
    offsets: list[int]
    attempts: list[int]


def _from(places: list[Place], number: int) -> list[Place]:
    at = number % len(places) if places else 0
    return places[at:] + places[:at]


def _by_attempt(offsets: list[int], attempts: list[int]) -> list[tuple[list[int], int, Hold | None]]:
    first = attempts[0]
    if attempts.count(first) == len(attempts):
        return [(offsets, first, None)]
    found: dict[int, list[int]] = {}
    for offset, attempt in zip(offsets, attempts, strict=True):
        found.setdefault(attempt, []).append(offset)
    return [(own, attempt, None) for attempt, own in found.items()]


def _number(value: bytes | None) -> int:
    return int(value) if value and value.isdigit() and len(value) <= _I64_DIGITS_MAX else 0


def _fitting(sizes: list[int], size: int, least: int) -> int:
    """How many of the first ones have `size` at most together; `least` at least."""
    if sum(sizes) <= size:
        return len(sizes)
    total = 0
    for index, one in enumerate(sizes):
        total += one
        if total > size:
            return max(index, least)
    return len(sizes)


def _picked(records: bytes, sizes: list[int], indices: list[int]) -> bytes:
    if len(indices) == len(sizes):
        return records
    starts = [0, *accumulate(sizes)]
    return b"".join([records[starts[index] : starts[index + 1]] for index in indices])


def reconsume_times(records: bytes, sizes: list[int]) -> list[int]:
    """Of intact records, back to back."""
    found = []
    at = 0
    for size in sizes:
        flags = records[at + record.SYS_FLAG_AT + 3]
        place = at + _RECONSUME_AT
        if flags & (record.SYS_BORN_V6 | record.SYS_STORE_V6):
            place += 12 * (flags >> 4 & 1) + 12 * (flags >> 5 & 1)
        found.append(int.from_bytes(records[place : place + 4], "big", signed=True))
        at += size
    return found
