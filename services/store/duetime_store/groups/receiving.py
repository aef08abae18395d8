"""Receive, AwaitMessages and TakeExhausted: waiting for messages, leasing them, and callers that leave."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from duetime_core.errors import FailedPrecondition, Overloaded
from duetime_core.telemetry.logs import sparing
from duetime_format.events import PlaceKey
from duetime_format.names import retry_topic
from duetime_format.priority import PRIORITY_TYPE
from duetime_format.texts import shown

from duetime_store.groups.fetch import FetchProgress, FetchRequest, LeasedBatch
from duetime_store.groups.groups import GroupRegistry, OpenMessage
from duetime_store.groups.holds import GroupPlace
from duetime_store.groups.lines import MessageWaiter, WaiterLine, WaiterLines
from duetime_store.groups.lites import LiteReceiver, Take
from duetime_store.groups.offsets import CommittedOffsets
from duetime_store.groups.priorities import PriorityFetcher
from duetime_store.queues.consumequeue import ConsumeQueue
from duetime_store.queues.queues import unknown_topic
from duetime_store.reading.offsets import first_stored_at
from duetime_store.reading.turns import ScanTurns, YieldingScan
from duetime_store.writing.flusher import Flusher
from duetime_store.writing.store import Store

log = sparing()

# Another filter of a group is rejected for this long after the last use of the first.
FILTER_MS = 60_000
# Characters of each filter shown in the error.
FILTER_SHOWN_CHARS = 256


class AnswerRoom(Protocol):
    """Room for a call's answer, reserved in the step in which messages are leased: other calls of its caller may have
    waited for the same messages."""

    def left(self, wanted: int) -> int:
        """The number of `wanted` bytes for which there is room. Raises: Overloaded: too few."""
        ...

    def take(self, size: int) -> None:
        """Counts leased bytes."""
        ...


class GroupReceiver:
    """Serves Receive and AwaitMessages."""

    def __init__(
        self,
        store: Store,
        fetcher: PriorityFetcher,
        groups: GroupRegistry,
        lines: WaiterLines,
        offsets: CommittedOffsets,
        flusher: Flusher,
        turns: ScanTurns,
        lites: LiteReceiver,
    ) -> None:
        self._lites = lites
        self._store = store
        self._queues = store.queues
        self._clock = store.clock
        self._gate = store.gate
        self._turns = turns
        self._groups = groups
        self._fetcher = fetcher
        self.gates = lites.gates
        self._offsets = offsets
        self._flusher = flusher
        self._lines = lines

    # --- calls ------------------------------------------------------------------------------------------------------

    async def receive(self, asked: FetchRequest, room: AnswerRoom | None = None) -> list[LeasedBatch]:
        """Leases messages, after waiting for the first; durable on return. If the caller leaves in the meantime, gives
        them back.

        Raises:
            FailedPrecondition: the group uses another filter.
            Overloaded: the limit of outstanding messages is reached, or there is no room for the answer.
            NotFound: no such topic or queue.
        """
        given: list[LeasedBatch] = []
        has_lapsed = False

        def taken(fetch: Callable[[FetchRequest], FetchProgress]) -> FetchProgress:
            nonlocal has_lapsed
            fitting = asked if room is None else replace(asked, max_bytes=room.left(asked.max_bytes))
            fetched = fetch(fitting)
            given.extend(fetched.given)
            if fetched.lapsed:
                has_lapsed = True
                self._flusher.wake()
            if room is not None:
                room.take(sum(len(one.records) for one in fetched.given))
            return fetched

        def take(line: WaiterLine, walk: YieldingScan) -> FetchProgress:
            return taken(lambda fitting: self._fetch(fitting, line, walk, peek=False))

        def take_lites(keys: Sequence[str], walk: YieldingScan) -> FetchProgress:
            return taken(lambda fitting: self._fetch_lites(fitting, keys, walk, peek=False))

        try:
            if asked.lites:
                await self._until_lites(asked, take_lites)
            else:
                await self._until_found(asked, take)
            if given or has_lapsed:
                await self.durable()
        except BaseException:
            self._groups.not_received((one.lease, one.offsets) for one in given)
            self._flusher.wake()
            raise
        self._groups.gave(asked.group, asked.topic, asked.member, sum(len(one.sizes) for one in given))
        return given

    async def ready(self, asked: FetchRequest) -> bool:
        """Whether there is something, after waiting for it."""
        if asked.lites:
            return await self._until_lites(asked, lambda keys, walk: self._fetch_lites(asked, keys, walk, peek=True))
        return await self._until_found(asked, lambda line, walk: self._fetch(asked, line, walk, peek=True), peek=True)

    async def take_exhausted(self, count: int, invisible_ms: int, wait_ms: float) -> list[OpenMessage]:
        """Leases exhausted messages, after waiting for the first; durable on return."""
        self._gate.check_write()
        clock, groups = self._clock, self._groups
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
            groups.not_received((one.lease, [one.offset]) for one in taken)
            raise
        return taken

    async def durable(self) -> None:
        """Returns once every change of groups so far is durable."""
        await self._flusher.events_durable()

    async def _until_found(
        self, asked: FetchRequest, take: Callable[[WaiterLine, YieldingScan], FetchProgress], *, peek: bool = False
    ) -> bool:
        """Fetches at each turn of this call, until it finds something or its time is over."""
        self._gate.check_write()
        if asked.ordered and self._has_priorities(asked.topic):
            raise FailedPrecondition(
                f"group {asked.group} is ordered, and topic {asked.topic} has priorities: use a group without order",
                reason="PRIORITY_ORDERED",
            )
        line = self._line(asked)
        await self._make_places(asked, line)
        clock = self._clock
        found: bool | None = None
        if not (peek or asked.wait_ms):
            line.accept(asked.max_count)
        give_up_ms = clock.monotonic_ms() + asked.wait_ms
        waiter: MessageWaiter | None = None
        try:
            while True:
                may_fetch = waiter is not None or self._is_next(asked, line)
                if may_fetch and await self.gates.pauses.over(asked.group, asked.topic, give_up_ms, line):
                    await self._join(asked)
                    found = await self._found(asked, line, take, give_up_ms)
                    if found is not None:
                        return found
                    if self.gates.pauses.holds(asked.group, asked.topic):
                        continue
                left_ms = give_up_ms - clock.monotonic_ms()
                if line.is_over:
                    self._check_there(asked)
                if left_ms <= 0 or line.is_over:
                    return False
                if waiter is None:
                    waiter = MessageWaiter(asyncio.get_running_loop().create_future())
                    line.waiters.append(waiter)
                elif waiter.future.done():
                    waiter.future = asyncio.get_running_loop().create_future()
                await clock.wait_for(waiter.future, left_ms)
        finally:
            if waiter is not None:
                line.waiters.remove(waiter)
            if peek and found:
                line.offer(asked.max_count, clock)
            if line.waiters and self._may_have_more(asked):
                self._wake_next(asked, line, peek=peek)

    async def _until_lites(self, asked: FetchRequest, take: Take) -> bool:
        self._gate.check_write()
        found = await self._lites.until_found(asked, take)
        self._check_there(asked)
        return found

    async def _found(
        self,
        asked: FetchRequest,
        line: WaiterLine,
        take: Callable[[WaiterLine, YieldingScan], FetchProgress],
        give_up_ms: float,
    ) -> bool | None:
        """Fetches until something is found (True), or nothing is left to scan or the group is paused (None). False:
        there is more, but the call's time is over, or the line has ended; the next call continues where this one
        stopped."""
        clock = self._clock
        with self._turns.walk() as walk:
            await walk.begin_for(asked.wanted)
            while not line.is_over:
                if self.gates.pauses.holds(asked.group, asked.topic):
                    return None
                fetched = take(line, walk)
                if fetched.found:
                    return True
                if not fetched.unfinished:
                    return None
                if walk.is_long and clock.monotonic_ms() >= give_up_ms:
                    return False
                await walk.turn()
        self._check_there(asked)
        return False

    def _check_there(self, asked: FetchRequest) -> None:
        """For a line that has ended. Raises: NotFound: its topic was deleted."""
        if self._store.closing.is_deleted(asked.topic):
            raise unknown_topic(asked.topic)

    def _line(self, asked: FetchRequest) -> WaiterLine:
        line = self._lines.of(asked.group, asked.topic)
        now_ms, text = self._clock.now_ms(), asked.wanted.text
        used_ms = line.filter_used_ms
        if used_ms is not None and line.filter_text != text and now_ms - used_ms < FILTER_MS:
            other, this = (shown(one or "*", FILTER_SHOWN_CHARS) for one in (line.filter_text, text))
            raise FailedPrecondition(
                f"group {asked.group} received {asked.topic} with filter {other} less than {FILTER_MS // 1000} s "
                f"ago, and {this} differs: messages dropped by one filter never reach the other",
                reason="FILTER_CONFLICT",
            )
        line.filter_text, line.filter_used_ms = text, now_ms
        return line

    # --- places -----------------------------------------------------------------------------------------------------

    async def _make_places(self, asked: FetchRequest, line: WaiterLine) -> None:
        with self._turns.walk() as walk:
            walk.start_freely()
            await self._make_missing(asked, line, walk)

    async def _make_missing(self, asked: FetchRequest, line: WaiterLine, walk: YieldingScan) -> None:
        places = self._groups.progress.places
        group, topic, back = asked.group, asked.topic, retry_topic(asked.group)
        for queue_id in asked.queues:
            key = PlaceKey(group, topic, topic, queue_id)
            if key not in places:
                queue = self._queues.find(topic, queue_id)
                offset = await self._start(walk, key, queue, asked.start_at_ms)
                self._make(key, queue, offset, line, asked.caller)
        for queue_id in asked.retry_queues:
            key = PlaceKey(group, topic, back, queue_id)
            if key not in places:
                self._queues.counts.check(back, queue_id + 1)
                queue = self._queues.get_bytes(back.encode(), queue_id)
                self._make(key, queue, await self._start(walk, key, queue, 0), line, asked.caller)
        if len(line.queues) < len(asked.queues) + len(asked.retry_queues):
            # After a start there are places without a listening line.
            for name, queue_ids in ((topic, asked.queues), (back, asked.retry_queues)):
                for queue_id in queue_ids:
                    line.listen(self._queues.get_bytes(name.encode(), queue_id))

    async def _join(self, asked: FetchRequest) -> None:
        """Counts the keys of leased messages, if the group has a limit by key that is new here."""
        gate = self.gates.keys.find(asked)
        if gate is None:
            return
        own, retries = self._places(asked)
        if not gate.places.issuperset((*own, *retries)):
            with self._turns.walk() as walk:
                walk.start_freely()
                await gate.join((*own, *retries), self._fetcher, walk)

    def _make(self, key: PlaceKey, queue: ConsumeQueue, offset: int, line: WaiterLine, caller: str) -> None:
        if queue.is_gone:
            raise unknown_topic(key.topic)
        if key not in self._groups.progress.places:
            self._groups.new_place(key, offset, caller)
            line.listen(queue)
            log.info("group begins in a queue", **key._asdict(), offset=offset)

    async def _start(self, walk: YieldingScan, key: PlaceKey, queue: ConsumeQueue, start_at_ms: int) -> int:
        """The first offset of a group: its own committed one, or by time, or the first message."""
        known = self._offsets.find(key.group, key.queue_topic).get(key.queue)
        if known is not None:
            return min(max(known, queue.min_offset), queue.max_offset)
        if start_at_ms > 0:
            return await first_stored_at(walk, self._store.log, queue, start_at_ms)
        return queue.min_offset

    def _places(self, asked: FetchRequest) -> tuple[list[GroupPlace], list[GroupPlace]]:
        """The places of the topic, and those of %RETRY%group."""
        get, group, topic = self._groups.progress.places.get, asked.group, asked.topic
        own = [get(PlaceKey(group, topic, topic, queue_id)) for queue_id in asked.queues]
        back = retry_topic(group)
        retries = [get(PlaceKey(group, topic, back, queue_id)) for queue_id in asked.retry_queues]
        return [place for place in own if place], [place for place in retries if place]

    def _has_priorities(self, topic: str) -> bool:
        return self._queues.counts.type_of(topic) == PRIORITY_TYPE

    def _may_have_more(self, asked: FetchRequest) -> bool:
        own, retries = self._places(asked)
        return self._fetcher.may_have_more((*own, *retries))

    def _is_next(self, asked: FetchRequest, line: WaiterLine) -> bool:
        """Whether a call that has not waited yet may fetch: those that wait for permits come first."""
        bucket = self.gates.permits.find(asked)
        if line.waiters and bucket is not None and bucket.is_held and (asked.wait_ms or not bucket.accept()):
            return False
        return not asked.wait_ms or not line.is_waking

    def _wake_next(self, asked: FetchRequest, line: WaiterLine, *, peek: bool) -> None:
        """Wakes the next waiter, if there are permits for it, and messages: a call that only looked takes those that it
        found."""
        bucket = self.gates.permits.find(asked)
        if bucket is None or not (peek or bucket.is_held):
            own, retries = self._places(asked)
            if self._fetcher.unread_count((*own, *retries)) > line.offered:
                line.wake()
        elif peek:
            bucket.offer(line.wake)

    def _fetch(self, asked: FetchRequest, line: WaiterLine, walk: YieldingScan, *, peek: bool) -> FetchProgress:
        """Fetches no more than the group's rate permits; holds the line if there are no permits."""
        bucket = self.gates.permits.find(asked)
        if bucket is None:
            return self._fetch_freely(asked, line, walk, peek=peek)
        if not bucket.count:
            if self._may_have_more(asked):
                bucket.hold(line.wake)
            return FetchProgress(asked, 0, 0, 0, peek, walk)
        fetched = self._fetch_freely(bucket.reduced(asked), line, walk, peek=peek)
        bucket.give(fetched.given)
        if not bucket.count and self._may_have_more(asked):
            bucket.note_shortage()
        return fetched

    def _fetch_freely(self, asked: FetchRequest, line: WaiterLine, walk: YieldingScan, *, peek: bool) -> FetchProgress:
        own, retries = self._places(asked)
        line.turn += 1
        own, retries = _from(own, line.turn), _from(retries, line.turn)
        if not peek and self._has_priorities(asked.topic):
            fetched = self._fetcher.fetch_by_priority(
                asked, own, retries, walk, line.precedence, fresh_first=line.fresh_first
            )
        else:
            fetched = self._fetcher.fetch(asked, own, retries, walk, fresh_first=line.fresh_first, peek=peek)
        line.fresh_first = fetched.only_again
        self._check_refused(asked, fetched)
        return fetched

    def _fetch_lites(
        self, asked: FetchRequest, keys: Sequence[str], walk: YieldingScan, *, peek: bool
    ) -> FetchProgress:
        fetched = self._lites.fetch(asked, keys, walk, peek=peek)
        self._check_refused(asked, fetched)
        return fetched

    def _check_refused(self, asked: FetchRequest, fetched: FetchProgress) -> None:
        """Raises: Overloaded: there are messages, but no more may be outstanding."""
        if fetched.refused and not fetched.found:
            progress, group, caller = self._groups.progress, asked.group, asked.caller
            shares, callers = progress.shares, progress.callers
            raise Overloaded(
                f"{shares.used} messages of all groups are outstanding on this shard; the limit is {shares.limit}; "
                f"{callers.held(caller)} belong to {caller}; its limit is {callers.share}; "
                f"{shares.held(group)} belong to group {group}; its limit is {shares.share}",
                reason="LEASES_EXHAUSTED",
            )


def _from(places: list[GroupPlace], number: int) -> list[GroupPlace]:
    at = number % len(places) if places else 0
    return places[at:] + places[:at]
