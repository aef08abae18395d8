"""Transactions on a disk that loses power and fills up, against a plain model (transaction_life.py)."""

import random
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule

from tests.store import test_state_machine
from tests.store.life import LEVELS, QUEUES, TIMERS, TOPICS
from tests.store.life_machine import DelayedMachine, run_lives
from tests.store.test_state_machine import COUNTS
from tests.store.transaction_life import TransactionLife


class TransactionShard(test_state_machine.Shard):
    """All steps of a shard's life, and those of transactions."""

    life: TransactionLife

    def born(self, root: Path, dice: random.Random) -> TransactionLife:
        return TransactionLife(root, dice, mode=self.mode)

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
    """Answered ends may be lost; the remaining state is consistent."""

    mode = "async"


class DelayedTransactionShard(DelayedMachine, TransactionShard):
    """Commits take time."""


@pytest.mark.parametrize(
    "machine",
    [
        TransactionShard,
        pytest.param(AsyncTransactionShard, marks=pytest.mark.proof),
        pytest.param(DelayedTransactionShard, marks=pytest.mark.proof),
    ],
)
def test_transactions_end_once_whenever_power_is_cut(machine: type[TransactionShard]) -> None:
    run_lives(machine, 50)
