"""Each role calls each method that the contract has, by certificate; a new method without a rule fails."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from duetime.cli.certs import CALLERS, SERVERS
from duetime.v1 import copies_pb2, externalscaler_pb2, gateway_pb2, members_pb2, retry_pb2, scheduler_pb2, store_pb2
from duetime_core.access.callers import ROLES, Callers, Role, role_of, roles_for
from duetime_core.rpc.channels import make_channel
from duetime_core.rpc.serving import Server
from google.protobuf.descriptor import MethodDescriptor
from prometheus_client import CollectorRegistry

from tests import fronts
from tests.certified import Certified, credentials_of

pytestmark = fronts.both

FILES = (copies_pb2, members_pb2, store_pb2, scheduler_pb2, retry_pb2, gateway_pb2, externalscaler_pb2)
METHODS: dict[str, MethodDescriptor] = {
    f"{service.full_name}/{method.name}": method
    for file in FILES
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
INNER = ("duetime.v1.Store", "duetime.v1.Copies", "duetime.v1.Members", "duetime.v1.Scheduler", "duetime.v1.Retry")
GATEWAY, SCHEDULER, RETRY, SPARK, OPERATOR = "gateway", "scheduler", "retry", "spark", "operator"
# Roles by method of the inner services, written down independently of the core's own table.
EXPECTED: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        ("PutStream", "Replace", "Cancel", "ListPending", "Backlog", "Prepare", "OpenLiteTopics"), (GATEWAY,)
    ),
    **dict.fromkeys(("ListLiteTopics", "PutSchedule", "PutSchedules", "ChangeSchedule", "CountSchedules"), (GATEWAY,)),
    **dict.fromkeys(
        ("EndTransactions", "TakeChecks", "ReportChecks", "ListTransactions", "GetTransaction"), (GATEWAY,)
    ),
    **dict.fromkeys(("Pull", "PullQueues", "Subscribe", "QueryMessages", "GetMessage", "TraceMessage"), (GATEWAY,)),
    **dict.fromkeys(("CommitOffsets", "GetOffsets", "Receive", "ReceiveStream", "AwaitMessages", "Ack"), (GATEWAY,)),
    **dict.fromkeys(("ChangeInvisible", "DescribeGroup", "ResetGroup", "DeleteGroup", "PutGroup"), (GATEWAY,)),
    **dict.fromkeys(("PauseGroup", "ResumeGroup", "ShareRates"), (GATEWAY,)),
    "EndRetries": (GATEWAY,),
    **dict.fromkeys(("ListGroups", "PutTopics", "DeleteTopic", "ListTopics"), (GATEWAY,)),
    **dict.fromkeys(("SendBack", "Nack", "ListDeadLetters", "RedriveDeadLetters", "DiscardDeadLetters"), (GATEWAY,)),
    **dict.fromkeys(("Put", "PutTopic", "SearchOffset"), (GATEWAY, RETRY)),
    "ListQueues": (GATEWAY, RETRY, SCHEDULER),
    **dict.fromkeys(("Settle", "Defer", "GetLeased", "TakeExhausted", "GetRecord"), (RETRY,)),
    **dict.fromkeys(("PullDeadLetters", "DropDeadLetters"), (RETRY,)),
    **dict.fromkeys(("Restore", "PullDue", "StandIn"), (SCHEDULER,)),
    **dict.fromkeys(("Describe", "ListLanes"), (GATEWAY, SCHEDULER, OPERATOR)),
    **dict.fromkeys(("ListFiles", "Export"), (GATEWAY, SPARK, OPERATOR)),
    **dict.fromkeys(("Carry", "Fetch"), ("store",)),
    **dict.fromkeys(("DescribeDirectory", "CheckFile", "ReadFile"), ("store",)),
    "DescribeMembers": (OPERATOR, "store"),
    "RejoinMember": ("store",),
    **dict.fromkeys(("TransferLeadership", "AddMember", "RemoveMember"), (OPERATOR,)),
    **dict.fromkeys(("ListLaneLeases", "PauseLane", "ResumeLane"), (OPERATOR,)),
}
REFUSED = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)


def expected(method: str) -> set[str]:
    service, _, name = method.partition("/")
    if service in INNER:
        return set(EXPECTED[name])
    if service == "externalscaler.ExternalScaler":
        return {"keda"}
    return {"client", OPERATOR, *([SPARK] if name in ("ListShards", "ListFiles", "Export") else [])}


class Anything(grpc.GenericRpcHandler):
    """Every method of the contract, with an empty answer."""

    def service(self, details: Any) -> Any:
        method = METHODS.get(details.method.lstrip("/"))
        if method is None:
            return None
        if method.server_streaming:
            kind = grpc.stream_stream_rpc_method_handler if method.client_streaming else None
            return (kind or grpc.unary_stream_rpc_method_handler)(answer_stream)
        return grpc.unary_unary_rpc_method_handler(answer)


async def answer(request: bytes, context: Any) -> bytes:
    return b"served"


async def answer_stream(request: Any, context: Any) -> AsyncIterator[bytes]:
    yield b"served"


@pytest.fixture
def certified(tmp_path: Path) -> Certified:
    return Certified(tmp_path)


async def outcome(channel: grpc.aio.Channel, method: str) -> str:
    """`served`, or the status of the refusal. If gRPC reports a stream's reset before the status that came with it,
    because the request is still being sent, the call is repeated.
    """
    for _ in range(3):
        told = await asked(channel, method)
        if told != "INTERNAL" or not METHODS[method].client_streaming:
            break
    return told


async def asked(channel: grpc.aio.Channel, method: str) -> str:
    described = METHODS[method]
    try:
        if not described.server_streaming:
            return (await channel.unary_unary(f"/{method}")(b"", timeout=60)).decode()
        if described.client_streaming:
            answers = channel.stream_stream(f"/{method}")(iter([b""]), timeout=60)
        else:
            answers = channel.unary_stream(f"/{method}")(b"", timeout=60)
        return b"".join([chunk async for chunk in answers]).decode()
    except grpc.aio.AioRpcError as error:
        return error.code().name


async def test_each_role_calls_only_its_methods(certified: Certified) -> None:
    registry = CollectorRegistry()
    server = Server([], 100, registry, credentials=credentials_of(certified.issue("store")))
    server.grpc.add_generic_rpc_handlers([Anything()])
    await server.start("127.0.0.1", 0, front=fronts.current())
    told: dict[tuple[str, str], str] = {}
    try:
        for role in [*Role, "stranger"]:
            own = credentials_of(certified.issue(role, names=(), place=f"as-{role}"))
            async with make_channel(f"127.0.0.1:{server.port}", own) as channel:
                for method in METHODS:
                    told[role, method] = await outcome(channel, method)
    finally:
        await server.stop(0)
    refusal = dict.fromkeys(Role, "PERMISSION_DENIED") | {"stranger": "UNAUTHENTICATED"}
    wanted = {(role, method): "served" if role in expected(method) else refusal[role] for role, method in told}
    assert {key: value for key, value in told.items() if value != wanted[key]} == {}
    assert len(told) == (len(Role) + 1) * len(METHODS)


def test_the_table_names_every_method_of_the_inner_services_and_none_besides() -> None:
    inner = {method for method in METHODS if method.partition("/")[0] in INNER}
    assert inner <= set(ROLES)
    assert {name for name in ROLES if "/" in name} <= set(METHODS)
    assert roles_for("/duetime.v1.Store/Later") == roles_for("/duetime.v1.New/Call") == frozenset()


def test_certificates_are_made_for_every_role() -> None:
    assert {*SERVERS, *CALLERS} == set(Role)


@pytest.mark.parametrize(
    ("uris", "names", "role"),
    [
        ([b"spiffe://duetime/gateway"], [], Role.GATEWAY),
        ([b"spiffe://other/gateway", b"spiffe://duetime/retry"], [], Role.RETRY),
        ([], [b"localhost", b"store.duetime"], Role.STORE),
        ([b"spiffe://duetime/"], [], None),
        ([b"spiffe://duetime/gateway/x"], [], None),
        ([b"spiffe://duetime/Gateway"], [], None),
        ([b"x-spiffe://duetime/gateway"], [], None),
        ([], [b"gateway", b"gateway.duetime.svc", b"duetime"], None),
        ([b"\xff\xfe"], [b"\xff.duetime"], None),
        ([], [], None),
    ],
)
def test_role_follows_the_prefix(uris: list[bytes], names: list[bytes], role: Role | None) -> None:
    assert role_of(uris, names) == role


def test_another_prefix_makes_others_of_the_same_certificates() -> None:
    assert role_of([b"spiffe://duetime/gateway"], [], "spiffe://shop/duetime/") is None
    assert role_of([b"spiffe://shop/duetime/gateway"], [], "spiffe://shop/duetime/") is Role.GATEWAY


class _Within:
    def peer(self) -> str:
        return "within:1"


def test_nodes_of_one_process_are_asked_for_nothing() -> None:
    assert Callers(prefix="spiffe://duetime/").check("/duetime.v1.Store/Restore", _Within()) is None


async def test_refusals_are_counted(certified: Certified) -> None:
    registry = CollectorRegistry()
    credentials = credentials_of(certified.issue("store"))
    assert credentials.certificates is not None
    registry.register(credentials.certificates.metrics.refused)
    server = Server([], 100, credentials=credentials)
    server.grpc.add_generic_rpc_handlers([Anything()])
    await server.start("127.0.0.1", 0, front=fronts.current())
    try:
        async with make_channel(f"127.0.0.1:{server.port}", credentials_of(certified.issue("spark"))) as channel:
            assert await outcome(channel, "duetime.v1.Store/Restore") in [code.name for code in REFUSED]
    finally:
        await server.stop(0)
    assert registry.get_sample_value("duetime_tls_refused_total", {"reason": "role_refused"}) == 1
