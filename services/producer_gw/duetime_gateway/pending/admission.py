"""Rules for requests about pending messages. Pure.

Each `check_` raises InvalidArgument; a `_violations` checks one message of a batch, and is a fault of that one only.
"""

from collections.abc import Iterator

from duetime.v1 import consumer_pb2, pending_pb2
from duetime_core.errors import InvalidArgument, Violation, refuse
from duetime_format import limits
from duetime_format.admission import delay_violations, due_violations, group_violations, topic_violations
from duetime_format.errors import within
from duetime_format.lanes import TIMER_LANE_FIRST, TIMER_LANES_MAX
from duetime_format.names import is_group_topic
from duetime_format.texts import shown

from duetime_gateway.rules import INT64_MAX

_INT32_MAX = (1 << 31) - 1


def check_count(count: int, count_max: int) -> None:
    """Checks the number of messages in a request."""
    if not 1 <= count <= count_max:
        raise InvalidArgument([Violation("messages", f"{count} messages; a request has 1 to {count_max}")])


def ref_violations(ref: pending_pb2.PendingRef) -> list[Violation]:
    """Violations in the name of a message."""
    found: list[Violation] = []
    if not 1 <= len(ref.message_id) <= limits.ID_CHARS_MAX:
        text = f"{shown(ref.message_id)} has {len(ref.message_id)} characters; an id has 1 to {limits.ID_CHARS_MAX}"
        found.append(Violation("message_id", text))
    # A waiting retry is named by its group's topic, and has fired.
    found += topic_violations("topic", ref.topic, system=is_group_topic(ref.topic)) if ref.topic else ()
    found += within("shard", ref.shard, 0, _INT32_MAX)
    found += within("lane", ref.lane, 0, TIMER_LANE_FIRST + TIMER_LANES_MAX - 1)
    return found + within("entry", ref.entry, 0, INT64_MAX)


def reschedule_violations(
    asked: pending_pb2.Reschedule, now_ms: int, max_delay_ms: int, body_bytes_min: int
) -> list[Violation]:
    """Violations beside the name. `max_delay_ms`: the topic's limit, if known; 0: no limit of its own."""
    topic = asked.message.topic
    found: list[Violation] = []
    match asked.WhichOneof("due"):
        case "delay_ms":
            found += delay_violations("delay_ms", asked.delay_ms, topic, max_delay_ms)
        case "deliver_at_ms":
            found += due_violations("deliver_at_ms", asked.deliver_at_ms, now_ms, topic, max_delay_ms)
        case None:
            found.append(Violation("delay_ms", "neither delay_ms nor deliver_at_ms is set"))
    named = asked.request_id
    if named and not (len(named) <= limits.REQUEST_ID_CHARS_MAX and named.isascii() and named.isalnum()):
        most = limits.REQUEST_ID_CHARS_MAX
        found.append(Violation("request_id", f"{shown(named)} is not 1 to {most} letters and digits"))
    size = len(asked.body)
    if asked.HasField("body") and not body_bytes_min <= size <= limits.BODY_BYTES_MAX:
        found.append(Violation("body", f"{size} bytes are not within {body_bytes_min} and {limits.BODY_BYTES_MAX}"))
    return found


def check_list(request: pending_pb2.ListPendingRequest) -> None:
    """See the module."""
    refuse([*_filter(request.filter), *within("max_count", request.max_count, 0, limits.PENDING_COUNT_MAX)])


def check_cancel_matching(wanted: pending_pb2.PendingFilter) -> None:
    """See the module."""
    found = list(_filter(wanted, system=False))
    if not (wanted.topic or wanted.due_from_ms or wanted.due_before_ms):
        found.append(Violation("filter", "names neither a topic nor a range of due times"))
    refuse(found)


def check_list_retries(request: consumer_pb2.ListRetriesRequest) -> None:
    """See the module."""
    refuse([*_retries(request.filter), *within("max_count", request.max_count, 0, limits.PENDING_COUNT_MAX)])


def check_retry_filter(wanted: consumer_pb2.RetryFilter) -> None:
    """See the module."""
    refuse(list(_retries(wanted)))


def _retries(wanted: consumer_pb2.RetryFilter) -> Iterator[Violation]:
    yield from group_violations("filter.group", wanted.group)
    yield from _topic("filter.topic", wanted.topic)
    if len(wanted.ids) > limits.CANCEL_COUNT_MAX:
        yield Violation("filter.ids", f"{len(wanted.ids)} ids; a request has at most {limits.CANCEL_COUNT_MAX}")


def check_backlog(request: pending_pb2.BacklogRequest) -> None:
    """See the module."""
    refuse([*_topic("topic", request.topic), *_range("", request.due_from_ms, request.due_before_ms)])


def _filter(wanted: pending_pb2.PendingFilter, *, system: bool = True) -> Iterator[Violation]:
    yield from _topic("filter.topic", wanted.topic, system=system)
    yield from _text("filter.key", wanted.key)
    yield from _range("filter.", wanted.due_from_ms, wanted.due_before_ms)


def _topic(field: str, topic: str, *, system: bool = True) -> Iterator[Violation]:
    if topic:
        yield from topic_violations(field, topic, system=system)


def _text(field: str, text: str) -> Iterator[Violation]:
    """A key: any text that properties can hold."""
    if len(text) > limits.PROPERTIES_BYTES_MAX:
        most = f"properties hold {limits.PROPERTIES_BYTES_MAX} bytes"
        yield Violation(field, f"is {len(text)} characters long; {most}")


def _range(prefix: str, from_ms: int, before_ms: int) -> list[Violation]:
    found = within(f"{prefix}due_from_ms", from_ms, 0, INT64_MAX)
    found += within(f"{prefix}due_before_ms", before_ms, 0, INT64_MAX)
    if 0 < before_ms <= from_ms:
        found.append(Violation(f"{prefix}due_before_ms", f"{before_ms} is not above due_from_ms, {from_ms}"))
    return found
