"""One unary method of the server as a blocking call without an event loop, by grpcio or the compiled client."""

from collections.abc import Callable
from typing import Any

import grpc

from duetime.client.connection import GatewayConnection
from duetime.client.errors import DueTimeError, from_status
from duetime.client.wire import is_compiled
from duetime.tls import Pems


class _OpenChannel:
    """A channel, the certificates it was made with, and its method."""

    def __init__(self, channel: Any, pems: Pems | None, method: str) -> None:
        self.channel = channel
        self.pems = pems
        self.call: Callable[..., bytes] = channel.unary_unary(method)
        # Garbage that only the collector can free. A forked child, whose gRPC lacks its threads, freezes the collector
        # (`ForkGuard`): freeing the channel at its exit would crash it.
        self._itself = self


class BlockingMethod:
    """A method of a client's server, with a channel of its own. For one call at a time."""

    def __init__(self, connection: GatewayConnection, method: str) -> None:
        """`method`: the full name, `/duetime.v1.Gateway/Send`. Raises: InvalidArgument: see `is_compiled`."""
        self._is_compiled = is_compiled()
        self._connection = connection
        self._method = method
        self._open: _OpenChannel | None = None

    def __call__(self, payload: bytes, timeout: float, metadata: Any = None) -> bytes:
        """The encoded answer to an encoded request; opens the channel at first.

        Raises:
            DueTimeError: the call failed; this method does not repeat it.
        """
        opened = self._opened()
        try:
            answer: bytes = opened.call(payload, timeout=timeout, metadata=metadata)
        except grpc.RpcError as error:
            # It has the methods of grpc.aio's error.
            raise from_status(error, self._connection.server) from error  # type: ignore[arg-type]
        except DueTimeError:
            # The token can't be read.
            raise
        except BaseException:
            # An interrupt may leave one of gRPC's locks held: no thread may use this channel again, not even to close
            # it. The next call makes another.
            self._open = None
            raise
        return answer

    def _opened(self) -> _OpenChannel:
        """The channel, a new one if the certificates were replaced."""
        pems, opened = self._connection.pems, self._open
        if opened is not None and opened.pems is pems:
            return opened
        self.close()
        channel = self._connection.make_blocking_channel(pems, is_compiled=self._is_compiled)
        self._open = _OpenChannel(channel, pems, self._method)
        return self._open

    def close(self) -> None:
        """Disconnects. The next call would connect again."""
        opened, self._open = self._open, None
        if opened is not None:
            opened.channel.close()
