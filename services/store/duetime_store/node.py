"""One shard as a node: directory, recovery, loops, server; started and stopped in order."""

import asyncio
import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import structlog
from duetime_core.clock import Clock
from duetime_core.errors import DueTimeError, NotLeader, StartupError
from duetime_core.rpc.border import BorderParts
from duetime_core.rpc.listening import NO_PORT
from duetime_core.rpc.probes import NodeCondition
from duetime_core.rpc.serving import Server
from duetime_format.compiled import check_fits
from duetime_format.record import host_bytes
from prometheus_client import CollectorRegistry

from duetime_store.calls import add_calls
from duetime_store.copies.statefile import refuse_copy
from duetime_store.files.directory import DirectoryInUse, StoreDirectory, advertised_port, save_advertised_port
from duetime_store.files.disk import Disk
from duetime_store.files.reserve import Reserve
from duetime_store.files.worker import FileWorker
from duetime_store.lanes.alarm import ShardClock
from duetime_store.metrics import StoreMetrics
from duetime_store.parts import FileThreads, StoreBase, StoreParts, make_parts
from duetime_store.reading.turns import ScanTurns
from duetime_store.recovery.following import Follower
from duetime_store.recovery.recovery import OpenedStore, RecoveryReport, open_store
from duetime_store.service import SERVICE_NAME, StoreService
from duetime_store.settings import StoreSettings
from duetime_store.writing.committing import Alone, Committer
from duetime_store.writing.store import Store

if TYPE_CHECKING:
    from duetime_store.copies.membership import Membership

log = structlog.get_logger()

# Pause between attempts while another process holds the directory.
LOCK_CHECK_MS = 100

Part = TypeVar("Part")


@dataclass(frozen=True, slots=True)
class _ServingNode:
    """A serving node: its server, and the task that all loops run in."""

    server: Server
    loops: "asyncio.Task[None]"


class StoreNode:
    """See duetime_core.node.life.Node. With copies the node has started once it hears the others; it serves once it
    leads, and fails when it leads no more."""

    settings_class = StoreSettings

    def __init__(
        self, settings: StoreSettings, clock: Clock, disk: Disk | None = None, committer: Committer | None = None
    ) -> None:
        """`committer`: Alone by default."""
        self.registry = CollectorRegistry()
        self._settings = settings
        self._clock = clock
        self._disk = disk or Disk()
        self._committer = committer or Alone()
        self._metrics = StoreMetrics(self.registry)
        self._threads = FileThreads()
        self._directory: StoreDirectory | None = None
        self._report: RecoveryReport | None = None
        self._parts: StoreParts | None = None
        self._serving: _ServingNode | None = None
        self._service: StoreService | None = None
        self._stopping = False
        self._membership: Membership | None = None
        # Runs this process's copy, and the store while that leads.
        self._copy: asyncio.Task[None] | None = None
        self._leading: asyncio.Task[None] | None = None
        self._follower: Follower | None = None

    @property
    def port(self) -> int:
        if self._membership is not None:
            return self._settings.port
        return self._serving.server.port if self._serving else 0

    @property
    def health(self) -> NodeCondition:
        if self._membership is not None:
            return self._membership.health
        return self._started(self._serving).server.health

    @property
    def parts(self) -> StoreParts:
        """For tests in the same process, as are `store`, `report` and `loops`."""
        return self._started(self._parts)

    @property
    def store(self) -> Store:
        return self.parts.store

    @property
    def report(self) -> RecoveryReport:
        """Findings of recovery."""
        return self._started(self._report)

    @property
    def loops(self) -> "asyncio.Task[None]":
        return self._started(self._serving).loops

    @staticmethod
    def _started(part: Part | None) -> Part:
        if part is None:
            raise RuntimeError("the node is not started")
        return part

    async def _take_directory(self) -> StoreDirectory:
        """Takes the directory's lock, waiting for the process that still serves the shard: it may be about to end."""
        root, until_ms = self._settings.data_dir, self._clock.monotonic_ms() + self._settings.lock_wait_ms
        warned = False
        while True:
            try:
                return StoreDirectory(root, self._disk)
            except DirectoryInUse:
                if self._clock.monotonic_ms() >= until_ms:
                    raise
            if not warned:
                log.warning("data directory is in use by another process: waiting for it", data_dir=str(root))
                warned = True
            await self._clock.sleep(LOCK_CHECK_MS)

    async def start(self) -> None:
        settings = self._settings
        try:
            ipaddress.ip_address(settings.advertise_host)
        except ValueError as error:
            raise StartupError(f"advertise host {settings.advertise_host!r} is not an IP address") from error
        directory = self._directory = await self._take_directory()
        reserve = Reserve(self._disk, settings.data_dir, settings.reserve_bytes)
        if self._disk.space(settings.data_dir).free_bytes < reserve.size:
            # Recovery may have to write.
            reserve.give_back()
        if settings.members:
            await self._join(directory, reserve)
            return
        refuse_copy(settings.data_dir)
        opened = open_store(directory, settings, ShardClock(self._clock), self._threads.orders)
        parts = self._make(opened, directory, reserve)
        # Written before the first append: after a crash, recovery must not find the same things again.
        await parts.checkpointer.write()
        directory.mark_serving()
        await self._open(parts, directory)

    async def _join(self, directory: StoreDirectory, reserve: Reserve) -> None:
        """Starts this process's copy of a shard."""
        membership = self._membership = make_membership(self._settings, self._clock, self.registry)
        membership.start(directory, reserve)
        self._copy = asyncio.create_task(self._run_copy(membership, directory, reserve))

    async def _run_copy(self, membership: "Membership", directory: StoreDirectory, reserve: Reserve) -> None:
        await membership.join(self._threads.flush)
        async with asyncio.TaskGroup() as group:
            group.create_task(membership.run())
            self._leading = group.create_task(self._lead(membership, directory, reserve))

    async def _lead(self, membership: "Membership", directory: StoreDirectory, reserve: Reserve) -> None:
        """Follows until this copy leads; then opens the store and serves."""
        run = asyncio.get_running_loop().run_in_executor

        async def save(opened: OpenedStore) -> None:
            registry = CollectorRegistry()
            base = self._base(directory, reserve, membership.committer, StoreMetrics(registry), registry)
            parts = await run(self._threads.checkpoint, make_parts, base, opened)
            await parts.checkpointer.write()
            # A takeover waits for no more than one segment.
            while not membership.member.elected.done() and await parts.cleaner.drop_cut():
                pass

        follower = self._follower = Follower(
            directory, self._settings, membership.clock, self._threads.checkpoint, save
        )
        opened = await follower.follow(membership.log, membership.member)
        membership.member.attach(opened.store.log)
        self._committer = membership.committer
        parts = self._make(opened, directory, reserve)
        await self._open(parts, directory)
        membership.member.serve(parts.flusher.wake)
        # Not before: it contains the ends of leases that recovery found, which have to be committed.
        await parts.flusher.settled()
        await parts.checkpointer.write()
        await asyncio.shield(self.loops)

    def _make(self, opened: OpenedStore, directory: StoreDirectory, reserve: Reserve) -> StoreParts:
        self._report = opened.report
        self._log_recovery(opened)
        base = self._base(directory, reserve, self._committer, self._metrics, self.registry)
        parts = self._parts = make_parts(base, opened)
        # Leases that recovery reopened are journaled.
        parts.flusher.wake()
        return parts

    def _base(
        self,
        directory: StoreDirectory,
        reserve: Reserve,
        committer: Committer,
        metrics: StoreMetrics,
        registry: CollectorRegistry,
    ) -> StoreBase:
        return StoreBase(
            self._settings,
            self._clock,
            self._disk,
            metrics,
            registry,
            self._threads,
            directory,
            reserve,
            FileWorker(directory, self._threads.checkpoint),
            ScanTurns(),
            committer,
        )

    async def _open(self, parts: StoreParts, directory: StoreDirectory) -> None:
        """Starts the loops and serves."""
        settings = self._settings
        await parts.watch.inspect()
        credentials = settings.credentials(self.registry)
        border = BorderParts(parts.traffic)
        limit = settings.calls_in_flight_max
        server = Server([SERVICE_NAME], limit, self.registry, credentials=credentials, parts=border)
        self._serving = _ServingNode(server, asyncio.create_task(self._run(parts, server)))
        await self._serve(parts, server, directory.config)

    async def _serve(self, parts: StoreParts, server: Server, config: Path) -> None:
        settings = self._settings
        service = self._service = StoreService(parts, shard=settings.shard)
        add_calls(service, server.grpc, self._committer.leadership)
        # A copy's probe port is open while it follows, too.
        probe_port = NO_PORT if self._membership is not None else settings.probe_port
        await server.start(settings.host, settings.port, probe_port=probe_port, front=settings.front)
        port = settings.advertise_port or advertised_port(config) or server.port
        service.store_host = host_bytes(settings.advertise_host, port)
        await self._keep_port(port, config)

    async def _keep_port(self, port: int, config: Path) -> None:
        run = asyncio.get_running_loop().run_in_executor
        try:
            await run(self._threads.checkpoint, save_advertised_port, port, self._disk, config)
        except OSError as error:
            log.warning("advertised port not saved: the next start may choose another", port=port, error=str(error))

    def _log_recovery(self, opened: OpenedStore) -> None:
        report = opened.report
        self._metrics.recovered_records.set(report.records)
        self._metrics.recovery_cut_bytes.set(report.cut_bytes)
        self._metrics.damaged.inc(report.damage.count)
        self._metrics.recovery_seconds.set(report.took_ms / 1000)
        findings = {
            "damaged": report.damage.count,
            "skipped_bytes": report.damage.skipped_bytes,
            "repeated": report.repeated,
            "promised": report.promised,
            "missing_bytes": report.missing_bytes,
            "config_faults": len(report.config_faults),
        }
        for kind, count in findings.items():
            self._metrics.recovery_findings.labels(kind).set(count)
        log.info(
            "recovered",
            clean=report.clean,
            whole_log=report.whole_log,
            from_position=report.from_position,
            read_queues=report.read_queues,
            records=report.records,
            rebuilt_units=report.rebuilt_units,
            cut_bytes=report.cut_bytes,
            **findings,
            took_ms=report.took_ms,
        )
        behind_ms = opened.store.clock.behind_ms
        if behind_ms:
            log.warning(
                "the wall clock is behind the log; nothing falls due until it has caught up", behind_ms=behind_ms
            )

    async def _run(self, parts: StoreParts, server: Server) -> None:
        async def report(serving: bool) -> None:
            if not self._stopping:
                await server.report(serving=serving)

        async with asyncio.TaskGroup() as group:
            group.create_task(parts.flusher.run())
            group.create_task(parts.watch.run())
            group.create_task(parts.watch.report(report))
            group.create_task(parts.checkpointer.run())
            group.create_task(parts.late.run(parts.flusher.units_late))
            if parts.indexer:
                group.create_task(parts.indexer.run())
            group.create_task(parts.cleaner.run())
            group.create_task(parts.expirer.run())
            group.create_task(parts.lites.run())
            group.create_task(parts.lites.sweep())
            group.create_task(parts.surveyor.run())
            group.create_task(parts.occurrence_mover.run())
            group.create_task(parts.checks.run())
            group.create_task(parts.giving_up.run())
            group.create_task(parts.flusher.run_periodic())
            group.create_task(parts.flusher.run_commits())

    async def failed(self) -> None:
        if self._copy is None:
            await asyncio.shield(self.loops)
            return
        try:
            await asyncio.shield(self._copy)
        except BaseExceptionGroup as group:
            raise _ended(group) from None

    async def stop(self) -> None:
        """Stops in this order: NOT_SERVING, calls drained, everything flushed and committed, leadership given away,
        checkpoint, `abort` removed, files closed. Thus everything answered is on disk and the next start finds a clean
        directory. If the commit takes longer than `flush_stall_ms`, the next start recovers as after a crash. Does not
        wait for exports.
        """
        self._stopping = True
        if self._leading is not None and not (self._serving and self._serving.server.health.ready):
            # It would open the store and serve while the rest of the node stops.
            self._leading.cancel()
            await asyncio.wait({self._leading})
        parts, directory = self._parts, self._directory
        if parts:
            parts.exporter.end()
        if self._service:
            self._service.end_streams()
        if self._serving:
            # The calls of a deposed leader have failed.
            is_deposed = self._copy is not None and self._copy.done()
            await self._serving.server.stop(0 if is_deposed else self._settings.drain_ms)
        if parts:
            parts.exporter.close()
        if parts and directory and self._serving:
            await self._end_loops(parts, directory, self._serving.loops)
        if parts:
            parts.alarm.close()
        if self._membership is not None:
            await self._leave(self._membership)
        self._threads.shutdown()
        if self._follower is not None:
            self._follower.close()
        if parts:
            parts.store.lanes.close()
            parts.store.queues.shared.close()
            parts.store.log.close()
        if directory:
            directory.close()

    async def _leave(self, membership: "Membership") -> None:
        if self._copy is not None:
            if not self._copy.done():
                await membership.hand_over()
            self._copy.cancel()
            await asyncio.gather(self._copy, return_exceptions=True)
        await membership.close()

    async def _end_loops(self, parts: StoreParts, directory: StoreDirectory, loops: "asyncio.Task[None]") -> None:
        if not parts.store.read_only_reason:
            settled = asyncio.ensure_future(parts.flusher.settled())
            # Its errors are reported elsewhere; here only its end counts.
            settled.add_done_callback(lambda done: done.cancelled() or done.exception())
            ended = asyncio.ensure_future(asyncio.wait({settled, loops}, return_when=asyncio.FIRST_COMPLETED))
            if not await self._clock.wait_for(ended, self._settings.flush_stall_ms):
                parts.store.fail("the stop did not wait longer for the commit of the log")
            await ended
            settled.cancel()
        loops.cancel()
        await asyncio.gather(loops, return_exceptions=True)
        if self._membership is not None:
            # Everything is committed, and the checkpoint may take longer than the next leader's opening.
            await self._membership.hand_over()
        if parts.indexer:
            await parts.indexer.close()
        if await parts.checkpointer.write() and await _fold_topics(parts):
            directory.mark_stopped()


def _ended(group: BaseExceptionGroup[Any]) -> BaseException:
    """The reason for the end of a copy, in one line if that is enough for the operator."""
    first: BaseException = group.exceptions[0]
    if isinstance(first, BaseExceptionGroup):
        return _ended(first)
    if isinstance(first, NotLeader):
        return StartupError("another copy of the shard leads now: this one follows after a restart")
    if isinstance(first, OSError):
        return StartupError(f"the files of this copy cannot be written: {first}")
    return first


def make_membership(settings: StoreSettings, clock: Clock, registry: CollectorRegistry) -> "Membership":
    """Raises: StartupError: the wheel with Raft's core is missing, or does not fit."""
    try:
        import duetime_raft

        check_fits(duetime_raft)
    except ImportError as error:
        raise StartupError(f"copies need the optional wheel duetime_raft of `make native`: {error}") from error
    from duetime_store.copies.membership import Membership

    return Membership(settings, clock, registry)


async def _fold_topics(parts: StoreParts) -> bool:
    """Brings topics.json up to date: a broker reads no other file of topics."""
    try:
        await parts.topics.fold(whole=True)
    except DueTimeError as error:
        log.error("topics not written to their file", error=str(error))
        return False
    return True
