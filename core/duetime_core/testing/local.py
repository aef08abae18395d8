"""The cluster for tests without an event loop of their own: it runs on a thread."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, Self, TypeVar

from duetime_core.testing.cluster import Cluster

T = TypeVar("T")


class LocalCluster:
    """Starts and stops with `with`; takes the arguments of Cluster."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._arguments = arguments
        self._options = options
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="duetime-cluster", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self.cluster = self.run(_make(*self._arguments, **self._options))
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

    def advance(self, by: str | float) -> None:
        """See Cluster.advance."""
        self.run(self.cluster.advance(by))

    def now_ms(self) -> int:
        """The cluster's wall clock."""
        return self.cluster.clock.now_ms()


async def _make(*arguments: Any, **options: Any) -> Cluster:
    return Cluster(*arguments, **options)
