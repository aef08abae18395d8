"""The facts about a failed delivery, from the store and from the handler's error. Pure."""

from duetime.v1 import consumer_pb2, store_pb2
from duetime_format import attempts as histories
from duetime_format.attempts import LEASE_EXPIRED, AttemptFailure
from duetime_format.record import Record

from duetime_retry.copies import FailedMessage, history_of


def failed_delivery(
    leased: store_pb2.LeasedRecord,
    found: Record,
    origin_queue: int | None,
    failed_at_ms: int,
    error: consumer_pb2.HandlerError | None,
) -> FailedMessage:
    """`found`: the decoded record. `error` None: the last delivery was not reported; its lease ended like earlier ones.

    The history is that of the message's place, if it was retried in place, else that of its record. For a message
    retried in place the store repeats deliveries with expired leases: those already noted, or left out for lack of
    room, are skipped.
    """
    said = leased.history.decode("utf-8", "replace")
    history = histories.decode(said) if said else history_of(found)
    fresh = list(zip(leased.expired[::2], leased.expired[1::2], strict=False))
    if said and history.attempts:
        noted = {(one.received_at_ms, one.failed_at_ms) for one in history.attempts if one.type == LEASE_EXPIRED}
        latest_ms = history.attempts[-1].failed_at_ms
        fresh = [pair for pair in fresh if pair not in noted and pair[1] >= latest_ms]
    # The deliveries before this one, or up to the last.
    first = max(leased.attempt - len(fresh) + (error is None), 1)
    attempts = [AttemptFailure(first + index, *pair, LEASE_EXPIRED) for index, pair in enumerate(fresh)]
    if error is not None:
        fields = (error.type, error.message, error.trace)
        attempts.append(AttemptFailure.of_error(leased.attempt, leased.received_at_ms, failed_at_ms, *fields))
    return FailedMessage(found, leased.attempt, history.with_attempts(attempts), origin_queue)
