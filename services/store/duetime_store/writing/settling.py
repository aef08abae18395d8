"""Records that are stored only together with the end of a lease or of a dead letter."""

from collections.abc import Callable, Collection

from duetime_core.errors import InvalidArgument, Violation

from duetime_store.writing.staging import OK, SETTLED, PutOutcome
from duetime_store.writing.store import Store


def settle_records(
    store: Store,
    records: bytes,
    ended: Collection[int],
    settle: Callable[[int, str, int, int], Callable[[bool], None] | None],
) -> PutOutcome:
    """Stages records, each stored only together with the end of a lease.

    The journal precedes them: in a log that ends between the two, the end of the lease does not count. A stored record
    with an open lease is impossible.

    Args:
        ended: indices of records without a lease any more; they are not stored.
        settle: called with index, topic, queue and queue offset of each stored record; adds the event to the journal,
            and may return a callback. That is called with whether the record became durable.
    """
    intake = store.admit(records)
    if ended and max(ended) >= intake.count:
        text = f"record {max(ended)} is not within 0 and {intake.count - 1}"
        raise InvalidArgument([Violation("settles.record", text)])
    outcome = PutOutcome.of_nothing(intake.count, OK, store.clock.now_ms())
    for index, fault in store.sent_faults(intake).items():
        outcome.refuse(index, fault)
    for index in ended:
        outcome.statuses[index] = SETTLED
        outcome.faults.pop(index, None)
    chosen = [index for index, status in enumerate(outcome.statuses) if status == OK]
    part = intake.only(chosen)
    next_offsets = [store.queues.get_bytes(*key).next_offset for key in part.keys]
    callbacks = []
    for index, number in zip(chosen, part.key_of.tolist(), strict=True):
        topic, queue_id = part.keys[number]
        callbacks.append(settle(index, topic.decode(), queue_id, next_offsets[number]))
        next_offsets[number] += 1
    store.stage_events()
    stored = PutOutcome([], stored_at_ms=outcome.stored_at_ms)
    store.stage_sent(part, stored)
    store.staged.settles += [callback for callback in callbacks if callback is not None]
    outcome.take_places(chosen, stored)
    return outcome
