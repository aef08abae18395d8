"""Send in `duetime.v1`: requests as drafts or packed records, and outcomes as results."""

from collections.abc import Callable, Collection, Sequence
from typing import cast

from duetime.v1 import gateway_pb2, message_pb2, transactions_pb2
from duetime_core.errors import InvalidArgument, Violation
from duetime_core.rpc.calls import faults_of
from duetime_core.rpc.decoding import decode
from duetime_format.admission import Draft
from duetime_format.compiled import twin

from duetime_gateway.packing.packs import PACK_KEY, PackDrafts, ranges_of
from duetime_gateway.sending.drafts import Drafts, EncodingRules, PackedRequest
from duetime_gateway.sending.outcomes import AllStored, SendOutcomes
from duetime_gateway.shards.route import Route

_twin = twin("duetime_gateway.packing._packing")
_packs_twin = twin("duetime_gateway.packing._packs")

# Returns the properties shared by all half messages of a group with this check immunity in seconds; None: not known
# at once.
HalfOf = Callable[[str, int], bytes | None]


class EncodedRequest:
    """An encoded SendRequest; see `sending.drafts.Request`."""

    __slots__ = ("_data", "_half_of", "in_ranges", "size")

    is_batch: bool = False

    def __init__(self, data: bytes, half_of: HalfOf | None = None) -> None:
        """`half_of`: for a PrepareRequest; see the twin."""
        self._data = data
        self._half_of = half_of
        self.size = len(data)
        # Whether results are returned as ranges; known once packed, or once drafts are made.
        self.in_ranges = False

    def pack(
        self, rules: EncodingRules, routes: dict[str, Route], arrived_at_ms: int, born_host: bytes
    ) -> PackedRequest | None:
        """Packs the request; None also without the compiled twin."""
        if _twin is None or _packs_twin is None:
            return None
        if self._data[:1] == PACK_KEY and not self.is_batch and self._half_of is None:
            found = _packs_twin.take(self._data, routes, rules, born_host, arrived_at_ms)
            self.in_ranges = self.in_ranges or found is not None
        else:
            found = _twin.take(self._data, routes, rules, born_host, arrived_at_ms, self.is_batch, self._half_of)
        return cast("PackedRequest | None", found)

    def drafts(self) -> Drafts:
        request = decode(gateway_pb2.SendRequest.FromString, self._data)
        self.in_ranges = bool(request.packs)
        if not self.in_ranges:
            return MessageDrafts(request.messages)
        if request.messages:
            raise InvalidArgument([Violation("packs", "cannot be combined with messages in a request")])
        return PackDrafts(request.packs)


class MessageDrafts:
    """The messages of a request as drafts made on access: the encoder pauses between them."""

    __slots__ = ("_messages",)

    in_runs = False

    def __init__(self, messages: Sequence[message_pb2.Message]) -> None:
        self._messages = messages

    def __len__(self) -> int:
        return len(self._messages)

    def __getitem__(self, index: int, /) -> Draft:
        return draft_of(self._messages[index])

    def topics(self) -> Collection[str]:
        return {message.topic for message in self._messages}


def draft_of(message: message_pb2.Message) -> Draft:
    """The draft; its body, properties and keys are the message's own."""
    return Draft(
        message.topic,
        message.body,
        message.properties,
        message.tags,
        message.keys,
        message.sharding_key,
        message.queue if message.HasField("queue") else None,
        message.delay_level,
        message.delay_ms,
        message.deliver_at_ms if message.HasField("deliver_at_ms") else None,
        message.id,
        message.born_at_ms,
        message.flag,
        message.retry if message.HasField("retry") else None,
        message.replace,
        message.max_wait_ms,
        message.priority if message.HasField("priority") else None,
        message.lite_topic,
        message.expires_ms,
    )


def encoded_response(outcome: AllStored | SendOutcomes, *, in_ranges: bool = False) -> bytes:
    """An encoded SendResponse."""
    if isinstance(outcome, AllStored):
        return outcome.response()
    if in_ranges:
        return gateway_pb2.SendResponse(ranges=ranges_of(outcome)).SerializeToString()
    return response_of(outcome).SerializeToString()


def results_of(outcome: AllStored | SendOutcomes) -> Sequence[message_pb2.SendResult]:
    """One result per message, also of a packed request."""
    if isinstance(outcome, AllStored):
        return gateway_pb2.SendResponse.FromString(outcome.response()).results
    return response_of(outcome).results


def response_of(outcomes: SendOutcomes) -> gateway_pb2.SendResponse:
    """One result per message."""
    response = gateway_pb2.SendResponse()
    add = response.results.add
    for message_id, shard, queue, offset, level, lane, due_at_ms in zip(
        outcomes.ids,
        outcomes.shards,
        outcomes.queues,
        outcomes.offsets,
        outcomes.levels,
        outcomes.lanes,
        outcomes.due_at_ms,
        strict=True,
    ):
        result = add()
        result.message_id = message_id
        # A message without an offset has a fault, and only its id.
        if offset >= 0:
            result.queue = queue
            result.offset = offset
            if shard:
                result.shard = shard
            if level:
                result.delay_level = level
            if lane:
                result.lane = lane
                result.deliver_at_ms = due_at_ms
    for index in outcomes.past:
        response.results[index].was_past = True
    for index, replaced_id in outcomes.replaced.items():
        response.results[index].replaced_id = replaced_id
    fill_oddities(response.results, outcomes)
    return response


def fill_oddities(
    results: Sequence[message_pb2.SendResult] | Sequence[transactions_pb2.PrepareResult], outcomes: SendOutcomes
) -> None:
    """Sets the rare fields of sent or prepared messages."""
    for index, level in outcomes.requested_levels.items():
        results[index].requested_level = level
    for index in outcomes.duplicates:
        results[index].duplicate = True
    for index, fault in faults_of(outcomes.faults).items():
        results[index].fault.CopyFrom(fault)
