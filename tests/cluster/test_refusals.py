"""Refusals of requests with many faults or much text: the same code, reason and fields each time, by real gRPC.

gRPC accepts 8 KiB of headers; above that it refuses some answers, by chance, with a status of its own.
"""

import asyncio
from collections.abc import AsyncIterator
from importlib import import_module
from pathlib import Path
from typing import Any

import grpc
import pytest
from duetime.client.errors import from_status
from duetime.v1 import (
    consumer_pb2,
    export_pb2,
    externalscaler_pb2,
    externalscaler_pb2_grpc,
    gateway_pb2,
    gateway_pb2_grpc,
    message_pb2,
    retry_pb2,
)
from duetime_core.limits.bounds import weight
from duetime_core.rpc.calls import translate
from duetime_core.rpc.serving import make_channel
from duetime_core.testing.cluster import Cluster
from duetime_format.limits import GRPC_MESSAGE_BYTES_MAX

STATUS_BYTES_MAX = 4_096
TIMES = 25
SHARDS = 2


class Refusing:
    """The cluster, and stubs of its gateway."""

    def __init__(self, cluster: Cluster, channel: grpc.aio.Channel) -> None:
        self.cluster = cluster
        self.gateway = gateway_pb2_grpc.GatewayStub(channel)  # type: ignore[no-untyped-call]
        self.scaler = externalscaler_pb2_grpc.ExternalScalerStub(channel)  # type: ignore[no-untyped-call]

    async def told(self, method: str, request: Any) -> tuple[grpc.StatusCode, str, list[str], str]:
        """Code, reason, fields and text of a refusal, which are the same at every repetition."""
        call = getattr(self.scaler if method == "GetMetrics" else self.gateway, method)
        found = await asyncio.gather(*(call(request, timeout=60) for _ in range(TIMES)), return_exceptions=True)
        told = set()
        for error in found:
            assert isinstance(error, grpc.aio.AioRpcError), error
            size = weight(error.details() or "") + sum(len(value) * 4 // 3 for _, value in error.trailing_metadata())
            assert size < STATUS_BYTES_MAX
            ours, clients = translate(error, "the gateway", "NO_ANSWER"), from_status(error, "here:1")
            assert (error.code(), error.details()) == (ours.status, ours.text)
            fields = tuple(violation.field for violation in ours.violations)
            assert (clients.reason, clients.text) == (ours.reason, ours.text)
            assert tuple(violation.field for violation in clients.violations) == fields
            told.add((ours.status, ours.reason, fields, ours.text))
        assert len(told) == 1, told
        ((code, reason, fields, text),) = told
        return code, reason, list(fields), text

    async def lives(self) -> bool:
        """Whether every process still answers, and none of their loops has died."""
        assert not [task for task in self.cluster._failures.values() if task.done()]
        answer = await self.gateway.ListShards(export_pb2.ListShardsRequest(), timeout=60)
        return len(answer.shards) == SHARDS and not answer.unreachable_shards


@pytest.fixture
async def refusing(tmp_path: Path) -> AsyncIterator[Refusing]:
    async with Cluster(tmp_path, shards=SHARDS) as cluster, make_channel(cluster.address) as channel:
        refusing = Refusing(cluster, channel)
        await refusing.gateway.CreateTopic(gateway_pb2.CreateTopicRequest(name="orders", queue_count=80))
        yield refusing


INVALID = grpc.StatusCode.INVALID_ARGUMENT


async def test_filter_conflict_of_two_long_filters(refusing: Refusing) -> None:
    for shape in ("a{}", "ä{}"):
        filters = [(shape.format(n) * 2_040)[:2_040] for n in range(2)]
        group = f"g{ord(shape[0])}"
        wait = {"group": group, "topic": "orders", "invisible_ms": 1_000}
        await refusing.gateway.Receive(consumer_pb2.ReceiveRequest(tags=filters[0], **wait), timeout=60)
        code, reason, fields, text = await refusing.told(
            "Receive", consumer_pb2.ReceiveRequest(tags=filters[1], **wait)
        )
        assert (code, reason, fields) == (grpc.StatusCode.FAILED_PRECONDITION, "FILTER_CONFLICT", [])
        assert text.startswith(f"group {group} received orders with filter 'tags: {filters[0][:20]}")
    # A wait asks both shards at once, in tasks of the gateway's own.
    request = consumer_pb2.ReceiveRequest(tags=filters[1], wait_ms=20_000, **wait)
    assert (await refusing.told("Receive", request))[1] == "FILTER_CONFLICT"
    assert await refusing.lives()


async def test_commit_of_many_wrong_offsets(refusing: Refusing) -> None:
    positions = [gateway_pb2.QueuePosition(queue=queue, offset=10**12 + queue) for queue in range(60)]
    request = gateway_pb2.CommitOffsetsRequest(group="g", topic="orders", queues=positions)
    code, reason, fields, text = await refusing.told("CommitOffsets", request)
    assert (code, reason) == (INVALID, "INVALID_ARGUMENT")
    assert set(fields) == {"queues.offset"}
    assert text.endswith(f"and {30 - len(fields)} more")


async def test_requests_with_many_wrong_fields(refusing: Refusing) -> None:
    policy = message_pb2.RetryPolicy(intervals=message_pb2.IntervalBackoff(delays_ms=[10**15] * 40))
    wrong = [gateway_pb2.QueuePosition(queue=-1 - n, offset=-1) for n in range(1_000)]
    asked: list[tuple[str, Any, str, int]] = [
        ("CommitOffsets", gateway_pb2.CommitOffsetsRequest(group="g", topic="orders", queues=wrong), "queues", 2_000),
        ("PullQueues", gateway_pb2.PullQueuesRequest(topic="orders", queues=wrong), "queues", 2_000),
        (
            "CreateGroup",
            consumer_pb2.CreateGroupRequest(group=consumer_pb2.Group(name="g", retry=policy)),
            "group.retry",
            40,
        ),
        ("Nack", consumer_pb2.NackRequest(group="g", nacks=[consumer_pb2.Nack()], policy=policy), "policy", 40),
        (
            "GetMetrics",
            externalscaler_pb2.GetMetricsRequest(
                scaledObjectRef=externalscaler_pb2.ScaledObjectRef(
                    scalerMetadata={f"odd{'x' * 40}{n}": "y" for n in range(500)}
                )
            ),
            "scalerMetadata",
            502,
        ),
    ]
    for method, request, field, count in asked:
        code, reason, fields, text = await refusing.told(method, request)
        assert (code, reason) == (INVALID, "NACK_INVALID" if method == "Nack" else "INVALID_ARGUMENT")
        assert all(one.startswith(field) for one in fields)
        assert text.endswith(f"; and {count - len(fields)} more"), text
    assert await refusing.lives()


async def test_requests_with_endless_values(refusing: Refusing) -> None:
    much = "語%\n" * 100_000
    asked: list[tuple[str, Any, str]] = [
        ("GetMessage", gateway_pb2.GetMessageRequest(id="語" * 10_000), "MESSAGE_NOT_FOUND"),
        ("DescribeTopic", gateway_pb2.DescribeTopicRequest(name=much), "INVALID_ARGUMENT"),
        ("GetOffsets", gateway_pb2.GetOffsetsRequest(group=much, topic="orders"), "INVALID_ARGUMENT"),
        ("SendBack", retry_pb2.SendBackRequest(group=much, topic=much), "SEND_BACK_INVALID"),
        (
            "SendBack",
            retry_pb2.SendBackRequest(group="g", topic="orders", offset=-5, max_attempts=-5),
            "SEND_BACK_INVALID",
        ),
        (
            "ListDeadLetters",
            consumer_pb2.ListDeadLettersRequest(filter=consumer_pb2.DeadLetterFilter(group=much)),
            "INVALID_ARGUMENT",
        ),
        ("Pull", gateway_pb2.PullRequest(topic="orders", sql="a = '" + "語" * 2_000), "FILTER_INVALID"),
        ("Pull", gateway_pb2.PullRequest(topic="orders", tags=f"a || {'b|c' * 600}"), "FILTER_INVALID"),
        (
            "GetMetrics",
            externalscaler_pb2.GetMetricsRequest(
                scaledObjectRef=externalscaler_pb2.ScaledObjectRef(scalerMetadata={much: much, "within": much})
            ),
            "INVALID_ARGUMENT",
        ),
    ]
    for method, request, reason in asked:
        assert (await refusing.told(method, request))[1] == reason, method
    assert await refusing.lives()


async def test_batch_of_invalid_messages_gets_a_small_answer(refusing: Refusing) -> None:
    wrong = message_pb2.Message(topic="x" * 300, id="語" * 2_000, properties={"\x01" * 300: ""})
    answer = await refusing.gateway.Send(gateway_pb2.SendRequest(messages=[wrong] * 4_096), timeout=60)
    assert {result.fault.reason for result in answer.results} == {"MESSAGE_INVALID"}
    assert len(answer.results) == 4_096
    assert answer.ByteSize() < GRPC_MESSAGE_BYTES_MAX // 2
    assert {len(result.message_id) for result in answer.results} == {255}


SERVICES = {
    "gateway": ["duetime.v1.gateway_pb2:Gateway", "duetime.v1.externalscaler_pb2:ExternalScaler"],
    "store": ["duetime.v1.store_pb2:Store"],
    "scheduler": ["duetime.v1.scheduler_pb2:Scheduler"],
    "retry": ["duetime.v1.retry_pb2:Retry"],
}
EVERYWHERE = ["grpc_health.v1.health_pb2:Health", "grpc_reflection.v1alpha.reflection_pb2:ServerReflection"]


def methods(place: str) -> list[Any]:
    """Of a service, `MODULE:NAME`."""
    module, _, name = place.partition(":")
    return list(import_module(module).DESCRIPTOR.services_by_name[name].methods)


async def answer_to(channel: grpc.aio.Channel, method: Any, request: bytes) -> Any:
    path = f"/{method.containing_service.full_name}/{method.name}"
    if method.client_streaming:
        return [answer async for answer in channel.stream_stream(path)(iter([request]), timeout=60)]
    if method.server_streaming:
        return [answer async for answer in channel.unary_stream(path)(request, timeout=60)]
    return await channel.unary_unary(path)(request, timeout=60)


async def test_bytes_that_are_no_request_are_invalid_on_every_method(
    refusing: Refusing, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = refusing.cluster
    nodes = {"gateway": cluster.gateway, "store": cluster.stores[0], "retry": cluster.retry}
    nodes["scheduler"] = cluster.schedulers[0]
    count = 0
    for name, node in nodes.items():
        async with make_channel(f"127.0.0.1:{node.port}") as channel:
            for method in (one for place in (*SERVICES[name], *EVERYWHERE) for one in methods(place)):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await answer_to(channel, method, b"\xff")
                error = translate(caught.value, name, "NO_ANSWER")
                assert (error.status, error.reason) == (INVALID, "INVALID_ARGUMENT"), method.full_name
                assert error.text == f"request: 1 bytes are not a valid {method.input_type.name}"
                count += 1
    assert count > 80
    assert not caplog.records, "what strangers send is not worth a trace each"
