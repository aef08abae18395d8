"""Outcomes of rows, by the server's answers. (Pure.)"""

from datetime import timedelta

import pytest
from duetime import (
    Conflict,
    DueTimeError,
    InvalidMessage,
    MessageCancelled,
    NotFound,
    Overloaded,
    PermissionDenied,
    Receipt,
    ServerError,
    Unauthenticated,
    Unavailable,
)
from duetime.client.finding.finder import FoundMessage
from duetime.outbox.verdicts import PAUSE_MS_MAX, RowVerdict, Trust, is_away, of_outcomes
from duetime.v1 import gateway_pb2, message_pb2

NOW_MS = 1_700_000_000_000
RECEIPT = Receipt(message_pb2.SendResult(message_id="a"), "orders")
FOUND = FoundMessage(gateway_pb2.FoundMessage(state=gateway_pb2.MESSAGE_STATE_STORED))
NO_SERVER = Unavailable("cannot connect to", reason="UNAVAILABLE")
NO_SHARD = Unavailable("shard 1 does not answer", reason="SHARD_UNAVAILABLE")
UNKNOWN = Unauthenticated("the token is not valid", reason="TOKEN_INVALID")
SHUT_OUT = PermissionDenied("no right", reason="RIGHT_MISSING")
ABSENT = NotFound("no message a", reason="MESSAGE_NOT_FOUND")
TRUST = Trust(timedelta(minutes=5), timedelta(hours=1))


@pytest.mark.parametrize(
    ("outcome", "state"),
    [
        (RECEIPT, "sent"),
        (InvalidMessage.of("queue", "99 is too much"), "failed"),
        (NotFound("no topic", reason="TOPIC_NOT_FOUND"), "failed"),
        (Conflict("no", reason="ANY"), "failed"),
        (MessageCancelled("was cancelled", reason="MESSAGE_CANCELLED"), "failed"),
        # These leave open whether it was stored.
        (NO_SHARD, "waiting"),
        (Overloaded("full", reason="OVERLOADED"), "waiting"),
        (ServerError("a fault of its own", reason="INTERNAL"), "waiting"),
        (DueTimeError("new", reason="NEW"), "waiting"),
        # An operator mends it, and no message is lost for that.
        (UNKNOWN, "waiting"),
        (SHUT_OUT, "waiting"),
    ],
)
def test_only_surely_rejected_rows_fail(outcome: Receipt | DueTimeError, state: str) -> None:
    (verdict,) = of_outcomes([outcome], [1], NOW_MS)
    assert verdict.state == state
    assert verdict.error == ("" if state == "sent" else str(outcome))


def test_rows_that_one_shard_does_not_take_wait_longer_each_time() -> None:
    verdicts = of_outcomes([RECEIPT, *[NO_SHARD] * 20], range(21), NOW_MS)
    pauses = [verdict.next_at_ms - NOW_MS for verdict in verdicts[1:]]
    assert pauses[:3] == [200, 400, 800]
    assert pauses == sorted(pauses)
    assert pauses[-1] == PAUSE_MS_MAX


def test_rows_wait_for_nothing_once_a_server_is_back() -> None:
    assert is_away([NO_SERVER, NO_SERVER])
    assert [each.next_at_ms for each in of_outcomes([NO_SERVER] * 2, [1, 9], NOW_MS)] == [NOW_MS] * 2


@pytest.mark.parametrize("outcomes", [[], [RECEIPT], [NO_SERVER, RECEIPT], [NO_SHARD], [NO_SHARD, NO_SERVER]])
def test_answering_server_counts_as_reachable(outcomes: list[Receipt | DueTimeError]) -> None:
    assert not is_away(outcomes)


@pytest.mark.parametrize(
    ("handed_ago_ms", "repeats"), [(None, True), (0, True), (299_999, True), (300_000, False), (10**12, False)]
)
def test_message_is_repeated_while_the_server_surely_knows_its_id(handed_ago_ms: int | None, repeats: bool) -> None:
    handed_at_ms = None if handed_ago_ms is None else NOW_MS - handed_ago_ms
    assert TRUST.repeats(handed_at_ms, NOW_MS) is repeats


def test_found_message_counts_as_sent_at_any_age() -> None:
    assert TRUST.of_answer(FOUND, 0, NOW_MS) == RowVerdict("sent")


@pytest.mark.parametrize("state", ["CANCELLED", "PREPARED", "ROLLED_BACK", "GIVEN_UP"])
def test_found_but_undelivered_message_fails(state: str) -> None:
    number = gateway_pb2.MessageState.Value(f"MESSAGE_STATE_{state}")
    verdict = TRUST.of_answer(FoundMessage(gateway_pb2.FoundMessage(state=number)), 0, NOW_MS)
    assert verdict is not None
    assert verdict.state == "failed"


def test_absence_is_proof_within_retention() -> None:
    assert TRUST.of_answer(ABSENT, NOW_MS - 3_599_999, NOW_MS) is None
    verdict = TRUST.of_answer(ABSENT, NOW_MS - 3_600_000, NOW_MS)
    assert verdict is not None
    assert verdict.state == "doubtful"
    assert "first handed over at 2023-11-14T21:13:20+00:00" in verdict.error
    assert str(ABSENT) in verdict.error


@pytest.mark.parametrize("answer", [NO_SHARD, UNKNOWN, SHUT_OUT])
def test_unanswered_search_is_repeated(answer: DueTimeError) -> None:
    assert TRUST.of_answer(answer, 0, NOW_MS) == RowVerdict("waiting", str(answer), NOW_MS + PAUSE_MS_MAX)


@pytest.mark.parametrize(
    "answer", [NotFound("no shard", reason="SHARD_NOT_FOUND"), ServerError("no index here", reason="UNIMPLEMENTED")]
)
def test_answer_without_the_message_leaves_a_doubt(answer: DueTimeError) -> None:
    verdict = TRUST.of_answer(answer, NOW_MS - 300_000, NOW_MS)
    assert verdict is not None
    assert verdict.state == "doubtful"
