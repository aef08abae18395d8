"""One shard as a node: directory, recovery, loops, server; started and stopped in order."""

import asyncio
import ipaddress
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import structlog
from duetime_core.clock import Clock
from duetime_core.errors import DueTimeError, StartupError
from duetime_core.probes import Health
from duetime_core.serving import Server
from duetime_core.traffic import Traffic
from duetime_format.record import host_bytes
from prometheus_client import CollectorRegistry

from duetime_store.exporting import Exporter
from duetime_store.files.directory import DirectoryInUse, StoreDirectory, advertised_port, save_advertised_port
from duetime_store.files.disk import Disk
from duetime_store.files.reserve import Reserve
from duetime_store.finding.finder import Finder
from duetime_store.finding.index import Shape
from duetime_store.finding.indexer import Indexer
from duetime_store.finding.trace import Tracer
from duetime_store.groups import loading, snapshot
from duetime_store.groups.admin import GroupAdmin
from duetime_store.groups.calls import GroupCalls
from duetime_store.groups.dead_letters import DeadLetterCollector
from duetime_store.groups.groups import Groups
from duetime_store.groups.metrics import GroupCollector
from duetime_store.groups.offsets import GroupOffsets
from duetime_store.groups.persistence import Keeper
from duetime_store.groups.receiving import Receiver
from duetime_store.groups.subscription_groups import SubscriptionGroups
from duetime_store.groups.unread import unread
from duetime_store.lanes.alarm import Alarm, ShardClock
from duetime_store.metrics import StoreMetrics
from duetime_store.queues import queuetable
from duetime_store.queues.queuetable import TableFile
from duetime_store.queues.topics import TopicFile
from duetime_store.reading.reader import Reader
from duetime_store.reading.turns import Turns
from duetime_store.recovery.checkpointer import Checkpointer
from duetime_store.recovery.recovery import Opened, open_store
from duetime_store.recovery.retention import Cleaner, Policy
from duetime_store.service import SERVICE_NAME, StoreService
from duetime_store.settings import StoreSettings
from duetime_store.writing.flusher import Flusher
from duetime_store.writing.holding import Holding
from duetime_store.writing.late import LateWriter
from duetime_store.writing.metrics import ShardCollector
from duetime_store.writing.stand_ins import StandIns
from duetime_store.writing.store import Store
from duetime_store.writing.watch import Watch

log = structlog.get_logger()

# How often it is tried while another process holds the directory.
LOCK_CHECK_MS = 100


class StoreNode:
    """See duetime_core.node.Node."""

    settings_class = StoreSettings

    def __init__(self, settings: StoreSettings, clock: Clock, disk: Disk | None = None) -> None:
        self.registry = CollectorRegistry()
        self._settings = settings
        self._clock = clock
        self._disk = disk or Disk()
        self._metrics = StoreMetrics(self.registry)
        self._directory: StoreDirectory | None = None
        self._opened: Opened | None = None
        self._server: Server | None = None
        self._stopping = False
        self._loops: asyncio.Task[None] | None = None
        self.exporter: Exporter | None = None
        # Of all that walks.
        self.turns = Turns()
        # None: the setting is off.
        self.indexer: Indexer | None = None
        # One thread flushes the log; the other writes checkpoints, whose flushes must not delay it.
        self._flush_thread = ThreadPoolExecutor(1, "flush")
        self._checkpoint_thread = ThreadPoolExecutor(1, "checkpoint")
        # New topics do not wait until a checkpoint has flushed the queues.
        self._topic_thread = ThreadPoolExecutor(1, "topics")

    @property
    def port(self) -> int:
        return self._server.port if self._server else 0

    @property
    def health(self) -> Health:
        assert self._server is not None, "not started"
        return self._server.health

    @property
    def store(self) -> Store:
        """The shard's state, for tests in this process."""
        assert self._opened is not None, "not started"
        return self._opened.store

    @property
    def checkpointer(self) -> Checkpointer:
        """For tests in this process."""
        return self._checkpointer

    async def _take_directory(self) -> StoreDirectory:
        """Waits for the process that serves the shard until now: it may be about to end."""
        root, until_ms = self._settings.data_dir, self._clock.monotonic_ms() + self._settings.lock_wait_ms
        told = False
        while True:
            try:
                return StoreDirectory(root, self._disk)
            except DirectoryInUse:
                if self._clock.monotonic_ms() >= until_ms:
                    raise
            if not told:
                log.warning("data directory is in use by another process: waiting for it", data_dir=str(root))
                told = True
            await self._clock.sleep(LOCK_CHECK_MS)

    async def start(self) -> None:
        settings = self._settings
        try:
            ipaddress.ip_address(settings.advertise_host)
        except ValueError as error:
            raise StartupError(f"advertise host {settings.advertise_host!r} is not an IP address") from error
        self._directory = await self._take_directory()
        reserve = Reserve(self._disk, settings.data_dir, settings.reserve_bytes)
        if self._disk.space(settings.data_dir).free_bytes < reserve.size:
            # Recovery may have to write.
            reserve.give_back()
        clock = ShardClock(self._clock)
        self._opened = open_store(self._directory, settings, clock)
        self._tell_recovery()
        store = self._opened.store
        self.registry.register(ShardCollector(store))
        self._alarm = Alarm(clock)
        self._late = LateWriter(store, self._checkpoint_thread, self._clock, self._metrics)
        self._watch = Watch(
            store,
            self._late,
            self._disk,
            settings.data_dir,
            reserve,
            self._checkpoint_thread,
            self._clock,
            self._metrics,
            used_max=settings.disk_used_max,
        )
        self._flusher = Flusher(
            store,
            self._watch,
            self._flush_thread,
            self._clock,
            self._metrics,
            sync=settings.flush_mode == "sync",
            interval_ms=settings.flush_interval_ms,
        )
        self._topics = TopicFile(store.queues.counts, self._directory, self._topic_thread, self._clock)
        self._checkpointer = Checkpointer(
            store,
            self._directory,
            self._flusher,
            self._topics,
            self._make_table(),
            self._checkpoint_thread,
            self._clock,
            self._metrics,
            interval_ms=settings.checkpoint_ms,
            log_bytes=settings.checkpoint_bytes,
        )
        if settings.index:
            shape = Shape(settings.index_slots, settings.index_entries)
            self.indexer = Indexer(store, self._directory, self._checkpoint_thread, self._clock, shape=shape)
            indexer = self.indexer
            self._metrics.index_behind.set_function(lambda: indexer.behind_bytes)
        self._metrics.scanning_seconds.set_function(lambda: self.turns.taken_s)
        self._metrics.scans_waiting.set_function(lambda: self.turns.waiting_count)
        self._reader = Reader(store, self._alarm, self._metrics, self.turns)
        self._make_groups(store)
        self._cleaner = self._make_cleaner(store)
        # Before the first append: what recovery has found must not be found again after a crash.
        await self._checkpointer.write()
        self._directory.mark_serving()
        await self._watch.look()
        self._traffic = Traffic(settings.traffic_limits, self.registry)
        self._server = Server(
            [SERVICE_NAME], settings.calls_in_flight_max, self.registry, secret=settings.secret, traffic=self._traffic
        )
        self._loops = asyncio.create_task(self._run())
        await self._serve(store, self._server)

    def _make_table(self) -> TableFile:
        assert self._directory is not None
        assert self._opened is not None
        # Its rows are not needed any more.
        table, self._opened.table = self._opened.table, None
        return TableFile(self._disk, self._directory.root / queuetable.FILE, self._directory.queues, table)

    def _make_cleaner(self, store: Store) -> Cleaner:
        settings = self._settings
        return Cleaner(
            store,
            self._reader,
            self._disk,
            self._flusher,
            self._checkpointer,
            self._checkpoint_thread,
            self._clock,
            self._metrics,
            self.turns,
            policy=Policy(
                settings.retention_ms,
                settings.retention_bytes,
                settings.retention_hours,
                settings.disk_clean,
                settings.disk_force,
            ),
            interval_ms=settings.retention_check_ms,
            unread=unread(store.queues, self.groups.progress, self._offsets),
            dropped=self._dropped,
        )

    def _dropped(self, position: int) -> Iterator[None]:
        """The log begins there now."""
        if self.indexer:
            self.indexer.drop_before(position)
        yield from self.groups.segment_left()

    def _make_groups(self, store: Store) -> None:
        settings = self._settings
        assert self._directory is not None
        self._offsets = GroupOffsets(self._directory, self._watch, self._checkpoint_thread)
        path = self._directory.root / snapshot.FILE
        state = loading.load(path, store, self._offsets)
        self.groups = Groups(
            store,
            state.progress,
            state.gone,
            shard=settings.shard,
            leases_max=settings.leases_max,
            groups_max=settings.groups_max,
            places_max=settings.group_queues_max,
        )
        self._receiver = Receiver(
            store, self._reader, self.groups, self._offsets, self._flusher, self._alarm, self.turns
        )
        self._checkpointer.keeper = Keeper(
            store, self.groups, self._offsets, self._flusher, self._disk, path, self._checkpoint_thread
        )
        self.registry.register(DeadLetterCollector(store, state.gone))
        self.registry.register(GroupCollector(self.groups))
        # A lease that recovery has opened again is journaled.
        self._flusher.wake()

    async def _serve(self, store: Store, server: Server) -> None:
        settings = self._settings
        assert self._directory is not None
        self.exporter = Exporter(
            store,
            self._directory.root,
            self._clock,
            self._metrics,
            bytes_per_s=settings.export_bytes_per_s,
            exports_max=settings.exports_max,
        )
        finder = Finder(store, self.indexer, self._metrics, self.turns, shard=settings.shard)
        service = StoreService(
            store,
            self._reader,
            finder,
            Tracer(store, self._reader, finder, self.turns, shard=settings.shard),
            Holding(store, self._flusher, self._alarm, bytes_max=settings.waiting_bytes_max),
            self._flusher,
            self._checkpointer,
            self._topics,
            self._offsets,
            SubscriptionGroups(self._directory, self._checkpoint_thread, self._clock),
            GroupCalls(
                store,
                self._reader,
                self.groups,
                self._receiver,
                GroupAdmin(store, self.groups, self._offsets, self.turns, shard=settings.shard),
                self._metrics,
                self.turns,
                shard=settings.shard,
            ),
            self.exporter,
            StandIns(store, self._metrics),
            self._metrics,
            self.turns,
            self._traffic.answers,
            shard=settings.shard,
        )
        service.add_to(server.grpc)
        await server.start(settings.host, settings.port)
        port = settings.advertise_port or advertised_port(self._directory.config) or server.port
        service.store_host = host_bytes(settings.advertise_host, port)
        await self._keep_port(port, self._directory.config)

    async def _keep_port(self, port: int, config: Path) -> None:
        run = asyncio.get_running_loop().run_in_executor
        try:
            await run(self._checkpoint_thread, save_advertised_port, port, self._disk, config)
        except OSError as error:
            log.warning("advertised port not kept: the next start may choose another", port=port, error=str(error))

    def _tell_recovery(self) -> None:
        assert self._opened is not None
        report = self._opened.report
        self._metrics.recovered_records.set(report.records)
        self._metrics.recovery_cut_bytes.set(report.cut_bytes)
        self._metrics.damaged.inc(report.damage.count)
        self._metrics.recovery_seconds.set(report.took_ms / 1000)
        findings = {
            "damaged": report.damage.count,
            "skipped_bytes": report.damage.skipped_bytes,
            "repeated": report.repeated,
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
        behind_ms = self._opened.store.clock.behind_ms
        if behind_ms:
            log.warning(
                "the wall clock is behind the log; nothing falls due until it has caught up", behind_ms=behind_ms
            )

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._flusher.run())
            group.create_task(self._watch.run())
            group.create_task(self._watch.tell(self._report))
            group.create_task(self._checkpointer.run())
            group.create_task(self._late.run(self._flusher.units_late))
            if self.indexer:
                group.create_task(self.indexer.run())
            group.create_task(self._cleaner.run())
            group.create_task(self._receiver.run())
            if self._settings.flush_mode == "async":
                group.create_task(self._flusher.run_periodic())

    async def _report(self, serving: bool) -> None:
        if self._server and not self._stopping:
            await self._server.report(serving=serving)

    async def failed(self) -> None:
        assert self._loops is not None
        await asyncio.shield(self._loops)

    async def stop(self) -> None:
        """NOT_SERVING, calls drained, everything flushed, checkpoint, `abort` removed, files closed: in this order,
        so that what a caller was told is on disk and the next start finds a clean directory. It waits for no export."""
        self._stopping = True
        if self.exporter:
            self.exporter.end()
        if self._server:
            await self._server.stop(self._settings.drain_ms)
        if self.exporter:
            self.exporter.close()
        if self._loops:
            await self._end_loops()
            self._alarm.close()
        self._flush_thread.shutdown()
        self._checkpoint_thread.shutdown()
        self._topic_thread.shutdown()
        if self._opened:
            self._opened.store.queues.shared.close()
            self._opened.store.log.close()
        if self._directory:
            self._directory.close()

    async def _end_loops(self) -> None:
        assert self._loops is not None
        assert self._directory is not None
        store = self.store
        durable = store.when_durable()
        if durable is not None and not store.read_only_reason:
            # Who waits for it is told; here only its end counts.
            durable.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._flusher.wake()
            await asyncio.wait({durable, self._loops}, return_when=asyncio.FIRST_COMPLETED)
        self._loops.cancel()
        await asyncio.gather(self._loops, return_exceptions=True)
        if self.indexer:
            await self.indexer.close()
        if await self._checkpointer.write() and await self._fold_topics():
            self._directory.mark_stopped()

    async def _fold_topics(self) -> bool:
        """A broker reads topics.json alone."""
        try:
            await self._topics.fold(whole=True)
        except DueTimeError as error:
            log.error("topics are not in their file", error=str(error))
            return False
        return True
