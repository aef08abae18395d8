"""A revoked right ends at every gateway within seconds, for streams and waiting calls too."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from duetime.v1 import consumer_pb2, gateway_pb2, leases_pb2, subscriptions_pb2
from duetime_core.metadata import users as table
from duetime_gateway.access import book, gatekeeper

from tests.gateway.conftest import Gateway, error_of, message, real_store, request
from tests.gateway.people import People, reason_of, shown

# The documented limit of a change, and the deadline of tests: a busy machine may be slower.
PROMISED_MS = 5_000
WITHIN_S = 60
READS = ("receive topic orders", "receive group billing*")


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'meta.db'}" if request.param == "sqlite" else request.getfixturevalue("postgres_url")


@asynccontextmanager
async def gateways(root: Path, url: str, count: int = 2, **settings: Any) -> AsyncIterator[list[Gateway]]:
    """Gateways of one cluster, with a topic `orders` that has a message."""
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(real_store(root))
        stores, values = {0: store.port}, {"database_url": url, "auth": "required", **settings}
        yield [await stack.enter_async_context(Gateway(root, stores, **values)) for _ in range(count)]


def subscribed(gateway: Gateway, metadata: Any) -> Any:
    async def requests() -> AsyncIterator[subscriptions_pb2.SubscribeRequest]:
        queues = [subscriptions_pb2.SubscribedQueue(queue=0, offset=0)]
        yield subscriptions_pb2.SubscribeRequest(topic="orders", queues=queues, credit_bytes=1024 * 1024)
        await asyncio.Event().wait()

    return gateway.stub.Subscribe(requests(), metadata=metadata)


def receiving(gateway: Gateway, metadata: Any, group: str) -> Any:
    """A stream that is given the message, and waits for another."""

    async def requests() -> AsyncIterator[leases_pb2.ReceiveStreamRequest]:
        subscription = consumer_pb2.ReceiveRequest(topic="orders", group=group, invisible_ms=60_000)
        takes = [leases_pb2.Take(number=number, max_count=1, wait_ms=30_000) for number in (1, 2)]
        yield leases_pb2.ReceiveStreamRequest(subscription=subscription, takes=takes)
        await asyncio.Event().wait()

    return gateway.stub.ReceiveStream(requests(), metadata=metadata)


def polling(gateway: Gateway, metadata: Any) -> Any:
    pull = gateway_pb2.PullRequest(topic="orders", queue=0, offset=1, wait_ms=30_000)
    return gateway.stub.Pull(pull, metadata=metadata)


async def end_of(call: Any) -> grpc.aio.AioRpcError:
    """The status with which a stream ends, or a call that waits."""
    return await error_of(_all(call) if hasattr(call, "read") else call)


async def _all(stream: Any) -> None:
    while await stream.read() is not grpc.aio.EOF:
        pass


def test_reads_and_checks_of_a_change_keep_its_limit() -> None:
    assert book.PERIOD_MS + gatekeeper.LOOK_MS <= PROMISED_MS / 2


async def test_revoked_user_is_out_at_every_gateway(tmp_path: Path, database_url: str) -> None:
    async with People(database_url) as people, gateways(tmp_path, database_url) as both:
        admin, lost = shown(await people.add("ops", "admin")), shown(await people.add("shop", *READS))
        other = shown(await people.add("other", *READS))
        await both[0].stub.Send(request(message(queue=0)), metadata=admin, timeout=60)
        calls: list[Any] = []
        for number, gateway in enumerate(both):
            received = receiving(gateway, lost, f"billing{number}")
            streams = [subscribed(gateway, lost), received, subscribed(gateway, other)]
            for stream in streams:
                assert await stream.read() is not grpc.aio.EOF
            calls += streams
        polls = [polling(gateway, lost) for gateway in both]
        ends = [asyncio.ensure_future(end_of(call)) for call in (*calls[0:2], *calls[3:5], *polls)]
        # The polls are being served once calls that came after them are answered.
        for gateway in both:
            await gateway.stub.ListTopics(gateway_pb2.ListTopicsRequest(), metadata=lost, timeout=60)
        await people.revoke("shop")
        statuses = await asyncio.wait_for(asyncio.gather(*ends), WITHIN_S)
        assert [one.code() for one in statuses] == [grpc.StatusCode.UNAUTHENTICATED] * 6
        assert {reason_of(one) for one in statuses} == {"USER_REVOKED"}
        for gateway in both:
            asked = gateway.stub.ListTopics(gateway_pb2.ListTopicsRequest(), metadata=lost, timeout=60)
            refused = await error_of(asked)
            assert refused.code() is grpc.StatusCode.UNAUTHENTICATED
            assert gateway.metric("duetime_gateway_calls_ended_total", reason="user_revoked") == 3
        assert not any(one.done() for one in (calls[2], calls[5]))
        for one in (calls[2], calls[5]):
            one.cancel()


async def test_lost_right_ends_the_users_streams(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'meta.db'}"
    async with People(url) as people, gateways(tmp_path, url, 1) as (gateway,):
        admin = shown(await people.add("ops", "admin"))
        user = shown(await people.add("shop", *READS, "send topic other"))
        await gateway.stub.Send(request(message(queue=0)), metadata=admin, timeout=60)
        stream = subscribed(gateway, user)
        assert await stream.read() is not grpc.aio.EOF
        # Another right ends nothing: the new right works, and the stream stays open.
        await people.give("shop", ["manage topic new"])
        new = gateway_pb2.CreateTopicRequest(name="new")
        async with asyncio.timeout(WITHIN_S):
            while await _code(gateway.stub.CreateTopic(new, metadata=user)) != "OK":
                pass
        assert not stream.done()
        await people.take("shop", READS[0])
        status = await asyncio.wait_for(end_of(stream), WITHIN_S)
        assert (status.code(), reason_of(status)) == (grpc.StatusCode.UNAVAILABLE, "RIGHTS_CHANGED")
        again = await end_of(subscribed(gateway, user))
        assert (again.code(), reason_of(again)) == (grpc.StatusCode.PERMISSION_DENIED, "RIGHT_MISSING")


async def _code(call: Any) -> str:
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return str(error.code().name)
    return "OK"


async def test_deleted_token_and_deleted_user_are_not_valid(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'meta.db'}"
    async with People(url) as people, gateways(tmp_path, url, 1) as (gateway,):
        admin = shown(await people.add("ops", "admin"))
        tokens = {name: await people.add(name, *READS) for name in ("first", "second")}
        await gateway.stub.Send(request(message(queue=0)), metadata=admin, timeout=60)
        streams = [subscribed(gateway, shown(token)) for token in tokens.values()]
        for stream in streams:
            assert await stream.read() is not grpc.aio.EOF
        await people.change(lambda session: table.revoke_token(session, "first", tokens["first"].id))
        await people.change(lambda session: table.delete_user(session, "second"))
        statuses = await asyncio.wait_for(asyncio.gather(*map(end_of, streams)), WITHIN_S)
        assert [reason_of(one) for one in statuses] == ["TOKEN_INVALID"] * 2


async def test_new_token_counts_at_once(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'meta.db'}"
    async with People(url) as people, gateways(tmp_path, url, 1) as (gateway,):
        for number in range(3):
            token = await people.add(f"user-{number}", "send topic orders")
            answer = await gateway.stub.Send(request(message()), metadata=shown(token), timeout=60)
            assert not answer.results[0].HasField("fault")


async def test_database_outage_affects_only_unknown_users(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'meta.db'}"
    async with People(url) as people, gateways(tmp_path, url, 1) as (gateway,):
        known, seen = await people.add("shop", "send topic orders"), await people.add("seen", "send topic orders")
        await gateway.stub.Send(request(message()), metadata=shown(known), timeout=60)
        (tmp_path / "meta.db").rename(tmp_path / "away.db")
        new = "dt_aaaaaaaaaaaa_" + "a" * 52
        refused = await error_of(gateway.stub.Send(request(message()), metadata=shown(new), timeout=60))
        assert (refused.code(), reason_of(refused)) == (grpc.StatusCode.UNAVAILABLE, "RIGHTS_UNKNOWN")
        # Also one whose token was never shown here: it was read with all others.
        for token in (known, seen):
            answer = await gateway.stub.Send(request(message()), metadata=shown(token), timeout=60)
            assert not answer.results[0].HasField("fault")
        (tmp_path / "away.db").rename(tmp_path / "meta.db")
