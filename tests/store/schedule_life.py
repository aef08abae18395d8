"""A life with schedules that are put, paused, resumed, deleted, run and fall due (pending_life.py, adr/0077).

Besides the facts about all pending messages, after each crash:

    a name         has one pending occurrence at most; one, if it was answered as put, and none, if it was answered as
                   deleted, unless another call was under way
    occurrences    planned times of a schedule that nobody changes follow each other without a gap and without a
                   repetition, up to that of the pending one
    a paused one   is not delivered
"""

import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from duetime.v1 import schedules_pb2, store_pb2
from duetime_core.errors import DueTimeError
from duetime_format import record
from duetime_format.columns import entry_of
from duetime_format.errors import DamagedBytes
from duetime_format.properties import decode_properties
from duetime_format.record import Record
from duetime_format.schedules import StoredSchedule, pending_schedule, schedule_of
from duetime_store.lanes.lane import PENDING
from duetime_store.pending.scheduling import ScheduleKeeper
from duetime_store.writing.missed import pass_missed
from duetime_store.writing.staging import OK

from tests.store.conftest import timer
from tests.store.life_lanes import TIMERS
from tests.store.pending_life import TIMER_LANES, PendingLife, Sent

# Nobody changes the first one; all of its missed occurrences are delivered.
STEADY = "steady"
NAMES = ("report", "poll")
INTERVALS_MS = (1_000, 2_500, 40_000)
THERE, GONE, UNKNOWN = "there", "gone", "unknown"
Change = store_pb2.ScheduleChange


class Occurrence(NamedTuple):
    """A delivered occurrence."""

    schedule: StoredSchedule
    offset: int


class ScheduleLife(PendingLife):
    """See the module."""

    def __init__(self, root: Path, dice: random.Random, *, mode: str = "sync") -> None:
        self.state = dict.fromkeys((STEADY, *NAMES), GONE)
        self.under_way = dict.fromkeys(self.state, 0)
        # Number of calls so far.
        self.begun = dict.fromkeys(self.state, 0)
        super().__init__(root, dice, mode=mode)

    def _begin(self) -> None:
        super()._begin()
        self.schedules = ScheduleKeeper(self.store, self.keys, self.replacing, self.flusher, shard=0)

    def _end(self) -> None:
        for name, count in self.under_way.items():
            if count or not self.sync:
                self.state[name] = UNKNOWN
            self.under_way[name] = 0
        super()._end()

    # --- calls --------------------------------------------------------------------------------------------------------

    def put(self, name: str, every_ms: int, missed: int, lane: int) -> None:
        self._count += 1
        body = f"{name}-{self._count}"
        own = timer(f"m{self._count}", 1, key=name, lane=lane, body=f"{body}.".encode())
        schedule = schedules_pb2.Schedule(name=name, missed=missed)  # type: ignore[arg-type]
        schedule.every.every_ms = every_ms
        request = store_pb2.PutStoredScheduleRequest(record=own, schedule=schedule)
        self._change(name, self.schedules.put(request), THERE, body)

    def change(self, name: str, change: Change) -> None:
        request = store_pb2.ChangeScheduleRequest(topic="orders", name=name, change=change)
        after = GONE if change == Change.SCHEDULE_CHANGE_DELETE else THERE
        self._change(name, self.schedules.change(request), after)

    def _change(self, name: str, call: Any, after: str, body: str = "") -> None:
        before, self.state[name] = self.state[name], UNKNOWN
        self.under_way[name] += 1
        self.begun[name] += 1
        was_alone, number = self.under_way[name] == 1, self.begun[name]

        async def noted() -> Any:
            found: str = UNKNOWN
            try:
                answer = await call
                found = after
                return answer
            except DueTimeError as error:
                if error.reason == "SCHEDULE_NOT_FOUND":
                    is_alone = was_alone and number == self.begun[name]
                    assert before != THERE or not is_alone or not self.sync, f"{name} was there"
                    found = GONE
                elif error.reason not in ("DISK_FULL", "CONTENDED"):
                    raise AssertionError(f"{name}: {error.text}") from error
                raise
            finally:
                # A crash ends all calls.
                if self.under_way[name]:
                    self.under_way[name] -= 1
                    self.state[name] = found if was_alone and number == self.begun[name] else UNKNOWN

        self._call(noted(), lambda _: None, set(), body)

    # --- restoring ----------------------------------------------------------------------------------------------------

    async def _restore_all(self, level: int, records: list[bytes], entries: list[int], ids: list[str]) -> None:
        lane = self.store.lanes[level]
        try:
            intake = self.store.admit(b"".join(records))
            pass_missed(self.store, intake, lane, np.array(entries))
            outcome = self.store.restore(intake, lane, np.array(entries))
        except DueTimeError:
            return
        taken = [index for index, status in enumerate(outcome.statuses) if status == OK]
        if taken:
            self._wait(Sent(self._future(), restored={(level, entries[index]): ids[index] for index in taken}))

    # --- checks -------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        self._aim()
        super().check()
        pending = self._pending()
        delivered = self._delivered()
        for name, state in self.state.items():
            count = sum(one.name == name for one in pending)
            assert count <= 1, f"{name} is pending {count} times"
            if state != UNKNOWN:
                assert count == (state == THERE), f"{name} was {state}, and {count} are pending"
            self.state[name] = THERE if count else GONE
            own = [one for one in delivered if one.schedule.name == name]
            self._check_chain(own, [one for one in pending if one.name == name])

    def retain(self) -> None:
        self.answer_all()
        self._aim()
        super().retain()

    def _aim(self) -> None:
        """Any occurrence may have been replaced or ended by a call, or be missed."""
        for lane in self.store.lanes.timers():
            entries = np.arange(lane.queue.min_offset, lane.queue.max_offset)
            for one in self._records(lane.units(entries).tolist()):
                properties = decode_properties(one.properties)
                if properties.get(record.KEYS) in self.state:
                    self.truth.aimed_at.add(properties[record.UNIQ_KEY])

    def _records(self, units: Sequence[tuple[int, int, int]]) -> list[Record]:
        found = []
        for position, size, _ in units:
            try:
                found.append(record.decode(self.store.read_record(position, size)))
            except DamagedBytes:
                continue
        return found

    def _pending(self) -> list[StoredSchedule]:
        found = []
        for lane in self.store.lanes.timers():
            entries = np.arange(lane.queue.min_offset, lane.queue.max_offset)
            units = lane.units(entries[lane.states(entries) == PENDING]).tolist()
            found += [one for record_ in self._records(units) if (one := pending_schedule(record_.properties))]
        return found

    def _delivered(self) -> list[Occurrence]:
        if "orders" not in self.store.queues.counts:
            return []
        queue = self.store.queues.find("orders", 0)
        units = queue.read(queue.min_offset, queue.max_offset - queue.min_offset).tolist()
        return [
            Occurrence(schedule, one.queue_offset)
            for one in self._records(units)
            if (schedule := schedule_of(one.properties)) and entry_of(one) is not None
        ]

    def _check_chain(self, delivered: Sequence[Occurrence], pending: Sequence[StoredSchedule]) -> None:
        """Planned times ascend; those of the steady one have no gap."""
        assert not any(one.schedule.paused for one in delivered), "a paused one was delivered"
        times = [(one.schedule.made_at_ms, one.schedule.planned) for one in delivered]
        times += [(one.made_at_ms, one.planned) for one in pending if not one.paused]
        assert len(times) == len(set(times)), f"an occurrence is there twice: {times}"
        assert times == sorted(times), f"occurrences are not in order: {times}"
        for (made, planned), (later_made, later) in pairwise(times):
            is_steady = delivered[0].schedule.name == STEADY
            if is_steady and made == later_made:
                assert later - planned == delivered[0].schedule.every_ms, f"{later} follows {planned}"

    # --- random steps -------------------------------------------------------------------------------------------------

    def begin_steady(self) -> None:
        """The schedule that nobody changes."""
        self.put(STEADY, 1_000, schedules_pb2.MISSED_POLICY_ALL, 0)
        self.flush()
        self.answer_all()

    def random_step(self) -> None:
        dice = self.dice
        if dice.random() > 0.25:
            super().random_step()
            return
        name, lane = dice.choice(NAMES), dice.randrange(TIMER_LANES)
        if dice.random() < 0.5:
            self.step(self.put, name, dice.choice(INTERVALS_MS), dice.randint(1, 3), lane)
        else:
            self.step(self.change, name, dice.choice([one for one in Change.values() if one]))


SCHEDULE_LANES = [TIMERS + number for number in range(TIMER_LANES)]
