"""A store on a disk that loses power, fills up and forgets unflushed data, against a plain model (life.py)."""

import random
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule

from tests.store.life import LEVELS, QUEUES, TIMERS, TOPICS, Life
from tests.store.life_machine import DelayedMachine, LifeMachine, run_lives

COUNTS = st.integers(1, 20)
BODY_BYTES = st.sampled_from([10, 100, 3_000, 60_000, 300_000])


class Shard(LifeMachine):
    """A shard's life with messages of all kinds, one by one and in batches."""

    mode = "sync"

    def born(self, root: Path, dice: random.Random) -> Life:
        return Life(root, dice, mode=self.mode)

    @rule(
        count=COUNTS,
        topic=st.sampled_from(TOPICS),
        queue=st.integers(0, QUEUES - 1),
        level=st.sampled_from([*range(LEVELS + 1), TIMERS]),
        body_bytes=BODY_BYTES,
        is_batch=st.booleans(),
    )
    def send(self, count: int, topic: str, queue: int, level: int, body_bytes: int, is_batch: bool) -> None:
        self.life.step(self.life.send, count, topic, queue, level, body_bytes, is_batch)

    @rule()
    def send_again(self) -> None:
        self.life.step(self.life.send_again)

    @rule(count=COUNTS)
    def repeat(self, count: int) -> None:
        self.life.step(self.life.repeat, count)

    @rule(level=st.sampled_from([*range(1, LEVELS + 1), TIMERS]), count=COUNTS, early=st.booleans())
    def restore(self, level: int, count: int, early: bool) -> None:
        self.life.step(self.life.restore, level, count, early)

    @rule(level=st.sampled_from([*range(1, LEVELS + 1), TIMERS]), count=COUNTS)
    def fall_due(self, level: int, count: int) -> None:
        self.life.step(self.life.fall_due, level, count)

    @rule(by_ms=st.sampled_from([1, 500, 1_000, 5_000]))
    def pass_time(self, by_ms: int) -> None:
        self.life.step(self.life.pass_time, by_ms)

    @rule(meanwhile=st.integers(0, 3))
    def flush(self, meanwhile: int) -> None:
        self.life.step(self.life.flush, meanwhile)

    @rule()
    def flush_written(self) -> None:
        self.life.step(self.life.flush_written)

    @rule()
    def add_topic(self) -> None:
        self.life.step(self.life.add_topic)

    @rule()
    def fold_topics(self) -> None:
        self.life.step(self.life.fold_topics)


class AsyncShard(Shard):
    mode = "async"


class DelayedShard(DelayedMachine, Shard):
    """Commits take time."""


# The lives of transactions, which the gate runs, have all steps of a synchronous shard.
@pytest.mark.parametrize("machine", [pytest.param(Shard, marks=pytest.mark.proof), AsyncShard, DelayedShard])
def test_nothing_answered_is_lost_whenever_power_is_cut(machine: type[Shard]) -> None:
    run_lives(machine, 40)
