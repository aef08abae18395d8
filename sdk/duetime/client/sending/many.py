"""Sends of many messages: several requests at once, within the capacity of their producer."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from itertools import chain, islice
from typing import TypeVar

from duetime.client.errors import DueTimeError, Overloaded
from duetime.client.message import Message, Receipt
from duetime.client.sending.batch import MessageBatch, WholeBatch
from duetime.client.sending.calls import Calls
from duetime.client.sending.capacity import Capacity
from duetime.client.sending.chunks import Chunks
from duetime.client.sending.delivery import BatchDeliverer, for_each
from duetime.client.sending.outcomes import Outcome, Outcomes
from duetime.client.sending.packs import Bodies

# Concurrent requests of one call: enough to keep the server busy while answers travel.
REQUESTS_IN_FLIGHT_MAX = 4

P = TypeVar("P")


class BulkSender:
    """Sends many messages for one producer. `calls` and `capacity` are shared with its other sends."""

    def __init__(
        self,
        timeout: float,
        capacity: Capacity,
        calls: Calls,
        sends: BatchDeliverer[Receipt],
        whole: BatchDeliverer[Receipt],
    ) -> None:
        """`sends` delivers requests with an outcome for each message, `whole` those with one outcome for all."""
        self._timeout = timeout
        self._capacity = capacity
        self._calls = calls
        self._sends = sends
        self._whole = whole

    async def messages(self, messages: Iterable[Message]) -> list[Outcome]:
        """An outcome for each, in order."""
        chunks: Chunks[Receipt] = Chunks(messages)
        await self._send_all(iter(chunks), chunks.note)
        return [outcome for outcome in chunks.outcomes if outcome is not None]

    async def bodies(self, bodies: Bodies) -> Outcomes:
        """An outcome for each, in order."""
        await self._send_all(iter(bodies), bodies.note)
        return bodies.outcomes()

    async def batches(self, batches: Iterable[WholeBatch]) -> list[Receipt]:
        """Sends batches in turn. Raises: DueTimeError: the first error; the batches before it are stored."""
        receipts: list[Receipt] = []
        with self._calls:
            for batch in batches:
                for outcome in await self._send(batch, self._whole):
                    if isinstance(outcome, DueTimeError):
                        raise outcome
                    receipts.append(outcome)
        return receipts

    async def _send_all(
        self, batches: Iterator[tuple[P, MessageBatch]], note: Callable[[P, Sequence[Outcome]], None]
    ) -> None:
        """Sends batches, each with its place, and notes their outcomes."""
        turn = asyncio.Lock()

        async def work(batches: Iterator[tuple[P, MessageBatch]]) -> None:
            for place, batch in batches:
                # The lock is fair: the sender of the earlier batch acquires it first.
                async with turn if batch.ordered else nullcontext():
                    note(place, await self._send(batch, self._sends))

        try:
            with self._calls:
                first = list(islice(batches, 2))
                if len(first) < 2:
                    # Tasks would take a third of the time of a small call.
                    await work(iter(first))
                    return
                rest = chain(first, batches)
                async with asyncio.TaskGroup() as senders:
                    for _ in range(REQUESTS_IN_FLIGHT_MAX):
                        senders.create_task(work(rest))
        except ExceptionGroup as group:
            # Only the iteration over the caller's messages raises; the caller expects that error, not a group.
            raise group.exceptions[0] from None

    async def _send(self, batch: MessageBatch, delivery: BatchDeliverer[Receipt]) -> Sequence[Outcome]:
        count, deadline = len(batch), asyncio.get_running_loop().time() + self._timeout
        try:
            await self._capacity.acquire_within(count, batch.size, deadline, self._timeout)
        except Overloaded as error:
            return for_each(error, batch)
        try:
            return await delivery.deliver(batch, deadline)
        finally:
            self._capacity.release(count, batch.size)
