"""The yardstick: a gRPC server that parses a SendRequest and returns the same request, in a process of its own."""

import asyncio
import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from multiprocessing.connection import Connection
from typing import Any

import grpc
from duetime.v1 import gateway_pb2

METHOD = "/duetime.bench.Echo/Send"
_BYTES_MAX = 64 * 1024 * 1024


@contextmanager
def spawned(run: Callable[[Connection], None]) -> Iterator[tuple[str, int]]:
    """(HOST:PORT, pid) of a server in a process of its own, which sends its port through the pipe."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=run, args=(theirs,), daemon=True)
    process.start()
    try:
        yield f"127.0.0.1:{ours.recv()}", process.pid or 0
    finally:
        ours.close()
        process.terminate()
        process.join()


def echo_server() -> AbstractContextManager[tuple[str, int]]:
    """(HOST:PORT, pid) of a server that runs during the block."""
    return spawned(_run)


def _run(pipe: Connection) -> None:
    asyncio.run(_serve(pipe))


async def _serve(pipe: Connection) -> None:
    async def send(request: gateway_pb2.SendRequest, context: Any) -> gateway_pb2.SendRequest:
        return request

    handler = grpc.unary_unary_rpc_method_handler(
        send, gateway_pb2.SendRequest.FromString, gateway_pb2.SendRequest.SerializeToString
    )
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", _BYTES_MAX)])
    service, method = METHOD.strip("/").split("/")
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, {method: handler})])
    pipe.send(server.add_insecure_port("127.0.0.1:0"))
    await server.start()
    await server.wait_for_termination()
