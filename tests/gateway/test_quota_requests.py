"""Quotas of topics and streams: every kind of request counts, once, on every path of its messages."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from duetime.client.errors import from_status
from duetime.v1 import consumer_pb2, gateway_pb2, leases_pb2, quotas_pb2, subscriptions_pb2, transactions_pb2
from duetime_core.errors import QuotaExceeded
from duetime_core.testing.clock import FakeClock
from duetime_gateway.quotas.limits import HOST, TOPIC, USER, Limits, QuotaOwner
from duetime_gateway.quotas.meters import Cost, Meter, Use
from duetime_gateway.quotas.quotas import Quotas

from tests.gateway.conftest import Gateway, error_of, message, real_store, request

BODY = b"0123456789"
MUCH = 1 << 40


@pytest.fixture
async def metered(tmp_path: Path) -> AsyncIterator[Gateway]:
    """With quotas that refuse nothing, of topic `orders` and of each host."""
    async with real_store(tmp_path) as store, Gateway(tmp_path, {0: store.port}) as gateway:
        rates = {"messages_per_s": MUCH, "bytes_per_s": MUCH}
        await set_quota(gateway, topic="orders", **rates, pending_count=MUCH, pending_bytes=MUCH)
        await set_quota(gateway, user="*", **rates, per_host=True)
        yield gateway


async def set_quota(gateway: Gateway, user: str = "", topic: str = "", **limits: Any) -> None:
    of = quotas_pb2.QuotaOf(user=user) if user else quotas_pb2.QuotaOf(topic=topic)
    await gateway.stub.SetQuota(quotas_pb2.SetQuotaRequest(quota=quotas_pb2.Quota(of=of, **limits)), timeout=60)


def meter_of(gateway: Gateway, of: QuotaOwner) -> Meter:
    return gateway.node.parts.quotas.quotas.meters[of]


def asked(meter: Meter) -> tuple[int, int]:
    assert meter.messages is not None
    assert meter.bytes is not None
    return meter.messages.asked, meter.bytes.asked


async def send_stream(gateway: Gateway, sent: gateway_pb2.SendRequest) -> None:
    stream = gateway.stub.SendStream()
    await stream.write(sent)
    await stream.done_writing()
    answer = await stream.read()
    assert len(answer.results) == 3
    assert await stream.read() is grpc.aio.EOF


def pack(**due: int) -> gateway_pb2.SendRequest:
    return gateway_pb2.SendRequest(packs=[gateway_pb2.Pack(topic="orders", sizes=[10] * 3, bodies=BODY * 3, **due)])


def batch(**due: int) -> gateway_pb2.SendBatchRequest:
    return gateway_pb2.SendBatchRequest(topic="orders", messages=[message(BODY, topic="", **due)] * 3)


def half(**due: int) -> transactions_pb2.PrepareRequest:
    return transactions_pb2.PrepareRequest(group="billing", messages=[message(BODY, **due)] * 3)


def plain(**due: int) -> gateway_pb2.SendRequest:
    return request(*[message(BODY, **due)] * 3)


@pytest.mark.parametrize("due", [{}, {"delay_level": 9}], ids=["now", "delayed"])
@pytest.mark.parametrize("is_new", [True, False], ids=["new topic", "known topic"])
@pytest.mark.parametrize("kind", ["Send", "pack", "SendStream", "SendBatch", "Prepare"])
async def test_each_kind_of_request_counts_once_for_its_topic_and_caller(
    metered: Gateway, kind: str, is_new: bool, due: dict[str, int]
) -> None:
    topic = meter_of(metered, QuotaOwner(TOPIC, "orders"))
    if not is_new:
        await metered.send(message(b""))
    before, stub = asked(topic), metered.stub
    caller = meter_of(metered, QuotaOwner(HOST, "ipv4:127.0.0.1")) if not is_new else None
    before_caller = asked(caller) if caller is not None else (0, 0)
    assert topic.pending is not None
    since = topic.pending.since
    sent: Any
    if kind == "SendStream":
        sent = plain(**due)
        await send_stream(metered, sent)
    else:
        make = {"Send": plain, "pack": pack, "SendBatch": batch, "Prepare": half}[kind]
        sent = make(**due)
        await getattr(stub, "Send" if kind == "pack" else kind)(sent, timeout=60)
    # A topic's quota counts bodies, a caller's counts the request as received.
    assert asked(topic) == (before[0] + 3, before[1] + 30)
    assert topic.pending.since - since == (3 if due else 0)
    caller = meter_of(metered, QuotaOwner(HOST, "ipv4:127.0.0.1"))
    assert asked(caller) == (before_caller[0] + 3, before_caller[1] + sent.ByteSize())


async def test_bytes_that_are_pending_are_limited_by_the_mean_body(gateway: Gateway) -> None:
    await gateway.send(message())
    await set_quota(gateway, topic="orders", pending_bytes=1_000)
    await gateway.send(*[message(b"x" * 200, delay_level=9)] * 4)
    await gateway.node.parts.quotas.keeper.exchange()
    status = await error_of(gateway.stub.Send(request(*[message(b"x" * 201, delay_level=9)]), timeout=60))
    error = from_status(status, "server")
    assert (error.reason, error.retry_after_s) == ("QUOTA_EXCEEDED", 1.0)
    assert "which has 800 of 1000" in str(error)
    await gateway.send(message(b"x" * 200, delay_level=9))
    # Messages without delay are not pending.
    await gateway.send(message(b"x" * 999))
    never = await error_of(gateway.stub.Send(request(message(b"x" * 1_001, delay_level=9)), timeout=60))
    assert from_status(never, "server").reason == "QUOTA_BURST_EXCEEDED"


def taken(meter: Meter) -> int:
    """How many pending messages are let in."""
    one, count = Cost(1, 10, 1, 10), 0
    with contextlib.suppress(QuotaExceeded):
        while True:
            meter.check(one, 0.0)
            meter.take(one)
            count += 1
    return count


def test_gateways_share_the_room_that_is_left_for_pending_messages() -> None:
    meters = []
    for _ in range(2):
        quotas = Quotas(FakeClock())
        quotas.set({QuotaOwner(TOPIC, "orders"): Limits(pending_count=100)})
        meters.append(quotas.meters[QuotaOwner(TOPIC, "orders")])
    demands = 30, 10
    for meter, own, other in zip(meters, demands, reversed(demands), strict=True):
        assert meter.pending is not None
        meter.pending.note({0: 60}, 0)
        meter.pending.demand = own
        meter.share([Use(pending_per_s=other)], 0.0)
    # The 40 left are shared in proportion to the requests.
    assert [taken(meter) for meter in meters] == [28, 12]


async def test_streams_of_all_kinds_count_until_they_end(gateway: Gateway) -> None:
    await gateway.send(message(queue=0))
    await set_quota(gateway, user="*", per_host=True, streams=3)
    subscribe = gateway.stub.Subscribe()
    wanted = subscriptions_pb2.SubscribeRequest(topic="orders", credit_bytes=1024)
    wanted.queues.add(queue=0, offset=0)
    await subscribe.write(wanted)
    await subscribe.read()
    receive = gateway.stub.ReceiveStream()
    subscription = consumer_pb2.ReceiveRequest(topic="orders", group="billing")
    takes = [leases_pb2.Take(number=1, max_count=1, max_bytes=1024)]
    await receive.write(leases_pb2.ReceiveStreamRequest(subscription=subscription, takes=takes))
    await receive.read()
    await send_stream(gateway, plain())
    send = gateway.stub.SendStream()
    await send.write(plain())
    await send.read()
    status = await error_of(gateway.pull(offset=1_000, wait_ms=5))
    assert from_status(status, "server").reason == "QUOTA_EXCEEDED"
    assert "3 streams and long polls; its quota is 3" in (status.details() or "")
    assert QuotaOwner(USER, "*") in gateway.node.parts.quotas.quotas.limits
    for stream in (subscribe, receive, send):
        stream.cancel()
