"""The gateway's audit log: every call is classified, acts are kept and read in pages, floods are bounded."""

import asyncio
import time
from pathlib import Path

import grpc
import pytest
from duetime.v1 import audit_pb2, consumer_pb2, export_pb2, gateway_pb2, message_pb2, pending_pb2, transactions_pb2
from duetime_core.audit.events import Act
from duetime_core.audit.refusals import PERIOD_MS, REFUSALS_MAX
from duetime_gateway.access.tokens import new_token
from duetime_gateway.face.acts import ACTS
from duetime_gateway.face.face import SERVICE_NAMES
from duetime_gateway.rocketmq.permissions import SERVICE_NAME
from duetime_gateway.rocketmq.wire.pool import POOL
from google.protobuf import descriptor_pool
from google.protobuf.descriptor import ServiceDescriptor

from tests.gateway.conftest import Gateway, real_store
from tests.gateway.people import Metadata, People, shown


def service_of(name: str) -> ServiceDescriptor:
    return (POOL if name == SERVICE_NAME else descriptor_pool.Default()).FindServiceByName(name)


def calls_of_the_port() -> set[str]:
    services = [service_of(name) for name in (*SERVICE_NAMES, SERVICE_NAME)]
    return {f"{service.full_name}/{method.name}" for service in services for method in service.methods}


def test_every_call_of_the_port_is_classified() -> None:
    """A new call says in `face/acts.py` whether it is an admin act."""
    assert set(ACTS) == calls_of_the_port()


@pytest.mark.parametrize("name", sorted(ACTS))
def test_act_names_the_target_of_any_request(name: str) -> None:
    act = ACTS[name]
    service, _, method = name.partition("/")
    request = service_of(service).FindMethodByName(method).input_type
    if act is not None and act.request is not None:
        assert act.request.DESCRIPTOR is request
        assert act.about(act.request())
    else:
        assert act in (None, Act())


async def events(gateway: Gateway, count: int, metadata: Metadata = (), **wanted: object) -> list[audit_pb2.AuditEvent]:
    """The audit log, once it has `count` events."""
    async with asyncio.timeout(60):
        while True:
            request = audit_pb2.ListAuditEventsRequest(**wanted)  # type: ignore[arg-type]
            answer = await gateway.stub.ListAuditEvents(request, metadata=metadata, timeout=60)
            if len(answer.events) >= count:
                return list(answer.events)


async def status_of(call: "grpc.aio.UnaryUnaryCall[object, object]") -> str:
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return str(error.code().name)
    return "OK"


async def test_acts_are_in_the_log_and_traffic_is_not(gateway: Gateway) -> None:
    stub = gateway.stub
    await gateway.send(message_pb2.Message(topic="orders", body=b"x"))
    await stub.CreateTopic(gateway_pb2.CreateTopicRequest(name="bills", queue_count=2), timeout=60)
    again = stub.CreateTopic(gateway_pb2.CreateTopicRequest(name="bills", queue_count=3), timeout=60)
    assert await status_of(again) == "ALREADY_EXISTS"
    await stub.CreateGroup(consumer_pb2.CreateGroupRequest(group=consumer_pb2.Group(name="billing")), timeout=60)
    await stub.ListTopics(gateway_pb2.ListTopicsRequest(), timeout=60)
    found = await events(gateway, 3)
    assert [(one.method.partition("/")[2], one.resource, one.status, one.reason) for one in reversed(found)] == [
        ("CreateTopic", "topic bills", "OK", ""),
        ("CreateTopic", "topic bills", "ALREADY_EXISTS", "TOPIC_EXISTS"),
        ("CreateGroup", "group billing", "OK", ""),
    ]
    assert {(one.process, one.user, one.host) for one in found} == {("gateway", "", "127.0.0.1")}
    assert len(await events(gateway, 1, method="CreateGroup")) == 1


async def test_streams_and_requests_that_pass_as_bytes_are_in_the_log(gateway: Gateway) -> None:
    stub = gateway.stub
    filter_ = pending_pb2.PendingFilter(topic="orders")
    calls = [
        stub.CancelMatching(pending_pb2.CancelMatchingRequest(filter=filter_, dry_run=True), timeout=60),
        stub.Export(export_pb2.ExportRequest(path="commitlog/0", shard=7), timeout=60),
        stub.RedriveDeadLetters(
            consumer_pb2.RedriveRequest(filter=consumer_pb2.DeadLetterFilter(group="billing")), timeout=60
        ),
    ]
    for call in calls:
        with pytest.raises(grpc.aio.AioRpcError):
            async for _ in call:
                pass
    found = await events(gateway, 3)
    assert {one.resource for one in found} == {
        "pending messages of topic orders (dry run)",
        "file commitlog/0 of shard 7",
        "dead letters of group billing",
    }
    assert "OK" not in {one.status for one in found}


async def test_only_an_operator_s_end_of_transactions_is_an_act(gateway: Gateway) -> None:
    for given_up in (False, True):
        ends = [transactions_pb2.TransactionEnd(transaction_id="none", decision="DECISION_COMMIT")]
        request = transactions_pb2.EndTransactionRequest(group="billing", ends=ends, given_up=given_up)
        await status_of(gateway.stub.EndTransaction(request, timeout=60))
    found = await events(gateway, 1)
    assert [one.resource for one in found] == ["given up transactions of group billing"]


async def test_log_is_read_in_pages(gateway: Gateway) -> None:
    for number in range(5):
        request = gateway_pb2.CreateTopicRequest(name=f"t{number}", queue_count=1)
        await gateway.stub.CreateTopic(request, timeout=60)
    await events(gateway, 5)
    pages, token = [], ""
    while True:
        asked = audit_pb2.ListAuditEventsRequest(max_count=2, page_token=token)
        answer = await gateway.stub.ListAuditEvents(asked, timeout=60)
        pages.append([one.resource for one in answer.events])
        token = answer.next_page_token
        if not token:
            break
    assert pages == [["topic t4", "topic t3"], ["topic t2", "topic t1"], ["topic t0"]]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"page_token": "5"}, "page_token"),
        ({"page_token": "1.x"}, "page_token"),
        ({"page_token": "9" * 30 + ".1"}, "page_token"),
        ({"max_count": 1_001}, "max_count"),
        ({"from_ms": -1}, "from_ms"),
        ({"before_ms": -1}, "before_ms"),
    ],
)
async def test_bad_fields_are_refused(gateway: Gateway, fields: dict[str, object], field: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await gateway.stub.ListAuditEvents(audit_pb2.ListAuditEventsRequest(**fields), timeout=60)  # type: ignore[arg-type]
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert field in str(caught.value.details())


async def test_events_of_a_stopped_gateway_are_in_the_log_of_the_next(tmp_path: Path) -> None:
    async with real_store(tmp_path) as store:
        async with Gateway(tmp_path, {0: store.port}) as gateway:
            request = gateway_pb2.CreateTopicRequest(name="orders", queue_count=1)
            await gateway.stub.CreateTopic(request, timeout=60)
        async with Gateway(tmp_path, {0: store.port}) as gateway:
            assert [one.resource for one in await events(gateway, 1)] == ["topic orders"]


async def test_refusals_are_recorded_with_their_known_user(tmp_path: Path) -> None:
    async with (
        People(f"sqlite:///{tmp_path / 'meta.db'}") as people,
        real_store(tmp_path) as store,
        Gateway(tmp_path, {0: store.port}, auth="required") as gateway,
    ):
        admin = shown(await people.add("ops", "admin"))
        shop = await people.add("shop", "send topic orders", "manage group other")
        gone, late = await people.add("gone", "admin"), await people.add("late", "admin", expires_at_ms=2)
        await people.revoke("gone")
        stub = gateway.stub
        create = gateway_pb2.CreateTopicRequest(name="orders", queue_count=1)
        assert await status_of(stub.CreateTopic(create, metadata=admin, timeout=60)) == "OK"
        for token in (None, new_token(), shop, gone, late):
            metadata = shown(token) if token is not None else ()
            assert await status_of(stub.CreateTopic(create, metadata=metadata, timeout=60)) != "OK"
        # The user may call the method, but not for this group.
        group = consumer_pb2.DeleteGroupRequest(name="billing")
        assert await status_of(stub.DeleteGroup(group, metadata=shown(shop), timeout=60)) == "PERMISSION_DENIED"
        for names in (("orders", "secrets"), ("secrets", "more", "orders")):
            messages = [message_pb2.Message(topic=name, body=b"x") for name in names]
            await stub.Send(gateway_pb2.SendRequest(messages=messages), metadata=shown(shop), timeout=60)
        # A task of the stream reports it, while the stream stays open.
        stream = stub.SendStream(metadata=shown(shop), timeout=60)
        await stream.write(gateway_pb2.SendRequest(messages=[message_pb2.Message(topic="secrets", body=b"x")]))
        assert await stream.read()
        asked = audit_pb2.ListAuditEventsRequest()
        assert await status_of(stub.ListAuditEvents(asked, metadata=shown(shop), timeout=60)) == "PERMISSION_DENIED"
        found = await events(gateway, 11, metadata=admin)
        stream.cancel()
    assert [(one.method.partition("/")[2], one.user, one.resource, one.status, one.reason) for one in found][::-1] == [
        ("CreateTopic", "ops", "topic orders", "OK", ""),
        ("CreateTopic", "", "", "UNAUTHENTICATED", "TOKEN_MISSING"),
        ("CreateTopic", "", "", "UNAUTHENTICATED", "TOKEN_INVALID"),
        ("CreateTopic", "shop", "", "PERMISSION_DENIED", "RIGHT_MISSING"),
        ("CreateTopic", "gone", "", "UNAUTHENTICATED", "USER_REVOKED"),
        ("CreateTopic", "late", "", "UNAUTHENTICATED", "TOKEN_EXPIRED"),
        ("DeleteGroup", "shop", "group billing", "PERMISSION_DENIED", "RIGHT_MISSING"),
        ("Send", "shop", "topic secrets", "PERMISSION_DENIED", "RIGHT_MISSING"),
        ("Send", "shop", "topic more and 1 more", "PERMISSION_DENIED", "RIGHT_MISSING"),
        ("SendStream", "shop", "topic secrets", "PERMISSION_DENIED", "RIGHT_MISSING"),
        ("ListAuditEvents", "shop", "", "PERMISSION_DENIED", "RIGHT_MISSING"),
    ]


async def test_flood_of_refusals_makes_few_events_and_a_count(tmp_path: Path) -> None:
    flood = 50 * REFUSALS_MAX
    async with People(f"sqlite:///{tmp_path / 'meta.db'}") as people, real_store(tmp_path) as store:
        admin = shown(await people.add("ops", "admin"))
        began_s = time.monotonic()
        async with Gateway(tmp_path, {0: store.port}, auth="required") as gateway:
            asked = gateway_pb2.ListTopicsRequest()
            calls = [gateway.stub.ListTopics(asked, timeout=60) for _ in range(flood)]
            assert set(await asyncio.gather(*map(status_of, calls))) == {"UNAUTHENTICATED"}
        periods = 1 + (time.monotonic() - began_s) // (PERIOD_MS / 1_000)
        async with Gateway(tmp_path, {0: store.port}, auth="required") as gateway:
            found = await events(gateway, 1, admin)
    assert len(found) <= periods * (REFUSALS_MAX + 1)
    assert sum(one.left_out_count or 1 for one in found) == flood
