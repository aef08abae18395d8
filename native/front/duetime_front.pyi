"""A gRPC server over HTTP/2 on a thread of its own. Python's event loop takes calls in batches, and sends commands.

    front = Front(connections_max=..., streams_max=..., metadata_bytes_max=..., message_bytes_max=...)
    loop.add_reader(front.fileno(), turn)       # turn: for event in front.take(): ...
    front.listen("127.0.0.1", 8080)
    front.message(number, b"answer", False); front.finish(number, 0, "", [], False); front.flush()

Metadata are pairs of a name and a text, or bytes if the name ends in `-bin`. A command for a call that has ended does
nothing.
"""

from collections.abc import Callable, Sequence
from typing import Any

INTERFACE: int

class Front:
    """A server with any number of ports. Thread-safe."""

    def __init__(
        self, *, connections_max: int, streams_max: int, metadata_bytes_max: int, message_bytes_max: int
    ) -> None:
        """Limits: open connections; calls of a connection; the metadata of a call as HTTP/2 counts it; a message."""

    def listen(
        self,
        host: str,
        port: int,
        changed: Callable[[], tuple[bytes, bytes, bytes] | None] | None = None,
        *,
        asked: bool = False,
    ) -> int:
        """Binds a port, 0 for any free one, accepts connections, and returns its number.

        Args:
            changed: with it the port accepts only TLS. Returns certificate, key and trusted CAs as PEM, if they have
                changed since its last call. Called at once and before each handshake, on another thread.
            asked: whether clients must have a certificate.

        Raises:
            OSError: the port is taken, or the address is not this machine's.
            ValueError: the certificate cannot be used.
        """

    def fileno(self) -> int:
        """The descriptor that is readable while there are events."""

    def take(self) -> list[tuple[Any, ...]]:
        """All events so far, in order. At most 64 calls; others follow once these are taken:

        (0, number, (peer, auth_context), method, metadata, timeout_s | None, requests, ended): a call, with the
            requests that have arrived; `ended`: there will be no more.
        (1, number, request)
        (2, number): there will be no more requests.
        (3, number): HTTP/2 has taken the answers up to the last one with `report`.
        (4, number, code, text): the call has ended.
        (5, text): the changed certificate cannot be used; the previous one stays in use.
        """

    def begin(self, number: int, metadata: Sequence[tuple[str, str | bytes]]) -> None:
        """Sets the initial metadata. Raises: ValueError: it is invalid."""

    def message(self, number: int, data: bytes, report: bool) -> None:
        """Adds an answer. `report`: an event says when HTTP/2 has taken it."""

    def finish(self, number: int, code: int, text: str, metadata: Sequence[tuple[str, str | bytes]], cut: bool) -> None:
        """Ends a call with a status. `cut`: drops the answers that HTTP/2 has not taken. Raises: ValueError: invalid
        metadata."""

    def read(self, number: int, taken: int) -> None:
        """The reader waits for the next request, and has taken so many before it. Without this call the front reads the
        first 64 KiB of a request."""

    def release(self, number: int, size: int, taken: int) -> None:
        """The reader has taken so many more bytes of requests, and so many requests since the call began. The front
        hands over 64 requests that no reader has taken."""

    def flush(self) -> None:
        """Passes the commands since the last time on."""

    def figures(self) -> tuple[int, int, int, int]:
        """Connections with a call that waits until earlier ones are taken, connections of which nothing is read because
        their clients read nothing, bytes of answers that no socket has taken, and the number of calls rejected for
        them. From any thread."""

    def drain(self) -> None:
        """Closes the ports, and asks clients to leave; calls in progress continue."""

    def close(self) -> None:
        """Ends connections once their answers are written, a second later at the latest. Returns when all have
        ended."""
