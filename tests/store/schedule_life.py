"""A life with schedules that are put, paused, resumed, deleted, run and fall due (pending_life.py, adr/0077).

Besides the facts about all pending messages, after each crash:

    a name         has one pending occurrence at most; one, if it was answered as put, and none, if it was answered as
                   deleted, unless another call was under way
    occurrences    each planned time is the one that tests/store/cron_truth.py computes from the previous occurrence of
                   the same version: with `all`, the next time; with `one`, the first time after its delivery; with
                   `skip`, a later time of the rule
    zones          once the occurrences are moved, each is planned by the present rules of its zone
    a paused one   is not delivered

A start may bring another release of the zones. The clock starts 30 s before Berlin's clocks are set back, so the zones
of a schedule differ.
"""

import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import cache
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
from duetime.v1 import schedules_pb2, store_pb2
from duetime_core.errors import DiskFull, DueTimeError
from duetime_format import record
from duetime_format.columns import entry_of
from duetime_format.errors import DamagedBytes
from duetime_format.properties import decode_properties
from duetime_format.record import Record
from duetime_format.schedules import ALL, ONE, StoredSchedule, pending_schedule, schedule_of
from duetime_store.lanes.lane import PENDING
from duetime_store.pending.scheduling import ScheduleKeeper
from duetime_store.pending.zones import OccurrenceMover
from duetime_store.reading.turns import ScanTurns
from duetime_store.writing.missed import pass_missed
from duetime_store.writing.staging import OK

from tests.store.conftest import HandClock, reader_of, timer
from tests.store.cron_truth import is_time, time_after
from tests.store.life_lanes import TIMERS
from tests.store.pending_life import TIMER_LANES, PendingLife, Sent
from tests.zones import release, rules_of, zone_file

# Nobody changes the first three.
STEADY = ("steady", "ticks", "late")
NAMES = ("report", "poll")
RULES: tuple[dict[str, Any], ...] = (
    {"every": {"every_ms": 1_000}},
    {"every": {"every_ms": 2_500}},
    {"every": {"every_ms": 40_000}},
    {"cron": {"expression": "*/2 * * * * *", "zone": "Asia/Kathmandu"}},
    {"cron": {"expression": "*/10 59,0 2,3 * * *", "zone": "Europe/Berlin"}},
    {"cron": {"expression": "*/10 59,0 2,3 * * *", "zone": "Australia/Lord_Howe"}},
)
# 2023-10-29 00:59:30 UTC: 02:59:30 in Berlin, and 02:00:00 half a minute later.
BEGIN_MS = 1_698_541_170_000
THERE, GONE, UNKNOWN = "there", "gone", "unknown"
# Rules of the zones by release; the first has the real ones.
RELEASES = (
    {"Asia/Kathmandu": "", "Europe/Berlin": "", "Australia/Lord_Howe": ""},
    {"Asia/Kathmandu": "KAT-5:30", "Europe/Berlin": "CEST-2", "Australia/Lord_Howe": "LHT-10:30:20"},
    {"Asia/Kathmandu": "", "Europe/Berlin": "UTC0", "Australia/Lord_Howe": "LHT-12LHDT,M10.5.0/1,M3.5.0"},
)
Change = store_pb2.ScheduleChange


class Occurrence(NamedTuple):
    """A delivered occurrence."""

    schedule: StoredSchedule
    at_ms: int


class SchedulePut(NamedTuple):
    """A put. `times`: of RULES; `missed`: a policy; `lane`: a queue of the lanes for any time."""

    name: str
    times: dict[str, Any]
    missed: int
    lane: int


class ScheduleLife(PendingLife):
    """See the module."""

    def __init__(self, root: Path, dice: random.Random, *, mode: str = "sync") -> None:
        self.state = dict.fromkeys((*STEADY, *NAMES), GONE)
        self.under_way = dict.fromkeys(self.state, 0)
        # Number of calls so far.
        self.begun = dict.fromkeys(self.state, 0)
        # Releases so far; the last is that of the process.
        self.releases = [0]
        self._next_release, self._zones = 0, ExitStack()
        self._zones.enter_context(made_release(root.parent, 0))
        super().__init__(root, dice, mode=mode)

    def close(self) -> None:
        super().close()
        self._zones.close()

    def make_clock(self) -> HandClock:
        clock = super().make_clock()
        clock.wall_ms = BEGIN_MS
        return clock

    def _begin(self) -> None:
        if self._next_release != self.releases[-1]:
            self._zones.close()
            self._zones.enter_context(made_release(self.root.parent, self._next_release))
            self.releases.append(self._next_release)
        super()._begin()
        turns = ScanTurns(lambda: 1.0)
        self.schedules = ScheduleKeeper(self.store, self.keys, self.replacing, self.flusher, turns, shard=0)
        reader = reader_of(self.store, self.metrics, turns)
        self.mover = OccurrenceMover(self.store, self.replacing, reader, self.flusher, self.worker, turns)

    def _end(self) -> None:
        for name, count in self.under_way.items():
            if count or not self.sync:
                self.state[name] = UNKNOWN
            self.under_way[name] = 0
        super()._end()

    # --- calls --------------------------------------------------------------------------------------------------------

    def put(self, name: str, times: dict[str, Any], missed: int, lane: int) -> None:
        request, body = self._request(SchedulePut(name, times, missed, lane))
        self._change(name, self.schedules.put(request), THERE, body)

    def put_all(self, puts: Sequence[SchedulePut]) -> None:
        """Puts in one call, those of one name in their order."""
        request = store_pb2.PutStoredSchedulesRequest(puts=[self._request(one)[0] for one in puts])
        names = {one.name for one in puts}
        for name in names:
            self.state[name] = UNKNOWN
            self.under_way[name] += 1
            self.begun[name] += 1
        alone = {name: self.begun[name] for name in names if self.under_way[name] == 1}

        async def noted() -> Any:
            found = dict.fromkeys(names, UNKNOWN)
            try:
                answer = await self.schedules.put_all(request)
                reasons = [(one.name, put.fault.reason) for one, put in zip(puts, answer.results, strict=True)]
                assert {reason for _, reason in reasons} <= {"", "DISK_FULL", "CONTENDED"}, reasons
                found.update((name, UNKNOWN if reason else THERE) for name, reason in reasons)
                return answer
            finally:
                for name in names:
                    if self.under_way[name]:
                        self.under_way[name] -= 1
                        self.state[name] = found[name] if alone.get(name) == self.begun[name] else UNKNOWN

        self._call(noted(), lambda _: None, set())

    def _request(self, one: SchedulePut) -> tuple[store_pb2.PutStoredScheduleRequest, str]:
        """The request, and the beginning of its body."""
        self._count += 1
        body = f"{one.name}-{self._count}"
        own = timer(f"m{self._count}", 1, key=one.name, lane=one.lane, body=f"{body}.".encode())
        schedule = schedules_pb2.Schedule(name=one.name, missed=one.missed, **one.times)  # type: ignore[arg-type]
        return store_pb2.PutStoredScheduleRequest(record=own, schedule=schedule), body

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

    # --- zones --------------------------------------------------------------------------------------------------------

    def change_zones(self, release: int, stop: Callable[[], None]) -> None:
        """Stops the process, and starts another with a release of the zones."""
        self._next_release = release
        stop()

    def move(self) -> None:
        """Moves the occurrences of changed zones, as a start does."""

        async def moved() -> None:
            try:
                await self.mover.move()
            except OSError as error:
                raise DiskFull(str(error)) from error

        self._call(moved(), self._check_moved, set())

    def _check_moved(self, _: object) -> None:
        for born_at_ms, one in self._pending_born():
            if one.cron and not one.paused and one.planned > born_at_ms:
                expected = time_after(one, born_at_ms, zone_rules(self.releases[-1], one.zone))
                assert one.planned == expected, f"{one} was planned at {born_at_ms}"

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
        return [one for _, one in self._pending_born()]

    def _pending_born(self) -> list[tuple[int, StoredSchedule]]:
        """The schedules of the pending occurrences, each with its record's time of birth."""
        found = []
        for lane in self.store.lanes.timers():
            entries = np.arange(lane.queue.min_offset, lane.queue.max_offset)
            units = lane.units(entries[lane.states(entries) == PENDING]).tolist()
            records = self._records(units)
            found += [(own.born_at_ms, one) for own in records if (one := pending_schedule(own.properties))]
        return found

    def _delivered(self) -> list[Occurrence]:
        if "orders" not in self.store.queues.counts:
            return []
        queue = self.store.queues.find("orders", 0)
        # A read ends with a file of the queue.
        units = queue.read_at(np.arange(queue.min_offset, queue.max_offset)).tolist()
        return [
            Occurrence(schedule, one.stored_at_ms)
            for one in self._records(units)
            if (schedule := schedule_of(one.properties)) and entry_of(one) is not None
        ]

    def _check_chain(self, delivered: Sequence[Occurrence], pending: Sequence[StoredSchedule]) -> None:
        assert not any(one.schedule.paused for one in delivered), "a paused one was delivered"
        chain = [*delivered, *(Occurrence(one, 0) for one in pending if not one.paused)]
        times = [(one.schedule.made_at_ms, one.schedule.planned) for one in chain]
        assert len(times) == len(set(times)), f"an occurrence is there twice: {times}"
        assert times == sorted(times), f"occurrences are not in order: {times}"
        for one, _ in chain:
            is_right = any(is_time(one, one.planned, rules) for rules in self._rules(one))
            assert is_right, f"{one} is at no time of its rule"
        for (before, at_ms), (after, _) in pairwise(chain):
            if (before.made_at_ms, before.version) != (after.made_at_ms, after.version):
                assert before.name not in STEADY
            elif after.moved_from or before.missed not in (ALL, ONE):
                continue
            else:
                moment_ms = before.planned if before.missed == ALL else at_ms
                expected = [time_after(before, moment_ms, rules) for rules in self._rules(before)]
                assert after.planned in expected, f"{after} follows {before}, delivered at {at_ms}"

    def _rules(self, schedule: StoredSchedule) -> list[ZoneInfo | None]:
        """Those by which its occurrences may have been planned."""
        return [zone_rules(release, schedule.zone) if schedule.zone else None for release in set(self.releases)]

    # --- random steps -------------------------------------------------------------------------------------------------

    def begin_steady(self) -> None:
        """The schedules that nobody changes."""
        every, one = schedules_pb2.MISSED_POLICY_ALL, schedules_pb2.MISSED_POLICY_ONE
        for name, times, missed in zip(STEADY, (RULES[0], RULES[3], RULES[0]), (every, every, one), strict=True):
            self.put(name, times, missed, 0)
        self.flush()
        self.answer_all()

    def random_step(self) -> None:
        dice = self.dice
        if dice.random() > 0.25:
            super().random_step()
            return
        name = dice.choice(NAMES)
        if dice.random() < 0.1:
            stop = dice.choice((self.restart, self.kill, self.cut_power))
            self.step(self.change_zones, dice.randrange(len(RELEASES)), stop)
        elif dice.random() < 0.2:
            self.step(self.move)
        elif dice.random() < 0.5:
            puts = [self._random_put() for _ in range(dice.randint(1, 4))]
            if len(puts) == 1:
                self.step(self.put, *puts[0])
            else:
                self.step(self.put_all, puts)
        else:
            self.step(self.change, name, dice.choice([one for one in Change.values() if one]))

    def _random_put(self) -> SchedulePut:
        dice = self.dice
        return SchedulePut(dice.choice(NAMES), dice.choice(RULES), dice.randint(1, 3), dice.randrange(TIMER_LANES))


SCHEDULE_LANES = [TIMERS + number for number in range(TIMER_LANES)]


def made_release(folder: Path, number: int) -> AbstractContextManager[None]:
    """The release in place of the package."""
    zones = {name: rules_of(rules) if rules else _REAL[name] for name, rules in RELEASES[number].items()}
    return release(folder, f"release-{number}", zones)


@cache
def zone_rules(release: int, zone: str) -> ZoneInfo:
    """A zone's rules in a release."""
    rules = RELEASES[release][zone]
    return ZoneInfo.from_file(BytesIO(rules_of(rules) if rules else _REAL[zone]))


_REAL = {name: zone_file(name) for name in RELEASES[0]}
