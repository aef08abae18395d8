"""kill -9 of a store while it indexes: acknowledged messages are found immediately, and after a restart, once."""

import asyncio
from pathlib import Path

import pytest
from duetime.v1 import gateway_pb2, store_pb2, store_pb2_grpc

from tests.crash.test_store_kills import DEADLINE_S, TOPIC, body_of, numbered, store_process

COUNT_MAX = 3_000
BATCH = 25


@pytest.mark.proof
async def test_acknowledged_messages_are_found_before_and_after_kills(tmp_path: Path) -> None:
    acknowledged: list[str] = []
    for round_ in range(3):
        async with store_process(tmp_path, "sync") as (process, store):
            for message_id in acknowledged[::97]:
                await check_found(store, message_id)
            writing = asyncio.ensure_future(write(store, round_, acknowledged))
            async with asyncio.timeout(DEADLINE_S):
                while len(acknowledged) < (round_ + 1) * COUNT_MAX // 3:
                    await asyncio.wait({writing}, timeout=0.01)
                    if acknowledged:
                        await check_found(store, acknowledged[-1])
            process.kill()
            await asyncio.gather(writing, return_exceptions=True)
    async with store_process(tmp_path, "sync") as (_, store):
        for message_id in acknowledged:
            await check_found(store, message_id)
        answer = await store.QueryMessages(
            gateway_pb2.QueryMessagesRequest(topic=TOPIC, key=acknowledged[-1]), timeout=DEADLINE_S
        )
        assert [found.message.id for found in answer.messages] == [acknowledged[-1]]


async def write(store: store_pb2_grpc.StoreStub, writer: int, acknowledged: list[str]) -> None:
    """Puts batches until the store is gone."""
    for first in range(0, 100 * COUNT_MAX, BATCH):
        numbers = range(first, first + BATCH)
        records = b"".join(numbered(writer, number, deferred=number % 5 == 0) for number in numbers)
        await store.Put(store_pb2.PutRequest(records=records), timeout=DEADLINE_S)
        acknowledged += [f"{writer}-{number}" for number in numbers]


async def check_found(store: store_pb2_grpc.StoreStub, message_id: str) -> None:
    """By id and by offset id, with its own body; deferred ones as pending."""
    found = await store.GetMessage(gateway_pb2.GetMessageRequest(id=message_id), timeout=DEADLINE_S)
    assert (found.message.id, found.message.body) == (message_id, body_of(message_id))
    deferred = int(message_id.partition("-")[2]) % 5 == 0
    assert (found.state == gateway_pb2.MESSAGE_STATE_PENDING) == deferred
    assert await store.GetMessage(gateway_pb2.GetMessageRequest(id=found.offset_id), timeout=DEADLINE_S) == found


pytestmark = pytest.mark.timeout(180)
