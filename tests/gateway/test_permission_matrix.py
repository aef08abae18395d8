"""Each role calls each method of the gateway's port, as the contract has them; a new method without a rule fails."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from duetime.v1 import externalscaler_pb2, gateway_pb2
from duetime_gateway.access.rules import Who
from duetime_gateway.face.face import SERVICE_NAMES
from duetime_gateway.face.permissions import RULES
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from tests.gateway.conftest import Gateway, message, real_store
from tests.gateway.people import People, shown

FILES = (gateway_pb2, externalscaler_pb2, health_pb2, reflection_pb2)
METHODS: dict[str, MethodDescriptor] = {
    f"/{service.full_name}/{method.name}": method
    for file in FILES
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
REFUSED = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)

# Who may make calls about topic `orders` and group `billing`: each role has one right on both, on all of both, or is
# none of the users.
ROLES = {
    "sender": ("send topic orders", "send group billing"),
    "receiver": ("receive topic ord?rs", "receive group bill*"),
    "manager": ("manage topic orders", "manage group billing"),
    "sender of all": ("send topic *", "send group *"),
    "receiver of all": ("receive topic *", "receive group *"),
    "manager of all": ("manage topic *", "manage group *"),
    "sender of others": ("send topic other", "send group other"),
    "receiver of others": ("receive topic other", "receive group other"),
    "manager of others": ("manage topic other", "manage group other"),
    "user without rights": (),
    "admin": ("admin",),
}
STRANGERS = {"nobody": (), "wrong token": shown("dt_aaaaaaaaaaaa_" + "a" * 52), "no token": shown("x")}
SEND, RECEIVE, MANAGE, ADMIN = "sender", "receiver", "manager", "admin"
ALL, USERS = ("everybody",), ("users",)
# By method, apart from the gateway's own table: the rights of which one is enough. `*`: for all names only.
EXPECTED = {
    **dict.fromkeys(("Send", "SendStream", "SendBatch", "Prepare", "WatchTransactions"), (SEND,)),
    **dict.fromkeys(("EndTransaction", "Cancel", "CancelMatching", "Reschedule"), (SEND,)),
    **dict.fromkeys(("Pull", "PullQueues", "Subscribe", "SearchOffset", "QueryMessages"), (RECEIVE,)),
    **dict.fromkeys(("GetMessage", "ListPending", "CommitOffsets", "GetOffsets"), (RECEIVE,)),
    **dict.fromkeys(("Receive", "ReceiveStream", "Ack", "ChangeInvisible", "Nack", "SendBack"), (RECEIVE,)),
    **dict.fromkeys(("UpdateGroup", "ResetGroup", "DeleteGroup", "CreateTopic", "ListTransactions"), (MANAGE,)),
    **dict.fromkeys(("ListDeadLetters", "RedriveDeadLetters", "DiscardDeadLetters"), (MANAGE,)),
    "TraceMessage": ("receiver of all",),
    "CreateGroup": (RECEIVE, MANAGE),
    **dict.fromkeys(("DescribeGroup", "DescribeTopic", "GetRoute", "Backlog"), (SEND, RECEIVE, MANAGE)),
    **dict.fromkeys(("ListLanes", "ListShards", "GetBacklogReport", "GetTransaction"), ("manager of all",)),
    **dict.fromkeys(("ListTopics", "ListGroups"), USERS),
    **dict.fromkeys(("ListFiles", "Export", "SetQuota", "ListQuotas", "RemoveQuota", "ListAuditEvents"), ()),
    **dict.fromkeys(("IsActive", "StreamIsActive", "GetMetricSpec", "GetMetrics"), ALL),
    **dict.fromkeys(("Check", "List", "Watch", "ServerReflectionInfo"), ALL),
}


def expected(method: str) -> set[str]:
    """The roles that may call a method."""
    rights = EXPECTED[method.rpartition("/")[2]]
    if rights == ALL:
        return {*ROLES, *STRANGERS}
    if rights == USERS:
        return set(ROLES)
    return {ADMIN, *rights, *(f"{right} of all" for right in rights if right in (SEND, RECEIVE, MANAGE))}


def filled(descriptor: Descriptor, method: str, depth: int = 0) -> Any:
    """A message that names the topic and the group wherever it can."""
    made = GetMessageClass(descriptor)()
    for field in descriptor.fields:
        if field.message_type is not None:
            if depth < 2 and field.name in ("messages", "message", "filter", "subscription", "group"):
                inner = filled(field.message_type, method, depth + 1)
                if field.is_repeated:
                    getattr(made, field.name).append(inner)
                else:
                    getattr(made, field.name).CopyFrom(inner)
        elif field.type == FieldDescriptor.TYPE_STRING and not field.is_repeated:
            word = {"topic": "orders", "group": "billing", "name": _name(method)}.get(field.name)
            if word is not None:
                setattr(made, field.name, word)
    return made


def _name(method: str) -> str:
    return "billing" if "Group" in method else "orders"


async def reached(channel: grpc.aio.Channel, path: str, metadata: Any) -> bool:
    """Whether a call got past the border and the guards, whatever became of it then."""
    method = METHODS[path]
    request = filled(method.input_type, path)
    if path.endswith("/Subscribe"):
        request.credit_bytes = 1024
        request.queues.add(queue=0, offset=0)
    kind = f"{'stream' if method.client_streaming else 'unary'}_{'stream' if method.server_streaming else 'unary'}"
    make = getattr(channel, kind)(
        path,
        request_serializer=lambda one: one.SerializeToString(),
        response_deserializer=GetMessageClass(method.output_type).FromString,
    )
    call = make(iter([request]) if method.client_streaming else request, metadata=metadata, timeout=60)
    try:
        if method.server_streaming:
            answer = await call.read()
            call.cancel()
        else:
            answer = await call
    except grpc.aio.AioRpcError as error:
        return error.code() not in REFUSED
    faults = {one.fault.code for one in getattr(answer, "results", ()) if hasattr(one, "fault")}
    return grpc.StatusCode.PERMISSION_DENIED.value[0] not in faults


@pytest.fixture
async def calls(tmp_path: Path) -> AsyncIterator[tuple[Gateway, dict[str, Any]]]:
    """A gateway that asks who calls, and the metadata of each role."""
    async with (
        People(f"sqlite:///{tmp_path / 'meta.db'}") as people,
        real_store(tmp_path) as store,
        Gateway(tmp_path, {0: store.port}, auth="required") as gateway,
    ):
        roles: dict[str, Any] = {}
        for role, grants in ROLES.items():
            roles[role] = shown(await people.add(role.replace(" ", "-"), *grants))
        first = gateway_pb2.SendRequest(messages=[message(queue=0)])
        await gateway.stub.Send(first, metadata=roles["admin"], timeout=10)
        yield gateway, roles | STRANGERS


def test_every_method_of_the_port_has_a_rule() -> None:
    assert set(RULES) == set(METHODS)
    assert set(EXPECTED) == {path.rpartition("/")[2] for path in METHODS}
    served = {path.split("/")[1] for path in METHODS}
    assert {*SERVICE_NAMES, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"} == served


def test_rule_of_a_method_that_reads_names_can_read_its_requests() -> None:
    def needs() -> Iterator[tuple[str, Any, Any]]:
        for path, rule in RULES.items():
            yield from ((path, rule, need) for need in rule.needs if need.names is not None)

    checked = 0
    for path, rule, need in needs():
        request = filled(METHODS[path].input_type, path)
        if rule.read is not None:
            request = rule.read(request.SerializeToString())
        assert list(need.names(request)) in (["orders"], ["billing"], [""]), path
        checked += 1
    assert checked > 30
    assert {path for path, rule in RULES.items() if rule.who is Who.ANYBODY} == {
        path for path in METHODS if EXPECTED[path.rpartition("/")[2]] == ALL
    }


@pytest.mark.timeout(300)
async def test_each_role_reaches_what_it_has_a_right_to_and_nothing_else(calls: tuple[Gateway, dict[str, Any]]) -> None:
    gateway, roles = calls
    for path in METHODS:
        found = {role for role, metadata in roles.items() if await reached(gateway.channel, path, metadata)}
        assert found == expected(path), path
