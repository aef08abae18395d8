"""A small `make races`: answers of calls at the due time agree with the deliveries."""

import random
from pathlib import Path

import pytest

from bench.processes import Processes
from tests.crash.races import CANCEL, NEW, OLD, REPLACE, RESCHEDULE, Pair, faults, message_pb2, race

PAIRS = 2_400


@pytest.mark.proof
@pytest.mark.timeout(120)
async def test_answers_at_the_due_time_agree_with_deliveries(tmp_path: Path, dice: random.Random) -> None:
    with Processes(tmp_path, {"DUETIME_LOG_LEVEL": "WARNING"}) as cluster:
        answers = await race(cluster, PAIRS, 0, dice)
    assert answers.total() == PAIRS
    assert not [answer for answer in answers if answer[1] == "error"]


@pytest.mark.parametrize(
    ("call", "answer", "bodies"),
    [
        (CANCEL, "CANCELLED", [OLD]),
        (CANCEL, "ALREADY_FIRED", []),
        (CANCEL, "NOT_FOUND", []),
        (CANCEL, "error", [OLD, OLD]),
        (RESCHEDULE, "rescheduled", [OLD]),
        (RESCHEDULE, "already fired", [NEW]),
        (RESCHEDULE, "error", []),
        (REPLACE, "error", []),
        (REPLACE, "replaced", [OLD]),
    ],
)
def test_answer_that_is_not_true_is_seen(call: str, answer: str, bodies: list[bytes]) -> None:
    pair = Pair(1, call, due_at_ms=100, acknowledged=True, answer=answer)
    messages = [message_pb2.StoredMessage(id="p1", body=body, stored_at_ms=200) for body in bodies]
    assert len(list(faults([pair], messages))) == 1


def test_message_that_comes_early_is_seen() -> None:
    pair = Pair(1, CANCEL, due_at_ms=100, acknowledged=True, answer="ALREADY_FIRED")
    for stored_at_ms, count in ((99, 1), (100, 0)):
        message = message_pb2.StoredMessage(id="p1", body=OLD, stored_at_ms=stored_at_ms)
        assert len(list(faults([pair], [message]))) == count
