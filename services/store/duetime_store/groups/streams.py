"""ReceiveStream: a take is a Receive and an ack an Ack; `receiving` and `groups` keep their promises.

The changes of one request are staged together, acks first, and made durable by one flush. Leases of an unwritten answer
are given back.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from duetime.v1 import consumer_pb2, leases_pb2
from duetime_core.errors import DueTimeError, Unavailable, refuse
from duetime_core.limits.room import Room
from duetime_core.limits.traffic import COUNTED_BYTES_MIN
from duetime_core.rpc.calls import fault_of
from duetime_core.rpc.leasestreams import LeaseStreams, Requests, ServerLeaseStream, TakeAnswer
from duetime_format import limits, receipts
from duetime_format.ranges import ranges

from duetime_store.groups import acking
from duetime_store.groups.calls import asked_of, numbers_of, take_violations
from duetime_store.groups.fetch import FetchRequest, LeasedBatch
from duetime_store.groups.groups import GroupRegistry
from duetime_store.groups.receiving import GroupReceiver
from duetime_store.metrics import StoreMetrics
from duetime_store.reading.filters import parsed
from duetime_store.reading.turns import ScanTurns
from duetime_store.writing.flusher import Flusher


@dataclass(frozen=True, slots=True)
class StreamParts:
    """The parts that all streams use."""

    groups: GroupRegistry
    receiver: GroupReceiver
    flusher: Flusher
    turns: ScanTurns
    # Room for answers, shared with all calls.
    answers: Room
    metrics: StoreMetrics
    shard: int


class ReceiveStreams:
    """All streams of one store."""

    def __init__(self, parts: StreamParts) -> None:
        self._parts = parts
        self._streams = LeaseStreams("store")
        parts.metrics.receive_streams.set_function(lambda: self._streams.count)

    def end(self) -> None:
        """Ends streams once their accepted requests are answered, and rejects new ones."""
        self._streams.end()

    def responses(self, requests: Requests, peer: str, caller: str) -> AsyncIterator[leases_pb2.ReceiveStreamResponse]:
        """See `LeaseStreams`."""
        return self._streams.responses(_TakeStream(self._parts, peer, caller), requests)


@dataclass(frozen=True, slots=True)
class _TakeDefaults:
    """The values that takes have in common."""

    asked: FetchRequest
    # Public numbers of queues, by whether they are the retry topic's, and their number here.
    numbers: dict[tuple[bool, int], int]


class _TakeRoom:
    """One take's share of the room for its connection's answers, until its answer is written."""

    def __init__(self, answers: Room, peer: str) -> None:
        self._answers = answers
        self._peer = peer
        self.size = 0

    def left(self, wanted: int) -> int:
        return self._answers.left(self._peer, wanted, COUNTED_BYTES_MIN)

    def take(self, size: int) -> None:
        self._answers.shares.take(self._peer, size)
        self.size += size

    def give(self) -> None:
        self._answers.give(self._peer, self.size)
        self.size = 0


class _TakeStream(ServerLeaseStream):
    """The stream of one receiver."""

    def __init__(self, parts: StreamParts, peer: str, caller: str) -> None:
        super().__init__()
        self._parts = parts
        self._peer = peer
        self._caller = caller
        self._subscription: _TakeDefaults

    async def subscribe(self, subscription: consumer_pb2.ReceiveRequest) -> None:
        wanted = await parsed(self._parts.turns, subscription.tags, subscription.sql)
        self._parts.receiver.gates.learn(subscription.group, subscription.limits)
        self._subscription = _TakeDefaults(
            asked_of(subscription, self._peer, self._caller, wanted), numbers_of(subscription)
        )

    def begun(self) -> None:
        """The flusher wakes after the first turn of the tasks of takes: one flush is for all."""
        self._parts.flusher.wake()

    def ack(self, ack: leases_pb2.AckLeases) -> None:
        rest = acking.ack(self._parts.groups, self._subscription.asked.group, ack.leases)
        answer = leases_pb2.Acked(number=ack.number, rest=acking.wire(rest))
        durable = self._parts.flusher.when_events_durable()
        if durable is None:
            self.put_acked(answer)
        else:
            durable.add_done_callback(partial(self._durable, answer))

    def _durable(self, answer: leases_pb2.Acked, done: "asyncio.Future[None]") -> None:
        error = Unavailable("the store is stopping", reason="STOPPING") if done.cancelled() else done.exception()
        if error is not None:
            assert isinstance(error, DueTimeError), "flushes fail with errors of the store"
            answer = leases_pb2.Acked(number=answer.number, fault=fault_of(error))
        self.put_acked(answer)

    async def take(self, take: leases_pb2.Take) -> TakeAnswer:
        subscription, room = self._subscription, _TakeRoom(self._parts.answers, self._peer)
        try:
            given = await self._parts.receiver.receive(self._asked(subscription.asked, take), room)
        except BaseException:
            room.give()
            raise
        return self._answer(take.number, given, subscription.numbers, room)

    def _asked(self, asked: FetchRequest, take: leases_pb2.Take) -> FetchRequest:
        """Raises: InvalidArgument."""
        refuse(take_violations("takes.", take))
        return replace(
            asked,
            max_count=take.max_count or limits.RECEIVE_COUNT_DEFAULT,
            max_bytes=take.max_bytes or limits.PULL_BYTES_DEFAULT,
            wait_ms=take.wait_ms,
        )

    def _answer(
        self, number: int, given: Sequence[LeasedBatch], numbers: dict[tuple[bool, int], int], room: "_TakeRoom"
    ) -> TakeAnswer:
        taken = leases_pb2.Taken(number=number)
        for one in given:
            key, same = one.lease.place.key, len(set(one.attempts)) == 1
            name = receipts.lease_name(self._parts.shard, one.lease.id)
            taken.runs.add(
                topic=key.queue_topic,
                queue=numbers[key.is_retry, key.queue],
                records=one.records,
                lease=leases_pb2.LeaseOffsets(lease=name, offsets=ranges(one.offsets)),
                attempts=one.attempts[:1] if same else one.attempts,
                lease_ends_at_ms=one.until_ms,
            )
        size = room.size
        self._parts.metrics.messages_out.labels("receive").inc(sum(len(one.sizes) for one in given))
        self._parts.metrics.bytes_out.labels("receive").inc(size)
        leased = [(one.lease, one.offsets) for one in given]

        def done(written: bool) -> None:
            room.give()
            if leased and not written:
                self._parts.groups.not_received(leased)
                self._parts.flusher.wake()

        return TakeAnswer(taken, size, done)
