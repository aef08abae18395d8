"""A way to a store that loses answers: the call has taken effect, and its caller does not know."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
from duetime_core.rpc.serving import make_channel


class Relay(grpc.GenericRpcHandler):
    """Passes all calls on; answers of the methods in `loses` become UNAVAILABLE, and are counted in `lost`."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel
        self.address = ""
        self.loses: set[str] = set()
        self.lost: Counter[str] = Counter()

    def service(self, handler_call_details: Any) -> Any:
        call = self._channel.unary_unary(handler_call_details.method)
        method = handler_call_details.method.rpartition("/")[2]

        async def pass_on(data: bytes, context: Any) -> bytes:
            answer: bytes = await call(data, timeout=context.time_remaining())
            if method in self.loses:
                self.lost[method] += 1
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the answer is lost")
            return answer

        return grpc.unary_unary_rpc_method_handler(pass_on)


@asynccontextmanager
async def relay_to(address: str) -> AsyncIterator[Relay]:
    server, channel = grpc.aio.server(), make_channel(address)
    relay = Relay(channel)
    server.add_generic_rpc_handlers((relay,))
    relay.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield relay
    finally:
        await server.stop(None)
        await channel.close()
