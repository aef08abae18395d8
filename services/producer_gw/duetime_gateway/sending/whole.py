"""Checks requests and batches as a whole. Pure."""

from collections.abc import Iterable

from duetime_core.errors import DueTimeError, InvalidArgument, Violation
from duetime_format.limits import BATCH_BYTES_MAX, REQUEST_BYTES_MAX, SEND_COUNT_MAX

from duetime_gateway.sending.encoding import DraftBatch

TOO_LARGE = "BATCH_TOO_LARGE"
# Fields that a draft inherits from its batch.
_SHARED = ("topic", "queue", "sharding_key")


def check_send(count: int, size: int) -> None:
    """Checks a Send.

    Raises:
        InvalidArgument: no message, too many, or too many bytes.
    """
    if size > REQUEST_BYTES_MAX:
        text = f"{size} bytes exceed the limit of one request, {REQUEST_BYTES_MAX}"
        raise InvalidArgument([Violation("messages", text)])
    if not 1 <= count <= SEND_COUNT_MAX:
        text = f"{count} messages; a request has 1 to {SEND_COUNT_MAX}"
        raise InvalidArgument([Violation("messages", text)])


def check_batch(batch: DraftBatch, own: Iterable[Violation]) -> None:
    """Checks the encoded messages of a batch, stored all or none. `own`: their violations as parts of a batch.

    Raises:
        InvalidArgument: a rule is broken; lists all violations, those of messages by index.
        DueTimeError: the error of the topic's route or of its shard.
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
        text = f"{size} bytes as stored exceed the limit of a batch, {BATCH_BYTES_MAX}"
        raise InvalidArgument([Violation("messages", text)], reason=TOO_LARGE)
