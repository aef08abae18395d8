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
from duetime_gateway.face.lane_service import LaneService
from duetime_gateway.face.pending_service import PendingService
from duetime_gateway.face.permissions import RULES
from duetime_gateway.face.quota_service import QuotaService
from duetime_gateway.face.receive_streams import ReceiveStreamService
from duetime_gateway.face.scaler import Scaler
from duetime_gateway.face.service import GatewayService
from duetime_gateway.face.subscription_service import SubscriptionService
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
from duetime_gateway.rocketmq.renewing import Renewals
from duetime_gateway.rocketmq.sending import Producers
from duetime_gateway.rocketmq.telemetry import Telemetry
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
from duetime_gateway.transactions.ending import Ender
from duetime_gateway.transactions.listing import TransactionList
from duetime_gateway.transactions.preparing import Preparer
from duetime_gateway.transactions.producers import ProducerGroups
from duetime_gateway.transactions.watching import Watching

if TYPE_CHECKING:
    from duetime_gateway.access.oidc import Tokens

# Services of every process.
PROBES = ("grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection")


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
    tasks = asyncio.TaskGroup()
    metrics = GatewayMetrics(registry)
    traffic = Traffic(settings.traffic_limits, registry)
    database = Database(settings.database_url, registry)
    groups = Groups(database, clock)
    credentials = settings.credentials(registry)
    retry = RetryClient(settings.retry_address, settings.store_timeout_ms, credentials)
    routing = _make_routing(settings, credentials, clock, metrics, database, groups, tasks)
    shards, topics, places = routing.shards, routing.topics, routing.places
    timeout_ms = settings.store_timeout_ms
    limited = _make_quotas(clock, registry, database, routing)
    sender = _make_sender(settings, clock, metrics, routing, limited.quotas)
    leases = Leases(topics, places, shards, groups, clock, metrics, tasks, timeout_ms=timeout_ms)
    backlog = Backlog(database, shards, clock, BacklogMetrics(registry))
    reports = JobReports(database, shards, backlog)
    puller, offsets = Puller(places, metrics, timeout_ms=timeout_ms), GroupOffsets(places)
    service = GatewayService(
        *(sender, puller, offsets),
        Finder(places, timeout_ms=timeout_ms),
        topics,
        TopicDeletion(topics, routing.catalog, shards, retry, limited.keeper),
        places,
        shards,
        database,
        retry,
        traffic.answers,
        tasks,
    )
    consumers = ConsumerService(leases, ConsumerGroups(groups, places, shards, clock), retry, traffic.answers)
    receivers_max = settings.receive_streams_max
    receivers = Receivers(leases, places, shards, metrics, timeout_ms=timeout_ms, receivers_max=receivers_max)
    streams = ReceiveStreamService(receivers, traffic.answers, tasks)
    ending = _make_ending(settings, clock, routing)
    pending = _make_pending(settings, clock, groups, routing, traffic, ending)
    transactions = _make_transactions(settings, clock, metrics, database, routing, sender, traffic, tasks)
    subscribing = Subscribing(places, traffic.answers, metrics, tasks, subscriptions_max=settings.subscriptions_max)
    batches, analysis = BatchService(sender, metrics), AnalysisService(shards, backlog, reports, metrics)
    reading = SubscriptionService(subscribing), streams
    parts = service, batches, consumers, *reading, pending, transactions.service, analysis
    others = LaneService(database), QuotaService(limited.quotas, limited.keeper), AuditService(AuditTable(database))
    face = Face(*parts, *others, _make_scaler(settings, clock, routing, groups), Gate(limited.quotas))
    access = _make_access(settings, clock, registry, database)
    trail = Trail("gateway", database, clock, registry, settings.audit_keep_days)
    server = _make_server(settings, credentials, clock, registry, traffic, trail, access)
    used = sender, transactions, ending, leases, groups, routing, retry, traffic, limited
    rocketmq = _make_rocketmq(settings, clock, registry, tasks, *used) if settings.rocketmq else None
    _add_faces(server, access, face, rocketmq)
    return GatewayParts(
        tasks=tasks,
        database=database,
        shards=shards,
        retry=retry,
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


def _add_faces(server: Server, access: AccessParts | None, face: Face, rocketmq: RocketMQ | None) -> None:
    refused = access.gatekeeper.note if access is not None else None
    face.add_to(server.grpc, refused)
    if rocketmq is not None:
        rocketmq.face.add_to(server.grpc, refused)


def _make_server(
    settings: GatewaySettings,
    credentials: Credentials,
    clock: Clock,
    registry: CollectorRegistry,
    traffic: Traffic,
    trail: Trail,
    access: AccessParts | None,
) -> Server:
    return Server(
        (*SERVICE_NAMES, SERVICE_NAME) if settings.rocketmq else SERVICE_NAMES,
        settings.calls_in_flight_max,
        registry,
        credentials=credentials,
        traffic=traffic,
        audit=Audit(clock, ACTS, trail.add),
        gatekeeper=None if access is None else access.gatekeeper,
        # While users are off, all callers would share one turn.
        turns=None if access is None else Turns(clock, registry),
        descriptors=with_others((*SERVICE_NAMES, *PROBES)) if settings.rocketmq else None,
        asked=settings.asks_for_certificates,
    )


def _tokens(provider: Provider, clock: Clock) -> "Tokens":
    # Imported where it is needed: a start without a provider need not wait for the libraries of its tokens.
    from duetime_gateway.access.oidc import Tokens

    return Tokens(provider, clock)


def _make_access(
    settings: GatewaySettings, clock: Clock, registry: CollectorRegistry, database: Database
) -> AccessParts | None:
    if not settings.asks_who_calls:
        return None
    metrics = AccessMetrics(registry)
    book = Book(database, clock, metrics, settings.rights_keep_ms)
    provider = _tokens(settings.provider, clock) if settings.provider is not None else None
    rules = {**RULES, **ROCKETMQ_RULES} if settings.rocketmq else RULES
    return AccessParts(book, Gatekeeper(book, rules, clock, metrics, provider, settings.seal))


def _make_rocketmq(
    settings: GatewaySettings,
    clock: Clock,
    registry: CollectorRegistry,
    tasks: asyncio.TaskGroup,
    sender: Sender,
    transactions: Transactions,
    ending: Ending,
    leases: Leases,
    groups: Groups,
    routing: Routing,
    retry: RetryClient,
    traffic: Traffic,
    limited: Limited,
) -> RocketMQ:
    metrics, clients = RocketMQMetrics(registry), Clients(clock)
    metrics.clients.set_function(clients.__len__)
    renewals, acks = Renewals(leases, clients, clock, metrics), Acks(leases, clock, tasks)
    endpoint, levels, places = settings.rocketmq_endpoint, settings.levels, routing.places
    ids = TransactionIds(TransactionList(routing.shards, places, timeout_ms=settings.store_timeout_ms))
    checking = Checking(transactions.watching, transactions.groups, ids, clock, tasks)
    preparer, ender = transactions.preparer, transactions.ender
    lites = LiteSubscriptions(
        *(leases, places, clock, metrics, tasks), subscriptions_max=settings.rocketmq_lite_subscriptions_max
    )
    clients.forgot = lites.gone
    producers = Producers(sender, preparer, ender, ending, places, checking, ids, endpoint=endpoint)
    consumers = Consumers(
        *(leases, groups, places, retry, renewals, acks, lites, traffic.answers, levels, clock, metrics, tasks),
        endpoint=endpoint,
        polls_max=settings.rocketmq_polls_max,
    )
    telemetry = Telemetry(
        *(groups, checking, levels, clock, metrics, tasks, lites),
        endpoint=endpoint,
        streams_max=settings.rocketmq_streams_max,
    )
    parts = RocketMQParts(
        clients, producers, consumers, lites, renewals, telemetry, checking, limited.quotas, metrics, clock
    )
    return RocketMQ(RocketMQFace(parts), renewals)


def _make_ending(settings: GatewaySettings, clock: Clock, routing: Routing) -> Ending:
    timeout_ms, least = settings.store_timeout_ms, int(settings.refuse_empty_bodies)
    holders = Holders(routing.places, routing.shards)
    return Ending(holders, routing.topics, clock, timeout_ms=timeout_ms, body_bytes_min=least)


def _make_scaler(settings: GatewaySettings, clock: Clock, routing: Routing, groups: Groups) -> Scaler:
    places, shards = routing.places, routing.shards
    described = ConsumerGroups(groups, places, shards, clock)
    work = GroupWork(described, places, shards, timeout_ms=settings.store_timeout_ms)
    return Scaler(shards, work, clock)


def _make_pending(
    settings: GatewaySettings, clock: Clock, groups: Groups, routing: Routing, traffic: Traffic, ending: Ending
) -> PendingService:
    timeout_ms = settings.store_timeout_ms
    holders = Holders(routing.places, routing.shards)
    listing = Listing(holders, routing.places, timeout_ms=timeout_ms)
    return PendingService(
        ending,
        Matching(holders, clock),
        listing,
        Counting(holders, timeout_ms=timeout_ms),
        Retries(groups, listing, routing.shards, clock),
        traffic.answers,
    )


def _make_transactions(
    settings: GatewaySettings,
    clock: Clock,
    metrics: GatewayMetrics,
    database: Database,
    routing: Routing,
    sender: Sender,
    traffic: Traffic,
    tasks: asyncio.TaskGroup,
) -> Transactions:
    timeout_ms, places, shards = settings.store_timeout_ms, routing.places, routing.shards
    groups = ProducerGroups(database, clock)
    ender = Ender(places, shards, clock, metrics.transactions, tasks, timeout_ms=timeout_ms)
    watching = Watching(
        groups,
        shards,
        ender,
        clock,
        metrics.transactions,
        tasks,
        gateway=f"{socket.gethostname()}:{os.getpid()}",
        watchers_max=settings.watchers_max,
        timeout_ms=timeout_ms,
    )
    listing = TransactionList(shards, places, timeout_ms=timeout_ms)
    preparer = Preparer(sender, groups)
    service = TransactionService(preparer, ender, watching, listing, places, traffic.answers)
    return Transactions(groups, preparer, ender, watching, service)


def _make_routing(
    settings: GatewaySettings,
    credentials: Credentials,
    clock: Clock,
    metrics: GatewayMetrics,
    database: Database,
    groups: Groups,
    tasks: asyncio.TaskGroup,
) -> Routing:
    table, catalog = RouteTable(metrics), TopicCatalog(database, clock)
    adoption = Adoption(table, catalog, groups)
    options = ShardOptions(settings.levels, credentials, settings.store_timeout_ms, settings.waiting_bytes_max)
    listener = ShardListener(reached=adoption.reached, lost=table.forget_shard)
    shards = Shards(settings.store_addresses, options, clock, metrics, tasks, listener)
    topics = Topics(
        table,
        catalog,
        MissingTopics(adoption, shards, clock),
        shards.numbers,
        clock,
        tasks,
        queue_count_default=settings.queue_count_default,
        auto_create=settings.auto_create_topics,
        topics_max=settings.topics_max,
        queues_max=settings.queues_max,
    )
    return Routing(shards, adoption, catalog, topics, Places(topics, shards, lane_count=settings.levels.highest))


def _make_sender(
    settings: GatewaySettings, clock: Clock, metrics: GatewayMetrics, routing: Routing, quotas: Quotas
) -> Sender:
    ids = MessageIds(settings.host, os.getpid(), secrets.token_bytes(4), clock.now_ms)
    requests = request_room(settings.request_bytes_max)
    metrics.follow_requests(requests)
    encoder = Encoder(Rules(settings.levels, ids, body_bytes_min=int(settings.refuse_empty_bodies)))
    timeout_ms = settings.store_timeout_ms
    return Sender(routing.topics, routing.shards, encoder, clock, metrics, requests, quotas, timeout_ms)


def _make_quotas(clock: Clock, registry: CollectorRegistry, database: Database, routing: Routing) -> Limited:
    quotas = Quotas(clock)
    # One process may run several gateways.
    book = QuotaBook(database, f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}")
    counts = PendingCounts(quotas, routing.places, routing.shards)
    return Limited(quotas, Keeper(quotas, book, counts, clock, QuotaMetrics(registry)))
