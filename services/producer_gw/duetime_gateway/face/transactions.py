"""Requests about transactions in `duetime.v1`, and their results as messages."""

from duetime.v1 import message_pb2
from duetime.v1 import transactions_pb2 as pb
from duetime_core.rpc.decoding import decode
from duetime_format import priority, record
from duetime_format.properties import decode_properties
from duetime_format.record import Record, host_text

from duetime_gateway.packing.sends import EncodedRequest, HalfOf, MessageDrafts, fill_oddities
from duetime_gateway.sending.outcomes import AllStored, SendOutcomes
from duetime_gateway.transactions.checks import TransactionQuestion
from duetime_gateway.transactions.names import text_of


class EncodedPrepare(EncodedRequest):
    """An encoded PrepareRequest; see `sending.drafts.HalfRequest`."""

    __slots__ = ("_request",)

    def __init__(self, data: bytes, half_of: HalfOf) -> None:
        super().__init__(data, half_of)
        self._request = pb.PrepareRequest()

    def drafts(self) -> MessageDrafts:
        self._request = decode(pb.PrepareRequest.FromString, self._data)
        return MessageDrafts(self._request.messages)

    def transactions(self) -> tuple[str, int]:
        return self._request.group, self._request.check_immunity_s


def prepare_response(outcomes: AllStored | SendOutcomes) -> bytes:
    """A PrepareResponse."""
    if isinstance(outcomes, AllStored):
        return outcomes.response()
    response = pb.PrepareResponse()
    add = response.results.add
    for message_id, shard, offset, position, check_at_ms in zip(
        outcomes.ids, outcomes.shards, outcomes.offsets, outcomes.positions, outcomes.due_at_ms, strict=True
    ):
        # A message without an offset has a fault, and only its id.
        if offset >= 0:
            transaction_id = f"{shard}.{offset}.{position}.{message_id}"
            add(message_id=message_id, transaction_id=transaction_id, shard=shard, check_at_ms=check_at_ms)
        else:
            add(message_id=message_id)
    fill_oddities(response.results, outcomes)
    return response.SerializeToString()


def check_message(check: TransactionQuestion, queue: int | None) -> pb.TransactionCheck:
    """`queue`: the topic's number of the message's queue; None: same as the shard's."""
    message = half_message(check.found, queue)
    return pb.TransactionCheck(transaction_id=text_of(check.name), message=message, number=check.number)


def half_message(found: Record, queue: int | None) -> message_pb2.StoredMessage:
    """A half message as prepared. `queue`: see `check_message`."""
    properties = decode_properties(found.properties)
    number = properties.get(record.REAL_QID, "")
    return message_pb2.StoredMessage(
        topic=properties.get(record.REAL_TOPIC, ""),
        queue=queue if queue is not None else int(number) if number.isdecimal() and len(number) < 10 else 0,
        offset=found.queue_offset,
        body=found.body,
        properties={name: value for name, value in properties.items() if name not in record.RESERVED_PROPERTIES},
        tags=properties.get(record.TAGS, ""),
        keys=properties.get(record.KEYS, "").split(),
        id=properties.get(record.UNIQ_KEY, ""),
        flag=found.flag,
        born_at_ms=found.born_at_ms,
        stored_at_ms=found.stored_at_ms,
        attempt=found.reconsume_times,
        born_host=host_text(found.born_host),
        sys_flag=found.sys_flag,
        priority=priority.of(properties),
    )
