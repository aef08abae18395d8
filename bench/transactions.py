"""Transactions: prepared and committed, many per call."""

import grpc
from duetime import Message
from duetime.client.ids import new_id
from duetime.client.message import wire_fields
from duetime.client.sending.batch import now_ms
from duetime.v1 import gateway_pb2_grpc
from duetime.v1 import transactions_pb2 as pb

from bench.load import CALL_TIMEOUT_S, CHANNEL_OPTIONS, RefusedError, closed_loop, make

GROUP = "bench"
COMMIT = pb.DECISION_COMMIT
COMMITTED = pb.TRANSACTION_STATE_COMMITTED


async def transact(address: str, topic: str, *, batch: int, in_flight: int, seconds: float) -> tuple[float, int]:
    """(transactions/s, total transactions), each prepared by one call and committed by the next."""
    async with grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
        stub = gateway_pb2_grpc.GatewayStub(channel)

        async def both(count: int) -> None:
            prepared = await stub.Prepare(_prepare(make(topic, count)), timeout=CALL_TIMEOUT_S)
            ends = [pb.TransactionEnd(transaction_id=_id(one), decision=COMMIT) for one in prepared.results]
            request = pb.EndTransactionRequest(group=GROUP, ends=ends)
            for result in (await stub.EndTransaction(request, timeout=CALL_TIMEOUT_S)).results:
                if result.state != COMMITTED:
                    raise RefusedError(result.fault.message)
                _ = result.sent.message_id, result.sent.offset

        return await closed_loop(both, batch=batch, in_flight=in_flight, seconds=seconds)


def _prepare(messages: list[Message]) -> pb.PrepareRequest:
    born_at_ms = now_ms()
    fields = [wire_fields(message, new_id(), born_at_ms) for message in messages]
    return pb.PrepareRequest(group=GROUP, messages=fields)


def _id(result: pb.PrepareResult) -> str:
    if result.HasField("fault"):
        raise RefusedError(result.fault.message)
    return result.transaction_id
