"""Leases: selects the shards and queues of a Receive, and the shards that gave the receipts of an ack or extension.

With one shard, a Receive is forwarded with its wait; `gathering` asks several. If a receiver leaves before it has the
answer, its leases are returned and do not count as attempts.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from duetime_core.access.callers import sharer
from duetime_core.clock import Clock
from duetime_core.errors import InvalidArgument, Violation
from duetime_core.metadata import GroupTable
from duetime_core.rpc.group_limits import known_of
from duetime_core.rpc.retry_policy import RetryPolicy
from duetime_core.telemetry.defects import outcome
from duetime_core.telemetry.logs import sparing
from duetime_format import limits
from duetime_format.names import retry_topic

from duetime_gateway.answers import raise_first
from duetime_gateway.consuming.admission import check_ack, check_extension, check_receive
from duetime_gateway.consuming.gathering import LeaseGatherer, LeaseSource, Parts
from duetime_gateway.consuming.rates import RateKey, RateLender
from duetime_gateway.deadlines import timeout_of
from duetime_gateway.metrics import GatewayMetrics
from duetime_gateway.queries import Extension, LeaseStatus, Receive
from duetime_gateway.routing.places import QueueLocator
from duetime_gateway.routing.topics import TopicRegistry
from duetime_gateway.shards.client import StoreClient
from duetime_gateway.shards.contract import ReceivePart, receipts_of
from duetime_gateway.shards.shards import Shards

log = sparing()

# A shard's queue of %RETRY%group gets a public number only when a retry service creates it. Until the gateway finds the
# number, which it tries at this interval, it asks for the queue by the shard's own number.
RETRY_ROUTE_MS = 5_000
# Ends or extends the leases of some receipts at a store.
Settle = Callable[[StoreClient, Sequence[bytes]], Awaitable[Sequence[int]]]


@dataclass(frozen=True, slots=True)
class _Calls:
    """The shards of one Receive; answers are encoded ReceiveResponses. See `gathering.LeaseSource`."""

    leases: "LeaseRouter"
    group: str
    remaining_ms: float | None

    async def ask(self, number: int, part: ReceivePart, max_count: int, max_bytes: int, wait_ms: int) -> bytes:
        return await self.leases.ask(number, part, self.remaining_ms, max_count, max_bytes, wait_ms)

    def measure(self, answer: bytes) -> tuple[int, int]:
        return len(receipts_of(answer)), len(answer)

    def give_back(self, number: int, answers: list[bytes]) -> None:
        self.leases.give_back(self.group, number, [receipt for answer in answers for receipt in receipts_of(answer)])


class LeaseRouter:
    """Leases over all shards. Long polls and returns of leases are tasks of `tasks`."""

    def __init__(
        self,
        topics: TopicRegistry,
        places: QueueLocator,
        shards: Shards,
        groups: GroupTable,
        clock: Clock,
        metrics: GatewayMetrics,
        tasks: asyncio.TaskGroup,
        *,
        timeout_ms: int,
    ) -> None:
        self._topics = topics
        self._places = places
        self._shards = shards
        self._groups = groups
        self._metrics = metrics
        self._tasks = tasks
        self._timeout_ms = timeout_ms
        self.gatherer = LeaseGatherer(shards, clock, tasks, timeout_ms=timeout_ms)
        self.rates = RateLender(shards, clock)

    async def receive(self, receive: Receive, remaining_ms: float | None, peer: str) -> bytes:
        """Returns the stores' ReceiveResponse, encoded.

        Raises:
            DueTimeError: bad fields, no such topic, or an error of a shard.
        """
        check_receive(receive)
        return await self.take(receive, remaining_ms, peer)

    async def take(
        self, receive: Receive, remaining_ms: float | None, peer: str, retry: RetryPolicy | None = None
    ) -> bytes:
        """As `receive`, for checked fields. `retry`: the policy of a new group; None: the default."""
        parts, selection = await self.parts(receive, peer, retry), receive.selection
        if len(parts) == 1:
            ((number, part),) = parts.items()
            answer = await self.ask(
                number, part, remaining_ms, selection.max_count, selection.max_bytes, selection.wait_ms
            )
        else:
            calls: LeaseSource[bytes] = _Calls(self, receive.group, remaining_ms)
            # Concatenated encoded answers are one valid answer.
            answers: list[bytes] = await self.gatherer.gather(calls, selection, parts, remaining_ms)
            answer = b"".join(answers)
        self._metrics.receives.inc()
        self._metrics.bytes_out.inc(len(answer))
        return answer

    async def parts(self, receive: Receive, peer: str, retry: RetryPolicy | None = None) -> Parts:
        """The request for each shard with queues of the topic. Raises: DueTimeError: no such topic."""
        places = await self._places.of(receive.topic)
        if receive.lite_topics and not self._places.is_lite(receive.topic):
            text = f"are set, but the type of topic {receive.topic} is not `lite`"
            raise InvalidArgument([Violation("lite_topics", text)])
        caller = sharer(peer)
        group = await self._groups.ensure(receive.group, caller, retry)
        numbers = sorted({shard for shard, _ in places.values()})
        if len(numbers) > 1 and any(limit.HasField("rate") for limit in group.limits.limits):
            self.rates.note(RateKey(receive.group, receive.topic), numbers)
        retries = await self._retry_queues(receive.group, numbers)
        for number in numbers:
            self._shards.get(number).groups.announce(group)
        return {
            number: ReceivePart(
                receive,
                _on_shard(number, places),
                _on_shard(number, retries),
                group.ordered,
                group.start_at_ms,
                receive.max_attempts or group.retry.max_attempts,
                receive.member or peer[: limits.MEMBER_CHARS_MAX],
                caller,
                known_of(group),
                len(numbers),
            )
            for number in numbers
        }

    async def _retry_queues(self, group: str, shards: Sequence[int]) -> Mapping[int, tuple[int, int]]:
        """Shard and its queue by public queue, including the first queue of every shard."""
        topic = retry_topic(group)
        route = self._topics.known(topic)
        if route is None or not set(shards) <= set(route.shards):
            route = await self._topics.group_route(topic, RETRY_ROUTE_MS)
        places = dict(route.places) if route else {}
        held = {shard for shard, _ in places.values()}
        spare = (number for number in range(limits.QUEUE_COUNT_MAX) if number not in places)
        for shard in shards:
            if shard not in held:
                places[shard if shard not in places else next(spare)] = (shard, 0)
        return places

    async def ask(
        self, number: int, part: ReceivePart, remaining_ms: float | None, max_count: int, max_bytes: int, wait_ms: int
    ) -> bytes:
        """An encoded ReceiveResponse of one shard. Raises: DueTimeError."""
        group = part.receive.group
        shard = await self._places.ready_shard(number, part.receive.topic)
        return await shard.store.receive(
            part,
            timeout_of(self._timeout_ms, remaining_ms, wait_ms),
            lambda answer: self.give_back(group, number, receipts_of(answer)),
            max_count=max_count,
            max_bytes=max_bytes,
            wait_ms=wait_ms,
        )

    def give_back(self, group: str, number: int, receipts: Sequence[bytes]) -> None:
        """Ends leases of a shard whose receiver did not get the answer."""
        if not receipts:
            return
        shard = self._shards.get(number)
        self._metrics.leases_left.inc(len(receipts))
        extension = Extension(group, receipts, 0, not_attempted=True)

        async def give_back() -> None:
            _, error = await outcome(lambda: shard.store.extend(extension, self._timeout_ms), "give back")
            if error is not None:
                # They expire, and then count as attempts.
                log.warning("cannot return leases", group=group, shard=shard.number, why=error.text)

        self._tasks.create_task(give_back())

    async def ack(self, group: str, receipts: Sequence[bytes], remaining_ms: float | None) -> Sequence[int]:
        """Returns a `LeaseStatus` for each receipt; empty: all OK.

        Raises:
            DueTimeError: bad fields, or an error of a shard; the other shards are done, and it is safe to retry.
        """
        check_ack(group, receipts)
        timeout_ms = timeout_of(self._timeout_ms, remaining_ms)
        return await self._settle("Ack", receipts, lambda store, mine: store.ack(group, mine, timeout_ms))

    async def extend(self, extension: Extension, remaining_ms: float | None) -> Sequence[int]:
        """As `ack`, but moves the end of the leases."""
        check_extension(extension)
        timeout_ms = timeout_of(self._timeout_ms, remaining_ms)
        group, invisible_ms, not_attempted = extension.group, extension.invisible_ms, extension.not_attempted
        return await self._settle(
            "ChangeInvisible",
            extension.receipts,
            lambda store, mine: store.extend(Extension(group, mine, invisible_ms, not_attempted), timeout_ms),
        )

    async def _settle(self, call: str, receipts: Sequence[bytes], settle: Settle) -> Sequence[int]:
        """Sends each shard its own receipts, which begin with its number."""
        self._metrics.receipts.labels(call).inc(len(receipts))
        if len(self._shards.numbers) == 1:
            return await settle(self._shards.all()[0].store, receipts)
        givers = [int.from_bytes(receipt[:2], "big") for receipt in receipts]
        mine: dict[int, list[int]] = {number: [] for number in sorted(set(givers) & set(self._shards.numbers))}
        for index, giver in enumerate(givers):
            if giver in mine:
                mine[giver].append(index)
        answers = raise_first(
            await asyncio.gather(
                *(
                    settle(self._shards.get(number).store, [receipts[index] for index in indices])
                    for number, indices in mine.items()
                ),
                return_exceptions=True,
            )
        )
        statuses: list[int] = [LeaseStatus.UNKNOWN] * len(receipts)
        for indices, answer in zip(mine.values(), answers, strict=True):
            for index, status in zip(indices, answer or [LeaseStatus.OK] * len(indices), strict=True):
                statuses[index] = status
        return statuses if any(statuses) else ()


def _on_shard(number: int, places: Mapping[int, tuple[int, int]]) -> list[tuple[int, int]]:
    """(public queue, queue on the shard) of the shard's queues."""
    return [(queue, shard_queue) for queue, (shard, shard_queue) in places.items() if shard == number]
