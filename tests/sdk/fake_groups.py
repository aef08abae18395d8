"""The fake gateway with groups: leases, acknowledgements and failures in memory, faults as a test writes them down.

No lease ends by itself: a test ends them, and releases failed messages for another delivery.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import grpc
from duetime.v1 import consumer_pb2, leases_pb2
from duetime_core.errors import AlreadyExists, DueTimeError
from duetime_core.leasestreams import LeaseStreams
from duetime_core.serving import status_of
from duetime_format import receipts
from duetime_format import record as codec
from duetime_format.record import Record, decode

from tests.sdk.fake_gateway import FakeGateway
from tests.sdk.fake_leases import FakeStream

OK = consumer_pb2.RECEIPT_STATUS_OK
EXPIRED = consumer_pb2.RECEIPT_STATUS_EXPIRED
# The fake's clock stands.
NOW_MS = 1_700_000_000_000


@dataclass(eq=False)
class Entry:
    """A message on its way through a group."""

    topic: str
    queue: int
    record: bytes
    attempt: int = 1

    @property
    def body(self) -> bytes:
        return decode(self.record).body


@dataclass
class FakeGroups(FakeGateway):
    """One group. `log` has what was done, as (call, body of the message)."""

    group: consumer_pb2.Group | None = None
    next_offset: dict[tuple[str, int], int] = field(default_factory=lambda: defaultdict(int))
    # By topic asked for: what is given before new messages.
    returned: dict[str, deque[Entry]] = field(default_factory=lambda: defaultdict(deque))
    leases: dict[bytes, Entry] = field(default_factory=dict)
    failed: list[Entry] = field(default_factory=list)
    log: list[tuple[str, bytes]] = field(default_factory=list)
    receives: list[consumer_pb2.ReceiveRequest] = field(default_factory=list)
    nacks: list[consumer_pb2.NackRequest] = field(default_factory=list)
    moves: list[consumer_pb2.ChangeInvisibleRequest] = field(default_factory=list)
    # How many calls of each name were answered, and with which errors the next ones end; one that is None passes.
    calls: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    faults: dict[str, deque[DueTimeError | None]] = field(default_factory=lambda: defaultdict(deque))
    # What a call does before it is answered, such as to wait.
    before: dict[str, Callable[[], Any]] = field(default_factory=dict)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    # Receives that wait.
    waiting_count: int = 0
    # Whether it knows of ReceiveStream, and the streams that were opened.
    has_streams: bool = True
    lease_streams: LeaseStreams = field(default_factory=lambda: LeaseStreams("gateway"))
    stream_count: int = 0
    _lease_count: int = 0
    _loop: asyncio.AbstractEventLoop | None = None

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        await super().start()

    # --- what tests do and ask ------------------------------------------------------------------------------------

    def fill(self, topic: str, count: int, queue: int = 0) -> list[bytes]:
        """Messages `0`, `1`, ... with ids `id-0`, ..."""
        self.make_topic(topic)
        bodies = [b"%d" % n for n in range(count)]
        for body in bodies:
            self.append(topic, queue, body, b"UNIQ_KEY\x01id-" + body)
        return bodies

    def append_later(self, topic: str, body: bytes) -> None:
        """From another thread than the gateway's: stored in a turn of its loop."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self.append, topic, 0, body)

    def come_again(self, topic: str) -> None:
        """Makes failed messages available again, as retries."""
        for number, entry in enumerate(self.failed):
            found = decode(entry.record)
            place = f"\x02{codec.ORIGIN}\x01{entry.queue}:{found.queue_offset}\x02{codec.VISIBLE_AT}\x01{NOW_MS}"
            properties = found.properties + place.encode()
            copied = codec.encode(Record("%RETRY%billing", 0, found.body, properties, queue_offset=99 + number))
            self.returned[topic].append(Entry("%RETRY%billing", 0, copied, entry.attempt + 1))
        self.failed.clear()
        self._change()

    def end_leases(self) -> None:
        """All leases end by themselves."""
        for receipt, entry in list(self.leases.items()):
            self._give_back(receipt, entry.attempt + 1)
        self._change()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Returns once the condition holds; it is checked after every call."""
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    def bodies(self, call: str) -> list[bytes]:
        return [body for name, body in self.log if name == call]

    # --- calls ----------------------------------------------------------------------------------------------------

    async def ListGroups(self, request: Any, context: Any) -> consumer_pb2.ListGroupsResponse:
        await self._begin("ListGroups", context)
        return consumer_pb2.ListGroupsResponse(groups=[self.group] if self.group is not None else [])

    async def CreateGroup(self, request: consumer_pb2.CreateGroupRequest, context: Any) -> consumer_pb2.Group:
        await self._begin("CreateGroup", context)
        if self.group is not None and self.group != request.group:
            await context.abort_with_status(status_of(AlreadyExists("group billing is otherwise")))
        self.group = request.group
        return self.group

    async def Receive(self, request: consumer_pb2.ReceiveRequest, context: Any) -> consumer_pb2.ReceiveResponse:
        try:
            return await self.give(request)
        except DueTimeError as error:
            await context.abort_with_status(status_of(error))
            raise

    async def ReceiveStream(self, requests: Any, context: Any) -> AsyncIterator[leases_pb2.ReceiveStreamResponse]:
        if not self.has_streams:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
        self.stream_count += 1
        try:
            async with aclosing(self.lease_streams.responses(FakeStream(self), requests)) as responses:
                async for response in responses:
                    yield response
        except DueTimeError as error:
            await context.abort_with_status(status_of(error))

    async def give(self, request: consumer_pb2.ReceiveRequest) -> consumer_pb2.ReceiveResponse:
        """Leases, after waiting for the first. Raises: DueTimeError: the next fault."""
        self.receives.append(request)
        self._change()
        await self._begin("Receive")
        response = self._lease(request)
        if not response.runs:
            arrived = asyncio.create_task(self._appended.wait())
            changed = asyncio.create_task(self.until(lambda: bool(self.returned[request.topic])))
            self.waiting_count += 1
            try:
                waiting = {arrived, changed}
                await asyncio.wait(waiting, timeout=request.wait_ms / 1000, return_when=asyncio.FIRST_COMPLETED)
            finally:
                self.waiting_count -= 1
                self._change()
                arrived.cancel()
                changed.cancel()
            response = self._lease(request)
        self._change()
        return response

    def take_back(self, given: Sequence[bytes]) -> None:
        """Leases whose receiver never got them."""
        for receipt in given:
            if receipt in self.leases:
                self._give_back(receipt, self.leases[receipt].attempt)
        self._change()

    def _lease(self, request: consumer_pb2.ReceiveRequest) -> consumer_pb2.ReceiveResponse:
        response = consumer_pb2.ReceiveResponse()
        room = request.max_count
        returned = self.returned[request.topic]
        while returned and room:
            room -= 1
            self._add(response, returned.popleft(), request)
        for (topic, queue), records in self.queues.items():
            if topic != request.topic or (self._is_ordered and any(one.queue == queue for one in self.leases.values())):
                continue
            first = self.next_offset[topic, queue]
            for record in records[first : first + room]:
                room -= 1
                self.next_offset[topic, queue] += 1
                self._add(response, Entry(topic, queue, record), request)
        return response

    @property
    def _is_ordered(self) -> bool:
        return self.group is not None and self.group.ordered

    def _add(self, response: consumer_pb2.ReceiveResponse, entry: Entry, request: consumer_pb2.ReceiveRequest) -> None:
        runs = response.runs
        if runs and (runs[-1].topic, runs[-1].queue) == (entry.topic, entry.queue):
            run = runs[-1]
        else:
            self._lease_count += 1
            run = runs.add()
        (receipt,) = receipts.pack(self._shard(entry.queue), self._lease_count, [decode(entry.record).queue_offset])
        self.leases[receipt] = entry
        run.topic, run.queue, run.lease_ends_at_ms = entry.topic, entry.queue, NOW_MS + request.invisible_ms
        run.records += entry.record
        run.receipts.append(receipt)
        run.attempts.append(entry.attempt)
        self.log.append(("receive", entry.body))

    async def Ack(self, request: consumer_pb2.AckRequest, context: Any) -> consumer_pb2.AckResponse:
        try:
            statuses = await self.acknowledge(request.receipts)
        except DueTimeError as error:
            await context.abort_with_status(status_of(error))
            raise
        return consumer_pb2.AckResponse(statuses=statuses if any(statuses) else [])

    async def acknowledge(self, given: Sequence[bytes]) -> list[Any]:
        """A status for each. Raises: DueTimeError: the next fault."""
        await self._begin("Ack")
        statuses = []
        for receipt in given:
            entry = self.leases.pop(receipt, None)
            statuses.append(EXPIRED if entry is None else OK)
            if entry is not None:
                self.log.append(("ack", entry.body))
        self._change()
        return statuses

    async def Nack(self, request: consumer_pb2.NackRequest, context: Any) -> consumer_pb2.NackResponse:
        await self._begin("Nack", context)
        self.nacks.append(request)
        response = consumer_pb2.NackResponse()
        for nack in request.nacks:
            result = response.results.add()
            entry = self.leases.pop(nack.receipt, None)
            if entry is None:
                result.status = EXPIRED
                continue
            dead = nack.reject or entry.attempt >= (request.policy.max_attempts or 17)
            result.dead, result.attempt = dead, entry.attempt
            result.deliver_at_ms = 0 if dead else NOW_MS + nack.delay_ms
            self.log.append(("dead" if dead else "nack", entry.body))
            if not dead:
                self.failed.append(entry)
        self._change()
        return response

    async def ChangeInvisible(
        self, request: consumer_pb2.ChangeInvisibleRequest, context: Any
    ) -> consumer_pb2.ChangeInvisibleResponse:
        await self._begin("ChangeInvisible", context)
        self.moves.append(request)
        statuses = []
        for receipt in request.receipts:
            entry = self.leases.get(receipt)
            statuses.append(EXPIRED if entry is None else OK)
            if entry is not None:
                kind = "extend" if request.invisible_ms else "return" if request.not_attempted else "break off"
                self.log.append((kind, entry.body))
                if not request.invisible_ms:
                    self._give_back(receipt, entry.attempt + (not request.not_attempted))
        self._change()
        return consumer_pb2.ChangeInvisibleResponse(statuses=statuses if any(statuses) else [])

    def _give_back(self, receipt: bytes, attempt: int) -> None:
        entry = self.leases.pop(receipt)
        entry.attempt = attempt
        self.returned[entry.topic].append(entry)

    async def _begin(self, call: str, context: Any = None) -> None:
        if call in self.before:
            await self.before[call]()
        self.calls[call] += 1
        fault = self.faults[call].popleft() if self.faults[call] else None
        self._change()
        if fault is not None:
            if context is None:
                raise fault
            await context.abort_with_status(status_of(fault))

    def _change(self) -> None:
        self._changed.set()
