"""Single messages of threads: alone by a blocking call, together through the event loop.

    thread ──▶ nothing else in flight? ──yes──▶ Send in the thread itself ──▶ receipt or error
                        └──no──▶ handed to the loop, which gathers (docs/adr/0040)

A lone message gains nothing from the loop: the hand-over, the tasks of the stream and the way back cost more than the
call. Concurrent messages gain from sharing requests.
"""

import asyncio
import time
import weakref

from google.protobuf.message import DecodeError

from duetime.client import tracing
from duetime.client.blocking import BlockingMethod
from duetime.client.connection import GatewayConnection, attempt_timeout_s, backoff_s
from duetime.client.errors import Closed, DueTimeError, ServerError, from_fault, unreadable
from duetime.client.ids import new_id
from duetime.client.message import Message, Receipt
from duetime.client.process import after_fork, connections
from duetime.client.sending.batch import encode, now_ms
from duetime.client.sending.capacity import Capacity
from duetime.client.sending.delivery import given_up
from duetime.client.sending.handing import Call, ThreadBridge
from duetime.client.sending.outcomes import Outcome
from duetime.v1 import gateway_pb2

_SEND = "/duetime.v1.Gateway/Send"


class LoneSender:
    """Sends one message at a time by blocking calls, with the same id until the timeout."""

    def __init__(self, connection: GatewayConnection, timeout: float) -> None:
        self._server = connection.server
        self._method = BlockingMethod(connection, _SEND)
        self._timeout = timeout

    def send(self, message: Message) -> Outcome:
        """Sends a message, in the calling thread. Raises: InvalidMessage: as `encode`."""
        began_s = time.monotonic()
        message_id = message.id or new_id()
        payload = encode(message, message_id, now_ms())
        attempts = 0
        while True:
            attempts += 1
            left_s = began_s + self._timeout - time.monotonic()
            try:
                return self._receipt(payload, message.topic, message_id, attempt_timeout_s(attempts, left_s))
            except DueTimeError as error:
                outcome = error.about(message_id)
            if not outcome.retriable:
                return outcome
            pause_s = backoff_s(attempts, outcome)
            took_s = time.monotonic() - began_s
            if took_s + pause_s >= self._timeout:
                return given_up(outcome, attempts, took_s)
            time.sleep(pause_s)  # noqa: TID251  the pause of `connection.pause`, in a thread

    def close(self) -> None:
        self._method.close()

    def _receipt(self, payload: bytes, topic: str, message_id: str, timeout: float) -> Receipt:
        """One attempt. Raises: DueTimeError."""
        if tracing.active is None:
            answer = self._method(payload, timeout)
        else:
            with tracing.active.requesting(_SEND, payload) as metadata:
                answer = self._method(payload, timeout, metadata)
        try:
            response = gateway_pb2.SendResponse.FromString(answer)
        except DecodeError:
            raise unreadable(self._server) from None
        if response.HasField("fault"):
            raise from_fault(response.fault, message_id)
        if len(response.results) != 1:
            text = f"the server returned {len(response.results)} results for 1 message"
            raise ServerError(text, reason="RESULTS_MISSING")
        result = response.results[0]
        if result.HasField("fault"):
            raise from_fault(result.fault, message_id)
        return Receipt(result, topic)


class ThreadSender:
    """The way of one producer's single messages from any thread: alone, or handed to its event loop."""

    def __init__(self, connection: GatewayConnection, timeout: float, capacity: Capacity, bridge: ThreadBridge) -> None:
        self._lone = LoneSender(connection, timeout)
        self._bridge = bridge
        self._capacity = capacity
        # Sends in progress. A thread adds its own before it looks: of two that meet, at most one is alone.
        self._sends: set[object] = set()
        # Set by `end`: the loop that waits for the end of all sends, and its event.
        self._closing: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None
        _senders.add(self)

    def forget(self) -> None:
        """Drops the sends in progress, in a forked child: their threads are the parent's."""
        self._sends.clear()

    def send(self, message: Message, call: Call) -> Outcome:
        """Sends a message and waits for its outcome. Called in any thread but the loop's.

        Raises:
            Closed, Forked: the producer can't be used.
        """
        if connections.lost:
            connections.check()
        mine = object()
        try:
            self._sends.add(mine)
            if self._closing is not None:
                raise Closed("the producer is closed", reason="CLOSED")
            if len(self._sends) == 1 and self._capacity.is_unused:
                return self._lone.send(message)
            return self._bridge.send(message, call)
        finally:
            # An interrupt may come before the first line of the block.
            self._sends.discard(mine)
            if self._closing is not None:
                self._notify(*self._closing)

    def end(self) -> None:
        """Rejects new sends. Called in the loop that calls `close`."""
        if self._closing is None:
            self._closing = asyncio.get_running_loop(), asyncio.Event()

    async def close(self) -> None:
        """Returns once all sends have ended, each within its timeout."""
        assert self._closing is not None, "end comes first"
        _, left = self._closing
        while self._sends:
            left.clear()
            if self._sends:
                await left.wait()
        self._lone.close()

    @staticmethod
    def _notify(loop: asyncio.AbstractEventLoop, left: asyncio.Event) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(left.set)


_senders: weakref.WeakSet[ThreadSender] = weakref.WeakSet()


def _forget_sends() -> None:
    for sender in _senders:
        sender.forget()


after_fork(_forget_sends)
