"""The hand-written part of the synchronous clients: with blocks and for loops. `clients.py` is generated.

The `_client` of each class is asynchronous; its coroutines run on the background thread.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator
from types import TracebackType
from typing import Any, Self, TypeVar

from duetime.client import tracing
from duetime.client.consuming.puller import AsyncPuller
from duetime.client.errors import Closed, DueTimeError
from duetime.client.message import Message, Receipt
from duetime.client.process import connections
from duetime.client.record import ReceivedMessage
from duetime.client.sending.producer import AsyncProducer
from duetime.client.sync.background import background

T = TypeVar("T")
F = TypeVar("F")

# Messages that a for loop over a puller fetches from the background thread at once.
ITERATION_COUNT = 512


class SyncClient(ABC):
    """A client that is closed at the end of its with block."""

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not connections.lost:
            self.close()

    def __repr__(self) -> str:
        # The type differs between twins.
        return repr(vars(self)["_client"]).removeprefix("Async")


class SyncSender(SyncClient):
    """A producer with a faster path for single messages than other calls have."""

    _client: AsyncProducer

    def send_message(self, message: Message) -> Receipt:
        """Sends one message, as `send` does."""
        if tracing.active is None:
            outcome = self._client._threads.send(message, background.call)
        else:
            with tracing.active.sending(message) as carrying:
                outcome = self._client._threads.send(carrying, background.call)
        if isinstance(outcome, DueTimeError):
            raise outcome
        return outcome


class ScopedClient:
    """A twin made by another twin's method, with its own with block."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __enter__(self) -> Self:
        background.run(self._client.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not connections.lost:
            background.run(self._client.__aexit__(kind, error, trace))

    def __repr__(self) -> str:
        return repr(self._client).removeprefix("Async")


class BufferedPuller(AsyncPuller):
    """A puller with a buffer from which another thread takes messages one by one.

    Messages in the buffer do not count as returned: the positions do not pass them.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.buffer: deque[ReceivedMessage] = deque()

    @property
    def positions(self) -> dict[int, int]:
        positions = super().positions
        for message in reversed(self.buffer):
            positions[message.queue] = message.offset
        return positions

    async def fill(self) -> None:
        """Waits for messages and buffers them. An interrupted caller loses none: no await separates the two steps."""
        self.buffer.extend(await self.poll(ITERATION_COUNT, "1h"))

    def _take(self, count_max: int) -> list[ReceivedMessage]:
        if self.buffer:
            return [self.buffer.popleft() for _ in range(min(count_max, len(self.buffer)))]
        return super()._take(count_max)


class IterablePuller(SyncClient):
    """A puller that is opened at the beginning of a with block and followed by a for loop until it is closed."""

    _client: BufferedPuller

    @abstractmethod
    def open(self) -> None: ...

    def __enter__(self) -> Self:
        try:
            self.open()
        except BaseException:
            self.close()
            raise
        return self

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ReceivedMessage:
        try:
            while not self._client.buffer:
                background.run(self._client.fill())
        except Closed:
            raise StopIteration from None
        return self._client.buffer.popleft()


def iterate(results: AsyncGenerator[T, None]) -> Iterator[T]:
    """The values of an asynchronous generator, which is closed when the caller stops iterating."""

    async def advance() -> T | None:
        return await anext(results, None)

    try:
        while (result := background.run(advance())) is not None:
            yield result
    finally:
        background.run(results.aclose())


def in_loop(register: Callable[[F], F]) -> Callable[[F], F]:
    """A decorator that is applied on the background thread, so that its work runs there."""

    async def apply(function: F) -> F:
        return register(function)

    return lambda function: background.run(apply(function))
