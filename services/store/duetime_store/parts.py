"""The parts of a recovered shard: each is created here, once, with everything it needs."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from duetime_core.clock import Clock
from duetime_core.limits.traffic import Traffic
from prometheus_client import CollectorRegistry

from duetime_store.deleting import TopicCalls
from duetime_store.exporting import Exporter
from duetime_store.files.directory import StoreDirectory
from duetime_store.files.disk import Disk
from duetime_store.files.reserve import Reserve
from duetime_store.finding.destinations import FindingById
from duetime_store.finding.finder import Finder
from duetime_store.finding.index import Shape
from duetime_store.finding.indexer import Indexer
from duetime_store.finding.search import LogSearch
from duetime_store.finding.trace import MessageTraces
from duetime_store.groups import loading, snapshot
from duetime_store.groups.admin import GroupAdmin
from duetime_store.groups.calls import GroupCalls
from duetime_store.groups.dead_letters import DeadLetterCollector
from duetime_store.groups.groups import Groups
from duetime_store.groups.lines import Lines
from duetime_store.groups.lites import LiteFetcher, LiteReceiver, brokers_offsets, forget_places
from duetime_store.groups.metrics import GroupCollector
from duetime_store.groups.offsets import GroupOffsets
from duetime_store.groups.persistence import GroupKeeper
from duetime_store.groups.receiving import Receiver
from duetime_store.groups.retries import WaitingRetries
from duetime_store.groups.streams import ReceiveStreams, StreamParts
from duetime_store.groups.subscription_groups import SubscriptionGroups
from duetime_store.groups.topic_readers import TopicReaders
from duetime_store.groups.unread import unread
from duetime_store.lanes.alarm import Alarm
from duetime_store.metrics import StoreMetrics
from duetime_store.pending.backlog import Backlog
from duetime_store.pending.cancelling import Cancelling
from duetime_store.pending.countkeeper import CountKeeper
from duetime_store.pending.endnames import EndNames
from duetime_store.pending.keys import UpsertKeys
from duetime_store.pending.listing import PendingList
from duetime_store.pending.replacing import Replacing
from duetime_store.pending.retries import RetryEnding
from duetime_store.pending.surveyor import Surveyor
from duetime_store.pending.targets import Targets
from duetime_store.queues import queuetable
from duetime_store.queues.deletions import DeletionKeeper
from duetime_store.queues.lites import Lites
from duetime_store.queues.queuetable import TableFile
from duetime_store.queues.topics import TopicFile
from duetime_store.reading.lites import LiteFiller
from duetime_store.reading.reader import Reader
from duetime_store.reading.subscriptions import Subscriptions
from duetime_store.reading.turns import Turns
from duetime_store.recovery.checkpointer import Checkpointer
from duetime_store.recovery.idsaving import IdKeeper
from duetime_store.recovery.ordersaving import Keepers, OrderKeeper
from duetime_store.recovery.recovery import Opened
from duetime_store.recovery.retention import Cleaner, Policy
from duetime_store.settings import StoreSettings
from duetime_store.transactions.checks import Checks
from duetime_store.transactions.ending import Ending
from duetime_store.transactions.giving_up import GivingUp
from duetime_store.transactions.keeping import TransactionKeeper
from duetime_store.transactions.looking import Looking
from duetime_store.transactions.metrics import TransactionCollector
from duetime_store.transactions.preparing import Preparing
from duetime_store.transactions.results import Results
from duetime_store.transactions.table import OpenTransactions
from duetime_store.writing.flusher import Flusher
from duetime_store.writing.holding import Holding
from duetime_store.writing.late import LateWriter
from duetime_store.writing.metrics import ShardCollector
from duetime_store.writing.stand_ins import StandIns
from duetime_store.writing.store import Store
from duetime_store.writing.watch import DiskWatch


@dataclass(frozen=True, slots=True)
class Threads:
    """The threads that write files for the event loop."""

    flush: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "flush"))
    # Checkpoints have their own thread: their flushes must not delay the log's.
    checkpoint: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "checkpoint"))
    # New topics do not wait until a checkpoint has flushed the queues.
    topics: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "topics"))
    # Runs of timer lanes: one is written while others are merged.
    orders: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(2, "orders"))

    def shutdown(self) -> None:
        for executor in (self.flush, self.checkpoint, self.topics, self.orders):
            executor.shutdown()


@dataclass(frozen=True, slots=True)
class Base:
    """The foundations of all parts."""

    settings: StoreSettings
    clock: Clock
    disk: Disk
    metrics: StoreMetrics
    registry: CollectorRegistry
    threads: Threads
    directory: StoreDirectory
    reserve: Reserve
    # Shared by all scans: filters, searches, traces, listings.
    turns: Turns


@dataclass(frozen=True, slots=True)
class StoreParts:
    """All parts of a shard; see the module."""

    store: Store
    alarm: Alarm
    late: LateWriter
    watch: DiskWatch
    flusher: Flusher
    topics: TopicFile
    topic_calls: TopicCalls
    offsets: GroupOffsets
    subscription_groups: SubscriptionGroups
    groups: Groups
    receiver: Receiver
    group_calls: GroupCalls
    receive_streams: ReceiveStreams
    checkpointer: Checkpointer
    # None: the setting is off.
    indexer: Indexer | None
    reader: Reader
    lites: LiteFiller
    finder: Finder
    by_id: FindingById
    holding: Holding
    cancelling: Cancelling
    replacing: Replacing
    end_names: EndNames
    retry_ending: RetryEnding
    surveyor: Surveyor
    backlog: Backlog
    pending_list: PendingList
    transactions: OpenTransactions
    preparing: Preparing
    ending: Ending
    looking: Looking
    checks: Checks
    giving_up: GivingUp
    stand_ins: StandIns
    cleaner: Cleaner
    exporter: Exporter
    subscriptions: Subscriptions
    traffic: Traffic
    metrics: StoreMetrics
    turns: Turns


def make_parts(base: Base, opened: Opened) -> StoreParts:
    """Starts no loop and writes nothing."""
    settings, clock, metrics, turns = base.settings, base.clock, base.metrics, base.turns
    store, directory, threads, shard = opened.store, base.directory, base.threads, base.settings.shard
    base.registry.register(ShardCollector(store))
    metrics.scanning_seconds.set_function(lambda: turns.taken_s)
    metrics.scans_waiting.set_function(lambda: turns.waiting_count)
    alarm, traffic = Alarm(store.clock), Traffic(settings.traffic_limits, base.registry)
    reader = Reader(store, alarm, metrics, turns)
    late = LateWriter(store, threads.checkpoint, clock, metrics)
    watch, flusher = _make_flusher(base, store, late)
    topics = TopicFile(store.queues.counts, directory, threads.topics, clock)
    offsets = GroupOffsets(directory, watch, threads.checkpoint)
    offsets.fit(store.queues)
    groups, keeper = _make_groups(base, store, offsets, flusher, lines := Lines())
    lites, filler, receiver = _make_receiver(base, (store, reader, groups, lines, offsets, flusher, alarm, turns))
    checkpointer, indexer = _make_checkpointer(base, opened, flusher, topics, keeper), _make_indexer(base, store)
    surveyor, finder = Surveyor(store, turns, clock), Finder(store, indexer, metrics, turns, shard=shard)
    retries = _make_retries(base, store, groups)
    pending_list, end_names = PendingList(store, reader, turns), EndNames(store, reader, finder, turns)
    cancelling, replacing, retry_ending = _make_pending(base, store, finder, flusher, retries, end_names)
    admin = GroupAdmin(store, groups, offsets, retries, flusher, turns, lites, shard=shard)
    transactions, results = opened.transactions, Results(store, shard=shard)
    giving_up, checks = _make_checks(base, opened, alarm, flusher)
    readers, backlog = TopicReaders(store, groups, offsets, turns, lites), Backlog(store, surveyor, turns)
    used = topics, readers, backlog, retries, flusher, checkpointer, directory
    return StoreParts(
        store=store,
        alarm=alarm,
        late=late,
        watch=watch,
        flusher=flusher,
        topics=topics,
        topic_calls=TopicCalls(store, *used, threads.checkpoint),
        offsets=offsets,
        subscription_groups=SubscriptionGroups(directory, threads.checkpoint, clock),
        groups=groups,
        receiver=receiver,
        group_calls=GroupCalls(store, reader, groups, receiver, admin, metrics, turns, shard=shard),
        receive_streams=ReceiveStreams(StreamParts(groups, receiver, flusher, turns, traffic.answers, metrics, shard)),
        checkpointer=checkpointer,
        indexer=indexer,
        reader=reader,
        lites=filler,
        finder=finder,
        by_id=FindingById(store, finder, MessageTraces(store, reader, finder, turns, shard=shard)),
        holding=Holding(store, flusher, alarm, bytes_max=settings.waiting_bytes_max),
        end_names=end_names,
        cancelling=cancelling,
        replacing=replacing,
        retry_ending=retry_ending,
        surveyor=surveyor,
        backlog=backlog,
        pending_list=pending_list,
        transactions=transactions,
        preparing=_make_preparing(base, opened, flusher),
        ending=Ending(store, transactions, results, flusher, turns),
        looking=Looking(store, transactions, results, finder, turns, shard=shard),
        checks=checks,
        giving_up=giving_up,
        stand_ins=StandIns(store, metrics),
        cleaner=_make_cleaner(base, opened, reader, flusher, checkpointer, groups, offsets, indexer, lites),
        exporter=_make_exporter(base, store),
        subscriptions=Subscriptions(
            store, reader, turns, traffic.answers, metrics, subscriptions_max=settings.subscriptions_max
        ),
        traffic=traffic,
        metrics=metrics,
        turns=turns,
    )


def _make_retries(base: Base, store: Store, groups: Groups) -> WaitingRetries:
    retries = WaitingRetries(store, base.turns)
    base.registry.register(GroupCollector(groups, retries))
    return retries


def _make_pending(
    base: Base, store: Store, finder: Finder, flusher: Flusher, retries: WaitingRetries, end_names: EndNames
) -> tuple[Cancelling, Replacing, RetryEnding]:
    search, turns, metrics = LogSearch(store, finder), base.turns, base.metrics
    targets = Targets(store, search, turns)
    replacing = Replacing(store, targets, UpsertKeys(search, turns), flusher, turns, metrics, end_names)
    ending = RetryEnding(store, retries, replacing, flusher, turns)
    return Cancelling(store, targets, flusher, metrics), replacing, ending


def _make_exporter(base: Base, store: Store) -> Exporter:
    settings = base.settings
    return Exporter(
        store,
        base.directory.root,
        base.clock,
        base.metrics,
        bytes_per_s=settings.export_bytes_per_s,
        exports_max=settings.exports_max,
    )


def _make_preparing(base: Base, opened: Opened, flusher: Flusher) -> Preparing:
    timeout_ms = base.settings.transaction_timeout_ms
    return Preparing(opened.store, opened.transactions, flusher, timeout_ms=timeout_ms)


def _make_checks(base: Base, opened: Opened, alarm: Alarm, flusher: Flusher) -> tuple[GivingUp, Checks]:
    settings, metrics, table = base.settings, base.metrics, opened.transactions
    clock = opened.store.clock
    base.registry.register(TransactionCollector(table, clock, transactions_max=settings.transactions_max))
    giving_up = GivingUp(opened.store, table, alarm, flusher, metrics, keep_ms=settings.transaction_keep_ms)
    interval_ms = settings.transaction_check_interval_ms
    return giving_up, Checks(opened.store, table, giving_up, alarm, flusher, metrics, interval_ms=interval_ms)


def _make_flusher(base: Base, store: Store, late: LateWriter) -> tuple[DiskWatch, Flusher]:
    settings, clock, metrics = base.settings, base.clock, base.metrics
    watch = DiskWatch(
        store,
        late,
        base.disk,
        settings.data_dir,
        base.reserve,
        base.threads.checkpoint,
        clock,
        metrics,
        used_max=settings.disk_used_max,
    )
    flusher = Flusher(
        store,
        watch,
        base.threads.flush,
        clock,
        metrics,
        sync=settings.flush_mode == "sync",
        interval_ms=settings.flush_interval_ms,
    )
    return watch, flusher


def _make_checkpointer(
    base: Base, opened: Opened, flusher: Flusher, topics: TopicFile, keeper: GroupKeeper
) -> Checkpointer:
    directory, settings = base.directory, base.settings
    store, disk, executor = opened.store, base.disk, base.threads.checkpoint
    counts = CountKeeper(store, disk, directory.root, executor)
    transactions = TransactionKeeper(store, opened.transactions, disk, directory.root, executor)
    ids = IdKeeper(store, disk, directory.root, executor)
    deletions = DeletionKeeper(store.queues.deletions, directory, executor)
    return Checkpointer(
        opened.store,
        directory,
        flusher,
        topics,
        TableFile(base.disk, directory.root / queuetable.FILE, directory.queues, opened.table),
        Keepers([keeper, OrderKeeper(store, executor), counts, transactions, ids, deletions]),
        base.threads.checkpoint,
        base.clock,
        base.metrics,
        interval_ms=settings.checkpoint_ms,
        log_bytes=settings.checkpoint_bytes,
    )


def _make_groups(
    base: Base, store: Store, offsets: GroupOffsets, flusher: Flusher, lines: Lines
) -> tuple[Groups, GroupKeeper]:
    settings = base.settings
    path = base.directory.root / snapshot.FILE
    state = loading.load(path, store, offsets)
    groups = Groups(
        store,
        state.progress,
        state.gone,
        lines,
        shard=settings.shard,
        leases_max=settings.leases_max,
        groups_max=settings.groups_max,
        places_max=settings.group_queues_max,
        lites_max=settings.lite_places_max,
    )
    received = {(key.group, key.queue_topic, key.queue) for key in state.progress.places}
    offsets.share(state.progress.queue_seats, received)
    base.registry.register(DeadLetterCollector(store, state.gone))
    return groups, GroupKeeper(store, groups, offsets, flusher, base.disk, path, base.threads.checkpoint)


def _make_receiver(
    base: Base, parts: tuple[Store, Reader, Groups, Lines, GroupOffsets, Flusher, Alarm, Turns]
) -> tuple[Lites, LiteFiller, Receiver]:
    store, reader, groups, lines, *_ = parts
    lites, filler, waiting = _make_lites(base, store, reader, groups, lines)
    return lites, filler, Receiver(*parts, waiting, base.settings.priority_wait_ms, base.metrics.claims)


def _make_lites(
    base: Base, store: Store, reader: Reader, groups: Groups, lines: Lines
) -> tuple[Lites, LiteFiller, LiteReceiver]:
    settings, turns, metrics = base.settings, base.turns, base.metrics
    lites = Lites(settings.lite_topics_max, metrics.lites, metrics.lites_max)
    filler = LiteFiller(
        *(store, reader, lites, turns, metrics),
        keep_ms=settings.lite_keep_ms,
        arrived=lines.lites.wake,
        placed=frozenset(key.topic for key in groups.progress.places if key.is_lite),
        forget=partial(forget_places, groups),
    )
    fetcher = LiteFetcher(store, reader, groups, lites, filler, brokers_offsets(base.directory.config))
    return lites, filler, LiteReceiver(store, fetcher, lines, filler, turns)


def _make_indexer(base: Base, store: Store) -> Indexer | None:
    settings, metrics = base.settings, base.metrics
    if not settings.index:
        return None
    shape = Shape(settings.index_slots, settings.index_entries)
    indexer = Indexer(store, base.directory, base.threads.checkpoint, base.clock, shape=shape)
    metrics.index_behind.set_function(lambda: indexer.unread_bytes)
    return indexer


def _make_cleaner(
    base: Base,
    opened: Opened,
    reader: Reader,
    flusher: Flusher,
    checkpointer: Checkpointer,
    groups: Groups,
    offsets: GroupOffsets,
    indexer: Indexer | None,
    lites: Lites,
) -> Cleaner:
    settings, store = base.settings, opened.store

    def dropped(position: int) -> Iterator[None]:
        """Drops everything before `position`, the new start of the log."""
        if indexer:
            indexer.drop_before(position)
        yield from groups.segment_left()

    return Cleaner(
        store,
        reader,
        base.disk,
        flusher,
        checkpointer,
        base.threads.checkpoint,
        base.clock,
        base.metrics,
        base.turns,
        policy=Policy(
            settings.retention_ms,
            settings.retention_bytes,
            settings.retention_hours,
            settings.disk_clean,
            settings.disk_force,
        ),
        interval_ms=settings.retention_check_ms,
        unread=unread(store.queues, groups.progress, offsets, lites),
        dropped=dropped,
    )
