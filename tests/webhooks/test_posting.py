"""Requests reach permitted addresses only, verify the host's certificate, and are bounded in time and size."""

import asyncio
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from duetime_webhooks.addresses import NetworkRules, parse_networks
from duetime_webhooks.posting import RESPONSE_BYTES_MAX, AddressRefused, NoResponse, Poster

from tests.webhooks.receiver import Answer, Receiver

# Sends a request to a host whose lookup never ends, and closes.
_HANGS = """
import asyncio, socket, threading
from duetime_webhooks.addresses import NetworkRules
from duetime_webhooks.posting import NoResponse, Poster

async def main():
    poster = Poster(NetworkRules(), requests_max=1)
    try:
        await poster.post("paid", "https://hangs.example/", [], b"", 0.1)
    except NoResponse as error:
        print(error)
    await poster.close()

socket.getaddrinfo = lambda *_: threading.Event().wait()
asyncio.run(main())
"""
LOOPBACK = NetworkRules(parse_networks("127.0.0.1"))


@asynccontextmanager
async def posting(rules: NetworkRules = LOOPBACK, **options: Any) -> AsyncIterator[Poster]:
    poster = Poster(rules, **{"requests_max": 16, **options})
    try:
        yield poster
    finally:
        await poster.close()


@pytest.fixture
async def receiver(tmp_path: Path) -> AsyncIterator[Receiver]:
    async with Receiver(tmp_path) as receiver:
        yield receiver


async def post(poster: Poster, url: str, body: bytes = b"{}", timeout_s: float = 60) -> Any:
    return await poster.post("paid", url, [("content-length", str(len(body))), ("x-test", "1")], body, timeout_s)


async def test_request_arrives_over_tls_and_its_connection_is_used_again(receiver: Receiver) -> None:
    receiver.answer = lambda _: Answer(503, (("Retry-After", "7"),), b"later")
    async with posting(ca_file=receiver.ca) as poster:
        found = [await post(poster, receiver.url("/a?b=c"), b"body") for _ in range(3)]
    assert {(one.status, one.retry_after, one.beginning) for one in found} == {(503, "7", b"later")}
    first = receiver.requests[0]
    assert (first.path, first.body, first.headers["x-test"]) == ("/a?b=c", b"body", "1")
    assert first.headers["host"] == f"localhost:{receiver.port}"
    assert receiver.connections == 1


async def test_loopback_is_refused_by_its_resolved_address(receiver: Receiver) -> None:
    async with posting(NetworkRules(), ca_file=receiver.ca) as poster:
        for host in ("localhost", "127.0.0.1", "2130706433", "0x7f.1", "[::1]", "[::ffff:127.0.0.1]"):
            with pytest.raises(AddressRefused, match="loopback"):
                await post(poster, receiver.url(host=host))
    assert receiver.connections == 0


async def test_connection_goes_to_the_checked_address(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second lookup of a hostile name server, with a private address, never happens."""
    lookups = []

    def resolve(host: str, port: int, *_: Any) -> list[Any]:
        lookups.append(host)
        address = "127.0.0.1" if len(lookups) == 1 else "10.0.0.1"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    async with posting(ca_file=receiver.ca) as poster:
        assert (await post(poster, receiver.url())).status == 200
    assert lookups == ["localhost"]


async def test_permitted_addresses_of_a_host_are_used_and_refused_ones_skipped(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def resolve(host: str, port: int, *_: Any) -> list[Any]:
        addresses = ["169.254.169.254", "127.0.0.2", "127.0.0.1", "127.0.0.1"]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port)) for one in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    async with posting(NetworkRules(parse_networks("127.0.0.0/8")), ca_file=receiver.ca) as poster:
        # Nothing listens on the first permitted one.
        assert (await post(poster, receiver.url())).status == 200


async def test_name_server_that_hangs_delays_only_its_own_host(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    released, lookups = threading.Event(), []
    resolve = socket.getaddrinfo

    def hang(host: str, *rest: Any) -> Any:
        lookups.append(host)
        if host == "hangs.example":
            released.wait()
            raise socket.gaierror("no answer")
        return resolve(host, *rest)

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    try:
        async with posting(ca_file=receiver.ca, requests_max=64) as poster:
            hanging = [asyncio.create_task(post(poster, receiver.url(host="hangs.example"))) for _ in range(40)]
            short = post(poster, receiver.url(host="hangs.example"), timeout_s=0.01)
            with pytest.raises(NoResponse, match=r"within 0\.01 s"):
                await short
            assert (await post(poster, receiver.url())).status == 200
            # The end of one request's time has not ended the lookup, and the others share it.
            assert sorted(lookups) == ["hangs.example", "localhost"]
            released.set()
            ended = await asyncio.gather(*hanging, return_exceptions=True)
            assert {str(error) for error in ended} == {"unknown host hangs.example: no answer"}
            with pytest.raises(NoResponse, match="no answer"):
                await post(poster, receiver.url(host="hangs.example"))
            assert lookups.count("hangs.example") == 2
    finally:
        released.set()


def test_process_ends_while_a_name_server_hangs() -> None:
    ended = subprocess.run([sys.executable, "-c", _HANGS], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "no complete response within 0.1 s\n", "")


async def test_each_webhook_has_connections_of_its_own_which_end_with_it(receiver: Receiver) -> None:
    async with posting(ca_file=receiver.ca) as poster:
        await poster.divide(["paid", "other"])
        for webhook in ("paid", "other", "paid", "other"):
            await poster.post(webhook, receiver.url(), [("content-length", "0")], b"", 60)
        assert receiver.connections == 2
        await poster.divide(["paid"])
        await receiver.until_open(1)
        assert (await post(poster, receiver.url())).status == 200
        assert receiver.connections == 2
        receiver.answer = lambda _: Answer(hangs=True)
        hanging = asyncio.create_task(poster.post("other", receiver.url(), [("content-length", "0")], b"", 60))
        await receiver.until(6)
        # A request in progress keeps its connection.
        await poster.divide(["paid"])
        assert not hanging.done()
        hanging.cancel()
        await asyncio.wait({hanging})


async def test_redirects_are_not_followed(receiver: Receiver) -> None:
    receiver.answer = lambda _: Answer(307, (("location", receiver.url("/other")),))
    async with posting(ca_file=receiver.ca) as poster:
        assert (await post(poster, receiver.url())).status == 307
    assert [one.path for one in receiver.requests] == ["/hook"]


async def test_certificate_must_be_trusted_and_name_the_host(receiver: Receiver) -> None:
    async with posting() as poster:
        with pytest.raises(NoResponse, match="certificate verify failed"):
            await post(poster, receiver.url())
    async with posting(ca_file=receiver.ca) as poster:
        with pytest.raises(NoResponse, match="certificate"):
            await post(poster, receiver.url(host="127.0.0.1"))
    assert receiver.requests == []


async def test_http_takes_a_setting() -> None:
    async with Receiver() as receiver:
        async with posting() as poster:
            with pytest.raises(AddressRefused, match="http is not permitted"):
                await post(poster, receiver.url())
        async with posting(allow_http=True) as poster:
            assert (await post(poster, receiver.url())).status == 200
    assert len(receiver.requests) == 1


async def test_receiver_that_does_not_answer_ends_with_the_timeout(receiver: Receiver) -> None:
    receiver.answer = lambda _: Answer(hangs=True)
    async with posting(ca_file=receiver.ca) as poster:
        with pytest.raises(NoResponse, match="no complete response within"):
            await post(poster, receiver.url(), timeout_s=0.5)


async def test_endless_response_is_read_to_a_limit(receiver: Receiver) -> None:
    receiver.answer = lambda _: Answer(500, endless=True)
    async with posting(ca_file=receiver.ca) as poster:
        found = await post(poster, receiver.url())
    assert (found.status, len(found.beginning)) == (500, 512)
    assert RESPONSE_BYTES_MAX < 1 << 20


async def test_requests_beyond_the_limit_wait(receiver: Receiver) -> None:
    receiver.answer = lambda _: Answer(hangs=len(receiver.requests) < 2)
    async with posting(ca_file=receiver.ca, requests_max=2) as poster:
        hanging = [asyncio.create_task(post(poster, receiver.url())) for _ in range(2)]
        await receiver.until(2)
        waiting = asyncio.create_task(post(poster, receiver.url()))
        await asyncio.wait({waiting}, timeout=0.1)
        assert len(receiver.requests) == 2
        hanging[0].cancel()
        assert (await waiting).status == 200
        hanging[1].cancel()
        await asyncio.gather(*hanging, return_exceptions=True)


async def test_no_listener_and_no_host_are_told_without_the_path() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        async with posting(allow_http=True) as poster:
            with pytest.raises(NoResponse) as no_listener:
                await post(poster, f"http://127.0.0.1:{port}/secret")
            with pytest.raises(NoResponse, match="unknown host nowhere") as no_host:
                await post(poster, "http://nowhere.invalid/secret")
    for error in (no_listener, no_host):
        assert "secret" not in str(error.value)
        assert str(error.value)


async def test_receiver_that_speaks_no_http_is_no_response() -> None:
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-server\r\n\r\n")
        await reader.read()
        writer.close()
        await writer.wait_closed()
        ended.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with posting(allow_http=True) as poster:
        with pytest.raises(NoResponse):
            await post(poster, f"http://127.0.0.1:{port}/")
    await ended.wait()
    server.close()
