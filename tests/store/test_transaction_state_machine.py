"""Transactions on a disk that loses power and fills up, against a plain model (transaction_life.py)."""

import random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule, run_state_machine_as_test

from tests.store import test_state_machine
from tests.store.life import LEVELS, QUEUES, TIMERS, TOPICS
from tests.store.test_state_machine import COUNTS
from tests.store.transaction_life import TransactionLife


class TransactionShard(test_state_machine.Shard):
    """All steps of a shard's life, and those of transactions."""

    life: TransactionLife

    @initialize(seed=st.integers(0, 1 << 32))
    def begin(self, seed: int) -> None:
        self.folder = test_state_machine.Path(test_state_machine.tempfile.mkdtemp())
        self.life = TransactionLife(self.folder / "store", random.Random(seed), mode=self.mode)

    @rule(
        count=COUNTS,
        topic=st.sampled_from(TOPICS),
        queue=st.integers(0, QUEUES - 1),
        level=st.sampled_from([0, *range(LEVELS + 1), TIMERS]),
    )
    def prepare(self, count: int, topic: str, queue: int, level: int) -> None:
        self.life.step(self.life.prepare, count, topic, queue, level)

    @rule(count=COUNTS, newest=st.booleans())
    def end(self, count: int, newest: bool) -> None:
        self.life.step(lambda: self.life.end(count, newest=newest))

    @rule(count=COUNTS)
    def end_and_flush(self, count: int) -> None:
        self.life.step(lambda: self.life.end(count, newest=True))
        self.life.step(self.life.flush, 0)


class AsyncTransactionShard(TransactionShard):
    """What was answered may be lost; what is left fits together."""

    mode = "async"


@pytest.mark.parametrize(("machine", "examples"), [(TransactionShard, 80), (AsyncTransactionShard, 40)])
def test_transactions_end_once_whenever_power_is_cut(machine: type[TransactionShard], examples: int) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=50,
            deadline=None,
            print_blob=True,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
