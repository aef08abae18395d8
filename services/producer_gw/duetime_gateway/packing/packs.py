"""Packs of `duetime.v1`: similar messages as drafts, and their results as ranges."""

from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from itertools import accumulate

from duetime.v1 import gateway_pb2, message_pb2
from duetime_core.errors import InvalidArgument, Violation
from duetime_core.rpc.calls import faults_of
from duetime_format.admission import Draft

from duetime_gateway.sending.outcomes import SendOutcomes

# Hexadecimal digits of the counter at the end of an id.
COUNTER_DIGITS = 12
NUMBER_MAX = 16**COUNTER_DIGITS - 1
# Wire key of the field `packs` of a SendRequest.
PACK_KEY = b"\x1a"


class PackDrafts:
    """The messages of packs as drafts made on access: the encoder pauses between them."""

    __slots__ = ("_body_starts", "_firsts", "_packs")

    in_runs = True

    def __init__(self, packs: Sequence[gateway_pb2.Pack]) -> None:
        """Raises: InvalidArgument: sizes or ids are inconsistent."""
        self._packs = packs
        # Index of each pack's first message, and the bounds of its bodies.
        self._firsts: list[int] = []
        self._body_starts: list[list[int]] = []
        violations: list[Violation] = []
        for number, pack in enumerate(packs):
            self._firsts.append(len(self))
            self._body_starts.append(list(accumulate((max(size, 0) for size in pack.sizes), initial=0)))
            violations += _violations(f"packs[{number}]", pack, self._body_starts[-1][-1])
        if violations:
            raise InvalidArgument(violations, reason="PACK_INVALID")

    def __len__(self) -> int:
        return self._firsts[-1] + len(self._body_starts[-1]) - 1 if self._body_starts else 0

    def __getitem__(self, index: int, /) -> Draft:
        which = bisect_right(self._firsts, index) - 1
        pack, starts, nth = self._packs[which], self._body_starts[which], index - self._firsts[which]
        return Draft(
            pack.topic,
            pack.bodies[starts[nth] : starts[nth + 1]],
            tags=pack.tags,
            delay_level=pack.delay_level,
            delay_ms=pack.delay_ms,
            deliver_at_ms=pack.deliver_at_ms if pack.HasField("deliver_at_ms") else None,
            id=f"{pack.id_prefix}{pack.first_number + nth:0{COUNTER_DIGITS}X}" if pack.id_prefix else "",
            born_at_ms=pack.born_at_ms,
        )

    def topics(self) -> Collection[str]:
        return {pack.topic for pack in self._packs}


def _violations(field: str, pack: gateway_pb2.Pack, body_bytes: int) -> Iterator[Violation]:
    """Inconsistencies of sizes and ids. `body_bytes`: the sum of the sizes."""
    if any(size < 0 for size in pack.sizes) or body_bytes != len(pack.bodies):
        text = f"{len(pack.sizes)} sizes, {body_bytes} bytes in total, for {len(pack.bodies)} bytes of bodies"
        yield Violation(f"{field}.sizes", text)
    if not 0 <= pack.first_number <= NUMBER_MAX + 1 - len(pack.sizes):
        text = f"{pack.first_number} and {len(pack.sizes)} messages are not within 0 and {NUMBER_MAX}"
        yield Violation(f"{field}.first_number", text)


def ranges_of(outcomes: SendOutcomes) -> list[gateway_pb2.ResultRange]:
    """The results of packed messages; consecutive ones that differ only in id and offset share a range."""
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
    """The id `by` numbers after one with a counter at its end; empty: it has no counter."""
    head, digits = message_id[:-COUNTER_DIGITS], message_id[-COUNTER_DIGITS:]
    try:
        return f"{head}{int(digits, 16) + by:0{COUNTER_DIGITS}X}"
    except ValueError:
        return ""
