"""Permitted callers of each call, and refusals of the others."""

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from duetime.v1 import scheduler_pb2, scheduler_pb2_grpc, store_pb2, store_pb2_grpc
from duetime_core.access.callers import METADATA_KEY, TABLE, Callers, ClusterSecret, MethodCallers, meant_for
from duetime_core.access.credentials import ClusterCredentials
from duetime_core.errors import StartupError, Unauthenticated, Unavailable
from duetime_core.node.settings import CLUSTER_SECRET_VARIABLE, NodeSettings, credentials_of_commands
from duetime_core.rpc.calls import translate
from duetime_core.rpc.channels import make_blocking_channel, make_channel
from duetime_core.rpc.serving import Server
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from tests import fronts

pytestmark = fronts.both

SECRET = "s3cret-of-the-cluster"
OTHER = "another-secret-altogether"
INNER = ["duetime.v1.Store", "duetime.v1.Scheduler", "duetime.v1.Retry"]


def refusal(secret: ClusterSecret, method: str, metadata: Any) -> str:
    """Why a call with this metadata is refused; empty: it is not."""
    try:
        Callers(secret).check(method, SimpleNamespace(invocation_metadata=lambda: metadata))
    except Unauthenticated as error:
        return error.text
    return ""


@pytest.mark.parametrize("service", INNER)
def test_inner_services_are_for_the_cluster(service: str) -> None:
    assert meant_for(f"/{service}/Anything") is MethodCallers.CLUSTER


@pytest.mark.parametrize("service", ["duetime.v1.Gateway", "externalscaler.ExternalScaler", "grpc.health.v1.Health"])
def test_clients_and_probes_need_no_secret(service: str) -> None:
    assert meant_for(f"/{service}/Anything") is MethodCallers.ANYBODY
    assert refusal(ClusterSecret(SECRET), f"/{service}/Anything", ()) == ""


def test_unlisted_calls_are_for_the_cluster() -> None:
    assert "duetime.v1.New" not in TABLE
    assert meant_for("/duetime.v1.New/Call") is MethodCallers.CLUSTER


def test_without_a_secret_everybody_is_obeyed() -> None:
    assert refusal(ClusterSecret(), "/duetime.v1.Store/Put", ()) == ""
    assert not ClusterSecret()
    assert ClusterSecret().metadata == ()


@pytest.mark.parametrize(
    ("shown", "admitted"),
    [
        (SECRET, True),
        (SECRET.encode(), True),
        (OTHER, False),
        ("", False),
        (SECRET[:-1], False),
        (SECRET + "x", False),
        (f"{SECRET},{OTHER}", False),
    ],
)
def test_secret_is_compared_as_a_whole(shown: str | bytes, admitted: bool) -> None:
    fault = refusal(ClusterSecret(SECRET), "/duetime.v1.Store/Put", ((METADATA_KEY, shown),))
    assert (fault == "") is admitted
    assert SECRET not in fault


def test_secret_is_changed_without_a_pause() -> None:
    method = "/duetime.v1.Store/Put"
    steps = [ClusterSecret(text) for text in (SECRET, f"{SECRET},{OTHER}", f"{OTHER},{SECRET}", OTHER)]
    for before, after in pairwise(steps):
        # Processes may be restarted in any order.
        assert refusal(after, method, before.metadata) == ""
        assert refusal(before, method, after.metadata) == ""


@pytest.mark.parametrize("text", ["short", "with a blank in it", "ümlaut-in-the-secret", f"{SECRET},", f",{SECRET}"])
def test_invalid_secret_is_refused_and_not_shown(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="is not 16 characters or more") as caught:
        ClusterSecret(text)
    assert text not in str(caught.value)
    monkeypatch.setenv(CLUSTER_SECRET_VARIABLE, text)
    with pytest.raises(StartupError) as told:
        credentials_of_commands()
    assert text not in told.value.text
    with pytest.raises(StartupError) as refused:
        NodeSettings.read([])
    assert "CLUSTER_SECRET" in refused.value.text
    assert text not in refused.value.text


def test_settings_do_not_show_the_secret() -> None:
    settings = NodeSettings(cluster_secret=SECRET)  # type: ignore[arg-type]
    assert SECRET not in repr(settings) + str(settings) + settings.model_dump_json()
    assert settings.secret.metadata == ((METADATA_KEY, SECRET),)


def test_misspelt_variable_of_the_secret_is_no_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUETIME_CLUSTER_SECRT", SECRET)
    with pytest.raises(StartupError, match="DUETIME_CLUSTER_SECRT is not a setting"):
        NodeSettings.read([])


class _Inner(store_pb2_grpc.StoreServicer, scheduler_pb2_grpc.SchedulerServicer):
    """Counts the calls that reach it."""

    def __init__(self) -> None:
        self.calls = 0

    async def PauseLane(self, request: Any, context: Any) -> scheduler_pb2.LaneLease:
        self.calls += 1
        return scheduler_pb2.LaneLease(paused=True)

    async def Export(self, request: Any, context: Any) -> AsyncIterator[Any]:
        self.calls += 1
        return
        yield

    async def PutStream(self, requests: Any, context: Any) -> AsyncIterator[Any]:
        self.calls += 1
        return
        yield


@asynccontextmanager
async def serving(secret: ClusterSecret) -> AsyncIterator[tuple[_Inner, str]]:
    inner, server = _Inner(), Server([], 8, credentials=ClusterCredentials(secret))
    store_pb2_grpc.add_StoreServicer_to_server(inner, server.grpc)  # type: ignore[no-untyped-call]
    scheduler_pb2_grpc.add_SchedulerServicer_to_server(inner, server.grpc)  # type: ignore[no-untyped-call]
    await server.start("127.0.0.1", 0, front=fronts.current())
    try:
        yield inner, f"127.0.0.1:{server.port}"
    finally:
        await server.stop(0)


async def pause(channel: grpc.aio.Channel) -> bool:
    stub = scheduler_pb2_grpc.SchedulerStub(channel)  # type: ignore[no-untyped-call]
    return bool((await stub.PauseLane(scheduler_pb2.LaneRequest(), timeout=60)).paused)


async def exported(channel: grpc.aio.Channel) -> list[Any]:
    stub = store_pb2_grpc.StoreStub(channel)  # type: ignore[no-untyped-call]
    return [chunk async for chunk in stub.Export(store_pb2.DescribeRequest(), timeout=60)]


async def put_in_stream(channel: grpc.aio.Channel) -> None:
    """A stream without an iterator of requests: they are written later."""
    call = store_pb2_grpc.StoreStub(channel).PutStream()  # type: ignore[no-untyped-call]
    if await call.read() is grpc.aio.EOF:
        return
    raise AssertionError("it has an answer")


@pytest.mark.parametrize("call", [pause, exported, put_in_stream])
@pytest.mark.parametrize("shown", ["", OTHER])
async def test_call_of_a_stranger_is_refused_before_it_reaches_the_service(call: Any, shown: str) -> None:
    async with (
        serving(ClusterSecret(SECRET)) as (inner, address),
        make_channel(address, ClusterCredentials(ClusterSecret(shown))) as channel,
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(channel)
        assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED
        status = rpc_status.from_call(caught.value)
        assert status is not None
        info = error_details_pb2.ErrorInfo.FromString(status.details[0].value)
        assert info.reason == "CLUSTER_SECRET_REFUSED"
        assert SECRET not in str(caught.value)
        # A caller on behalf of a client marks the refusal as the cluster's.
        passed_on = translate(caught.value, "shard 0", "SHARD_UNAVAILABLE")
        assert isinstance(passed_on, Unavailable)
        assert passed_on.reason == "CLUSTER_SECRET_REFUSED"
    assert inner.calls == 0


async def test_call_with_the_secret_passes_by_every_kind_of_channel() -> None:
    secret = ClusterSecret(f"{SECRET},{OTHER}")
    async with serving(secret) as (inner, address):
        async with make_channel(address, ClusterCredentials(secret)) as channel:
            assert await pause(channel)
            assert await exported(channel) == []
            await put_in_stream(channel)
        async with make_channel(address, ClusterCredentials(ClusterSecret(OTHER))) as channel:
            assert await pause(channel)
        method = make_channel(address, ClusterCredentials(secret)).unary_unary("/duetime.v1.Scheduler/PauseLane")
        assert await method(b"", timeout=60, metadata=(("traceparent", "00-x"),))
    assert inner.calls == 5
    with (
        make_blocking_channel("127.0.0.1:1", credentials=ClusterCredentials(secret)) as blocking,
        pytest.raises(grpc.RpcError),
    ):
        blocking.unary_unary("/duetime.v1.Store/Describe")(b"", timeout=0.5)


def test_process_with_a_bad_secret_does_not_start_or_log_it() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DUETIME_")}
    done = subprocess.run(
        [sys.executable, "-m", "tests.core.sample_node"],
        env=environment | {CLUSTER_SECRET_VARIABLE: "tooshort"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "CLUSTER_SECRET: is not 16 characters or more" in done.stderr
    assert "tooshort" not in done.stderr
    assert len(done.stderr.splitlines()) == 1
