"""Rules for requests of consumers. Pure.

Each `check_` raises InvalidArgument with all violations that can be found without knowing topic and group.
"""

from collections.abc import Iterator, Sequence

from duetime_core.errors import InvalidArgument, Violation, refuse
from duetime_format import limits
from duetime_format.admission import group_violations, lite_violations
from duetime_format.errors import DamagedBytes, within
from duetime_format.names import retry_topic
from duetime_format.texts import shown

from duetime_gateway.queries import Encoding, Extension, Position, Pull, PullQueues, Receive, Selection, Subscribe
from duetime_gateway.rules import INT64_MAX, filter_violations, group_read_violations, read_violations
from duetime_gateway.shards.leases import Messages, acked_count


def check_pull(pull: Pull) -> None:
    """See the module."""
    found = list(read_violations("topic", pull.topic))
    found += [*_place("", pull.position), *_bounds("", pull.selection, limits.PULL_COUNT_MAX)]
    found += filter_violations(pull.selection.tags, pull.selection.sql)
    refuse(found)


def check_pull_queues(pull: PullQueues) -> None:
    """See the module."""
    found = list(read_violations("topic", pull.topic))
    found += _positions_violations(pull.positions)
    found += _bounds("", pull.selection, limits.PULL_COUNT_MAX)
    found += filter_violations(pull.selection.tags, pull.selection.sql)
    refuse(found)


def check_subscribe(subscribe: Subscribe) -> None:
    """See the module."""
    found = list(read_violations("topic", subscribe.topic))
    found += _positions_violations(subscribe.positions)
    found += within("untold_ms", subscribe.untold_ms, 0, limits.WAIT_MS_MAX)
    found += filter_violations(subscribe.tags, subscribe.sql)
    refuse(found)


def check_commit(topic: str, positions: Sequence[Position]) -> None:
    """See the module."""
    refuse([*group_read_violations("topic", topic), *_positions_violations(positions)])


def check_receive(receive: Receive) -> None:
    """See the module."""
    found = [*group_violations("group", receive.group), *group_read_violations("topic", receive.topic)]
    if receive.topic == retry_topic(receive.group):
        # Received as a topic, its messages would be delivered twice: they already come with their original topics.
        text = f"{shown(receive.topic)} cannot be received from: its messages are delivered with their own topics"
        found.append(Violation("topic", f"{text}; Pull reads it"))
    found += _bounds("", receive.selection, limits.RECEIVE_COUNT_MAX)
    found += within("max_attempts", receive.max_attempts, 0, limits.ATTEMPTS_MAX)
    found += _lease_violations(receive.invisible_ms, "0 is the default")
    found += filter_violations(receive.selection.tags, receive.selection.sql)
    found += lite_violations(receive.lite_topics, receive.selection.tags, receive.selection.sql)
    if len(receive.member) > limits.MEMBER_CHARS_MAX:
        text = f"{shown(receive.member)} has {len(receive.member)} characters; the limit is {limits.MEMBER_CHARS_MAX}"
        found.append(Violation("member", text))
    refuse(found)


def check_take(selection: Selection) -> None:
    """See the module."""
    refuse(list(_bounds("takes.", selection, limits.RECEIVE_COUNT_MAX)))


def check_ack(group: str, receipts: Sequence[bytes]) -> None:
    """See the module."""
    refuse([*group_violations("group", group), *_receipt_violations(len(receipts))])


def check_acked(messages: Sequence[Messages]) -> int:
    """See the module. Returns the number of messages named."""
    try:
        count = acked_count(messages)
    except DamagedBytes as error:
        raise InvalidArgument([Violation("acks.leases.offsets", error.text)]) from error
    if not 1 <= count <= limits.RECEIPTS_MAX:
        refuse([Violation("acks.leases", f"{count} messages; an ack has 1 to {limits.RECEIPTS_MAX}")])
    return count


def check_extension(extension: Extension) -> None:
    """See the module."""
    found = [*group_violations("group", extension.group), *_receipt_violations(len(extension.receipts))]
    found += _lease_violations(extension.invisible_ms, "0 ends the lease")
    if extension.not_attempted and extension.invisible_ms:
        found.append(Violation("not_attempted", "is only for invisible_ms 0, which ends the lease"))
    refuse(found)


def _positions_violations(positions: Sequence[Position]) -> list[Violation]:
    """Violations of the list `queues`."""
    if not 1 <= len(positions) <= limits.QUEUE_COUNT_MAX:
        return [Violation("queues", f"{len(positions)} queues; a request has 1 to {limits.QUEUE_COUNT_MAX}")]
    found: list[Violation] = []
    seen: set[int] = set()
    for index, position in enumerate(positions):
        prefix = f"queues[{index}]."
        found += _place(prefix, position)
        if position.queue in seen:
            found.append(Violation(f"{prefix}queue", f"{position.queue} is named twice"))
        seen.add(position.queue)
    return found


def _place(prefix: str, position: Position) -> Iterator[Violation]:
    yield from within(f"{prefix}queue", position.queue, 0, limits.QUEUE_COUNT_MAX - 1)
    yield from within(f"{prefix}offset", position.offset, 0, INT64_MAX)


def _bounds(prefix: str, selection: Selection, count_max: int) -> Iterator[Violation]:
    yield from within(f"{prefix}max_count", selection.max_count, 0, count_max)
    yield from within(f"{prefix}max_bytes", selection.max_bytes, 0, limits.PULL_BYTES_MAX)
    yield from within(f"{prefix}wait_ms", selection.wait_ms, 0, limits.WAIT_MS_MAX)
    yield from within(f"{prefix}encoding", selection.encoding, 0, _ENCODING_MAX)


_ENCODING_MAX = max(Encoding)


def _receipt_violations(count: int) -> Iterator[Violation]:
    if not 1 <= count <= limits.RECEIPTS_MAX:
        yield Violation("receipts", f"{count} receipts; a request has 1 to {limits.RECEIPTS_MAX}")


def _lease_violations(invisible_ms: int, zero: str) -> Iterator[Violation]:
    if invisible_ms:
        least, most = limits.INVISIBLE_MS_MIN, limits.INVISIBLE_MS_MAX
        yield from within("invisible_ms", invisible_ms, least, most, note=f" (12 h); {zero}")
