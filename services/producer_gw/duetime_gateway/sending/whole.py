"""Batches that are stored all or none: what refuses one as a whole. Pure."""

from collections.abc import Iterable

from duetime_core.errors import DueTimeError, InvalidArgument, Violation
from duetime_format.limits import BATCH_BYTES_MAX

from duetime_gateway.sending.encoding import Batch

TOO_LARGE = "BATCH_TOO_LARGE"
# Fields that a draft has from its batch.
_SHARED = ("topic", "queue", "sharding_key")


def check_batch(batch: Batch, own: Iterable[Violation]) -> None:
    """Judges the encoded messages of a batch. `own`: what is wrong with them as parts of a batch.

    Raises:
        InvalidArgument: anything breaks a rule; all violations are named, those of messages by index.
        DueTimeError: the topic's route, or its shard, is the reason.
    """
    found = dict.fromkeys((violation.field, violation.description) for violation in own)
    others: list[DueTimeError] = []
    for index, fault in sorted(batch.faults.items()):
        if type(fault) is not InvalidArgument:
            others.append(fault)
            continue
        for violation in fault.violations:
            shared = violation.field in _SHARED
            field = violation.field if shared else f"messages[{index}].{violation.field}"
            found[field, violation.description] = None
    if found:
        raise InvalidArgument([Violation(*one) for one in found], reason="MESSAGE_INVALID")
    if others:
        raise others[0]
    size = sum(len(one) for group in batch.groups.values() for one in group.records)
    if size > BATCH_BYTES_MAX:
        text = f"{size} bytes as they are stored are above the most of a batch, {BATCH_BYTES_MAX}"
        raise InvalidArgument([Violation("messages", text)], reason=TOO_LARGE)
