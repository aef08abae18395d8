"""What requests of consumers must be: every rule, and every breach of them at once. Pure."""

from collections.abc import Iterator

from duetime.v1 import consumer_pb2
from duetime_core import retry_policy
from duetime_core.bounds import shown
from duetime_core.errors import InvalidArgument, Violation
from duetime_format import limits
from duetime_format.names import SCHEDULE_TOPIC, is_name, retry_topic

from duetime_gateway.sending.admission import filter_violations, outside, topic_violations

_LATEST_MS = (1 << 63) - 1


def check_receive(request: consumer_pb2.ReceiveRequest) -> None:
    """Judges all fields that can be judged without knowing topic and group.

    Raises:
        InvalidArgument: with all that is wrong.
    """
    found = [*group_violations("group", request.group), *topic_violations("topic", request.topic, system=True)]
    if request.topic in (retry_topic(request.group), SCHEDULE_TOPIC):
        # Received as a topic it would come a second time, beside what comes back from it.
        text = f"{shown(request.topic)} is not received from: its messages come with the topics that they go to"
        found.append(Violation("topic", f"{text}; Pull reads it"))
    found += outside(
        ("max_count", request.max_count, limits.RECEIVE_COUNT_MAX),
        ("max_bytes", request.max_bytes, limits.PULL_BYTES_MAX),
        ("wait_ms", request.wait_ms, limits.WAIT_MS_MAX),
        ("encoding", request.encoding, max(consumer_pb2.ReceiveEncoding.values())),
        ("max_attempts", request.max_attempts, limits.ATTEMPTS_MAX),
    )
    found += _lease_violations(request.invisible_ms, "0 is the default")
    found += filter_violations(request)
    if len(request.member) > limits.MEMBER_CHARS_MAX:
        text = f"{shown(request.member)} has {len(request.member)} characters; the most is {limits.MEMBER_CHARS_MAX}"
        found.append(Violation("member", text))
    _raise(found)


def check_ack(request: consumer_pb2.AckRequest) -> None:
    """As `check_receive`."""
    _raise([*group_violations("group", request.group), *_receipt_violations(len(request.receipts))])


def check_change(request: consumer_pb2.ChangeInvisibleRequest) -> None:
    """As `check_receive`."""
    found = [*group_violations("group", request.group), *_receipt_violations(len(request.receipts))]
    found += _lease_violations(request.invisible_ms, "0 ends the lease")
    if request.not_attempted and request.invisible_ms:
        found.append(Violation("not_attempted", "is only for invisible_ms 0, which gives the messages back"))
    _raise(found)


def check_new_group(group: consumer_pb2.Group) -> None:
    """As `check_receive`."""
    found = [*group_violations("group.name", group.name), *retry_policy.violations("group.retry", group.retry)]
    found += outside(("group.start", group.start, max(consumer_pb2.GroupStart.values())))
    if group.start == consumer_pb2.GROUP_START_TIME and group.start_at_ms <= 0:
        text = f"{group.start_at_ms} is not above 0; a group that starts at a time needs one, in Unix milliseconds"
        found.append(Violation("group.start_at_ms", text))
    _raise(found)


def check_update_group(request: consumer_pb2.UpdateGroupRequest) -> None:
    """As `check_receive`."""
    _raise([*group_violations("name", request.name), *retry_policy.violations("retry", request.retry)])


def check_reset(request: consumer_pb2.ResetGroupRequest) -> None:
    """As `check_receive`."""
    found = [*group_violations("name", request.name), *topic_violations("topic", request.topic, system=True)]
    found += outside(
        ("queue", request.queue, limits.QUEUE_COUNT_MAX - 1),
        ("at_ms", request.at_ms, _LATEST_MS),
        ("offset", request.offset, _LATEST_MS),
    )
    to = request.WhichOneof("to")
    if to is None:
        found.append(Violation("earliest", "is not set, nor are latest, at_ms and offset"))
    elif to == "offset" and not request.HasField("queue"):
        found.append(Violation("queue", "is not set; an offset is one queue's"))
    _raise(found)


def check_group_name(field: str, name: str) -> None:
    """As `check_receive`."""
    _raise(list(group_violations(field, name)))


def group_violations(field: str, name: str) -> Iterator[Violation]:
    """What is wrong with a group's name."""
    if not 1 <= len(name) <= limits.GROUP_CHARS_MAX or not is_name(name):
        text = f"{shown(name)} is not 1 to {limits.GROUP_CHARS_MAX} characters of [%|a-zA-Z0-9_-]"
        yield Violation(field, text)


def _receipt_violations(count: int) -> Iterator[Violation]:
    if not 1 <= count <= limits.RECEIPTS_MAX:
        yield Violation("receipts", f"{count} receipts; a request has 1 to {limits.RECEIPTS_MAX}")


def _lease_violations(invisible_ms: int, zero: str) -> Iterator[Violation]:
    if invisible_ms and not limits.INVISIBLE_MS_MIN <= invisible_ms <= limits.INVISIBLE_MS_MAX:
        bounds = f"{limits.INVISIBLE_MS_MIN} and {limits.INVISIBLE_MS_MAX} (12 h)"
        yield Violation("invisible_ms", f"{invisible_ms} is not within {bounds}; {zero}")


def _raise(found: list[Violation]) -> None:
    if found:
        raise InvalidArgument(found)
