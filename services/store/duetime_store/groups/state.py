"""Outstanding messages of groups, and every change of them. Pure: no I/O, no waiting; the caller passes the time.

    frontier      the next offset to scan: all below it is done, except the outstanding
    outstanding   leased (until), waiting (hidden until), returned (available), exhausted (hidden until taken)

    state       left by
    leased      done, changed, returned (counted or not), deferred, expired: returned or exhausted
    waiting     its time: returned
    returned    leased
    exhausted   taken: leased, without counting an attempt

Offsets with the same state share one `Hold`, which never changes: a lease of 1,000 messages is one object, and a change
of some of them makes another one for those. So an outstanding message costs an entry of a dict, and a snapshot is a
copy of the dict.

Changes are absolute: applied again, in order, to a state that has some of them already, they lead to the same state.
Expiry is not an event: it follows from the hold and the time, and the next lease records the expired deliveries.
"""

import heapq
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence

from duetime_core.limits.seats import Seats
from duetime_core.limits.shares import Shares
from duetime_format.events import Pairs, PlaceKey

from duetime_store.groups.holds import (
    EXHAUSTED,
    LEASED,
    NO_ENTRIES,
    NO_OFFSETS,
    RETURNED,
    WAITING,
    GroupPlace,
    Hold,
    Lease,
)
from duetime_store.groups.memory import EndedLease, LeaseMemory

# Maximum expired deliveries remembered for one message: the latest.
EXPIRED_MAX = 64
# Stale deadlines before they are sorted out.
_STALE_MIN = 4_096


class GroupProgress:
    """All places and leases of a shard."""

    def __init__(self) -> None:
        self.places: dict[PlaceKey, GroupPlace] = {}
        # Keys are queues of retry topics: one place for each topic that the group receives.
        self.retries: dict[tuple[str, int], list[GroupPlace]] = {}
        self.leases: dict[int, Lease] = {}
        self.ended = LeaseMemory()
        self.last_lease_id = 0
        # Messages that had expired, and were not given to a group.
        self.lapsed: Counter[str] = Counter()
        # All entries of all places: by group, and by the caller that received them last.
        self.shares: Shares[str] = Shares(1 << 62, 1 << 62, 0)
        self.callers: Shares[str] = Shares(1 << 62, 1 << 62, 0)
        # Queues in which groups have places or committed offsets, and groups with places. Each counts for its creator,
        # or since a start for a nameless caller.
        self.queue_seats = Seats(1 << 62, "queues have group offsets", reason="GROUP_QUEUES_EXHAUSTED")
        self.lite_seats = Seats(1 << 62, "lite topics have group offsets", reason="LITE_PLACES_EXHAUSTED")
        self.group_seats = Seats(1 << 62, "groups receive", reason="GROUPS_EXHAUSTED")
        # The caller and the number of places of each group.
        self._groups: dict[str, tuple[str, int]] = {}
        # Places and offsets that were exhausted; some may no longer be.
        self.exhausted: deque[tuple[GroupPlace, int]] = deque()
        # A heap of leased and waiting holds: (until, serial, hold).
        self._deadlines: list[tuple[int, int, Hold]] = []
        self._stale = 0
        self._serial = 0
        self._numbers = 0

    @property
    def outstanding(self) -> int:
        return self.shares.used

    def bound(self, leases_max: int, groups_max: int, places_max: int, lites_max: int = 1 << 62) -> None:
        """Sets the limits; half of the entries for one caller, half of these for one group."""
        self.group_seats.bound(groups_max)
        self.queue_seats.bound(places_max)
        self.lite_seats.bound(lites_max)
        self.callers.bound(leases_max)
        self.shares.bound(leases_max, max(leases_max // 4, 1))

    def room(self, group: str, caller: str) -> int:
        """The number of further entries that the caller may take in the group. The last tenth of a caller's share is
        for its groups that hold little."""
        return self.shares.room_within(self.callers.room(caller), self.callers.share, group)

    # --- places -----------------------------------------------------------------------------------------------------

    def check_place(self, group: str, caller: str, *, is_lite: bool = False) -> None:
        """Raises: Overloaded: the caller may create no place for the group."""
        (self.lite_seats if is_lite else self.queue_seats).check(caller)
        if group not in self._groups:
            self.group_seats.check(caller)

    def place(self, key: PlaceKey, frontier: int = 0, caller: str = "") -> GroupPlace:
        """The place, created if needed; a new one counts for the caller."""
        found = self.places.get(key)
        if found is None:
            self._numbers += 1
            found = self.places[key] = GroupPlace(key, self._numbers, frontier, caller)
            (self.lite_seats if key.is_lite else self.queue_seats).hold(caller)
            maker, count = self._groups.get(key.group, (caller, 0))
            self._groups[key.group] = maker, count + 1
            if not count:
                self.group_seats.hold(maker)
            if key.is_retry:
                self.retries.setdefault((key.queue_topic, key.queue), []).append(found)
        return found

    def forget(self, place: GroupPlace) -> None:
        """Removes the place."""
        key = place.key
        place.keys = None
        del self.places[key]
        (self.lite_seats if key.is_lite else self.queue_seats).give(place.caller)
        maker, count = self._groups.pop(key.group)
        if count > 1:
            self._groups[key.group] = maker, count - 1
        else:
            self.group_seats.give(maker)
        if key.is_retry:
            of_queue = self.retries[key.queue_topic, key.queue]
            of_queue.remove(place)
            if not of_queue:
                del self.retries[key.queue_topic, key.queue]

    def of_group(self, group: str) -> list[GroupPlace]:
        return [place for place in self.places.values() if place.key.group == group]

    # --- changes: each is an event of the journal -------------------------------------------------------------------

    def new_lease(
        self,
        place: GroupPlace,
        received_at_ms: int,
        max_attempts: int,
        *,
        ordered: bool = False,
        is_taken: bool = False,
        caller: str = "",
    ) -> Lease:
        self.last_lease_id = max(self.last_lease_id + 1, received_at_ms << 20)
        return Lease(
            self.last_lease_id, place, received_at_ms, max_attempts, ordered=ordered, is_taken=is_taken, caller=caller
        )

    def give(
        self,
        lease: Lease,
        offsets: list[int],
        until_ms: int,
        attempt: int,
        frontier: int,
        *,
        expired: Pairs = (),
        history: bytes = b"",
    ) -> None:
        """Leases offsets, new ones or outstanding ones; the place's frontier becomes `frontier`."""
        place = lease.place
        place.frontier = frontier
        place.ordered |= lease.ordered
        self.leases[lease.id] = lease
        self.last_lease_id = max(self.last_lease_id, lease.id)
        if lease.id in self.ended.leases:
            self.ended.forget(lease.id)
        if lease.returned:
            # Recovery applies an event once more that the snapshot includes.
            lease.returned.difference_update(offsets)
        hold = Hold(place, LEASED, offsets, attempt=attempt, until_ms=until_ms, lease=lease)
        hold.expired, hold.history = expired, history
        self.hold(hold)

    def hide(
        self, place: GroupPlace, offsets: list[int], until_ms: int, attempt: int, frontier: int, caller: str = ""
    ) -> None:
        """Adds new messages that are hidden until their time."""
        place.frontier = frontier
        self.hold(Hold(place, WAITING, offsets, attempt=attempt, until_ms=until_ms, caller=caller))

    def park(self, place: GroupPlace, offsets: list[int], _: int, attempt: int, frontier: int, caller: str) -> None:
        """As `hide`, for new messages that wait for a slot of their key."""
        place.frontier = frontier
        self.hold(Hold(place, RETURNED, offsets, attempt=attempt, caller=caller), parked=True)

    def put_back(self, place: GroupPlace, offsets: list[int], attempt: int, frontier: int) -> None:
        """Adds messages that are not done; nothing else is known of them."""
        place.frontier = frontier
        self.hold(Hold(place, RETURNED, offsets, attempt=attempt))

    def end(self, place: GroupPlace, lease_id: int, offsets: Sequence[int]) -> int:
        """Ends messages under this lease (0: without one); `offsets` has each once. Returns their number."""
        entries = place.entries
        holds = [entries.get(offset) for offset in offsets]
        ended = {
            hold: count
            for hold, count in Counter(holds).items()
            if hold is not None and (hold.lease.id if hold.lease else 0) == lease_id
        }
        for offset, hold in zip(offsets, holds, strict=True):
            if hold in ended:
                del entries[offset]
        place.end_settling(offset for offset in offsets if offset not in entries)
        if place.keys is not None:
            place.keys.release(place, [offset for offset in offsets if offset not in entries])
        if not entries:
            # A dict that had entries is larger.
            place.entries = NO_ENTRIES
        for hold, count in ended.items():
            self._leave(hold, count)
        self.shares.give(place.key.group, sum(ended.values()))
        return sum(ended.values())

    def lapse(self, place: GroupPlace, offsets: Iterable[int]) -> None:
        """Counts expired messages that are not done yet: before they are ended, and before the frontier passes them."""
        count = sum(one >= place.frontier or one in place.entries for one in offsets)
        if count:
            self.lapsed[place.key.group] += count

    def end_any(self, place: GroupPlace, offsets: Iterable[int]) -> None:
        """Recovery: ends messages in any state."""
        for offset in offsets:
            hold = place.entries.pop(offset, None)
            if hold is not None:
                self._leave(hold, 1)
                self.shares.give(place.key.group, 1)

    def change(self, place: GroupPlace, lease_id: int, offsets: Iterable[int], until_ms: int) -> None:
        """Moves the end of the lease."""
        for hold, held in self._under(place, lease_id, offsets):
            changed = Hold(place, LEASED, held, attempt=hold.attempt, until_ms=until_ms, lease=hold.lease)
            changed.expired, changed.history = hold.expired, hold.history
            self.hold(changed)

    def give_back(
        self, place: GroupPlace, lease_id: int, offsets: Iterable[int], ended_at_ms: int, *, counted: bool
    ) -> None:
        """Returns messages at once: `counted` as deliveries that expired at that time, or as if never given."""
        for hold, held in self._under(place, lease_id, offsets):
            if not counted and hold.lease is not None and hold.lease.permits is not None:
                hold.lease.permits.refund(len(held))
            self._return(hold, held, ended_at_ms, counted=counted)

    def defer(self, place: GroupPlace, lease_id: int, offset: int, until_ms: int, history: bytes) -> None:
        """Keeps the message in its place until its redelivery at `until_ms`; the delivery counts."""
        for hold, held in self._under(place, lease_id, [offset]):
            assert hold.lease is not None
            hold.lease.came_back(held)
            waiting = Hold(place, WAITING, held, attempt=hold.attempt + 1, until_ms=until_ms, caller=hold.caller)
            waiting.expired, waiting.history = hold.expired, history
            self.hold(waiting)

    def reset(self, place: GroupPlace, offset: int) -> None:
        """Makes the group continue from `offset`; all leases end."""
        for hold in set(place.entries.values()):
            if hold.lease is not None:
                self.leases.pop(hold.lease.id, None)
                self.ended.add(hold.lease.id, EndedLease(place.key.group, was_reset=True))
            self.callers.give(hold.caller, hold.open)
            hold.open = 0
        self.shares.give(place.key.group, len(place.entries))
        if place.keys is not None:
            place.keys.release(place, list(place.entries))
        place.entries, place.again, place.settling = NO_ENTRIES, None, NO_OFFSETS
        place.available = place.leased = 0
        place.frontier = offset

    def delete(self, group: str) -> None:
        self.lapsed.pop(group, None)
        for place in self.of_group(group):
            self.reset(place, 0)
            self.forget(place)

    def drop_before(self, place: GroupPlace, offset: int) -> int:
        """Drops messages before `offset`, which retention has deleted: they count as done, and their leases as expired.
        Returns the number of outstanding ones."""
        place.least = offset
        place.frontier = max(place.frontier, offset)
        gone = [one for one in place.entries if one < offset]
        for one in gone:
            hold = place.entries.pop(one)
            if hold.lease is not None:
                hold.lease.came_back((one,))
            self._leave(hold, 1)
        place.end_settling(gone)
        if place.keys is not None:
            place.keys.release(place, gone)
        self.shares.give(place.key.group, len(gone))
        return len(gone)

    def drop_from(self, place: GroupPlace, offset: int) -> None:
        """Drops everything from `offset` on, the end of the queue: it was about messages that others replace."""
        for one in [one for one in place.entries if one >= offset]:
            self._leave(place.entries.pop(one), 1)
            self.shares.give(place.key.group, 1)
        place.frontier = min(place.frontier, offset)

    # --- time -------------------------------------------------------------------------------------------------------

    @property
    def next_deadline_ms(self) -> int | None:
        """The time at which `expire` has something to do next."""
        deadlines = self._deadlines
        while deadlines and not deadlines[0][2].open:
            heapq.heappop(deadlines)
        return deadlines[0][0] if deadlines else None

    def expire(self, now_ms: int, limit: int = 1 << 62) -> set[GroupPlace]:
        """Ends expired leases and waits, of about `limit` messages at most. Returns the places with returned
        messages."""
        touched: set[GroupPlace] = set()
        deadlines = self._deadlines
        while deadlines and limit > 0 and deadlines[0][0] <= now_ms:
            hold = heapq.heappop(deadlines)[2]
            if not hold.open:
                continue
            place = hold.place
            held = hold.held()
            if place.settling:
                # Their end, or its undoing, checks the time again.
                held = [offset for offset in held if offset not in place.settling]
            if not held:
                continue
            limit -= len(held)
            touched.add(place)
            if hold.state == WAITING:
                back = Hold(place, RETURNED, held, attempt=hold.attempt, caller=hold.caller)
                back.expired, back.history = hold.expired, hold.history
                self.hold(back)
            else:
                self._expire(hold, held)
        return touched

    def _expire(self, hold: Hold, held: list[int]) -> None:
        lease = hold.lease
        assert lease is not None
        if not lease.ordered:
            self._return(hold, held, hold.until_ms, counted=True)
            return
        first = min(held)
        # Later messages were not reached.
        later = self.later_of(lease, first)
        self._return(hold, [first], hold.until_ms, counted=True)
        self.give_back(hold.place, lease.id, later, hold.until_ms, counted=False)

    def later_of(self, lease: Lease, offset: int) -> list[int]:
        """Offsets after `offset` that are open under an ordered lease, except settling ones."""
        place = lease.place
        found = [one for hold in lease.holds or () for one in hold.held() if hold.open and one > offset]
        return sorted(one for one in found if one not in place.settling)

    def undo_settling(self, place: GroupPlace, offset: int) -> None:
        """Undoes a settling whose record was not stored."""
        if offset in place.settling:
            place.end_settling((offset,))
            hold = place.entries.get(offset)
            if hold is not None:
                self._set_deadline(hold)

    def take_exhausted(self, count: int) -> list[tuple[GroupPlace, int]]:
        """Takes the first exhausted messages; the caller leases them, or puts them back into `exhausted`."""
        found: dict[tuple[GroupPlace, int], None] = {}
        while self.exhausted and len(found) < count:
            place, offset = self.exhausted.popleft()
            hold = place.entries.get(offset)
            if hold is not None and hold.state == EXHAUSTED and self.places.get(place.key) is place:
                found[place, offset] = None
        return list(found)

    # --- holds ------------------------------------------------------------------------------------------------------

    def _return(self, hold: Hold, held: list[int], ended_at_ms: int, *, counted: bool) -> None:
        lease, place = hold.lease, hold.place
        assert lease is not None
        lease.came_back(held)
        state, attempt, expired = RETURNED, hold.attempt, hold.expired
        if lease.is_taken:
            state = EXHAUSTED
        elif counted:
            expired = (*expired, (lease.received_at_ms, ended_at_ms))[-EXPIRED_MAX:]
            if attempt >= lease.max_attempts:
                state = EXHAUSTED
            else:
                attempt += 1
        back = Hold(place, state, held, attempt=attempt, caller=hold.caller)
        back.expired, back.history = expired, hold.history
        self.hold(back)

    def _under(self, place: GroupPlace, lease_id: int, offsets: Iterable[int]) -> Iterator[tuple[Hold, list[int]]]:
        """The offsets under a lease, by hold."""
        found: dict[int, tuple[Hold, list[int]]] = {}
        get = place.entries.get
        for offset in offsets:
            hold = get(offset)
            if hold is not None and hold.lease is not None and hold.lease.id == lease_id:
                found.setdefault(id(hold), (hold, []))[1].append(offset)
        return iter(found.values())

    def hold(self, hold: Hold, *, parked: bool = False) -> None:
        """Moves the hold's offsets to it. `parked`: no fetch finds them."""
        place, offsets = hold.place, hold.offsets
        lease = hold.lease
        if lease is not None:
            lease.open += len(offsets)
            if lease.holds is not None:
                if len(lease.holds) > 64:
                    lease.holds = [one for one in lease.holds if one.open]
                lease.holds.append(hold)
        before = len(place.entries)
        self._leave_all(place, offsets, lease)
        if place.entries is NO_ENTRIES:
            place.entries = {}
        place.entries.update(dict.fromkeys(offsets, hold))
        self.callers.take(hold.caller, len(offsets))
        if len(place.entries) > before:
            self.shares.take(place.key.group, len(place.entries) - before)
        if lease is not None:
            place.leased += len(offsets)
        if hold.state == RETURNED:
            place.available += len(offsets)
            if not parked:
                place.put_again(offsets)
        elif hold.state == EXHAUSTED:
            self.exhausted.extend((place, offset) for offset in offsets)
        else:
            self._set_deadline(hold)
        if place.keys is not None and hold.state in (WAITING, EXHAUSTED):
            place.keys.release(place, offsets)

    def _leave_all(self, place: GroupPlace, offsets: Sequence[int], lease: Lease | None) -> None:
        """Removes offsets from their holds; they move to another one under `lease`."""
        if not place.entries:
            return
        get = place.entries.get
        for offset in offsets:
            hold = get(offset)
            if hold is not None:
                if hold.lease is not None and hold.lease is not lease:
                    # Recovery: the lease ended in between, which is not an event.
                    hold.lease.came_back((offset,))
                self._leave(hold, 1)

    def _leave(self, hold: Hold, count: int) -> None:
        hold.open -= count
        self.callers.give(hold.caller, count)
        if hold.state == RETURNED:
            hold.place.available -= count
        elif not hold.open and hold.state in (LEASED, WAITING):
            self._stale += 1
        lease = hold.lease
        if lease is not None:
            hold.place.leased -= count
            lease.open -= count
            if not lease.open and self.leases.pop(lease.id, None) is not None:
                # `give` reverts this if the snapshot already includes later events.
                self.ended.add(lease.id, EndedLease(hold.place.key.group, frozenset(lease.returned or ())))

    def _set_deadline(self, hold: Hold) -> None:
        self._serial += 1
        if self._stale > _STALE_MIN and self._stale * 2 > len(self._deadlines):
            self._deadlines = [one for one in self._deadlines if one[2].open]
            heapq.heapify(self._deadlines)
            self._stale = 0
        heapq.heappush(self._deadlines, (hold.until_ms, self._serial, hold))
