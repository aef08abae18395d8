"""The cluster on this machine: four processes, started, kept running and stopped in order.

schema ┐
       ├─▶ gateway, scheduler, retry ─▶ serving ─▶ stop gateway ─▶ scheduler ─▶ retry ─▶ store
store  ┘                                 │    ▲
                                         └────┘ a process that ends is restarted on its port
"""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from duetime.cli.child import Child, exit_text, run
from duetime.cli.preflight import CannotStart, Ports
from duetime.cli.rotation import CHECK_INTERVAL_S, rotate

BACKOFF_S_MIN = 0.2
BACKOFF_S_MAX = 5.0
# After running this long, a process is healthy: its next restart is quick again.
STEADY_S = 30.0
# Longer than a process takes to drain its calls; the store also flushes and writes its checkpoint.
STOP_TIMEOUT_S = 10.0
STORE_STOP_TIMEOUT_S = 30.0
SHARD = 0


class Cluster:
    """One shard and the services around it. Port 0 of the gateway means any free port."""

    def __init__(self, data: Path, port: int) -> None:
        self.data = data
        database_url = f"sqlite:///{data / 'metadata.db'}"
        self._upgrade = ["-m", "duetime_core.metadata", "upgrade", "--database-url", database_url]
        self._ports = Ports()
        take = self._ports.take
        logs = data / "logs"
        self._metadata_log = logs / "metadata.log"
        self.store = Child(
            "store",
            "duetime_store",
            {"data_dir": data / f"store-{SHARD}", "shard": SHARD},
            take(),
            take(),
            logs,
        )
        above = {"database_url": database_url, "stores": f"{SHARD}={self.store.address}"}
        self.retry = Child("retry", "duetime_retry", above, take(), take(), logs)
        self.scheduler = Child("scheduler", "duetime_scheduler", above, take(), take(), logs)
        settings = above | {"retry_address": self.retry.address}
        self.gateway = Child("gateway", "duetime_gateway", settings, take(port), take(), logs)
        # In the order in which they are stopped: callers before those that they call, so that no last call fails.
        self._children = (self.gateway, self.scheduler, self.retry, self.store)

    async def start(self) -> None:
        """Returns when all processes serve.

        Raises:
            CannotStart: one of them does not; `stop` stops the others.
        """
        try:
            async with asyncio.TaskGroup() as starts:
                starts.create_task(run(self._upgrade, self._metadata_log))
                starts.create_task(self.store.start())
            async with asyncio.TaskGroup() as starts:
                for child in (self.gateway, self.scheduler, self.retry):
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
            await child.stop(STORE_STOP_TIMEOUT_S if child is self.store else STOP_TIMEOUT_S)
        self._ports.close()

    def describe(self) -> dict[str, Any]:
        """Addresses, ports and pids, for machines."""
        return {
            "serving": "cluster",
            "address": self.gateway.address,
            "port": self.gateway.port,
            "data": str(self.data),
            "pid": os.getpid(),
            "processes": {
                child.name: {
                    "address": child.address,
                    "port": child.port,
                    "metrics_port": child.metrics_port,
                    "pid": child.pid,
                    "log": str(child.log_path),
                }
                for child in self._children
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
