"""Shards that are gone, late, refusing, or not the ones configured."""

import asyncio
import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from duetime.v1 import gateway_pb2, message_pb2
from duetime_core.clock import SystemClock
from duetime_core.errors import InvalidArgument, StartupError, Violation
from duetime_format import record
from duetime_gateway.node import GatewayNode
from google.rpc import code_pb2, error_details_pb2
from grpc_status import rpc_status

from tests.faulty_disk import FaultyDisk
from tests.gateway.conftest import (
    MIB,
    NOW_MS,
    Gateway,
    TappedStore,
    WallClock,
    error_of,
    message,
    real_store,
    tapped_store,
)
from tests.tap import WAIT_S

# Queues of a topic with the default four, on two shards.
QUEUES = range(4)


def faults(results: list[message_pb2.SendResult]) -> list[message_pb2.Fault]:
    return [result.fault for result in results if result.HasField("fault")]


async def shards_of(gateway: Gateway, topic: str = "orders") -> list[int]:
    route = await gateway.stub.GetRoute(gateway_pb2.GetRouteRequest(topic=topic), timeout=WAIT_S)
    return [one.shard for one in route.queues]


async def test_unavailable_shard_fails_only_its_messages(tapped: Gateway, taps: list[TappedStore]) -> None:
    await tapped.send(*[message(queue=queue) for queue in QUEUES])
    await taps[1].stop()
    shards = await shards_of(tapped)
    for _ in range(2):
        results = await tapped.send(*[message(queue=queue) for queue in QUEUES])
        assert [result.HasField("fault") for result in results] == [shard == 1 for shard in shards]
    for fault in faults(results):
        assert (fault.code, fault.reason, fault.retriable) == (code_pb2.UNAVAILABLE, "SHARD_UNAVAILABLE", True)
        assert fault.message.startswith(f"shard 1 at {taps[1].address} does not answer: ")
    assert tapped.metric("duetime_gateway_shard_up", shard="1") == 0
    assert tapped.metric("duetime_gateway_messages_total", outcome="shard_unavailable") == 4


async def test_recovered_shard_is_asked_and_gets_its_topics_again(tapped: Gateway, taps: list[TappedStore]) -> None:
    await tapped.send(*[message(queue=queue) for queue in QUEUES])
    await taps[1].stop()
    await tapped.send(*[message(queue=queue) for queue in QUEUES])
    requests = taps[1].requests
    requests.clear()
    await taps[1].start()
    async with asyncio.timeout(WAIT_S):
        while faults(await tapped.send(*[message(queue=queue) for queue in QUEUES])):
            continue
    assert len(requests["Describe"]) == 1
    assert [(one.name, one.queue_count) for asked in requests["PutTopics"] for one in asked.topics] == [("orders", 4)]


async def test_gateway_starts_and_serves_while_a_store_is_down(tmp_path: Path, taps: list[TappedStore]) -> None:
    await taps[1].stop()
    async with Gateway(tmp_path, {tap.shard: tap.port for tap in taps}) as gateway:
        results = await gateway.send(*[message(queue=queue) for queue in QUEUES])
        shards = await shards_of(gateway)
        assert [result.HasField("fault") for result in results] == [shard == 1 for shard in shards]


async def test_late_shard_fails_its_messages_after_the_timeout(tmp_path: Path, tap: TappedStore) -> None:
    async with Gateway(tmp_path, {0: tap.port}, store_timeout_ms=1_000) as gateway:
        async with asyncio.timeout(WAIT_S):
            while faults(await gateway.send(message())):
                continue
        tap.requests.clear()
        tap.hold("PutStream")
        (result,) = await gateway.send(message(id="a"))
        assert (result.message_id, result.fault.reason) == ("a", "SHARD_UNAVAILABLE")
        assert "does not answer: no response within" in result.fault.message
        assert len(tap.requests["PutStream"]) == 1, "a put is never repeated by the gateway itself"


async def test_callers_deadline_is_passed_on(tapped: Gateway, taps: list[TappedStore]) -> None:
    await tapped.send(message(queue=0))
    await tapped.stub.Pull(gateway_pb2.PullRequest(topic="orders"), timeout=8)
    await tapped.stub.Pull(gateway_pb2.PullRequest(topic="orders", wait_ms=30_000))
    (tap,) = [tap for tap in taps if tap.remaining["Pull"]]
    short_pull, long_pull = [remaining or 0.0 for remaining in tap.remaining["Pull"]]
    assert short_pull < 9
    assert 30 < long_pull < 41, "the wait of the caller, and the time-out of a store"


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
            async with asyncio.timeout(WAIT_S):
                while sick.store.gate.full:
                    await gateway.send(*messages)


async def test_refused_record_is_a_fault_of_its_message(tmp_path: Path) -> None:
    async with real_store(tmp_path, segment_bytes=MIB) as store, Gateway(tmp_path, {0: store.port}) as gateway:
        bodies = (b"1", bytes(MIB), b"2")
        first, refused, second = await gateway.send(
            *[message(body, id=f"id{n}", queue=0) for n, body in enumerate(bodies)]
        )
    assert [(one.offset, one.HasField("fault")) for one in (first, second)] == [(0, False), (1, False)]
    assert (refused.message_id, refused.fault.reason, refused.fault.retriable) == ("id1", "RECORD_REFUSED", False)


async def test_delayed_record_carries_its_place_and_hosts(tapped: Gateway, taps: list[TappedStore]) -> None:
    (result,) = await tapped.send(message(delay_level=2, queue=3))
    (stored,) = taps[result.shard].records
    port = taps[result.shard].store.port
    host = record.host_bytes("127.0.0.1", port)
    assert (stored.topic, stored.queue, stored.store_host) == ("SCHEDULE_TOPIC_XXXX", 1, host)
    assert b"\x02DELAY\x012\x02REAL_TOPIC\x01orders\x02REAL_QID\x013" in stored.properties
    assert (result.queue, result.delay_level, result.deliver_at_ms) == (3, 2, NOW_MS + 5_000)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"delay_levels": "1s 2s"}, "has the delay levels 1s 2s; this gateway has 1s 5s 10s"),
        ({"shard": 4}, "identifies itself as shard 4"),
    ],
)
async def test_store_that_does_not_belong_here(
    tmp_path: Path, clock: WallClock, settings: dict[str, Any], text: str
) -> None:
    async with tapped_store(tmp_path, clock=clock, **settings) as tap:
        with pytest.raises(StartupError, match=text):
            await Gateway(tmp_path, {0: tap.port}).__aenter__()
        await tap.stop()
        async with Gateway(tmp_path, {0: tap.port}) as gateway:
            await tap.start()
            async with asyncio.timeout(WAIT_S):
                while "does not answer" in (fault := (await gateway.send(message()))[0].fault).message:
                    continue
        assert (fault.reason, fault.code, fault.retriable) == ("SHARD_MISFIT", code_pb2.UNAVAILABLE, True)
        assert text in fault.message


async def test_start_without_a_schema_is_refused(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path, {0: 1}, database_url=f"sqlite:///{tmp_path / 'none.db'}")
    node = GatewayNode(gateway.settings, SystemClock())
    with pytest.raises(StartupError, match=r"metadata database .*none\.db does not exist"):
        await node.start()
    await node.stop()


async def test_status_of_a_pull_is_passed_on_with_its_details(tapped: Gateway, taps: list[TappedStore]) -> None:
    await tapped.send(message(queue=0))
    for tap in taps:
        tap.refuse(InvalidArgument([Violation("tags", "are odd")], reason="TAGS_ODD"), "Pull")
    error = await error_of(tapped.pull())
    assert (error.code(), error.details()) == (grpc.StatusCode.INVALID_ARGUMENT, "tags: are odd")
    status = rpc_status.from_call(error)
    info, fields = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    assert status.details[0].Unpack(info)
    assert status.details[1].Unpack(fields)
    assert (info.reason, info.domain) == ("TAGS_ODD", "duetime")
    assert [(one.field, one.description) for one in fields.field_violations] == [("tags", "are odd")]


async def test_pull_from_an_unavailable_shard_names_it(tapped: Gateway, taps: list[TappedStore]) -> None:
    await tapped.send(message(queue=0))
    for tap in taps:
        await tap.stop()
    shard = (await shards_of(tapped))[0]
    error = await error_of(tapped.pull())
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert (error.details() or "").startswith(f"shard {shard} at {taps[shard].address} does not answer")
    assert b"SHARD_UNAVAILABLE" in rpc_status.from_call(error).details[0].value


async def test_answer_of_a_pull_passes_through_byte_by_byte(tapped: Gateway, taps: list[TappedStore]) -> None:
    await tapped.send(message(queue=0))
    # A gateway that parses this answer fails: it is no PullResponse.
    odd: Any = SimpleNamespace(SerializeToString=lambda: b"\xff\xfe\xfd" * 1_000)
    for tap in taps:
        tap.after["Pull"] = lambda *_: odd
    call = tapped.channel.unary_unary(
        "/duetime.v1.Gateway/Pull", request_serializer=gateway_pb2.PullRequest.SerializeToString
    )
    assert await call(gateway_pb2.PullRequest(topic="orders")) == b"\xff\xfe\xfd" * 1_000


async def test_disconnected_client_ends_its_pull_at_the_store(tapped: Gateway, taps: list[TappedStore]) -> None:
    await tapped.send(message(queue=0))
    tap = taps[(await shards_of(tapped))[0]]
    call = tapped.stub.Pull(gateway_pb2.PullRequest(topic="orders", offset=1, wait_ms=30_000))
    await tap.until_requests("Pull", 1)
    call.cancel()
    await tap.until(lambda: not tap.open["Pull"])


async def test_stop_ends_long_polls_at_once(tmp_path: Path, tap: TappedStore) -> None:
    async with Gateway(tmp_path, {0: tap.port}, drain_ms=60_000) as gateway:
        await gateway.send(message(queue=0))
        polls = [gateway.stub.Pull(gateway_pb2.PullRequest(topic="orders", offset=1, wait_ms=30_000)) for _ in range(3)]
        ends = [asyncio.ensure_future(error_of(poll)) for poll in polls]
        await tap.until_requests("Pull", 3)
        await gateway.node.stop()
        errors = await asyncio.gather(*ends)
        assert {error.code() for error in errors} == {grpc.StatusCode.UNAVAILABLE}
