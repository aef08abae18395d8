"""Receives of lite topics: each in order, with one lease at a time, for the members that subscribe to it.

A receive names its lite topics, so the store keeps no subscription. The place of a group in a lite topic is one in the
parent's queue (`PlaceKey.is_lite`), made with the group's first message: an offset, journaled like all others.

    receive ──▶ waits under the name of each of its lite topics ──▶ a message comes, or returns: its lite topic is ready
            ◀── a fetch looks at those that are ready, at first at all
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial
from heapq import nsmallest
from itertools import chain
from pathlib import Path

import numpy as np
from duetime.v1 import gateway_pb2
from duetime_format import record
from duetime_format.columns import retries, values
from duetime_format.events import PlaceKey
from duetime_format.names import LITE_PREFIX, lite_key

from duetime_store.files import configs
from duetime_store.groups.fetch import Columns, Fetcher, FetchProgress, FetchRequest, by_attempt
from duetime_store.groups.gates import DeliveryGates
from duetime_store.groups.groups import GroupRegistry
from duetime_store.groups.holds import RETURNED, GroupPlace
from duetime_store.groups.lines import LiteWaiter, WaiterLines
from duetime_store.groups.state import GroupProgress
from duetime_store.lanes.alarm import ShardClock
from duetime_store.log.commitlog import CommitLog
from duetime_store.queues.consumequeue import ConsumeQueue
from duetime_store.queues.lites import Lites, LiteTopicIndex
from duetime_store.queues.queues import Queues
from duetime_store.reading.lites import LiteFiller
from duetime_store.reading.offsets import first_stored_at
from duetime_store.reading.reader import Reader, fitting
from duetime_store.reading.turns import ScanTurns, YieldingScan
from duetime_store.writing.flusher import Flusher
from duetime_store.writing.staging import wake

_QUEUE_OFFSET = record.MULTI_QUEUE_OFFSET.encode()
# The table of a broker's offsets in lite topics.
_LITE_TABLE = "lmqOffsetTable"
# Records read at a time to find a broker's offset.
_PIECE = 256
# Names looked at in one step.
_KEYS = 4_096
# Cached starts of groups.
_STARTS_MAX = 1_024
# Fetches messages of these lite topics within a step of the walk.
Take = Callable[[Sequence[str], YieldingScan], FetchProgress]


class LiteFetcher(Fetcher):
    """Fetches available messages of lite topics for a group."""

    def __init__(
        self,
        queues: Queues,
        clock: ShardClock,
        reader: Reader,
        groups: GroupRegistry,
        lites: Lites,
        filler: LiteFiller,
        brokers: Mapping[str, int],
    ) -> None:
        """`brokers`: offsets of groups in lite topics of a broker, see `brokers_offsets`."""
        super().__init__(queues, clock, reader, groups)
        self._brokers = brokers
        self._lites = lites
        self._filler = filler
        # The first offset in each queue of a parent topic, by topic and time, for groups that start at a time.
        self.starts: dict[tuple[str, int], dict[int, int]] = {}

    def fetch_lites(self, asked: FetchRequest, keys: Sequence[str], walk: YieldingScan, *, peek: bool) -> FetchProgress:
        """Takes messages of these lite topics, up to the limits. `unvisited` of the answer are those it did not get
        to."""
        groups = self._groups
        groups.expire()
        room = groups.progress.room(asked.group, asked.caller)
        fetched = FetchProgress(asked, asked.max_count, asked.max_bytes, room, peek, walk)
        for index, key in enumerate(keys):
            if fetched.is_over or fetched.pause():
                fetched.unvisited = list(keys[index:])
                break
            lite = self._lites.use(key)
            if lite is not None:
                self._take(fetched, key, lite)
                if fetched.unfinished:
                    fetched.unvisited = list(keys[index:])
                    break
        return fetched

    def may_have(self, asked: FetchRequest, key: str) -> bool:
        """Whether another fetch may find a message of the lite topic."""
        lite = self._lites.get(key)
        if lite is None:
            return False
        places = [self._known(asked, key, number) for number in lite.queues]
        if any(place is not None and place.is_blocked for place in places):
            return False
        return any(
            place is None or place.available or lite.unread(number, place.frontier)
            for place, number in zip(places, lite.queues, strict=True)
        )

    def _known(self, asked: FetchRequest, key: str, number: int) -> GroupPlace | None:
        return self._groups.progress.places.get(PlaceKey(asked.group, key, asked.topic, number))

    def _take(self, fetched: FetchProgress, key: str, lite: LiteTopicIndex) -> None:
        places = [self._place(fetched.asked, key, number) for number in lite.queues if number in fetched.asked.queues]
        for place in places:
            self._groups.drop_before(place, self.queue(place).min_offset)
        if any(place.is_blocked for place in places):
            return
        for place in places:
            if place.entries:
                self._drop_foreign(place, lite)
                self._again(fetched, place)
        if any(place.entries for place in places):
            # Returned messages come first, alone, which keeps the order.
            return
        count = fetched.count if len(places) == 1 else 1
        # The next one may be in another queue.
        while (oldest := self._oldest(places, lite)) and not self._next(fetched, oldest, lite, count):
            pass

    def _place(self, asked: FetchRequest, key: str, number: int) -> GroupPlace:
        """Raises: Overloaded: the shard or the caller has the maximum of places."""
        found = self._known(asked, key, number)
        if found is None:
            queue = self._queues.find(asked.topic, number)
            start = self.starts.get((asked.topic, asked.start_at_ms), {}).get(number, 0)
            start = max(start, queue.min_offset, self._brokers_start(asked.group, key, queue))
            found = self._groups.new_place(PlaceKey(asked.group, key, asked.topic, number), start, asked.caller)
        return found

    def _brokers_start(self, group: str, key: str, queue: ConsumeQueue) -> int:
        """The offset of the first message in the queue that the group has not read at a broker; 0: it was not there."""
        read, lite = self._brokers.get(f"{key}@{group}", 0), self._lites.get(key)
        if not read or lite is None:
            return 0
        offsets = lite.after(queue.queue, 0, lite.unread(queue.queue, 0))
        for at in range(0, len(offsets), _PIECE):
            piece = np.array(offsets[at : at + _PIECE], np.int64)
            records, sizes, _, _ = self.reader.read(queue, piece, queue.read_at(piece))
            # DueTime's own messages have no such property, and no broker has read them.
            (numbers,) = values(records, sizes, (_QUEUE_OFFSET,))
            for offset, number in zip(piece.tolist(), numbers, strict=True):
                if number is None or not number.isdigit() or int(number) >= read:
                    return int(offset)
        return offsets[-1] + 1 if offsets else 0

    def _drop_foreign(self, place: GroupPlace, lite: LiteTopicIndex) -> None:
        """Ends returned messages of other lite topics: after a loss of events, a place has all of its queue."""
        key = place.key
        returned = [offset for offset, hold in place.entries.items() if hold.state == RETURNED]
        if returned and self._filler.is_indexed(key.queue_topic, key.queue, max(returned)):
            foreign = [offset for offset in returned if not lite.has(key.queue, offset)]
            if foreign:
                self._groups.skip(place, sorted(foreign))

    def _oldest(self, places: Sequence[GroupPlace], lite: LiteTopicIndex) -> GroupPlace | None:
        """The place with the first unread message in the log."""
        if len(places) == 1:
            return places[0]
        found: list[tuple[int, int, GroupPlace]] = []
        for place in places:
            for offset in lite.after(place.key.queue, place.frontier, 1):
                units = self.queue(place).read(offset, 1)
                found.append((int(units["position"][0]) if len(units) else 0, place.key.queue, place))
        return min(found, default=(0, 0, None))[2]

    def _next(self, fetched: FetchProgress, place: GroupPlace, lite: LiteTopicIndex, count: int) -> bool:
        """Takes unread messages of the place. Returns False if the first ones are gone, damaged or expired."""
        offsets = lite.after(place.key.queue, place.frontier, 1 if fetched.peek else max(count, 1))
        if not offsets or fetched.is_over:
            return True
        if fetched.fresh <= 0:
            fetched.refused = True
            return True
        if fetched.peek:
            fetched.found = True
            return True
        if self._lease_some(fetched, place, offsets[: fetched.fresh]):
            return True
        self._lapse_ahead(fetched, place, partial(self._ahead, place, lite, fetched))
        return fetched.pause()

    def _ahead(
        self, place: GroupPlace, lite: LiteTopicIndex, fetched: FetchProgress, count: int
    ) -> tuple[Columns, int]:
        """Messages after the frontier, and the offset after them."""
        queue, offsets = self.queue(place), lite.after(place.key.queue, place.frontier, count)
        units = queue.read_at(np.array(offsets, np.int64))
        fit = fitting(units["size"].tolist(), fetched.asked.max_bytes)
        offsets = offsets[:fit]
        records, sizes, _, _ = self.reader.read(queue, np.array(offsets, np.int64), units[:fit])
        kept = [offset for offset, size in zip(offsets, sizes, strict=True) if size]
        after = offsets[-1] + 1 if offsets else place.frontier
        return Columns(records, [size for size in sizes if size], kept, []), after

    def _lease_some(self, fetched: FetchProgress, place: GroupPlace, offsets: list[int]) -> bool:
        """Leases the first messages that fit. Returns False if none is left of them: they are gone, damaged or
        expired."""
        queue = self.queue(place)
        units = queue.read_at(np.array(offsets, np.int64))
        fit = fitting(units["size"].tolist(), fetched.size, least=0 if fetched.given else 1)
        if not fit:
            fetched.count = 0
            return True
        there = np.array(offsets[:fit], np.int64)
        records, sizes, _, _ = self.reader.read(queue, there, units[:fit])
        kept = [offset for offset, size in zip(offsets, sizes, strict=False) if size]
        after = offsets[fit - 1] + 1
        if not kept:
            self._pass(place, after)
            return False
        sizes = [size for size in sizes if size]
        attempts = [count + 1 for count in retries(records, sizes)]
        return self._lease(fetched, place, by_attempt(kept, attempts), after, Columns(records, sizes, kept, attempts))


class LiteReceiver:
    """Waits for messages of lite topics."""

    def __init__(
        self,
        queues: Queues,
        log: CommitLog,
        clock: ShardClock,
        fetcher: LiteFetcher,
        lines: WaiterLines,
        filler: LiteFiller,
        turns: ScanTurns,
        gates: DeliveryGates,
    ) -> None:
        self._queues = queues
        self._log = log
        self._clock = clock
        self._fetcher = fetcher
        self._waiters = lines.lites
        self._filler = filler
        self._turns = turns
        self.gates = gates

    def fetch(self, asked: FetchRequest, keys: Sequence[str], walk: YieldingScan, *, peek: bool) -> FetchProgress:
        """Fetches no more than the group's rate permits."""
        bucket = self.gates.permits.find(asked)
        if bucket is None:
            return self._fetcher.fetch_lites(asked, keys, walk, peek=peek)
        fetched = self._fetcher.fetch_lites(bucket.reduced(asked), keys, walk, peek=peek)
        bucket.give(fetched.given)
        return fetched

    async def until_found(self, asked: FetchRequest, take: Take) -> bool:
        """Fetches, and waits for new messages, until one is found or the time is over. False: none is found, or the
        group or its topic has been deleted."""
        self._filler.watch(asked.topic)
        if asked.start_at_ms:
            await self._find_starts(asked)
        clock = self._clock
        give_up_ms = clock.monotonic_ms() + asked.wait_ms
        new_future = asyncio.get_running_loop().create_future
        waiter = LiteWaiter(new_future(), asked.group)
        self._waiters.join(waiter, asked.lites)
        left: Sequence[str] = asked.lites
        try:
            while not waiter.is_over and await self.gates.pauses.over(asked.group, asked.topic, give_up_ms, waiter):
                left = await self._permitted(asked, left, give_up_ms, waiter)
                with self._turns.walk() as walk:
                    walk.start_freely()
                    while left and not self._is_closed(asked):
                        fetched = take(left, walk)
                        left = fetched.unvisited
                        if fetched.found:
                            return True
                        await walk.turn_if_over()
                left_ms = give_up_ms - clock.monotonic_ms()
                if left_ms <= 0:
                    break
                if left:
                    # The group is paused, or has no permits.
                    continue
                if not waiter.ready:
                    if waiter.future.done():
                        waiter.future = new_future()
                    await clock.wait_for(waiter.future, left_ms)
                left, waiter.ready = [*waiter.ready], set()
            return False
        finally:
            self._waiters.leave(waiter, asked.lites)
            for key in {*left, *waiter.ready}:
                if self._fetcher.may_have(asked, key):
                    self._waiters.wake(key, asked.group)

    def _is_closed(self, asked: FetchRequest) -> bool:
        """Whether the group may receive nothing now."""
        bucket = self.gates.permits.find(asked)
        return self.gates.pauses.holds(asked.group, asked.topic) or (bucket is not None and not bucket.count)

    async def _permitted(
        self, asked: FetchRequest, keys: Sequence[str], give_up_ms: float, waiter: LiteWaiter
    ) -> Sequence[str]:
        """Those of the lite topics that may have messages, after waiting for the group's permits."""
        while (bucket := self.gates.permits.find(asked)) is not None and not bucket.count:
            keys = [key for key in keys if self._fetcher.may_have(asked, key)]
            left_ms = give_up_ms - self._clock.monotonic_ms()
            if not keys or left_ms <= 0 or waiter.is_over:
                break
            permitted = asyncio.get_running_loop().create_future()
            bucket.hold(partial(wake, (permitted,)))
            await self._clock.wait_for(permitted, left_ms)
        return keys

    async def _find_starts(self, asked: FetchRequest) -> None:
        """Looks up where a new group starts in each queue."""
        starts, name = self._fetcher.starts, (asked.topic, asked.start_at_ms)
        if name in starts:
            return
        if len(starts) >= _STARTS_MAX:
            starts.clear()
        found: dict[int, int] = {}
        with self._turns.walk() as walk:
            walk.start()
            for number in asked.queues:
                queue = self._queues.find(asked.topic, number)
                found[number] = await first_stored_at(walk, self._log, queue, asked.start_at_ms)
        starts[name] = found


async def list_lite_topics(
    turns: ScanTurns,
    lites: Lites,
    progress: GroupProgress,
    request: gateway_pb2.ListLiteTopicsRequest,
    flusher: Flusher,
) -> gateway_pb2.ListLiteTopicsResponse:
    """The lite topics of a topic after a name, by name, as many as requested."""
    prefix, keys = lite_key(request.topic, ""), list(lites)
    names: list[str] = []
    with turns.walk() as walk:
        walk.start()
        for at in range(0, len(keys), _KEYS):
            some = (key for key in keys[at : at + _KEYS] if key.startswith(prefix))
            # One without messages was opened, and its message rejected.
            found = (key.removeprefix(prefix) for key in some if (lite := lites.get(key)) and lite.count)
            names = nsmallest(request.max_count, chain(names, (name for name in found if name > request.after)))
            await walk.turn_if_over()
    response = gateway_pb2.ListLiteTopicsResponse()
    for name in names:
        key = lite_key(request.topic, name)
        lite = lites.get(key)
        if lite is not None:
            unread = _unread(progress, lite, PlaceKey(request.group, key, request.topic, 0)) if request.group else 0
            response.lite_topics.add(name=name, message_count=lite.count, unread_count=unread)
    # The answer may rely on events that are not durable yet.
    await flusher.events_durable()
    return response


def _unread(progress: GroupProgress, lite: LiteTopicIndex, key: PlaceKey) -> int:
    """Messages that the group of the key has not received."""
    places = ((number, progress.places.get(key._replace(queue=number))) for number in lite.queues)
    return sum(lite.unread(number, 0 if place is None else place.frontier) for number, place in places)


def brokers_offsets(config: Path) -> dict[str, int]:
    """Offsets of groups in lite topics, as a broker counts them: by `key@group`. An import puts them into the file of
    all offsets."""
    found: dict[str, int] = {}
    for name in (configs.LITE_OFFSETS, configs.CONSUMER_OFFSETS):
        table = (configs.load(config, name).value or {}).get(_LITE_TABLE)
        for key, offset in table.items() if isinstance(table, dict) else ():
            if isinstance(offset, int) and key.startswith(LITE_PREFIX):
                found[key] = max(offset, found.get(key, 0))
    return found


class LitePlaces:
    """The places of groups in lite topics: see duetime_store.reading.lites.LiteReaders."""

    def __init__(self, progress: GroupProgress, lines: WaiterLines) -> None:
        self._progress = progress
        self.placed = frozenset(key.topic for key in progress.places if key.is_lite)
        self.arrived = lines.lites.wake

    def forget(self, unused: Set[str]) -> Set[str]:
        """Those with outstanding messages stay."""
        places = [place for place in self._progress.places.values() if place.key.topic in unused]
        kept = {place.key.topic for place in places if place.entries}
        for place in places:
            if place.key.topic not in kept:
                self._progress.forget(place)
        return kept
