"""A channel to a node of this process: the part of gRPC's interface that callers use."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any, Self

import grpc

from duetime_core.within.call import (
    InProcessCall,
    Parse,
    Serialize,
    StreamRequest,
    StreamStreamCall,
    UnaryStreamCall,
    UnaryUnaryCall,
)
from duetime_core.within.places import InProcessAddress
from duetime_core.within.rpc import Metadata, Rpc
from duetime_core.within.server import PEER

_numbers = itertools.count(1)


class Channel(grpc.aio.Channel):
    """A channel to one address within the process."""

    def __init__(self, place: InProcessAddress) -> None:
        self._place = place
        self._peer = f"{PEER}{next(_numbers)}"
        # Running calls.
        self._rpcs: set[Rpc] = set()
        self._waiting: set[asyncio.Task[None]] = set()
        self._closed = False

    def unary_unary(self, method: str, *serializers: Any, **named: Any) -> Any:
        return self._make(UnaryUnaryCall, method, *serializers, **named)

    def unary_stream(self, method: str, *serializers: Any, **named: Any) -> Any:
        return self._make(UnaryStreamCall, method, *serializers, **named)

    def stream_unary(self, method: str, *serializers: Any, **named: Any) -> Any:
        """Not supported: the contract has no such calls."""
        raise NotImplementedError(method)

    def stream_stream(self, method: str, *serializers: Any, **named: Any) -> Any:
        return self._make(StreamStreamCall, method, *serializers, **named)

    def _make(
        self,
        kind: Callable[[Rpc, Serialize | None, Parse | None], InProcessCall],
        method: str,
        request_serializer: Serialize | None = None,
        response_deserializer: Parse | None = None,
        _registered_method: bool | None = False,
    ) -> Any:
        """Creates a factory for calls of one method. Credentials and compression are ignored."""

        def call(
            request: Any = None,
            *,
            timeout: float | None = None,
            metadata: Metadata | None = None,
            credentials: Any = None,
            wait_for_ready: bool | None = None,
            compression: Any = None,
        ) -> InProcessCall:
            rpc = self._rpc(method, metadata, timeout, one_answer=kind is UnaryUnaryCall)
            made = kind(rpc, request_serializer, response_deserializer)
            if isinstance(made, StreamRequest):
                made.consume(request)
            else:
                rpc.send(rpc.requests, request if request_serializer is None else request_serializer(request))
                rpc.requests.end()
            self._begin(rpc, wait_for_ready or False)
            return made

        return call

    def _rpc(self, method: str, metadata: Metadata | None, timeout_s: float | None, *, one_answer: bool) -> Rpc:
        if self._closed:
            raise grpc.aio.UsageError("Channel is closed.")
        rpc = Rpc(self._place.loop, method, tuple(metadata or ()), timeout_s, one_answer=one_answer)
        self._rpcs.add(rpc)
        rpc.when_settled(lambda: self._rpcs.discard(rpc))
        return rpc

    def _begin(self, rpc: Rpc, wait_for_ready: bool) -> None:
        if rpc.code is not None:
            return
        if self._place.server is not None:
            self._place.server.serve(rpc, self._peer)
        elif wait_for_ready:
            waiting = self._place.loop.create_task(self._begin_later(rpc))
            self._waiting.add(waiting)
            waiting.add_done_callback(self._waiting.discard)
            rpc.when_settled(waiting.cancel)
        else:
            text = f"no server runs at {self._place.address}, an address within this process"
            rpc.finish(grpc.StatusCode.UNAVAILABLE, text)

    async def _begin_later(self, rpc: Rpc) -> None:
        server = await self._place.served()
        if rpc.code is None:
            server.serve(rpc, self._peer)

    async def close(self, grace: float | None = None) -> None:
        """Starts no further call, and ends running ones at once, regardless of `grace`: nodes end their calls before
        they close their channels."""
        self._closed = True
        for rpc in list(self._rpcs):
            rpc.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        if self._closed:
            return grpc.ChannelConnectivity.SHUTDOWN
        served = self._place.server is not None
        return grpc.ChannelConnectivity.READY if served else grpc.ChannelConnectivity.IDLE

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """Returns once there is a server; calls report the loss of one."""
        if self.get_state() is last_observed_state:
            await self._place.served()

    async def channel_ready(self) -> None:
        await self._place.served()
