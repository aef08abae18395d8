"""Shares: one host takes all that it can get of a limit, and another one still gets a tenth."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from duetime.v1 import (
    consumer_pb2,
    gateway_pb2,
    gateway_pb2_grpc,
    leases_pb2,
    pending_pb2,
    subscriptions_pb2,
    transactions_pb2,
)
from duetime_core.metadata import groups
from duetime_core.rpc.serving import make_channel
from duetime_gateway.face import consumer_service
from duetime_gateway.pending import jobs
from duetime_gateway.rocketmq.wire import messaging_pb2 as pb

from tests.gateway.conftest import Gateway, TappedStore, message, tapped_retry, tapped_store
from tests.gateway.test_transactions import prepare
from tests.hosts import GREEDY, OTHER, seen_from
from tests.rocketmq.raw import Raw
from tests.tap import WAIT_S, Tap

LIMIT = 20
RECORDS = consumer_pb2.RECEIVE_ENCODING_RECORDS
IDLE, EMPTY = pb.Resource(name="idle"), pb.Resource(name="empty")
CANCEL = pending_pb2.CancelMatchingRequest(filter={"topic": "orders"})
REDRIVE = consumer_pb2.RedriveRequest(filter={"group": "billing"})
DISCARD = consumer_pb2.EndRetriesRequest(filter={"group": "billing"})


@dataclass
class Host:
    """A client of the gateway, at a host of its own."""

    gateway: Gateway
    tap: TappedStore
    channel: grpc.aio.Channel
    retry: Tap | None = None

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


POLLS = "duetime_gateway_rocketmq_polls"

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
    before = host.gateway.metric(POLLS)
    call = asyncio.ensure_future(host.raw.frames(wait_ms=30_000, group=IDLE, topic=EMPTY))
    async with asyncio.timeout(WAIT_S):
        while not call.done() and host.gateway.metric(POLLS) == before:
            await host.raw.call("Heartbeat")
    return None if call.done() else call


def job(begin: Callable[[Host], Any], held: str = "ListPending") -> Open:
    async def open_job(host: Host) -> Any:
        tap = host.retry if held == "RedriveDeadLetters" else host.tap
        requests = tap.requests[held]
        before, call = len(requests), begin(host)
        ended = asyncio.ensure_future(call.read())
        waits = asyncio.ensure_future(tap.until(lambda: len(requests) > before))
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
redrive = job(lambda host: host.stub.RedriveDeadLetters(REDRIVE), "RedriveDeadLetters")


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
        (redrive, ""),
    ],
    ids="receive_stream subscription watcher telemetry poll cancel_matching discard_retries redrive".split(),
)
async def test_one_host_leaves_a_tenth_to_others(
    tmp_path: Path, tap: TappedStore, monkeypatch: pytest.MonkeyPatch, open_one: Open, limit: str
) -> None:
    monkeypatch.setattr(jobs, "JOBS_MAX", LIMIT)
    monkeypatch.setattr(consumer_service, "LETTER_JOBS_MAX", LIMIT)
    settings = {limit: LIMIT} if limit else {}
    async with (
        tapped_retry(tmp_path, {0: tap.port}) as retry,
        Gateway(tmp_path, {0: tap.port}, retry_address=retry.address, **settings) as gateway,
        host(gateway, tap, GREEDY) as greedy,
        host(gateway, tap, OTHER) as other,
    ):
        await gateway.send(message(queue=0))
        await prepare(gateway, message())
        await gateway.stub.CreateGroup(consumer_pb2.CreateGroupRequest(group={"name": "billing"}))
        await greedy.raw.make_topic("empty")
        tap.hold("ListPending")
        retry.hold("RedriveDeadLetters")
        greedy.retry = other.retry = retry
        taken = await fill(open_one, greedy)
        assert len(taken) == LIMIT // 2
        assert len(await fill(open_one, other)) >= LIMIT // 10
        polls = gateway.metric(POLLS)
        taken[0].cancel()
        async with asyncio.timeout(WAIT_S):
            while open_one is poll and gateway.metric(POLLS) == polls:
                # The next poll is seen by the gauge: it must not take the place of one that is still counted.
                await other.raw.call("Heartbeat")
            while await open_one(greedy) is None:
                pass
        tap.release()
        retry.release()


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


# --- things that last ---------------------------------------------------------------------------------------------


Made = Callable[[Host, str], Awaitable[Any]]


async def topic(host: Host, name: str) -> None:
    await host.stub.CreateTopic(gateway_pb2.CreateTopicRequest(name=name, queue_count=1))


async def sent_topic(host: Host, name: str) -> None:
    answer = await host.stub.Send(gateway_pb2.SendRequest(messages=[message(topic=name)]), timeout=WAIT_S)
    check(answer.results[0])


async def two_queues(host: Host, name: str) -> None:
    await host.stub.CreateTopic(gateway_pb2.CreateTopicRequest(name=name, queue_count=2))


async def group(host: Host, name: str) -> None:
    await host.stub.CreateGroup(consumer_pb2.CreateGroupRequest(group={"name": name}))


async def receiving_group(host: Host, name: str) -> None:
    await host.stub.Receive(consumer_pb2.ReceiveRequest(group=name, topic="single", max_count=1), timeout=WAIT_S)


async def offset(host: Host, name: str) -> None:
    await host.stub.CommitOffsets(gateway_pb2.CommitOffsetsRequest(group=name, topic="single", queues=[{"queue": 0}]))


async def transaction(host: Host, name: str) -> None:
    asked = transactions_pb2.PrepareRequest(group="billing", messages=[message(id=name)])
    check((await host.stub.Prepare(asked, timeout=WAIT_S)).results[0])


def check(result: Any) -> None:
    if result.HasField("fault"):
        raise Refused(result.fault.reason)


class Refused(Exception):
    """A refusal within an answer."""


async def make(made: Made, host: Host, name: str) -> bool:
    try:
        await made(host, name)
    except (Refused, grpc.aio.AioRpcError) as error:
        refused = error
    else:
        return True
    assert "EXHAUSTED" in str(refused)
    return False


async def make_all(made: Made, host: Host, of: str) -> int:
    """Makes things until one is refused; their number."""
    count = 0
    while count <= LIMIT and await make(made, host, f"{of}{count}"):
        count += 1
    return count


async def delete_topic(host: Host, name: str) -> None:
    await host.stub.DeleteTopic(gateway_pb2.DeleteTopicRequest(name=name, force=True), timeout=WAIT_S)


async def delete_group(host: Host, name: str) -> None:
    await host.stub.DeleteGroup(consumer_pb2.DeleteGroupRequest(name=name, force=True), timeout=WAIT_S)


async def roll_back(host: Host, name: str) -> None:
    listed = await host.stub.ListTransactions(transactions_pb2.ListTransactionsRequest())
    (found,) = [one.transaction_id for one in listed.transactions if one.message_id == name]
    ends = [{"transaction_id": found, "decision": transactions_pb2.DECISION_ROLLBACK}]
    await host.stub.EndTransaction(transactions_pb2.EndTransactionRequest(group="billing", ends=ends), timeout=WAIT_S)


@pytest.mark.parametrize(
    ("made", "end", "settings", "of_store"),
    [
        (topic, delete_topic, {"topics_max": LIMIT + 2}, {}),
        (sent_topic, delete_topic, {"topics_max": LIMIT + 2}, {}),
        (two_queues, delete_topic, {"queues_max": 2 * LIMIT + 5}, {}),
        (group, delete_group, {}, {}),
        (receiving_group, delete_group, {}, {"groups_max": LIMIT}),
        (receiving_group, delete_group, {}, {"group_queues_max": 2 * LIMIT}),
        (offset, delete_group, {}, {"group_queues_max": LIMIT}),
        (transaction, roll_back, {}, {"transactions_max": LIMIT}),
    ],
    ids=["topic", "sent_topic", "queues", "group", "receiving_group", "places", "offsets", "transactions"],
)
async def test_one_host_leaves_lasting_things_to_others(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    made: Made,
    end: Made,
    settings: dict[str, int],
    of_store: dict[str, int],
) -> None:
    monkeypatch.setattr(groups, "GROUPS_MAX", 1_000 if of_store else LIMIT)
    async with (
        tapped_store(tmp_path, **of_store) as tap,
        Gateway(tmp_path, {0: tap.port}, **settings) as gateway,
        host(gateway, tap, GREEDY) as greedy,
        host(gateway, tap, OTHER) as other,
    ):
        # Two topics, of five queues: of a third host.
        await gateway.stub.CreateTopic(gateway_pb2.CreateTopicRequest(name="single", queue_count=1))
        await gateway.send(message(queue=0))
        count = await make_all(made, greedy, "greedy")
        assert LIMIT // 2 <= count <= LIMIT // 2 + 1
        assert await make_all(made, other, "other") >= LIMIT // 10
        await end(greedy, "greedy0")
        async with asyncio.timeout(WAIT_S):
            while not await make(made, greedy, "again"):
                pass
