"""An HTTP server that tests send webhooks to: it records requests and answers as the test says."""

import asyncio
import ssl
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Self

import h11

from tests.certified import Certified


class Answer(NamedTuple):
    """A response. `hangs`: it is never sent; `endless`: its body never ends; `after`: it is sent once this is set."""

    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    hangs: bool = False
    endless: bool = False
    after: asyncio.Event | None = None


class Received(NamedTuple):
    """A request."""

    path: str
    headers: dict[str, str]
    body: bytes


OK = Answer()


class Receiver:
    """Serves HTTP, or HTTPS with a certificate for `localhost`, on a free port of loopback."""

    def __init__(self, certs: Path | None = None) -> None:
        self.requests: list[Received] = []
        self.connections = 0
        # Called with each request; the answer to it.
        self.answer: Callable[[Received], Answer] = lambda _: OK
        self._context: ssl.SSLContext | None = None
        self.ca: Path | None = None
        if certs is not None:
            files = Certified(certs).issue("receiver", names=("localhost",))
            assert files.cert is not None
            self.ca = files.ca
            self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            self._context.load_cert_chain(files.cert, files.key)
        self._server: asyncio.Server | None = None
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    def url(self, path: str = "/hook", host: str = "localhost") -> str:
        return f"{'http' if self._context is None else 'https'}://{host}:{self.port}{path}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def until(self, count: int) -> list[Received]:
        """The requests, once there are that many."""
        async with asyncio.timeout(60):
            while len(self.requests) < count:
                self._changed.clear()
                await self._changed.wait()
        return self.requests

    async def until_open(self, count: int) -> None:
        """Returns once that many connections are open."""
        async with asyncio.timeout(60):
            while len(self._tasks) != count:
                self._changed.clear()
                await self._changed.wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            await self._requests(reader, writer)
        except (ConnectionError, h11.RemoteProtocolError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            self._changed.set()
            writer.transport.abort()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def _requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = h11.Connection(h11.SERVER)
        head, body = h11.Request(method="GET", target="/", headers=[("host", "x")]), b""
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                connection.receive_data(await reader.read(65_536))
            elif isinstance(event, h11.Request):
                head, body = event, b""
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                names = {name.decode(): value.decode("latin-1") for name, value in head.headers}
                received = Received(head.target.decode(), names, body)
                await self._answer(connection, writer, received)
                if connection.our_state is h11.MUST_CLOSE or connection.their_state is h11.MUST_CLOSE:
                    return
                connection.start_next_cycle()
            else:
                return

    async def _answer(self, connection: h11.Connection, writer: asyncio.StreamWriter, received: Received) -> None:
        answer = self.answer(received)
        self.requests.append(received)
        self._changed.set()
        if answer.hangs:
            await asyncio.Event().wait()
        if answer.after is not None:
            await answer.after.wait()
        length = [] if answer.endless else [("content-length", str(len(answer.body)))]
        head = h11.Response(status_code=answer.status, headers=[*answer.headers, *length])
        writer.write(connection.send(head) or b"")
        while answer.endless:
            writer.write(connection.send(h11.Data(data=b"x" * 65_536)) or b"")
            await writer.drain()
        writer.write(connection.send(h11.Data(data=answer.body)) or b"")
        writer.write(connection.send(h11.EndOfMessage()) or b"")
        await writer.drain()
