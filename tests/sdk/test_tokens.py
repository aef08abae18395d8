"""Clients show their token in every call, and never where others could read it."""

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from duetime import (
    AsyncDeadLetters,
    AsyncFinder,
    AsyncProducer,
    AsyncPuller,
    AsyncReceiver,
    Consumer,
    DeadLetters,
    Finder,
    InvalidArgument,
    PermissionDenied,
    Producer,
    Puller,
    Receiver,
    Token,
    Unauthenticated,
)
from duetime.client import tokens
from duetime.client.connection import GatewayConnection
from duetime.v1 import gateway_pb2
from duetime_core.errors import DueTimeError
from duetime_core.errors import PermissionDenied as Denied
from duetime_core.errors import Unauthenticated as Unknown
from duetime_core.rpc.serving import status_of

# Makes each kind of client for a server and a token.
CLIENTS = [
    lambda server, token: AsyncProducer(server, token=token),
    lambda server, token: Producer(server, token=token),
    lambda server, token: AsyncPuller(server, "orders", token=token),
    lambda server, token: Puller(server, "orders", token=token),
    lambda server, token: AsyncReceiver(server, "orders", group="billing", token=token),
    lambda server, token: Receiver(server, "orders", group="billing", token=token),
    lambda server, token: AsyncFinder(server, token=token),
    lambda server, token: Finder(server, token=token),
    lambda server, token: AsyncDeadLetters(server, "billing", token=token),
    lambda server, token: DeadLetters(server, "billing", token=token),
    lambda server, token: Consumer(server, group="billing", token=token),
]


class Porter(grpc.GenericRpcHandler):
    """A server that records the credentials of each call, and gives scripted answers."""

    def __init__(self) -> None:
        self.shown: list[tuple[str, str]] = []
        self.error: DueTimeError = Unknown("the token is not valid", reason="TOKEN_INVALID")
        self.port = 0

    def service(self, details: Any) -> Any:
        found = dict(details.invocation_metadata).get("authorization", "")
        self.shown.append((details.method.rpartition("/")[2], found))

        async def refuse(requests: Any, context: Any) -> None:
            await context.abort_with_status(status_of(self.error))

        return grpc.stream_stream_rpc_method_handler(refuse)

    async def __aenter__(self) -> "Porter":
        self._server = grpc.aio.server()
        self._server.add_generic_rpc_handlers([self])
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop(0)


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (tokens.TOKEN_VARIABLE, tokens.TOKEN_FILE_VARIABLE, tokens.IN_PLAIN_VARIABLE):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
async def porter() -> AsyncIterator[Porter]:
    async with Porter() as made:
        yield made


async def ask(porter: Porter, token: Any = None) -> None:
    """One call, which is refused."""
    connection = GatewayConnection(f"127.0.0.1:{porter.port}", token)
    try:
        await connection.call("ListTopics", gateway_pb2.ListTopicsRequest(), 10)
    except Unauthenticated:
        return
    finally:
        await connection.close()


async def test_calls_and_streams_show_the_token(porter: Porter) -> None:
    async with AsyncProducer(f"127.0.0.1:{porter.port}", token="t0ken") as producer:
        with pytest.raises(Unauthenticated) as caught:
            await producer.send("orders", b"body")
        assert caught.value.reason == "TOKEN_INVALID"
        with pytest.raises(Unauthenticated):
            await producer.send_batch("orders", [b"a", b"b"])
    async with AsyncReceiver(f"127.0.0.1:{porter.port}", "orders", group="billing", token="t0ken") as receiver:
        with pytest.raises(Unauthenticated):
            await receiver.receive(wait="0s")
    puller = AsyncPuller(f"127.0.0.1:{porter.port}", "orders", token="t0ken")
    with pytest.raises(Unauthenticated):
        await puller.open()
    await puller.close()
    methods = {method for method, _ in porter.shown}
    assert {"SendStream", "Send", "SendBatch", "ReceiveStream", "DescribeTopic"} <= methods
    assert {shown for _, shown in porter.shown} == {"Bearer t0ken"}


async def test_call_without_a_right_is_an_error_of_its_own(porter: Porter) -> None:
    porter.error = Denied("user shop has no right", reason="RIGHT_MISSING")
    async with AsyncProducer(f"127.0.0.1:{porter.port}", token="t0ken") as producer:
        with pytest.raises(PermissionDenied) as caught:
            await producer.send("orders", b"body")
        assert (caught.value.reason, caught.value.retriable) == ("RIGHT_MISSING", False)


@pytest.mark.parametrize("error", [Unknown("?", reason="TOKEN_INVALID"), Denied("no right", reason="RIGHT_MISSING")])
async def test_consumer_that_is_refused_ends_with_the_error(porter: Porter, error: DueTimeError) -> None:
    porter.error = error
    consumer = Consumer(f"127.0.0.1:{porter.port}", group="billing", token="t0ken")
    consumer.handler("orders")(print)
    with pytest.raises((Unauthenticated, PermissionDenied)) as caught:
        await consumer.run_async()
    assert caught.value.reason == error.reason


async def test_function_is_asked_for_each_call(porter: Porter) -> None:
    given = iter(["first", "second", "third"])
    connection = GatewayConnection(f"127.0.0.1:{porter.port}", lambda: next(given))
    for _ in range(2):
        with pytest.raises(Unauthenticated):
            await connection.call("ListTopics", gateway_pb2.ListTopicsRequest(), 10)
    assert [shown for _, shown in porter.shown] == ["Bearer first", "Bearer second"]
    await connection.close()


async def test_function_that_fails_is_an_error_of_the_call(porter: Porter) -> None:
    def fail() -> str:
        raise OSError("no such file")

    async with AsyncProducer(f"127.0.0.1:{porter.port}", token=fail) as producer:
        with pytest.raises(Unauthenticated) as caught:
            await producer.send("orders", b"body")
    assert caught.value.reason == "TOKEN_UNREADABLE"
    assert porter.shown == []


async def test_missing_token_file_is_named(porter: Porter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "shop.token"
    monkeypatch.setenv("DUETIME_TOKEN_FILE", str(path))
    async with AsyncProducer(f"127.0.0.1:{porter.port}") as producer:
        with pytest.raises(Unauthenticated, match=f"can't read the token: {path}: no such file or directory"):
            await producer.send("orders", b"body")


async def test_variables_give_a_token_and_an_argument_goes_first(
    porter: Porter, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "token"
    path.write_text("of-the-file\n")
    monkeypatch.setenv(tokens.TOKEN_FILE_VARIABLE, str(path))
    await ask(porter)
    monkeypatch.setenv(tokens.TOKEN_VARIABLE, "of-the-variable")
    await ask(porter)
    await ask(porter, "of-the-argument")
    shown = [shown for _, shown in porter.shown]
    assert shown == ["Bearer of-the-file", "Bearer of-the-variable", "Bearer of-the-argument"]


async def test_file_that_is_replaced_is_read_again(
    porter: Porter, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "token"
    path.write_text("old")
    monkeypatch.setenv(tokens.TOKEN_FILE_VARIABLE, str(path))
    monkeypatch.setattr(tokens, "FILE_FRESH_S", -1.0)
    connection = GatewayConnection(f"127.0.0.1:{porter.port}")
    for text in ("old", "new"):
        other = tmp_path / "other"
        other.write_text(text)
        os.replace(other, path)
        with pytest.raises(Unauthenticated):
            await connection.call("ListTopics", gateway_pb2.ListTopicsRequest(), 10)
    assert [shown for _, shown in porter.shown] == ["Bearer old", "Bearer new"]
    await connection.close()


async def test_without_a_token_nothing_is_shown(porter: Porter) -> None:
    await ask(porter)
    assert porter.shown == [("ListTopics", "")]


@pytest.mark.parametrize("make", CLIENTS)
@pytest.mark.parametrize("server", ["db.example:9800", "10.0.0.1:9800", "0.0.0.0:9800", "[2001:db8::1]:9800"])
def test_token_is_not_shown_to_other_machines_in_plain(make: Any, server: str) -> None:
    with pytest.raises(InvalidArgument, match="plain text, which others can read"):
        make(server, "t0ken")
    make(server, Token("t0ken", in_plain=True))


@pytest.fixture(params=["localhost:1", "127.0.0.1:1", "127.9.9.9:1", "[::1]:1"])
def this_machine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("make", CLIENTS)
def test_token_is_shown_to_this_machine(make: Any, this_machine: str) -> None:
    make(this_machine, "t0ken")


def test_variable_allows_plain_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(tokens.TOKEN_VARIABLE, "t0ken")
    for text in ("", "0"):
        monkeypatch.setenv(tokens.IN_PLAIN_VARIABLE, text)
        with pytest.raises(InvalidArgument):
            GatewayConnection("db.example:9800")
    monkeypatch.setenv(tokens.IN_PLAIN_VARIABLE, "1")
    GatewayConnection("db.example:9800")


@pytest.mark.parametrize("text", ["", "with a blank", "line\nbreak", "ümlaut", "x" * 20_000])
def test_invalid_token_is_refused_and_not_shown(text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        GatewayConnection("localhost:9800", text)
    assert not text or text not in str(caught.value)
    assert "t0ken" not in repr(Token("t0ken"))
