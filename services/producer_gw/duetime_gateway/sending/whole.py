"""Requests and batches judged as a whole. Pure."""

from collections.abc import Iterable

from duetime_core.errors import DueTimeError, InvalidArgument, Violation
from duetime_format.limits import BATCH_BYTES_MAX, REQUEST_BYTES_MAX, SEND_COUNT_MAX

from duetime_gateway.sending.encoding import Batch

TOO_LARGE = "BATCH_TOO_LARGE"
# Fields that a draft has from its batch.
_SHARED = ("topic", "queue", "sharding_key")


def check_send(count: int, size: int) -> None:
    """Judges a Send.

    Raises:
        InvalidArgument: no message, too many, or too many bytes.
    """
    if size > REQUEST_BYTES_MAX:
        text = f"{size} bytes are above the most of one request, {REQUEST_BYTES_MAX}"
        raise InvalidArgument([Violation("messages", text)])
    if not 1 <= count <= SEND_COUNT_MAX:
        text = f"{count} messages; a request has 1 to {SEND_COUNT_MAX}"
        raise InvalidArgument([Violation("messages", text)])


def check_batch(batch: Batch, own: Iterable[Violation]) -> None:
    """Judges the encoded messages of a batch, which are stored all or none. `own`: their faults as parts of a batch.

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
