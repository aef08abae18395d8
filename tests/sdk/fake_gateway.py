"""A gateway with queues in memory behind real gRPC, whose faults a test sets up in advance."""

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import grpc
from duetime.client.ids import later
from duetime.v1 import gateway_pb2, gateway_pb2_grpc, message_pb2, subscriptions_pb2
from duetime_core.errors import DueTimeError, InvalidArgument, Violation
from duetime_core.serving import status_of
from duetime_format.record import Record, encode, lane_entry

_Answer = tuple[gateway_pb2.SendResponse, grpc.StatusCode | DueTimeError | None]
# What happens to one Send: None lets it pass; else the status it ends with, or its results changed.
Script = Callable[[gateway_pb2.SendRequest, gateway_pb2.SendResponse], grpc.StatusCode | None]


@dataclass
class FakeGateway(gateway_pb2_grpc.GatewayServicer):
    """Stores at once whatever the delay; `scripts` are used up one a Send, `requests` has the Sends that came."""

    queue_count: int = 2
    # Queue q is on shard q modulo this.
    shard_count: int = 1
    queues: dict[tuple[str, int], list[bytes]] = field(default_factory=dict)
    min_offset: int = 0
    scripts: deque[Script] = field(default_factory=deque)
    requests: list[gateway_pb2.SendRequest] = field(default_factory=list)
    # Whether Subscribe is known, as it is not in release 0.1.
    knows_subscribe: bool = True
    # Messages in one answer to a subscription.
    answer_count: int = 4_096
    # What subscriptions asked for, their later requests too, and how many answers they were given.
    subscribes: list[subscriptions_pb2.SubscribeRequest] = field(default_factory=list)
    answer_sizes: list[int] = field(default_factory=list)
    pulls: list[gateway_pb2.PullQueuesRequest] = field(default_factory=list)
    commits: list[gateway_pb2.CommitOffsetsRequest] = field(default_factory=list)
    # Next offset by group, topic and queue.
    offsets: dict[tuple[str, str, int], int] = field(default_factory=dict)
    # Statuses with which the next commits end.
    commit_errors: deque[grpc.StatusCode] = field(default_factory=deque)
    stored: dict[str, message_pb2.SendResult] = field(default_factory=dict)
    # As release 0.1 knows none.
    knows_no_packs: bool = False
    knows_no_streams: bool = False
    # Open SendStreams.
    streams: int = 0
    # Set: Sends wait for it before they are answered.
    gate: asyncio.Event | None = None
    port: int = 0
    _server: grpc.aio.Server | None = None
    _arrived: asyncio.Event = field(default_factory=asyncio.Event)
    _stream_ended: asyncio.Event = field(default_factory=asyncio.Event)
    _appended: asyncio.Event = field(default_factory=asyncio.Event)
    _turn: Any = field(default_factory=itertools.count)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Listens, on the same port again after a stop."""
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        gateway_pb2_grpc.add_GatewayServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        self.port = self._server.add_insecure_port(f"127.0.0.1:{self.port}")
        await self._server.start()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(0)

    async def arrival(self, count: int) -> None:
        """Returns once so many Sends have come."""
        while len(self.requests) < count:
            self._arrived.clear()
            await self._arrived.wait()

    async def streams_left(self, count: int) -> None:
        """Returns once so many SendStreams are open."""
        while self.streams != count:
            self._stream_ended.clear()
            await self._stream_ended.wait()

    def make_topic(self, name: str, queue_count: int | None = None) -> None:
        for queue in range(queue_count or self.queue_count):
            self.queues.setdefault((name, queue), [])

    def append(self, topic: str, queue: int, body: bytes, properties: bytes = b"", **fields: Any) -> None:
        records = self.queues[topic, queue]
        record = Record(topic, queue, body, properties, queue_offset=len(records), **fields)
        records.append(encode(record))
        self._appended.set()
        self._appended = asyncio.Event()

    async def Send(self, request: gateway_pb2.SendRequest, context: Any) -> gateway_pb2.SendResponse:
        response, error = await self._answer(request)
        if error is not None:
            await _abort(context, error)
        return response

    async def SendStream(
        self, requests: AsyncIterator[gateway_pb2.SendRequest], context: Any
    ) -> AsyncIterator[gateway_pb2.SendResponse]:
        if self.knows_no_streams:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "there are no streams")
        self.streams += 1
        answering: asyncio.Queue[asyncio.Task[_Answer] | None] = asyncio.Queue()

        async def read() -> None:
            async for request in requests:
                answering.put_nowait(asyncio.create_task(self._answer(request)))
            answering.put_nowait(None)

        reader = asyncio.create_task(read())
        try:
            while (answer := await answering.get()) is not None:
                response, error = await answer
                if error is not None:
                    await _abort(context, error)
                yield response
        finally:
            reader.cancel()
            self.streams -= 1
            self._stream_ended.set()

    async def _answer(self, request: gateway_pb2.SendRequest) -> "_Answer":
        self.requests.append(request)
        self._arrived.set()
        script = self.scripts.popleft() if self.scripts else None
        if self.gate is not None:
            await self.gate.wait()
        messages = list(request.messages) if self.knows_no_packs else messages_of(request)
        response = gateway_pb2.SendResponse()
        if not messages:
            return response, InvalidArgument([Violation("messages", "0 messages; a request has 1 to 4096")])
        # A pack goes to one queue.
        queue = next(self._turn) % self.queue_count if request.packs else None
        response.results.extend(self._store(message, request.retry, queue) for message in messages)
        if script is not None and (code := script(request, response)) is not None:
            return response, code
        return _in_ranges(response) if request.packs else response, None

    def _store(self, message: message_pb2.Message, retry: bool, pack_queue: int | None) -> message_pb2.SendResult:
        if retry and message.id in self.stored:
            result = message_pb2.SendResult()
            result.CopyFrom(self.stored[message.id])
            result.duplicate = True
            return result
        self.make_topic(message.topic)
        queue = message.queue if message.HasField("queue") else pack_queue
        if queue is None:
            queue = next(self._turn) % self.queue_count
        level = 2 if message.WhichOneof("due") else 0
        due_at_ms = 1_700_000_000_000 if level else 0
        parts = [f"{k}\x01{v}".encode() for k, v in message.properties.items()]
        parts += [f"TAGS\x01{message.tags}".encode()] if message.tags else []
        parts += [f"KEYS\x01{' '.join(message.keys)}".encode()] if message.keys else []
        parts += [f"UNIQ_KEY\x01{message.id}".encode()]
        parts += [lane_entry(level, 7, due_at_ms)] if level else []
        offset = len(self.queues[message.topic, queue])
        self.append(message.topic, queue, message.body, b"\x02".join(parts), stored_at_ms=due_at_ms + 3)
        result = message_pb2.SendResult(
            message_id=message.id, queue=queue, offset=offset, delay_level=level, deliver_at_ms=due_at_ms
        )
        self.stored[message.id] = result
        return result

    async def PullQueues(self, request: gateway_pb2.PullQueuesRequest, context: Any) -> gateway_pb2.PullQueuesResponse:
        self.pulls.append(request)
        if len({self._shard(position.queue) for position in request.queues}) != 1:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "queues of several shards")
        response = self._read(request)
        if not response.queues:
            await self._wait(request.wait_ms)
            response = self._read(request)
        return response

    async def Subscribe(self, requests: Any, context: Any) -> AsyncIterator[subscriptions_pb2.SubscribeResponse]:
        if not self.knows_subscribe:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
        first = await anext(requests)
        self.subscribes.append(first)
        credit, offsets = first.credit_bytes, {one.queue: one.offset for one in first.queues}
        if len({self._shard(queue) for queue in offsets}) != 1:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "queues of several shards")
        while True:
            while credit <= 0:
                self.subscribes.append(await anext(requests))
                credit += self.subscribes[-1].credit_bytes
            appended = self._appended
            answer = self._news(first.topic, offsets, credit)
            if answer.queues:
                credit -= answer.ByteSize()
                self.answer_sizes.append(answer.ByteSize())
                yield answer
            else:
                await appended.wait()

    def _news(self, topic: str, offsets: dict[int, int], size: int) -> subscriptions_pb2.SubscribeResponse:
        """What subscribers of these queues are told next; the offsets move, and a queue that was told goes behind."""
        response, room = subscriptions_pb2.SubscribeResponse(), self.answer_count
        for queue, offset in list(offsets.items()):
            records = self.queues[topic, queue]
            nearest = min(max(offset, self.min_offset), len(records))
            found = records[nearest : nearest + room] if nearest == offset else []
            while len(found) > 1 and sum(map(len, found)) > size:
                found.pop()
            if size <= 0 or not (found or nearest != offset):
                continue
            room, size = room - len(found), size - sum(map(len, found))
            del offsets[queue]
            offsets[queue] = nearest + len(found)
            response.queues.add(
                queue=queue,
                records=b"".join(found),
                next_offset=offsets[queue],
                min_offset=self.min_offset,
                max_offset=len(records),
                out_of_range=nearest != offset,
            )
        return response

    def _shard(self, queue: int) -> int:
        return queue % self.shard_count

    def _read(self, request: gateway_pb2.PullQueuesRequest) -> gateway_pb2.PullQueuesResponse:
        response = gateway_pb2.PullQueuesResponse()
        room = request.max_count
        for position in request.queues:
            records, offset = self.queues[request.topic, position.queue], position.offset
            nearest = min(max(offset, self.min_offset), len(records))
            found = records[offset : offset + room] if nearest == offset else []
            room -= len(found)
            if found or nearest != offset:
                pull = response.queues.add(queue=position.queue).pull
                pull.status = gateway_pb2.PULL_STATUS_FOUND if found else gateway_pb2.PULL_STATUS_OFFSET_OUT_OF_RANGE
                pull.records = b"".join(found)
                pull.next_offset = nearest + len(found)
                pull.min_offset, pull.max_offset = self.min_offset, len(records)
        return response

    async def CommitOffsets(
        self, request: gateway_pb2.CommitOffsetsRequest, context: Any
    ) -> gateway_pb2.CommitOffsetsResponse:
        self.commits.append(request)
        if self.commit_errors:
            await context.abort(self.commit_errors.popleft(), "as the test wants it")
        for position in request.queues:
            self.offsets[request.group, request.topic, position.queue] = position.offset
        return gateway_pb2.CommitOffsetsResponse()

    async def GetOffsets(self, request: gateway_pb2.GetOffsetsRequest, context: Any) -> gateway_pb2.GetOffsetsResponse:
        response = gateway_pb2.GetOffsetsResponse()
        for (group, topic, queue), offset in self.offsets.items():
            if (group, topic) == (request.group, request.topic):
                response.queues.add(queue=queue, offset=offset)
        return response

    async def _wait(self, wait_ms: int) -> None:
        try:
            async with asyncio.timeout(wait_ms / 1000):
                await self._appended.wait()
        except TimeoutError:
            pass

    async def DescribeTopic(self, request: Any, context: Any) -> gateway_pb2.TopicDescription:
        queues = sorted(queue for topic, queue in self.queues if topic == request.name)
        if not queues:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no topic {request.name}")
        return gateway_pb2.TopicDescription(
            topic=gateway_pb2.Topic(name=request.name, queue_count=len(queues)),
            queues=[
                gateway_pb2.QueueDescription(
                    queue=queue,
                    shard=self._shard(queue),
                    min_offset=self.min_offset,
                    max_offset=len(self.queues[request.name, queue]),
                )
                for queue in queues
            ],
        )

    async def GetRoute(self, request: Any, context: Any) -> gateway_pb2.Route:
        queues = [
            gateway_pb2.QueueRoute(queue=queue, shard=self._shard(queue))
            for topic, queue in self.queues
            if topic == request.topic
        ]
        return gateway_pb2.Route(topic=request.topic, queues=queues)


async def _abort(context: Any, error: grpc.StatusCode | DueTimeError) -> None:
    if isinstance(error, DueTimeError):
        await context.abort_with_status(status_of(error))
    await context.abort(error, "as the test wants it")


def messages_of(request: gateway_pb2.SendRequest) -> list[message_pb2.Message]:
    """The messages of a request, those of packs one by one."""
    return [*request.messages, *chain(*map(_messages_of_pack, request.packs))]


def _messages_of_pack(pack: gateway_pb2.Pack) -> Iterator[message_pb2.Message]:
    start = 0
    for number, size in enumerate(pack.sizes, pack.first_number):
        message = message_pb2.Message(topic=pack.topic, tags=pack.tags, born_at_ms=pack.born_at_ms)
        message.id, message.body = f"{pack.id_prefix}{number:012X}", pack.bodies[start : start + size]
        if due := pack.WhichOneof("due"):
            setattr(message, due, getattr(pack, due))
        yield message
        start += size


def _in_ranges(response: gateway_pb2.SendResponse) -> gateway_pb2.SendResponse:
    """The results as a gateway tells those of packs: a range goes on as long as ids and offsets do."""
    ranges: list[gateway_pb2.ResultRange] = []
    for result in response.results:
        if ranges and _goes_on(ranges[-1], result):
            ranges[-1].count += 1
        else:
            ranges.append(gateway_pb2.ResultRange(first=result, count=1))
    return gateway_pb2.SendResponse(ranges=ranges)


def _goes_on(before: gateway_pb2.ResultRange, result: message_pb2.SendResult) -> bool:
    if result.HasField("fault") or before.first.HasField("fault"):
        return False
    follows = result.message_id == later(before.first.message_id, before.count)
    return follows and result.offset == before.first.offset + before.count


def fail(code: grpc.StatusCode) -> Script:
    """The Send is stored, and its answer is lost on the way."""
    return lambda _request, _response: code


def refuse(index: int, code: int, reason: str, *, retriable: bool) -> Script:
    """One message of the Send is answered with a fault."""

    def script(request: gateway_pb2.SendRequest, response: gateway_pb2.SendResponse) -> None:
        fault = message_pb2.Fault(code=code, reason=reason, message=f"{reason} as the test wants", retriable=retriable)
        fault.violations.add(field="topic", description="is 'x y'; allowed are [%|a-zA-Z0-9_-]")
        response.results[index].CopyFrom(message_pb2.SendResult(fault=fault))

    return script
