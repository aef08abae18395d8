"""EndTransaction in `duetime.v1`: reads requests as columns, and writes results."""

from collections.abc import Iterable
from typing import NamedTuple

from duetime.v1 import message_pb2
from duetime.v1 import transactions_pb2 as pb
from duetime_core.rpc.decoding import decode
from duetime_format.compiled import twin

from duetime_gateway.transactions.columns import NOWHERE, EndColumns, EndResultColumns
from duetime_gateway.transactions.names import parse

_twin = twin("duetime_gateway.packing._ends")


class EndRequest(NamedTuple):
    """Ends of transactions of one group."""

    group: str
    # Includes given-up transactions.
    given_up: bool
    ends: EndColumns


def read(data: bytes) -> EndRequest:
    """Raises: InvalidArgument: the bytes are not an EndTransactionRequest."""
    found = _twin.read(data) if _twin is not None else None
    if found is None:
        return read_each(data)
    group, given_up, *columns = found
    return EndRequest(group, given_up, EndColumns(*columns))


def read_each(data: bytes) -> EndRequest:
    """As `read`, in Python."""
    request = decode(pb.EndTransactionRequest.FromString, data)
    return EndRequest(request.group, request.given_up, ends_of(request.ends))


def ends_of(ends: Iterable[pb.TransactionEnd]) -> EndColumns:
    """The decision for each transaction."""
    return EndColumns.of((parse(one.transaction_id), one.decision) for one in ends)


def write(ends: EndColumns, ended: EndResultColumns) -> bytes:
    """An encoded EndTransactionResponse, with one result per transaction."""
    if _twin is None:
        return write_each(ends, ended)
    others = {index: one.SerializeToString() for index, one in ended.others.items()}
    columns = ended.states, ended.topics, ended.queues, ended.offsets, ends.shards, ends.ids
    response: bytes = _twin.write(*columns, others)
    return response


def write_each(ends: EndColumns, ended: EndResultColumns) -> bytes:
    """As `write`, in Python."""
    response = pb.EndTransactionResponse()
    add = response.results.add
    rows = zip(ended.states, ended.topics, ended.queues, ended.offsets, ends.shards, ends.ids, strict=True)
    for index, (state, topic, queue, offset, shard, message_id) in enumerate(rows):
        if (other := ended.others.get(index)) is not None:
            add().CopyFrom(other)
        elif offset != NOWHERE:
            sent = message_pb2.SendResult(message_id=message_id, shard=shard, queue=queue, offset=offset)
            add(state=state, topic=topic, sent=sent)
        else:
            add(state=state)
    return response.SerializeToString()
