"""Leases: which shards a Receive asks and what for, and which shards gave the receipts of an Ack or ChangeInvisible.

With one shard the answer passes through as bytes, a long poll included. With several, each that has queues of the
topic is asked in turn, without a wait, until there is enough; the first one asked is another one each time. If none has
anything, all are asked to tell when they have, and then those that do are asked again: no lease is made that nobody
takes. A lease whose receiver went away before it had the answer is given back, and does not count as an attempt.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import grpc
from duetime.v1 import consumer_pb2
from duetime_core.clock import Clock
from duetime_core.decoding import decode
from duetime_core.defects import outcome
from duetime_core.errors import DueTimeError
from duetime_core.logs import sparing
from duetime_core.metadata import Groups
from duetime_format import limits
from duetime_format.names import retry_topic

from duetime_gateway.consuming.admission import check_ack, check_change, check_receive
from duetime_gateway.metrics import GatewayMetrics
from duetime_gateway.routing.reader import Reader
from duetime_gateway.routing.topics import Topics
from duetime_gateway.shards.batcher import stopping
from duetime_gateway.shards.shard import Shard, Shards

log = sparing()

UNKNOWN = consumer_pb2.RECEIPT_STATUS_UNKNOWN
OK = consumer_pb2.RECEIPT_STATUS_OK

# A shard's queue of %RETRY%group has a public number only once a retry service has made it; until the gateway knows of
# it, which it looks for so often, the queue is asked for under the shard's own number.
RETRY_ROUTE_MS = 5_000
# Of the errors with which a shard is left out as long as others have something.
_PASSING = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED}

Settling = consumer_pb2.AckRequest | consumer_pb2.ChangeInvisibleRequest
Parts = Mapping[int, consumer_pb2.ReceiveRequest]


class _Taken:
    """What a Receive has leased so far, and what it may still lease."""

    def __init__(self, request: consumer_pb2.ReceiveRequest) -> None:
        self.count_left = request.max_count or limits.RECEIVE_COUNT_DEFAULT
        self.bytes_left = request.max_bytes or limits.PULL_BYTES_DEFAULT
        self.answers: dict[int, list[bytes]] = {}
        # Of the shards that did not answer, or could not.
        self.failures: dict[int, DueTimeError] = {}

    def add(self, shard: int, answer: bytes) -> None:
        count = len(receipts_of(answer))
        if count:
            self.count_left -= count
            self.bytes_left -= len(answer)
            self.answers.setdefault(shard, []).append(answer)

    @property
    def enough(self) -> bool:
        return self.count_left <= 0 or self.bytes_left <= 0


class Leases:
    """Receive, Ack and ChangeInvisible over all shards."""

    def __init__(
        self,
        topics: Topics,
        reader: Reader,
        shards: Shards,
        groups: Groups,
        clock: Clock,
        metrics: GatewayMetrics,
        *,
        timeout_ms: int,
    ) -> None:
        self._topics = topics
        self._reader = reader
        self._shards = shards
        self._groups = groups
        self._clock = clock
        self._metrics = metrics
        self._timeout_ms = timeout_ms
        self._tasks: asyncio.TaskGroup | None = None
        self._turn = 0

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Waits, and leases on their way back, are tasks of `tasks`."""
        self._tasks = tasks

    async def receive(self, request: consumer_pb2.ReceiveRequest, remaining_ms: float | None, peer: str) -> bytes:
        """An encoded ReceiveResponse. Changes the request.

        Raises:
            DueTimeError: bad fields, no such topic, or what a shard answered.
        """
        check_receive(request)
        places = await self._reader.places(request.topic)
        group = await self._groups.ensure(request.group)
        request.ordered = group.ordered
        request.start_at_ms = group.start_at_ms
        request.max_attempts = request.max_attempts or group.retry.max_attempts
        request.member = request.member or peer[: limits.MEMBER_CHARS_MAX]
        numbers = sorted({shard for shard, _ in places.values()})
        retries = await self._retry_queues(request.group, numbers)
        self._tell(numbers, group)
        if len(numbers) == 1:
            part = _part(request, numbers[0], places, retries, alone=True)
            answer = await self._ask(numbers[0], part, remaining_ms)
        else:
            answer = await self._gather(
                request, {number: _part(request, number, places, retries) for number in numbers}, remaining_ms
            )
        self._metrics.receives.inc()
        self._metrics.bytes_out.inc(len(answer))
        return answer

    def _tell(self, numbers: Iterable[int], group: consumer_pb2.Group) -> None:
        """Lets the shards know of the group, without waiting for it."""
        for number in numbers:
            self._shards.get(number).tell(group)

    async def _retry_queues(self, group: str, shards: Sequence[int]) -> Mapping[int, tuple[int, int]]:
        """Shard and queue there, by public queue; every shard's first queue is among them."""
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

    async def _ask(self, number: int, part: consumer_pb2.ReceiveRequest, remaining_ms: float | None) -> bytes:
        shard = await self._reader.ready_shard(number, part.topic)
        timeout_ms = self._timeout(remaining_ms, part.wait_ms)
        return await shard.receive(part, timeout_ms, lambda answer: self._give_back(part.group, shard, [answer]))

    async def _gather(self, request: consumer_pb2.ReceiveRequest, parts: Parts, remaining_ms: float | None) -> bytes:
        """The answers of several shards, one behind the other, which are one answer."""
        ends_at_ms = self._clock.monotonic_ms() + request.wait_ms
        taken = _Taken(request)
        self._turn += 1
        numbers = list(parts)
        first = self._turn % len(numbers)
        ready: Collection[int] = numbers[first:] + numbers[:first]
        try:
            while ready:
                await self._take(ready, parts, taken, remaining_ms)
                left_ms = ends_at_ms - self._clock.monotonic_ms()
                if taken.answers or left_ms < 1:
                    break
                ready = await self._ready(parts, taken, int(left_ms), remaining_ms)
        except BaseException:
            for number, answers in taken.answers.items():
                self._give_back(request.group, self._shards.get(number), answers)
            raise
        if not taken.answers and taken.failures:
            raise next(iter(taken.failures.values()))
        return b"".join(answer for answers in taken.answers.values() for answer in answers)

    async def _take(self, numbers: Iterable[int], parts: Parts, taken: _Taken, remaining_ms: float | None) -> None:
        """Leases from the shards in turn until there is enough."""
        for number in numbers:
            part = parts[number]
            part.max_count, part.max_bytes, part.wait_ms = taken.count_left, taken.bytes_left, 0
            try:
                taken.add(number, await self._ask(number, part, remaining_ms))
                taken.failures.pop(number, None)
            except DueTimeError as error:
                if error.status not in _PASSING:
                    raise
                taken.failures[number] = error
            if taken.enough:
                return

    async def _ready(self, parts: Parts, taken: _Taken, wait_ms: int, remaining_ms: float | None) -> list[int]:
        """The shards that have something, as soon as one has; none: the time is over, or no shard answers."""
        if self._tasks is None:
            raise stopping()
        tasks = self._tasks
        timeout_ms = self._timeout(remaining_ms, wait_ms)

        async def ready(number: int, part: consumer_pb2.ReceiveRequest) -> bool:
            part.wait_ms = wait_ms
            found, error = await outcome(
                lambda: self._shards.get(number).await_messages(part, timeout_ms), "AwaitMessages"
            )
            if error is not None:
                taken.failures[number] = error
            return bool(found)

        asked = {tasks.create_task(ready(number, part)): number for number, part in parts.items()}
        waiting = set(asked)
        try:
            while waiting:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                found = [asked[one] for one in done if not one.cancelled() and one.result()]
                if found:
                    return found
            return []
        finally:
            for one in waiting:
                one.cancel()

    def _give_back(self, group: str, shard: Shard, answers: Sequence[bytes]) -> None:
        """Ends leases that nobody knows of."""
        receipts = [receipt for answer in answers for receipt in receipts_of(answer)]
        if not receipts or self._tasks is None:
            return
        self._metrics.leases_left.inc(len(receipts))
        request = consumer_pb2.ChangeInvisibleRequest(group=group, receipts=receipts, not_attempted=True)

        async def give_back() -> None:
            data = request.SerializeToString()
            _, error = await outcome(lambda: shard.settle("ChangeInvisible", data, self._timeout_ms), "give back")
            if error is not None:
                # They end by themselves, and then count as an attempt.
                log.warning("leases not given back", group=group, shard=shard.number, why=error.text)

        self._tasks.create_task(give_back())

    async def ack(self, data: bytes, remaining_ms: float | None) -> bytes:
        """An encoded AckResponse to an encoded AckRequest.

        Raises:
            DueTimeError: bad fields, or what a shard answered; the others have done their part, and it may be repeated.
        """
        request = decode(consumer_pb2.AckRequest.FromString, data)
        check_ack(request)
        return await self._settle("Ack", data, request, remaining_ms)

    async def change_invisible(self, data: bytes, remaining_ms: float | None) -> bytes:
        """As `ack`, of ChangeInvisible."""
        request = decode(consumer_pb2.ChangeInvisibleRequest.FromString, data)
        check_change(request)
        return await self._settle("ChangeInvisible", data, request, remaining_ms)

    async def _settle(self, call: str, data: bytes, request: Settling, remaining_ms: float | None) -> bytes:
        """Each shard judges its receipts; the bytes of a request that is one shard's pass through."""
        receipts = request.receipts
        timeout_ms = self._timeout(remaining_ms)
        self._metrics.receipts.labels(call).inc(len(receipts))
        if len(self._shards.numbers) == 1:
            return await self._shards.all()[0].settle(call, data, timeout_ms)
        givers = [int.from_bytes(receipt[:2], "big") for receipt in receipts]
        numbers = sorted(set(givers) & set(self._shards.numbers))
        if len(numbers) == 1 and len(set(givers)) == 1:
            return await self._shards.get(numbers[0]).settle(call, data, timeout_ms)

        async def settle(number: int) -> consumer_pb2.AckResponse:
            part: Any = type(request)()
            part.CopyFrom(request)
            del part.receipts[:]
            part.receipts.extend(receipt for receipt, giver in zip(receipts, givers, strict=True) if giver == number)
            answer = await self._shards.get(number).settle(call, part.SerializeToString(), timeout_ms)
            # Both answers have nothing but the statuses, under one number.
            return consumer_pb2.AckResponse.FromString(answer)

        answers = await asyncio.gather(*map(settle, numbers), return_exceptions=True)
        statuses = dict.fromkeys(range(len(receipts)), UNKNOWN)
        for number, answer in zip(numbers, answers, strict=True):
            if isinstance(answer, BaseException):
                raise answer
            mine = [index for index, giver in enumerate(givers) if giver == number]
            statuses.update(zip(mine, answer.statuses or [OK] * len(mine), strict=True))
        if not any(statuses.values()):
            return b""
        return consumer_pb2.AckResponse(statuses=statuses.values()).SerializeToString()

    def _timeout(self, remaining_ms: float | None, wait_ms: int = 0) -> float:
        timeout_ms = self._timeout_ms + wait_ms
        return timeout_ms if remaining_ms is None else min(remaining_ms, timeout_ms)


def _part(
    request: consumer_pb2.ReceiveRequest,
    number: int,
    places: Mapping[int, tuple[int, int]],
    retries: Mapping[int, tuple[int, int]],
    *,
    alone: bool = False,
) -> consumer_pb2.ReceiveRequest:
    """The request for one shard, with its queues; the request itself where no other shard is asked."""
    part = request
    if not alone:
        part = consumer_pb2.ReceiveRequest()
        part.CopyFrom(request)
    del part.queues[:], part.retry_queues[:]
    for queues, found in ((part.queues, places), (part.retry_queues, retries)):
        for queue, (shard, shard_queue) in found.items():
            if shard == number:
                queues.add(queue=queue, shard_queue=shard_queue)
    return part


def receipts_of(answer: bytes) -> list[bytes]:
    """Those of an encoded ReceiveResponse."""
    response = consumer_pb2.ReceiveResponse.FromString(answer)
    return [message.receipt for message in response.messages] + [
        receipt for run in response.runs for receipt in run.receipts
    ]
