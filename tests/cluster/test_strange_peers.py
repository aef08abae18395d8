"""A store with broken answers: garbage, cut, empty, with flipped bits, or statuses with garbage in their details.

Each harms only the call that it answers. No process ends, and all work resumes once the answers are right again.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from duetime.v1 import consumer_pb2, gateway_pb2, gateway_pb2_grpc, message_pb2
from duetime_core.clock import SystemClock
from duetime_core.metadata import upgrade
from duetime_core.rpc.serving import SERVER_OPTIONS, make_channel
from duetime_gateway.node import GatewayNode
from duetime_gateway.settings import GatewaySettings
from duetime_retry.node import RetryNode
from duetime_retry.settings import RetrySettings
from duetime_scheduler.node import SchedulerNode
from duetime_scheduler.settings import SchedulerSettings
from duetime_store.node import StoreNode
from duetime_store.settings import StoreSettings

MIB = 1024 * 1024
CODES = [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK]
Strange = Callable[[bytes, grpc.aio.ServicerContext], Any]


class StrangeStore(grpc.GenericRpcHandler):
    """Passes calls on to a store, and distorts every second answer."""

    def __init__(self, address: str, seed: int) -> None:
        self._channel = make_channel(address)
        self._random = random.Random(seed)
        self.strange = False
        self.count = 0
        self._server = grpc.aio.server(options=SERVER_OPTIONS)
        self._server.add_generic_rpc_handlers((self,))
        self.port = self._server.add_insecure_port("127.0.0.1:0")

    async def start(self) -> None:
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(0)
        await self._channel.close()

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        call = self._channel.unary_unary(handler_call_details.method)

        async def answer(request: bytes, context: Any) -> bytes:
            try:
                found: bytes = await call(request, timeout=context.time_remaining())
            except grpc.aio.AioRpcError as error:
                await context.abort(error.code(), error.details() or "", tuple(error.trailing_metadata() or ()))
            if self.strange and self._random.random() < 0.5:
                self.count += 1
                return await self._make_strange(found, context)
            return found

        return grpc.unary_unary_rpc_method_handler(answer)

    async def _make_strange(self, answer: bytes, context: Any) -> bytes:
        kind = self._random.randrange(6)
        if kind == 0:
            return b""
        if kind == 1:
            return self._random.randbytes(self._random.randrange(1, 400))
        if kind == 2:
            return answer[: self._random.randrange(len(answer) + 1)]
        if kind == 3:
            details = self._random.randbytes(self._random.randrange(300))
            await context.abort(self._random.choice(CODES), "strange", (("grpc-status-details-bin", details),))
        flipped = bytearray(answer)
        for _ in range(kind):
            if flipped:
                flipped[self._random.randrange(len(flipped))] ^= 1 << self._random.randrange(8)
        return bytes(flipped)


class Behind:
    """Gateway, scheduler and retry service, each a real node, before the strange store."""

    def __init__(self, nodes: dict[str, Any], store: StrangeStore, stub: Any) -> None:
        self.nodes = nodes
        self.store = store
        self.stub = stub
        self.failures = {name: asyncio.create_task(node.failed()) for name, node in nodes.items()}

    def ended(self) -> dict[str, Any]:
        """Nodes with a dead loop, and the exception."""
        return {name: repr(failure.exception()) for name, failure in self.failures.items() if failure.done()}

    async def work(self, number: int) -> None:
        """One of each call that a client makes; their errors are statuses."""
        message = {"topic": "orders", "id": f"m{number}"}
        wanted = {"group": "g", "topic": "orders", "invisible_ms": 50}
        messages = [
            message_pb2.Message(body=b"x", **message),
            message_pb2.Message(body=b"y", topic="t2", delay_level=1),
        ]
        asked = [
            ("Send", gateway_pb2.SendRequest(messages=messages)),
            ("Pull", gateway_pb2.PullRequest(topic="orders")),
            ("Receive", consumer_pb2.ReceiveRequest(wait_ms=number % 2 * 50, max_attempts=1 + number % 3, **wanted)),
            ("CommitOffsets", gateway_pb2.CommitOffsetsRequest(group="h", topic="orders", queues=[{"queue": 0}])),
            ("DescribeTopic", gateway_pb2.DescribeTopicRequest(name="orders")),
            ("ListLanes", gateway_pb2.ListLanesRequest()),
            ("QueryMessages", gateway_pb2.QueryMessagesRequest(topic="orders", key=f"m{number}")),
            ("TraceMessage", consumer_pb2.TraceMessageRequest(id=f"m{number}")),
        ]
        for method, request in asked:
            try:
                answer = await getattr(self.stub, method)(request, timeout=60)
            except grpc.aio.AioRpcError:
                continue
            if method == "Receive" and answer is not None and answer.messages:
                nacks = [consumer_pb2.Nack(receipt=one.receipt, reject=True) for one in answer.messages]
                await asyncio.gather(
                    self.stub.Nack(consumer_pb2.NackRequest(group="g", nacks=nacks), timeout=60), return_exceptions=True
                )

    async def arrives(self, topic: str, **fields: Any) -> None:
        """Returns once a message that is sent now has come out."""
        message = message_pb2.Message(topic=topic, body=b"last", id=f"last-{topic}", **fields)
        async with asyncio.timeout(60):
            while True:
                try:
                    (result,) = (await self.stub.Send(gateway_pb2.SendRequest(messages=[message]), timeout=60)).results
                    pull = gateway_pb2.PullRequest(topic=topic, queue=0, max_count=1_024, wait_ms=500)
                    found = await self.stub.Pull(pull, timeout=60)
                except grpc.aio.AioRpcError:
                    continue
                if not result.HasField("fault") and message.id in [one.id for one in found.messages]:
                    return


@pytest.fixture
async def behind(tmp_path: Path) -> AsyncIterator[Behind]:
    url, clock = f"sqlite:///{tmp_path / 'metadata.db'}", SystemClock()
    upgrade(url)
    common: dict[str, Any] = {"delay_levels": "1s 2s", "metrics_port": -1, "drain_ms": 0}
    async with AsyncExitStack() as ends:

        async def started(node: Any) -> Any:
            ends.push_async_callback(node.stop)
            await node.start()
            return node

        store = await started(
            StoreNode(StoreSettings(data_dir=tmp_path / "store", segment_bytes=8 * MIB, **common), clock)
        )
        strange = await started(StrangeStore(f"127.0.0.1:{store.port}", seed=20_261_122))
        shared = {**common, "database_url": url, "stores": f"0=127.0.0.1:{strange.port}", "store_timeout_ms": 1_000}
        retry = await started(RetryNode(RetrySettings(**shared), clock))
        address = {"retry_address": f"127.0.0.1:{retry.port}", "queue_count_default": 1}
        gateway = await started(GatewayNode(GatewaySettings(**shared, **address), clock))
        scheduler = await started(SchedulerNode(SchedulerSettings(**shared, publish_ms=1_000, tick_ms=500), clock))
        channel = make_channel(f"127.0.0.1:{gateway.port}")
        ends.push_async_callback(channel.close)
        nodes = {"retry": retry, "gateway": gateway, "scheduler": scheduler, "store": store}
        behind = Behind(nodes, strange, gateway_pb2_grpc.GatewayStub(channel))  # type: ignore[no-untyped-call]
        yield behind
        for failure in behind.failures.values():
            failure.cancel()
        await asyncio.gather(*behind.failures.values(), return_exceptions=True)


async def test_no_answer_of_a_store_ends_a_process(behind: Behind) -> None:
    await behind.arrives("orders")
    behind.store.strange = True
    for number in range(0, 120, 4):
        await asyncio.gather(*(behind.work(number + part) for part in range(4)))
        assert not behind.ended()
    behind.store.strange = False
    assert behind.store.count > 300
    await behind.arrives("again")
    await behind.arrives("later", delay_level=1)
    assert not behind.ended()
