"""The client of the retry service. It forwards bytes both ways: the service checks requests itself."""

from collections.abc import AsyncIterator

import grpc
from duetime_core.access.callers import made_for
from duetime_core.access.credentials import ClusterCredentials
from duetime_core.errors import Unsupported, Violation
from duetime_core.rpc.calls import answer_of, translate
from duetime_core.rpc.serving import make_channel

from duetime_gateway.shards.streams import Streams, as_is


class RetryClient:
    """A connection to one retry service, or to none."""

    def __init__(self, address: str, timeout_ms: int, credentials: ClusterCredentials) -> None:
        self._whom = f"the retry service at {address}"
        self._timeout_ms = timeout_ms
        self._channel = make_channel(address, credentials) if address else None
        self._streams = Streams()

    async def forward(self, method: str, data: bytes, remaining_ms: float | None, caller: str) -> bytes:
        """Returns the service's answer. Raises: Unsupported: there is no retry service; or the service's error."""
        call = self._connected().unary_unary(
            f"/duetime.v1.Retry/{method}", request_serializer=as_is, response_deserializer=as_is
        )
        timeout_ms = self._timeout_ms if remaining_ms is None else min(remaining_ms, self._timeout_ms)
        asked = call(data, metadata=made_for(caller), timeout=timeout_ms / 1000.0)
        return await answer_of(asked, self._whom, "RETRY_UNAVAILABLE")

    async def stream(self, method: str, data: bytes, remaining_ms: float | None, caller: str) -> AsyncIterator[bytes]:
        """As `forward`, for a call with many answers, which lasts until the caller ends it."""
        call = self._connected().unary_stream(
            f"/duetime.v1.Retry/{method}", request_serializer=as_is, response_deserializer=as_is
        )(data, metadata=made_for(caller), timeout=None if remaining_ms is None else remaining_ms / 1000.0)
        try:
            async for answer in self._streams.follow(call):
                yield answer
        except grpc.aio.AioRpcError as error:
            raise translate(error, self._whom, "RETRY_UNAVAILABLE") from error

    def end_streams(self) -> None:
        """Ends all streams: a shutdown does not wait for them. A new call resumes at the same point."""
        self._streams.end()

    def _connected(self) -> grpc.aio.Channel:
        if self._channel is None:
            raise Unsupported([Violation("group", "this gateway has no retry service (setting retry_address)")])
        return self._channel

    async def close(self) -> None:
        if self._channel is not None:
            await self._channel.close()
