"""Quotas count all stored records, not sent messages alone; a method of a contract without a charge fails here."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextvars import copy_context
from pathlib import Path
from typing import Any

import grpc
import pytest
from duetime.client.errors import from_status
from duetime.v1 import (
    consumer_pb2,
    gateway_pb2,
    leases_pb2,
    message_pb2,
    pending_pb2,
    retry_pb2,
    schedules_pb2,
    transactions_pb2,
)
from duetime_core.clock import SystemClock
from duetime_core.testing.clock import FakeClock
from duetime_gateway.access import permit
from duetime_gateway.access.grants import Access
from duetime_gateway.face.charges import CHARGES
from duetime_gateway.quotas.charges import SENDS, STORES_NOTHING, Charge
from duetime_gateway.quotas.limits import HOST, TOPIC, USER, Limits, QuotaOwner
from duetime_gateway.quotas.quotas import RECORD_BYTES, CopyCharge, Quotas
from duetime_gateway.rocketmq.charges import CHARGES as ROCKETMQ_CHARGES
from duetime_gateway.rocketmq.wire import messaging_pb2
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message_factory import GetMessageClass

from tests.gateway.conftest import Gateway, error_of, message, real_store, tapped_retry, until
from tests.gateway.people import grant
from tests.gateway.test_leases import receive
from tests.gateway.test_quota_requests import MUCH, asked, meter_of, set_quota
from tests.rocketmq.raw import BILLING, ORDERS, Raw

BODY = b"x" * 100_000
METHODS: dict[str, MethodDescriptor] = {
    method.name: method
    for service in (
        gateway_pb2.DESCRIPTOR.services_by_name["Gateway"],
        messaging_pb2.DESCRIPTOR.services_by_name["MessagingService"],
    )
    for method in service.methods
}
ALL = {**CHARGES, **ROCKETMQ_CHARGES}
# Fields of bytes that are read and not stored.
READ = {"page_token", "receipt", "receipts"}


def filled(descriptor: Descriptor, depth: int = 0) -> Any:
    """A request with a value in each field of text and bytes."""
    made = GetMessageClass(descriptor)()
    for field in descriptor.fields:
        value: Any = {FieldDescriptor.TYPE_BYTES: b"x" * 1_000, FieldDescriptor.TYPE_STRING: "x" * 100}.get(field.type)
        if field.message_type is not None and not field.message_type.GetOptions().map_entry and depth < 3:
            value = filled(field.message_type, depth + 1)
            if not field.is_repeated:
                getattr(made, field.name).CopyFrom(value)
                continue
        if value is not None and field.message_type is None and not field.is_repeated:
            setattr(made, field.name, value)
        elif value is not None and field.is_repeated:
            getattr(made, field.name).append(value)
    return made


def bytes_in(descriptor: Descriptor, depth: int = 0) -> set[str]:
    """Names of the fields of bytes that a request may have."""
    found = set[str]()
    for field in descriptor.fields:
        if field.message_type is not None and depth < 4:
            found |= bytes_in(field.message_type, depth + 1)
        elif field.type == FieldDescriptor.TYPE_BYTES:
            found.add(field.name)
    return found


def test_every_method_has_a_charge() -> None:
    assert set(ALL) == set(METHODS)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_data_that_a_call_may_store_is_counted(name: str) -> None:
    charge, descriptor = ALL[name], METHODS[name].input_type
    if not isinstance(charge, Charge):
        # Sends are counted where they are decoded (test_quota_requests). Telemetry's bodies are those of the server.
        assert charge is SENDS or bytes_in(descriptor) <= READ or name == "Telemetry"
        return
    quotas = Quotas(FakeClock())
    quotas.set({QuotaOwner(USER, "shop"): Limits(messages_per_s=MUCH, bytes_per_s=MUCH)})
    request: Any = filled(descriptor)
    for put in (*([request] if name == "PutSchedule" else []), *(request.puts if name == "PutSchedules" else [])):
        put.dry_run = False
    size = request.ByteSize()
    with charge.counted(quotas, "shop", "peer", request if charge.read is None else request.SerializeToString()):
        pass
    messages, counted = asked(quotas.meters[QuotaOwner(USER, "shop")])
    assert counted == size + RECORD_BYTES
    makes = ("Reschedule", "SendBack", "Nack", "CreateTopic", "CreateGroup", "ForwardMessageToDeadLetterQueue")
    assert messages == (name in (*makes, "PutSchedule", "PutSchedules", "RunSchedule"))


def test_methods_that_store_nothing_are_reads_or_change_the_database_alone() -> None:
    changes = {"SetQuota", "RemoveQuota", "PauseLane", "ResumeLane", "Heartbeat", "Telemetry"}
    changes |= {"CreateWebhook", "UpdateWebhook", "PauseWebhook", "ResumeWebhook", "RotateWebhookSecret", "TestWebhook"}
    changes |= {
        "DeleteWebhook",
        "NotifyClientTermination",
        "SyncLiteSubscription",
        "Subscribe",
        "Backlog",
        "CountSchedules",
        "Export",
        "WhoAmI",
    }
    reads = {name for name, charge in ALL.items() if charge is STORES_NOTHING} - changes
    assert all(name.startswith(("Pull", "List", "Get", "Query", "Search", "Describe", "Trace")) for name in reads)


def test_refused_schedules_use_no_quota_of_their_topics() -> None:
    puts = [
        schedules_pb2.PutScheduleRequest(
            schedule=schedules_pb2.Schedule(message=message_pb2.Message(topic=topic, body=b"four"))
        )
        for topic in ("orders", "secrets")
    ]

    def copies() -> Sequence[CopyCharge]:
        permit.serve_with(Access("shop", [grant("send topic orders")]))
        return CHARGES["PutSchedules"].copies(schedules_pb2.PutSchedulesRequest(puts=puts))

    assert copy_context().run(copies) == [CopyCharge("orders", 4, True), CopyCharge(given=4)]


def test_body_of_unknown_size_is_settled_by_the_answer() -> None:
    quotas, of = Quotas(FakeClock()), QuotaOwner(USER, "shop")
    quotas.set({of: Limits(bytes_per_s=1_000_000, burst_bytes=2_000_000)})
    settle = quotas.store("shop", "peer", 100, [CopyCharge(), CopyCharge(given=50)])
    settle([700_000, 50])
    assert asked_bytes(quotas, of) == 100 + 2 * RECORD_BYTES + 700_000
    # The next one counts by the mean of those before, until it is known that nothing was stored.
    settle = quotas.store("shop", "peer", 0, [CopyCharge()])
    assert asked_bytes(quotas, of) > 1_000_000
    settle([])
    assert asked_bytes(quotas, of) == 100 + 3 * RECORD_BYTES + 700_000


def asked_bytes(quotas: Quotas, of: QuotaOwner) -> int:
    found = quotas.meters[of].bytes
    assert found is not None
    return found.asked


async def test_stream_waits_until_its_debt_is_paid() -> None:
    clock = FakeClock()
    quotas = Quotas(clock)
    quotas.set({QuotaOwner(USER, "shop"): Limits(bytes_per_s=1_000, burst_bytes=1_000)})
    await quotas.pace("shop", "peer", 1, 1_000 - RECORD_BYTES)
    waiting = asyncio.ensure_future(quotas.pace("shop", "peer", 1, 3_000 - RECORD_BYTES))
    await clock.advance(2_999)
    assert not waiting.done()
    await clock.advance(1)
    await waiting


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    """With a retry service, a message in `orders`, and quotas that refuse nothing."""
    async with (
        real_store(tmp_path) as store,
        tapped_retry(tmp_path, {0: store.port}) as retry,
        Gateway(tmp_path, {0: store.port}, retry_address=retry.address) as gateway,
    ):
        await gateway.send(message(BODY, id="a", queue=0))
        await set_quota(gateway, topic="orders", messages_per_s=MUCH, bytes_per_s=MUCH)
        await set_quota(gateway, user="*", messages_per_s=MUCH, bytes_per_s=MUCH, per_host=True)
        yield gateway


def send_back(**fields: Any) -> retry_pb2.SendBackRequest:
    return retry_pb2.SendBackRequest(group="billing", topic="orders", offset=0, **fields)


def caller(gateway: Gateway) -> tuple[int, int]:
    found = gateway.node.parts.quotas.quotas.meters.get(QuotaOwner(HOST, "ipv4:127.0.0.1"))
    return (0, 0) if found is None else asked(found)


async def test_message_that_is_sent_back_counts_with_its_body(gateway: Gateway) -> None:
    before = asked(meter_of(gateway, QuotaOwner(TOPIC, "orders")))
    request = send_back()
    await gateway.stub.SendBack(request, timeout=60)
    assert caller(gateway) == (1, request.ByteSize() + RECORD_BYTES + len(BODY))
    after = asked(meter_of(gateway, QuotaOwner(TOPIC, "orders")))
    assert (after[0] - before[0], after[1] - before[1]) == (1, len(BODY))


@pytest.mark.parametrize("body", [None, b"another"], ids=["kept", "given"])
async def test_message_that_is_rescheduled_counts_with_its_body(gateway: Gateway, body: bytes | None) -> None:
    (sent,) = await gateway.send(message(BODY, id="b", delay_level=18))
    before = caller(gateway)
    ref = pending_pb2.PendingRef(message_id=sent.message_id, topic="orders")
    request = pending_pb2.RescheduleRequest(
        messages=[pending_pb2.Reschedule(message=ref, delay_ms=3_600_000, body=body)]
    )
    answer = await gateway.stub.Reschedule(request, timeout=60)
    assert answer.results[0].stored_bytes == len(BODY if body is None else body)
    expected = request.ByteSize() + RECORD_BYTES + (len(BODY) if body is None else 0)
    after = caller(gateway)
    assert (after[0] - before[0], after[1] - before[1]) == (1, expected)


async def test_failed_and_redriven_messages_count_with_their_bodies(gateway: Gateway) -> None:
    leased = (await receive(gateway)).messages
    before = caller(gateway)
    nack = consumer_pb2.NackRequest(
        group="billing", nacks=[consumer_pb2.Nack(receipt=one.receipt, reject=True) for one in leased]
    )
    await gateway.stub.Nack(nack, timeout=60)
    nacked = caller(gateway)
    assert (nacked[0] - before[0], nacked[1] - before[1]) == (1, nack.ByteSize() + RECORD_BYTES + len(BODY))
    redrive = consumer_pb2.RedriveRequest(filter=consumer_pb2.DeadLetterFilter(group="billing"))
    results = [one async for one in gateway.stub.RedriveDeadLetters(redrive, timeout=60)]
    assert [one.outcome for one in results] == [consumer_pb2.DEAD_LETTER_OUTCOME_REDRIVEN]
    after = caller(gateway)
    expected = redrive.ByteSize() + 2 * RECORD_BYTES + len(BODY)
    assert (after[0] - nacked[0], after[1] - nacked[1]) == (1, expected)


async def test_flood_of_messages_that_are_sent_back_is_refused(gateway: Gateway) -> None:
    await set_quota(gateway, user="*", per_host=True, messages_per_s=10, bytes_per_s=1, burst_bytes=1_000_000)
    stored = 0
    while stored < 100:
        call = gateway.stub.SendBack(send_back(token=f"t{stored}"), timeout=60)
        if await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
            break
        stored += 1
    # Ten bodies of 100,000 bytes and their records are above the burst.
    assert stored == 9
    error = from_status(await error_of(gateway.stub.SendBack(send_back(), timeout=60)), "server")
    assert error.reason == "QUOTA_EXCEEDED"


async def test_small_records_are_refused_once_the_bytes_are_used(gateway: Gateway) -> None:
    await set_quota(gateway, user="*", per_host=True, bytes_per_s=1, burst_bytes=RECORD_BYTES)
    position = gateway_pb2.QueuePosition(queue=0, offset=1)
    calls: dict[str, Any] = {
        "CommitOffsets": gateway_pb2.CommitOffsetsRequest(group="billing", topic="orders", queues=[position]),
        "CreateTopic": gateway_pb2.CreateTopicRequest(name="more"),
        "CreateGroup": consumer_pb2.CreateGroupRequest(group=consumer_pb2.Group(name="more")),
        "Cancel": pending_pb2.CancelRequest(messages=[pending_pb2.PendingRef(message_id="a")]),
        "EndTransaction": transactions_pb2.EndTransactionRequest(group="billing"),
        "Ack": consumer_pb2.AckRequest(group="billing", receipts=[b"x"]),
        "Receive": consumer_pb2.ReceiveRequest(group="billing", topic="orders"),
    }
    await gateway.stub.CommitOffsets(calls["CommitOffsets"], timeout=60)
    for method, request in calls.items():
        error = from_status(await error_of(getattr(gateway.stub, method)(request, timeout=60)), "server")
        assert error.reason == "QUOTA_EXCEEDED", method


async def test_stream_of_takes_and_acks_is_read_as_far_as_the_quota_goes(gateway: Gateway) -> None:
    await set_quota(gateway, user="*", per_host=True, bytes_per_s=1, burst_bytes=RECORD_BYTES)
    subscription = consumer_pb2.ReceiveRequest(topic="orders", group="billing")
    takes = [leases_pb2.Take(number=1, max_count=1, max_bytes=1024)]
    stream = gateway.stub.ReceiveStream()
    await stream.write(leases_pb2.ReceiveStreamRequest(subscription=subscription, takes=takes))
    meters = gateway.node.parts.quotas.quotas.meters
    await until(gateway, lambda: QuotaOwner(HOST, "ipv4:127.0.0.1") in meters)
    meter = meters[QuotaOwner(HOST, "ipv4:127.0.0.1")]
    await until(gateway, lambda: meter.debt_ms(SystemClock().monotonic_ms()) > 0)
    stream.cancel()


async def test_dead_letter_of_a_rocketmq_client_counts_with_its_body(gateway: Gateway) -> None:
    client = Raw(gateway.channel, gateway.node.port)
    frames = await client.frames(
        group=BILLING, message_queue=messaging_pb2.MessageQueue(topic=ORDERS), batch_size=1, auto_renew=True
    )
    (given,) = [one.message for one in frames if one.HasField("message")]
    before = caller(gateway)
    answer = await client.call(
        "ForwardMessageToDeadLetterQueue",
        group=BILLING,
        topic=ORDERS,
        receipt_handle=given.system_properties.receipt_handle,
        delivery_attempt=1,
        max_delivery_attempts=1,
    )
    assert answer.status.code == messaging_pb2.OK
    after = caller(gateway)
    assert after[0] - before[0] == 1
    assert 0 < after[1] - before[1] - RECORD_BYTES - len(BODY) < 1_000
