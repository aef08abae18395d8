"""Streams of questions to the gateway: their errors, and the tasks that run them."""

import asyncio
from collections.abc import Coroutine
from contextvars import Context
from typing import Any

import grpc

from duetime.client.connection import GatewayConnection
from duetime.client.errors import Closed, DueTimeError, Timeout, Unavailable, from_fault, from_status, unreadable
from duetime.v1 import message_pb2


class StreamErrors:
    """See `duetime.streams.Peer`."""

    def __init__(self, connection: GatewayConnection) -> None:
        self._server = connection.server

    def ended(self, text: str = "") -> DueTimeError:
        return Unavailable(text or f"the server at {self._server} ended the stream", reason="STREAM_ENDED")

    def failed(self, status: grpc.aio.AioRpcError) -> Exception:
        return from_status(status, self._server)

    def late(self, timeout_s: float) -> DueTimeError:
        text = f"no answer from the server at {self._server} within {timeout_s:.3g} s"
        return Timeout(text, reason="DEADLINE_EXCEEDED")

    def unreadable(self) -> DueTimeError:
        return unreadable(self._server)

    def refused(self, fault: message_pb2.Fault) -> DueTimeError:
        return from_fault(fault, "")

    def stopped(self) -> DueTimeError:
        return Closed("the client was closed during the call", reason="CLOSED")


class StreamTasks:
    """The tasks of one client's streams."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        # An empty context: the task belongs to no caller.
        task = asyncio.get_running_loop().create_task(work, context=Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def end(self, within_s: float) -> None:
        """Waits for the tasks, and for those that they start; cancels late ones."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within_s
        while self._tasks and loop.time() < deadline:
            await asyncio.wait(self._tasks, timeout=deadline - loop.time(), return_when=asyncio.FIRST_COMPLETED)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
