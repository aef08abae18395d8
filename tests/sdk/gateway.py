"""The gateway of a real cluster, as tests of the SDK meet it: behind a tap, with reads of the nodes behind it."""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import grpc
from duetime import AsyncAdmin, AsyncProducer, AsyncPuller, Message, Receipt, ReceivedMessage
from duetime.client.ids import later
from duetime.v1 import gateway_pb2, message_pb2
from duetime_core.errors import Overloaded
from duetime_core.testing import LocalCluster

from tests.tap import Tap

SENDS = ("SendStream", "Send")
# The gateway's errors if its streams have run out.
NO_STREAM = Overloaded("no stream is left, as the test wants it", reason="STREAMS_EXHAUSTED")
NO_SUBSCRIPTION = Overloaded("no subscription is left, as the test wants it", reason="SUBSCRIPTIONS_EXHAUSTED")


class Gateway(Tap):
    """A tap of the gateway; clients of a test connect to its `address`."""

    def __init__(self, nodes: LocalCluster) -> None:
        super().__init__("duetime.v1.Gateway", nodes.address)
        self.nodes = nodes

    @property
    def sends(self) -> list[gateway_pb2.SendRequest]:
        """Requests with messages, by streams and by calls, in the order of their arrival."""
        return [request for method, request in self.arrived if method in SENDS]

    @property
    def send_methods(self) -> list[str]:
        """The methods of `sends`: repetitions come by Send."""
        return [method for method, _ in self.arrived if method in SENDS]

    async def until_sends(self, count: int) -> None:
        await self.until(lambda: len(self.sends) >= count)

    def lose_sends(self, *codes: grpc.StatusCode | None) -> None:
        """The answers to the next Sends are lost with these statuses; None: this one passes."""
        self.lose(*SENDS, codes=codes)

    def refuse(self, *indices: int, reason: str = "SHARD_UNAVAILABLE", code: int = 14, retriable: bool = True) -> None:
        """The answer to the next Send has faults at these indices."""
        fault = message_pb2.Fault(code=code, reason=reason, message=f"{reason} as the test wants", retriable=retriable)

        def change(_request: Any, answer: gateway_pb2.SendResponse) -> None:
            for method in SENDS:
                self.after.pop(method, None)
            for index in indices:
                _set_fault(answer, index, fault)

        self.after.update(dict.fromkeys(SENDS, change))

    # --- calls to the nodes, past the tap --------------------------------------------------------------------------

    async def make_topic(self, name: str, queues: int) -> None:
        async with AsyncAdmin(self.node) as admin:
            await admin.create_topic(name, queues=queues)

    async def put(self, topic: str, *bodies: bytes, queue: int = 0, ids: str = "", **fields: Any) -> None:
        """Messages in a queue, in their order; `ids` are made of their numbers, as of `id-%d`."""
        messages = [Message(topic, body, queue=queue, **fields) for body in bodies]
        for n, message in enumerate(messages if ids else ()):
            message.id = ids % n
        async with AsyncProducer(self.node) as producer:
            sent = await producer.send_many(messages)
        assert all(isinstance(one, Receipt) for one in sent)

    async def counts(self, topic: str) -> list[int]:
        """How many messages each queue has."""
        async with AsyncAdmin(self.node) as admin:
            return [queue.max_offset for queue in (await admin.topic(topic)).queues]

    def count(self, topic: str) -> int:
        """How many messages a topic has; for tests without an event loop."""
        return sum(self.nodes.run(self.counts(topic)))

    async def stored(self, topic: str) -> dict[tuple[int, int], ReceivedMessage]:
        """The messages of a topic by queue and offset."""
        count = sum(await self.counts(topic))
        found: list[ReceivedMessage] = []
        async with AsyncPuller(self.node, topic, start="earliest") as puller:
            while len(found) < count:
                found += await puller.poll(wait="30s")
        return {(message.queue, message.offset): message for message in found}


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


def bodies_of(requests: Sequence[gateway_pb2.SendRequest]) -> list[bytes]:
    return [message.body for request in requests for message in messages_of(request)]


def _set_fault(answer: gateway_pb2.SendResponse, index: int, fault: message_pb2.Fault) -> None:
    if answer.results:
        answer.results[index].CopyFrom(message_pb2.SendResult(fault=fault))
        return
    ranges: list[gateway_pb2.ResultRange] = []
    for one in answer.ranges:
        if 0 <= index < one.count:
            ranges += _parted(one, index, fault)
        else:
            ranges.append(one)
        index -= one.count
    answer.CopyFrom(gateway_pb2.SendResponse(ranges=ranges))


def _parted(one: gateway_pb2.ResultRange, index: int, fault: message_pb2.Fault) -> Iterator[gateway_pb2.ResultRange]:
    """A range with a fault in it."""
    if index:
        yield gateway_pb2.ResultRange(first=one.first, count=index)
    yield gateway_pb2.ResultRange(first=message_pb2.SendResult(fault=fault), count=1)
    if rest := one.count - index - 1:
        after = message_pb2.SendResult()
        after.CopyFrom(one.first)
        after.message_id, after.offset = later(one.first.message_id, index + 1), one.first.offset + index + 1
        yield gateway_pb2.ResultRange(first=after, count=rest)
