"""Creates and connects all parts of a gateway; starts nothing."""

import asyncio
import os
import secrets
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from duetime_core.access.credentials import ClusterCredentials
from duetime_core.audit.audit import Audit
from duetime_core.clock import Clock
from duetime_core.limits.traffic import Traffic
from duetime_core.limits.turns import RequestTurns
from duetime_core.metadata import AuditTable, Database, GroupTable, Trail
from duetime_core.rpc.border import BorderParts
from duetime_core.rpc.serving import Server
from prometheus_client import CollectorRegistry

from duetime_gateway.access.book import UserBook
from duetime_gateway.access.gatekeeper import AccessGatekeeper
from duetime_gateway.access.metrics import AccessMetrics
from duetime_gateway.access.provider import Provider
from duetime_gateway.administration.backlog import BacklogComparer
from duetime_gateway.administration.groups import ConsumerGroups
from duetime_gateway.administration.pauses import DeliveryPauses
from duetime_gateway.administration.reports import JobReports
from duetime_gateway.administration.webhooks import WebhookRegistry
from duetime_gateway.administration.work import GroupWork
from duetime_gateway.consuming.leases import LeaseRouter
from duetime_gateway.consuming.offsets import OffsetRouter
from duetime_gateway.consuming.puller import QueuePuller
from duetime_gateway.consuming.receiving import Receivers
from duetime_gateway.consuming.subscribing import GatewaySubscriptions
from duetime_gateway.deleting import TopicDeletion
from duetime_gateway.face.acts import ACTS
from duetime_gateway.face.analysis_service import AnalysisService
from duetime_gateway.face.audit_service import AuditService
from duetime_gateway.face.batches import BatchService
from duetime_gateway.face.consumer_service import ConsumerService
from duetime_gateway.face.face import SERVICE_NAMES, Face
from duetime_gateway.face.gate import QuotaGate
from duetime_gateway.face.identity_service import IdentityService
from duetime_gateway.face.lane_service import LaneService
from duetime_gateway.face.pending_service import PendingService
from duetime_gateway.face.permissions import RULES
from duetime_gateway.face.quota_service import QuotaService
from duetime_gateway.face.read_service import ReadService
from duetime_gateway.face.receive_streams import ReceiveStreamService
from duetime_gateway.face.scaler import Scaler
from duetime_gateway.face.schedule_service import ScheduleService
from duetime_gateway.face.send_service import SendService
from duetime_gateway.face.subscription_service import SubscriptionService
from duetime_gateway.face.topic_service import TopicService
from duetime_gateway.face.transaction_service import TransactionService
from duetime_gateway.face.webhook_service import WebhookService
from duetime_gateway.finding.finder import GatewayFinder
from duetime_gateway.metrics import BacklogMetrics, GatewayMetrics, QuotaMetrics
from duetime_gateway.pending.asking import Holders
from duetime_gateway.pending.counting import PendingCounter
from duetime_gateway.pending.ending import PendingResolver
from duetime_gateway.pending.listing import PendingLister
from duetime_gateway.pending.matching import MatchCanceller
from duetime_gateway.pending.retries import WaitingRetryResolver
from duetime_gateway.pending.schedules import ScheduleRouter
from duetime_gateway.quotas.book import QuotaBook
from duetime_gateway.quotas.keeper import QuotaKeeper
from duetime_gateway.quotas.pending import PendingCounts
from duetime_gateway.quotas.quotas import Quotas
from duetime_gateway.rocketmq.acking import Acks
from duetime_gateway.rocketmq.checking import CheckForwarder
from duetime_gateway.rocketmq.clients import Clients
from duetime_gateway.rocketmq.consuming import Consumers
from duetime_gateway.rocketmq.face import RocketMQFace, RocketMQParts
from duetime_gateway.rocketmq.lites import LiteSubscriptions
from duetime_gateway.rocketmq.metrics import RocketMQMetrics
from duetime_gateway.rocketmq.permissions import ROCKETMQ_RULES, SERVICE_NAME
from duetime_gateway.rocketmq.queues import QueueCalls
from duetime_gateway.rocketmq.receipts import HandleCalls
from duetime_gateway.rocketmq.renewing import Renewals
from duetime_gateway.rocketmq.sending import Producers
from duetime_gateway.rocketmq.telemetry import SettingsAnswerer, Telemetry
from duetime_gateway.rocketmq.transactions import TransactionIds
from duetime_gateway.rocketmq.wire.pool import with_others
from duetime_gateway.routing.adoption import Adoption, MissingTopics
from duetime_gateway.routing.catalog import TopicCatalog
from duetime_gateway.routing.places import QueueLocator
from duetime_gateway.routing.table import RouteTable
from duetime_gateway.routing.topics import TopicRegistry
from duetime_gateway.sending.drafts import EncodingRules
from duetime_gateway.sending.encoding import Encoder
from duetime_gateway.sending.ids import MessageIds
from duetime_gateway.sending.sender import Sender, request_room
from duetime_gateway.settings import GatewaySettings
from duetime_gateway.shards.retry import RetryClient
from duetime_gateway.shards.shard import ShardListener, ShardOptions
from duetime_gateway.shards.shards import Shards
from duetime_gateway.transactions.checks import Desk
from duetime_gateway.transactions.ending import DecisionRouter
from duetime_gateway.transactions.listing import TransactionList
from duetime_gateway.transactions.preparing import Preparer
from duetime_gateway.transactions.producers import ProducerGroups
from duetime_gateway.transactions.taking import CheckReporter, CheckTaker
from duetime_gateway.transactions.watching import WatcherRegistry

if TYPE_CHECKING:
    from duetime_gateway.access.oidc import Tokens

# Services of every process.
PROBES = ("grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection")


@dataclass(frozen=True)
class Base:
    """The foundations of all parts."""

    settings: GatewaySettings
    clock: Clock
    registry: CollectorRegistry
    # The parent of every task; entered by the node.
    tasks: asyncio.TaskGroup
    credentials: ClusterCredentials
    metrics: GatewayMetrics
    traffic: Traffic
    database: Database
    groups: GroupTable
    retry: RetryClient

    @property
    def timeout_ms(self) -> int:
        """Longest time of a store's call."""
        return self.settings.store_timeout_ms


@dataclass(frozen=True)
class RoutingParts:
    """Topics and the stores of their queues."""

    shards: Shards
    adoption: Adoption
    catalog: TopicCatalog
    topics: TopicRegistry
    places: QueueLocator


@dataclass(frozen=True)
class Transactions:
    """The parts for producers of transactions."""

    groups: ProducerGroups
    preparer: Preparer
    ender: DecisionRouter
    watching: WatcherRegistry
    service: TransactionService


@dataclass(frozen=True)
class QuotaParts:
    """The quotas of users and topics."""

    quotas: Quotas
    keeper: QuotaKeeper


@dataclass(frozen=True)
class AccessParts:
    """Users and their rights."""

    book: UserBook
    gatekeeper: AccessGatekeeper


@dataclass(frozen=True)
class RocketMQ:
    """The parts for RocketMQ's clients."""

    face: RocketMQFace
    renewals: Renewals


@dataclass(frozen=True)
class GatewayParts:
    """The parts that a node starts and stops."""

    # The parent of every task; entered by the node.
    tasks: asyncio.TaskGroup
    database: Database
    shards: Shards
    retry: RetryClient
    adoption: Adoption
    topics: TopicRegistry
    places: QueueLocator
    sender: Sender
    puller: QueuePuller
    offsets: OffsetRouter
    leases: LeaseRouter
    backlog: BacklogComparer
    transactions: Transactions
    quotas: QuotaParts
    trail: Trail
    face: Face
    # None: RocketMQ's clients are not served.
    rocketmq: RocketMQ | None
    server: Server
    # None: users are off.
    access: AccessParts | None


def make_parts(settings: GatewaySettings, clock: Clock, registry: CollectorRegistry) -> GatewayParts:
    """Called within a running event loop."""
    base = _make_base(settings, clock, registry)
    tasks, database, metrics, traffic = base.tasks, base.database, base.metrics, base.traffic
    routing = _make_routing(base)
    shards, topics, places = routing.shards, routing.topics, routing.places
    limited = _make_quotas(base, routing)
    sender = _make_sender(base, routing, limited.quotas)
    leases = LeaseRouter(topics, places, shards, base.groups, clock, metrics, tasks, timeout_ms=base.timeout_ms)
    backlog = BacklogComparer(database, shards, clock, BacklogMetrics(registry))
    puller, offsets = QueuePuller(places, metrics, timeout_ms=base.timeout_ms), OffsetRouter(places)
    ending = _make_ending(base, routing)
    transactions = _make_transactions(base, routing, sender)
    subscribing = GatewaySubscriptions(
        places, traffic.answers, metrics, tasks, subscriptions_max=settings.subscriptions_max
    )
    services = (
        ReadService(puller, offsets, GatewayFinder(places, timeout_ms=base.timeout_ms), traffic.answers),
        TopicService(
            topics,
            TopicDeletion(topics, routing.catalog, shards, base.retry, limited.keeper),
            places,
            DeliveryPauses(places, shards),
        ),
        BatchService(sender, metrics),
        ConsumerService(leases, ConsumerGroups(base.groups, places, shards, clock), base.retry, traffic.answers),
        SubscriptionService(subscribing),
        AnalysisService(shards, backlog, JobReports(database, shards, backlog), metrics),
        LaneService(shards, database),
        _make_schedules(base, routing, sender),
        WebhookService(WebhookRegistry(database, topics, clock, settings.seal)),
        AuditService(AuditTable(database)),
        IdentityService(),
    )
    streams = ReceiveStreamService(_make_receivers(base, routing, leases), traffic.answers, tasks)
    pending = _make_pending(base, routing, ending)
    face = Face(
        services,
        (SendService(sender, tasks), streams, pending, transactions.service),
        QuotaService(limited.quotas, limited.keeper),
        QuotaGate(limited.quotas),
        _make_scaler(base, routing),
    )
    access = _make_access(base)
    trail = Trail("gateway", database, clock, registry, settings.audit_keep_days)
    server = _make_server(base, trail, access)
    used = routing, sender, transactions, ending, leases, limited
    rocketmq = _make_rocketmq(base, *used) if settings.rocketmq else None
    _add_faces(server, access, face, rocketmq)
    return GatewayParts(
        tasks=tasks,
        database=database,
        shards=shards,
        retry=base.retry,
        adoption=routing.adoption,
        topics=topics,
        places=places,
        sender=sender,
        puller=puller,
        offsets=offsets,
        leases=leases,
        backlog=backlog,
        transactions=transactions,
        quotas=limited,
        trail=trail,
        face=face,
        rocketmq=rocketmq,
        server=server,
        access=access,
    )


def _make_base(settings: GatewaySettings, clock: Clock, registry: CollectorRegistry) -> Base:
    database, credentials = Database(settings.database_url, registry), settings.credentials(registry)
    return Base(
        settings=settings,
        clock=clock,
        registry=registry,
        tasks=asyncio.TaskGroup(),
        credentials=credentials,
        metrics=GatewayMetrics(registry),
        traffic=Traffic(settings.traffic_limits, registry),
        database=database,
        groups=GroupTable(database, clock),
        retry=RetryClient(settings.retry_address, settings.store_timeout_ms, credentials),
    )


def _add_faces(server: Server, access: AccessParts | None, face: Face, rocketmq: RocketMQ | None) -> None:
    refused = access.gatekeeper.note if access is not None else None
    face.add_to(server.grpc, refused)
    if rocketmq is not None:
        rocketmq.face.add_to(server.grpc, refused)


def _make_server(base: Base, trail: Trail, access: AccessParts | None) -> Server:
    settings = base.settings
    return Server(
        (*SERVICE_NAMES, SERVICE_NAME) if settings.rocketmq else SERVICE_NAMES,
        settings.calls_in_flight_max,
        base.registry,
        credentials=base.credentials,
        parts=BorderParts(
            base.traffic,
            Audit(base.clock, ACTS, trail.add),
            gatekeeper=None if access is None else access.gatekeeper,
            # While users are off, all callers would share one turn.
            turns=None if access is None else RequestTurns(base.clock, base.registry),
        ),
        descriptors=with_others((*SERVICE_NAMES, *PROBES)) if settings.rocketmq else None,
        asked=settings.asks_for_certificates,
    )


def _tokens(provider: Provider, clock: Clock) -> "Tokens":
    # Imported where it is needed: a start without a provider need not wait for the libraries of its tokens.
    from duetime_gateway.access.oidc import Tokens

    return Tokens(provider, clock)


def _make_access(base: Base) -> AccessParts | None:
    settings, clock = base.settings, base.clock
    if not settings.asks_who_calls:
        return None
    metrics = AccessMetrics(base.registry)
    book = UserBook(base.database, clock, metrics, settings.rights_keep_ms)
    provider = _tokens(settings.provider, clock) if settings.provider is not None else None
    rules = {**RULES, **ROCKETMQ_RULES} if settings.rocketmq else RULES
    return AccessParts(book, AccessGatekeeper(book, rules, clock, metrics, provider, settings.seal))


def _make_rocketmq(
    base: Base,
    routing: RoutingParts,
    sender: Sender,
    transactions: Transactions,
    ending: PendingResolver,
    leases: LeaseRouter,
    limited: QuotaParts,
) -> RocketMQ:
    settings, clock, tasks, groups, places = base.settings, base.clock, base.tasks, base.groups, routing.places
    metrics, clients = RocketMQMetrics(base.registry), Clients(clock)
    metrics.clients.set_function(clients.__len__)
    renewals, acks = Renewals(leases, clients, clock, metrics), Acks(leases, clock, tasks)
    ids = TransactionIds(TransactionList(routing.shards, places, timeout_ms=base.timeout_ms))
    checking = CheckForwarder(transactions.watching, transactions.groups, ids, clock, tasks)
    lites = LiteSubscriptions(
        *(leases, places, clock, metrics, tasks), subscriptions_max=settings.rocketmq_lite_subscriptions_max
    )
    clients.forgot = lites.gone
    levels, endpoint = settings.levels, settings.rocketmq_endpoint
    answerer = SettingsAnswerer(groups, checking, lites, levels, endpoint)
    consumers = Consumers(
        *(leases, groups, places, renewals, lites, base.traffic.answers, metrics), polls_max=settings.rocketmq_polls_max
    )
    streams_max = settings.rocketmq_streams_max
    telemetry = Telemetry(answerer, checking, lites, clock, metrics, tasks, streams_max=streams_max)
    parts = RocketMQParts(
        clients=clients,
        producers=Producers(sender, transactions.preparer, transactions.ender, ending, places, checking, ids),
        consumers=consumers,
        handles=HandleCalls(leases, acks, renewals, groups, base.retry, levels, clock, tasks),
        queues=QueueCalls(places, groups, endpoint),
        lites=lites,
        renewals=renewals,
        telemetry=telemetry,
        checking=checking,
        quotas=limited.quotas,
        metrics=metrics,
        clock=clock,
    )
    return RocketMQ(RocketMQFace(parts), renewals)


def _make_ending(base: Base, routing: RoutingParts) -> PendingResolver:
    holders, least = Holders(routing.places, routing.shards), int(base.settings.refuse_empty_bodies)
    return PendingResolver(holders, routing.topics, base.clock, timeout_ms=base.timeout_ms, body_bytes_min=least)


def _make_scaler(base: Base, routing: RoutingParts) -> Scaler:
    places, shards = routing.places, routing.shards
    described = ConsumerGroups(base.groups, places, shards, base.clock)
    return Scaler(shards, GroupWork(described, places, shards, timeout_ms=base.timeout_ms), base.clock)


def _make_receivers(base: Base, routing: RoutingParts, leases: LeaseRouter) -> Receivers:
    return Receivers(
        leases,
        routing.places,
        routing.shards,
        base.metrics,
        timeout_ms=base.timeout_ms,
        receivers_max=base.settings.receive_streams_max,
    )


def _make_pending(base: Base, routing: RoutingParts, ending: PendingResolver) -> PendingService:
    holders, clock = Holders(routing.places, routing.shards), base.clock
    listing = PendingLister(holders, routing.places, timeout_ms=base.timeout_ms)
    return PendingService(
        ending,
        MatchCanceller(holders, clock),
        listing,
        PendingCounter(holders, timeout_ms=base.timeout_ms),
        WaitingRetryResolver(base.groups, listing, routing.shards, clock),
        base.traffic.answers,
    )


def _make_schedules(base: Base, routing: RoutingParts, sender: Sender) -> ScheduleService:
    timeout_ms, clock = base.timeout_ms, base.clock
    holders = Holders(routing.places, routing.shards)
    listing = PendingLister(holders, routing.places, timeout_ms=timeout_ms)
    router = ScheduleRouter(routing.topics, routing.shards, sender, listing, clock, timeout_ms=timeout_ms)
    return ScheduleService(router, PendingCounter(holders, timeout_ms=timeout_ms), base.traffic.answers)


def _make_transactions(base: Base, routing: RoutingParts, sender: Sender) -> Transactions:
    clock, tasks, metrics = base.clock, base.tasks, base.metrics.transactions
    timeout_ms, places, shards = base.timeout_ms, routing.places, routing.shards
    groups = ProducerGroups(base.database, clock)
    ender = DecisionRouter(places, shards, clock, metrics, tasks, timeout_ms=timeout_ms)
    reports, gateway = CheckReporter(shards.all(), clock, tasks), f"{socket.gethostname()}:{os.getpid()}"
    desk = Desk(clock, metrics, reports.add, watchers_max=base.settings.watchers_max)
    takers = [CheckTaker(shard, desk, clock, gateway=gateway, timeout_ms=timeout_ms) for shard in shards.all()]
    watching = WatcherRegistry(groups, shards, ender, desk, reports, takers, tasks)
    listing = TransactionList(shards, places, timeout_ms=timeout_ms)
    preparer = Preparer(sender, groups)
    service = TransactionService(preparer, ender, watching, listing, places, base.traffic.answers)
    return Transactions(groups, preparer, ender, watching, service)


def _make_routing(base: Base) -> RoutingParts:
    settings, clock = base.settings, base.clock
    table = RouteTable(base.metrics)
    queues_max = settings.queues_max * len(settings.store_addresses)
    catalog = TopicCatalog(base.database, clock, topics_max=settings.topics_max, queues_max=queues_max)
    adoption = Adoption(table, catalog, base.groups)
    options = ShardOptions(settings.levels, base.credentials, base.timeout_ms, settings.waiting_bytes_max)
    listener = ShardListener(reached=adoption.reached, lost=table.forget_shard)
    shards = Shards(settings.store_addresses, options, clock, base.metrics, base.tasks, listener)
    topics = TopicRegistry(
        table,
        catalog,
        MissingTopics(adoption, shards, clock),
        shards.numbers,
        clock,
        base.tasks,
        queue_count_default=settings.queue_count_default,
        auto_create=settings.auto_create_topics,
    )
    return RoutingParts(
        shards, adoption, catalog, topics, QueueLocator(topics, shards, lane_count=settings.levels.highest)
    )


def _make_sender(base: Base, routing: RoutingParts, quotas: Quotas) -> Sender:
    settings, clock, metrics = base.settings, base.clock, base.metrics
    ids = MessageIds(settings.host, os.getpid(), secrets.token_bytes(4), clock.now_ms)
    requests = request_room(settings.request_bytes_max)
    metrics.follow_requests(requests)
    encoder = Encoder(EncodingRules(settings.levels, ids, body_bytes_min=int(settings.refuse_empty_bodies)))
    return Sender(routing.topics, routing.shards, encoder, clock, metrics, requests, quotas, base.timeout_ms)


def _make_quotas(base: Base, routing: RoutingParts) -> QuotaParts:
    quotas = Quotas(base.clock)
    # One process may run several gateways.
    book = QuotaBook(base.database, f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}")
    counts = PendingCounts(quotas, routing.places, routing.shards)
    return QuotaParts(quotas, QuotaKeeper(quotas, book, counts, base.clock, QuotaMetrics(base.registry)))
