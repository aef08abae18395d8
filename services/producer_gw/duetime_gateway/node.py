"""The gateway as a node: starts and stops its parts in order."""

import asyncio
from contextlib import AsyncExitStack

import structlog
from duetime_core.clock import Clock
from duetime_core.metadata import OUTAGES
from duetime_core.rpc.probes import Health
from prometheus_client import CollectorRegistry

from duetime_gateway.parts import make_parts
from duetime_gateway.settings import GatewaySettings

log = structlog.get_logger()


class GatewayNode:
    """See duetime_core.node.life.Node. Created within a running event loop."""

    settings_class = GatewaySettings

    def __init__(self, settings: GatewaySettings, clock: Clock) -> None:
        self.registry = CollectorRegistry()
        self.parts = make_parts(settings, clock, self.registry)
        self._settings = settings
        # Stops the started parts, the latest first.
        self._started = AsyncExitStack()
        # Done when the tasks have ended, because of a stop or a failure.
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def port(self) -> int:
        return self.parts.server.port

    @property
    def health(self) -> Health:
        return self.parts.server.health

    async def start(self) -> None:
        """Starts all parts. A stop reverses the order: rejects callers first and ends waits, so that only work in
        progress is drained; then ends puts, which carry that work; then closes their connections.
        """
        parts, settings = self.parts, self._settings
        if not settings.retry_address:
            log.warning("no retry service: a failed message returns only when its lease ends", setting="retry_address")
        for end in (parts.database.stop, parts.trail.finish, parts.retry.close, parts.shards.close):
            self._started.push_async_callback(end)
        await parts.database.start(despite=OUTAGES)
        await self._start_tasks()
        await parts.shards.check()
        await parts.adoption.start([shard for shard in parts.shards.all() if shard.reached])
        await parts.quotas.keeper.exchange()
        self._started.push_async_callback(parts.quotas.keeper.leave)
        self._started.push_async_callback(self._stop_serving)
        await parts.server.start(
            settings.host,
            settings.port,
            certified_port=settings.certified_port,
            probe_port=settings.probe_port,
            front=settings.front,
        )

    async def _start_tasks(self) -> None:
        running = asyncio.Event()
        parent = asyncio.create_task(self._run_tasks(running))
        parent.add_done_callback(self._end)
        self._started.push_async_callback(_cancel, parent)
        await running.wait()

    async def _run_tasks(self, running: asyncio.Event) -> None:
        """The parent of all tasks: puts, calls to shards, readers of streams, the comparison of the backlog, the writer
        of the audit log."""
        parts = self.parts
        async with parts.tasks as tasks:
            parts.shards.start()
            parts.topics.start()
            parts.transactions.groups.start(tasks)
            parts.transactions.watching.start()
            tasks.create_task(parts.backlog.run())
            tasks.create_task(parts.topics.follow_deletions())
            tasks.create_task(parts.quotas.keeper.run())
            tasks.create_task(parts.leases.rates.run())
            tasks.create_task(parts.trail.run())
            if parts.rocketmq is not None:
                tasks.create_task(parts.rocketmq.renewals.run())
            if parts.access is not None:
                tasks.create_task(parts.access.book.follow())
                tasks.create_task(parts.access.gatekeeper.watch())
            running.set()
            try:
                await asyncio.Event().wait()
            finally:
                parts.transactions.groups.stop()
                parts.topics.stop()
                parts.shards.stop()

    def _end(self, parent: asyncio.Task[None]) -> None:
        if parent.cancelled() or (error := parent.exception()) is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(error)

    async def _stop_serving(self) -> None:
        parts = self.parts
        await parts.server.report(serving=False)
        parts.face.end_streams()
        if parts.rocketmq is not None:
            parts.rocketmq.face.end_streams()
        parts.shards.end_polls()
        parts.retry.end_streams()
        await parts.server.stop(self._settings.drain_ms)
        await parts.transactions.watching.finish()

    async def failed(self) -> None:
        await asyncio.shield(self._ended)

    async def stop(self) -> None:
        """Stops in the reverse order of `start`."""
        await self._started.aclose()


async def _cancel(task: asyncio.Task[None]) -> None:
    """Returns once the task has ended."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
