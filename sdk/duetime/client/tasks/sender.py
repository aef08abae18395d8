"""The ways of a task's message: to the server, into an outbox, or, in tests, into the queue of the eager mode."""

import threading
from collections.abc import Callable
from typing import Any, Protocol

from duetime.client.errors import InvalidArgument
from duetime.client.message import CancelResult, Message, MessageRef, Receipt
from duetime.client.sync.background import background
from duetime.client.sync.clients import Producer
from duetime.client.tasks.eager import EagerQueue


class MessageWriter(Protocol):
    """An outbox: `duetime.outbox.Outbox`."""

    def send(self, session: Any, message: Message) -> Any: ...


class TaskSender:
    """Sends messages of an app. One connection, made by the first send, serves all threads and event loops."""

    def __init__(self, make_producer: Callable[[], Producer], outbox: MessageWriter | None) -> None:
        self._make_producer = make_producer
        self._outbox = outbox
        self._producer: Producer | None = None
        self._lock = threading.Lock()
        self.eager: EagerQueue | None = None

    @property
    def producer(self) -> Producer:
        """See `App.producer`."""
        with self._lock:
            if self._producer is None:
                self._producer = self._make_producer()
            return self._producer

    def send(self, message: Message) -> Receipt:
        """Raises: DueTimeError: as `Producer.send`."""
        return self.producer.send_message(message) if self.eager is None else self.eager.send(message)

    async def asend(self, message: Message) -> Receipt:
        """As `send`, without blocking the event loop."""
        if self.eager is not None:
            return await self.eager.asend(message)
        return await background.run_async(self.producer._client.send_message(message))

    def send_in(self, session: Any, message: Message) -> Any:
        """Raises: InvalidArgument: the app has no outbox."""
        if self._outbox is None:
            raise InvalidArgument.of("outbox", "the app has none: App(..., outbox=Outbox(metadata))")
        return self._outbox.send(session, message)

    def cancel(self, message: MessageRef | str, topic: str) -> CancelResult:
        """Raises: DueTimeError: as `Producer.cancel`."""
        if self.eager is not None:
            return self.eager.cancel(message)
        return self.producer.cancel(message, topic=topic)

    async def acancel(self, message: MessageRef | str, topic: str) -> CancelResult:
        """As `cancel`, without blocking the event loop."""
        if self.eager is not None:
            return self.eager.cancel(message)
        return await background.run_async(self.producer._client.cancel(message, topic=topic))

    def close(self) -> None:
        """Disconnects; the next send connects again."""
        with self._lock:
            producer, self._producer = self._producer, None
        if producer is not None:
            producer.close()
