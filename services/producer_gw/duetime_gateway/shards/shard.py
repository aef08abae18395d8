"""One store from the gateway's side: its description, its known topics, and its puts."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import structlog
from duetime.v1 import store_pb2
from duetime_core.access.credentials import ClusterCredentials
from duetime_core.clock import Clock
from duetime_core.errors import DueTimeError, Unavailable
from duetime_core.rpc.gathering import QuestionGatherer
from duetime_core.telemetry.defects import outcome
from duetime_format.levels import DelayLevels
from duetime_format.limits import REPLACE_COUNT_MAX

from duetime_gateway.errors import not_made, shard_unavailable, stopping
from duetime_gateway.metrics import GatewayMetrics
from duetime_gateway.shards.batcher import Batcher
from duetime_gateway.shards.client import StoreClient
from duetime_gateway.shards.groups import GroupAnnouncer
from duetime_gateway.shards.route import Route

log = structlog.get_logger()

# Topics announced to a store in one call: few enough to keep its turn short.
ANNOUNCED_AT_ONCE = 256
# New topics waiting for a store.
TOPICS_WAITING_MAX = 65_536


@dataclass(frozen=True)
class ShardListener:
    """Callbacks for stores that become reachable or are lost."""

    # The store answers, for the first time or again. It is not used before this returns.
    reached: "Callable[[Shard], Awaitable[None]]"
    # The store, by number, stopped answering. It may restart without its announcements.
    lost: Callable[[int], None]


@dataclass(frozen=True)
class ShardOptions:
    """The options shared by all shards of a gateway."""

    levels: DelayLevels
    credentials: ClusterCredentials
    timeout_ms: int
    waiting_bytes_max: int


@dataclass(frozen=True)
class Description:
    """A store's answer when it was reached."""

    store_host: bytes
    # Number of lanes for any time; 0: none.
    timer_lane_count: int


class ShardMisfit(Unavailable):
    """The store at the address is not the configured one."""

    reason = "SHARD_MISFIT"


class Shard:
    """One store. Every call has a deadline."""

    def __init__(
        self,
        number: int,
        address: str,
        options: ShardOptions,
        clock: Clock,
        metrics: GatewayMetrics,
        tasks: asyncio.TaskGroup,
        listener: ShardListener,
    ) -> None:
        self.number = number
        self._whom = f"shard {number} at {address}"
        self._levels = options.levels
        self._timeout_ms = options.timeout_ms
        self._tasks = tasks
        self._listener = listener
        self._stopped = False
        self.store = StoreClient(
            self._whom, address, options.credentials, tasks, timeout_ms=options.timeout_ms, on_gone=self._lose
        )
        of_shard = metrics.puts.of_shard(number)
        self._up = of_shard.up
        batched = clock, of_shard, number, options.waiting_bytes_max, tasks
        self.batcher = Batcher(self.store.put, *batched)
        # Batches messages that replace others; records are parts of a request (contract.replacements).
        self.replacer = Batcher(self.store.replace, *batched, count_max=REPLACE_COUNT_MAX)
        # Batches half messages.
        self.preparer = Batcher(self.store.prepare, *batched)
        self.groups = GroupAnnouncer(number, self.store, clock, tasks)
        self._announcing: QuestionGatherer[Route, None] = QuestionGatherer(
            f"topics to be announced to shard {number}",
            self._announce,
            clock,
            round_max=ANNOUNCED_AT_ONCE,
            waiting_max=TOPICS_WAITING_MAX,
        )
        # None: not reached, or lost since.
        self._description: Description | None = None
        # A running Describe, shared by all who need it.
        self._question: asyncio.Task[tuple[Description | None, DueTimeError | None]] | None = None

    def start(self) -> None:
        self._announcing.start(self._tasks)
        self.groups.start()

    def stop(self) -> None:
        """Starts nothing new; running puts continue."""
        self._stopped = True
        self._announcing.stop()
        self.groups.stop()
        self.store.stop()
        self.batcher.stop()
        self.replacer.stop()
        self.preparer.stop()

    async def close(self) -> None:
        await self.store.close()

    @property
    def reached(self) -> bool:
        """Whether the store has been described, and not lost since."""
        return self._description is not None

    async def describe(self, timeout_ms: float | None = None) -> Description:
        """Describes the store, unless already done.

        Raises:
            Unavailable: it does not answer, or (ShardMisfit) is not the configured store.
        """
        if self._description is not None:
            return self._description
        question = self._question
        if question is None or question.done():
            if self._stopped:
                raise stopping()
            # A separate task: it continues when a caller gives up.
            question = self._question = self._tasks.create_task(
                outcome(lambda: self._ask(timeout_ms or self._timeout_ms), "shard", whom=self._whom)
            )
        description, error = await asyncio.shield(question)
        if description is None:
            raise error or stopping()
        return description

    async def _ask(self, timeout_ms: float) -> Description:
        answer = await self.store.describe(timeout_ms)
        self._check(answer)
        await self._listener.reached(self)
        self._description = Description(answer.store_host, answer.timer_lane_count)
        self._up.set(1)
        log.info("shard reached", store=self._whom)
        return self._description

    def _check(self, answer: store_pb2.DescribeResponse) -> None:
        """Raises: ShardMisfit."""
        if answer.shard != self.number:
            raise ShardMisfit(f"{self._whom} identifies itself as shard {answer.shard}")
        theirs = list(answer.delay_levels_ms)
        if theirs != list(self._levels.delays_ms):
            text = " ".join(f"{delay_ms / 1000:g}s" for delay_ms in theirs)
            raise ShardMisfit(f"{self._whom} has the delay levels {text}; this gateway has {self._levels}")

    def _lose(self, why: str) -> None:
        """Marks the store as lost. It may come back as another one, and is described again before use."""
        if self._description is not None:
            self._description = None
            self.groups.lose()
            self._up.set(0)
            log.warning("shard lost", shard=self.number, why=why)
            self._listener.lost(self.number)

    async def ready(self, route: Route) -> None:
        """Returns once the store knows the topic, and the route has the store's host bytes.

        Raises:
            DueTimeError: Unavailable, or the store's error.
        """
        if self.number not in route.store_hosts:
            error = (await self._announcing.ask([route]))[route]
            if error is not None:
                raise error

    async def all_ready(self, routes: Sequence[Route], wait_ms: float) -> dict[Route, DueTimeError | None]:
        """As `ready`, for many topics within a time: each route with its error; None: the store knows its topic."""
        unknown = [route for route in routes if self.number not in route.store_hosts]
        answers = await self._announcing.ask(unknown, wait_ms) if unknown else {}
        return {
            route: None if self.number in route.store_hosts else answers.get(route) or not_made(route.topic, wait_ms)
            for route in routes
        }

    async def _announce(self, routes: list[Route]) -> dict[Route, DueTimeError | None]:
        description = await self.describe()
        topics: dict[str, store_pb2.PutTopicRequest] = {}
        for route in routes:
            own = store_pb2.PutTopicRequest(
                name=route.topic,
                queue_count=route.count_on(self.number),
                message_type=route.message_type,  # type: ignore[arg-type]
                generation=route.generation,
            )
            # One topic may have two routes: an older and a longer one, or that of a deleted topic.
            topics[route.topic] = max(
                own, topics.get(route.topic, own), key=lambda one: (one.generation, one.queue_count)
            )
        refusals = await self.store.put_topics(list(topics.values()))
        # A lost store may have come back without the topics.
        if self._description is not description:
            raise shard_unavailable(f"{self._whom} became unreachable before it accepted a topic")
        for route in routes:
            if route.topic not in refusals and route.generation == topics[route.topic].generation:
                route.store_hosts[self.number] = description.store_host
                route.timer_lanes[self.number] = description.timer_lane_count
        return {route: refusals.get(route.topic) for route in routes}
