"""Memory of ended calls: it is free at once, without a garbage collection."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from duetime_core.access.callers import Callers
from duetime_core.errors import Overloaded
from duetime_core.rpc.border import BorderParts, ServerBorder
from duetime_core.telemetry.meter import CallMeter
from duetime_core.within.rpc import Rpc
from duetime_core.within.server import InProcessServer

from tests.core.reaching import DEADLINE_S

METHOD = "/T/Unary"


class TracedRpc(Rpc):
    """A call with weak references."""

    __slots__ = ("__weakref__",)


class Handlers(grpc.GenericRpcHandler):
    """One method, behind a border."""

    def __init__(self) -> None:
        self.waiting = asyncio.Event()
        border = ServerBorder(10, CallMeter(10, None), Callers(), BorderParts())
        self._handler = border.wrap(METHOD, grpc.unary_unary_rpc_method_handler(self._serve))

    def service(self, handler_call_details: object) -> grpc.RpcMethodHandler[Any, Any]:
        return self._handler

    async def _serve(self, request: bytes, context: object) -> bytes:
        if request == b"refuse":
            raise Overloaded("too many")
        if request == b"wait":
            self.waiting.set()
            await asyncio.Event().wait()
        return request


@pytest.fixture
def uncollected() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("request_data", [b"hello", b"refuse", b"wait", None], ids=str)
async def test_ended_call_is_freed_without_a_collection(request_data: bytes | None) -> None:
    """Also if it was cancelled before its request, or in its handler: floods end that way."""
    handlers = Handlers()
    server = InProcessServer([handlers])
    rpc = TracedRpc(asyncio.get_running_loop(), METHOD, (), DEADLINE_S, one_answer=True)
    server.serve(rpc, "ipv4:127.0.0.1:5000")
    serving = rpc.serving
    assert serving is not None
    if request_data is not None:
        rpc.requests.put(request_data)
        rpc.requests.end()
    if request_data == b"wait":
        await handlers.waiting.wait()
    elif request_data is None:
        # One turn of the loop: the border waits for the request.
        await asyncio.sleep(0)
    if request_data in (b"wait", None):
        rpc.cancel()
    await asyncio.wait([serving], timeout=DEADLINE_S)
    assert rpc.code is not None
    freed = weakref.ref(rpc)
    del rpc, serving
    # The loop drops its references to the call's last callbacks.
    await asyncio.sleep(0)
    assert freed() is None
