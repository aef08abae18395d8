"""Delivery of sends: in a stream first, packed if the gateway supports packs, and retried by single calls."""

from collections.abc import Sequence
from typing import Any

from duetime.client import tracing
from duetime.client.connection import Connection, OlderServer
from duetime.client.errors import DueTimeError, InvalidArgument, from_fault
from duetime.client.message import Receipt
from duetime.client.sending.batch import Batch
from duetime.client.sending.delivery import Delivery, for_each
from duetime.client.sending.outcomes import Outcome, errors_of
from duetime.client.sending.packs import Pack, apart
from duetime.client.sending.stream import Stream
from duetime.v1 import gateway_pb2

_SEND = "/duetime.v1.Gateway/Send"
_SEND_STREAM = "/duetime.v1.Gateway/SendStream"
_RETRY = gateway_pb2.SendRequest(retry=True).SerializeToString()


class Sends(Delivery[Receipt]):
    """Delivers batches and packs by SendStream and Send."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection, _SEND, gateway_pb2.SendResponse, Receipt, repeated=_RETRY)
        self._stream = Stream(connection, _SEND_STREAM, gateway_pb2.SendResponse, apart)
        # A gateway without packs.
        self._older = OlderServer()

    async def close(self) -> None:
        """Ends the stream."""
        await self._stream.close()

    async def _request(self, batch: Batch, deadline: float, attempt: int) -> Sequence[Outcome]:
        if not isinstance(batch, Pack):
            return await super()._request(batch, deadline, attempt)
        if not self._older.is_there:
            outcomes = await super()._request(batch, deadline, attempt)
            if not _knows_no_packs(errors_of(outcomes).get(0)):
                return outcomes
            self._older.met()
        return await super()._request(batch.unpacked(), deadline, attempt)

    async def _ask(self, batch: Batch, payload: bytes, timeout: float, *, is_first: bool) -> Any:
        # A traced request has metadata of its own.
        if is_first and tracing.active is None and not self._stream.older.is_there:
            return await self._stream.ask(payload, timeout, len(batch) if isinstance(batch, Pack) else 0)
        return await super()._ask(batch, payload, timeout, is_first=is_first)

    def _outcomes(self, response: Any, batch: Batch) -> Sequence[Outcome]:
        if response.HasField("fault"):
            return for_each(from_fault(response.fault, batch.ids[0]), batch)
        return batch.outcomes(response) if isinstance(batch, Pack) else super()._outcomes(response, batch)


def _knows_no_packs(error: DueTimeError | None) -> bool:
    """Whether a gateway of release 0.1 has rejected a pack: it sees a request without messages, and stores nothing.
    Later releases never reject `messages` in our packs."""
    return type(error) is InvalidArgument and [one.field for one in error.violations] == ["messages"]
