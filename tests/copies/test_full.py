"""Copies whose disks are full: leadership moves to one with room, and a full follower waits."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from duetime.v1 import gateway_pb2, store_pb2, store_pb2_grpc
from duetime_core.clock import SystemClock, turn
from duetime_core.errors import StartupError
from duetime_core.rpc.serving import make_channel
from duetime_store.node import StoreNode
from duetime_store.settings import StoreSettings

from tests.copies.processes import DEADLINE_S, MIB, free_ports
from tests.faulty_disk import GIB, FaultyDisk
from tests.store.conftest import sent
from tests.twins import native

native("duetime_raft")

pytestmark = pytest.mark.timeout(300)
NUMBERS = (1, 2, 3)


class Nodes:
    """Three store nodes in this process, each on a disk of its own."""

    def __init__(self, root: Path, **settings: Any) -> None:
        self.settings = settings
        ports = free_ports(6)
        self.root, self.ports = root, dict(zip(NUMBERS, ports[:3], strict=True))
        self.copies = ",".join(f"{number}=127.0.0.1:{port}" for number, port in zip(NUMBERS, ports[3:], strict=True))
        self.disks = {number: FaultyDisk() for number in NUMBERS}
        self.nodes: dict[int, StoreNode] = {}
        self.sent_count = 0

    async def __aenter__(self) -> "Nodes":
        for number in NUMBERS:
            await self.start(number)
        self.channel = make_channel("|".join(f"127.0.0.1:{port}" for port in self.ports.values()))
        self.stub = store_pb2_grpc.StoreStub(self.channel)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.channel.close()
        for number in list(self.nodes):
            await self.stop(number)

    async def start(self, number: int) -> None:
        settings = StoreSettings(
            data_dir=self.root / str(number),
            port=self.ports[number],
            copies=self.copies,
            copy_number=number,
            copies_group=77,
            metrics_port=-1,
            segment_bytes=MIB,
            reserve_bytes=0,
            disk_used_max=0.9,
            drain_ms=0,
            **self.settings,
        )
        node = self.nodes[number] = StoreNode(settings, SystemClock(), self.disks[number])
        await node.start()

    async def stop(self, number: int) -> None:
        await self.nodes.pop(number).stop()

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not holds():  # noqa: ASYNC110  nodes have no event for it
                await asyncio.sleep(0.02)

    async def leader(self) -> int:
        await self.until(lambda: bool(self._serving))
        return self._serving[0]

    @property
    def _serving(self) -> list[int]:
        return [number for number, node in self.nodes.items() if node._serving and node._serving.server.health.ready]

    async def put(self, *, level: int = 0) -> None:
        """Sends a message, until it is answered."""
        self.sent_count += 1
        request = store_pb2.PutRequest(records=sent(f"m{self.sent_count}", body=bytes(10_000), level=level))
        await self._answer(self.stub.Put, request)

    async def pending(self, level: int) -> int:
        """Messages that wait in a lane."""
        lanes = (await self._answer(self.stub.ListLanes, gateway_pb2.ListLanesRequest())).lanes
        return sum(lane.pending_count for lane in lanes if lane.level == level)

    async def _answer(self, call: Any, request: Any) -> Any:
        async with asyncio.timeout(DEADLINE_S):
            while True:
                try:
                    return await call(request, timeout=DEADLINE_S, wait_for_ready=True)
                except grpc.aio.AioRpcError:
                    await asyncio.sleep(0.02)

    def flushed(self, number: int) -> int:
        """Index of the last entry on a copy's disk."""
        return self.membership(number).member.status["commit"]

    def base(self, number: int) -> int:
        """Index of the entry before the first one that a copy keeps; -1: it is not open."""
        membership = self.nodes[number]._membership if number in self.nodes else None
        member = membership._phase.member if membership is not None else None
        return member._copy.entries[0].index if member is not None else -1

    def membership(self, number: int):
        membership = self.nodes[number]._membership
        assert membership is not None
        return membership


async def test_leader_with_a_full_disk_hands_over_and_follows(tmp_path: Path) -> None:
    async with Nodes(tmp_path) as nodes:
        for _ in range(5):
            await nodes.put()
        old = await nodes.leader()
        nodes.disks[old].leave(0)
        with pytest.raises(StartupError, match="another copy of the shard leads now"):
            async with asyncio.timeout(DEADLINE_S):
                await asyncio.gather(nodes.nodes[old].failed(), nodes.put())
        await nodes.stop(old)
        await nodes.put()
        assert await nodes.leader() != old
        # The full copy follows, and acknowledges nothing that does not fit.
        await nodes.start(old)
        nodes.disks[old].leave(0)
        room = nodes.membership(old)._room
        await nodes.until(lambda: room.is_full)
        for _ in range(20):
            await nodes.put()
        leader = await nodes.leader()
        assert leader != old
        assert nodes.flushed(old) < nodes.flushed(leader)
        nodes.disks[old].leave(GIB // 2)
        await nodes.until(lambda: nodes.flushed(old) == nodes.flushed(leader))
        assert not nodes.nodes[leader].store.gate.full


async def test_copy_that_stops_while_it_opens_the_store_never_serves(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path)
    opening: asyncio.Queue[int] = asyncio.Queue()
    is_stopping = asyncio.Event()

    def delayed(number: int, begin: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
        async def begin_later(*parts: object) -> None:
            opening.put_nowait(number)
            await is_stopping.wait()
            await begin(*parts)

        return begin_later

    try:
        for number in NUMBERS:
            await nodes.start(number)
            node = nodes.nodes[number]
            node._open = delayed(number, node._open)  # type: ignore[method-assign]
        async with asyncio.timeout(DEADLINE_S):
            leader = await opening.get()
        node = nodes.nodes.pop(leader)
        stop = asyncio.ensure_future(node.stop())
        await turn()
        is_stopping.set()
        await stop
        assert node._serving is None
    finally:
        is_stopping.set()
        for number in list(nodes.nodes):
            await nodes.stop(number)


async def test_shard_with_full_disks_rejects_sends_and_keeps_its_leader(tmp_path: Path) -> None:
    async with Nodes(tmp_path) as nodes:
        await nodes.put()
        leader = await nodes.leader()
        member = nodes.membership(leader).member
        for number, disk in nodes.disks.items():
            if number != leader:
                disk.leave(MIB // 2)
        await nodes.until(lambda: member._full == {*NUMBERS} - {leader})
        nodes.disks[leader].leave(MIB // 2)
        gate = nodes.nodes[leader].store.gate
        await nodes.until(lambda: bool(gate.full) and member.room.is_full)
        with pytest.raises(grpc.aio.AioRpcError, match="% used"):
            await nodes.stub.Put(store_pb2.PutRequest(records=sent("refused")), timeout=DEADLINE_S)
        assert member.leads
        for disk in nodes.disks.values():
            disk.leave(GIB // 2)
        await nodes.put()
        assert await nodes.leader() == leader
