"""Restored records that arrive before their due time: held here until their entries fall due, then staged.

    PullDue (ahead) ──▶ scheduler restores ──▶ Restore ──▶ held ──(each at its due time)──▶ staged ──▶ durable

At the due time only the write remains: no call lies between the record and the log. A busy lane needs a few large puts
a second, not one for every millisecond in which a message falls due.

Only a record's place is decided ahead, and that promise is not binding (promises.py): when an entry falls due, the
store judges its record as if it had just arrived. Held records are in memory only. A call that ends early drops its
records, and they are restored again.
"""

import asyncio
from collections.abc import Sequence

import numpy as np
from duetime_core.errors import DiskFull, InvalidArgument, Overloaded, Violation, refuse
from duetime_format.columns import holds
from duetime_format.errors import within
from duetime_format.following import KIND
from duetime_format.limits import AHEAD_MS_MAX
from duetime_format.plans import PLAN_MS_MAX
from duetime_format.schedules import NAME_ENDING
from duetime_format.units import Ints, dues_of

from duetime_store.lanes.alarm import ClockAlarm
from duetime_store.lanes.lane import LaneHead, ShardLane
from duetime_store.log.intake import Intake
from duetime_store.writing.flusher import Flusher
from duetime_store.writing.missed import pass_missed
from duetime_store.writing.promises import PROMISE_BY_MS
from duetime_store.writing.promising import promise
from duetime_store.writing.staging import CANCELLED, DUPLICATE, OK, PutOutcome
from duetime_store.writing.store import Store

# A lane that has staged this many records in a put waits for the disk before its next put. A backlog with several
# batches here at once therefore leaves room for other lanes in each flush.
TURN_COUNT = 1_024
# Occurrences of schedules staged at a time, in some 4 ms; other work goes between.
OCCURRENCES_AT_ONCE = 2_048
# A step with occurrences needs a flush, and records of other lanes that come meanwhile wait for it. So occurrences that
# fall due within this time of their lane's last step wait for its end.
GATHER_MS = 10
# Far beyond the entries that a queue can have.
ENTRY_MAX = 1 << 56
NEVER_MS = 1 << 62
NONE = np.empty(0, np.int64)
_GOING_ON = frozenset((OK, DUPLICATE, CANCELLED))


class RestoreHolder:
    """Takes the records that schedulers restore."""

    def __init__(self, store: Store, flusher: Flusher, alarm: ClockAlarm, *, bytes_max: int) -> None:
        self._store = store
        self._clock = store.clock
        self._flusher = flusher
        self._alarm = alarm
        self._bytes_max = bytes_max
        self._bytes = 0
        # Fair locks: puts of one lane are handled in the order of their arrival.
        self._turns: dict[int, asyncio.Lock] = {}
        # Wall and monotonic time of each lane's last step with occurrences.
        self._occurred: dict[int, tuple[int, float]] = {}

    async def restore(
        self,
        records: bytes,
        number: int,
        first_entry: int = 0,
        named: Sequence[int] | Ints = (),
        *,
        is_own: bool = False,
    ) -> tuple[PutOutcome, "asyncio.Future[None] | None"]:
        """Stages each record once its entry is due; all are staged or rejected on return.

        Returns the outcome, and a future that is done when all staged records are durable. None: they are.

        Args:
            named: the entries, one for each record; empty: consecutive ones from `first_entry`.
            is_own: the store itself made the records from their entries.

        Raises:
            As Store.restore; Overloaded also when too many bytes are held.
        """
        lane, intake = self._store.lanes[number], self._store.admit(records)
        entries = _entries(intake.count, first_entry, named)
        if self._bytes + len(records) > self._bytes_max:
            raise Overloaded(f"{self._bytes} bytes are held until they are due; the limit is {self._bytes_max}")
        self._bytes += len(records)
        lane.attendance.begin_put()
        try:
            async with self._turns.setdefault(number, asyncio.Lock()):
                outcome, durable = await self._stage(intake, lane, entries, is_own), self._store.when_durable()
                taken = self._store.when_taken() if intake.count >= TURN_COUNT else None
                if taken is not None:
                    await taken
                return outcome, durable
        finally:
            self._bytes -= len(records)
            lane.attendance.end_put(self._clock.monotonic_ms())

    async def _stage(self, intake: Intake, lane: ShardLane, entries: Ints, is_own: bool) -> PutOutcome:
        try:
            return await self._stage_each(intake, lane, entries, is_own)
        finally:
            # The next put makes its own.
            self._store.promises.forget(lane)

    async def _stage_each(self, intake: Intake, lane: ShardLane, entries: Ints, is_own: bool) -> PutOutcome:
        undone_count = self._store.undone_count
        units = lane.units(entries)
        dues = dues_of(units["tags"])
        parts: list[PutOutcome] = []
        done = promised = 0
        # Whether no other pending entry comes before the next one: checked again when one may have arrived.
        is_next = False
        occurrences = np.flatnonzero(intake.readings[KIND]) if holds(intake.data, NAME_ENDING) else NONE
        while True:
            self._store.gate.check_write()
            if parts and undone_count != self._store.undone_count:
                raise DiskFull("the disk had no room for records of this put")
            now_ms = self._clock.now_ms()
            are_later = dues[done:] > now_ms
            first_later = done + int(are_later.argmax()) if are_later.any() else intake.count
            is_near = first_later < intake.count and dues[first_later] <= now_ms + AHEAD_MS_MAX
            # The store rejects records that are too early, or after a gap, together with the due ones.
            is_next = is_next or _may_come(lane, entries[done : done + 1])
            end = first_later if is_near and is_next else intake.count
            # The records before the next occurrence do not wait with it.
            plain = _first_from(occurrences, done, intake.count)
            if done == plain < first_later and is_next and await self._gathers(lane, int(dues[done])):
                is_next = False
                continue
            stop = self._stop_of_step(intake, done, end) if done == plain < end else min(end, plain)
            has_staged = stop > done
            if has_staged:
                part, own = intake.part(done, stop), units[done:stop] if is_own else None
                pass_missed(self._store, part, lane, entries[done:stop])
                parts.append(self._store.restore(part, lane, entries[done:stop], made_from=own))
                self._flusher.wake()
                done = stop
            if done == intake.count or (parts and not _GOING_ON.issuperset(parts[-1].statuses)):
                break
            promised = max(done, promised)
            if stop < end:
                if (taken := self._store.when_taken()) is not None:
                    await taken
                is_next = False
                continue
            # A plan for an occurrence is of no use: its flush has a record without a promise, the next occurrence.
            plain_dues = dues[: _first_from(occurrences, done, intake.count)]
            moment_ms = self._promise_at_ms(plain_dues, promised)
            if moment_ms > self._clock.now_ms():
                held = LaneHead(entries[done:], units[done:])
                is_next = await self._until(lane, held, min(int(dues[done]), moment_ms))
            elif has_staged and (taken := self._store.when_taken()) is not None:
                # Records in the same batch as a plan would wait for its flush.
                await taken
                is_next = False
            else:
                promised = self._promise(intake, lane, entries, plain_dues, done, promised)
        if done < intake.count:
            # All others are gaps; the store says so in the outcome.
            parts.append(self._store.restore(intake.part(done, intake.count), lane, entries[done:]))
        return parts[0] if len(parts) == 1 else _joined(parts)

    async def _gathers(self, lane: ShardLane, due_at_ms: int) -> bool:
        """Waits until a step with an occurrence, due at that time, disturbs little. Returns whether it has waited."""
        now_ms = self._clock.monotonic_ms()
        last_at_ms, last_ms = self._occurred.get(lane.number, (due_at_ms, 0.0))
        # Those that were due at the last step were left over by it.
        if last_at_ms < due_at_ms and now_ms < last_ms + GATHER_MS:
            await self._clock.sleep(last_ms + GATHER_MS - now_ms)
            return True
        if self._store.staged.promises and (taken := self._store.when_taken()) is not None:
            # Records with promised places are written without a flush.
            await taken
            return True
        self._occurred[lane.number] = self._clock.now_ms(), now_ms
        return False

    def _stop_of_step(self, intake: Intake, start: int, stop: int) -> int:
        """The end of the records from `start` on that are staged at a time."""
        part = intake.part(start, min(stop, start + OCCURRENCES_AT_ONCE))
        return start + self._store.occurrences.planner.count_at_once(part, part.readings)

    def _promise_at_ms(self, dues: Ints, first: int) -> int:
        """The time at which to promise the records from `first` their places."""
        is_none = first == len(dues) or not self._flusher.keeps_promises
        return NEVER_MS if is_none else int(dues[first]) - PROMISE_BY_MS

    def _promise(self, intake: Intake, lane: ShardLane, entries: Ints, dues: Ints, done: int, first: int) -> int:
        """Promises places to the records from `first` that are due soon; records from `done` to `first` have promises.
        Returns the index of the first unexamined record."""
        by_ms = self._clock.now_ms() + PLAN_MS_MAX
        # One at least: callers may name entries in any order.
        stop = first + max(int(np.searchsorted(dues[first:], by_ms, "right")), 1)
        gone = np.flatnonzero(~lane.fence(entries[done:stop]).is_next[first - done :])
        end = first + int(gone[0]) if len(gone) else stop
        if end > first:
            promise(self._store, intake.part(first, end), lane, entries[first:end])
            self._flusher.wake()
        return stop

    async def _until(self, lane: ShardLane, held: LaneHead, at_ms: int) -> bool:
        """Waits until `at_ms`, or until an entry may have arrived that falls due before the first held one: the gap
        then reports it to the scheduler at once. Returns whether none has."""
        moment = asyncio.get_running_loop().create_future()
        self._alarm.set(at_ms, moment)
        lane.wake_before(held, moment)
        try:
            await moment
            return self._clock.now_ms() >= at_ms
        finally:
            lane.leave(moment)
            moment.cancel()


def _entries(count: int, first_entry: int, named: Sequence[int] | Ints) -> Ints:
    """The entries of a put of `count` records. Raises: InvalidArgument."""
    if not len(named):
        refuse(within("first_entry", first_entry, 0, ENTRY_MAX))
        return np.arange(first_entry, first_entry + count)
    entries = np.asarray(named, np.int64)
    if len(entries) != count:
        raise InvalidArgument([Violation("entries", f"{len(entries)} entries for {count} records")])
    wrong = entries[(entries < 0) | (entries > ENTRY_MAX)]
    if len(wrong):
        refuse(within("entries", int(wrong[0]), 0, ENTRY_MAX))
    return entries


def _first_from(indices: Ints, start: int, end: int) -> int:
    """The first of the ascending indices from `start` on; `end`: there is none."""
    at = int(np.searchsorted(indices, start))
    return int(indices[at]) if at < len(indices) else end


def _may_come(lane: ShardLane, entry: Ints) -> bool:
    """Whether no other pending entry comes before this one."""
    return any(mask.any() for mask in lane.fence(entry))


def _joined(parts: list[PutOutcome]) -> PutOutcome:
    """One outcome of consecutive parts."""
    whole = PutOutcome([], stored_at_ms=parts[-1].stored_at_ms, watermark=parts[-1].watermark)
    for part in parts:
        at = len(whole.statuses)
        whole.statuses += part.statuses
        whole.queue_offsets += part.queue_offsets
        whole.due_at_ms += part.due_at_ms
        whole.faults.update((at + index, fault) for index, fault in part.faults.items())
    return whole
