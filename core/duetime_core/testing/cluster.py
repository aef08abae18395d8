"""The four services in one process, on free ports and a fake clock.

Services are found by the entry points of the group "duetime.nodes", so that this package imports none of them.
"""

import asyncio
import socket
import tempfile
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from duetime.v1 import gateway_pb2, store_pb2_grpc
from duetime_format.lengths import Length, whole_ms
from duetime_format.levels import DEFAULT_DELAY_LEVELS

from duetime_core.clock import Clock
from duetime_core.metadata import upgrade
from duetime_core.node.life import Node
from duetime_core.node.settings import credentials_of_commands
from duetime_core.rpc.serving import make_channel
from duetime_core.testing.clock import FakeClock
from duetime_core.testing.hush import hush, speak
from duetime_core.together import node_class
from duetime_core.within.places import places

# Real time for services to respond before one of their pauses is skipped, and before a test fails.
NUDGE_S = 0.05
# Time for running work on a slow machine before a service is assumed to pause on the fake clock.
PATIENCE_S = 0.5
GIVE_UP_S = 60.0


class Cluster:
    """Starts and stops with `async with`. `address` is the gateway's."""

    def __init__(
        self,
        directory: Path | None = None,
        *,
        shards: int = 1,
        schedulers: int = 1,
        delay_levels: str = DEFAULT_DELAY_LEVELS,
        clock: Clock | None = None,
        store_settings: dict[str, Any] | None = None,
        gateway_settings: dict[str, Any] | None = None,
        scheduler_settings: dict[str, Any] | None = None,
        within: bool = False,
        certs: Path | None = None,
    ) -> None:
        """`within`: nodes call each other within the process, without sockets, as in `duetime up`. `certs`: the output
        of `duetime certs init`; each node gets the certificate of its role."""
        self._certs = certs
        self._temporary = None if directory else tempfile.TemporaryDirectory(prefix="duetime-")
        self._directory = directory or Path(self._temporary.name if self._temporary else ".")
        self._common = {"port": 0, "metrics_port": -1, "delay_levels": delay_levels, "drain_ms": 200}
        self._shards = shards
        self._schedulers = schedulers
        self._settings = {
            # A throttled export would never end on a clock that does not move.
            "store": {"segment_bytes": 64 * 1024 * 1024, "export_bytes_per_s": 0, **(store_settings or {})},
            "gateway": gateway_settings or {},
            "scheduler": scheduler_settings or {},
        }
        self.clock = clock or FakeClock()
        self.stores: list[Any] = []
        self.schedulers: list[Any] = []
        self.gateway: Any = None
        self.retry: Any = None
        self._started: list[Node] = []
        self._failures: dict[Node, asyncio.Task[None]] = {}
        self._channels: list[Any] = []
        self._within = within
        # Resources of the cluster's lifetime: places within the process, and the sockets that reserve their ports.
        self._kept = ExitStack()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.gateway.port}"

    @property
    def store_addresses(self) -> str:
        """The value for the setting `stores`."""
        return ",".join(f"{shard}=127.0.0.1:{node.port}" for shard, node in enumerate(self.stores))

    @property
    def database_url(self) -> str:
        return f"sqlite:///{self._directory / 'metadata.db'}"

    async def __aenter__(self) -> Self:
        hush()
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def _start(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        await asyncio.to_thread(upgrade, self.database_url)
        ports = self._keep_ports(self._shards + 1) if self._within else [0] * (self._shards + 1)
        for shard in range(self._shards):
            await self.start_store(shard, ports[shard])
        shared = {"database_url": self.database_url, "stores": self.store_addresses}
        await self.start_retry(ports[-1])
        retry_address = f"127.0.0.1:{self.retry.port}"
        self.gateway = await self._start_node(
            "gateway", {**shared, "retry_address": retry_address, **self._settings["gateway"]}
        )
        for number in range(self._schedulers):
            await self.start_scheduler(f"scheduler-{number}")
        await self._lanes_held()

    async def _lanes_held(self) -> None:
        """Waits until every lane has a scheduler."""
        lanes = {
            (shard, level)
            for shard, node in enumerate(self.stores)
            for level in (lane.number for lane in node.store.lanes)
        }
        give_up = asyncio.get_running_loop().time() + GIVE_UP_S
        while self.schedulers and lanes - {lane for node in self.schedulers for lane in node.held}:
            self._raise_failures()
            if asyncio.get_running_loop().time() > give_up:
                raise TimeoutError("schedulers do not take the lanes")
            await asyncio.wait(self._failures.values(), timeout=NUDGE_S / 5, return_when=asyncio.FIRST_COMPLETED)

    def _keep_ports(self, count: int) -> list[int]:
        """Reserves free ports, with their addresses as places within this process, until the cluster stops."""
        ports = []
        for _ in range(count):
            held = self._kept.enter_context(socket.socket())
            held.bind(("127.0.0.1", 0))
            ports.append(int(held.getsockname()[1]))
        self._kept.enter_context(places(f"127.0.0.1:{port}" for port in ports))
        return ports

    async def start_store(self, shard: int, port: int = 0) -> Any:
        """Starts a shard on its directory; a stopped one gets its old port."""
        port = self.stores[shard].port if shard < len(self.stores) else port
        settings = {"data_dir": self._directory / f"store-{shard}", "shard": shard, "port": port}
        # A test's cluster reserves no space for a full disk.
        node = await self._start_node("store", {"reserve_bytes": 0, **self._settings["store"], **settings})
        self.stores[shard : shard + 1] = [node]
        return node

    async def start_retry(self, port: int = 0) -> Any:
        """Starts the retry service; a stopped one gets its old port."""
        port = self.retry.port if self.retry else port
        self.retry = await self._start_node(
            "retry", {"database_url": self.database_url, "stores": self.store_addresses, "port": port}
        )
        return self.retry

    async def start_scheduler(self, member_id: str) -> Any:
        """Starts one more scheduler."""
        shared = {"database_url": self.database_url, "stores": self.store_addresses, "member_id": member_id}
        node = await self._start_node("scheduler", {**shared, **self._settings["scheduler"]})
        self.schedulers.append(node)
        return node

    async def _start_node(self, name: str, values: dict[str, Any]) -> Any:
        make = node_class(name)
        node = make(make.settings_class(**{**self._common, **self._certified(name), **values}), self.clock)
        self._started.append(node)
        await node.start()
        self._failures[node] = asyncio.create_task(node.failed())
        return node

    def _certified(self, name: str) -> dict[str, str]:
        if self._certs is None:
            return {}
        files = {"tls_cert_file": "tls.crt", "tls_key_file": "tls.key", "tls_ca_file": "ca.crt"}
        return {setting: str(self._certs / name / file) for setting, file in files.items()}

    async def stop_node(self, node: Node) -> None:
        """Stops one service."""
        self._started.remove(node)
        await self._end(node)

    async def stop(self) -> None:
        """Stops running services, callers first."""
        for channel in self._channels:
            await channel.close()
        while self._started:
            await self._end(self._started.pop())
        self._kept.close()
        if self._temporary:
            self._temporary.cleanup()
        speak()

    async def _end(self, node: Node) -> None:
        failure = self._failures.pop(node, None)
        if failure is not None:
            failure.cancel()
            await asyncio.gather(failure, return_exceptions=True)
        await self._passing_time(node.stop())

    def _raise_failures(self) -> None:
        """Raises the error of a service whose loop has died, instead of waiting."""
        for failure in self._failures.values():
            if failure.done():
                failure.result()
                raise RuntimeError("a service ended by itself")

    async def _passing_time(self, work: Any) -> None:
        """Awaits `work`, and moves the fake clock when the work waits for it."""
        task = asyncio.ensure_future(work)
        while not (await asyncio.wait({task}, timeout=NUDGE_S))[0]:
            self._nudge(60_000)
        await task

    # --- time -----------------------------------------------------------------------------------------------------

    async def advance(self, by: Length) -> None:
        """Moves the clock, from due time to due time, by `30s`, `1h30m` or a timedelta.

        On return all due messages are restored and durable. Raises TimeoutError if that fails, as with a paused lane.
        """
        end_ms = self.clock.monotonic_ms() + whole_ms(by)
        await self.settle()
        while (left_ms := end_ms - self.clock.monotonic_ms()) > 0:
            due_ms = self.next_due_ms()
            self._fake_clock.move(left_ms if due_ms is None else min(due_ms, left_ms))
            await self.settle()

    async def settle(self) -> None:
        """Waits until no due message is pending."""
        loop = asyncio.get_running_loop()
        give_up = loop.time() + GIVE_UP_S
        seen: list[tuple[int, int, int]] = []
        since = loop.time()
        while overdue := self._overdue():
            self._raise_failures()
            if loop.time() > give_up:
                raise TimeoutError("due messages are not being restored: is a lane paused, or no scheduler running?")
            if overdue != seen:
                seen, since = overdue, loop.time()
            elif loop.time() > since + PATIENCE_S:
                # A service pauses on the fake clock, for instance after an error.
                self._nudge(10_000)
                since = loop.time()
            published = [self.stores[shard].store.next_publish() for shard, *_ in overdue]
            await asyncio.wait(published, timeout=PATIENCE_S)

    def _overdue(self) -> list[tuple[int, int, int]]:
        """(shard, lane, number of pending entries) of each lane with an overdue entry."""
        return [
            (shard, lane.number, lane.pending_count)
            for shard, node in enumerate(self.stores)
            for lane in node.store.lanes
            if lane.pending_count and lane.dues(now_ms := node.store.clock.now_ms())[0] <= now_ms
        ]

    def _nudge(self, by_ms_max: float) -> None:
        if not isinstance(self.clock, FakeClock):
            return  # it moves by itself
        ahead_ms = self._fake_clock.next_timer_ms()
        if ahead_ms is not None and ahead_ms <= by_ms_max:
            self._fake_clock.move(ahead_ms)

    @property
    def _fake_clock(self) -> FakeClock:
        assert isinstance(self.clock, FakeClock), "time of a cluster on the system's clock can't be moved"
        return self.clock

    def next_due_ms(self) -> int | None:
        """Time until the next due time of all lanes; None: nothing is pending."""
        ahead = [
            moment - node.store.clock.now_ms()
            for node in self.stores
            for lane in node.store.lanes
            if (moment := lane.dues(node.store.clock.now_ms())[1])
        ]
        return min(ahead, default=None)

    async def lanes(self, shard: int = 0) -> list[gateway_pb2.Lane]:
        """The lanes of a shard, as reported by its store."""
        channel = make_channel(f"127.0.0.1:{self.stores[shard].port}", credentials_of_commands())
        self._channels.append(channel)
        stub = store_pb2_grpc.StoreStub(channel)  # type: ignore[no-untyped-call]
        answer = await stub.ListLanes(gateway_pb2.ListLanesRequest(), timeout=10, wait_for_ready=True)
        return list(answer.lanes)
