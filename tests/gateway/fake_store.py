"""A store that fails to order: late, refusing, gone, of another make. Offsets are given as a store would."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import grpc
from duetime.v1 import consumer_pb2, gateway_pb2, pending_pb2, store_pb2, subscriptions_pb2, transactions_pb2
from duetime_core.calls import fault_of
from duetime_core.errors import DueTimeError
from duetime_core.serving import SERVER_OPTIONS, status_of
from duetime_format import receipts, record
from duetime_format.lanes import LANE_TOPICS
from duetime_format.levels import DEFAULT_DELAY_LEVELS, DelayLevels
from google.protobuf.message import Message

from tests.gateway.fake_pending import FakePending
from tests.gateway.fake_transactions import FakeTransactions

NOW_MS = 1_800_000_000_000


def serialize(message: Message) -> bytes:
    return message.SerializeToString()


class FakeStore:
    """Keeps what it was sent. `error`: raised by the next calls; `gate`: puts and pulls wait for it."""

    def __init__(self, shard: int = 0, levels: str = DEFAULT_DELAY_LEVELS) -> None:
        self.shard = shard
        self.levels = DelayLevels.parse(levels)
        self.timer_lane_count = 1
        self.pending = FakePending(shard, self.levels, NOW_MS)
        self.transactions = FakeTransactions(shard, NOW_MS)
        self.host = record.host_bytes("10.0.0.1", 7)
        self.puts: list[store_pb2.PutRequest] = []
        self.records: list[record.Record] = []
        self.topics: dict[str, int] = {}
        # By name, as from a directory that came with them.
        self.stored: dict[str, int] = {}
        self.described = 0
        self.now_ms = NOW_MS
        self.listed = 0
        # Topics that each PutTopics named, and those that are refused.
        self.topic_calls: list[int] = []
        self.refused_topics: dict[str, DueTimeError] = {}
        self.listed_names: list[list[str]] = []
        self.error: DueTimeError | None = None
        self.answer: store_pb2.PutResponse | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self.arrived = asyncio.Condition()
        self.waiting = 0
        self.remaining: list[float | None] = []
        self.pull_answer = b""
        # Calls that it does not know.
        self.unknown: set[str] = set()
        # What subscribers are told, encoded, and what they asked; None ends them.
        self.news: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.subscribes: list[subscriptions_pb2.SubscribeRequest] = []
        # What is there to lease, as receipts; what was asked; the leases that are out.
        self.ready: list[bytes] = []
        self.receives: list[consumer_pb2.ReceiveRequest] = []
        self.awaits: list[consumer_pb2.ReceiveRequest] = []
        self.leased: set[bytes] = set()
        self.given_back: list[bytes] = []
        self.group_calls: list[Message] = []
        self.groups: list[consumer_pb2.Group] = []
        self.description = consumer_pb2.GroupDescription()
        self.changed = asyncio.Condition()
        self._offsets: Counter[tuple[str, int]] = Counter()
        self._server: grpc.aio.Server | None = None
        self.port = 0

    async def start(self, port: int = 0) -> "FakeStore":
        self._server = grpc.aio.server(options=SERVER_OPTIONS)
        unary, pb = grpc.unary_unary_rpc_method_handler, store_pb2
        handlers = {
            "PutStream": grpc.stream_stream_rpc_method_handler(
                self.put_stream, pb.PutRequest.FromString, pb.PutResponse.SerializeToString
            ),
            "Subscribe": grpc.stream_stream_rpc_method_handler(
                self.subscribe, subscriptions_pb2.SubscribeRequest.FromString, None
            ),
            "Pull": unary(self.pull, gateway_pb2.PullRequest.FromString, None),
            "PutTopics": unary(self.put_topics, pb.PutTopicsRequest.FromString, pb.PutTopicsResponse.SerializeToString),
            "ListTopics": unary(
                self.list_topics, pb.ListStoredTopicsRequest.FromString, pb.ListStoredTopicsResponse.SerializeToString
            ),
            "Receive": unary(self.receive, consumer_pb2.ReceiveRequest.FromString, serialize),
            "AwaitMessages": unary(self.await_messages, consumer_pb2.ReceiveRequest.FromString, serialize),
            "Ack": unary(self.ack, consumer_pb2.AckRequest.FromString, serialize),
            "ChangeInvisible": unary(self.change_invisible, consumer_pb2.ChangeInvisibleRequest.FromString, serialize),
            "PutGroup": unary(self.group_call, consumer_pb2.Group.FromString, serialize),
            "ListGroups": unary(self.list_groups, consumer_pb2.ListGroupsRequest.FromString, serialize),
            "DescribeGroup": unary(self.group_call, consumer_pb2.DescribeGroupRequest.FromString, serialize),
            "ResetGroup": unary(self.group_call, consumer_pb2.ResetGroupRequest.FromString, serialize),
            "DeleteGroup": unary(self.group_call, consumer_pb2.DeleteGroupRequest.FromString, serialize),
            "ListQueues": unary(self.list_queues, pb.ListQueuesRequest.FromString, serialize),
            "Replace": unary(self.pending_call, pb.ReplaceRequest.FromString, serialize),
            "Cancel": unary(self.pending_call, pending_pb2.CancelRequest.FromString, serialize),
            "ListPending": unary(self.pending_call, pending_pb2.ListPendingRequest.FromString, serialize),
            "Backlog": unary(self.pending_call, pending_pb2.BacklogRequest.FromString, serialize),
            "Prepare": unary(self.transaction_call, pb.PrepareRecordsRequest.FromString, serialize),
            "EndTransactions": unary(self.transaction_call, pb.EndTransactionsRequest.FromString, serialize),
            "TakeChecks": unary(self.transaction_call, pb.TakeChecksRequest.FromString, serialize),
            "ReportChecks": unary(self.transaction_call, pb.ReportChecksRequest.FromString, serialize),
            "ListTransactions": unary(
                self.transaction_call, transactions_pb2.ListTransactionsRequest.FromString, serialize
            ),
            "GetTransaction": unary(self.transaction_call, pb.GetHalfRequest.FromString, serialize),
            "Describe": unary(self.describe, pb.DescribeRequest.FromString, pb.DescribeResponse.SerializeToString),
        }
        handlers = {name: handler for name, handler in handlers.items() if name not in self.unknown}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("duetime.v1.Store", handlers),))
        self.port = self._server.add_insecure_port(f"127.0.0.1:{port}")
        await self._server.start()
        return self

    async def stop(self) -> None:
        if self._server:
            await self._server.stop(0)
            self._server = None

    async def until_waiting(self, count: int) -> None:
        """Returns once `count` calls stand before the gate."""
        async with asyncio.timeout(10), self.arrived:
            await self.arrived.wait_for(lambda: self.waiting >= count)

    async def _enter(self, context: Any) -> None:
        self.remaining.append(context.time_remaining())
        await self._pass_gate()
        if self.error is not None:
            await context.abort_with_status(status_of(self.error))

    async def _pass_gate(self) -> None:
        self.waiting += 1
        async with self.arrived:
            self.arrived.notify_all()
        try:
            await self.gate.wait()
        finally:
            self.waiting -= 1

    async def put_stream(self, requests: Any, context: Any) -> None:
        """Puts do not wait for each other."""
        writing = asyncio.Lock()
        async with asyncio.TaskGroup() as puts:
            async for request in requests:
                puts.create_task(self._put(request, context, writing))

    async def _put(self, request: store_pb2.PutRequest, context: Any, writing: asyncio.Lock) -> None:
        self.puts.append(request)
        await self._pass_gate()
        if self.error is None:
            response = self.answer or self._append(request.records)
        else:
            response = store_pb2.PutResponse(fault=fault_of(self.error))
        response.number = request.number
        async with writing:
            await context.write(response)

    def _append(self, data: bytes) -> store_pb2.PutResponse:
        response = store_pb2.PutResponse(stored_at_ms=NOW_MS)
        at = 0
        while at < len(data):
            one = record.decode(data, at)
            at += one.size
            self.records.append(one)
            response.queue_offsets.append(self._offsets[one.topic, one.queue])
            self._offsets[one.topic, one.queue] += 1
            if one.topic in LANE_TOPICS:
                waiting, past = self.pending.add(one)
                response.due_at_ms.append(waiting.due_at_ms)
                response.past.extend([len(response.due_at_ms) - 1] if past else [])
            else:
                response.due_at_ms.append(0)
        return response

    async def pending_call(self, request: Message, context: Any) -> Message:
        await self._enter(context)
        match request:
            case store_pb2.ReplaceRequest():
                return self.pending.replace(request)
            case pending_pb2.CancelRequest():
                return self.pending.cancel(request)
            case pending_pb2.ListPendingRequest():
                return self.pending.list_pending(request)
            case pending_pb2.BacklogRequest():
                return self.pending.backlog(request)
        raise AssertionError(f"no call takes {type(request)}")

    async def transaction_call(self, request: Message, context: Any) -> Message:
        await self._enter(context)
        try:
            match request:
                case store_pb2.PrepareRecordsRequest():
                    return self.transactions.prepare(request)
                case store_pb2.EndTransactionsRequest():
                    return self.transactions.end(request)
                case store_pb2.TakeChecksRequest():
                    return await self.transactions.take(request)
                case store_pb2.ReportChecksRequest():
                    return await self.transactions.report(request)
                case transactions_pb2.ListTransactionsRequest():
                    return self.transactions.list(request)
                case store_pb2.GetHalfRequest():
                    return self.transactions.get(request)
        except DueTimeError as error:
            await context.abort_with_status(status_of(error))
        raise AssertionError(f"no call takes {type(request)}")

    async def pull(self, request: gateway_pb2.PullRequest, context: Any) -> bytes:
        await self._enter(context)
        return self.pull_answer

    async def subscribe(self, requests: Any, context: Any) -> None:
        """Tells what a test puts into `news`, whatever the credit, until it puts None."""
        await self._enter(context)
        subscribed = asyncio.get_running_loop().create_task(self._take_credit(requests))
        try:
            while (answer := await self.news.get()) is not None:
                await context.write(answer)
        finally:
            subscribed.cancel()

    async def _take_credit(self, requests: Any) -> None:
        async for request in requests:
            async with self.changed:
                self.subscribes.append(request)
                self.changed.notify_all()

    async def put_ready(self, *offsets: int) -> None:
        """There is something to lease."""
        async with self.changed:
            self.ready += receipts.pack(self.shard, 1, offsets)
            self.changed.notify_all()

    async def receive(self, request: consumer_pb2.ReceiveRequest, context: Any) -> consumer_pb2.ReceiveResponse:
        self.receives.append(request)
        await self._enter(context)
        if request.wait_ms:
            await self._is_ready(request.wait_ms)
        response = consumer_pb2.ReceiveResponse()
        most = request.max_count or 32
        for receipt in self.ready[:most]:
            response.messages.add(receipt=receipt, attempt=1)
        del self.ready[:most]
        self.leased.update(message.receipt for message in response.messages)
        return response

    async def _is_ready(self, wait_ms: int) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_ms / 1000.0), self.changed:
                await self.changed.wait_for(lambda: self.ready)
        return bool(self.ready)

    async def await_messages(
        self, request: consumer_pb2.ReceiveRequest, context: Any
    ) -> store_pb2.AwaitMessagesResponse:
        self.awaits.append(request)
        await self._enter(context)
        return store_pb2.AwaitMessagesResponse(ready=await self._is_ready(request.wait_ms))

    async def ack(self, request: consumer_pb2.AckRequest, context: Any) -> consumer_pb2.AckResponse:
        await self._enter(context)
        return consumer_pb2.AckResponse(statuses=self._end(request.receipts))

    async def change_invisible(
        self, request: consumer_pb2.ChangeInvisibleRequest, context: Any
    ) -> consumer_pb2.ChangeInvisibleResponse:
        await self._enter(context)
        statuses = self._end(request.receipts)
        if request.not_attempted:
            async with self.changed:
                self.given_back += request.receipts
                self.changed.notify_all()
        return consumer_pb2.ChangeInvisibleResponse(statuses=statuses)

    def _end(self, ended: Sequence[bytes]) -> list[int]:
        """Nothing where all is right, as a store answers."""
        unknown = [consumer_pb2.RECEIPT_STATUS_UNKNOWN if one not in self.leased else 0 for one in ended]
        self.leased.difference_update(ended)
        return unknown if any(unknown) else []

    async def until(self, holds: Callable[[], bool]) -> None:
        """Returns once `holds`, which something to lease or something given back makes true."""
        async with asyncio.timeout(10), self.changed:
            await self.changed.wait_for(holds)

    async def list_groups(
        self, request: consumer_pb2.ListGroupsRequest, context: Any
    ) -> consumer_pb2.ListGroupsResponse:
        return consumer_pb2.ListGroupsResponse(groups=self.groups)

    async def group_call(self, request: Message, context: Any) -> Message:
        """Keeps what was asked, and answers with as little as the call allows."""
        self.group_calls.append(request)
        if isinstance(request, consumer_pb2.Group):
            return store_pb2.PutGroupResponse()
        await self._enter(context)
        if isinstance(request, consumer_pb2.ResetGroupRequest):
            queues = [consumer_pb2.ResetQueue(queue=one.queue, to_offset=one.shard_queue) for one in request.queues]
            return consumer_pb2.ResetGroupResponse(queues=queues)
        if isinstance(request, consumer_pb2.DeleteGroupRequest):
            return consumer_pb2.DeleteGroupResponse()
        if isinstance(request, consumer_pb2.DescribeGroupRequest):
            return self.description
        raise AssertionError(f"no call takes {type(request)}")

    async def put_topics(self, request: store_pb2.PutTopicsRequest, context: Any) -> store_pb2.PutTopicsResponse:
        self.topics |= {one.name: one.queue_count for one in request.topics}
        self.topic_calls.append(len(request.topics))
        response = store_pb2.PutTopicsResponse()
        for index, one in enumerate(request.topics):
            if one.name in self.refused_topics:
                response.faults[index].CopyFrom(fault_of(self.refused_topics[one.name]))
        return response

    async def list_queues(self, request: store_pb2.ListQueuesRequest, context: Any) -> store_pb2.ListQueuesResponse:
        return store_pb2.ListQueuesResponse()

    async def list_topics(
        self, request: store_pb2.ListStoredTopicsRequest, context: Any
    ) -> store_pb2.ListStoredTopicsResponse:
        self.listed += 1
        self.listed_names.append(list(request.names))
        response = store_pb2.ListStoredTopicsResponse()
        for name, count in self.stored.items():
            if request.names and name not in request.names:
                continue
            response.topics.add(name=name, read_queue_count=count, write_queue_count=count, perm=6)
        return response

    async def describe(self, request: store_pb2.DescribeRequest, context: Any) -> store_pb2.DescribeResponse:
        self.described += 1
        return store_pb2.DescribeResponse(
            shard=self.shard,
            store_host=self.host,
            delay_levels_ms=self.levels.delays_ms,
            now_ms=self.now_ms,
            timer_lane_count=self.timer_lane_count,
        )
