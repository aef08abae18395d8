"""The yardstick of RocketMQ's calls: a gRPC server that decodes and answers them, and stores nothing."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager
from multiprocessing.connection import Connection
from typing import Any

import grpc
import uvloop
from duetime_core.rpc.serving import SERVER_OPTIONS
from duetime_gateway.rocketmq.wire import messaging_pb2 as pb

from bench.echo import spawned
from bench.peers import BODY

SERVICE = "apache.rocketmq.v2.MessagingService"


def rocketmq_echo() -> AbstractContextManager[tuple[str, int]]:
    """(HOST:PORT, pid) of a server that runs during the block, with a gateway's event loop and options."""
    return spawned(_run)


def _run(pipe: Connection) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(pipe))


OK = pb.Status(code=pb.OK, message="OK")


async def _send(request: pb.SendMessageRequest, context: Any) -> pb.SendMessageResponse:
    entries = [
        pb.SendResultEntry(status=OK, message_id=one.system_properties.message_id, transaction_id="x" * 34, offset=1)
        for one in request.messages
    ]
    return pb.SendMessageResponse(status=OK, entries=entries)


async def _ack(request: pb.AckMessageRequest, context: Any) -> pb.AckMessageResponse:
    entries = [
        pb.AckMessageResultEntry(status=OK, message_id=one.message_id, receipt_handle=one.receipt_handle)
        for one in request.entries
    ]
    return pb.AckMessageResponse(status=OK, entries=entries)


async def _receive(request: pb.ReceiveMessageRequest, context: Any) -> AsyncIterator[pb.ReceiveMessageResponse]:
    yield pb.ReceiveMessageResponse(status=OK)
    for _ in range(request.batch_size):
        yield pb.ReceiveMessageResponse(message=_message(request))
    yield pb.ReceiveMessageResponse(delivery_timestamp={"seconds": 1})


def _message(request: pb.ReceiveMessageRequest) -> pb.Message:
    """A message as large as a gateway's."""
    message = pb.Message(topic=request.message_queue.topic, body=BODY)
    system = message.system_properties
    system.message_id = "x" * 34
    system.receipt_handle = "x" * 32
    system.delivery_attempt = 1
    system.message_type = pb.NORMAL
    system.body_encoding = pb.IDENTITY
    system.body_digest.type = pb.MD5
    system.body_digest.checksum = hashlib.md5(BODY).hexdigest().upper()
    system.born_host = system.store_host = "127.0.0.1:10911"
    for moment in (system.born_timestamp, system.store_timestamp, system.invisible_duration):
        moment.seconds, moment.nanos = 1_700_000_000, 1_000_000
    return message


async def _serve(pipe: Connection) -> None:
    server = grpc.aio.server(options=SERVER_OPTIONS)
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "SendMessage": grpc.unary_unary_rpc_method_handler(
            _send, pb.SendMessageRequest.FromString, pb.SendMessageResponse.SerializeToString
        ),
        "AckMessage": grpc.unary_unary_rpc_method_handler(
            _ack, pb.AckMessageRequest.FromString, pb.AckMessageResponse.SerializeToString
        ),
        "ReceiveMessage": grpc.unary_stream_rpc_method_handler(
            _receive, pb.ReceiveMessageRequest.FromString, pb.ReceiveMessageResponse.SerializeToString
        ),
    }
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, handlers)])
    pipe.send(server.add_insecure_port("127.0.0.1:0"))
    await server.start()
    await server.wait_for_termination()
