"""Failed deliveries of a message, in the contract's form."""

from duetime.v1 import consumer_pb2
from duetime_format.attempts import AttemptHistory


def failed_attempts(history: AttemptHistory) -> list[consumer_pb2.FailedAttempt]:
    return [
        consumer_pb2.FailedAttempt(
            attempt=one.number,
            received_at_ms=one.received_at_ms,
            failed_at_ms=one.failed_at_ms,
            error=consumer_pb2.HandlerError(type=one.type, message=one.message or "", trace=one.trace or ""),
        )
        for one in history.attempts
    ]
