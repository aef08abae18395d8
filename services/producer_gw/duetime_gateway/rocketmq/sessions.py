"""Streams of Telemetry: the commands to be written to each client."""

import asyncio
from collections.abc import AsyncIterator
from typing import NamedTuple

from duetime_core.clock import Clock, Timer

from duetime_gateway.rocketmq.clients import Client
from duetime_gateway.rocketmq.wire import messaging_pb2 as pb

# Commands waiting for a slow client; its own commands are not read meanwhile.
WAITING_MAX = 16


class _QueuedCommand(NamedTuple):
    command: pb.TelemetryCommand
    # Done once written; None: no caller waits.
    written: "asyncio.Future[None] | None"


class Session:
    """One stream."""

    def __init__(self, client: Client, namespace: str, clock: Clock, caller: str) -> None:
        """`caller`: the owner of its seat, as named by `sharer`."""
        self.caller = caller
        self.client = client
        self.namespace = namespace
        self._clock = clock
        self._waiting: asyncio.Queue[_QueuedCommand | None] = asyncio.Queue(WAITING_MAX + 1)
        self._again: Timer | None = None
        self._error: Exception | None = None
        self.ended = False

    async def put(self, command: pb.TelemetryCommand) -> None:
        """Waits for capacity."""
        await self._waiting.put(_QueuedCommand(command, None))

    def put_again(self, command: pb.TelemetryCommand, after_ms: int) -> None:
        """Sends the command once more later, replacing an earlier one; dropped if there is no capacity."""
        if self._again is not None:
            self._again.cancel()
        self._again = self._clock.call_later(after_ms, lambda: self._put_if_room(_QueuedCommand(command, None)))

    def put_if_room(self, command: pb.TelemetryCommand) -> None:
        """Drops the command if there is no capacity."""
        self._put_if_room(_QueuedCommand(command, None))

    def _put_if_room(self, command: _QueuedCommand) -> bool:
        if self.ended or self._waiting.qsize() >= WAITING_MAX:
            return False
        self._waiting.put_nowait(command)
        return True

    async def tell(self, command: pb.TelemetryCommand, timeout_ms: float) -> bool:
        """Whether the command was written within this time."""
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not self._put_if_room(_QueuedCommand(command, written)):
            return False
        await self._clock.wait_for(written, timeout_ms)
        told = written.done() and not written.cancelled()
        # Do not send it later.
        written.cancel()
        return told

    async def commands(self) -> AsyncIterator[pb.TelemetryCommand]:
        """Yields the commands to write until the stream ends. Raises: the error that ends it."""
        while (one := await self._waiting.get()) is not None:
            if one.written is not None and one.written.cancelled():
                continue
            yield one.command
            if one.written is not None and not one.written.done():
                one.written.set_result(None)
        if self._error is not None:
            raise self._error

    async def finish(self, error: Exception | None = None) -> None:
        """Ends the stream after its waiting commands are written."""
        self._error = error
        self._no_more()
        await self._waiting.put(None)

    def _no_more(self) -> None:
        self.ended = True
        if self._again is not None:
            self._again.cancel()

    def end(self) -> None:
        """Ends the stream and drops its waiting commands."""
        self._no_more()
        while not self._waiting.empty():
            left = self._waiting.get_nowait()
            if left is not None and left.written is not None:
                left.written.cancel()
        self._waiting.put_nowait(None)
