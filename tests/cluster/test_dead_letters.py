"""Dead letters through the whole cluster: gateways, stores and a retry service, on a fake clock."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from duetime import AsyncDeadLetters, AsyncProducer, Message, NotFound, Unavailable
from duetime.v1 import consumer_pb2, gateway_pb2_grpc
from duetime_core.rpc.serving import make_channel
from duetime_core.testing import Cluster, FakeClock
from duetime_format import record
from duetime_format.properties import encode_properties

from tests.cluster.test_golden import NAMES
from tests.cluster.test_promises import ids, stored
from tests.format import golden

GROUP, TOPIC = "billing", "orders"
RETRY = f"%RETRY%{GROUP}"
OK = consumer_pb2.RECEIPT_STATUS_OK


class Running:
    """A cluster, and a group whose handler fails on demand."""

    def __init__(self, cluster: Cluster, producer: AsyncProducer, letters: AsyncDeadLetters, stub: Any) -> None:
        self.cluster = cluster
        self.producer = producer
        self.letters = letters
        self.stub = stub

    async def send(self, count: int, **fields: Any) -> list[str]:
        messages = [Message(TOPIC, b"%d" % n, keys=[f"key{n}"], id=f"id{n}", **fields) for n in range(count)]
        receipts = await self.producer.send_many(messages)
        return [receipt.message_id for receipt in receipts]

    async def receive(self, most: int = 10_000) -> list[consumer_pb2.LeasedMessage]:
        """All that can be received now."""
        found: list[consumer_pb2.LeasedMessage] = []
        request = consumer_pb2.ReceiveRequest(group=GROUP, topic=TOPIC, max_count=512)
        while len(found) < most:
            answer = await self.stub.Receive(request, timeout=60)
            if not answer.messages:
                break
            found += answer.messages
        return found

    async def reject(self, messages: Sequence[consumer_pb2.LeasedMessage], kind: str = "ValueError") -> None:
        error = consumer_pb2.HandlerError(type=kind, message="the Bank is away", trace="line 1")
        nacks = [consumer_pb2.Nack(receipt=one.receipt, reject=True, error=error) for one in messages]
        answer = await self.stub.Nack(consumer_pb2.NackRequest(group=GROUP, nacks=nacks), timeout=60)
        assert all(one.status == OK and one.dead for one in answer.results)

    async def kill(self, count: int, **fields: Any) -> list[str]:
        """Turns messages into dead letters; returns their ids."""
        sent = await self.send(count, **fields)
        messages = await self.receive()
        assert sorted(one.message.id for one in messages) == sorted(sent)
        await self.reject(messages)
        return sent

    async def listed(self, **wanted: Any) -> list[str]:
        return [letter.id async for letter in self.letters.list(**wanted)]

    def copies(self) -> list[str]:
        """Ids of all that was ever put into the retry topic."""
        return [one for shard in range(len(self.cluster.stores)) for one in ids(stored(self.cluster, RETRY, shard))]


@pytest.fixture(params=[1, 2], ids=["one shard", "two shards"])
async def running(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Running]:
    async with (
        Cluster(tmp_path, shards=request.param) as cluster,
        AsyncProducer(cluster.address) as producer,
        AsyncDeadLetters(cluster.address, GROUP) as letters,
    ):
        channel = make_channel(cluster.address)
        yield Running(cluster, producer, letters, gateway_pb2_grpc.GatewayStub(channel))
        await channel.close()


async def test_a_dead_letter_shows_its_life(running: Running) -> None:
    with pytest.raises(NotFound, match="group billing does not exist"):
        await running.listed()
    await running.stub.CreateGroup(consumer_pb2.CreateGroupRequest(group=consumer_pb2.Group(name=GROUP)), timeout=60)
    assert await running.listed() == []
    await running.kill(1, tags="paid", properties={"color": "red"})
    (letter,) = [one async for one in running.letters.list()]
    assert (letter.id, letter.topic, letter.body, letter.tags, letter.keys) == ("id0", TOPIC, b"0", "paid", ["key0"])
    assert (letter.properties, letter.reason, letter.redriven_count) == ({"color": "red"}, "REJECTED", 0)
    (attempt,) = letter.attempts
    assert (attempt.attempt, attempt.error_type, attempt.error_message) == (1, "ValueError", "the Bank is away")
    assert attempt.trace == "line 1"
    assert attempt.failed_at is not None
    assert attempt.failed_at <= letter.dead_at
    assert letter.error == "ValueError: the Bank is away"


async def test_filters_select_named_messages(running: Running) -> None:
    await running.kill(20)
    assert len(await running.listed()) == 20
    assert await running.listed(key="key7") == ["id7"]
    assert sorted(await running.listed(ids=["id3", "id4", "x"])) == ["id3", "id4"]
    assert len(await running.listed(error="valueerror: the bank", topic=TOPIC)) == 20
    assert await running.listed(topic="other") == []
    first = min([letter.dead_at async for letter in running.letters.list()])
    assert len(await running.listed(start=first)) == 20
    await running.cluster.advance("1m")
    await running.reject([await leased(running, "late")], "TimeoutError")
    assert await running.listed(error="timeout") == ["late"]
    assert "late" not in await running.listed(end=first)
    assert await running.listed(start=first.replace(year=first.year + 1)) == []


async def leased(running: Running, message_id: str) -> consumer_pb2.LeasedMessage:
    await running.producer.send(TOPIC, b"body", id=message_id)
    (message,) = await running.receive()
    return message


@pytest.mark.timeout(120)
async def test_an_aborted_redrive_resumes_and_doubles_nothing(running: Running) -> None:
    """The retry service stops in the middle, is started again, and two redrives race for the rest."""
    sent = await running.kill(200)
    with pytest.raises(Unavailable):
        await redrive_until_stopped(running)
    done = len(running.copies())
    assert 20 <= done < 200
    await running.cluster.start_retry()
    results = await asyncio.gather(everything(running), everything(running))
    assert Counter(outcome for one in results for _, outcome in one)["redriven"] == 200 - done
    assert sorted(running.copies()) == sorted(sent)
    assert await running.listed() == []
    again = await running.receive()
    assert sorted(one.message.id for one in again) == sorted(sent)
    assert {(one.message.topic, one.attempt) for one in again} == {(TOPIC, 1)}


async def redrive_until_stopped(running: Running) -> None:
    redriven = 0
    async for result in running.letters.redrive(rate=50):
        assert result.outcome == "redriven"
        redriven += 1
        if redriven == 20:
            await running.cluster.stop_node(running.cluster.retry)
        elif redriven < 20:
            asyncio.get_running_loop().call_soon(running.cluster.clock.move, 20)


async def everything(running: Running) -> list[tuple[str, str]]:
    """Tries until the gateway has found the retry service again."""
    while True:
        try:
            return [(one.id, one.outcome) async for one in running.letters.redrive()]
        except Unavailable:
            continue


async def test_a_second_failure_keeps_the_history(running: Running) -> None:
    await running.kill(3)
    for count in (1, 2):
        await running.cluster.advance("1m")
        assert [one.outcome async for one in running.letters.redrive()] == ["redriven"] * 3
        again = await running.receive()
        assert [one.attempt for one in again] == [1] * 3
        await running.reject(again, f"Error{count}")
        letters = [one async for one in running.letters.list()]
        assert sorted(one.id for one in letters) == ["id0", "id1", "id2"]
        for letter in letters:
            assert letter.redriven_count == count
            assert [one.attempt for one in letter.attempts] == list(range(1, count + 2))
            assert letter.attempts[0].error_type == "ValueError"
            assert letter.error == f"Error{count}: the Bank is away"
            assert letter.topic == TOPIC


async def test_an_ordered_group_gets_its_redriven_messages(running: Running) -> None:
    group = consumer_pb2.Group(name=GROUP, ordered=True)
    await running.stub.CreateGroup(consumer_pb2.CreateGroupRequest(group=group), timeout=60)
    sent = await running.kill(3, sharding_key="42")
    assert [one.outcome async for one in running.letters.redrive()] == ["redriven"] * 3
    assert [one.message.id for one in await running.receive()] == sent


async def test_discarded_letters_stay_deleted(running: Running) -> None:
    await running.kill(10)
    assert await dead_count(running) == 10
    dry = [one.outcome async for one in running.letters.discard(dry_run=True)]
    assert dry == ["matched"] * 10
    assert [one.outcome async for one in running.letters.discard(max=4)] == ["discarded"] * 4
    assert len(await running.listed()) == 6
    assert [one.outcome async for one in running.letters.redrive()] == ["redriven"] * 6
    assert len(await running.receive()) == 6
    assert await dead_count(running) == 0


async def dead_count(running: Running) -> int:
    request = consumer_pb2.DescribeGroupRequest(name=GROUP)
    return (await running.stub.DescribeGroup(request, timeout=60)).dead_letters


async def test_dead_letters_of_a_broker_are_listed_and_redriven(tmp_path: Path) -> None:
    """A directory with %DLQ%group as a RocketMQ broker leaves it."""
    async with Cluster(tmp_path) as cluster:
        names = {"UNIQ_KEY": "AC1", "RETRY_TOPIC": TOPIC, "ORIGIN_MESSAGE_ID": "7F", "DELAY": "0", "WAIT": "false"}
        written = encode_properties(names)
        nameless = encode_properties({"UNIQ_KEY": "AC2"})
        store = cluster.stores[0].store
        for properties in (written, nameless):
            store.put(record.encode(record.Record(f"%DLQ%{GROUP}", 0, b"body", properties, reconsume_times=16)))
        cluster.stores[0].parts.flusher.wake()
        durable = store.when_durable()
        assert durable is not None
        await durable
        await cluster.stop_node(cluster.gateway)
        await cluster.stop_node(cluster.stores[0])
        await cluster.start_store(0)
        shared = {"database_url": cluster.database_url, "stores": cluster.store_addresses}
        address = f"127.0.0.1:{cluster.retry.port}"
        cluster.gateway = await cluster._start_node("gateway", {**shared, "retry_address": address})
        async with AsyncDeadLetters(cluster.address, GROUP) as letters, AsyncProducer(cluster.address) as producer:
            await producer.send(TOPIC, b"new", id="new")
            found = [letter async for letter in letters.list()]
            assert [(one.id, one.topic, one.reason, one.attempts) for one in found] == [
                ("AC1", TOPIC, "", []),
                ("AC2", "", "", []),
            ]
            results = [one async for one in letters.redrive()]
            assert [(one.id, one.outcome) for one in results] == [("AC1", "redriven"), ("AC2", "failed")]
            assert "its original topic is unknown" in str(results[1].error)
        channel = make_channel(cluster.address)
        running = Running(cluster, None, None, gateway_pb2_grpc.GatewayStub(channel))  # type: ignore[arg-type]
        assert sorted(one.message.id for one in await running.receive()) == ["AC1", "new"]
        await channel.close()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.timeout(120)
async def test_dead_letters_of_real_brokers_are_redriven(name: str, tmp_path: Path) -> None:
    golden.unpack(name, tmp_path).rename(tmp_path / "store-0")
    units = [unit for unit in golden.units(name) if unit["topic"].startswith("%DLQ%")]
    now_ms = max(unit["storeTimestamp"] for unit in golden.units(name))
    groups = sorted({unit["topic"].removeprefix("%DLQ%") for unit in units})
    assert groups
    async with Cluster(tmp_path, clock=FakeClock(now_ms)) as cluster:
        channel = make_channel(cluster.address)
        stub = gateway_pb2_grpc.GatewayStub(channel)
        for group in groups:
            dead = [unit["properties"] for unit in units if unit["topic"] == f"%DLQ%{group}"]
            named = sorted((one["UNIQ_KEY"], one["RETRY_TOPIC"]) for one in dead)
            async with AsyncDeadLetters(cluster.address, group) as letters:
                assert sorted([(one.id, one.topic) async for one in letters.list()]) == named
                assert {one.outcome async for one in letters.redrive()} == {"redriven"}
                assert [one.id async for one in letters.list()] == []
            copies = [one for one in stored(cluster, f"%RETRY%{group}") if b"DT_REDRIVEN\x011" in one.properties]
            assert sorted(ids(copies)) == [message_id for message_id, _ in named]
            received: set[tuple[str, str]] = set()
            for topic in sorted({topic for _, topic in named}):
                request = consumer_pb2.ReceiveRequest(group=group, topic=topic, max_count=1_024)
                while messages := (await stub.Receive(request, timeout=60)).messages:
                    received.update((one.message.id, one.message.topic) for one in messages)
            assert received >= set(named)
        await channel.close()
