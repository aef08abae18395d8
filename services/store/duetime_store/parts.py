"""The parts of a recovered shard: each is created here, once, with everything it needs."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field

from duetime_core.clock import Clock
from duetime_core.limits.traffic import Traffic
from duetime_format import changes
from prometheus_client import CollectorRegistry

from duetime_store.deleting import TopicCalls
from duetime_store.exporting import Exporter
from duetime_store.files.directory import StoreDirectory
from duetime_store.files.disk import Disk
from duetime_store.files.reserve import Reserve
from duetime_store.files.worker import FileWorker
from duetime_store.finding.destinations import IdFinder
from duetime_store.finding.finder import MessageFinder
from duetime_store.finding.index import Shape
from duetime_store.finding.indexer import Indexer
from duetime_store.finding.search import LogSearch
from duetime_store.finding.trace import MessageTraces
from duetime_store.groups import loading, snapshot
from duetime_store.groups.admin import GroupAdmin
from duetime_store.groups.calls import GroupCalls
from duetime_store.groups.dead_letters import DeadLetterCollector
from duetime_store.groups.expiry import LeaseExpirer
from duetime_store.groups.gates import DeliveryGates
from duetime_store.groups.groups import GroupRegistry
from duetime_store.groups.keys import KeyGates
from duetime_store.groups.lines import WaiterLines
from duetime_store.groups.lites import LiteFetcher, LitePlaces, LiteReceiver, brokers_offsets
from duetime_store.groups.metrics import GateCollector, GroupCollector
from duetime_store.groups.offsets import CommittedOffsets
from duetime_store.groups.pauses import GroupPauses
from duetime_store.groups.permits import GroupPermits
from duetime_store.groups.persistence import GroupKeeper
from duetime_store.groups.priorities import PriorityFetcher
from duetime_store.groups.receiving import GroupReceiver
from duetime_store.groups.retries import WaitingRetries
from duetime_store.groups.streams import ReceiveStreams, StreamParts
from duetime_store.groups.subscription_groups import SubscriptionGroups
from duetime_store.groups.topic_readers import TopicReaders
from duetime_store.groups.unread import FindUnread, unread
from duetime_store.lanes.alarm import ClockAlarm
from duetime_store.log.disk_thread import make_disk_thread
from duetime_store.metrics import StoreMetrics
from duetime_store.pending.backlog import BacklogCounter
from duetime_store.pending.cancelling import MessageCanceller
from duetime_store.pending.endnames import EndNamer
from duetime_store.pending.keys import UpsertKeys
from duetime_store.pending.listing import PendingList
from duetime_store.pending.replacing import MessageReplacer
from duetime_store.pending.retries import RetryResolver
from duetime_store.pending.schedule_counts import ScheduleCounter
from duetime_store.pending.scheduling import ScheduleKeeper
from duetime_store.pending.surveyor import Surveyor
from duetime_store.pending.targets import PendingTargets
from duetime_store.pending.zones import OccurrenceMover
from duetime_store.queues import queuetable
from duetime_store.queues.lites import Lites
from duetime_store.queues.queuetable import QueueTableFile
from duetime_store.queues.topics import TopicFile
from duetime_store.reading.lites import LiteFiller
from duetime_store.reading.reader import Reader
from duetime_store.reading.subscriptions import Subscriptions
from duetime_store.reading.turns import ScanTurns
from duetime_store.recovery.checkpointer import Checkpointer, CheckpointKeeper
from duetime_store.recovery.cutting import LogCut
from duetime_store.recovery.moving import PendingMover
from duetime_store.recovery.recovery import OpenedStore
from duetime_store.recovery.retention import Cleaner, Policy, SegmentDropper
from duetime_store.recovery.saving import LevelKeeper, keepers_of
from duetime_store.settings import StoreSettings
from duetime_store.transactions.checks import CheckDispatcher
from duetime_store.transactions.ending import TransactionResolver
from duetime_store.transactions.giving_up import TransactionExpirer
from duetime_store.transactions.looking import TransactionReader
from duetime_store.transactions.metrics import TransactionCollector
from duetime_store.transactions.preparing import TransactionPreparer
from duetime_store.transactions.results import SendResultMaker
from duetime_store.transactions.table import OpenTransactions
from duetime_store.writing.committing import Committer
from duetime_store.writing.flusher import Flusher
from duetime_store.writing.holding import RestoreHolder
from duetime_store.writing.late import LateWriter
from duetime_store.writing.metrics import ShardCollector
from duetime_store.writing.stand_ins import StandInAssigner
from duetime_store.writing.store import Store
from duetime_store.writing.watch import DiskWatch


@dataclass(frozen=True, slots=True)
class FileThreads:
    """The threads that write files for the event loop."""

    flush: Executor = field(default_factory=lambda: make_disk_thread("flush"))
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
class StoreBase:
    """The foundations of all parts."""

    settings: StoreSettings
    clock: Clock
    disk: Disk
    metrics: StoreMetrics
    registry: CollectorRegistry
    threads: FileThreads
    directory: StoreDirectory
    reserve: Reserve
    # The checkpoints' thread.
    worker: FileWorker
    # Shared by all scans: filters, searches, traces, listings.
    turns: ScanTurns
    committer: Committer


@dataclass(frozen=True, slots=True)
class StoreParts:
    """All parts of a shard; see the module."""

    store: Store
    alarm: ClockAlarm
    late: LateWriter
    watch: DiskWatch
    flusher: Flusher
    topics: TopicFile
    topic_calls: TopicCalls
    offsets: CommittedOffsets
    subscription_groups: SubscriptionGroups
    groups: GroupRegistry
    receiver: GroupReceiver
    expirer: LeaseExpirer
    group_calls: GroupCalls
    receive_streams: ReceiveStreams
    checkpointer: Checkpointer
    # None: the setting is off.
    indexer: Indexer | None
    reader: Reader
    lites: LiteFiller
    finder: MessageFinder
    by_id: IdFinder
    holding: RestoreHolder
    cancelling: MessageCanceller
    replacing: MessageReplacer
    schedules: ScheduleKeeper
    schedule_counts: ScheduleCounter
    occurrence_mover: OccurrenceMover
    end_names: EndNamer
    retry_ending: RetryResolver
    surveyor: Surveyor
    backlog: BacklogCounter
    pending_list: PendingList
    transactions: OpenTransactions
    preparing: TransactionPreparer
    ending: TransactionResolver
    looking: TransactionReader
    checks: CheckDispatcher
    giving_up: TransactionExpirer
    stand_ins: StandInAssigner
    cleaner: Cleaner
    exporter: Exporter
    subscriptions: Subscriptions
    traffic: Traffic
    metrics: StoreMetrics
    turns: ScanTurns


def make_parts(base: StoreBase, opened: OpenedStore) -> StoreParts:
    """Starts no loop and writes nothing."""
    settings, clock, metrics, turns = base.settings, base.clock, base.metrics, base.turns
    store, worker, shard = opened.store, base.worker, base.settings.shard
    _measure(base, store)
    alarm, traffic = ClockAlarm(store.clock), Traffic(settings.traffic_limits, base.registry)
    reader = Reader(store.log, store.lanes, store.clock, alarm, metrics, turns)
    late = LateWriter(store.queues.shared, worker, clock, metrics)
    watch, flusher = _make_flusher(base, store, late)
    topics, offsets = _make_topics(base, store), CommittedOffsets(worker, store, opened.offsets)
    groups, keeper = _make_groups(base, store, offsets, flusher, lines := WaiterLines())
    lites, filler, receiver = _make_receiver(base, opened, reader, groups, lines, offsets, flusher, alarm)
    configured, indexer = _make_configured(base, opened), _make_indexer(base, store)
    checkpointer = _make_checkpointer(base, opened, flusher, [keeper, configured, receiver.gates.pauses, topics])
    finder = MessageFinder(store, indexer, metrics, turns, shard=shard)
    retries, surveyor = _make_retries(base, store, groups), Surveyor(store.lanes, store.ledger, store.clock, turns)
    end_names = EndNamer(store.queues, store.log, store.indexed, reader, finder, turns)
    cancelling, replacing, schedules, retry_ending = _make_pending(base, store, finder, flusher, retries, end_names)
    admin = GroupAdmin(store, groups, offsets, retries, flusher, turns, lites, shard=shard)
    table, results = opened.transactions, SendResultMaker(store, shard=shard)
    giving_up, checks = _make_checks(base, opened, alarm, flusher)
    readers = TopicReaders(store.queues, store.log, groups, offsets, turns, lites, receiver.gates)
    backlog = BacklogCounter(store.lanes, store.ledger, store.clock, surveyor, turns)
    left = unread(store.queues, groups.progress, offsets, lites)
    return StoreParts(
        store=store,
        alarm=alarm,
        late=late,
        watch=watch,
        flusher=flusher,
        topics=topics,
        topic_calls=TopicCalls(store, topics, readers, backlog, retries, flusher, checkpointer, worker),
        offsets=offsets,
        subscription_groups=configured,
        groups=groups,
        receiver=receiver,
        expirer=LeaseExpirer(groups, alarm),
        group_calls=GroupCalls(store, reader, groups, receiver, admin, metrics, turns, shard=shard),
        receive_streams=ReceiveStreams(StreamParts(groups, receiver, flusher, turns, traffic.answers, metrics, shard)),
        checkpointer=checkpointer,
        indexer=indexer,
        reader=reader,
        lites=filler,
        finder=finder,
        by_id=IdFinder(store.queues.deletions, finder, MessageTraces(store, reader, finder, turns, shard=shard)),
        holding=RestoreHolder(store, flusher, alarm, bytes_max=settings.waiting_bytes_max),
        end_names=end_names,
        cancelling=cancelling,
        replacing=replacing,
        schedules=schedules,
        schedule_counts=ScheduleCounter(store.lanes, store.ledger, turns, shard=shard),
        occurrence_mover=_make_mover(base, store, replacing, reader, flusher),
        retry_ending=retry_ending,
        surveyor=surveyor,
        backlog=backlog,
        pending_list=PendingList(store.lanes, store.ledger, reader, turns),
        transactions=table,
        preparing=_make_preparing(base, opened, flusher),
        ending=TransactionResolver(store, table, results, flusher, turns),
        looking=TransactionReader(store.log, store.queues, store.halves, table, results, finder, turns, shard=shard),
        checks=checks,
        giving_up=giving_up,
        stand_ins=StandInAssigner(store.lanes, store.clock, metrics),
        cleaner=_make_cleaner(base, opened, reader, flusher, checkpointer, left, _dropping(groups, indexer)),
        exporter=_make_exporter(base, store),
        subscriptions=_make_subscriptions(base, store, reader, traffic),
        traffic=traffic,
        metrics=metrics,
        turns=turns,
    )


def _make_mover(
    base: StoreBase, store: Store, replacing: MessageReplacer, reader: Reader, flusher: Flusher
) -> OccurrenceMover:
    mover = OccurrenceMover(store, replacing, reader, flusher, base.worker, base.turns)
    base.metrics.zones_behind.set_function(lambda: not mover.done.is_set())
    return mover


def _measure(base: StoreBase, store: Store) -> None:
    turns, metrics = base.turns, base.metrics
    base.registry.register(ShardCollector(store))
    metrics.scanning_seconds.set_function(lambda: turns.taken_s)
    metrics.scans_waiting.set_function(lambda: turns.waiting_count)


def _make_subscriptions(base: StoreBase, store: Store, reader: Reader, traffic: Traffic) -> Subscriptions:
    used = store.queues, store.clock, reader, base.turns, traffic.answers, base.metrics
    return Subscriptions(*used, subscriptions_max=base.settings.subscriptions_max)


def _make_retries(base: StoreBase, store: Store, groups: GroupRegistry) -> WaitingRetries:
    retries = WaitingRetries(store, base.turns)
    base.registry.register(GroupCollector(groups, retries))
    return retries


def _make_pending(
    base: StoreBase, store: Store, finder: MessageFinder, flusher: Flusher, retries: WaitingRetries, end_names: EndNamer
) -> tuple[MessageCanceller, MessageReplacer, ScheduleKeeper, RetryResolver]:
    search, turns, metrics = LogSearch(store, finder), base.turns, base.metrics
    keys = UpsertKeys(search, turns)
    targets = PendingTargets(store.log, store.lanes, store.queues.deletions, search, turns)
    replacing = MessageReplacer(store, targets, keys, flusher, turns, metrics, end_names)
    ending = RetryResolver(store.lanes, store.gate, store.clock, retries, replacing, flusher, turns)
    schedules = ScheduleKeeper(store, keys, replacing, flusher, turns, shard=base.settings.shard)
    return MessageCanceller(store, targets, flusher, metrics), replacing, schedules, ending


def _make_exporter(base: StoreBase, store: Store) -> Exporter:
    settings = base.settings
    return Exporter(
        store,
        base.directory.root,
        base.clock,
        base.metrics,
        bytes_per_s=settings.export_bytes_per_s,
        exports_max=settings.exports_max,
    )


def _make_preparing(base: StoreBase, opened: OpenedStore, flusher: Flusher) -> TransactionPreparer:
    timeout_ms = base.settings.transaction_timeout_ms
    return TransactionPreparer(opened.store, opened.transactions, flusher, timeout_ms=timeout_ms)


def _make_checks(
    base: StoreBase, opened: OpenedStore, alarm: ClockAlarm, flusher: Flusher
) -> tuple[TransactionExpirer, CheckDispatcher]:
    settings, metrics, table = base.settings, base.metrics, opened.transactions
    clock = opened.store.clock
    base.registry.register(TransactionCollector(table, clock, transactions_max=settings.transactions_max))
    giving_up = TransactionExpirer(opened.store, table, alarm, flusher, metrics, keep_ms=settings.transaction_keep_ms)
    interval_ms = settings.transaction_check_interval_ms
    return giving_up, CheckDispatcher(opened.store, table, giving_up, alarm, flusher, metrics, interval_ms=interval_ms)


def _make_flusher(base: StoreBase, store: Store, late: LateWriter) -> tuple[DiskWatch, Flusher]:
    settings, clock, metrics = base.settings, base.clock, base.metrics
    watch = DiskWatch(store, late, base.worker, base.reserve, clock, metrics, used_max=settings.disk_used_max)
    flusher = Flusher(
        store,
        watch,
        base.threads.flush,
        clock,
        metrics,
        sync=settings.flush_mode == "sync",
        interval_ms=settings.flush_interval_ms,
        committer=base.committer,
    )
    return watch, flusher


def _make_checkpointer(
    base: StoreBase, opened: OpenedStore, flusher: Flusher, own: Sequence[CheckpointKeeper]
) -> Checkpointer:
    directory, settings, store, worker = base.directory, base.settings, opened.store, base.worker
    levels = [LevelKeeper(store, worker, settings.shard)] if settings.members else []
    return Checkpointer(
        store,
        worker,
        flusher,
        QueueTableFile(base.disk, directory.root / queuetable.FILE, directory.queues, opened.table),
        [*own, *levels, *keepers_of(store, opened.transactions, worker)],
        base.metrics,
        interval_ms=settings.checkpoint_ms,
        log_bytes=settings.checkpoint_bytes,
    )


def _make_groups(
    base: StoreBase, store: Store, offsets: CommittedOffsets, flusher: Flusher, lines: WaiterLines
) -> tuple[GroupRegistry, GroupKeeper]:
    settings = base.settings
    offsets.fit(store.queues)
    state = loading.load(base.directory.root / snapshot.FILE, store, offsets)
    progress = state.progress
    progress.bound(settings.leases_max, settings.groups_max, settings.group_queues_max, settings.lite_places_max)
    groups = GroupRegistry(
        store.queues, store.gate, store.clock, store.journal, progress, state.gone, lines, shard=settings.shard
    )
    received = {(key.group, key.queue_topic, key.queue) for key in progress.places}
    offsets.share(progress.queue_seats, received)
    base.registry.register(DeadLetterCollector(store.queues, state.gone))
    return groups, GroupKeeper(store, groups, offsets, flusher, base.worker)


def _make_receiver(
    base: StoreBase,
    opened: OpenedStore,
    reader: Reader,
    groups: GroupRegistry,
    lines: WaiterLines,
    offsets: CommittedOffsets,
    flusher: Flusher,
    alarm: ClockAlarm,
) -> tuple[Lites, LiteFiller, GroupReceiver]:
    settings, turns, metrics = base.settings, base.turns, base.metrics
    store = opened.store
    queues, clock = store.queues, store.clock
    lites = Lites(settings.lite_topics_max, metrics)
    places = LitePlaces(groups.progress, lines)
    filler = LiteFiller(queues, clock, reader, lites, turns, places, keep_ms=settings.lite_keep_ms)
    brokers = brokers_offsets(base.directory.config)
    lite_fetcher = LiteFetcher(queues, clock, reader, groups, lites, filler, brokers)
    permits = GroupPermits(clock)
    pauses = GroupPauses(base.worker, store, flusher, alarm, opened.changes.of(changes.PAUSES))
    gates = DeliveryGates(pauses, permits, KeyGates(permits, lines))
    base.registry.register(GateCollector(gates, groups))
    waiting = LiteReceiver(queues, store.log, clock, lite_fetcher, lines, filler, turns, gates)
    wait_ms = settings.priority_wait_ms
    fetcher = PriorityFetcher(queues, clock, reader, groups, wait_ms=wait_ms, claims=metrics.claims)
    return lites, filler, GroupReceiver(store, fetcher, groups, lines, offsets, flusher, turns, waiting)


def _make_topics(base: StoreBase, store: Store) -> TopicFile:
    worker = FileWorker(base.directory, base.threads.topics)
    return TopicFile(store.queues.counts, store.journal, store.gate, worker, base.clock)


def _make_configured(base: StoreBase, opened: OpenedStore) -> SubscriptionGroups:
    return SubscriptionGroups(base.worker, opened.store, opened.changes.of(changes.GROUPS))


def _make_indexer(base: StoreBase, store: Store) -> Indexer | None:
    settings, metrics = base.settings, base.metrics
    if not settings.index:
        return None
    shape = Shape(settings.index_slots, settings.index_entries)
    indexer = Indexer(store, base.worker, base.clock, shape=shape)
    metrics.index_behind.set_function(lambda: indexer.unread_bytes)
    return indexer


def _dropping(groups: GroupRegistry, indexer: Indexer | None) -> Callable[[int], Iterator[None]]:
    def dropped(position: int) -> Iterator[None]:
        """Drops everything before `position`, the new start of the log."""
        if indexer:
            indexer.drop_before(position)
        yield from groups.segment_left()

    return dropped


def _make_cleaner(
    base: StoreBase,
    opened: OpenedStore,
    reader: Reader,
    flusher: Flusher,
    checkpointer: Checkpointer,
    left: FindUnread,
    dropped: Callable[[int], Iterator[None]],
) -> Cleaner:
    settings, metrics, turns, store = base.settings, base.metrics, base.turns, opened.store
    cut = LogCut(store, flusher, base.committer, opened.changes.of(changes.CUT))
    policy = Policy(
        settings.retention_ms,
        settings.retention_bytes,
        settings.retention_hours,
        settings.disk_clean,
        settings.disk_force,
        settings.retention_check_ms,
    )
    mover = PendingMover(store, reader, flusher, metrics, turns)
    dropper = SegmentDropper(store.log, store.queues, mover, checkpointer, base.worker, turns, dropped, cut)
    return Cleaner(store, mover, dropper, base.disk, metrics, turns, policy=policy, unread=left)
