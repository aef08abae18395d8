"""Delivery of sends: in a stream first, and retried by single calls."""

from collections.abc import Sequence
from typing import Any

from duetime.client import tracing
from duetime.client.connection import GatewayConnection
from duetime.client.errors import from_fault
from duetime.client.message import Receipt
from duetime.client.sending.batch import MessageBatch
from duetime.client.sending.delivery import BatchDeliverer, for_each
from duetime.client.sending.outcomes import Outcome
from duetime.client.sending.packs import Pack, apart
from duetime.client.sending.stream import Stream
from duetime.v1 import gateway_pb2

_SEND = "/duetime.v1.Gateway/Send"
_SEND_BATCH = "/duetime.v1.Gateway/SendBatch"
_SEND_STREAM = "/duetime.v1.Gateway/SendStream"


def whole_deliverer(connection: GatewayConnection) -> BatchDeliverer[Receipt]:
    """Delivers batches that are stored all or none, by SendBatch."""
    return BatchDeliverer(connection, _SEND_BATCH, gateway_pb2.SendBatchResponse, Receipt)


class SendDeliverer(BatchDeliverer[Receipt]):
    """Delivers batches and packs by SendStream and Send."""

    def __init__(self, connection: GatewayConnection) -> None:
        super().__init__(connection, _SEND, gateway_pb2.SendResponse, Receipt)
        self._stream = Stream(connection, _SEND_STREAM, gateway_pb2.SendResponse, apart)

    async def close(self) -> None:
        """Ends the stream."""
        await self._stream.close()

    async def _ask(self, batch: MessageBatch, payload: bytes, timeout: float, *, is_first: bool) -> Any:
        # A traced request has metadata of its own.
        if is_first and tracing.active is None:
            return await self._stream.ask(payload, timeout, len(batch) if isinstance(batch, Pack) else 0)
        return await super()._ask(batch, payload, timeout, is_first=is_first)

    def _outcomes(self, response: Any, batch: MessageBatch) -> Sequence[Outcome]:
        if response.HasField("fault"):
            return for_each(from_fault(response.fault, batch.ids[0]), batch)
        return batch.outcomes(response) if isinstance(batch, Pack) else super()._outcomes(response, batch)
