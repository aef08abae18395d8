"""The time of a shard with copies: the median of clocks, of which one may be wrong in any way."""

import random
from collections.abc import Callable

import pytest
from duetime_core.testing import FakeClock
from duetime_store.copies.clock import READING_MS_MAX, GroupClock
from duetime_store.lanes.alarm import ShardClock

STEP_MS = 50
Wrong = Callable[[FakeClock, random.Random], None]


def group_of(leader: FakeClock, *others: FakeClock) -> GroupClock:
    """The leader's clock, with a reading of each other one."""
    clock = GroupClock(leader, range(1, 2 + len(others)))
    hear(clock, *others)
    return clock


def hear(clock: GroupClock, *others: FakeClock) -> None:
    for number, machine in enumerate(others, 2):
        clock.heard(number, machine.now_ms())


def test_time_stands_still_without_readings_of_a_majority() -> None:
    leader, other, third = FakeClock(), FakeClock(), FakeClock()
    clock = group_of(leader, other, third)
    before = clock.now_ms()
    leader.move(READING_MS_MAX + 1)
    assert clock.now_ms() == before
    assert clock.ms_until(before + 5) > 0
    other.move(READING_MS_MAX + 1)
    hear(clock, other)
    assert clock.now_ms() == before + READING_MS_MAX + 1


def test_of_two_readings_the_lower_one_counts() -> None:
    leader, other = FakeClock(), FakeClock()
    clock = GroupClock(leader, (1, 2, 3))
    for off_ms in (500, -1_000):
        other.step_wall(off_ms)
        hear(clock, other)
        assert clock.now_ms() == min(leader.now_ms(), other.now_ms())


def step(machine: FakeClock, dice: random.Random) -> None:
    machine.step_wall(dice.choice((-3_600_000, 3_600_000, 1_000)))


def stop(machine: FakeClock, dice: random.Random) -> None:
    """Its wall clock stands while the others move."""
    machine.step_wall(-STEP_MS)


WRONG: list[Wrong] = [step, stop]


@pytest.mark.parametrize("wrong", WRONG, ids=["stepped", "stopped"])
@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_early_under_any_leader_with_one_wrong_clock(wrong: Wrong, seed: int) -> None:
    """Three machines, one of them wrong; each leads in turn, with readings that took some time."""
    assert not early_moments(wrong, seed, GroupClock)


def early_moments(wrong: Wrong, seed: int, make: Callable[[FakeClock, range], GroupClock]) -> int:
    """How often a shard's time was ahead of the true one."""
    dice, machines = random.Random(seed), [FakeClock() for _ in range(3)]
    clocks = [make(machine, range(3)) for machine in machines]
    bad, early, floor_ms = dice.choice(machines), 0, 0
    true_ms = machines[0].now_ms()
    for _ in range(200):
        sent = [machine.now_ms() for machine in machines]
        for machine in machines:
            machine.move(STEP_MS)
        true_ms += STEP_MS
        for receiver, clock in enumerate(clocks):
            for sender in range(3):
                if sender != receiver and dice.random() < 0.8:
                    clock.heard(sender, sent[sender])
        if dice.random() < 0.5:
            wrong(bad, dice)
        shard = ShardClock(dice.choice(clocks))
        shard.seen(floor_ms)
        floor_ms = shard.now_ms()
        early += floor_ms > true_ms
    return early


class OwnClock(GroupClock):
    """The rule broken: the leader's own clock decides."""

    def now_ms(self) -> int:
        return self._machine.now_ms()


def test_leaders_own_clock_would_be_early() -> None:
    assert sum(early_moments(step, seed, OwnClock) for seed in range(20)) > 100


def test_deviation_of_each_clock_is_known() -> None:
    leader, other, third = FakeClock(), FakeClock(), FakeClock()
    other.step_wall(1_500)
    third.step_wall(-20)
    assert group_of(leader, other, third).deviations() == {2: 1_500, 3: -20}
