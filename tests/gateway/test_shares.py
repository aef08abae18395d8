"""Shares: one host takes all that it can get of a limit, and another one still gets a tenth."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from duetime.v1 import consumer_pb2, gateway_pb2_grpc, leases_pb2, pending_pb2, subscriptions_pb2, transactions_pb2
from duetime_core.serving import make_channel
from duetime_gateway.pending import jobs
from duetime_gateway.rocketmq.wire import messaging_pb2 as pb

from tests.gateway.conftest import Gateway, TappedStore, message, tapped_store
from tests.gateway.test_transactions import prepare
from tests.hosts import GREEDY, OTHER, seen_from
from tests.rocketmq.raw import Raw
from tests.tap import WAIT_S

LIMIT = 20
RECORDS = consumer_pb2.RECEIVE_ENCODING_RECORDS
IDLE, EMPTY = pb.Resource(name="idle"), pb.Resource(name="empty")
CANCEL = pending_pb2.CancelMatchingRequest(filter={"topic": "orders"})
DISCARD = consumer_pb2.EndRetriesRequest(filter={"group": "billing"})


@dataclass
class Host:
    """A client of the gateway, at a host of its own."""

    gateway: Gateway
    tap: TappedStore
    channel: grpc.aio.Channel

    def __post_init__(self) -> None:
        self.stub = gateway_pb2_grpc.GatewayStub(self.channel)
        self.raw = Raw(self.channel, self.gateway.node.port)


@asynccontextmanager
async def host(gateway: Gateway, tap: TappedStore, address: str) -> AsyncIterator[Host]:
    async with seen_from(address, gateway.node.port) as target:
        channel = make_channel(target)
        try:
            yield Host(gateway, tap, channel)
        finally:
            await channel.close()


Open = Callable[[Host], Awaitable[Any]]


async def served(call: Any) -> Any:
    """The call, or None: it is refused for lack of room."""
    with suppress(grpc.aio.AioRpcError):
        async with asyncio.timeout(WAIT_S):
            if await call.read() is not grpc.aio.EOF:
                return call
    assert await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    return None


async def receive_stream(host: Host) -> Any:
    call = host.stub.ReceiveStream()
    asked = consumer_pb2.ReceiveRequest(group="billing", topic="orders")
    await call.write(leases_pb2.ReceiveStreamRequest(subscription=asked, takes=[leases_pb2.Take(number=1)]))
    return await served(call)


async def subscription(host: Host) -> Any:
    call = host.stub.Subscribe()
    await call.write(subscriptions_pb2.SubscribeRequest(credit_bytes=1_000_000, topic="orders", queues=[{"queue": 0}]))
    return await served(call)


async def watcher(host: Host) -> Any:
    call = host.stub.WatchTransactions()
    await call.write(transactions_pb2.WatchTransactionsRequest(group="billing"))
    return await served(call)


async def telemetry(host: Host) -> Any:
    stream = host.raw.telemetry()
    answer = await stream.say(host.raw.producer_settings())
    return stream.call if answer.HasField("settings") else None


async def poll(host: Host) -> Any:
    """A receive by RocketMQ's protocol, of a group that gets nothing."""
    name, before = "duetime_gateway_rocketmq_polls", host.gateway.metric("duetime_gateway_rocketmq_polls")
    call = asyncio.ensure_future(host.raw.frames(wait_ms=30_000, group=IDLE, topic=EMPTY))
    async with asyncio.timeout(WAIT_S):
        while not call.done() and host.gateway.metric(name) == before:
            await host.raw.call("Heartbeat")
    return None if call.done() else call


def job(begin: Callable[[Host], Any]) -> Open:
    async def open_job(host: Host) -> Any:
        requests = host.tap.requests["ListPending"]
        before, call = len(requests), begin(host)
        ended = asyncio.ensure_future(call.read())
        waits = asyncio.ensure_future(host.tap.until(lambda: len(requests) > before))
        await asyncio.wait((ended, waits), return_when=asyncio.FIRST_COMPLETED)
        waits.cancel()
        if not ended.done():
            return call
        with suppress(grpc.aio.AioRpcError):
            await ended
        assert await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        return None

    return open_job


cancel_matching = job(lambda host: host.stub.CancelMatching(CANCEL))
discard_retries = job(lambda host: host.stub.DiscardRetries(DISCARD))


async def fill(open_one: Open, host: Host) -> list[Any]:
    """All that the host can get."""
    found: list[Any] = []
    while len(found) <= LIMIT and (one := await open_one(host)) is not None:
        found.append(one)
    return found


@pytest.mark.parametrize(
    ("open_one", "limit"),
    [
        (receive_stream, "receive_streams_max"),
        (subscription, "subscriptions_max"),
        (watcher, "watchers_max"),
        (telemetry, "rocketmq_streams_max"),
        (poll, "rocketmq_polls_max"),
        (cancel_matching, ""),
        (discard_retries, ""),
    ],
    ids=["receive_stream", "subscription", "watcher", "telemetry", "poll", "cancel_matching", "discard_retries"],
)
async def test_one_host_leaves_a_tenth_to_others(
    tmp_path: Path, tap: TappedStore, monkeypatch: pytest.MonkeyPatch, open_one: Open, limit: str
) -> None:
    monkeypatch.setattr(jobs, "JOBS_MAX", LIMIT)
    settings = {limit: LIMIT} if limit else {}
    async with (
        Gateway(tmp_path, {0: tap.port}, **settings) as gateway,
        host(gateway, tap, GREEDY) as greedy,
        host(gateway, tap, OTHER) as other,
    ):
        await gateway.send(message(queue=0))
        await prepare(gateway, message())
        await gateway.stub.CreateGroup(consumer_pb2.CreateGroupRequest(group={"name": "billing"}))
        await greedy.raw.make_topic("empty")
        tap.hold("ListPending")
        taken = await fill(open_one, greedy)
        assert len(taken) == LIMIT // 2
        assert len(await fill(open_one, other)) >= LIMIT // 10
        taken[0].cancel()
        async with asyncio.timeout(WAIT_S):
            while await open_one(greedy) is None:
                pass
        tap.release()


async def taken(host: Host, group: str) -> list[bytes]:
    """Receipts of all messages that the host can get in the group."""
    found: list[bytes] = []
    with suppress(grpc.aio.AioRpcError):
        while True:
            asked = consumer_pb2.ReceiveRequest(group=group, topic="orders", max_count=100, encoding=RECORDS)
            answer = await host.stub.Receive(asked, timeout=WAIT_S)
            found += [receipt for run in answer.runs for receipt in run.receipts]
            if not answer.runs:
                break
    return found


async def test_one_host_leaves_leases_to_others(tmp_path: Path) -> None:
    async with (
        tapped_store(tmp_path, leases_max=200) as tap,
        Gateway(tmp_path, {0: tap.port}) as gateway,
        host(gateway, tap, GREEDY) as greedy,
        host(gateway, tap, OTHER) as other,
    ):
        await gateway.send(*(message() for _ in range(60)))
        held = {name: await taken(greedy, name) for name in map("group-{}".format, range(30))}
        assert sum(map(len, held.values())) == 100
        assert len(held["group-0"]) == 50
        assert len(await taken(other, "other")) == 50
        assert not await taken(greedy, "group-0")
        await greedy.stub.Ack(consumer_pb2.AckRequest(group="group-0", receipts=held["group-0"]))
        assert len(await taken(greedy, "group-0")) == 10
