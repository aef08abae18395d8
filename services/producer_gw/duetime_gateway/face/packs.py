"""Packs of `duetime.v1`: messages that are alike as drafts, and their results as ranges."""

from collections.abc import Collection

from duetime.v1 import gateway_pb2, message_pb2
from duetime_core.calls import faults_of
from duetime_core.errors import InvalidArgument, Violation

from duetime_gateway.sending.drafts import Draft
from duetime_gateway.sending.outcomes import Outcomes

# Of the counter that ends an id, in hexadecimal.
COUNTER_DIGITS = 12
NUMBER_MAX = 16**COUNTER_DIGITS - 1
# Of the field `pack` of a SendRequest.
PACK_KEY = b"\x1a"


class PackDrafts:
    """The messages of a pack, each a draft when it is asked for: the encoder takes breaks between them."""

    __slots__ = ("_pack", "_starts", "is_retry")

    in_runs = True

    def __init__(self, pack: gateway_pb2.Pack, *, is_retry: bool = False) -> None:
        """Raises: InvalidArgument: sizes or ids that make no messages."""
        self._pack = pack
        self._starts = [0]
        self.is_retry = is_retry
        violations = []
        for size in pack.sizes:
            self._starts.append(self._starts[-1] + max(size, 0))
        if any(size < 0 for size in pack.sizes) or self._starts[-1] != len(pack.bodies):
            text = f"{len(pack.sizes)} sizes, {self._starts[-1]} bytes in all, for {len(pack.bodies)} bytes of bodies"
            violations.append(Violation("pack.sizes", text))
        if not 0 <= pack.first_number <= NUMBER_MAX + 1 - len(pack.sizes):
            text = f"{pack.first_number} and {len(pack.sizes)} messages are not within 0 and {NUMBER_MAX}"
            violations.append(Violation("pack.first_number", text))
        if violations:
            raise InvalidArgument(violations, reason="PACK_INVALID")

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, index: int, /) -> Draft:
        pack = self._pack
        return Draft(
            pack.topic,
            pack.bodies[self._starts[index] : self._starts[index + 1]],
            tags=pack.tags,
            delay_level=pack.delay_level,
            delay_ms=pack.delay_ms,
            deliver_at_ms=pack.deliver_at_ms if pack.HasField("deliver_at_ms") else None,
            id=f"{pack.id_prefix}{pack.first_number + index:0{COUNTER_DIGITS}X}" if pack.id_prefix else "",
            born_at_ms=pack.born_at_ms,
        )

    def topics(self) -> Collection[str]:
        return {self._pack.topic}


def ranges_of(outcomes: Outcomes) -> list[gateway_pb2.ResultRange]:
    """The results of a pack's messages, those in a row that differ only in id and offset together."""
    faults = faults_of(outcomes.faults)
    ranges: list[gateway_pb2.ResultRange] = []
    for index, message_id in enumerate(outcomes.ids):
        result = message_pb2.SendResult(message_id=message_id)
        if index in faults:
            result.fault.CopyFrom(faults[index])
        else:
            result.shard, result.queue, result.offset = (
                outcomes.shards[index],
                outcomes.queues[index],
                outcomes.offsets[index],
            )
            result.delay_level, result.lane = outcomes.levels[index], outcomes.lanes[index]
            result.deliver_at_ms = outcomes.due_at_ms[index] if outcomes.lanes[index] else 0
            result.requested_level = outcomes.requested_levels.get(index, 0)
            result.duplicate, result.was_past = index in outcomes.duplicates, index in outcomes.past
        if not ranges or not _goes_on(ranges[-1], result):
            ranges.append(gateway_pb2.ResultRange(first=result))
        ranges[-1].count += 1
    return ranges


def _goes_on(before: gateway_pb2.ResultRange, result: message_pb2.SendResult) -> bool:
    expected = message_pb2.SendResult()
    expected.CopyFrom(before.first)
    expected.message_id = counted_up(before.first.message_id, before.count)
    if not expected.HasField("fault"):
        expected.offset += before.count
    return expected == result


def counted_up(message_id: str, by: int) -> str:
    """The id that comes so many after one that ends with a counter; empty: it ends with none."""
    head, digits = message_id[:-COUNTER_DIGITS], message_id[-COUNTER_DIGITS:]
    try:
        return f"{head}{int(digits, 16) + by:0{COUNTER_DIGITS}X}"
    except ValueError:
        return ""
