"""Subscriptions: a reader's stream, and the one that serves it at the shard that has the queues.

    reader ──credit──▶ read only where it runs low ──▶ store
           ◀────────── answers, as the store encoded them ──

Credit goes through to the store, which makes no answer without it: of a slow reader nothing is held here.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

from duetime_core.callers import host_of
from duetime_core.credit import Credit
from duetime_core.defects import defect
from duetime_core.errors import DueTimeError, Overloaded
from duetime_core.shares import Shares
from duetime_format.limits import CREDIT_BYTES_MAX

from duetime_gateway.consuming.admission import check_subscribe
from duetime_gateway.metrics import GatewayMetrics
from duetime_gateway.queries import Subscribe
from duetime_gateway.routing.places import Places, on_one_shard
from duetime_gateway.shards.contract import subscribe_request
from duetime_gateway.shards.subscription import ShardSubscription


class Subscribing:
    """All subscriptions through one gateway."""

    def __init__(
        self, places: Places, metrics: GatewayMetrics, tasks: asyncio.TaskGroup, *, subscriptions_max: int
    ) -> None:
        """`tasks`: of those that pass credit on."""
        self._places = places
        self._metrics = metrics
        self._tasks = tasks
        # By the caller's host: at most half of them each, and the last tenth is for hosts that have none.
        self._shares: Shares[str] = Shares(subscriptions_max, -(-subscriptions_max // 2), 1)
        metrics.subscriptions_max.set(subscriptions_max)

    async def answers(self, subscribe: Subscribe, given: AsyncIterator[int], peer: str) -> AsyncGenerator[bytes, None]:
        """The store's SubscribeResponses, encoded. `given`: credit that comes later.

        Raises:
            DueTimeError: bad fields, no such topic or queue, too many subscriptions, or what the shard answered.
        """
        check_subscribe(subscribe)
        places = await self._places.of(subscribe.topic)
        number, shard_queues = on_one_shard(places, subscribe.topic, subscribe.positions)
        shard = await self._places.ready_shard(number, subscribe.topic)
        host = host_of(peer)
        self._enter(host)
        relay = _Relay(shard.store.subscribe(host), given, self._tasks)
        try:
            async with aclosing(relay.answers(subscribe, shard_queues)) as answers:
                async for answer in answers:
                    self._metrics.bytes_out.inc(len(answer))
                    yield answer
        finally:
            relay.close()
            self._shares.give(host)
            self._metrics.subscriptions.set(self._shares.used)

    def _enter(self, host: str) -> None:
        shares = self._shares
        if not shares.may_take(host):
            text = f"{shares.used} subscriptions run, {shares.limit} at most; {shares.held(host)} of {host}"
            raise Overloaded(f"{text}, {shares.share} at most", reason="SUBSCRIPTIONS_EXHAUSTED")
        shares.take(host)
        self._metrics.subscriptions.set(shares.used)


class _Relay:
    """One subscription: answers one way, credit the other."""

    def __init__(self, stream: ShardSubscription, given: AsyncIterator[int], tasks: asyncio.TaskGroup) -> None:
        self._stream = stream
        self._given = given
        self._tasks = tasks
        self._credit = Credit(CREDIT_BYTES_MAX)
        # Reads and passes on credit; made whenever it is low, and left where it is once there is no more.
        self._passing: asyncio.Task[None] | None = None
        # Why no more credit can be read.
        self._error: DueTimeError | None = None

    async def answers(self, subscribe: Subscribe, shard_queues: list[int]) -> AsyncGenerator[bytes, None]:
        self._credit.give(subscribe.credit_bytes)
        await self._stream.ask(subscribe_request(subscribe, shard_queues))
        try:
            async for answer in self._stream.answers():
                self._credit.spend(len(answer))
                if self._credit.is_low and self._passing is None:
                    self._passing = self._tasks.create_task(self._pass_on())
                yield answer
        except asyncio.CancelledError:
            if self._error is not None:
                raise self._error from None
            raise

    async def _pass_on(self) -> None:
        """Passes on credit until there is enough. Never raises."""
        try:
            while self._credit.is_low:
                size = await anext(self._given, None)
                if size is None:
                    await self._stream.give_no_more()
                    return
                self._credit.give(size)
                await self._stream.give(size)
            self._passing = None
        except DueTimeError as error:
            self._fail(error)
        except Exception as error:
            self._fail(defect(error, "Subscribe"))

    def _fail(self, error: DueTimeError) -> None:
        """The stream ends with the error."""
        self._error = error
        self._stream.close()

    def close(self) -> None:
        if self._passing is not None:
            self._passing.cancel()
        self._stream.close()
