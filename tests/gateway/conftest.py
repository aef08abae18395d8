"""A gateway over gRPC with real stores, and with taps before them that make single calls fail."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import grpc
import pytest
from duetime.v1 import consumer_pb2, gateway_pb2, gateway_pb2_grpc, message_pb2, pending_pb2
from duetime_core.bell import Bell
from duetime_core.clock import Clock, SystemClock
from duetime_core.errors import DueTimeError
from duetime_core.metadata import upgrade
from duetime_core.rpc.calls import fault_of
from duetime_core.rpc.serving import make_channel
from duetime_format import record
from duetime_gateway.node import GatewayNode
from duetime_gateway.settings import GatewaySettings
from duetime_retry.node import RetryNode
from duetime_retry.settings import RetrySettings
from duetime_store.files.disk import Disk
from duetime_store.node import StoreNode
from duetime_store.settings import StoreSettings

from tests.tap import WAIT_S, Tap

MIB = 1024 * 1024
# The time at stores with a `clock`.
NOW_MS = 1_800_000_000_000


@cache
def new_database() -> bytes:
    """The file of a metadata database without rows: a copy takes a fraction of the time of an upgrade."""
    with TemporaryDirectory() as root:
        upgrade(f"sqlite:///{root}/meta.db")
        return Path(root, "meta.db").read_bytes()


def make_database(file: Path) -> None:
    if not file.exists():
        file.write_bytes(new_database())


class Gateway:
    """A gateway and a client of it."""

    def __init__(self, root: Path, stores: dict[int, int], **settings: Any) -> None:
        addresses = ",".join(f"{shard}=127.0.0.1:{port}" for shard, port in stores.items())
        values = {"stores": addresses, "database_url": f"sqlite:///{root / 'meta.db'}", "drain_ms": 0}
        self.root = root
        self.settings = GatewaySettings(**{**values, "metrics_port": -1, "store_timeout_ms": 10_000, **settings})

    async def __aenter__(self) -> "Gateway":
        file = self.root / "meta.db"
        if self.settings.database_url != f"sqlite:///{file}":
            await asyncio.to_thread(upgrade, self.settings.database_url)
        else:
            make_database(file)
        self.node = GatewayNode(self.settings, SystemClock())
        try:
            await self.node.start()
        except BaseException:
            await self.node.stop()
            raise
        self.channel = make_channel(f"127.0.0.1:{self.node.port}")
        self.stub = gateway_pb2_grpc.GatewayStub(self.channel)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.channel.close()
        await self.node.stop()

    async def send(self, *messages: message_pb2.Message, **options: Any) -> list[message_pb2.SendResult]:
        return list((await self.stub.Send(request(*messages, **options), timeout=WAIT_S)).results)

    async def pull(self, topic: str = "orders", queue: int = 0, **options: Any) -> gateway_pb2.PullResponse:
        return await self.stub.Pull(gateway_pb2.PullRequest(topic=topic, queue=queue, **options), timeout=WAIT_S)

    def metric(self, name: str, **labels: str) -> float:
        return self.node.registry.get_sample_value(name, labels) or 0.0


def message(body: bytes = b"body", **fields: Any) -> message_pb2.Message:
    return message_pb2.Message(**{"topic": "orders", "body": body, **fields})


def request(*messages: message_pb2.Message, **options: Any) -> gateway_pb2.SendRequest:
    return gateway_pb2.SendRequest(messages=messages, **options)


async def until(gateway: Gateway, holds: Callable[[], bool]) -> None:
    """Returns once `holds`; until then the gateway answers calls, and does everything else beside them."""
    async with asyncio.timeout(WAIT_S):
        while not holds():
            await gateway.stub.ListGroups(consumer_pb2.ListGroupsRequest())


async def waiting(gateway: Gateway) -> list[pending_pb2.PendingMessage]:
    """The pending messages, in the order of their due times."""
    request, found = pending_pb2.ListPendingRequest(max_count=1_000), []
    while True:
        page = await gateway.stub.ListPending(request, timeout=WAIT_S)
        found += page.messages
        if not page.next_page_token:
            return found
        request.page_token = page.next_page_token


async def error_of(call: Any) -> grpc.aio.AioRpcError:
    """The status with which a call ends that must not succeed."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


@asynccontextmanager
async def real_store(
    root: Path, shard: int = 0, disk: Disk | None = None, clock: Clock | None = None, **settings: Any
) -> AsyncIterator[StoreNode]:
    values = {"data_dir": root / f"store-{shard}", "shard": shard, "segment_bytes": 8 * MIB, "metrics_port": -1}
    node = StoreNode(StoreSettings(**{**values, "drain_ms": 0, **settings}), clock or SystemClock(), disk)
    try:
        await node.start()
        yield node
    finally:
        await node.stop()


class WallClock(SystemClock):
    """A wall clock that moves only by `move`; lengths are measured as on the machine."""

    def __init__(self, now_ms: int) -> None:
        self.wall_ms = now_ms
        self.bells: set[_WallBell] = set()

    def now_ms(self) -> int:
        return self.wall_ms

    def ms_until(self, at_ms: int) -> float:
        return at_ms - self.wall_ms

    def bell(self, callback: Callable[[], None]) -> Bell:
        return _WallBell(self, callback)

    def move(self, by_ms: int) -> None:
        """Moves the wall clock; everything that waits for a moment looks at it again."""
        self.wall_ms += by_ms
        for bell in list(self.bells):
            bell.callback()


class _WallBell(Bell):
    """Rings whenever its clock is moved."""

    def __init__(self, clock: WallClock, callback: Callable[[], None]) -> None:
        self.clock, self.callback = clock, callback

    def set(self, delay_ms: float) -> None:
        self.clock.bells.add(self)
        if delay_ms <= 0:
            asyncio.get_running_loop().call_soon(self.callback)

    def cancel(self) -> None:
        self.clock.bells.discard(self)

    def close(self) -> None:
        self.cancel()


class TappedStore(Tap):
    """A real store and the tap before it."""

    def __init__(self, node: StoreNode, shard: int) -> None:
        super().__init__("duetime.v1.Store", f"127.0.0.1:{node.port}")
        self.store, self.shard = node, shard

    def refuse(self, error: DueTimeError, *methods: str) -> None:
        """The store does not get these calls, which end with the error; that of a put is the fault of its answer."""

        def fail(_: object) -> None:
            raise error

        for method in methods:
            if method == "PutStream":
                self.before[method] = lambda put: put.ClearField("records")
                self.after[method] = lambda _, answer: answer.fault.CopyFrom(fault_of(error))
            else:
                self.before[method] = fail

    def accept(self) -> None:
        """Ends the effect of `refuse`."""
        self.before.clear()
        self.after.clear()

    @property
    def records(self) -> list[record.Record]:
        """Those of all puts, as the gateway made them."""
        return [one for put in self.requests["PutStream"] for one in records_of(put.records)]


def records_of(data: bytes) -> list[record.Record]:
    found, at = [], 0
    while at < len(data):
        found.append(record.decode(data, at))
        at += found[-1].size
    return found


@asynccontextmanager
async def tapped_store(root: Path, shard: int = 0, **options: Any) -> AsyncIterator[TappedStore]:
    """`options`: as of `real_store`."""
    async with real_store(root, shard, **options) as node, TappedStore(node, shard) as tap:
        yield tap


@asynccontextmanager
async def tapped_retry(root: Path, stores: dict[int, int]) -> AsyncIterator[Tap]:
    """A retry service for a gateway of the same directory, and the tap before it."""
    make_database(root / "meta.db")
    addresses = ",".join(f"{shard}=127.0.0.1:{port}" for shard, port in stores.items())
    values = {"stores": addresses, "database_url": f"sqlite:///{root / 'meta.db'}", "drain_ms": 0}
    node = RetryNode(RetrySettings(**values, metrics_port=-1), SystemClock())
    try:
        await node.start()
        async with Tap("duetime.v1.Retry", f"127.0.0.1:{node.port}") as tap:
            yield tap
    finally:
        await node.stop()


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    """With one real store."""
    async with real_store(tmp_path) as store, Gateway(tmp_path, {0: store.port}) as gateway:
        yield gateway


@pytest.fixture
async def two_shards(tmp_path: Path) -> AsyncIterator[Gateway]:
    """With two real stores."""
    async with (
        real_store(tmp_path, 0) as first,
        real_store(tmp_path, 1) as second,
        Gateway(tmp_path, {0: first.port, 1: second.port}) as gateway,
    ):
        yield gateway


@pytest.fixture
def clock() -> WallClock:
    """The clock of `tap` and `taps`."""
    return WallClock(NOW_MS)


@pytest.fixture
async def tap(tmp_path: Path, clock: WallClock) -> AsyncIterator[TappedStore]:
    """One store, of shard 0."""
    async with tapped_store(tmp_path, clock=clock) as tap:
        yield tap


@pytest.fixture
async def taps(tmp_path: Path, clock: WallClock) -> AsyncIterator[list[TappedStore]]:
    """Two stores, by shard."""
    async with tapped_store(tmp_path, 0, clock=clock) as first, tapped_store(tmp_path, 1, clock=clock) as second:
        yield [first, second]


@pytest.fixture
async def tapped(tmp_path: Path, taps: list[TappedStore]) -> AsyncIterator[Gateway]:
    """With the two of `taps`."""
    async with Gateway(tmp_path, {tap.shard: tap.port for tap in taps}) as gateway:
        yield gateway
