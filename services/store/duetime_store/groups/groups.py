"""The registry of a shard's groups: checks receipts, changes the state, journals the change, wakes waiters.

Every method is synchronous. Its change is durable once `Store.when_events_durable` says so, which callers await.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from duetime_core.telemetry.logs import sparing
from duetime_format import receipts
from duetime_format.events import LAPSED, SUPERSEDED, Letter, PlaceKey
from duetime_shard.gone import GoneDeadLetters

from duetime_store.files.gate import WriteGate
from duetime_store.groups.holds import GroupPlace, Hold, Lease
from duetime_store.groups.journal import GroupJournal
from duetime_store.groups.lines import WaiterLines
from duetime_store.groups.state import GroupProgress
from duetime_store.lanes.alarm import ShardClock
from duetime_store.log.journal import Journal
from duetime_store.queues.queues import Queues

log = sparing()

OK, EXPIRED, UNKNOWN = range(3)
# The status of a message that is done already, as for a repeated Ack.
DONE = -1

# Messages whose leases end in one step, some 2 us each, before others have their turn.
EXPIRE_STEP = 512
# The caller that places made by resets count for.
OPERATORS = "resets of groups"
MEMBERS_MAX = 1_000
# A group's activity is counted over a minute, by second.
_RATE_S = 60


@dataclass(slots=True)
class OpenMessage:
    """A message under a lease."""

    place: GroupPlace
    lease: Lease
    offset: int
    hold: Hold


@dataclass(slots=True)
class Rate:
    """Events of the last minute."""

    counts: deque[tuple[int, int]] = field(default_factory=deque)

    def add(self, now_ms: int, count: int) -> None:
        second = now_ms // 1_000
        if self.counts and self.counts[-1][0] == second:
            self.counts[-1] = (second, self.counts[-1][1] + count)
        else:
            self.counts.append((second, count))
            self._forget(second)

    def per_s(self, now_ms: int) -> float:
        self._forget(now_ms // 1_000)
        return sum(count for _, count in self.counts) / _RATE_S

    def _forget(self, second: int) -> None:
        while self.counts and self.counts[0][0] <= second - _RATE_S:
            self.counts.popleft()


@dataclass(slots=True)
class Activity:
    """A group's activity of the last minute, and its acknowledgements since the start; memory only."""

    acks: Rate = field(default_factory=Rate)
    acked_count: int = 0
    receives: Rate = field(default_factory=Rate)
    # Times of receives, by name and topic; the latest last.
    members: dict[tuple[str, str], int] = field(default_factory=dict)


class GroupRegistry:
    """See the module."""

    def __init__(
        self,
        queues: Queues,
        gate: WriteGate,
        clock: ShardClock,
        journal: Journal,
        progress: GroupProgress,
        gone: GoneDeadLetters,
        lines: WaiterLines,
        *,
        shard: int,
    ) -> None:
        self._queues = queues
        self.gate = gate
        self.clock = clock
        self.journal = GroupJournal(journal)
        self.progress = progress
        # The dead letters that are gone.
        self.gone = gone
        self.shard = shard
        # Waiters for returned messages.
        self._lines = lines
        self.activity: dict[str, Activity] = {}
        # Count of outstanding messages that retention deleted or that can't be read.
        self.lost_count = 0
        self._exhausted_waiters: list[asyncio.Future[None]] = []
        self._deadline_changed: asyncio.Future[None] | None = None
        self._armed_for_ms = 0

    # --- receipts ---------------------------------------------------------------------------------------------------

    def _inspect(self, group: str, receipt: bytes, now_ms: int) -> int | OpenMessage:
        """The message under a receipt, or the status if there is none: EXPIRED, UNKNOWN or done."""
        parsed = receipts.parse(receipt)
        if parsed is None or parsed.shard != self.shard:
            return UNKNOWN
        return self.find(group, parsed.lease, parsed.offset, now_ms)

    def find(self, group: str, lease_id: int, offset: int, now_ms: int) -> int | OpenMessage:
        """The message of a lease of this shard, or EXPIRED, UNKNOWN or DONE."""
        lease = self.progress.leases.get(lease_id)
        if lease is None:
            ended = self.progress.ended.leases.get(lease_id)
            if ended is None:
                return EXPIRED if lease_id <= self.progress.last_lease_id else UNKNOWN
            if ended.group != group or ended.was_reset:
                return UNKNOWN
            return EXPIRED if offset in ended.returned else DONE
        place = lease.place
        if place.key.group != group:
            return UNKNOWN
        hold = place.entries.get(offset)
        if hold is None or hold.lease is not lease:
            return EXPIRED if lease.returned is not None and offset in lease.returned else DONE
        if hold.until_ms <= now_ms or offset in place.settling:
            return EXPIRED
        return OpenMessage(place, lease, offset, hold)

    def _open(self, group: str, names: Sequence[bytes], done: int) -> tuple[list[int], dict[Lease, list[int]]]:
        """A status for each receipt, and the offsets of the OK ones, ascending, by lease; `done` is the status of
        messages already done."""
        now_ms = self.clock.now_ms()
        statuses: list[int] = []
        found: dict[Lease, list[int]] = {}
        for receipt in names:
            one = self._inspect(group, receipt, now_ms)
            if isinstance(one, int):
                statuses.append(done if one == DONE else one)
            else:
                statuses.append(OK)
                found.setdefault(one.lease, []).append(one.offset)
        return statuses, {lease: sorted(set(offsets)) for lease, offsets in found.items()}

    def open_one(self, group: str, receipt: bytes) -> OpenMessage | int:
        """The message under a receipt, or EXPIRED or UNKNOWN."""
        one = self._inspect(group, receipt, self.clock.now_ms())
        return EXPIRED if one == DONE else one

    # --- changes ----------------------------------------------------------------------------------------------------

    def ack(self, group: str, names: Sequence[bytes]) -> list[int]:
        self.gate.check_write()
        statuses, found = self._open(group, names, OK)
        self.end(group, found)
        return statuses

    def end(self, group: str, found: Mapping[Lease, list[int]]) -> None:
        """Ends messages under leases of a group: they are done."""
        count = 0
        for lease, offsets in found.items():
            place = lease.place
            self.journal.end(place, lease.id, offsets)
            count += self.progress.end(place, lease.id, offsets)
            self._unblocked(place)
        if count:
            active = self._active(group)
            active.acks.add(self.clock.now_ms(), count)
            active.acked_count += count

    def change(self, group: str, names: Sequence[bytes], invisible_ms: int, *, not_attempted: bool) -> list[int]:
        self.gate.check_write()
        statuses, found = self._open(group, names, EXPIRED)
        now_ms = self.clock.now_ms()
        for lease, offsets in found.items():
            if invisible_ms:
                self.journal.change(lease.place, lease.id, offsets, now_ms + invisible_ms)
                self.progress.change(lease.place, lease.id, offsets, now_ms + invisible_ms)
            else:
                self.give_back(lease, offsets, now_ms, counted=not not_attempted)
        self.armed()
        return statuses

    def give_back(self, lease: Lease, offsets: list[int], now_ms: int, *, counted: bool) -> None:
        """Gives messages back. With an ordered lease all later ones are given back too, uncounted: they were not
        reached."""
        later = self.progress.later_of(lease, offsets[0]) if lease.ordered else []
        self._back(lease, offsets, now_ms, counted=counted)
        self._back(lease, [offset for offset in later if offset not in offsets], now_ms, counted=False)
        self._wake({lease.place})

    def _back(self, lease: Lease, offsets: list[int], now_ms: int, *, counted: bool) -> None:
        if offsets:
            self.journal.back(lease.place, lease.id, offsets, now_ms, counted=counted)
            self.progress.give_back(lease.place, lease.id, offsets, now_ms, counted=counted)

    def not_received(self, leased: Iterable[tuple[Lease, list[int]]]) -> None:
        """Gives back, at once and uncounted, the messages of leases whose caller left before it was answered."""
        for lease, offsets in leased:
            get = lease.place.entries.get
            still = [offset for offset in offsets if (hold := get(offset)) is not None and hold.lease is lease]
            if still:
                self.give_back(lease, sorted(still), self.clock.now_ms(), counted=False)

    def defer(self, group: str, deferrals: Sequence[tuple[bytes, int, bytes]]) -> tuple[list[int], list[int]]:
        """`deferrals`: receipt, delay in ms and history of each. Returns statuses, and the time of each redelivery."""
        self.gate.check_write()
        now_ms = self.clock.now_ms()
        statuses, times = [], []
        for receipt, delay_ms, history in deferrals:
            one = self.open_one(group, receipt)
            if isinstance(one, int):
                statuses.append(one)
                times.append(0)
                continue
            later = self.progress.later_of(one.lease, one.offset) if one.lease.ordered else []
            self.journal.defer(one.place, one.lease.id, one.offset, now_ms + delay_ms, history)
            self.progress.defer(one.place, one.lease.id, one.offset, now_ms + delay_ms, history)
            self._back(one.lease, later, now_ms, counted=False)
            self._wake({one.place})
            statuses.append(OK)
            times.append(now_ms + delay_ms)
        self.armed()
        return statuses, times

    def settle(self, one: OpenMessage, copy: Letter) -> Callable[[bool], None]:
        """Ends the lease with a record that is being staged. Call the result with whether the record became durable."""
        place, lease_id, offset = one.place, one.lease.id, one.offset
        self.journal.settle(place, lease_id, offset, copy)
        place.settle(offset)

        def finish(stored: bool) -> None:
            if stored:
                self.progress.end(place, lease_id, [offset])
                self._unblocked(place)
            else:
                self.progress.undo_settling(place, offset)
                self.armed()

        return finish

    # --- dead letters -----------------------------------------------------------------------------------------------

    def settle_letter(self, letter: Letter, copy: Letter) -> Callable[[bool], None]:
        """As `settle`, for an existing dead letter."""
        self.gone.take(letter)
        self.journal.letter(letter, copy)

        def finish(stored: bool) -> None:
            if stored:
                self.gone.taken([letter])
            else:
                self.gone.give_back(letter)

        return finish

    def drop_letters(self, letters: Sequence[Letter]) -> list[bool]:
        """Marks dead letters as gone; False: it was gone before."""
        self.gate.check_write()
        dropped = [self.gone.take(letter) for letter in letters]
        by_queue: dict[tuple[str, int], list[int]] = {}
        for (topic, queue, offset), is_dropped in zip(letters, dropped, strict=True):
            if is_dropped:
                by_queue.setdefault((topic, queue), []).append(offset)
        for (topic, queue), offsets in by_queue.items():
            self.journal.taken(topic, queue, sorted(offsets))
            self.gone.taken((topic, queue, offset) for offset in offsets)
        return dropped

    # --- exhausted leases -------------------------------------------------------------------------------------------

    def take_exhausted(self, count: int, invisible_ms: int) -> list[OpenMessage]:
        now_ms = self.clock.now_ms()
        found = self.progress.take_exhausted(count)
        taken: list[OpenMessage] = []
        by_hold: dict[int, tuple[Hold, list[int]]] = {}
        for place, offset in found:
            hold = place.entries[offset]
            by_hold.setdefault(id(hold), (hold, []))[1].append(offset)
        for hold, offsets in by_hold.values():
            place = hold.place
            lease = self.progress.new_lease(place, now_ms, hold.attempt, is_taken=True, caller=hold.caller)
            until_ms = now_ms + invisible_ms
            self.give(lease, sorted(offsets), until_ms, hold.attempt, place.frontier, hold)
            taken += [OpenMessage(place, lease, offset, place.entries[offset]) for offset in sorted(offsets)]
        self.armed()
        return taken

    def give(
        self, lease: Lease, offsets: list[int], until_ms: int, attempt: int, after: int, past: Hold | None = None
    ) -> None:
        """Leases ascending offsets; the place's frontier becomes `after`."""
        expired, history = (past.expired, past.history) if past is not None else ((), b"")
        before = lease.place.frontier
        self.journal.give(lease, offsets, until_ms, attempt, before, after, expired)
        self.progress.give(lease, offsets, until_ms, attempt, after, expired=expired, history=history)

    def hide(
        self,
        place: GroupPlace,
        hidden: Mapping[tuple[int, int], list[int]],
        after: int,
        caller: str = "",
        *,
        parked: bool = False,
    ) -> None:
        """Adds messages hidden until their time, by time and attempt; the place's frontier becomes `after`. `parked`:
        until their key has a slot, with the time 0; after a start they are returned ones."""
        before = place.frontier
        for number, ((until_ms, attempt), offsets) in enumerate(hidden.items(), 1):
            # The last event moves the frontier: if the log ends before it, the messages are scanned again.
            reached = after if number == len(hidden) else before
            self.journal.hide(place, offsets, until_ms, attempt, before, reached)
            (self.progress.park if parked else self.progress.hide)(place, offsets, until_ms, attempt, reached, caller)

    def move(self, place: GroupPlace, frontier: int) -> None:
        """Moves the frontier: no message before it is for the group."""
        self.journal.scan(place, place.frontier, frontier)
        place.frontier = frontier

    def supersede(self, place: GroupPlace, offsets: list[int]) -> None:
        """Ends copies. Unread ones are after the frontier; the caller moves it past them. First gives leased ones back,
        without counting an attempt."""
        leased: dict[Lease, list[int]] = {}
        for offset in offsets:
            hold = place.entries.get(offset)
            if hold is not None and hold.lease is not None:
                leased.setdefault(hold.lease, []).append(offset)
        for lease, own in leased.items():
            self._back(lease, own, self.clock.now_ms(), counted=False)
        if offsets:
            self.journal.end(place, SUPERSEDED, offsets)
            self.progress.end(place, 0, offsets)
            self._unblocked(place)

    def drop(self, place: GroupPlace, offsets: list[int]) -> None:
        """Ends returned messages whose records are gone or damaged."""
        self.journal.end(place, 0, offsets)
        self.lost_count += self.progress.end(place, 0, offsets)

    def lapse(self, place: GroupPlace, offsets: list[int], lease_id: int = 0) -> None:
        """Ends expired messages: new ones, returned ones, or those under a retry service's lease. The caller moves the
        frontier past new ones."""
        self.journal.end(place, LAPSED, offsets)
        self.progress.lapse(place, offsets)
        self.progress.end(place, lease_id, offsets)
        self._unblocked(place)

    def skip(self, place: GroupPlace, offsets: list[int]) -> None:
        """Ends returned messages that are not for the place."""
        self.journal.end(place, 0, offsets)
        self.progress.end(place, 0, offsets)

    def drop_before(self, place: GroupPlace, offset: int) -> None:
        """Drops messages before `offset`, which retention has deleted."""
        if place.least < offset:
            count = self.progress.drop_before(place, offset)
            if count:
                self.lost_count += count
                log.warning("retention deleted unacknowledged messages", **place.key._asdict(), count=count)

    def segment_left(self) -> Iterator[None]:
        """Drops messages of a segment that retention has deleted, place after place."""
        for key, place in list(self.progress.places.items()):
            queue = self._queues.known(key.queue_topic.encode(), key.queue)
            if queue is not None and self.progress.places.get(key) is place:
                self.drop_before(place, queue.min_offset)
                self._unblocked(place)
            yield

    # --- places -----------------------------------------------------------------------------------------------------

    def receives(self, group: str, topic: str) -> bool:
        """Whether the group has a place in the topic, which may be its retry topic."""
        return any(key.group == group and topic in (key.topic, key.queue_topic) for key in self.progress.places)

    def new_place(self, key: PlaceKey, frontier: int, caller: str = OPERATORS) -> GroupPlace:
        """Makes a place. Raises: Overloaded: the shard or the caller has the maximum of places or groups."""
        self.progress.check_place(key.group, caller, is_lite=key.is_lite)
        place = self.progress.place(key, frontier, caller)
        self.journal.reset(place, frontier)
        return place

    def reset(self, key: PlaceKey, offset: int) -> None:
        """Makes the group continue from `offset` in the queue."""
        self.gate.check_write()
        place = self.progress.places.get(key)
        if place is None:
            self.new_place(key, offset)
        else:
            self.journal.reset(place, offset)
            self.progress.reset(place, offset)
            self._wake({place})

    def delete(self, group: str) -> None:
        self.gate.check_write()
        self.journal.delete(group)
        self.progress.delete(group)
        self.activity.pop(group, None)
        self._lines.end(group)

    def delete_topic(self, topic: str) -> None:
        """Removes the groups' places in a deleted topic. Those in retry topics stay, after all existing retries: a new
        topic with this name gets no retries of the old one."""
        for place in [place for place in self.progress.places.values() if is_in(place.key, topic)]:
            if place.key.queue_topic == topic:
                # Recovery learns it from the deletion.
                self.progress.reset(place, 0)
                self.progress.forget(place)
            else:
                queue = self._queues.get_bytes(place.key.queue_topic.encode(), place.key.queue)
                self.journal.reset(place, queue.max_offset)
                self.progress.reset(place, queue.max_offset)
        self._lines.end_topic(topic)

    def _active(self, group: str) -> Activity:
        found = self.activity.get(group)
        if found is None:
            found = self.activity[group] = Activity()
        return found

    # --- time -------------------------------------------------------------------------------------------------------

    def expire(self, limit: int = EXPIRE_STEP) -> bool:
        """Ends expired leases and waits. Returns whether there is more to do."""
        now_ms = self.clock.now_ms()
        touched = self.progress.expire(now_ms, limit)
        if touched:
            self._wake(touched)
        deadline = self.progress.next_deadline_ms
        return deadline is not None and deadline <= now_ms

    def _wake(self, places: Iterable[GroupPlace]) -> None:
        for group, topic in {(place.key.group, place.key.topic) for place in places}:
            self._lines.wake(group, topic)
        if self.progress.exhausted and self._exhausted_waiters:
            waiters, self._exhausted_waiters = self._exhausted_waiters, []
            for future in waiters:
                if not future.done():
                    future.set_result(None)

    def _unblocked(self, place: GroupPlace) -> None:
        if place.ordered and not place.is_blocked:
            self._wake({place})

    def when_exhausted(self) -> "asyncio.Future[None]":
        """A future that is done when a message is exhausted."""
        future = asyncio.get_running_loop().create_future()
        self._exhausted_waiters = [one for one in self._exhausted_waiters if not one.done()]
        self._exhausted_waiters.append(future)
        return future

    def when_deadline_changes(self) -> "tuple[int | None, asyncio.Future[None]]":
        """The next deadline, and a future that is done when an earlier one is set."""
        self._deadline_changed = asyncio.get_running_loop().create_future()
        deadline = self.progress.next_deadline_ms
        self._armed_for_ms = deadline if deadline is not None else 1 << 62
        return deadline, self._deadline_changed

    def armed(self) -> None:
        """Notes that deadlines may have been set."""
        waiting = self._deadline_changed
        if waiting is not None and not waiting.done():
            deadline = self.progress.next_deadline_ms
            if deadline is not None and deadline < self._armed_for_ms:
                waiting.set_result(None)

    def gave(self, group: str, topic: str, member: str, count: int) -> None:
        """Counts a Receive for DescribeGroup."""
        now_ms, active = self.clock.now_ms(), self._active(group)
        if count:
            active.receives.add(now_ms, count)
            self.armed()
        members = active.members
        members.pop((member, topic), None)
        members[member, topic] = now_ms
        if len(members) > MEMBERS_MAX:
            del members[next(iter(members))]


def is_in(key: PlaceKey, topic: str) -> bool:
    """Whether the place is for messages of the topic, or of a lite topic of it."""
    return key.topic == topic or (key.is_lite and key.queue_topic == topic)
