"""Server-sent events: an event for all readers is encoded once; a reader that falls behind is dropped."""

import asyncio
from collections.abc import AsyncIterator

import structlog
from duetime_core.limits.seats import Seats
from starlette.responses import StreamingResponse
from starlette.types import Send

log = structlog.get_logger()

READERS_MAX = 200
# Events that a reader may lag behind.
BEHIND_MAX = 8
# Longest time for writing one event.
SLOW_S = 10.0
# A comment is sent when no event is: proxies usually keep a connection for a minute.
QUIET_S = 15.0


class Events:
    """Readers and their unread events."""

    def __init__(self) -> None:
        # The reader's caller and token by queue; None in a queue: the end.
        self._readers: dict[asyncio.Queue[bytes | None], tuple[str, str]] = {}
        self._seats = Seats(READERS_MAX, "live pages are open")
        self.dropped_count = 0
        self._ended = False

    @property
    def reader_count(self) -> int:
        return len(self._readers)

    def publish(self, event: str, data: str) -> None:
        """Sends an event to all readers; those too far behind are dropped, and reconnect."""
        lines = "".join(f"data: {line}\n" for line in data.splitlines())
        block = f"event: {event}\n{lines}\n".encode()
        for queue in list(self._readers):
            if queue.full():
                self._leave(queue)
                self.dropped_count += 1
                _end(queue)
            else:
                queue.put_nowait(block)

    def end(self) -> None:
        """Ends all streams, such as when the console stops."""
        self._ended = True
        for queue in list(self._readers):
            self._leave(queue)
            _end(queue)

    def tokens(self) -> set[str]:
        """The tokens of all readers."""
        return {token for _, token in self._readers.values()}

    def end_of(self, token: str) -> None:
        """Ends the streams of a token that is no longer valid."""
        for queue in [one for one, (_, shown) in self._readers.items() if shown == token]:
            self._leave(queue)
            _end(queue)

    def stream(self, caller: str, token: str = "") -> "EventStream":
        """The answer to a new reader. Raises: Overloaded: too many readers, in total or of this caller."""
        self._seats.take(caller)
        queue: asyncio.Queue[bytes | None] = asyncio.Queue(BEHIND_MAX)
        self._readers[queue] = caller, token
        if self._ended:
            _end(queue)
        return EventStream(self._read(queue))

    async def _read(self, queue: asyncio.Queue[bytes | None]) -> AsyncIterator[bytes]:
        try:
            yield b"retry: 2000\n\n"
            while True:
                try:
                    async with asyncio.timeout(QUIET_S):
                        block = await queue.get()
                except TimeoutError:
                    block = b": quiet\n\n"
                if block is None:
                    return
                yield block
        finally:
            self._leave(queue)

    def _leave(self, queue: "asyncio.Queue[bytes | None]") -> None:
        left = self._readers.pop(queue, None)
        if left is not None:
            self._seats.give(left[0])


def _end(queue: asyncio.Queue[bytes | None]) -> None:
    while not queue.empty():
        queue.get_nowait()
    queue.put_nowait(None)


class EventStream(StreamingResponse):
    """The answer to a reader."""

    def __init__(self, content: AsyncIterator[bytes]) -> None:
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        super().__init__(content, media_type="text/event-stream", headers=headers)

    async def stream_response(self, send: Send) -> None:
        async def in_time(message: object) -> None:
            async with asyncio.timeout(SLOW_S):
                await send(message)  # type: ignore[arg-type]

        try:
            await super().stream_response(in_time)
        except TimeoutError:
            log.info("slow reader dropped")
