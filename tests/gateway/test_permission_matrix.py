"""Each role calls each method of the gateway's port, as the contract has them; a new method without a rule fails."""

import base64
import secrets
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest
from duetime.client.errors import STATUS_LOST
from duetime.v1 import externalscaler_pb2, gateway_pb2
from duetime_gateway.access.grants import Kind
from duetime_gateway.access.rules import AllowedCallers
from duetime_gateway.face.face import SERVICE_NAMES
from duetime_gateway.face.permissions import RULES as OWN_RULES
from duetime_gateway.rocketmq.permissions import ROCKETMQ_RULES, SERVICE_NAME
from duetime_gateway.rocketmq.wire import messaging_pb2
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from tests.gateway.conftest import Gateway, message, real_store
from tests.gateway.people import People, shown, signed

FILES = (gateway_pb2, messaging_pb2, externalscaler_pb2, health_pb2, reflection_pb2)
RULES = {**OWN_RULES, **ROCKETMQ_RULES}
METHODS: dict[str, MethodDescriptor] = {
    f"/{service.full_name}/{method.name}": method
    for file in FILES
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
KEY = base64.b64encode(secrets.token_bytes(32)).decode()
REFUSED = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)

# Callers about topic `orders` and group `billing`: each role has one right on both, on all of both, or is no user.
ROLES = {
    # A group of RocketMQ's producers has the topic's name.
    "sender": ("send topic orders", "send group billing", "send group orders"),
    "receiver": ("receive topic ord?rs", "receive group bill*"),
    "manager": ("manage topic orders", "manage group billing"),
    "sender of all": ("send topic *", "send group *"),
    "receiver of all": ("receive topic *", "receive group *"),
    "manager of all": ("manage topic *", "manage group *"),
    "sender of others": ("send topic other", "send group other"),
    "receiver of others": ("receive topic other", "receive group other"),
    "manager of others": ("manage topic other", "manage group other"),
    "inspector": ("inspect topic *",),
    "user without rights": (),
    "admin": ("admin",),
}
STRANGERS = {"nobody": (), "wrong token": shown("dt_aaaaaaaaaaaa_" + "a" * 52), "no token": shown("x")}
SEND, RECEIVE, MANAGE, ADMIN = "sender", "receiver", "manager", "admin"
# Fields that contain the names of the topic and the group.
INNER = ("messages", "message", "message_queue", "filter", "subscription", "group", "puts", "schedule")
ALL, USERS = ("everybody",), ("users",)
# Alternative rights by method, written down independently of the gateway's own table. `*`: for all names only.
EXPECTED = {
    **dict.fromkeys(("Send", "SendStream", "SendBatch", "Prepare", "WatchTransactions"), (SEND,)),
    **dict.fromkeys(("EndTransaction", "Cancel", "CancelMatching", "Reschedule"), (SEND,)),
    **dict.fromkeys(("PutSchedule", "PutSchedules", "RunSchedule"), (SEND,)),
    **dict.fromkeys(("PauseSchedule", "ResumeSchedule", "DeleteSchedule"), (SEND,)),
    **dict.fromkeys(("GetSchedule", "ListSchedules", "CountSchedules"), (SEND, RECEIVE)),
    **dict.fromkeys(("Pull", "PullQueues", "Subscribe", "SearchOffset", "QueryMessages"), (RECEIVE,)),
    **dict.fromkeys(("GetMessage", "ListPending", "CommitOffsets", "GetOffsets"), (RECEIVE,)),
    **dict.fromkeys(("Receive", "ReceiveStream", "Ack", "ChangeInvisible", "Nack", "SendBack"), (RECEIVE,)),
    "DeclareGroupLimits": (RECEIVE,),
    **dict.fromkeys(
        ("UpdateGroup", "ResetGroup", "DeleteGroup", "CreateTopic", "DeleteTopic", "ListTransactions", "PauseTopic"),
        (MANAGE,),
    ),
    **dict.fromkeys(("PauseGroup", "ResumeGroup", "LimitGroup", "PauseTopic", "ResumeTopic"), (MANAGE,)),
    **dict.fromkeys(("ListDeadLetters", "RedriveDeadLetters", "DiscardDeadLetters"), (MANAGE,)),
    **dict.fromkeys(("ListRetries", "RetryNow", "DiscardRetries"), (MANAGE,)),
    "TraceMessage": ("receiver of all",),
    "CreateGroup": (RECEIVE, MANAGE),
    **dict.fromkeys(("DescribeGroup", "DescribeTopic", "GetRoute", "Backlog"), (SEND, RECEIVE, MANAGE)),
    "ListLiteTopics": (SEND, RECEIVE, MANAGE),
    **dict.fromkeys(
        ("ListLanes", "ListShards", "GetBacklogReport", "GetReports", "GetTransaction"), ("manager of all",)
    ),
    **dict.fromkeys(("ListTopics", "ListGroups", "WhoAmI"), USERS),
    **dict.fromkeys(("ListFiles", "Export", "SetQuota", "ListQuotas", "RemoveQuota", "ListAuditEvents"), ()),
    **dict.fromkeys(("PauseLane", "ResumeLane"), ()),
    **dict.fromkeys(("CreateWebhook", "UpdateWebhook", "ListWebhooks", "PauseWebhook", "ResumeWebhook"), ()),
    **dict.fromkeys(("RotateWebhookSecret", "TestWebhook", "DeleteWebhook"), ()),
    **dict.fromkeys(("SendMessage", "RecallMessage"), (SEND,)),
    **dict.fromkeys(("QueryAssignment", "ReceiveMessage", "AckMessage", "SyncLiteSubscription"), (RECEIVE,)),
    **dict.fromkeys(("ChangeInvisibleDuration", "ForwardMessageToDeadLetterQueue"), (RECEIVE,)),
    "QueryRoute": (SEND, RECEIVE, MANAGE),
    **dict.fromkeys(("Heartbeat", "Telemetry", "NotifyClientTermination"), USERS),
    **dict.fromkeys(("IsActive", "StreamIsActive", "GetMetricSpec", "StreamMetricSpec", "GetMetrics"), ALL),
    **dict.fromkeys(("Check", "List", "Watch", "ServerReflectionInfo"), ALL),
}
# Calls that name a system topic: permitted callers beside admins. A trace has no bodies, and takes a right to all
# topics.
SYSTEM_TOPIC: dict[str, tuple[str, ...]] = {"TraceMessage": ("receiver of all",)} | dict.fromkeys(
    "Pull PullQueues Subscribe SearchOffset QueryMessages GetMessage DescribeTopic GetRoute Backlog QueryRoute".split(),
    ("inspector",),
)
# Admission refuses a system topic to every sender.
SENT_TO = ("Send", "SendStream", "SendBatch", "Prepare", "SendMessage")


def expected(method: str) -> set[str]:
    """The roles that may call a method."""
    rights = EXPECTED[method.rpartition("/")[2]]
    if rights == ALL:
        return {*ROLES, *STRANGERS}
    if rights == USERS:
        return set(ROLES)
    return {ADMIN, *rights, *(f"{right} of all" for right in rights if right in (SEND, RECEIVE, MANAGE))}


def filled(descriptor: Descriptor, method: str, depth: int = 0, topic: str = "orders") -> Any:
    """A message that names the topic and the group wherever it can."""
    made = GetMessageClass(descriptor)()
    for field in descriptor.fields:
        if field.message_type is not None:
            if field.message_type.name == "Resource" and not field.is_repeated:
                word = {"topic": topic, "group": "billing"}[field.name]
                getattr(made, field.name).name = word
            elif depth < 3 and field.name in INNER:
                inner = filled(field.message_type, method, depth + 1, topic)
                if field.is_repeated:
                    getattr(made, field.name).append(inner)
                else:
                    getattr(made, field.name).CopyFrom(inner)
        elif field.type == FieldDescriptor.TYPE_STRING and not field.is_repeated:
            word = {"topic": topic, "group": "billing", "name": _name(method, topic)}.get(field.name)
            if word is not None:
                setattr(made, field.name, word)
    return made


def _name(method: str, topic: str) -> str:
    return "billing" if "Group" in method else topic


class Shown(NamedTuple):
    """Credentials of callers, by protocol."""

    token: Any
    signature: Any


async def reached(channel: grpc.aio.Channel, path: str, shown_: Any, topic: str = "orders") -> bool:
    """Whether a call passed the border and the guards, with any outcome after that."""
    for _ in range(10):
        found = await _asked(channel, path, shown_, topic)
        if found is not None:
            return found
    raise AssertionError(f"{path}: ten streams ended in the middle of a write")


async def _asked(channel: grpc.aio.Channel, path: str, shown_: Any, topic: str) -> bool | None:
    """None when the stream ended in the middle of our write, which loses grpcio its status."""
    is_rocketmq = path.startswith(f"/{SERVICE_NAME}/")
    metadata = (shown_.signature if is_rocketmq else shown_.token) if isinstance(shown_, Shown) else shown_
    method = METHODS[path]
    request = filled(method.input_type, path, topic=topic)
    if path.endswith("/Subscribe"):
        request.credit_bytes = 1024
        # An empty topic's queue would wait for a message.
        request.queues.add(queue=0 if topic == "orders" else 99, offset=0)
    kind = f"{'stream' if method.client_streaming else 'unary'}_{'stream' if method.server_streaming else 'unary'}"
    make = getattr(channel, kind)(
        path,
        request_serializer=lambda one: one.SerializeToString(),
        response_deserializer=GetMessageClass(method.output_type).FromString,
    )
    if is_rocketmq:
        metadata = (*metadata, ("x-mq-client-id", "somebody"))
    call = make(iter([request]) if method.client_streaming else request, metadata=metadata, timeout=60)
    try:
        if method.server_streaming:
            answer = await call.read()
            call.cancel()
        else:
            answer = await call
    except grpc.aio.AioRpcError as error:
        if error.details() == STATUS_LOST:
            return None
        return error.code() not in REFUSED
    if hasattr(answer, "status") and hasattr(answer.status, "code"):
        return answer.status.code not in (messaging_pb2.UNAUTHORIZED, messaging_pb2.FORBIDDEN)
    faults = {one.fault.code for one in getattr(answer, "results", ()) if hasattr(one, "fault")}
    return grpc.StatusCode.PERMISSION_DENIED.value[0] not in faults


@pytest.fixture
async def calls(tmp_path: Path) -> AsyncIterator[tuple[Gateway, dict[str, Any]]]:
    """A gateway that authenticates callers, and the metadata of each role."""
    async with (
        People(f"sqlite:///{tmp_path / 'meta.db'}") as people,
        real_store(tmp_path) as store,
        Gateway(tmp_path, {0: store.port}, auth="required", secrets_key=KEY) as gateway,
    ):
        roles: dict[str, Any] = {}
        for role, grants in ROLES.items():
            name = role.replace(" ", "-")
            token = shown(await people.add(name, *grants))
            # gRPC takes both, and each protocol reads its own.
            roles[role] = Shown(token, signed(*await people.add_key(name, KEY)))
        first = gateway_pb2.SendRequest(messages=[message(queue=0)])
        await gateway.stub.Send(first, metadata=roles["admin"].token, timeout=60)
        yield gateway, roles | STRANGERS


def test_every_method_of_the_port_has_a_rule() -> None:
    assert set(RULES) == set(METHODS)
    assert set(EXPECTED) == {path.rpartition("/")[2] for path in METHODS}
    served = {path.split("/")[1] for path in METHODS}
    assert {*SERVICE_NAMES, SERVICE_NAME, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"} == served


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
    assert {path for path, rule in RULES.items() if rule.who is AllowedCallers.ANYBODY} == {
        path for path in METHODS if EXPECTED[path.rpartition("/")[2]] == ALL
    }


@pytest.mark.timeout(300)
async def test_each_role_reaches_exactly_its_rights(calls: tuple[Gateway, dict[str, Any]]) -> None:
    gateway, roles = calls
    for path in METHODS:
        found = {role for role, metadata in roles.items() if await reached(gateway.channel, path, metadata)}
        assert found == expected(path), path


@pytest.mark.timeout(300)
async def test_system_topic_takes_the_right_to_inspect(calls: tuple[Gateway, dict[str, Any]]) -> None:
    gateway, roles = calls
    topic = "DT_QUARANTINE"
    for path, method in METHODS.items():
        name = path.rpartition("/")[2]
        names_it = filled(method.input_type, path) != filled(method.input_type, path, topic=topic)
        is_held = any(need.kind is Kind.TOPIC for need in RULES[path].needs)
        if name not in SENT_TO and names_it and is_held:
            found = {role for role, shows in roles.items() if await reached(gateway.channel, path, shows, topic)}
            assert found == {ADMIN, *SYSTEM_TOPIC.get(name, ())}, path
