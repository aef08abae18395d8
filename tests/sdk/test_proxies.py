"""An HTTP proxy in the environment: a server on this machine is reached directly, and errors name the proxy."""

import socket
from collections.abc import Iterator

import pytest
from duetime import AsyncProducer, Unavailable
from duetime.client.connection import resolve_server
from duetime.client.proxies import EXEMPTIONS, VARIABLES, proxy_of
from duetime_core.rpc.serving import make_channel
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.sdk.gateway import Gateway


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a dead proxy."""
    for name in (*VARIABLES, *EXEMPTIONS):
        monkeypatch.delenv(name, raising=False)
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{held.getsockname()[1]}"
        monkeypatch.setenv("http_proxy", address)
        yield address


async def test_a_server_on_this_machine_needs_no_proxy(tap: Gateway, topic: str, proxy: str) -> None:
    async with AsyncProducer(tap.address) as producer:
        assert (await producer.send(topic, b"x")).offset == 0


async def test_nodes_reach_each_other_without_the_proxy(tap: Gateway, proxy: str) -> None:
    async with make_channel(tap.nodes.address) as channel:
        answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=60)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


@pytest.mark.usefixtures("quick")
async def test_the_error_of_an_unreachable_server_names_the_proxy(proxy: str) -> None:
    async with AsyncProducer("shop.invalid:9800", timeout="500ms") as producer:
        with pytest.raises(Unavailable, match=f"through the proxy of http_proxy={proxy}"):
            await producer.send("orders", b"x")


@pytest.mark.parametrize(
    ("environment", "server", "expected"),
    [
        ({}, "shop.test:9800", ""),
        ({"http_proxy": "http://p:1"}, "shop.test:9800", "http_proxy=http://p:1"),
        ({"http_proxy": "http://p:1", "grpc_proxy": "http://q:2"}, "shop.test:9800", "grpc_proxy=http://q:2"),
        ({"https_proxy": "http://me:secret@p:1"}, "shop.test:9800", "https_proxy=http://p:1"),
        ({"http_proxy": "http://p:1", "no_proxy": "other,.test"}, "shop.test:9800", ""),
        ({"http_proxy": "http://p:1", "no_proxy": "other", "no_grpc_proxy": "shop.test"}, "shop.test:9800", ""),
        ({"http_proxy": "http://p:1"}, "localhost:9800", ""),
        ({"http_proxy": "http://p:1"}, "[::1]:9800", ""),
        ({"HTTP_PROXY": "http://p:1"}, "shop.test:9800", ""),
    ],
)
def test_the_proxy_is_the_one_that_grpc_takes(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], server: str, expected: str
) -> None:
    for name in (*VARIABLES, *EXEMPTIONS):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert proxy_of(server) == expected


@pytest.mark.parametrize("server", ["localhost", "shop.test", "127.0.0.1", "[::1]"])
def test_a_host_without_a_port_has_the_usual_one(server: str) -> None:
    assert resolve_server(server) == f"{server}:9800"
