"""A small `make transactions`: producers' decisions are carried out, through kills."""

import random
from pathlib import Path

import pytest

from bench.processes import Processes
from tests.crash.transactions import COMMIT, ROLLBACK, SETTINGS, faults, message_pb2, run

COUNT, KILLS = 1_500, 8


@pytest.mark.proof
@pytest.mark.timeout(300)
async def test_transactions_are_carried_out_through_kills(tmp_path: Path, dice: random.Random) -> None:
    with Processes(tmp_path / "cluster", SETTINGS, impatient=True) as cluster:
        answers = await run(cluster, tmp_path, COUNT, KILLS, dice)
    assert answers[COMMIT] > COUNT / 4
    assert answers[ROLLBACK] > COUNT / 10


@pytest.mark.parametrize(
    ("decision", "stored_at_ms"),
    [(COMMIT, []), (COMMIT, [200, 200]), (ROLLBACK, [200]), ("", [200]), (COMMIT, [149])],
)
def test_unexecuted_decisions_are_detected(decision: str, stored_at_ms: list[int]) -> None:
    decided = {"a": (decision, 100)} if decision else {}
    messages = [message_pb2.StoredMessage(id="a", stored_at_ms=at_ms) for at_ms in stored_at_ms]
    assert list(faults({"a": 50}, decided, messages))
