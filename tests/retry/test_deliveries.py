"""Ended leases reported by the store, and records of them from before."""

from duetime.v1 import consumer_pb2, store_pb2
from duetime_format import attempts as histories
from duetime_format.attempts import AttemptFailure, AttemptHistory
from duetime_format.record import Record
from duetime_retry.deliveries import failed_delivery

ERROR = consumer_pb2.HandlerError(type="ValueError", message="no")


def told(leased: store_pb2.LeasedRecord, failed_at_ms: int, error: consumer_pb2.HandlerError | None) -> AttemptHistory:
    return failed_delivery(leased, Record("orders", 0, b"body", b""), 0, failed_at_ms, error).history


def kinds(history: AttemptHistory) -> list[tuple[int, str]]:
    return [(one.number, one.type) for one in history.attempts]


def test_ended_leases_precede_the_reported_failure() -> None:
    leased = store_pb2.LeasedRecord(attempt=3, received_at_ms=30, expired=[10, 20, 20, 30])
    assert kinds(told(leased, 35, ERROR)) == [(1, "LeaseExpired"), (2, "LeaseExpired"), (3, "ValueError")]


def test_last_lease_that_ended_is_the_last_delivery() -> None:
    leased = store_pb2.LeasedRecord(attempt=2, received_at_ms=40, expired=[10, 20, 20, 30])
    assert kinds(told(leased, 50, None)) == [(1, "LeaseExpired"), (2, "LeaseExpired")]


def test_in_place_each_ended_lease_is_noted_once() -> None:
    first = told(store_pb2.LeasedRecord(attempt=2, received_at_ms=20, expired=[10, 20]), 25, ERROR)
    again = store_pb2.LeasedRecord(
        attempt=4, received_at_ms=40, expired=[10, 20, 30, 40], history=(histories.encode(first) or "").encode()
    )
    assert kinds(told(again, 45, ERROR)) == [
        (1, "LeaseExpired"),
        (2, "ValueError"),
        (3, "LeaseExpired"),
        (4, "ValueError"),
    ]


def test_omitted_ended_leases_are_not_recorded_again() -> None:
    """Attempts 2 and 3 were left out, and the store still reports them."""
    said = AttemptHistory((AttemptFailure(1, 0, 5, "ValueError"), AttemptFailure(4, 40, 45, "ValueError")), left_out=2)
    leased = store_pb2.LeasedRecord(
        attempt=5,
        received_at_ms=50,
        expired=[20, 30, 30, 40],
        history=(histories.encode(said) or "").encode(),
    )
    history = told(leased, 55, ERROR)
    assert kinds(history) == [(1, "ValueError"), (4, "ValueError"), (5, "ValueError")]
    assert history.left_out == 2


def test_delivery_in_the_millisecond_of_the_failure_before_is_noted() -> None:
    said = AttemptHistory((AttemptFailure(1, 40, 45, "ValueError"),))
    leased = store_pb2.LeasedRecord(
        attempt=2, received_at_ms=45, expired=[45, 45], history=(histories.encode(said) or "").encode()
    )
    assert kinds(told(leased, 60, None)) == [(1, "ValueError"), (2, "LeaseExpired")]
