"""Telemetry: settings as clients need them, and streams that come and go."""

import asyncio
from copy import deepcopy
from typing import Any

import grpc
import pytest
from duetime.v1 import consumer_pb2
from duetime_core.testing import FakeClock
from duetime_format.levels import DEFAULT_DELAY_LEVELS, DelayLevels
from duetime_gateway.rocketmq import settings
from duetime_gateway.rocketmq.telemetry import AGAIN_MS
from duetime_gateway.rocketmq.wire import messaging_pb2 as pb
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from tests.gateway.conftest import Gateway
from tests.rocketmq.raw import Raw, message, now_ms

LEVELS = DelayLevels.parse(DEFAULT_DELAY_LEVELS)
NAME = "apache.rocketmq.v2.MessagingService"


def seconds(durations: Any) -> list[float]:
    return [one.seconds + one.nanos / 1e9 for one in durations]


async def test_headers_come_before_anything_is_said(raw: Raw) -> None:
    stream = raw.telemetry()
    await asyncio.wait_for(stream.call.initial_metadata(), 60)


async def test_a_producer_gets_its_settings_and_updates(raw: Raw) -> None:
    stream, asked_ms = raw.telemetry(), now_ms()
    answer = await stream.say(raw.producer_settings("orders"))
    assert answer.status.code == pb.OK
    told = answer.settings
    assert told.publishing.max_body_size == 4 * 1024 * 1024
    assert told.publishing.validate_message_type
    assert [topic.name for topic in told.publishing.topics] == ["orders"]
    assert told.backoff_policy.max_attempts == 3
    assert told.backoff_policy.exponential_backoff.multiplier == 2
    assert told.access_point == raw.endpoints
    assert not told.metric.on
    assert await asyncio.wait_for(stream.read(), 60) == answer
    assert now_ms() - asked_ms >= AGAIN_MS
    # Once, and no more.
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(asyncio.ensure_future(stream.read())), 1.5)


async def test_a_consumer_gets_its_group_s_policy(gateway: Gateway, raw: Raw) -> None:
    group = consumer_pb2.Group(name="mine", ordered=True)
    group.retry.max_attempts = 5
    group.retry.intervals.delays_ms.extend([1_500, 3_000])
    await gateway.stub.CreateGroup(consumer_pb2.CreateGroupRequest(group=group))
    told = (await raw.telemetry().say(raw.consumer_settings("mine"))).settings
    assert (told.subscription.fifo, told.subscription.receive_batch_size) == (True, 32)
    assert told.subscription.long_polling_timeout.seconds == 20
    assert told.backoff_policy.max_attempts == 5
    assert seconds(told.backoff_policy.customized_backoff.next) == [1.5, 3]
    other = (await raw.telemetry().say(raw.consumer_settings("nobody's"[:6]))).settings
    assert (other.subscription.fifo, other.backoff_policy.max_attempts) == (False, 17)
    assert seconds(other.backoff_policy.customized_backoff.next)[:4] == [1, 5, 10, 30]


def test_backoffs_in_rocketmq_s_words() -> None:
    policy = deepcopy(settings.POLICY)
    policy.exponential.initial_ms, policy.exponential.max_ms, policy.exponential.factor = 500, 8_000, 2
    told = settings.backoff(policy, LEVELS)
    assert (told.exponential_backoff.initial.nanos, told.exponential_backoff.max.seconds) == (500_000_000, 8)
    assert settings.delay_after(3, policy, LEVELS) == 2_000
    assert settings.delay_after(99, policy, LEVELS) == 8_000
    policy = deepcopy(settings.POLICY)
    node = settings.backoff(policy, LEVELS, always_exponential=True)
    assert (node.exponential_backoff.initial.seconds, node.exponential_backoff.max.seconds) == (1, 7_200)
    policy.levels.SetInParent()
    told = settings.backoff(policy, LEVELS)
    assert seconds(told.customized_backoff.next)[:3] == [10, 30, 60]
    assert [settings.delay_after(attempt, settings.POLICY, LEVELS) for attempt in (1, 2, 18, 40)] == [
        1_000,
        5_000,
        7_200_000,
        7_200_000,
    ]


async def test_node_gets_an_exponential_backoff(raw: Raw) -> None:
    asked = raw.consumer_settings()
    asked.user_agent.language = pb.NODE_JS
    told = (await raw.telemetry().say(asked)).settings
    assert told.backoff_policy.WhichOneof("strategy") == "exponential_backoff"


async def test_calls_are_served_without_settings(raw: Raw) -> None:
    assert (await raw.call("Heartbeat", client_type=pb.PUSH_CONSUMER)).status.code == pb.OK
    await raw.send_ok(message())
    (got,) = await raw.receive(auto_renew=True)
    assert (await raw.ack(got)).status.code == pb.OK
    assert (await raw.call("NotifyClientTermination")).status.code == pb.OK


async def test_half_closed_stream_ends_once_it_is_answered(raw: Raw) -> None:
    stream = raw.telemetry()
    await stream.call.write(pb.TelemetryCommand(settings=raw.producer_settings()))
    await stream.call.done_writing()
    assert (await stream.read()).status.code == pb.OK
    assert await stream.read() is grpc.aio.EOF


async def test_a_client_that_never_reads_delays_no_other(raw: Raw) -> None:
    stream = raw.telemetry()
    large = raw.producer_settings("x" * 100_000)

    async def flood() -> None:
        while True:
            await stream.call.write(pb.TelemetryCommand(settings=large))

    flooding = asyncio.ensure_future(flood())
    try:
        for number in range(20):
            await raw.send_ok(message(number=number))
        other = Raw(raw.channel, 1, "other")
        assert (await other.telemetry().say(other.producer_settings("orders"))).status.code == pb.OK
    finally:
        flooding.cancel()
        stream.call.cancel()
        await asyncio.gather(flooding, return_exceptions=True)


async def test_health_and_reflection_list_the_service(gateway: Gateway) -> None:
    health = health_pb2_grpc.HealthStub(gateway.channel)
    answer = await health.Check(health_pb2.HealthCheckRequest(service=NAME))
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
    reflection = reflection_pb2_grpc.ServerReflectionStub(gateway.channel)
    request = reflection_pb2.ServerReflectionRequest
    asked = [request(list_services=""), request(file_containing_symbol=NAME)]
    asked.append(request(file_containing_symbol="duetime.v1.Gateway"))
    answers = [one async for one in reflection.ServerReflectionInfo(iter(asked))]
    assert NAME in {service.name for service in answers[0].list_services_response.service}
    for answer, name in zip(answers[1:], ("apache.rocketmq.v2", "duetime.v1"), strict=True):
        files = [FileDescriptorProto.FromString(one) for one in answer.file_descriptor_response.file_descriptor_proto]
        assert name in {file.package for file in files}


@pytest.mark.parametrize("clock", [FakeClock()])
async def test_clients_that_are_silent_are_forgotten(clock: FakeClock) -> None:
    from duetime_gateway.rocketmq.clients import Clients

    clients = Clients(clock)
    client = clients.called("", "one")
    assert clients.called("", "one") is client
    assert clients.called("somebody", "one") is not client
    assert clients.is_alive(client)
    clock.move(31_000)
    assert not clients.is_alive(client)
    clock.move(600_000)
    clients.called("", "two")
    clients.forget_silent()
    assert len(clients) == 1


async def test_it_can_be_switched_off(tmp_path: Any) -> None:
    from tests.gateway.conftest import real_store

    async with real_store(tmp_path) as store, Gateway(tmp_path, {0: store.port}, rocketmq=False) as gateway:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await Raw(gateway.channel, gateway.node.port).call("Heartbeat")
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
