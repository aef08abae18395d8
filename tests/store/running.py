"""A store node over gRPC on a fake clock, and a client of it."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from duetime.v1 import gateway_pb2, store_pb2, store_pb2_grpc
from duetime_core.rpc.serving import make_channel
from duetime_core.testing import FakeClock
from duetime_store.files.disk import Disk
from duetime_store.node import StoreNode
from duetime_store.settings import StoreSettings
from duetime_store.writing.committing import Committer

MIB = 1024 * 1024


class Running:
    """A node and a client of it. `committer`: set it before the node starts."""

    committer: Committer | None = None

    def __init__(self, root: Path, disk: Disk | None = None, **settings: Any) -> None:
        self.clock = FakeClock()
        self.disk = disk
        values = {"data_dir": root, "metrics_port": -1, "delay_levels": "1s 1h", "segment_bytes": MIB, "drain_ms": 0}
        self.settings = StoreSettings(**{**values, **settings})

    async def __aenter__(self) -> "Running":
        self.node = StoreNode(self.settings, self.clock, self.disk, self.committer)
        await self.node.start()
        self.channel = make_channel(f"127.0.0.1:{self.node.port}")
        self.stub = store_pb2_grpc.StoreStub(self.channel)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.channel.close()
        await self.node.stop()

    async def put(self, *records: bytes) -> store_pb2.PutResponse:
        return await self.stub.Put(store_pb2.PutRequest(records=b"".join(records)), timeout=60)

    async def put_entries(self, *records: bytes, lane: int, first_entry: int) -> store_pb2.RestoreResponse:
        request = store_pb2.RestoreRequest(records=b"".join(records), lane=lane, first_entry=first_entry)
        return await self.stub.Restore(request, timeout=60)

    async def put_settling(self, *records: bytes, settles: Sequence[store_pb2.Settle]) -> store_pb2.SettleResponse:
        request = store_pb2.SettleRequest(records=b"".join(records), settles=settles)
        return await self.stub.Settle(request, timeout=60)

    async def pull(self, offset: int = 0, **options: Any) -> gateway_pb2.PullResponse:
        request = gateway_pb2.PullRequest(**{"topic": "orders", "offset": offset, **options})
        return await self.stub.Pull(request, timeout=60)

    async def pull_due(self, lane: int = 1, **options: Any) -> store_pb2.PullDueResponse:
        values = {"lane": lane, "max_count": 100, "max_bytes": MIB, **options}
        return await self.stub.PullDue(store_pb2.PullDueRequest(**values), timeout=60)

    async def asked(self, lane: int) -> None:
        """Returns once a long poll waits on the lane."""
        async with asyncio.timeout(60):
            while not self.node.store.lanes[lane].attendance.asking_count:
                await self.stub.Describe(store_pb2.DescribeRequest())

    async def waiting(self, topic: str, queue: int = 0) -> None:
        """Returns once a long poll waits on the queue."""
        found = self.node.store.queues.find(topic, queue)
        async with asyncio.timeout(60):
            while not found.waiters:
                await self.stub.Describe(store_pb2.DescribeRequest())
