"""The common part of channels that make their calls on other channels."""

from abc import abstractmethod
from typing import Any, Self

import grpc


class ForwardingChannel(grpc.aio.Channel):
    """A channel whose calls of every kind are made by `_method`."""

    @abstractmethod
    def _method(self, kind: str, arguments: Any, options: Any) -> Any:
        """A factory for calls of one method. `kind`: the name of grpc.aio.Channel's function, as "unary_unary"."""

    def unary_unary(self, *arguments: Any, **options: Any) -> Any:
        return self._method("unary_unary", arguments, options)

    def unary_stream(self, *arguments: Any, **options: Any) -> Any:
        return self._method("unary_stream", arguments, options)

    def stream_unary(self, *arguments: Any, **options: Any) -> Any:
        return self._method("stream_unary", arguments, options)

    def stream_stream(self, *arguments: Any, **options: Any) -> Any:
        return self._method("stream_stream", arguments, options)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
