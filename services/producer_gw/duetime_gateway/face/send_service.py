"""The Gateway's gRPC surface for sends: translate in, call, translate out."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import grpc
from duetime.v1 import gateway_pb2
from duetime_core.errors import DueTimeError
from duetime_core.rpc.calls import fault_of

from duetime_gateway.errors import stopping
from duetime_gateway.face.callers import Context, caller
from duetime_gateway.packing.sends import EncodedRequest, encoded_response
from duetime_gateway.quotas.meters import REFUSALS
from duetime_gateway.sending.outcomes import InFlightRequest
from duetime_gateway.sending.sender import Sender

STREAM_REQUESTS_MAX = 16


class _Begun(NamedTuple):
    """A request in progress of a stream, or the quota's error; and whether its results are ranges."""

    sending: InFlightRequest | DueTimeError
    in_ranges: bool = False

    async def response(self) -> bytes:
        if isinstance(self.sending, DueTimeError):
            return gateway_pb2.SendResponse(fault=fault_of(self.sending)).SerializeToString()
        return encoded_response(await self.sending.outcome(), in_ranges=self.in_ranges)


class SendService:
    """Part of duetime.v1.Gateway; proto/duetime/v1/gateway.proto documents each call."""

    def __init__(self, sender: Sender, tasks: asyncio.TaskGroup) -> None:
        """`tasks`: runs the readers of streams."""
        self._sender = sender
        self._tasks = tasks
        self._streams_end = False
        self._readers: set[asyncio.Task[None]] = set()

    def handlers(self) -> "dict[str, grpc.RpcMethodHandler[Any, Any]]":
        """Handlers by call. Both use raw bytes, so generated code does not fit."""
        return {
            "Send": grpc.unary_unary_rpc_method_handler(self.send),
            "SendStream": grpc.stream_stream_rpc_method_handler(self.send_stream),
        }

    def end_streams(self) -> None:
        """Ends streams once their requests in progress are answered, and starts no more."""
        self._streams_end = True
        for reader in self._readers:
            reader.cancel()

    async def send(self, data: bytes, context: Context) -> bytes:
        request = EncodedRequest(data)
        sending = await self._sender.begin(request, caller(context))
        in_ranges = request.in_ranges
        # Free the request: its records are being stored.
        del data, request
        return encoded_response(await sending.outcome(), in_ranges=in_ranges)

    async def send_stream(self, requests: AsyncIterator[bytes], context: Context) -> AsyncIterator[bytes]:
        if self._streams_end:
            raise stopping()
        begun: asyncio.Queue[_Begun | Exception | None] = asyncio.Queue()
        room = asyncio.Semaphore(STREAM_REQUESTS_MAX)
        reader = self._tasks.create_task(self._read(requests, context, begun, room))
        self._readers.add(reader)
        try:
            while (sending := await begun.get()) is not None:
                if isinstance(sending, Exception):
                    raise sending
                yield await sending.response()
                room.release()
        finally:
            self._readers.discard(reader)
            reader.cancel()
            while not begun.empty():
                left = begun.get_nowait()
                if isinstance(left, _Begun) and isinstance(left.sending, InFlightRequest):
                    left.sending.cancel()

    async def _read(
        self,
        requests: AsyncIterator[bytes],
        context: Context,
        begun: "asyncio.Queue[_Begun | Exception | None]",
        room: asyncio.Semaphore,
    ) -> None:
        """Begins the requests of a stream in order, as capacity permits; None marks the end."""
        order = object()
        try:
            await room.acquire()
            async for data in requests:
                request = EncodedRequest(data)
                begun.put_nowait(await self._begin(request, context, order))
                del request, data
                await room.acquire()
            begun.put_nowait(None)
        except asyncio.CancelledError:
            begun.put_nowait(stopping())
            raise
        except Exception as error:
            # The stream raises it again and ends with a status; raised here, it would end the process.
            begun.put_nowait(error)

    async def _begin(self, request: EncodedRequest, context: Context, order: object) -> _Begun:
        """Begins a request. A quota rejects the request, and the stream continues."""
        try:
            sending = await self._sender.begin(request, caller(context), order)
        except DueTimeError as error:
            if error.reason not in REFUSALS:
                raise
            return _Begun(error)
        return _Begun(sending, request.in_ranges)
