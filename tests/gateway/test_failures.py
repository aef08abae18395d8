"""Shards that are gone, late, refusing, or not the ones configured."""

import asyncio
import errno
from pathlib import Path

import grpc
import pytest
from duetime.v1 import gateway_pb2, message_pb2, store_pb2
from duetime_core.clock import SystemClock
from duetime_core.errors import InvalidArgument, Overloaded, ReadOnly, StartupError, Violation
from duetime_gateway.node import GatewayNode
from google.rpc import code_pb2, error_details_pb2
from grpc_status import rpc_status

from tests.faulty_disk import FaultyDisk
from tests.gateway.conftest import Gateway, error_of, message, real_store
from tests.gateway.fake_store import NOW_MS, FakeStore

# Queues of a topic with the default four, on two shards.
QUEUES = range(4)


def faults(results: list[message_pb2.SendResult]) -> list[message_pb2.Fault]:
    return [result.fault for result in results if result.HasField("fault")]


async def shards_of(gateway: Gateway, topic: str = "orders") -> list[int]:
    route = await gateway.stub.GetRoute(gateway_pb2.GetRouteRequest(topic=topic), timeout=5)
    return [one.shard for one in route.queues]


async def test_shard_that_is_gone_fails_its_messages_only(faked: Gateway, fakes: list[FakeStore]) -> None:
    await faked.send(*[message(queue=queue) for queue in QUEUES])
    await fakes[1].stop()
    shards = await shards_of(faked)
    for _ in range(2):
        results = await faked.send(*[message(queue=queue) for queue in QUEUES])
        assert [result.HasField("fault") for result in results] == [shard == 1 for shard in shards]
    for fault in faults(results):
        assert (fault.code, fault.reason, fault.retriable) == (code_pb2.UNAVAILABLE, "SHARD_UNAVAILABLE", True)
        assert fault.message.startswith(f"shard 1 at 127.0.0.1:{fakes[1].port} does not answer: ")
    assert faked.metric("duetime_gateway_shard_up", shard="1") == 0
    assert faked.metric("duetime_gateway_messages_total", outcome="shard_unavailable") == 4


async def test_shard_that_comes_back_is_asked_again_and_gets_its_topics_again(
    faked: Gateway, fakes: list[FakeStore]
) -> None:
    await faked.send(*[message(queue=queue) for queue in QUEUES])
    await fakes[1].stop()
    await faked.send(*[message(queue=queue) for queue in QUEUES])
    back = await FakeStore(1).start(fakes[1].port)
    try:
        async with asyncio.timeout(20):
            while faults(await faked.send(*[message(queue=queue) for queue in QUEUES])):
                continue
        assert (back.described, back.topics) == (1, {"orders": 4})
    finally:
        await back.stop()


async def test_gateway_starts_and_serves_while_a_store_is_down(tmp_path: Path) -> None:
    up = await FakeStore(0).start()
    gone = await FakeStore(1).start()
    await gone.stop()
    try:
        async with Gateway(tmp_path, {0: up.port, 1: gone.port}) as gateway:
            await gateway.stub.CreateTopic(gateway_pb2.CreateTopicRequest(name="orders"))
            shards = await shards_of(gateway)
            results = await gateway.send(*[message(queue=queue) for queue in QUEUES])
            assert [result.HasField("fault") for result in results] == [shard == 1 for shard in shards]
    finally:
        await up.stop()


async def test_late_shard_fails_its_messages_after_the_timeout(tmp_path: Path) -> None:
    store = await FakeStore().start()
    try:
        async with Gateway(tmp_path, {0: store.port}, store_timeout_ms=1_000) as gateway:
            store.gate.clear()
            (result,) = await gateway.send(message(id="a"))
            assert (result.message_id, result.fault.reason) == ("a", "SHARD_UNAVAILABLE")
            assert "does not answer: nothing came within" in result.fault.message
            assert len(store.puts) == 1, "a put is never repeated by the gateway itself"
    finally:
        store.gate.set()
        await store.stop()


async def test_callers_deadline_is_passed_on(faked: Gateway, fakes: list[FakeStore]) -> None:
    await faked.send(message(queue=0))
    await faked.stub.Pull(gateway_pb2.PullRequest(topic="orders"), timeout=2)
    await faked.stub.Pull(gateway_pb2.PullRequest(topic="orders", wait_ms=30_000))
    (store,) = [store for store in fakes if store.remaining]
    short_pull, long_pull = [remaining or 0.0 for remaining in store.remaining]
    assert 1 < short_pull < 2.5
    assert 39 < long_pull < 40.5, "what the caller waits, and the time-out of a store"


async def test_status_of_a_put_becomes_a_fault_of_its_messages(faked: Gateway, fakes: list[FakeStore]) -> None:
    for store in fakes:
        store.error = ReadOnly("the shard takes no writes: disk full")
    (result,) = await faked.send(message(id="a", queue=0))
    assert (result.fault.code, result.fault.reason, result.fault.retriable) == (
        code_pb2.UNAVAILABLE,
        "STORE_READ_ONLY",
        True,
    )
    assert result.fault.message == "the shard takes no writes: disk full"
    for store in fakes:
        store.error = Overloaded("9 bytes wait for the flush, 8 at most")
    (result,) = await faked.send(message(id="a", queue=0))
    assert (result.fault.code, result.fault.retriable) == (code_pb2.RESOURCE_EXHAUSTED, True)
    for store in fakes:
        store.error = None
    assert not faults(await faked.send(message(queue=0)))
    assert sum(store.described for store in fakes) == 2, "a store that answers is not lost"


async def test_full_and_failed_shards_fail_their_messages_only(tmp_path: Path) -> None:
    disk = FaultyDisk()
    async with (
        real_store(tmp_path, 0) as well,
        real_store(tmp_path, 1, disk, disk_used_max=1, reserve_bytes=1 << 20) as sick,
        Gateway(tmp_path, {0: well.port, 1: sick.port}) as gateway,
    ):
        messages = [message(queue=queue) for queue in QUEUES]
        await gateway.send(*messages)
        shards = await shards_of(gateway)
        for operation, error, code, reason in (
            ("pwritev", errno.ENOSPC, code_pb2.RESOURCE_EXHAUSTED, "DISK_FULL"),
            ("datasync", errno.EIO, code_pb2.UNAVAILABLE, "STORE_READ_ONLY"),
        ):
            disk.fail(operation, error)
            for _ in range(2):
                results = await gateway.send(*messages)
                assert [result.HasField("fault") for result in results] == [shard == 1 for shard in shards]
                assert {(fault.code, fault.reason, fault.retriable) for fault in faults(results)} == {
                    (code, reason, True)
                }
            assert gateway.metric("duetime_gateway_shard_up", shard="1") == 1
            disk.mend()
            async with asyncio.timeout(20):
                while sick.store.gate.full:
                    await gateway.send(*messages)


async def test_refused_record_is_a_fault_of_its_message(faked: Gateway, fakes: list[FakeStore]) -> None:
    for store in fakes:
        store.answer = store_pb2.PutResponse(queue_offsets=[5, -1, 6], statuses=[0, 4, 1])
        store.answer.faults[1].CopyFrom(message_pb2.Fault(code=3, reason="RECORD_REFUSED", message="too large"))
    stored, refused, duplicate = await faked.send(*[message(id=f"id{n}", queue=0) for n in range(3)])
    assert (stored.offset, stored.HasField("fault")) == (5, False)
    assert (refused.message_id, refused.fault.reason, refused.fault.message) == ("id1", "RECORD_REFUSED", "too large")
    assert (duplicate.offset, duplicate.duplicate) == (6, True)


async def test_delayed_record_carries_its_place_and_hosts(faked: Gateway, fakes: list[FakeStore]) -> None:
    (result,) = await faked.send(message(delay_level=2, queue=3))
    (stored,) = [one for store in fakes for one in store.records]
    assert (stored.topic, stored.queue, stored.store_host) == ("SCHEDULE_TOPIC_XXXX", 1, fakes[0].host)
    assert b"\x02DELAY\x012\x02REAL_TOPIC\x01orders\x02REAL_QID\x013" in stored.properties
    assert (result.queue, result.delay_level, result.deliver_at_ms) == (3, 2, NOW_MS + 5_000)


@pytest.mark.parametrize(
    ("store", "text"),
    [
        (FakeStore(0, "1s 2s"), "has the delay levels 1s 2s; this gateway has 1s 5s 10s"),
        (FakeStore(4), "says that it is shard 4"),
    ],
)
async def test_store_that_does_not_belong_here(tmp_path: Path, store: FakeStore, text: str) -> None:
    await store.start()
    try:
        with pytest.raises(StartupError, match=text):
            await Gateway(tmp_path, {0: store.port}).__aenter__()
        port = store.port
        await store.stop()
        async with Gateway(tmp_path, {0: port}) as gateway:
            await store.start(port)
            async with asyncio.timeout(20):
                while "does not answer" in (fault := (await gateway.send(message()))[0].fault).message:
                    continue
            assert (fault.reason, fault.code, fault.retriable) == ("SHARD_MISFIT", code_pb2.UNAVAILABLE, True)
            assert text in fault.message
    finally:
        await store.stop()


async def test_start_without_a_schema_is_refused(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path, {0: 1}, database_url=f"sqlite:///{tmp_path / 'none.db'}")
    node = GatewayNode(gateway.settings, SystemClock())
    with pytest.raises(StartupError, match=r"metadata database .*none\.db does not exist"):
        await node.start()
    await node.stop()


async def test_status_of_a_pull_is_passed_on_with_its_details(faked: Gateway, fakes: list[FakeStore]) -> None:
    await faked.send(message(queue=0))
    for store in fakes:
        store.error = InvalidArgument([Violation("tags", "are odd")], reason="TAGS_ODD")
    error = await error_of(faked.pull())
    assert (error.code(), error.details()) == (grpc.StatusCode.INVALID_ARGUMENT, "tags: are odd")
    status = rpc_status.from_call(error)
    info, fields = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    assert status.details[0].Unpack(info)
    assert status.details[1].Unpack(fields)
    assert (info.reason, info.domain) == ("TAGS_ODD", "duetime")
    assert [(one.field, one.description) for one in fields.field_violations] == [("tags", "are odd")]


async def test_pull_from_a_shard_that_is_gone_names_it(faked: Gateway, fakes: list[FakeStore]) -> None:
    await faked.send(message(queue=0))
    for store in fakes:
        await store.stop()
    shard = (await shards_of(faked))[0]
    error = await error_of(faked.pull())
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert (error.details() or "").startswith(f"shard {shard} at 127.0.0.1:{fakes[shard].port} does not answer")
    assert b"SHARD_UNAVAILABLE" in rpc_status.from_call(error).details[0].value


async def test_answer_of_a_pull_passes_through_byte_by_byte(faked: Gateway, fakes: list[FakeStore]) -> None:
    await faked.send(message(queue=0))
    # No PullResponse: a gateway that parsed it would fail.
    odd = b"\xff\xfe\xfd" * 1_000
    for store in fakes:
        store.pull_answer = odd
    call = faked.channel.unary_unary(
        "/duetime.v1.Gateway/Pull", request_serializer=gateway_pb2.PullRequest.SerializeToString
    )
    assert await call(gateway_pb2.PullRequest(topic="orders")) == odd


async def test_client_that_goes_away_ends_its_pull_at_the_store(faked: Gateway, fakes: list[FakeStore]) -> None:
    await faked.send(message(queue=0))
    store = fakes[(await shards_of(faked))[0]]
    store.gate.clear()
    call = faked.stub.Pull(gateway_pb2.PullRequest(topic="orders", wait_ms=30_000))
    await store.until_waiting(1)
    call.cancel()
    async with asyncio.timeout(5):
        while store.waiting:
            await faked.stub.ListTopics(gateway_pb2.ListTopicsRequest())


async def test_stop_ends_long_polls_at_once(tmp_path: Path) -> None:
    async with real_store(tmp_path) as store, Gateway(tmp_path, {0: store.port}, drain_ms=60_000) as gateway:
        await gateway.send(message(queue=0))
        polls = [gateway.stub.Pull(gateway_pb2.PullRequest(topic="orders", offset=1, wait_ms=30_000)) for _ in range(3)]
        ends = [asyncio.ensure_future(error_of(poll)) for poll in polls]
        # An answered call shows that the ones before it have arrived.
        await gateway.send(message(queue=1))
        async with asyncio.timeout(10):
            await gateway.node.stop()
            errors = await asyncio.gather(*ends)
        assert {error.code() for error in errors} == {grpc.StatusCode.UNAVAILABLE}
