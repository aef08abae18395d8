"""Leases through the gateway: which shards are asked, and for what; nothing is leased that nobody gets."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any

import grpc
import pytest
from duetime.v1 import consumer_pb2, gateway_pb2
from duetime_core import retry_policy
from duetime_core.errors import DueTimeError, FailedPrecondition, Overloaded, Unavailable
from duetime_core.metadata import TopicModel, TopicQueueModel
from duetime_format import receipts
from sqlalchemy.orm import Session

from tests.gateway.conftest import Gateway, error_of, message
from tests.gateway.fake_store import FakeStore

OK, EXPIRED, UNKNOWN = (
    consumer_pb2.RECEIPT_STATUS_OK,
    consumer_pb2.RECEIPT_STATUS_EXPIRED,
    consumer_pb2.RECEIPT_STATUS_UNKNOWN,
)


@pytest.fixture
async def one(tmp_path: Path) -> AsyncIterator[tuple[Gateway, FakeStore]]:
    """A gateway with one fake store that has `orders`."""
    store = await FakeStore(0).start()
    async with Gateway(tmp_path, {0: store.port}) as gateway:
        await make_topic(gateway)
        yield gateway, store
        store.gate.set()
    await store.stop()


async def make_topic(gateway: Gateway, queues: int = 4) -> None:
    await gateway.stub.CreateTopic(gateway_pb2.CreateTopicRequest(name="orders", queue_count=queues))


def receive(gateway: Gateway, **fields: Any) -> Any:
    values = {"group": "billing", "topic": "orders", **fields}
    return gateway.stub.Receive(consumer_pb2.ReceiveRequest(**values), timeout=10)


async def offsets(call: Any) -> list[tuple[int, int]]:
    """(shard, offset) of what was leased."""
    found = [receipts.parse(leased.receipt) for leased in (await call).messages]
    return [(receipt.shard, receipt.offset) for receipt in found if receipt]


def ack(gateway: Gateway, *given: bytes, group: str = "billing") -> Any:
    return gateway.stub.Ack(consumer_pb2.AckRequest(group=group, receipts=given), timeout=10)


async def until(gateway: Gateway, holds: Callable[[], bool]) -> None:
    """Returns once `holds`; until then the gateway has something to do, which lets it do the rest too."""
    async with asyncio.timeout(10):
        while not holds():
            await gateway.stub.ListGroups(consumer_pb2.ListGroupsRequest())


def numbers(queues: Iterable[consumer_pb2.QueueNumber]) -> list[tuple[int, int]]:
    return [(one.queue, one.shard_queue) for one in queues]


async def test_one_shard_is_asked_for_everything_at_once(one: tuple[Gateway, FakeStore]) -> None:
    gateway, store = one
    policy = retry_policy.parse("1s,max=5")
    group = consumer_pb2.Group(name="billing", ordered=True, retry=policy, start=2, start_at_ms=7)
    await gateway.stub.CreateGroup(consumer_pb2.CreateGroupRequest(group=group))
    await store.put_ready(3, 4)
    forged = [consumer_pb2.QueueNumber(queue=9, shard_queue=9)]
    assert await offsets(receive(gateway, tags="a", queues=forged, retry_queues=forged)) == [(0, 3), (0, 4)]
    (asked,) = store.receives
    assert numbers(asked.queues) == [(n, n) for n in range(4)]
    assert numbers(asked.retry_queues) == [(0, 0)]
    assert (asked.ordered, asked.start_at_ms, asked.max_attempts, asked.tags) == (True, 7, 5, "a")
    assert asked.member.startswith("ipv4:127.0.0.1:")
    await offsets(receive(gateway, max_attempts=2, member="me"))
    assert (store.receives[1].max_attempts, store.receives[1].member) == (2, "me")
    assert gateway.metric("duetime_gateway_receives_total") == 2


async def test_group_is_made_by_its_first_receive_and_its_shard_is_told(one: tuple[Gateway, FakeStore]) -> None:
    gateway, store = one
    await offsets(receive(gateway))
    listed = (await gateway.stub.ListGroups(consumer_pb2.ListGroupsRequest())).groups
    assert [(group.name, group.start, group.retry.max_attempts) for group in listed] == [("billing", 0, 17)]
    await offsets(receive(gateway))
    await until(gateway, lambda: bool(store.group_calls))
    assert store.group_calls == list(listed)


async def test_topic_that_does_not_exist_makes_no_group(one: tuple[Gateway, FakeStore]) -> None:
    gateway, _ = one
    error = await error_of(receive(gateway, topic="odrers"))
    assert (error.code(), error.details()) == (grpc.StatusCode.NOT_FOUND, "topic odrers does not exist")
    assert not (await gateway.stub.ListGroups(consumer_pb2.ListGroupsRequest())).groups


REFUSED = [
    ({"group": ""}, "group: '' is not 1 to 120 characters"),
    ({"group": "a b"}, "group: 'a b' is not 1 to 120 characters"),
    ({"topic": ""}, "topic: '' has 0 characters"),
    ({"topic": "%RETRY%billing"}, "topic: '%RETRY%billing' is not received from: its messages come with the topics"),
    ({"topic": "SCHEDULE_TOPIC_XXXX"}, "topic: 'SCHEDULE_TOPIC_XXXX' is not received from"),
    ({"max_count": 1_025}, "max_count: 1025 is not within 0 and 1024"),
    ({"max_bytes": -1}, "max_bytes: -1 is not within 0 and 16777216"),
    ({"wait_ms": 30_001}, "wait_ms: 30001 is not within 0 and 30000"),
    ({"max_attempts": 1_001}, "max_attempts: 1001 is not within 0 and 1000"),
    ({"encoding": 2}, "encoding: 2 is not within 0 and 1"),
    ({"invisible_ms": 9}, r"invisible_ms: 9 is not within 10 and 43200000 \(12 h\); 0 is the default"),
    ({"member": "m" * 256}, "has 256 characters; the most is 255"),
]


@pytest.mark.parametrize(("fields", "why"), REFUSED)
async def test_bad_receive_is_refused_with_all_that_is_wrong(
    one: tuple[Gateway, FakeStore], fields: dict[str, Any], why: str
) -> None:
    gateway, store = one
    with pytest.raises(grpc.aio.AioRpcError, match=why):
        await receive(gateway, **fields)
    assert not store.receives


async def test_bad_receipts_are_refused(one: tuple[Gateway, FakeStore]) -> None:
    gateway, _ = one
    assert (await error_of(ack(gateway))).details() == "receipts: 0 receipts; a request has 1 to 4096"
    assert "4097 receipts" in (await error_of(ack(gateway, *[b""] * 4_097))).details()
    assert "group: ''" in (await error_of(ack(gateway, b"", group=""))).details()
    change = consumer_pb2.ChangeInvisibleRequest(group="billing", receipts=[b"x"], invisible_ms=5, not_attempted=True)
    assert (await error_of(gateway.stub.ChangeInvisible(change))).details() == (
        "invisible_ms: 5 is not within 10 and 43200000 (12 h); 0 ends the lease; "
        "not_attempted: is only for invisible_ms 0, which gives the messages back"
    )


@pytest.mark.parametrize("name", ["Ack", "ChangeInvisible"])
async def test_bytes_that_are_no_request_are_refused(one: tuple[Gateway, FakeStore], name: str) -> None:
    gateway, _ = one
    error = await error_of(gateway.channel.unary_unary(f"/duetime.v1.Gateway/{name}")(b"\xff\xff\xff"))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert f"3 bytes are no {name}Request" in error.details()


async def test_receive_that_is_given_up_leases_nothing(one: tuple[Gateway, FakeStore]) -> None:
    gateway, store = one
    store.gate.clear()
    call = receive(gateway, wait_ms=20_000)
    await store.until_waiting(1)
    call.cancel()
    await until(gateway, lambda: not store.waiting)
    assert store.given_back == []


@pytest.mark.parametrize("shards", [1, 2])
async def test_long_poll_ends_at_a_stop(tmp_path: Path, fakes: list[FakeStore], shards: int) -> None:
    ports = {store.shard: store.port for store in fakes[:shards]}
    async with Gateway(tmp_path, ports, drain_ms=60_000) as gateway:
        await make_topic(gateway)
        call = receive(gateway, wait_ms=20_000)
        waits = (lambda: bool(fakes[0].receives)) if shards == 1 else (lambda: all(store.awaits for store in fakes))
        await until(gateway, waits)
        await gateway.node.stop()
        error = await error_of(call)
    assert (error.code(), error.details()) == (grpc.StatusCode.UNAVAILABLE, "the gateway is stopping")


async def test_several_shards_are_asked_in_turn_until_there_is_enough(faked: Gateway, fakes: list[FakeStore]) -> None:
    await make_topic(faked)
    places = {store.shard: set() for store in fakes}
    for store in fakes:
        await store.put_ready(1, 2, 3)
    first = await offsets(receive(faked, max_count=4))
    assert len(first) == 4
    assert {shard for shard, _ in first} == {0, 1}
    second = await offsets(receive(faked, max_count=4))
    assert sorted(first + second) == [(shard, offset) for shard in (0, 1) for offset in (1, 2, 3)]
    # The shard that was first asked for four is not the one that was first asked the next time.
    assert [store.receives[0].max_count for store in fakes] in ([4, 1], [1, 4])
    for store in fakes:
        asked = store.receives[0]
        assert asked.wait_ms == 0
        assert [queue for queue, _ in numbers(asked.retry_queues)] == [store.shard]
        places[store.shard] = {queue for queue, _ in numbers(asked.queues)}
    assert sorted(places[0] | places[1]) == [0, 1, 2, 3]
    assert len(places[0]) == len(places[1]) == 2


async def test_receive_waits_on_all_shards_and_takes_from_the_first_that_has_something(
    faked: Gateway, fakes: list[FakeStore]
) -> None:
    await make_topic(faked)
    call = receive(faked, wait_ms=20_000)
    await until(faked, lambda: all(store.awaits for store in fakes))
    await fakes[1].put_ready(5)
    assert await offsets(call) == [(1, 5)]
    assert not fakes[0].leased
    assert 0 < fakes[1].awaits[0].wait_ms <= 20_000


async def test_what_was_leased_for_a_client_that_went_away_is_given_back(
    faked: Gateway, fakes: list[FakeStore]
) -> None:
    await make_topic(faked)
    for store in fakes:
        await store.put_ready(1)
        store.gate.clear()
    call = receive(faked, max_count=9)
    await until(faked, lambda: any(store.waiting for store in fakes))
    quick, slow = sorted(fakes, key=lambda store: -store.waiting)
    quick.gate.set()
    await slow.until_waiting(1)
    assert quick.leased
    call.cancel()
    await quick.until(lambda: bool(quick.given_back))
    assert not quick.leased
    assert not slow.leased
    assert faked.metric("duetime_gateway_leases_left_total") == 1


@pytest.mark.parametrize("error", [Unavailable("away"), Overloaded("full", reason="LEASES_EXHAUSTED")])
async def test_shard_that_gives_nothing_does_not_keep_others_from_giving(
    faked: Gateway, fakes: list[FakeStore], error: DueTimeError
) -> None:
    await make_topic(faked)
    fakes[0].error = error
    for _ in range(2):
        await fakes[1].put_ready(1)
        assert await offsets(receive(faked)) == [(1, 1)]
    failed = await error_of(receive(faked))
    assert failed.code() is error.status


async def test_error_of_one_shard_that_is_the_receiver_s_ends_the_call(faked: Gateway, fakes: list[FakeStore]) -> None:
    await make_topic(faked)
    fakes[0].error = FailedPrecondition("another filter", reason="FILTER_CONFLICT")
    await fakes[1].put_ready(1)
    failed = [await error_of(receive(faked)) for _ in range(2)]
    assert {error.code() for error in failed} == {grpc.StatusCode.FAILED_PRECONDITION}
    await fakes[1].until(lambda: bool(fakes[1].given_back))
    assert not fakes[1].leased


async def test_receipts_go_to_the_shards_that_gave_them(faked: Gateway, fakes: list[FakeStore]) -> None:
    await make_topic(faked)
    for store in fakes:
        await store.put_ready(1, 2)
    given = [leased.receipt for leased in (await receive(faked)).messages]
    given = [given[0], given[2], given[1]]
    assert not (await ack(faked, *given[:1])).statuses
    assert not (await ack(faked, *given[1:])).statuses
    foreign = receipts.pack(7, 1, [1])[0]
    odd = [given[0], given[1], b"", foreign, b"\x00\x01"]
    assert list((await ack(faked, *odd)).statuses) == [UNKNOWN] * 5
    assert sum(len(store.leased) for store in fakes) == 1
    change = consumer_pb2.ChangeInvisibleRequest(group="billing", receipts=[foreign, *given], invisible_ms=10)
    assert list((await faked.stub.ChangeInvisible(change)).statuses) == [UNKNOWN] * 4
    assert faked.metric("duetime_gateway_receipts_total", call="Ack") == 8


async def test_ack_of_a_shard_that_is_away_fails_after_the_others_were_done(
    faked: Gateway, fakes: list[FakeStore]
) -> None:
    await make_topic(faked)
    for store in fakes:
        await store.put_ready(1)
    given = [leased.receipt for leased in (await receive(faked)).messages]
    fakes[0].error = Unavailable("away")
    assert (await error_of(ack(faked, *given))).code() is grpc.StatusCode.UNAVAILABLE
    assert not fakes[1].leased
    fakes[0].error = None
    assert list((await ack(faked, *given)).statuses) in ([OK, UNKNOWN], [UNKNOWN, OK])


async def test_queues_of_retries_get_their_public_numbers_once_there_are_any(
    faked: Gateway, fakes: list[FakeStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duetime_gateway.consuming.leases.RETRY_ROUTE_MS", 0)
    await make_topic(faked)
    await offsets(receive(faked))

    def make(session: Session) -> None:
        # As retry services do: shard 1 was the first to need one.
        session.add(TopicModel(name="%RETRY%billing", queue_count=2, created_at_ms=1))
        session.add(TopicQueueModel(topic="%RETRY%billing", queue=0, shard=1, shard_queue=0))

    def extend(session: Session) -> None:
        session.add(TopicQueueModel(topic="%RETRY%billing", queue=1, shard=0, shard_queue=0))

    for work, expected in ((make, {0: [(1, 0)], 1: [(0, 0)]}), (extend, {0: [(1, 0)], 1: [(0, 0)]})):
        await faked.node.parts.database.run(work)
        await offsets(receive(faked))
        assert {store.shard: numbers(store.receives[-1].retry_queues) for store in fakes} == expected
        route = await faked.stub.GetRoute(gateway_pb2.GetRouteRequest(topic="%RETRY%billing"))
        assert route.queues[0].shard == 1


async def test_pull_of_retries_finds_a_queue_that_a_retry_service_has_added(
    faked: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duetime_gateway.routing.topics.FRESH_MS", 0)

    def add(queue: int) -> Any:
        def work(session: Session) -> None:
            session.merge(TopicModel(name="%DLQ%billing", queue_count=queue + 1, created_at_ms=1))
            session.add(TopicQueueModel(topic="%DLQ%billing", queue=queue, shard=queue, shard_queue=0))

        return work

    for queue in range(2):
        await faked.node.parts.database.run(add(queue))
        route = await faked.stub.GetRoute(gateway_pb2.GetRouteRequest(topic="%DLQ%billing"))
        assert [one.shard for one in route.queues] == list(range(queue + 1))


async def test_nack_goes_to_the_retry_service(one: tuple[Gateway, FakeStore]) -> None:
    gateway, _ = one
    error = await error_of(gateway.stub.Nack(consumer_pb2.NackRequest(group="billing")))
    assert (error.code(), error.details()) == (
        grpc.StatusCode.UNIMPLEMENTED,
        "group: this gateway has no retry service (setting retry_address)",
    )
    await gateway.send(message())
