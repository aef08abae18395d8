"""The cluster for tests without an event loop: it runs on a thread."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

from duetime_format.lengths import Length
from duetime_format.levels import DEFAULT_DELAY_LEVELS

from duetime_core.clock import Clock, SystemClock
from duetime_core.testing.clock import FakeClock
from duetime_core.testing.cluster import Cluster

T = TypeVar("T")


class LocalCluster:
    """Starts and stops with `with`. The arguments are Cluster's; its clock starts at the real time."""

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
        self._make = partial(
            Cluster,
            directory,
            shards=shards,
            schedulers=schedulers,
            delay_levels=delay_levels,
            clock=clock or FakeClock(SystemClock().now_ms()),
            store_settings=store_settings,
            gateway_settings=gateway_settings,
            scheduler_settings=scheduler_settings,
            within=within,
            certs=certs,
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="duetime-cluster", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self.cluster = self.run(_made(self._make))
            self.run(self.cluster.__aenter__())
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.run(self.cluster.stop())
        finally:
            self._end()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine on the cluster's loop and returns its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    @property
    def address(self) -> str:
        return self.cluster.address

    def advance(self, by: Length) -> None:
        """See Cluster.advance."""
        self.run(self.cluster.advance(by))

    def now_ms(self) -> int:
        """The cluster's wall clock."""
        return self.cluster.clock.now_ms()

    def __repr__(self) -> str:
        return f"LocalCluster({self.address if self._thread.is_alive() else 'stopped'})"


async def _made(make: Callable[[], Cluster]) -> Cluster:
    """Creates the cluster on the loop to which its parts belong."""
    return make()
