"""Calls to the shards, each with a deadline; their statuses become errors here."""

from collections.abc import Mapping, Sequence
from typing import Any

import grpc
from duetime.v1 import store_pb2, store_pb2_grpc
from duetime_core.errors import InvalidArgument, NotFound, Unavailable, Violation
from duetime_core.rpc.calls import answer_of
from duetime_format import record

# The reason of a shard that does not answer.
UNAVAILABLE = "SHARD_UNAVAILABLE"


class Stores:
    """The shards that this process knows."""

    def __init__(self, channels: Mapping[int, grpc.aio.Channel], timeout_ms: int) -> None:
        self._stubs = {
            shard: store_pb2_grpc.StoreStub(channel)  # type: ignore[no-untyped-call]
            for shard, channel in channels.items()
        }
        self._timeout_s = timeout_ms / 1000.0

    @property
    def shards(self) -> Sequence[int]:
        return tuple(self._stubs)

    async def call(self, shard: int, method: str, request: Any, *, wait_ms: int = 0) -> Any:
        """`wait_ms`: how long the shard itself may wait."""
        stub = self._stubs.get(shard)
        if stub is None:
            raise NotFound(f"shard {shard} is not one of this process's stores", reason="SHARD_NOT_FOUND")
        call = getattr(stub, method)(request, timeout=self._timeout_s + wait_ms / 1000.0)
        return await answer_of(call, f"shard {shard}", UNAVAILABLE)

    async def leased(self, shard: int, group: str, receipts: Sequence[bytes]) -> store_pb2.GetLeasedResponse:
        """The leases of the first receipts, at least one: as many as fit into an answer."""
        request = store_pb2.GetLeasedRequest(group=group, receipts=receipts)
        answer: store_pb2.GetLeasedResponse = await self.call(shard, "GetLeased", request)
        if not 1 <= len(answer.leased) <= len(receipts):
            text = f"shard {shard} answered with {len(answer.leased)} leases, not 1 to {len(receipts)}"
            raise Unavailable(text, reason=UNAVAILABLE)
        return answer

    async def take_exhausted(
        self, shard: int, count: int, wait_ms: int, invisible_ms: int
    ) -> store_pb2.GetLeasedResponse | None:
        """Leased messages; None: there were none within the deadline."""
        request = store_pb2.TakeExhaustedRequest(max_count=count, wait_ms=wait_ms, invisible_ms=invisible_ms)
        try:
            answer: store_pb2.GetLeasedResponse = await self.call(shard, "TakeExhausted", request, wait_ms=wait_ms)
        except Unavailable as error:
            cause = error.__cause__
            if isinstance(cause, grpc.aio.AioRpcError) and cause.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
                return None
            raise
        return answer

    async def record(self, shard: int, topic: str, queue: int, offset: int) -> record.Record:
        request = store_pb2.GetRecordRequest(topic=topic, queue=queue, offset=offset)
        answer = await self.call(shard, "GetRecord", request)
        return record.decode(answer.record)

    async def put(self, shard: int, encoded: bytes) -> tuple[int, bool]:
        """Stores one record: (its due time, or 0; whether it was stored before). Raises DueTimeError if the store
        rejects it."""
        answer = await self.call(shard, "Put", store_pb2.PutRequest(records=encoded))
        if answer.faults:
            raise InvalidArgument([Violation("message", answer.faults[0].message)], reason="RECORD_REFUSED")
        is_repeated = list(answer.statuses) == [store_pb2.PUT_STATUS_DUPLICATE]
        return int(answer.due_at_ms[0]) if answer.due_at_ms else 0, is_repeated

    async def put_topic(self, shard: int, topic: str) -> None:
        await self.call(shard, "PutTopic", store_pb2.PutTopicRequest(name=topic, queue_count=1))

    async def has_topic(self, shard: int, topic: str) -> bool:
        """Whether anything of the topic was ever stored there."""
        answer: store_pb2.ListQueuesResponse = await self.call(
            shard, "ListQueues", store_pb2.ListQueuesRequest(topic=topic)
        )
        return bool(answer.queues)
