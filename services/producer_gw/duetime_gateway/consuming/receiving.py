"""Receivers with streams: takes and acks of one receiver travel in its own stream to each store.

With one shard, a take is forwarded with its wait; `gathering` asks several. An ack goes to the shards of the leases.
"""

import asyncio
from collections.abc import Sequence

from duetime.streams import LeaseStreamClient
from duetime_core.access.callers import sharer
from duetime_core.limits.seats import Seats

from duetime_gateway.answers import raise_first
from duetime_gateway.consuming.admission import check_acked, check_receive, check_take
from duetime_gateway.consuming.leases import LeaseRouter
from duetime_gateway.deadlines import timeout_of
from duetime_gateway.metrics import GatewayMetrics
from duetime_gateway.queries import LeaseStatus, Receive, Selection
from duetime_gateway.routing.places import QueueLocator
from duetime_gateway.shards import leases as lease_messages
from duetime_gateway.shards.contract import ReceivePart
from duetime_gateway.shards.leases import Messages, Taken, Unacked
from duetime_gateway.shards.shards import Shards


class Receivers:
    """All receivers with streams."""

    def __init__(
        self,
        leases: LeaseRouter,
        places: QueueLocator,
        shards: Shards,
        metrics: GatewayMetrics,
        *,
        timeout_ms: int,
        receivers_max: int,
    ) -> None:
        self.leases = leases
        self.places = places
        self.shards = shards
        self.metrics = metrics
        self.timeout_ms = timeout_ms
        self.seats = Seats(
            receivers_max,
            "receiver streams are open",
            reason="STREAMS_EXHAUSTED",
            used=metrics.receive_streams,
            most=metrics.receive_streams_max,
        )

    def open(self, receive: Receive, peer: str) -> "StreamReceiver":
        """Opens a receiver; the caller closes it.

        Raises:
            InvalidArgument: bad fields.
            Overloaded: the limit of receivers is reached, in total or for this caller.
        """
        check_receive(receive)
        caller = sharer(peer)
        self.seats.take(caller)
        return StreamReceiver(self, receive, peer, caller)


class StreamReceiver:
    """One receiver and its streams to stores."""

    def __init__(self, receivers: Receivers, receive: Receive, peer: str, caller: str) -> None:
        self._all = receivers
        self._receive = receive
        self._peer = peer
        self._caller = caller
        self._pipes: dict[int, LeaseStreamClient] = {}
        # The last request to each shard.
        self._parts: dict[int, ReceivePart] = {}

    async def take(self, selection: Selection) -> list[Taken]:
        """Takes leases, by shard; if the caller leaves, they are returned.

        Raises:
            DueTimeError: bad fields, no such topic, or an error of a shard.
        """
        check_take(selection)
        parts = await self._find_parts()
        if len(parts) == 1:
            ((number, part),) = parts.items()
            answers = [await self.ask(number, part, selection.max_count, selection.max_bytes, selection.wait_ms)]
        else:
            answers = await self._all.leases.gatherer.gather(self, selection, parts, None)
        self._all.metrics.receives.inc()
        self._all.metrics.bytes_out.inc(sum(map(lease_messages.size, answers)))
        return answers

    async def ask(self, number: int, part: ReceivePart, max_count: int, max_bytes: int, wait_ms: int) -> Taken:
        """See `gathering.LeaseSource`."""
        await self._all.places.ready_shard(number, self._receive.topic)
        timeout_ms = timeout_of(self._all.timeout_ms, None, wait_ms)
        return await self._pipe(number).take(part, max_count, max_bytes, wait_ms, timeout_ms / 1000.0)

    def measure(self, answer: Taken) -> tuple[int, int]:
        """See `gathering.LeaseSource`."""
        return lease_messages.count(answer), lease_messages.size(answer)

    def give_back(self, number: int, answers: list[Taken]) -> None:
        """Ends leases whose receiver did not get the answer."""
        names = [name for taken in answers for name in lease_messages.taken_receipts(taken)]
        self._all.leases.give_back(self._receive.group, number, names)

    def give_back_all(self, answers: Sequence[Taken]) -> None:
        """As `give_back`, for answers of any shard."""
        for taken in answers:
            if taken.runs:
                self.give_back(lease_messages.shard(taken), [taken])

    async def ack(self, messages: Sequence[Messages]) -> list[Unacked]:
        """Returns the leases that were not acked; acks are durable.

        Raises:
            DueTimeError: bad fields, or an error of a shard; the other shards are done, and it is safe to retry.
        """
        self._all.metrics.receipts.labels("ReceiveStream").inc(check_acked(messages))
        parts = self._parts or await self._find_parts()
        mine, strange = lease_messages.by_shard(messages, parts)
        if len(mine) == 1 and not strange:
            ((number, own),) = mine.items()
            return list(await self._ack(number, own))
        answers = raise_first(
            await asyncio.gather(
                *(self._ack(number, own) for number, own in mine.items()),
                return_exceptions=True,
            )
        )
        rest = [one for answer in answers for one in answer]
        return rest + lease_messages.unacked(LeaseStatus.UNKNOWN, strange)

    async def _ack(self, number: int, messages: Sequence[Messages]) -> Sequence[Unacked]:
        return await self._pipe(number).ack(self._parts[number], messages, self._all.timeout_ms / 1000.0)

    def close(self) -> None:
        """Answers pending requests and returns leases without a receiver."""
        for pipe in self._pipes.values():
            pipe.close(self._all.timeout_ms / 1000.0)
        self._all.seats.give(self._caller)

    async def _find_parts(self) -> dict[int, ReceivePart]:
        """The requests for the shards. A shard that no longer has the topic still gets acks of its leases."""
        parts = dict(await self._all.leases.parts(self._receive, self._peer))
        self._parts |= parts
        return parts

    def _pipe(self, number: int) -> LeaseStreamClient:
        pipe = self._pipes.get(number)
        if pipe is None:
            store = self._all.shards.get(number).store
            pipe = self._pipes[number] = store.receive_stream(
                self._caller, lambda taken: self.give_back(number, [taken])
            )
        return pipe
