"""RocketMQ's codes for errors, for faults of single messages, and for receipts. Pure.

Every client knows these codes, except MESSAGE_BODY_EMPTY, which is missing in the Rust client's older table.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

from duetime_core.errors import DueTimeError, Violation

from duetime_gateway.queries import LeaseStatus
from duetime_gateway.rocketmq.wire import messaging_pb2 as pb

# Longest sentence: it travels with every answer.
SENTENCE_CHARS_MAX = 1_024
# Remaining time below which retriable errors become timeouts.
DEADLINE_NEAR_MS = 50.0

_BY_FIELD: Mapping[str, int] = {
    "topic": pb.ILLEGAL_TOPIC,
    "name": pb.ILLEGAL_TOPIC,
    "group": pb.ILLEGAL_CONSUMER_GROUP,
    "tags": pb.ILLEGAL_MESSAGE_TAG,
    "keys": pb.ILLEGAL_MESSAGE_KEY,
    "sharding_key": pb.ILLEGAL_MESSAGE_GROUP,
    "properties": pb.MESSAGE_PROPERTIES_TOO_LARGE,
    "id": pb.ILLEGAL_MESSAGE_ID,
    "body": pb.MESSAGE_BODY_TOO_LARGE,
    "delay_ms": pb.ILLEGAL_DELIVERY_TIME,
    "deliver_at_ms": pb.ILLEGAL_DELIVERY_TIME,
    "invisible_ms": pb.ILLEGAL_INVISIBLE_TIME,
    "wait_ms": pb.ILLEGAL_POLLING_TIME,
    "receipts": pb.INVALID_RECEIPT_HANDLE,
    "transaction_id": pb.INVALID_TRANSACTION_ID,
    "sql": pb.ILLEGAL_FILTER_EXPRESSION,
    "lite_topic": pb.ILLEGAL_LITE_TOPIC,
    "lite_topics": pb.ILLEGAL_LITE_TOPIC,
}
# Field names in RocketMQ's terms.
_FIELD_NAMES = {
    "tags": "tag",
    "sharding_key": "message_group",
    "id": "message_id",
    "deliver_at_ms": "delivery_timestamp",
    "invisible_ms": "invisible_duration",
    "wait_ms": "long_polling_timeout",
}
_BY_REASON: Mapping[str, int] = {
    "TOPIC_NOT_FOUND": pb.TOPIC_NOT_FOUND,
    "GROUP_NOT_FOUND": pb.CONSUMER_GROUP_NOT_FOUND,
    "TRANSACTION_NOT_FOUND": pb.INVALID_TRANSACTION_ID,
    "FILTER_INVALID": pb.ILLEGAL_FILTER_EXPRESSION,
    "FILTER_CONFLICT": pb.ILLEGAL_FILTER_EXPRESSION,
    "DISK_FULL": pb.INTERNAL_SERVER_ERROR,
    "LITE_TOPICS_EXHAUSTED": pb.LITE_TOPIC_QUOTA_EXCEEDED,
    "LITE_PLACES_EXHAUSTED": pb.LITE_SUBSCRIPTION_QUOTA_EXCEEDED,
    "LITE_SUBSCRIPTIONS_EXHAUSTED": pb.LITE_SUBSCRIPTION_QUOTA_EXCEEDED,
}
# Codes by gRPC status name.
_BY_STATUS: Mapping[str, int] = {
    "UNAUTHENTICATED": pb.UNAUTHORIZED,
    "PERMISSION_DENIED": pb.FORBIDDEN,
    "NOT_FOUND": pb.NOT_FOUND,
    "INVALID_ARGUMENT": pb.BAD_REQUEST,
    "ALREADY_EXISTS": pb.BAD_REQUEST,
    "FAILED_PRECONDITION": pb.BAD_REQUEST,
    "UNIMPLEMENTED": pb.UNSUPPORTED,
    "RESOURCE_EXHAUSTED": pb.TOO_MANY_REQUESTS,
    "DEADLINE_EXCEEDED": pb.PROXY_TIMEOUT,
}
_INDEX = re.compile(r"^messages\[\d+\]\.")
_WORD = re.compile(r"^\w+")


_OK = pb.Status(code=pb.OK, message="OK")


class RocketMQError(DueTimeError):
    """An error specific to this protocol, with its code."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


def ok() -> pb.Status:
    """A shared status for answers; must not be changed."""
    return _OK


def status(code: int, text: str) -> pb.Status:
    return pb.Status(code=code, message=text[:SENTENCE_CHARS_MAX])  # type: ignore[arg-type]


def status_of(error: DueTimeError, remaining_ms: float | None = None, *, receives: bool = False) -> pb.Status:
    """The code of an error, and a sentence. `remaining_ms`: of the caller; None: no deadline. `receives`: tags belong
    to a filter."""
    code = code_of(error, receives=receives)
    if error.retriable and remaining_ms is not None and remaining_ms < DEADLINE_NEAR_MS:
        code = pb.PROXY_TIMEOUT
    return status(code, _sentence(error))


def code_of(error: DueTimeError, *, receives: bool = False) -> int:
    """See `status_of`."""
    if isinstance(error, RocketMQError):
        return error.code
    if error.reason in _BY_REASON:
        return _BY_REASON[error.reason]
    if error.violations and error.status.name == "INVALID_ARGUMENT":
        return _code_of_field(error.violations[0].field, receives=receives)
    return _BY_STATUS.get(error.status.name, pb.INTERNAL_SERVER_ERROR)


def _code_of_field(field: str, *, receives: bool) -> int:
    path = _INDEX.sub("", field)
    if path.startswith("properties["):
        return pb.ILLEGAL_MESSAGE_PROPERTY_KEY
    word = _WORD.match(path)
    name = word[0] if word else ""
    if receives and name == "tags":
        return pb.ILLEGAL_FILTER_EXPRESSION
    return _BY_FIELD.get(name, pb.BAD_REQUEST)


def _sentence(error: DueTimeError) -> str:
    if not error.violations:
        return error.text
    return "; ".join(f"{_shown(one)}: {one.description}" for one in error.violations)


def _shown(violation: Violation) -> str:
    path = _INDEX.sub("", violation.field)
    return _WORD.sub(lambda word: _FIELD_NAMES.get(word[0], word[0]), path)


def of_receipt(found: int) -> pb.Status:
    """The status for a lease."""
    if found == LeaseStatus.OK:
        return ok()
    why = "its lease has ended" if found == LeaseStatus.EXPIRED else "it names no lease of this group"
    return status(pb.INVALID_RECEIPT_HANDLE, f"receipt_handle: {why}")


def together(statuses: Sequence[pb.Status]) -> pb.Status:
    """The status of an answer with entries: theirs if all have one code, else MULTIPLE_RESULTS."""
    if len(statuses) == 1 or len({one.code for one in statuses}) == 1:
        return statuses[0]
    return status(pb.MULTIPLE_RESULTS, f"{_counted(statuses)}: see the entries")


def _counted(statuses: Iterable[pb.Status]) -> str:
    counts: dict[str, int] = {}
    for one in statuses:
        name = pb.Code.Name(one.code)
        counts[name] = counts.get(name, 0) + 1
    return ", ".join(f"{count} {name}" for name, count in counts.items())
