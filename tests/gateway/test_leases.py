"""Leases through the gateway: the shards that are asked, their requests, and leases without a receiver."""

from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import grpc
import pytest
from duetime.v1 import consumer_pb2, gateway_pb2
from duetime_core.errors import FailedPrecondition, Overloaded, Unavailable
from duetime_core.metadata import TopicModel, TopicQueueModel
from duetime_core.rpc import retry_policy
from duetime_format import receipts
from sqlalchemy.orm import Session

from tests.gateway.conftest import Gateway, TappedStore, error_of, message, until
from tests.tap import WAIT_S

OK, UNKNOWN = consumer_pb2.RECEIPT_STATUS_OK, consumer_pb2.RECEIPT_STATUS_UNKNOWN


@pytest.fixture
async def one(tmp_path: Path, tap: TappedStore) -> AsyncIterator[tuple[Gateway, TappedStore]]:
    """A gateway with one store, which has `orders`."""
    async with Gateway(tmp_path, {0: tap.port}) as gateway:
        await make_topic(gateway)
        yield gateway, tap


async def make_topic(gateway: Gateway, queues: int = 4) -> None:
    await gateway.stub.CreateTopic(gateway_pb2.CreateTopicRequest(name="orders", queue_count=queues))


def receive(gateway: Gateway, **fields: Any) -> Any:
    values = {"group": "billing", "topic": "orders", **fields}
    return gateway.stub.Receive(consumer_pb2.ReceiveRequest(**values), timeout=WAIT_S)


async def received(call: Any) -> list[tuple[int, str, int]]:
    """(shard, id, attempt) of each leased message."""
    found = [(receipts.parse(leased.receipt), leased) for leased in (await call).messages]
    return [(receipt.shard, leased.message.id, leased.attempt) for receipt, leased in found if receipt]


async def fill(gateway: Gateway, **ids: int) -> None:
    """Messages of these ids, each in a queue of the shard of this number."""
    route = await gateway.stub.GetRoute(gateway_pb2.GetRouteRequest(topic="orders"))
    queues = {one.shard: one.queue for one in route.queues}
    results = await gateway.send(*(message(id=name, queue=queues[shard]) for name, shard in ids.items()))
    assert [one.shard for one in results] == list(ids.values())


def ack(gateway: Gateway, *given: bytes, group: str = "billing") -> Any:
    return gateway.stub.Ack(consumer_pb2.AckRequest(group=group, receipts=given), timeout=WAIT_S)


def numbers(queues: Iterable[consumer_pb2.QueueNumber]) -> list[tuple[int, int]]:
    return [(one.queue, one.shard_queue) for one in queues]


async def test_one_shard_is_asked_for_everything_at_once(one: tuple[Gateway, TappedStore]) -> None:
    gateway, tap = one
    policy = retry_policy.parse("1s,max=5")
    group = consumer_pb2.Group(name="billing", ordered=True, retry=policy, start=2, start_at_ms=7)
    await gateway.stub.CreateGroup(consumer_pb2.CreateGroupRequest(group=group))
    await gateway.send(message(id="a", queue=0, tags="a"), message(id="b", queue=1, tags="a"), message(queue=2))
    forged = [consumer_pb2.QueueNumber(queue=9, shard_queue=9)]
    found = await received(receive(gateway, tags="a", queues=forged, retry_queues=forged))
    # A filtered receive may answer with a part: a store's step ends after a time.
    assert found
    assert set(found) <= {(0, "a", 1), (0, "b", 1)}
    (asked,) = tap.requests["Receive"]
    assert numbers(asked.queues) == [(n, n) for n in range(4)]
    assert numbers(asked.retry_queues) == [(0, 0)]
    assert (asked.ordered, asked.start_at_ms, asked.max_attempts, asked.tags) == (True, 7, 5, "a")
    assert asked.member.startswith("ipv4:127.0.0.1:")
    await receive(gateway, tags="a", max_attempts=2, member="me")
    assert (tap.requests["Receive"][1].max_attempts, tap.requests["Receive"][1].member) == (2, "me")
    assert gateway.metric("duetime_gateway_receives_total") == 2


async def test_first_receive_creates_the_group_and_announces_it(one: tuple[Gateway, TappedStore]) -> None:
    gateway, tap = one
    await receive(gateway)
    listed = (await gateway.stub.ListGroups(consumer_pb2.ListGroupsRequest())).groups
    assert [(group.name, group.start, group.retry.max_attempts) for group in listed] == [("billing", 0, 17)]
    await receive(gateway)
    await tap.until_requests("PutGroup", 1)
    assert tap.requests["PutGroup"] == list(listed)


async def test_topic_that_does_not_exist_makes_no_group(one: tuple[Gateway, TappedStore]) -> None:
    gateway, _ = one
    error = await error_of(receive(gateway, topic="odrers"))
    assert (error.code(), error.details()) == (grpc.StatusCode.NOT_FOUND, "topic odrers does not exist")
    assert not (await gateway.stub.ListGroups(consumer_pb2.ListGroupsRequest())).groups


REFUSED = [
    ({"group": ""}, "group: '' is not 1 to 120 characters"),
    ({"group": "a b"}, "group: 'a b' is not 1 to 120 characters"),
    ({"topic": ""}, "topic: '' has 0 characters"),
    (
        {"topic": "%RETRY%billing"},
        "topic: '%RETRY%billing' cannot be received from: its messages are delivered with their own topics",
    ),
    ({"topic": "SCHEDULE_TOPIC_XXXX"}, "topic: SCHEDULE_TOPIC_XXXX cannot be received from"),
    ({"max_count": 1_025}, "max_count: 1025 is not within 0 and 1024"),
    ({"max_bytes": -1}, "max_bytes: -1 is not within 0 and 16777216"),
    ({"wait_ms": 30_001}, "wait_ms: 30001 is not within 0 and 30000"),
    ({"max_attempts": 1_001}, "max_attempts: 1001 is not within 0 and 1000"),
    ({"encoding": 2}, "encoding: 2 is not within 0 and 1"),
    ({"invisible_ms": 9}, r"invisible_ms: 9 is not within 10 and 43200000 \(12 h\); 0 is the default"),
    ({"member": "m" * 256}, "has 256 characters; the limit is 255"),
]


async def test_bad_receive_is_refused_with_all_that_is_wrong(one: tuple[Gateway, TappedStore]) -> None:
    gateway, tap = one
    for fields, why in REFUSED:
        with pytest.raises(grpc.aio.AioRpcError, match=why):
            await receive(gateway, **fields)
    assert not tap.requests["Receive"]


async def test_bad_receipts_are_refused(one: tuple[Gateway, TappedStore]) -> None:
    gateway, _ = one
    assert (await error_of(ack(gateway))).details() == "receipts: 0 receipts; a request has 1 to 4096"
    assert "4097 receipts" in (await error_of(ack(gateway, *[b""] * 4_097))).details()
    assert "group: ''" in (await error_of(ack(gateway, b"", group=""))).details()
    change = consumer_pb2.ChangeInvisibleRequest(group="billing", receipts=[b"x"], invisible_ms=5, not_attempted=True)
    assert (await error_of(gateway.stub.ChangeInvisible(change))).details() == (
        "invisible_ms: 5 is not within 10 and 43200000 (12 h); 0 ends the lease; "
        "not_attempted: is only for invisible_ms 0, which ends the lease"
    )


async def test_bytes_that_are_no_request_are_refused(one: tuple[Gateway, TappedStore]) -> None:
    gateway, _ = one
    for name in ("Ack", "ChangeInvisible"):
        error = await error_of(gateway.channel.unary_unary(f"/duetime.v1.Gateway/{name}")(b"\xff\xff\xff"))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert f"3 bytes are not a valid {name}Request" in error.details()


async def test_abandoned_receive_leases_nothing(one: tuple[Gateway, TappedStore]) -> None:
    gateway, tap = one
    call = receive(gateway, wait_ms=20_000)
    await tap.until_requests("Receive", 1)
    call.cancel()
    await tap.until(lambda: not tap.open["Receive"])
    await fill(gateway, a=0)
    assert await received(receive(gateway, wait_ms=20_000)) == [(0, "a", 1)]
    assert not tap.requests["ChangeInvisible"]


@pytest.mark.parametrize("shards", [1, 2])
async def test_long_poll_ends_at_a_stop(tmp_path: Path, taps: list[TappedStore], shards: int) -> None:
    ports = {tap.shard: tap.port for tap in taps[:shards]}
    async with Gateway(tmp_path, ports, drain_ms=60_000) as gateway:
        await make_topic(gateway)
        call = receive(gateway, wait_ms=20_000)
        for tap in taps[:shards]:
            await tap.until_requests("Receive" if shards == 1 else "AwaitMessages", 1)
        await gateway.node.stop()
        error = await error_of(call)
    assert (error.code(), error.details()) == (grpc.StatusCode.UNAVAILABLE, "the gateway is stopping")


async def test_several_shards_are_asked_in_turn_until_there_is_enough(tapped: Gateway, taps: list[TappedStore]) -> None:
    await make_topic(tapped)
    await fill(tapped, a=0, b=0, c=0, d=1, e=1, f=1)
    first = await received(receive(tapped, max_count=4))
    assert len(first) == 4
    assert {shard for shard, _, _ in first} == {0, 1}
    second = await received(receive(tapped, max_count=4))
    assert sorted(first + second) == [(number // 3, name, 1) for number, name in enumerate("abcdef")]
    # The first shard is asked for four messages; the next call begins with the other one.
    asked = [tap.requests["Receive"][0] for tap in taps]
    assert [one.max_count for one in asked] in ([4, 1], [1, 4])
    assert [one.wait_ms for one in asked] == [0, 0]
    assert [[queue for queue, _ in numbers(one.retry_queues)] for one in asked] == [[0], [1]]
    places = [{queue for queue, _ in numbers(one.queues)} for one in asked]
    assert sorted(places[0] | places[1]) == [0, 1, 2, 3]
    assert len(places[0]) == len(places[1]) == 2


async def test_receive_waits_on_all_shards_and_takes_from_the_first_that_has_something(
    tapped: Gateway, taps: list[TappedStore]
) -> None:
    await make_topic(tapped)
    call = receive(tapped, wait_ms=20_000)
    for tap in taps:
        await tap.until_requests("AwaitMessages", 1)
    await fill(tapped, a=1)
    assert await received(call) == [(1, "a", 1)]
    assert [len(tap.requests["Receive"]) for tap in taps] == [1, 2]
    assert 0 < taps[1].requests["AwaitMessages"][0].wait_ms <= 20_000


async def test_leases_of_a_disconnected_client_are_released(tapped: Gateway, taps: list[TappedStore]) -> None:
    await make_topic(tapped)
    await fill(tapped, a=0, b=1)
    for tap in taps:
        tap.hold("Receive")
    call = receive(tapped, max_count=9)
    await until(tapped, lambda: any(tap.waiting["Receive"] for tap in taps))
    quick, slow = sorted(taps, key=lambda tap: -tap.waiting["Receive"])
    quick.release()
    await slow.until_waiting("Receive", 1)
    call.cancel()
    await slow.until(lambda: not slow.open["Receive"])
    slow.release()
    await given_back(quick)
    assert tapped.metric("duetime_gateway_leases_left_total") == 1
    assert sorted(await received(receive(tapped))) == [(0, "a", 1), (1, "b", 1)]


async def given_back(tap: TappedStore) -> None:
    """Returns once leases were given back to the store."""
    await tap.until(lambda: tap.requests["ChangeInvisible"] and not tap.open["ChangeInvisible"])
    assert all(one.not_attempted for one in tap.requests["ChangeInvisible"])


async def test_shard_that_gives_nothing_does_not_keep_others_from_giving(
    tapped: Gateway, taps: list[TappedStore]
) -> None:
    await make_topic(tapped)
    for error in (Unavailable("away"), Overloaded("full", reason="LEASES_EXHAUSTED")):
        taps[0].refuse(error, "Receive", "AwaitMessages")
        # Another shard is asked first each time.
        for turn in range(2):
            name = f"{error.reason}{turn}"
            await fill(tapped, **{name: 1})
            assert await received(receive(tapped)) == [(1, name, 1)]
        failed = await error_of(receive(tapped))
        assert failed.code() is error.status


async def test_error_of_one_shard_that_is_the_receiver_s_ends_the_call(
    tapped: Gateway, taps: list[TappedStore]
) -> None:
    await make_topic(tapped)
    taps[0].refuse(FailedPrecondition("another filter", reason="FILTER_CONFLICT"), "Receive")
    await fill(tapped, a=1)
    failed = [await error_of(receive(tapped)) for _ in range(2)]
    assert {error.code() for error in failed} == {grpc.StatusCode.FAILED_PRECONDITION}
    await given_back(taps[1])
    taps[0].accept()
    assert await received(receive(tapped)) == [(1, "a", 1)]


async def test_receipts_go_to_the_shards_that_gave_them(tapped: Gateway, taps: list[TappedStore]) -> None:
    await make_topic(tapped)
    await fill(tapped, a=0, b=0, c=1, d=1)
    given = [leased.receipt for leased in (await receive(tapped)).messages]
    given, last = [given[0], given[2], given[1]], given[3]
    assert not (await ack(tapped, *given[:1])).statuses
    assert not (await ack(tapped, *given[1:])).statuses
    foreign = receipts.pack(7, 1, [1])[0]
    odd = [given[0], b"", foreign, b"\x00\x01", last]
    assert list((await ack(tapped, *odd)).statuses) == [OK, *[UNKNOWN] * 3, OK]
    change = consumer_pb2.ChangeInvisibleRequest(group="billing", receipts=[foreign, *given], invisible_ms=10)
    statuses = list((await tapped.stub.ChangeInvisible(change)).statuses)
    assert statuses[0] == UNKNOWN
    assert OK not in statuses
    assert tapped.metric("duetime_gateway_receipts_total", call="Ack") == 8


async def test_ack_of_an_unavailable_shard_fails_after_the_others(tapped: Gateway, taps: list[TappedStore]) -> None:
    await make_topic(tapped)
    await fill(tapped, a=0, b=1)
    given = [leased.receipt for leased in (await receive(tapped)).messages]
    taps[0].refuse(Unavailable("away"), "Ack")
    assert (await error_of(ack(tapped, *given))).code() is grpc.StatusCode.UNAVAILABLE
    taps[0].accept()
    described = await tapped.stub.DescribeGroup(consumer_pb2.DescribeGroupRequest(name="billing"))
    assert {one.shard: one.in_flight for one in described.queues if one.lag} == {0: 1}
    assert not (await ack(tapped, *given)).statuses


async def test_queues_of_retries_get_their_public_numbers_once_there_are_any(
    tapped: Gateway, taps: list[TappedStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duetime_gateway.consuming.leases.RETRY_ROUTE_MS", 0)
    await make_topic(tapped)
    await receive(tapped)

    def make(session: Session) -> None:
        # As retry services do: shard 1 was the first to need one.
        session.add(TopicModel(name="%RETRY%billing", queue_count=2, created_at_ms=1))
        session.add(TopicQueueModel(topic="%RETRY%billing", queue=0, shard=1, shard_queue=0))

    def extend(session: Session) -> None:
        session.add(TopicQueueModel(topic="%RETRY%billing", queue=1, shard=0, shard_queue=0))

    for work, expected in ((make, {0: [(1, 0)], 1: [(0, 0)]}), (extend, {0: [(1, 0)], 1: [(0, 0)]})):
        await tapped.node.parts.database.run(work)
        await receive(tapped)
        assert {tap.shard: numbers(tap.requests["Receive"][-1].retry_queues) for tap in taps} == expected
        route = await tapped.stub.GetRoute(gateway_pb2.GetRouteRequest(topic="%RETRY%billing"))
        assert route.queues[0].shard == 1


async def test_pull_of_retries_finds_a_queue_that_a_retry_service_has_added(
    tapped: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duetime_gateway.routing.topics.FRESH_MS", 0)

    def add(queue: int) -> Any:
        def work(session: Session) -> None:
            session.merge(TopicModel(name="%DLQ%billing", queue_count=queue + 1, created_at_ms=1))
            session.add(TopicQueueModel(topic="%DLQ%billing", queue=queue, shard=queue, shard_queue=0))

        return work

    for queue in range(2):
        await tapped.node.parts.database.run(add(queue))
        route = await tapped.stub.GetRoute(gateway_pb2.GetRouteRequest(topic="%DLQ%billing"))
        assert [one.shard for one in route.queues] == list(range(queue + 1))


async def test_nack_goes_to_the_retry_service(one: tuple[Gateway, TappedStore]) -> None:
    gateway, _ = one
    error = await error_of(gateway.stub.Nack(consumer_pb2.NackRequest(group="billing")))
    assert (error.code(), error.details()) == (
        grpc.StatusCode.UNIMPLEMENTED,
        "group: this gateway has no retry service (setting retry_address)",
    )
    await gateway.send(message())
