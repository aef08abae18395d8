"""Schedules on a disk that loses power and fills up, against the planned times (schedule_life.py): put, moved to
another rule and zone, pause, resume, delete, run, fall due, crash, power cut, restart, clock steps and retention.
`make lives` has thousands of lives.
"""

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from tests.store.life_machine import DelayedMachine, LifeMachine, run_lives
from tests.store.schedule_life import NAMES, RELEASES, RULES, SCHEDULE_LANES, Change, ScheduleLife, SchedulePut

STEPS = 30
NAMED = st.sampled_from(NAMES)
COUNTS = st.integers(1, 10)
PUTS = st.builds(SchedulePut, NAMED, st.sampled_from(RULES), st.integers(1, 3), st.integers(0, 1))


class ScheduleShard(LifeMachine):
    """A shard's life with five schedules."""

    life: ScheduleLife
    mode = "sync"

    def born(self, root: Path, dice: random.Random) -> ScheduleLife:
        life = ScheduleLife(root, dice, mode=self.mode)
        life.begin_steady()
        life.send(4, "orders", 0, SCHEDULE_LANES[0], 10)
        life.flush()
        return life

    def finish(self) -> None:
        self.life.step(self.life.answer_all)

    @rule(name=NAMED, times=st.sampled_from(RULES), missed=st.integers(1, 3), lane=st.integers(0, 1))
    def put(self, name: str, times: dict[str, Any], missed: int, lane: int) -> None:
        self.life.step(self.life.put, name, times, missed, lane)

    @rule(puts=st.lists(PUTS, min_size=2, max_size=5))
    def put_all(self, puts: list[SchedulePut]) -> None:
        self.life.step(self.life.put_all, puts)

    @rule(name=NAMED, change=st.sampled_from([one for one in Change.values() if one]))
    def change(self, name: str, change: Change) -> None:
        self.life.step(self.life.change, name, change)

    @rule(release=st.sampled_from(range(len(RELEASES))), stop=st.sampled_from(["restart", "kill", "cut_power"]))
    def change_zones(self, release: int, stop: str) -> None:
        self.life.step(self.life.change_zones, release, getattr(self.life, stop))

    @rule()
    def move(self) -> None:
        self.life.step(self.life.move)

    @rule(lane=st.sampled_from(SCHEDULE_LANES), count=COUNTS, early=st.booleans())
    def restore(self, lane: int, count: int, early: bool) -> None:
        self.life.step(self.life.restore, lane, count, early)

    @rule(lane=st.sampled_from(SCHEDULE_LANES), count=COUNTS)
    def fall_due(self, lane: int, count: int) -> None:
        self.life.step(self.life.fall_due, lane, count)

    @rule(by_ms=st.sampled_from([1, 500, 1_000, 2_500, 70_000, -3_000]))
    def pass_time(self, by_ms: int) -> None:
        """The clock may also step back."""
        self.life.step(self.life.pass_time, by_ms)

    @rule(count=COUNTS, lane=st.sampled_from([0, *SCHEDULE_LANES]), body_bytes=st.sampled_from([10, 60_000]))
    def send(self, count: int, lane: int, body_bytes: int) -> None:
        self.life.step(self.life.send, count, "orders", 0, lane, body_bytes)

    @rule()
    def flush(self) -> None:
        self.life.step(self.life.flush)

    @rule(steps=st.integers(1, 3))
    def index(self, steps: int) -> None:
        self.life.step(self.life.index, steps)

    @rule()
    def retain(self) -> None:
        self.life.step(self.life.retain)


class AsyncScheduleShard(ScheduleShard):
    """Answered calls may be lost; each schedule left has one pending occurrence."""

    mode = "async"

    @rule()
    def flush_written(self) -> None:
        self.life.step(self.life.flush_written)


class DelayedScheduleShard(DelayedMachine, ScheduleShard):
    """Commits take time."""


@pytest.mark.timeout(300 + settings.default.max_examples * 5)
@pytest.mark.parametrize(
    "machine", [ScheduleShard, DelayedScheduleShard, pytest.param(AsyncScheduleShard, marks=pytest.mark.proof)]
)
def test_each_occurrence_occurs_once(machine: type[ScheduleShard]) -> None:
    run_lives(machine, STEPS)
