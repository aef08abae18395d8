"""Checks of every request: hosts, other sites, sizes, headers, and forms of the console itself."""

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest
from duetime_console.border import Body, BodyMemoryExhausted
from duetime_console.pages.signing import _after
from duetime_core.limits.shares import Shares
from duetime_core.testing import Cluster
from starlette.types import Message

from tests.console.console import running


async def test_pages_are_shown_without_sign_in_where_the_cluster_has_no_users() -> None:
    async with Cluster(within=True) as cluster, running(cluster.address) as browser:
        answer = await browser.get("/")
        assert answer.status_code == 200
        assert "<h1>Now and next</h1>" in answer.text
        assert "script-src 'self'" in answer.headers["content-security-policy"]
        cookie = answer.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie


async def test_requests_of_other_sites_and_names_are_refused() -> None:
    async with Cluster(within=True) as cluster, running(cluster.address) as browser:
        assert (await browser.get("/", headers={"host": "evil.example"})).status_code == 421
        for headers in ({"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"}):
            assert (await browser.client.post("/sign-out", headers=headers)).status_code == 403
        assert (await browser.client.post("/sign-out", data={"csrf": "guess"})).status_code == 403
        assert (await browser.post("/sign-out", page="/")).status_code == 303


async def test_invalid_hosts_and_addresses_are_rejected() -> None:
    async with running("127.0.0.1:1") as browser:
        for host in ("[", "[::1", "a b", "localhost:x", "localhost/", "localhost?", "a@localhost", "localhost:123456"):
            assert (await browser.get("/healthz", headers={"host": host})).status_code == 400, host
        for host in ("localhost", "LOCALHOST:1", "127.0.0.1:9880", "[::1]:9880"):
            assert (await browser.get("/healthz", headers={"host": host})).status_code == 200, host
        for origin in ("http://[", "null"):
            assert (await browser.client.post("/sign-out", headers={"origin": origin})).status_code == 403
    assert _after("//[") == "/"


async def test_bodies_share_the_memory_for_bodies() -> None:
    bodies: Shares[str] = Shares(1_000, 500, 100)

    async def receive() -> Message:
        return {"type": "http.request", "body": b"x" * 400, "more_body": True}

    first, second, other = (Body(receive, bodies, host) for host in ("a", "a", "b"))
    await first.receive()
    with pytest.raises(BodyMemoryExhausted):
        await second.receive()
    await other.receive()
    first.release()
    await second.receive()
    for one in (second, other):
        one.release()
    assert bodies.used == 0


async def test_large_requests_are_refused() -> None:
    async with Cluster(within=True) as cluster, running(cluster.address) as browser:
        large = b"x" * (8 * 1024 * 1024 + 1)
        assert (await browser.client.post("/sign-in", content=large)).status_code == 413

        async def pieces() -> AsyncIterator[bytes]:
            for _ in range(9):
                yield b"x" * 1024 * 1024

        await browser.get("/sign-in")
        form = {"content-type": "application/x-www-form-urlencoded"}
        assert (await browser.client.post("/sign-in", content=pieces(), headers=form)).status_code == 413


async def test_an_unavailable_gateway_is_reported() -> None:
    async with running("127.0.0.1:1") as browser:
        answer = await browser.get("/")
        assert answer.status_code == 503
        assert "does not answer" in answer.text
        assert (await browser.get("/healthz")).status_code == 200
        assert (await browser.get("/no-such-page")).status_code == 404


async def test_bodies_are_sent_before_headers_are_acknowledged() -> None:
    """Else a body waits 40 ms for the acknowledgement."""
    async with Cluster(within=True) as cluster, running(cluster.address) as browser:
        address = browser.client.base_url
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
        await reader.readuntil(b"\r\n\r\nserving\n")
        sockets = [one.transport.get_extra_info("socket") for one in browser.console._server.server_state.connections]
        assert writer.get_extra_info("sockname") in [one.getpeername() for one in sockets]
        assert all(one.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) for one in sockets)
        writer.close()
