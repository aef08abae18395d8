"""A store node over gRPC on a fake clock, and a group that receives from it."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from duetime.v1 import consumer_pb2, store_pb2
from duetime_format import record
from duetime_format.names import retry_topic
from duetime_format.properties import encode_properties

from tests.store.conftest import sent
from tests.store.running import Running

OK = consumer_pb2.RECEIPT_STATUS_OK
EXPIRED = consumer_pb2.RECEIPT_STATUS_EXPIRED
UNKNOWN = consumer_pb2.RECEIPT_STATUS_UNKNOWN
GROUP, TOPIC = "billing", "orders"
INVISIBLE_MS = 10_000


class Consuming(Running):
    """Calls of a group; messages are identified by their ids."""

    def __init__(self, root: Path, *, queues: int = 1, **settings: Any) -> None:
        super().__init__(root, **settings)
        self.queues = queues

    async def __aenter__(self) -> "Consuming":
        await super().__aenter__()
        await self.stub.PutTopic(store_pb2.PutTopicRequest(name=TOPIC, queue_count=self.queues))
        return self

    async def again(self) -> None:
        """The process is stopped and started."""
        await self.__aexit__()
        await self.__aenter__()

    async def kill(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        """The process dies, and keeps its written data except for the changes of `meanwhile`. It starts again."""
        await self.channel.close()
        node = self.node
        node._stopping = True
        await node._serving.server.stop(0)
        node.loops.cancel()
        await asyncio.gather(node.loops, return_exceptions=True)
        node._threads.flush.shutdown()
        node._threads.checkpoint.shutdown()
        node._threads.topics.shutdown()
        node.store.queues.shared.close()
        node.store.log.close()
        node._directory.close()
        meanwhile()
        await self.__aenter__()

    async def send(self, *ids: str, queue: int = 0, **options: Any) -> None:
        await self.put(*(sent(one, queue=queue, **options) for one in ids))

    def request(self, **options: Any) -> consumer_pb2.ReceiveRequest:
        values = {"group": GROUP, "topic": TOPIC, "max_count": 100, "invisible_ms": INVISIBLE_MS, **options}
        numbers = [consumer_pb2.QueueNumber(queue=n, shard_queue=n) for n in range(self.queues)]
        retries = [consumer_pb2.QueueNumber(queue=0, shard_queue=0)]
        return consumer_pb2.ReceiveRequest(**{"queues": numbers, "retry_queues": retries, **values})

    async def receive(self, **options: Any) -> list[consumer_pb2.LeasedMessage]:
        return list((await self.stub.Receive(self.request(**options), timeout=60)).messages)

    async def ready(self, **options: Any) -> bool:
        return (await self.stub.AwaitMessages(self.request(**options), timeout=60)).ready

    async def ack(self, *messages: Any, group: str = GROUP) -> list[int]:
        names = [one if isinstance(one, bytes) else one.receipt for one in messages]
        answer = await self.stub.Ack(consumer_pb2.AckRequest(group=group, receipts=names), timeout=60)
        return list(answer.statuses) or [OK] * len(names)

    async def change(self, *messages: Any, ms: int = 0, group: str = GROUP, not_attempted: bool = False) -> list[int]:
        names = [one if isinstance(one, bytes) else one.receipt for one in messages]
        request = consumer_pb2.ChangeInvisibleRequest(
            group=group, receipts=names, invisible_ms=ms, not_attempted=not_attempted
        )
        answer = await self.stub.ChangeInvisible(request, timeout=60)
        return list(answer.statuses) or [OK] * len(names)

    async def leased(self, *messages: Any) -> list[store_pb2.LeasedRecord]:
        request = store_pb2.GetLeasedRequest(group=GROUP, receipts=[one.receipt for one in messages])
        return list((await self.stub.GetLeased(request, timeout=60)).leased)

    async def defer(self, message: Any, *, ms: int, history: bytes = b"") -> tuple[list[int], list[int]]:
        deferral = store_pb2.Deferral(receipt=message.receipt, delay_ms=ms, history=history)
        request = store_pb2.DeferRequest(group=GROUP, deferrals=[deferral])
        answer = await self.stub.Defer(request, timeout=60)
        return list(answer.statuses), list(answer.deliver_at_ms)

    async def describe(self) -> consumer_pb2.GroupDescription:
        return await self.stub.DescribeGroup(consumer_pb2.DescribeGroupRequest(name=GROUP), timeout=60)

    async def reset(self, queue: int = 0, **options: Any) -> consumer_pb2.ResetQueue:
        numbers = [consumer_pb2.QueueNumber(queue=queue, shard_queue=queue)]
        request = consumer_pb2.ResetGroupRequest(**{"name": GROUP, "topic": TOPIC, "queues": numbers, **options})
        (row,) = (await self.stub.ResetGroup(request, timeout=60)).queues
        return row

    async def take(self, **options: Any) -> list[store_pb2.LeasedRecord]:
        request = store_pb2.TakeExhaustedRequest(**{"max_count": 10, "invisible_ms": INVISIBLE_MS, **options})
        return list((await self.stub.TakeExhausted(request, timeout=60)).leased)

    async def settle(self, message: Any, *, topic: str = "", visible_at_ms: int = 0) -> list[int]:
        """Puts a copy with the end of the lease; the statuses."""
        data = copy(message.message.id, topic=topic, visible_at_ms=visible_at_ms, attempt=message.attempt)
        settle = store_pb2.Settle(record=0, receipt=message.receipt, group=GROUP)
        return list((await self.put_settling(data, settles=[settle])).statuses) or [OK]


def copy(
    message_id: str,
    *,
    topic: str = "",
    visible_at_ms: int = 0,
    attempt: int = 1,
    of_topic: str = TOPIC,
    origin: str = "",
    key: str = "",
) -> bytes:
    """A retry as the retry service puts it."""
    named = {"UNIQ_KEY": message_id, record.RETRY_TOPIC: of_topic}
    if key:
        named[record.SHARDING_KEY] = key
    if origin:
        named[record.ORIGIN] = origin
    if visible_at_ms:
        named[record.VISIBLE_AT] = str(visible_at_ms)
    properties = record.with_crc_mark(encode_properties(named))
    return record.encode(record.Record(topic or retry_topic(GROUP), 0, b"body", properties, reconsume_times=attempt))


def told(messages: list[consumer_pb2.LeasedMessage]) -> list[tuple[str, int]]:
    return [(one.message.id, one.attempt) for one in messages]


def names(messages: list[consumer_pb2.LeasedMessage]) -> list[str]:
    return [one.message.id for one in messages]
