"""Subscriptions: relays a reader's stream to the shard of its queues.

    reader ──credit──▶ read when low ──▶ up to one window ──▶ store
           ◀──────────── answers, as encoded by the store ──

The store sends no answer without credit. It gets the reader's credit, at most one window at a time; the window grows
while the reader takes large answers. So the gateway and its gRPC buffers hold little for a reader that takes nothing.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from functools import partial

from duetime_core.access.callers import sharer
from duetime_core.errors import DueTimeError
from duetime_core.limits.credit import Credit
from duetime_core.limits.room import Room
from duetime_core.limits.seats import Seats
from duetime_core.limits.traffic import COUNTED_BYTES_MIN
from duetime_core.telemetry.defects import defect
from duetime_format.limits import CREDIT_BYTES_MAX, SUBSCRIPTION_ANSWER_BYTES_MAX

from duetime_gateway.consuming.admission import check_subscribe
from duetime_gateway.metrics import GatewayMetrics
from duetime_gateway.queries import Subscribe
from duetime_gateway.routing.places import QueueLocator, on_one_shard
from duetime_gateway.shards.contract import subscribe_request
from duetime_gateway.shards.subscription import ShardSubscription

# The store's credit at a time: at first the smallest counted size, then one answer in transit beside the one that the
# reader takes.
WINDOW_BYTES_MIN = COUNTED_BYTES_MIN
WINDOW_BYTES_MAX = 2 * SUBSCRIPTION_ANSWER_BYTES_MAX


class GatewaySubscriptions:
    """All subscriptions through one gateway."""

    def __init__(
        self,
        places: QueueLocator,
        answers: Room,
        metrics: GatewayMetrics,
        tasks: asyncio.TaskGroup,
        *,
        subscriptions_max: int,
    ) -> None:
        """`answers`: capacity for answers in transit. `tasks`: runs the credit readers."""
        self._places = places
        self._answers = answers
        self._metrics = metrics
        self._tasks = tasks
        self._seats = Seats(
            subscriptions_max,
            "subscriptions are open",
            reason="SUBSCRIPTIONS_EXHAUSTED",
            used=metrics.subscriptions,
            most=metrics.subscriptions_max,
        )

    async def answers(self, subscribe: Subscribe, given: AsyncIterator[int], peer: str) -> AsyncGenerator[bytes, None]:
        """Yields the store's SubscribeResponses, encoded. `given`: later credit.

        Raises:
            DueTimeError: bad fields, no such topic or queue, too many subscriptions, no capacity for an answer, or an
                error of the shard.
        """
        check_subscribe(subscribe)
        places = await self._places.of(subscribe.topic)
        number, shard_queues = on_one_shard(places, subscribe.topic, subscribe.positions)
        shard = await self._places.ready_shard(number, subscribe.topic)
        caller = sharer(peer)
        self._seats.take(caller)
        room = partial(self._answers.shares.room, peer)
        relay = _Relay(shard.store.subscribe(caller), given, room, self._tasks)
        try:
            async with aclosing(relay.answers(subscribe, shard_queues)) as answers:
                async for answer in answers:
                    if COUNTED_BYTES_MIN < len(answer) > room():
                        raise self._answers.refused(peer)
                    self._metrics.bytes_out.inc(len(answer))
                    yield answer
        finally:
            relay.close()
            self._seats.give(caller)


class _Relay:
    """One subscription: forwards answers to the reader and credit to the store."""

    def __init__(
        self,
        stream: ShardSubscription,
        given: AsyncIterator[int],
        room: Callable[[], int],
        tasks: asyncio.TaskGroup,
    ) -> None:
        """`room`: bytes of answers for which the reader's connection has capacity."""
        self._stream = stream
        self._given = given
        self._room = room
        self._tasks = tasks
        # The reader's credit; the store has `_ahead` of it, up to `_window`.
        self._credit = Credit(CREDIT_BYTES_MAX)
        self._ahead = 0
        self._window = WINDOW_BYTES_MIN
        self._has_ended = False
        # Reads credit; started when credit is low, and kept once the reader sends no more.
        self._passing: asyncio.Task[None] | None = None
        # Error of the credit stream.
        self._error: DueTimeError | None = None

    async def answers(self, subscribe: Subscribe, shard_queues: list[int]) -> AsyncGenerator[bytes, None]:
        self._credit.give(subscribe.credit_bytes)
        self._ahead = min(self._credit.left, self._window)
        await self._stream.ask(subscribe_request(subscribe, shard_queues, self._ahead))
        try:
            async for answer in self._stream.answers():
                size = len(answer)
                self._credit.spend(size)
                self._ahead -= size
                if self._credit.is_low and self._passing is None:
                    self._passing = self._tasks.create_task(self._read_credit())
                yield answer
                # The reader has taken the answer.
                del answer
                self._fit_window(size)
                await self._pass_on()
        except asyncio.CancelledError:
            if self._error is not None:
                raise self._error from None
            raise

    def _fit_window(self, size: int) -> None:
        """Doubles the window after an answer of at least half its size; halves it after small ones."""
        if size >= self._window // 2 and self._room() >= 2 * self._window:
            self._window = min(2 * self._window, WINDOW_BYTES_MAX)
        elif size < self._window // 8 or self._room() < self._window:
            self._window = max(self._window // 2, WINDOW_BYTES_MIN)

    async def _pass_on(self) -> None:
        """Tops up the store's credit to one window."""
        size = min(self._window, self._credit.left) - self._ahead
        if size > 0 and self._ahead < self._window // 2:
            self._ahead += size
            await self._stream.give(size)
        if self._has_ended and self._ahead >= self._credit.left:
            await self._stream.give_no_more()

    async def _read_credit(self) -> None:
        """Reads credit from the reader until there is enough. Never raises."""
        try:
            while self._credit.is_low:
                size = await anext(self._given, None)
                if size is None:
                    self._has_ended = True
                    await self._pass_on()
                    return
                self._credit.give(size)
                await self._pass_on()
            self._passing = None
        except DueTimeError as error:
            self._fail(error)
        except Exception as error:
            self._fail(defect(error, "Subscribe"))

    def _fail(self, error: DueTimeError) -> None:
        """Ends the stream with the error."""
        self._error = error
        self._stream.close()

    def close(self) -> None:
        if self._passing is not None:
            self._passing.cancel()
        self._stream.close()
