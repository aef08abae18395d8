"""A cluster of real processes to be killed: two shards, two gateways, and the rest of a cluster."""

import asyncio
import os
import signal
from collections.abc import Mapping
from pathlib import Path

from duetime.cli.child import Child, LocalService, run
from duetime.cli.preflight import Ports

SHARDS = 2
GATEWAYS = 2
STOP_S = 60.0
_LOGS = {"log_level": "WARNING"}


class Fleet:
    """Starts and stops with `async with`."""

    def __init__(self, root: Path, store_settings: Mapping[str, object]) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self._root = root
        self._ports = Ports()
        self._database_url = f"sqlite:///{root / 'metadata.db'}"
        self.stores = [
            self._node("store", {**store_settings, "data_dir": root / f"store-{shard}", "shard": shard})
            for shard in range(SHARDS)
        ]
        stores = ",".join(f"{shard}={node.address}" for shard, node in enumerate(self.stores))
        shared = {"database_url": self._database_url, "stores": stores}
        retry, scheduler = self._node("retry", shared), self._node("scheduler", shared)
        gateway = {**shared, "retry_address": retry.address}
        self.gateways = [self._node("gateway", gateway) for _ in range(GATEWAYS)]
        self.children = {
            name: Child(name, ["-m", f"duetime_{node.name}"], [node], root)
            for name, node in (
                *((f"store-{number}", node) for number, node in enumerate(self.stores)),
                *(("retry", retry), ("scheduler", scheduler)),
                *((f"gateway-{number}", node) for number, node in enumerate(self.gateways)),
            )
        }

    def _node(self, name: str, settings: Mapping[str, object]) -> LocalService:
        return LocalService(name, self._ports.take(), self._ports.take(), {**_LOGS, **settings})

    @property
    def victims(self) -> list[str]:
        """Stores and gateways."""
        return [name for name in self.children if name.startswith(("store", "gateway"))]

    async def __aenter__(self) -> "Fleet":
        upgrade = ["-m", "duetime_core.metadata", "upgrade", "--database-url", self._database_url]
        await run(upgrade, self._root / "metadata.log")
        try:
            for child in self.children.values():
                await child.start()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        for child in reversed(self.children.values()):
            await child.stop(STOP_S)
        self._ports.close()

    async def kill(self, name: str) -> None:
        """kill -9; returns when it serves again."""
        child = self.children[name]
        os.kill(child.pid, signal.SIGKILL)
        await child.ended()
        await child.start()

    async def pause(self, seconds: float) -> None:
        """Raises: RuntimeError: one of them ends by itself meanwhile."""
        ends = {name: asyncio.create_task(child.ended()) for name, child in self.children.items()}
        try:
            done, _ = await asyncio.wait(ends.values(), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if done:
                raise RuntimeError(f"{[name for name, task in ends.items() if task in done]} ended by themselves")
        finally:
            for task in ends.values():
                task.cancel()
            await asyncio.gather(*ends.values(), return_exceptions=True)
