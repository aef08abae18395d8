"""The cluster on this machine, started, kept running and stopped in order: one process, or four.

schema ┐
       ├─▶ gateway, scheduler, retry ─▶ serving ─▶ stop gateway ─▶ scheduler ─▶ retry ─▶ store
store  ┘                                 │    ▲
                                         └────┘ a process that ends is restarted on its port

One process keeps this order by itself (duetime_core.together).
"""

import asyncio
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from duetime.cli.child import Child, Node, exit_text, run
from duetime.cli.preflight import HOST, CannotStart, Ports
from duetime.cli.rotation import CHECK_INTERVAL_S, rotate

BACKOFF_S_MIN = 0.2
BACKOFF_S_MAX = 5.0
# After running this long, a process is healthy: its next restart is quick again.
STEADY_S = 30.0
# Longer than a process takes to drain its calls; the store also flushes and writes its checkpoint.
STOP_TIMEOUT_S = 10.0
STORE_STOP_TIMEOUT_S = 30.0
SHARD = 0
STORE = "store"


class Cluster:
    """One shard and the services around it. Port 0 of the gateway means any free port."""

    def __init__(
        self, data: Path, port: int, *, host: str = HOST, processes: bool = False, inner_ports: bool = False
    ) -> None:
        """`host`: where the gateway listens; the others listen on loopback. `processes`: one for each service.
        `inner_ports`: whether those after the gateway listen in any case."""
        self.data = data
        self._host = host
        database_url = f"sqlite:///{data / 'metadata.db'}"
        self._upgrade = ["-m", "duetime_core.metadata", "upgrade", "--database-url", database_url]
        self._ports = Ports()
        logs = data / "logs"
        self._metadata_log = logs / "metadata.log"
        self._nodes = self._make_nodes(port, database_url, one_page=not processes, listen=processes or inner_ports)
        self.gateway = self._nodes[0]
        if processes:
            self._children = [Child(one.name, ["-m", f"duetime_{one.name}"], [one], logs) for one in self._nodes]
        else:
            together = ["-m", "duetime_core.together", *(["--inner-ports"] if inner_ports else [])]
            self._children = [Child("cluster", together, self._nodes, logs)]

    def _make_nodes(self, port: int, database_url: str, *, one_page: bool, listen: bool) -> list[Node]:
        """In the order in which they are stopped: callers before those that they call, so that no last call fails."""
        take = self._ports.take
        page = take()

        def node(name: str, settings: Mapping[str, object]) -> Node:
            return Node(name, take(), page if one_page else take(), settings, listens=listen)

        store = node(STORE, {"data_dir": self.data / f"store-{SHARD}", "shard": SHARD})
        above = {"database_url": database_url, "stores": f"{SHARD}={store.address}"}
        retry, scheduler = node("retry", above), node("scheduler", above)
        settings = above | {"retry_address": retry.address}
        gateway = Node("gateway", take(port, self._host), page, settings, host=self._host)
        return [gateway, scheduler, retry, store]

    async def start(self) -> None:
        """Returns when all processes serve.

        Raises:
            CannotStart: one of them does not; `stop` stops the others.
        """
        try:
            if len(self._children) > 1:
                *above, store = self._children
                async with asyncio.TaskGroup() as starts:
                    starts.create_task(run(self._upgrade, self._metadata_log))
                    starts.create_task(store.start())
            else:
                above = self._children
            async with asyncio.TaskGroup() as starts:
                for child in above:
                    starts.create_task(child.start())
        except ExceptionGroup as group:
            # One is enough: other failures most likely follow from it.
            raise group.exceptions[0] from None

    async def keep_running(self) -> None:
        """Restarts processes that end, and bounds their log files, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for child in self._children:
                tasks.create_task(_restart_forever(child))
            tasks.create_task(self._rotate())

    async def _rotate(self) -> None:
        while True:
            for path in (*(child.log_path for child in self._children), self._metadata_log):
                await asyncio.to_thread(rotate, path)
            await asyncio.sleep(CHECK_INTERVAL_S)

    async def stop(self) -> None:
        for child in self._children:
            await child.stop(sum(STORE_STOP_TIMEOUT_S if one.name == STORE else STOP_TIMEOUT_S for one in child.nodes))
        self._ports.close()

    def describe(self) -> dict[str, Any]:
        """Addresses, ports and pids, for machines. A service without an address is reached within its process only."""
        return {
            "serving": "cluster",
            "address": self.gateway.address,
            "port": self.gateway.port,
            "data": str(self.data),
            "pid": os.getpid(),
            "processes": {
                node.name: {
                    "address": node.address if node.listens else None,
                    "port": node.port if node.listens else None,
                    "metrics_port": node.metrics_port,
                    "pid": child.pid,
                    "log": str(child.log_path),
                }
                for child in self._children
                for node in child.nodes
            },
        }


async def _restart_forever(child: Child) -> None:
    loop = asyncio.get_running_loop()
    pause_s = BACKOFF_S_MIN
    while True:
        began = loop.time()
        code = await child.ended()
        if loop.time() - began >= STEADY_S:
            pause_s = BACKOFF_S_MIN
        text = f"{child.name} (pid {child.pid}) ended {exit_text(code)}; restarting it in {pause_s:g} s"
        print(f"duetime: {text}", file=sys.stderr, flush=True)
        await asyncio.sleep(pause_s)
        pause_s = min(BACKOFF_S_MAX, pause_s * 2)
        try:
            await child.start()
        except CannotStart as error:
            print(f"duetime: {error}".replace("duetime: duetime ", "duetime ", 1), file=sys.stderr, flush=True)
