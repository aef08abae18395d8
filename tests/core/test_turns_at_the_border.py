"""Turns of single calls, at the border of a server whose callers have names."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from duetime_core.access.callers import Role
from duetime_core.access.principal import Principal, serve_for
from duetime_core.clock import turn
from duetime_core.errors import DueTimeError
from duetime_core.limits.turns import REQUEST_COST, WORK_BYTES, RequestTurns
from duetime_core.rpc.border import BorderParts
from duetime_core.rpc.channels import make_channel
from duetime_core.rpc.serving import Server
from duetime_core.testing import FakeClock
from prometheus_client import CollectorRegistry

from tests import fronts

pytestmark = fronts.both

DEADLINE_S = 60
# Requests of alice that are in work at once beside others.
MOST = WORK_BYTES // (REQUEST_COST + len(b"alice"))


class ByName:
    """Trusts the names that callers give."""

    async def admit(self, method: str, context: Any, role: Role | None = None) -> None:
        serve_for(Principal(dict(context.invocation_metadata())["name"]))

    def ended(self) -> DueTimeError | None:
        return None

    def left(self) -> None:
        pass


class Held:
    """A server that holds alice's requests until they are released, and answers others immediately."""

    channel: grpc.aio.Channel

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.in_work = 0
        self.let_go = asyncio.Event()
        parts = BorderParts(gatekeeper=ByName(), turns=RequestTurns(FakeClock(), self.registry))
        self.server = Server([], 1_000, parts=parts)
        handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            "Put": grpc.unary_unary_rpc_method_handler(self.put)
        }
        self.server.grpc.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("T", handlers)])

    async def put(self, request: bytes, _: object) -> bytes:
        if request == b"alice":
            self.in_work += 1
            await self.let_go.wait()
        return request

    async def call(self, name: str) -> bytes:
        put: Any = self.channel.unary_unary("/T/Put")
        answer: bytes = await put(name.encode(), metadata=(("name", name),), timeout=DEADLINE_S)
        return answer

    async def waiting(self, count: int) -> None:
        """Waits until `count` requests wait for their turn."""
        while self.registry.get_sample_value("duetime_turns_waiting") != count:
            await turn()


@pytest.fixture
async def held() -> AsyncIterator[Held]:
    one = Held()
    await one.server.start("127.0.0.1", 0, front=fronts.current())
    one.channel = make_channel(f"127.0.0.1:{one.server.port}")
    yield one
    await one.channel.close()
    await one.server.stop(0)


async def test_single_calls_of_a_flooder_delay_no_other(held: Held) -> None:
    assert await held.call("bob") == b"bob"
    flood = [asyncio.ensure_future(held.call("alice")) for _ in range(100)]
    async with asyncio.timeout(DEADLINE_S):
        await held.waiting(100 - MOST)
        assert held.in_work == MOST
        # All of alice's calls are held.
        assert await held.call("bob") == b"bob"
        assert held.in_work == MOST
        held.let_go.set()
        assert await asyncio.gather(*flood) == [b"alice"] * 100
        await held.waiting(0)
