"""Blocking unary gRPC calls over HTTP/2, in the calling thread with the GIL released.

    channel = Channel("localhost", 9800, message_bytes_max=...)
    answer = channel.call("/package.Service/Method", request, 5.0, [("authorization", "Bearer ...")])

A channel connects at its first call, and again when the server has closed or left the connection; it never repeats a
call. A call without a status, such as one whose deadline has passed, ends its connection. Calls of several threads at
once have connections of their own; one is kept. A forked child opens its own.
"""

from collections.abc import Sequence

INTERFACE: int

class Failed(Exception):
    """A call failed: gRPC's code, the text, and pairs of a name and a text, or bytes if the name ends in `-bin`."""

    args: tuple[int, str, list[tuple[str, str | bytes]]]

class Channel:
    """Calls to one server. Thread-safe."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        pems: tuple[bytes, tuple[bytes, bytes] | None] | None = None,
        message_bytes_max: int,
    ) -> None:
        """Does not connect.

        Args:
            host: a name or an address; IPv6 in brackets. Certificates must have it.
            pems: with it, connections use TLS: the trusted CAs, and the client's certificate and key.
            message_bytes_max: limit of requests and answers.

        Raises:
            ValueError: the host or the certificates cannot be used.
        """

    def call(self, method: str, request: bytes, timeout_s: float, metadata: Sequence[tuple[str, str | bytes]]) -> bytes:
        """Makes one call; the timeout includes connecting.

        Raises:
            Failed: the call failed.
            ValueError: the channel is closed, or the method or timeout is invalid.
            BaseException: raised by a signal handler.
        """

    def close(self) -> None:
        """Disconnects. A connection of a call in progress ends with the call."""
