"""Offsets of groups through the gateway: each shard keeps those of its queues."""

from typing import Any

import grpc
from duetime.v1 import gateway_pb2

from tests.gateway.conftest import Gateway, error_of, message, real_store
from tests.gateway.test_adoption import two_with_one_topic


async def commit(gateway: Gateway, offsets: dict[int, int], group: str = "billing", topic: str = "orders") -> Any:
    queues = [gateway_pb2.QueuePosition(queue=queue, offset=offset) for queue, offset in offsets.items()]
    request = gateway_pb2.CommitOffsetsRequest(group=group, topic=topic, queues=queues)
    return await gateway.stub.CommitOffsets(request, timeout=60)


async def offsets(gateway: Gateway, group: str = "billing", topic: str = "orders") -> dict[int, int]:
    request = gateway_pb2.GetOffsetsRequest(group=group, topic=topic)
    answer = await gateway.stub.GetOffsets(request, timeout=60)
    return {position.queue: position.offset for position in answer.queues}


async def test_offsets_are_kept_by_the_shards_of_the_queues(two_shards: Gateway) -> None:
    await two_shards.send(*[message(queue=n % 4) for n in range(8)])
    assert await offsets(two_shards) == {}
    await commit(two_shards, {0: 2, 1: 1, 3: 0})
    assert await offsets(two_shards) == {0: 2, 1: 1, 3: 0}
    await commit(two_shards, {0: 1})
    assert await offsets(two_shards) == {0: 1, 1: 1, 3: 0}
    assert await offsets(two_shards, "audit") == {}


async def test_queues_that_follow_those_of_another_shard_have_their_own_offsets(tmp_path) -> None:
    async with two_with_one_topic(tmp_path) as gateway:
        await commit(gateway, {0: 1, 2: 0, 3: 1})
        assert await offsets(gateway) == {0: 1, 2: 0, 3: 1}


async def test_offsets_survive_the_restart_of_everything(tmp_path) -> None:
    async with real_store(tmp_path) as store, Gateway(tmp_path, {0: store.port}) as gateway:
        await gateway.send(message(queue=2))
        await commit(gateway, {2: 1})
    async with real_store(tmp_path) as store, Gateway(tmp_path, {0: store.port}) as gateway:
        assert await offsets(gateway) == {2: 1}


async def test_faults_of_a_commit_are_reported(two_shards: Gateway) -> None:
    await two_shards.send(message(queue=0))
    for wrong, status, text in (
        ({0: 2}, grpc.StatusCode.INVALID_ARGUMENT, "queues.offset: 2 is not within 0 and 1 of queue 0 of orders"),
        ({}, grpc.StatusCode.INVALID_ARGUMENT, "queues: 0 queues; a request has 1 to 1024"),
        ({4: 0}, grpc.StatusCode.NOT_FOUND, "queue 4 is not one of the 4 queues of topic orders"),
    ):
        error = await error_of(commit(two_shards, wrong))
        assert (error.code(), error.details()) == (status, text)
    for call in (commit(two_shards, {0: 0}, group="a@b"), offsets(two_shards, group="a@b")):
        error = await error_of(call)
        assert (error.code(), error.details()) == (
            grpc.StatusCode.INVALID_ARGUMENT,
            "group: 'a@b' is not 1 to 120 characters of [%|a-zA-Z0-9_-]",
        )
    for call in (commit(two_shards, {0: 0}, topic="nothing"), offsets(two_shards, topic="nothing")):
        assert (await error_of(call)).code() is grpc.StatusCode.NOT_FOUND
    assert (await error_of(offsets(two_shards, topic="a b"))).code() is grpc.StatusCode.INVALID_ARGUMENT
