"""A store on a disk that loses power, fills up and forgets what was not flushed, against a plain model (life.py)."""

import random
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from tests.store.life import LEVELS, QUEUES, TIMERS, TOPICS, Life

COUNTS = st.integers(1, 20)
BODY_BYTES = st.sampled_from([10, 100, 3_000, 60_000, 300_000])


class Shard(RuleBasedStateMachine):
    """Each rule is a step of the shard's life; `Life.check` runs after each crash."""

    mode = "sync"

    @initialize(seed=st.integers(0, 1 << 32))
    def begin(self, seed: int) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.life = Life(self.folder / "store", random.Random(seed), mode=self.mode)

    def teardown(self) -> None:
        if hasattr(self, "life"):
            try:
                self.life.step(self.life.cut_power)
            finally:
                self.life.close()
                shutil.rmtree(self.folder)

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
    def checkpoint(self) -> None:
        self.life.step(self.life.checkpoint)

    @rule()
    def add_topic(self) -> None:
        self.life.step(self.life.add_topic)

    @rule()
    def write_late(self) -> None:
        self.life.step(self.life.write_late)

    @rule()
    def fold_topics(self) -> None:
        self.life.step(self.life.fold_topics)

    @rule(free_bytes=st.sampled_from([0, 8_192, 100_000, 400_000]))
    def fill_disk(self, free_bytes: int) -> None:
        self.life.step(self.life.fill_disk, free_bytes)

    @rule()
    def free_disk(self) -> None:
        self.life.step(self.life.free_disk)

    @rule()
    def restart(self) -> None:
        self.life.step(self.life.restart)

    @rule()
    def kill(self) -> None:
        self.life.step(self.life.kill)

    @rule()
    def cut_power(self) -> None:
        self.life.step(self.life.cut_power)

    @rule(operations=st.integers(1, 30), next_life=st.booleans())
    def cut_power_in(self, operations: int, next_life: bool) -> None:
        self.life.cut_power_in(operations, next_life=next_life)


class AsyncShard(Shard):
    mode = "async"


@pytest.mark.parametrize(("machine", "examples"), [(Shard, 200), (AsyncShard, 60)])
def test_nothing_answered_is_lost_whenever_power_is_cut(machine: type[Shard], examples: int) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=40,
            deadline=None,
            database=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
