"""Pending messages on a disk that loses power and fills up, against a plain model (pending_life.py): send, cancel,
reschedule, upsert, advance, crash, power cut, restart and retention against a sorted list, and a topic that is deleted
and made again (deletion_life.py). `make lives` has thousands of lives.
"""

import random
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from tests.store.counted import check_counts
from tests.store.deletion_life import DeletionLife
from tests.store.life import DELAYS_MS
from tests.store.life_machine import DelayedMachine, LifeMachine, run_lives
from tests.store.pending_life import KEYS, LANES

STEPS = 30
COUNTS = st.integers(1, 10)
DELAYS = st.sampled_from(DELAYS_MS)
TIMER_LANES = st.sampled_from([lane for lane in LANES if lane >= 1_000])


class PendingShard(LifeMachine):
    """A shard's life whose counts are checked after each step."""

    life: DeletionLife
    mode = "sync"

    def born(self, root: Path, dice: random.Random) -> DeletionLife:
        life = DeletionLife(root, dice, mode=self.mode)
        for lane in LANES:
            life.send(6, "orders", 0, lane, 10)
        life.flush()
        return life

    def finish(self) -> None:
        self.life.step(self.life.answer_all)

    @invariant()
    def counts_are_a_recount(self) -> None:
        if hasattr(self, "life"):
            self.life.step(lambda: check_counts(self.life.store))

    @rule(count=COUNTS, lane=st.sampled_from([0, *LANES]), body_bytes=st.sampled_from([10, 100, 3_000]))
    def send(self, count: int, lane: int, body_bytes: int) -> None:
        self.life.step(self.life.send, count, "orders", 0, lane, body_bytes)

    @rule(lane=st.sampled_from([0, 0, *LANES]))
    def send_much(self, lane: int) -> None:
        """Half a file of the log."""
        self.life.step(self.life.send, 8, "orders", 0, lane, 60_000)

    @rule(count=COUNTS, lane=st.sampled_from([0, *LANES]))
    def send_there(self, count: int, lane: int) -> None:
        self.life.step(self.life.send_there, count, lane, 10)

    @rule()
    def delete(self) -> None:
        self.life.step(self.life.delete)

    @rule()
    def make_again(self) -> None:
        self.life.step(self.life.make_again)

    @rule(count=COUNTS, by_place=st.booleans())
    def cancel(self, count: int, by_place: bool) -> None:
        self.life.step(self.life.cancel, count, by_place)

    @rule(delay_ms=DELAYS, is_delay=st.booleans(), by_place=st.booleans(), with_body=st.booleans())
    def reschedule(self, delay_ms: int, is_delay: bool, by_place: bool, with_body: bool) -> None:
        self.life.step(self.life.reschedule, delay_ms, is_delay, by_place, with_body)

    @rule(key=st.sampled_from(KEYS), lane=TIMER_LANES, delay_ms=DELAYS, max_wait_ms=st.sampled_from([0, 0, 1_000]))
    def upsert(self, key: str, lane: int, delay_ms: int, max_wait_ms: int) -> None:
        self.life.step(self.life.upsert, key, lane, delay_ms, max_wait_ms)

    @rule(lane=st.sampled_from(LANES), count=COUNTS, early=st.booleans())
    def restore(self, lane: int, count: int, early: bool) -> None:
        self.life.step(self.life.restore, lane, count, early)

    @rule(lane=st.sampled_from(LANES), count=COUNTS)
    def fall_due(self, lane: int, count: int) -> None:
        self.life.step(self.life.fall_due, lane, count)

    @rule(by_ms=st.sampled_from([1, 500, 1_000, 5_000, 40_000, -3_000]))
    def pass_time(self, by_ms: int) -> None:
        """The clock may also step back."""
        self.life.step(self.life.pass_time, by_ms)

    @rule()
    def flush(self) -> None:
        self.life.step(self.life.flush)

    @rule(steps=st.integers(1, 3))
    def index(self, steps: int) -> None:
        self.life.step(self.life.index, steps)

    @rule()
    def look(self) -> None:
        self.life.step(self.life.look)

    @rule()
    def retain(self) -> None:
        self.life.step(self.life.retain)


class AsyncPendingShard(PendingShard):
    """Answered records may be lost; each message left has one state."""

    mode = "async"

    @rule()
    def flush_written(self) -> None:
        self.life.step(self.life.flush_written)


class DelayedPendingShard(DelayedMachine, PendingShard):
    """Commits take time."""


@pytest.mark.timeout(300 + settings.default.max_examples * 5)
@pytest.mark.parametrize(
    "machine", [PendingShard, DelayedPendingShard, pytest.param(AsyncPendingShard, marks=pytest.mark.proof)]
)
def test_one_of_a_message_and_its_replacement_is_delivered_once(machine: type[PendingShard]) -> None:
    run_lives(machine, STEPS)
