"""ReceiveStream in `duetime.v1`: reads a receiver's takes and acks, and writes their answers."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
from duetime.v1 import consumer_pb2, leases_pb2
from duetime_core.errors import InvalidArgument, Violation
from duetime_core.limits.room import Room
from duetime_core.rpc.calls import fault_of
from duetime_core.rpc.leasestreams import LeaseStreams, ServerLeaseStream, TakeAnswer
from duetime_core.telemetry.defects import outcome

from duetime_gateway.consuming.receiving import Receivers, StreamReceiver
from duetime_gateway.face.answering import room_for
from duetime_gateway.face.callers import Context
from duetime_gateway.face.reads import receive_of
from duetime_gateway.queries import Encoding, Selection
from duetime_gateway.shards.leases import size


class ReceiveStreamService:
    """Part of duetime.v1.Gateway; proto/duetime/v1/gateway.proto documents the call."""

    def __init__(self, receivers: Receivers, answers: Room, tasks: asyncio.TaskGroup) -> None:
        """`tasks`: runs acks, which continue after their stream ends."""
        self._receivers = receivers
        self._answers = answers
        self._tasks = tasks
        self._streams = LeaseStreams("gateway")

    def handlers(self) -> "dict[str, grpc.RpcMethodHandler[Any, Any]]":
        """Handlers by call."""
        return {
            "ReceiveStream": grpc.stream_stream_rpc_method_handler(
                self.receive_stream,
                leases_pb2.ReceiveStreamRequest.FromString,
                leases_pb2.ReceiveStreamResponse.SerializeToString,
            )
        }

    def end_streams(self) -> None:
        """Ends streams once their takes are answered, and starts no more."""
        self._streams.end()

    def receive_stream(
        self, requests: AsyncIterator[leases_pb2.ReceiveStreamRequest], context: Context
    ) -> AsyncIterator[leases_pb2.ReceiveStreamResponse]:
        stream = _GatewayReceiveStream(self._receivers, self._answers, self._tasks, context.peer())
        return self._streams.responses(stream, requests)


class _GatewayReceiveStream(ServerLeaseStream):
    """The stream of one receiver."""

    def __init__(self, receivers: Receivers, answers: Room, tasks: asyncio.TaskGroup, peer: str) -> None:
        super().__init__()
        self._receivers = receivers
        self._answers = answers
        self._tasks = tasks
        self._peer = peer
        self._receiver: StreamReceiver | None = None

    async def subscribe(self, subscription: consumer_pb2.ReceiveRequest) -> None:
        if self._receiver is not None:
            raise InvalidArgument([Violation("subscription", "is permitted in the first request only")])
        receive = receive_of(subscription)
        receive.selection = Selection(tags=subscription.tags, sql=subscription.sql, encoding=Encoding.RECORDS)
        self._receiver = self._receivers.open(receive, self._peer)

    async def close(self) -> None:
        try:
            await super().close()
        finally:
            if self._receiver is not None:
                self._receiver.close()

    def begun(self) -> None:
        """Does nothing: takes and acks run as tasks, whose requests to a shard travel together."""

    def ack(self, ack: leases_pb2.AckLeases) -> None:
        self._tasks.create_task(self._ack(ack))

    async def _ack(self, ack: leases_pb2.AckLeases) -> None:
        rest, error = await outcome(lambda: self._opened.ack(ack.leases), "ReceiveStream")
        self.put_acked(leases_pb2.Acked(number=ack.number, rest=rest, fault=fault_of(error) if error else None))

    async def take(self, take: leases_pb2.Take) -> TakeAnswer:
        receiver = self._opened
        selection = Selection(take.max_count, take.max_bytes, take.wait_ms)
        room = await room_for(self._answers, self._peer, selection, None)
        try:
            answers = await receiver.take(selection)
        except BaseException:
            room.close()
            raise
        bytes_taken = sum(map(size, answers))
        room.keep(bytes_taken)

        def done(written: bool) -> None:
            room.close()
            if not written:
                receiver.give_back_all(answers)

        taken = leases_pb2.Taken(number=take.number, runs=[run for answer in answers for run in answer.runs])
        return TakeAnswer(taken, bytes_taken, done)

    @property
    def _opened(self) -> StreamReceiver:
        assert self._receiver is not None, "the first request has subscribed"
        return self._receiver
