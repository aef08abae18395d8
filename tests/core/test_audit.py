"""Admin acts and refusals of a server: recorded events, their actors, and the limit in a flood."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import structlog
from duetime.v1 import scheduler_pb2
from duetime_core.access.callers import ClusterSecret
from duetime_core.access.credentials import ClusterCredentials
from duetime_core.access.principal import Principal, serve_for
from duetime_core.audit.audit import Audit, name_resource
from duetime_core.audit.events import TEXT_BYTES_MAX, Act, AuditedCall, plain
from duetime_core.audit.refusals import HOSTS_MAX, PERIOD_MS, REFUSALS_MAX, Refusals
from duetime_core.errors import NotFound, PermissionDenied
from duetime_core.rpc.border import BorderParts
from duetime_core.rpc.serving import Server, make_channel
from duetime_core.testing import FakeClock

from tests import fronts

pytestmark = fronts.both

SECRET = "a-secret-of-the-cluster"
LANE = scheduler_pb2.LaneRequest(shard=0, level=3)


class Servicer:
    """Follows the instruction in a request's lane, in a user's name."""

    async def pause(self, request: scheduler_pb2.LaneRequest, context: Any) -> scheduler_pb2.LaneLease:
        serve_for(Principal("alice"))
        if request.level == 404:
            raise NotFound("no such lane", reason="LANE_NOT_FOUND")
        if request.level == 403:
            raise PermissionDenied("not yours", reason="NOT_YOURS")
        return scheduler_pb2.LaneLease()

    async def stream(self, request: scheduler_pb2.LaneRequest, context: Any) -> AsyncIterator[bytes]:
        yield b"one"
        if request.level == 404:
            raise NotFound("no such lane", reason="LANE_NOT_FOUND")

    async def named(self, request: scheduler_pb2.LaneRequest, context: Any) -> bytes:
        if request.level == 7:
            name_resource("lane seven")
        return b""


class Noting(Audit):
    """Counts events, those too that are left out."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.noted, self.changed = 0, asyncio.Event()

    def note(self, event: AuditedCall) -> None:
        super().note(event)
        self.noted += 1
        self.changed.set()


class Served:
    """A server with admin acts, and the events that it keeps."""

    def __init__(self, secret: str = "") -> None:
        self.kept: list[AuditedCall] = []
        self.clock = FakeClock()
        self.servicer = Servicer()
        act = Act(scheduler_pb2.LaneRequest, lambda request: f"lane {request.level}")
        acts = {"S/Pause": act, "S/Stream": act, "S/Named": Act(), "S/Look": None}
        self.audit = Noting(self.clock, acts, self.kept.append)
        self.server = Server(
            [], 100, credentials=ClusterCredentials(ClusterSecret(secret)), parts=BorderParts(audit=self.audit)
        )
        unary, parse = grpc.unary_unary_rpc_method_handler, scheduler_pb2.LaneRequest.FromString
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "Pause": unary(self.servicer.pause, parse, scheduler_pb2.LaneLease.SerializeToString),
            "Look": unary(self.servicer.pause, parse, scheduler_pb2.LaneLease.SerializeToString),
            "Named": unary(self.servicer.named, parse),
            "Stream": grpc.unary_stream_rpc_method_handler(self.servicer.stream, parse),
        }
        self.server.grpc.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("S", handlers)])

    async def until_noted(self, count: int) -> None:
        """An event is noted when its handler ends, which may be after the answer."""
        async with asyncio.timeout(60):
            while self.audit.noted < count:
                self.audit.changed.clear()
                await self.audit.changed.wait()

    async def __aenter__(self) -> "Served":
        await self.server.start("127.0.0.1", 0, front=fronts.current())
        self.channel = make_channel(f"127.0.0.1:{self.server.port}")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.channel.close()
        await self.server.stop(0)

    async def call(self, method: str, request: bytes, **options: Any) -> str:
        """The status of a call."""
        try:
            if method == "Stream":
                async for _ in self.channel.unary_stream("/S/Stream")(request, timeout=60):
                    pass
            else:
                await self.channel.unary_unary(f"/S/{method}")(request, timeout=60, **options)
        except grpc.aio.AioRpcError as error:
            return str(error.code().name)
        return "OK"


def lane(level: int) -> bytes:
    return scheduler_pb2.LaneRequest(level=level).SerializeToString()


def outcomes(events: list[AuditedCall]) -> list[tuple[str, str, str, str]]:
    return [(one.method, one.resource, one.status, one.reason) for one in events]


async def test_act_is_recorded_with_user_host_and_target() -> None:
    async with Served() as served:
        with structlog.testing.capture_logs() as lines:
            assert await served.call("Pause", lane(3)) == "OK"
            assert await served.call("Stream", lane(3)) == "OK"
            await served.until_noted(2)
        (event, streamed) = served.kept
        assert (event.user, event.host, event.at_ms) == ("alice", "127.0.0.1", served.clock.now_ms())
        assert event.peer.startswith("127.0.0.1:")
        assert outcomes(served.kept) == [("S/Pause", "lane 3", "OK", ""), ("S/Stream", "lane 3", "OK", "")]
        assert streamed.user == ""
    (line, _) = [line for line in lines if line["event"] == "audit"]
    told = {"user": "alice", "host": "127.0.0.1", "peer": event.peer, "method": "S/Pause", "resource": "lane 3"}
    assert line == {"event": "audit", "log_level": "info", "status": "OK", **told}


async def test_failed_act_is_recorded_with_its_reason() -> None:
    async with Served() as served:
        await served.call("Pause", lane(404))
        await served.call("Stream", lane(404))
        await served.until_noted(2)
        assert outcomes(served.kept) == [
            ("S/Pause", "lane 404", "NOT_FOUND", "LANE_NOT_FOUND"),
            ("S/Stream", "lane 404", "NOT_FOUND", "LANE_NOT_FOUND"),
        ]


async def test_ordinary_calls_are_recorded_only_when_refused() -> None:
    async with Served() as served:
        assert await served.call("Look", lane(3)) == "OK"
        assert await served.call("Look", lane(404)) == "NOT_FOUND"
        assert served.kept == []
        assert await served.call("Look", lane(403)) == "PERMISSION_DENIED"
        await served.until_noted(1)
        assert outcomes(served.kept) == [("S/Look", "", "PERMISSION_DENIED", "NOT_YOURS")]
        assert served.kept[0].user == "alice"


async def test_act_that_its_service_names_is_told_only_where_it_does() -> None:
    async with Served() as served:
        await served.call("Named", lane(1))
        await served.call("Named", lane(7))
        await served.call("Named", lane(1))
        await served.until_noted(1)
        assert outcomes(served.kept) == [("S/Named", "lane seven", "OK", "")]


async def test_request_of_an_act_that_is_no_message_is_refused_as_ever() -> None:
    async with Served() as served:
        assert await served.call("Pause", b"\xff\xff") == "INVALID_ARGUMENT"
        assert served.kept == []


async def test_caller_without_the_secret_is_audited_unread_at_a_limited_rate() -> None:
    async with Served(SECRET) as served:
        for _ in range(REFUSALS_MAX + 5):
            assert await served.call("Pause", lane(3)) == "UNAUTHENTICATED"
        await served.until_noted(REFUSALS_MAX + 5)
        assert outcomes(served.kept) == [("S/Pause", "", "UNAUTHENTICATED", "CLUSTER_SECRET_REFUSED")] * REFUSALS_MAX
        await served.clock.advance(PERIOD_MS)
        last = served.kept[-1]
        assert (len(served.kept), last.left_out_count, last.host) == (REFUSALS_MAX + 1, 5, "127.0.0.1")
        shown = (("duetime-cluster-secret", SECRET),)
        assert await served.call("Pause", lane(3), metadata=shown) == "OK"
        assert await served.call("Pause", lane(3)) == "UNAUTHENTICATED"
        await served.until_noted(REFUSALS_MAX + 7)
        assert [one.status for one in served.kept[-2:]] == ["OK", "UNAUTHENTICATED"]
        await served.clock.advance(PERIOD_MS)
        assert served.kept[-1].left_out_count == 0
    assert SECRET not in repr(served.kept)


async def test_omitted_refusals_are_counted_at_the_stop() -> None:
    async with Served(SECRET) as served:
        await asyncio.gather(*(served.call("Pause", lane(3)) for _ in range(REFUSALS_MAX + 2)))
        await served.until_noted(REFUSALS_MAX + 2)
    assert served.kept[-1].left_out_count == 2


def refusal(host: str) -> AuditedCall:
    return AuditedCall(0, "", host, f"{host}:1", "S/Pause", "", "UNAUTHENTICATED", "X")


def test_many_hosts_share_one_count_past_the_limit() -> None:
    refusals = Refusals()
    hosts = [f"10.0.{number >> 8}.{number & 255}" for number in range(HOSTS_MAX + 100)]
    told = sum(refusals.admit(refusal(host)) for host in hosts for _ in range(2))
    assert told == 2 * HOSTS_MAX + REFUSALS_MAX
    (others,) = refusals.end()
    assert (others.host, others.left_out_count) == ("others", 200 - REFUSALS_MAX)
    assert refusals.end() == []
    assert refusals.admit(refusal(hosts[-1]))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("topic orders", "topic orders"),
        ("a\nb\0c", "a\\nb\\x00c"),
        ("topic x?token=geheim", "topic x?token=***"),
        ("x" * 1_000, "x" * (TEXT_BYTES_MAX - 3) + "..."),
    ],
)
def test_texts_of_callers_are_made_plain(text: str, told: str) -> None:
    assert plain(text) == told
