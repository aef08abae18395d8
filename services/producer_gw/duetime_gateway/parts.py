"""Creates and connects all parts of a gateway; starts nothing."""

import asyncio
import os
import secrets
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from duetime_core.access.credentials import Credentials
from duetime_core.audit.audit import Audit
from duetime_core.clock import Clock
from duetime_core.limits.traffic import Traffic
from duetime_core.limits.turns import Turns
from duetime_core.metadata import AuditTable, Database, Groups, Trail
from duetime_core.rpc.border import BorderParts
from duetime_core.rpc.serving import Server
from prometheus_client import CollectorRegistry

from duetime_gateway.access.book import Book
from duetime_gateway.access.gatekeeper import Gatekeeper
from duetime_gateway.access.metrics import AccessMetrics
from duetime_gateway.access.provider import Provider
from duetime_gateway.administration.backlog import Backlog
from duetime_gateway.administration.groups import ConsumerGroups
from duetime_gateway.administration.reports import JobReports
from duetime_gateway.administration.work import GroupWork
from duetime_gateway.consuming.leases import Leases
from duetime_gateway.consuming.offsets import GroupOffsets
from duetime_gateway.consuming.puller import Puller
from duetime_gateway.consuming.receiving import Receivers
from duetime_gateway.consuming.subscribing import Subscribing
from duetime_gateway.deleting import TopicDeletion
from duetime_gateway.face.acts import ACTS
from duetime_gateway.face.analysis_service import AnalysisService
from duetime_gateway.face.audit_service import AuditService
from duetime_gateway.face.batches import BatchService
from duetime_gateway.face.consumer_service import ConsumerService
from duetime_gateway.face.face import SERVICE_NAMES, Face
from duetime_gateway.face.gate import Gate
from duetime_gateway.face.identity_service import IdentityService
from duetime_gateway.face.lane_service import LaneService
from duetime_gateway.face.pending_service import PendingService
from duetime_gateway.face.permissions import RULES
from duetime_gateway.face.quota_service import QuotaService
from duetime_gateway.face.read_service import ReadService
from duetime_gateway.face.receive_streams import ReceiveStreamService
from duetime_gateway.face.scaler import Scaler
from duetime_gateway.face.send_service import SendService
from duetime_gateway.face.subscription_service import SubscriptionService
from duetime_gateway.face.topic_service import TopicService
from duetime_gateway.face.transaction_service import TransactionService
from duetime_gateway.finding.finder import Finder
from duetime_gateway.metrics import BacklogMetrics, GatewayMetrics, QuotaMetrics
from duetime_gateway.pending.asking import Holders
from duetime_gateway.pending.counting import Counting
from duetime_gateway.pending.ending import Ending
from duetime_gateway.pending.listing import Listing
from duetime_gateway.pending.matching import Matching
from duetime_gateway.pending.retries import Retries
from duetime_gateway.quotas.book import Book as QuotaBook
from duetime_gateway.quotas.keeper import Keeper
from duetime_gateway.quotas.pending import PendingCounts
from duetime_gateway.quotas.quotas import Quotas
from duetime_gateway.rocketmq.acking import Acks
from duetime_gateway.rocketmq.checking import Checking
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
from duetime_gateway.routing.places import Places
from duetime_gateway.routing.table import RouteTable
from duetime_gateway.routing.topics import Topics
from duetime_gateway.sending.drafts import Rules
from duetime_gateway.sending.encoding import Encoder
from duetime_gateway.sending.ids import MessageIds
from duetime_gateway.sending.sender import Sender, request_room
from duetime_gateway.settings import GatewaySettings
from duetime_gateway.shards.retry import RetryClient
from duetime_gateway.shards.shard import ShardListener, ShardOptions
from duetime_gateway.shards.shards import Shards
from duetime_gateway.transactions.checks import Desk
from duetime_gateway.transactions.ending import Ender
from duetime_gateway.transactions.listing import TransactionList
from duetime_gateway.transactions.preparing import Preparer
from duetime_gateway.transactions.producers import ProducerGroups
from duetime_gateway.transactions.taking import Reports, Taker
from duetime_gateway.transactions.watching import Watching

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
    credentials: Credentials
    metrics: GatewayMetrics
    traffic: Traffic
    database: Database
    groups: Groups
    retry: RetryClient

    @property
    def timeout_ms(self) -> int:
        """Longest time of a store's call."""
        return self.settings.store_timeout_ms


@dataclass(frozen=True)
class Routing:
    """Topics and the stores of their queues."""

    shards: Shards
    adoption: Adoption
    catalog: TopicCatalog
    topics: Topics
    places: Places


@dataclass(frozen=True)
class Transactions:
    """The parts for producers of transactions."""

    groups: ProducerGroups
    preparer: Preparer
    ender: Ender
    watching: Watching
    service: TransactionService


@dataclass(frozen=True)
class Limited:
    """The quotas of users and topics."""

    quotas: Quotas
    keeper: Keeper


@dataclass(frozen=True)
class AccessParts:
    """Users and their rights."""

    book: Book
    gatekeeper: Gatekeeper


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
    topics: Topics
    places: Places
    sender: Sender
    puller: Puller
    offsets: GroupOffsets
    leases: Leases
    backlog: Backlog
    transactions: Transactions
    quotas: Limited
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
    leases = Leases(topics, places, shards, base.groups, clock, metrics, tasks, timeout_ms=base.timeout_ms)
    backlog = Backlog(database, shards, clock, BacklogMetrics(registry))
    puller, offsets = Puller(places, metrics, timeout_ms=base.timeout_ms), GroupOffsets(places)
    ending = _make_ending(base, routing)
    transactions = _make_transactions(base, routing, sender)
    subscribing = Subscribing(places, traffic.answers, metrics, tasks, subscriptions_max=settings.subscriptions_max)
    services = (
        ReadService(puller, offsets, Finder(places, timeout_ms=base.timeout_ms), traffic.answers),
        TopicService(topics, TopicDeletion(topics, routing.catalog, shards, base.retry, limited.keeper), places),
        BatchService(sender, metrics),
        ConsumerService(leases, ConsumerGroups(base.groups, places, shards, clock), base.retry, traffic.answers),
        SubscriptionService(subscribing),
        AnalysisService(shards, backlog, JobReports(database, shards, backlog), metrics),
        LaneService(shards, database),
        AuditService(AuditTable(database)),
        IdentityService(),
    )
    streams = ReceiveStreamService(_make_receivers(base, routing, leases), traffic.answers, tasks)
    pending = _make_pending(base, routing, ending)
    face = Face(
        services,
        (SendService(sender, tasks), streams, pending, transactions.service),
        QuotaService(limited.quotas, limited.keeper),
        Gate(limited.quotas),
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
        groups=Groups(database, clock),
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
            turns=None if access is None else Turns(base.clock, base.registry),
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
    book = Book(base.database, clock, metrics, settings.rights_keep_ms)
    provider = _tokens(settings.provider, clock) if settings.provider is not None else None
    rules = {**RULES, **ROCKETMQ_RULES} if settings.rocketmq else RULES
    return AccessParts(book, Gatekeeper(book, rules, clock, metrics, provider, settings.seal))


def _make_rocketmq(
    base: Base,
    routing: Routing,
    sender: Sender,
    transactions: Transactions,
    ending: Ending,
    leases: Leases,
    limited: Limited,
) -> RocketMQ:
    settings, clock, tasks, groups, places = base.settings, base.clock, base.tasks, base.groups, routing.places
    metrics, clients = RocketMQMetrics(base.registry), Clients(clock)
    metrics.clients.set_function(clients.__len__)
    renewals, acks = Renewals(leases, clients, clock, metrics), Acks(leases, clock, tasks)
    ids = TransactionIds(TransactionList(routing.shards, places, timeout_ms=base.timeout_ms))
    checking = Checking(transactions.watching, transactions.groups, ids, clock, tasks)
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


def _make_ending(base: Base, routing: Routing) -> Ending:
    holders, least = Holders(routing.places, routing.shards), int(base.settings.refuse_empty_bodies)
    return Ending(holders, routing.topics, base.clock, timeout_ms=base.timeout_ms, body_bytes_min=least)


def _make_scaler(base: Base, routing: Routing) -> Scaler:
    places, shards = routing.places, routing.shards
    described = ConsumerGroups(base.groups, places, shards, base.clock)
    return Scaler(shards, GroupWork(described, places, shards, timeout_ms=base.timeout_ms), base.clock)


def _make_receivers(base: Base, routing: Routing, leases: Leases) -> Receivers:
    return Receivers(
        leases,
        routing.places,
        routing.shards,
        base.metrics,
        timeout_ms=base.timeout_ms,
        receivers_max=base.settings.receive_streams_max,
    )


def _make_pending(base: Base, routing: Routing, ending: Ending) -> PendingService:
    holders, clock = Holders(routing.places, routing.shards), base.clock
    listing = Listing(holders, routing.places, timeout_ms=base.timeout_ms)
    return PendingService(
        ending,
        Matching(holders, clock),
        listing,
        Counting(holders, timeout_ms=base.timeout_ms),
        Retries(base.groups, listing, routing.shards, clock),
        base.traffic.answers,
    )


def _make_transactions(base: Base, routing: Routing, sender: Sender) -> Transactions:
    clock, tasks, metrics = base.clock, base.tasks, base.metrics.transactions
    timeout_ms, places, shards = base.timeout_ms, routing.places, routing.shards
    groups = ProducerGroups(base.database, clock)
    ender = Ender(places, shards, clock, metrics, tasks, timeout_ms=timeout_ms)
    reports, gateway = Reports(shards.all(), clock, tasks), f"{socket.gethostname()}:{os.getpid()}"
    desk = Desk(clock, metrics, reports.add, watchers_max=base.settings.watchers_max)
    takers = [Taker(shard, desk, clock, gateway=gateway, timeout_ms=timeout_ms) for shard in shards.all()]
    watching = Watching(groups, shards, ender, desk, reports, takers, tasks)
    listing = TransactionList(shards, places, timeout_ms=timeout_ms)
    preparer = Preparer(sender, groups)
    service = TransactionService(preparer, ender, watching, listing, places, base.traffic.answers)
    return Transactions(groups, preparer, ender, watching, service)


def _make_routing(base: Base) -> Routing:
    settings, clock = base.settings, base.clock
    table = RouteTable(base.metrics)
    queues_max = settings.queues_max * len(settings.store_addresses)
    catalog = TopicCatalog(base.database, clock, topics_max=settings.topics_max, queues_max=queues_max)
    adoption = Adoption(table, catalog, base.groups)
    options = ShardOptions(settings.levels, base.credentials, base.timeout_ms, settings.waiting_bytes_max)
    listener = ShardListener(reached=adoption.reached, lost=table.forget_shard)
    shards = Shards(settings.store_addresses, options, clock, base.metrics, base.tasks, listener)
    topics = Topics(
        table,
        catalog,
        MissingTopics(adoption, shards, clock),
        shards.numbers,
        clock,
        base.tasks,
        queue_count_default=settings.queue_count_default,
        auto_create=settings.auto_create_topics,
    )
    return Routing(shards, adoption, catalog, topics, Places(topics, shards, lane_count=settings.levels.highest))


def _make_sender(base: Base, routing: Routing, quotas: Quotas) -> Sender:
    settings, clock, metrics = base.settings, base.clock, base.metrics
    ids = MessageIds(settings.host, os.getpid(), secrets.token_bytes(4), clock.now_ms)
    requests = request_room(settings.request_bytes_max)
    metrics.follow_requests(requests)
    encoder = Encoder(Rules(settings.levels, ids, body_bytes_min=int(settings.refuse_empty_bodies)))
    return Sender(routing.topics, routing.shards, encoder, clock, metrics, requests, quotas, base.timeout_ms)


def _make_quotas(base: Base, routing: Routing) -> Limited:
    quotas = Quotas(base.clock)
    # One process may run several gateways.
    book = QuotaBook(base.database, f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}")
    counts = PendingCounts(quotas, routing.places, routing.shards)
    return Limited(quotas, Keeper(quotas, book, counts, base.clock, QuotaMetrics(base.registry)))
