"""A real store on a fake clock, and a gRPC proxy before it that loses, delays and falsifies on demand."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from duetime.v1 import store_pb2, store_pb2_grpc
from duetime_core.metadata import Database
from duetime_core.rpc.serving import Server, make_channel
from duetime_core.testing import FakeClock
from duetime_format import record
from duetime_format.properties import decode_properties
from duetime_scheduler.metrics import SchedulerMetrics
from duetime_store.node import StoreNode
from duetime_store.settings import StoreSettings
from prometheus_client import CollectorRegistry

from tests.store.conftest import MIB, sent

Forward = Callable[[Any], Awaitable[Any]]
# Replaces the forwarding of one call.
Meddling = Callable[[Any, Forward, Any], Awaitable[Any]]
WAIT_S = 60
# A call or answer is in flight for less time than this many sequential calls take.
QUIET_CALLS = 4


def failing(code: grpc.StatusCode, *, after: bool = False) -> Meddling:
    """Fails a call, before or after the store has carried it out."""

    async def meddle(request: Any, forward: Forward, context: Any) -> Any:
        if after:
            await forward(request)
        await context.abort(code, "meddled with")

    return meddle


class Activity:
    """How many calls and transactions began or ended so far, and how many transactions run."""

    def __init__(self) -> None:
        self.changes = 0
        self.transactions = 0

    def note_transactions(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Those of every database."""
        submit = Database._submit

        def ended(_: object) -> None:
            self.changes += 1
            self.transactions -= 1

        def noted(database: Database, work: Any) -> Any:
            future, attempt = submit(database, work)
            self.changes += 1
            self.transactions += 1
            future.add_done_callback(ended)
            return future, attempt

        monkeypatch.setattr(Database, "_submit", noted)


class Proxy(store_pb2_grpc.StoreServicer):
    """Forwards to the store, except where a test has put a meddling into the queue of the call."""

    def __init__(self, store: store_pb2_grpc.StoreStub) -> None:
        self._store = store
        self.meddlings: dict[str, deque[Meddling]] = {"Restore": deque(), "PullDue": deque(), "ListLanes": deque()}
        self.puts: list[store_pb2.RestoreRequest] = []
        # Whether the store may keep restored records; else they travel.
        self.may_keep = True
        self.puts_in_flight = 0
        self.puts_in_flight_max = 0
        self.pulls_in_flight = 0
        self.activity = Activity()

    async def _pass(self, name: str, request: Any, context: Any) -> Any:
        call = getattr(self._store, name)

        async def forward(request: Any) -> Any:
            self.activity.changes += 1
            return await call(request, timeout=WAIT_S)

        waiting = self.meddlings.get(name)
        self.activity.changes += 1
        try:
            if waiting:
                return await waiting.popleft()(request, forward, context)
            return await forward(request)
        finally:
            self.activity.changes += 1

    async def Restore(self, request: store_pb2.RestoreRequest, context: Any) -> Any:
        self.puts.append(request)
        self.puts_in_flight += 1
        self.puts_in_flight_max = max(self.puts_in_flight_max, self.puts_in_flight)
        try:
            return await self._pass("Restore", request, context)
        finally:
            self.puts_in_flight -= 1

    async def PullDue(self, request: store_pb2.PullDueRequest, context: Any) -> Any:
        self.pulls_in_flight += 1
        request.may_keep &= self.may_keep
        try:
            return await self._pass("PullDue", request, context)
        finally:
            self.pulls_in_flight -= 1

    async def StandIn(self, request: store_pb2.StandInRequest, context: Any) -> Any:
        return await self._pass("StandIn", request, context)

    async def ListLanes(self, request: Any, context: Any) -> Any:
        return await self._pass("ListLanes", request, context)

    async def Describe(self, request: Any, context: Any) -> Any:
        return await self._pass("Describe", request, context)

    async def ListQueues(self, request: Any, context: Any) -> Any:
        return await self._pass("ListQueues", request, context)


class Bench:
    """The store, the proxy before it, and the clock of both."""

    def __init__(self, directory: Path, levels: str = "1s 5s") -> None:
        self.clock = FakeClock()
        self.registry = CollectorRegistry()
        self.metrics = SchedulerMetrics(self.registry)
        self._directory = directory
        self._levels = levels
        self._store_port = 0

    async def start(self) -> None:
        await self.start_store()
        self._channels = [make_channel(f"127.0.0.1:{self.node.port}")]
        self.direct = store_pb2_grpc.StoreStub(self._channels[0])
        self.proxy = Proxy(self.direct)
        self._server = Server(["duetime.v1.Store"], 1_000)
        store_pb2_grpc.add_StoreServicer_to_server(self.proxy, self._server.grpc)
        await self._server.start("127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.port}"
        self._channels.append(make_channel(self.address))
        self.stub = store_pb2_grpc.StoreStub(self._channels[1])

    async def start_store(self) -> None:
        settings = StoreSettings.model_validate(
            {
                "data_dir": self._directory,
                "delay_levels": self._levels,
                "segment_bytes": MIB,
                "queue_file_units": 10_000,
                "port": self._store_port,
                "drain_ms": 0,
            }
        )
        self.node = StoreNode(settings, self.clock)
        await self.node.start()
        self._store_port = self.node.port

    async def stop(self) -> None:
        await self._server.stop(0)
        for channel in self._channels:
            await channel.close()
        await self.node.stop()

    @property
    def store(self) -> Any:
        return self.node.store

    @property
    def activity(self) -> Activity:
        return self.proxy.activity

    def lane(self, level: int = 1) -> Any:
        return self.store.lanes[level]

    async def send(self, *message_ids: str, level: int = 1, **options: Any) -> None:
        """Stores delayed messages."""
        await self.put(*(sent(message_id, level=level, **options) for message_id in message_ids))

    async def put(self, *records: bytes) -> None:
        answer = await self.direct.Put(store_pb2.PutRequest(records=b"".join(records)), timeout=WAIT_S)
        assert not answer.statuses, answer

    def stored(self, topic: str = "orders") -> list[record.Record]:
        """Contents of queue 0 of a topic, as a reader finds them."""
        records: list[record.Record] = []
        for queue in self.store.queues.all():
            if (queue.topic, queue.queue) == (topic, 0):
                while len(units := queue.read(queue.min_offset + len(records), 1_000)):
                    found = units[["position", "size"]].tolist()
                    records += [record.decode(self.store.read_record(*unit)) for unit in found]
        return records

    def ids(self, topic: str = "orders") -> list[str]:
        return [decode_properties(found.properties)["UNIQ_KEY"] for found in self.stored(topic)]

    def value(self, name: str, **labels: str) -> float:
        """A metric's value; 0 when nothing was counted."""
        return self.registry.get_sample_value(name, labels) or 0.0

    async def until(self, true: Callable[[], object], *, skip_pauses: bool = True) -> None:
        """Waits until something holds; pauses on the clock, if somebody makes them, are skipped one by one."""
        async with asyncio.timeout(WAIT_S):
            while not true():
                await self.settled()
                ahead_ms = self.clock.next_timer_ms()
                if not true() and skip_pauses and ahead_ms is not None and ahead_ms <= 2_000:
                    self.clock.move(ahead_ms)

    async def settled(self) -> None:
        """Returns once all wait for the clock: no transaction or flush runs, and no call begins or ends."""
        async with asyncio.timeout(WAIT_S):
            quiet = 0
            while quiet < QUIET_CALLS:
                changes = self.activity.changes
                await self.direct.Describe(store_pb2.DescribeRequest(), timeout=WAIT_S, wait_for_ready=True)
                is_quiet = self.activity.changes == changes and not self.activity.transactions and self.store.is_idle
                quiet = quiet + 1 if is_quiet else 0


@pytest.fixture(params=["kept", pytest.param("travelling", marks=pytest.mark.proof)])
async def bench(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Bench]:
    """Records that travel to the scheduler and back are in the gate in test_lane.py, where the two ways differ."""
    bench = Bench(tmp_path / "store")
    await bench.start()
    bench.activity.note_transactions(monkeypatch)
    bench.proxy.may_keep = request.param == "kept"
    yield bench
    await bench.stop()
