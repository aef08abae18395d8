"""Receives of RocketMQ's consumers: frames, leases, and their ends."""

import asyncio
import hashlib
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import lz4.frame
import pytest
from duetime import AsyncReceiver, Damaged
from duetime.v1 import consumer_pb2, gateway_pb2
from duetime_core.testing import Cluster
from duetime_format.limits import INVISIBLE_MS_MIN
from duetime_gateway.rocketmq.consuming import POLL_REST_MS
from duetime_gateway.rocketmq.wire import messaging_pb2 as pb

from tests.format.test_bodies import streamed
from tests.gateway.conftest import Gateway, WallClock, real_store
from tests.gateway.test_adoption import fill
from tests.rocketmq.raw import BILLING, ORDERS, Raw, message, new_id, now_ms
from tests.store.conftest import sent


async def test_frames_are_a_status_the_messages_and_a_moment(raw: Raw) -> None:
    began_s = now_ms() // 1_000
    await raw.send_ok(message(number=1), message(number=2))
    frames = await raw.frames()
    assert [frame.WhichOneof("content") for frame in frames] == ["status", "message", "message", "delivery_timestamp"]
    assert frames[0].status.code == pb.OK
    assert began_s <= frames[-1].delivery_timestamp.seconds <= now_ms() // 1_000
    empty = await raw.frames(wait_ms=0)
    assert [frame.status.code for frame in empty] == [pb.MESSAGE_NOT_FOUND]


@pytest.mark.parametrize("wait_ms", [30_000, None])
async def test_a_poll_ends_before_the_deadline_that_equals_it(moved: Raw, wait_ms: int | None) -> None:
    polling = asyncio.ensure_future(moved.receive(wait_ms=wait_ms, timeout=30))
    await moved.tap.until_requests("Receive", 1)
    (request,) = moved.tap.requests["Receive"]
    # gRPC rounds deadlines up.
    assert 0 < request.wait_ms <= 30_000 - POLL_REST_MS / 2
    await moved.send_ok(message())
    assert len(await polling) == 1


async def test_a_message_wakes_a_poll_that_waits(raw: Raw) -> None:
    polling = asyncio.ensure_future(raw.receive(wait_ms=20_000, timeout=60))
    await raw.frames(wait_ms=0, group=pb.Resource(name="another"))
    await raw.send_ok(message())
    assert len(await asyncio.wait_for(polling, 60)) == 1


async def polling_one(raw: Raw) -> "asyncio.Future[list[Any]]":
    """A poll that waits at the store."""
    count = len(raw.tap.requests["Receive"])
    polling = asyncio.ensure_future(raw.receive(wait_ms=60_000, timeout=60))
    await raw.tap.until_requests("Receive", count + 1)
    return polling


async def test_acknowledged_messages_do_not_come_again(moved: Raw, clock: WallClock) -> None:
    await moved.send_ok(*(message(number=number) for number in range(5)))
    got = await moved.receive(invisible_ms=200)
    answer = await moved.ack(*got[:3])
    clock.move(200)
    assert (answer.status.code, [one.status.code for one in answer.entries]) == (pb.OK, [pb.OK] * 3)
    again = [*await moved.receive(batch_size=1), *await moved.receive()]
    assert {one.system_properties.message_id for one in again} == {one.system_properties.message_id for one in got[3:]}
    assert {one.system_properties.delivery_attempt for one in again} == {2}


async def test_handle_of_an_ended_lease_stays_invalid_after_a_new_lease(raw: Raw) -> None:
    await raw.send_ok(message())
    (first,) = await raw.receive(invisible_ms=50)
    (second,) = await raw.receive()
    stale = await raw.ack(first)
    assert (stale.status.code, stale.entries[0].status.code) == (pb.INVALID_RECEIPT_HANDLE,) * 2
    changed = await raw.change(first.system_properties.receipt_handle, 1_000)
    assert changed.status.code == pb.INVALID_RECEIPT_HANDLE
    assert changed.receipt_handle == first.system_properties.receipt_handle
    mixed = await raw.ack(first, second)
    assert mixed.status.code == pb.MULTIPLE_RESULTS
    assert [one.status.code for one in mixed.entries] == [pb.INVALID_RECEIPT_HANDLE, pb.OK]


async def test_a_changed_invisibility_counts_as_an_attempt_and_wakes_a_poll(moved: Raw, clock: WallClock) -> None:
    await moved.send_ok(message())
    (got,) = await moved.receive()
    answer = await moved.change(got.system_properties.receipt_handle, 300)
    assert (answer.status.code, answer.receipt_handle) == (pb.OK, got.system_properties.receipt_handle)
    clock.move(299)
    assert await moved.receive(wait_ms=0) == []
    polling = await polling_one(moved)
    clock.move(1)
    (again,) = await polling
    assert again.system_properties.delivery_attempt == 2
    polling = await polling_one(moved)
    answer = await moved.change(again.system_properties.receipt_handle, 0)
    clock.move(INVISIBLE_MS_MIN)
    (third,) = await polling
    assert (answer.status.code, third.system_properties.delivery_attempt) == (pb.OK, 3)


async def test_a_suspended_message_comes_back_without_an_attempt(moved: Raw) -> None:
    """By the gateway: the store's clock stands, so the lease does not end by itself."""
    await moved.send_ok(message())
    (got,) = await moved.receive()
    suspended_ms = now_ms()
    answer = await moved.change(got.system_properties.receipt_handle, 200, suspend=True)
    assert answer.status.code == pb.OK
    (again,) = await moved.receive(wait_ms=60_000)
    assert now_ms() - suspended_ms >= 200
    assert again.system_properties.delivery_attempt == 1


async def test_repeated_receive_leases_the_same_messages(gateway: Gateway, raw: Raw) -> None:
    ordered = consumer_pb2.Group(name="ordered", ordered=True)
    await gateway.stub.CreateGroup(consumer_pb2.CreateGroupRequest(group=ordered))
    group = pb.Resource(name="ordered")
    await raw.send_ok(message(number=1, message_group="g"), message(number=2, message_group="g"))
    first = await raw.receive(group=group, attempt_id="one")
    assert len(first) == 2
    # Another attempt finds the queue locked.
    assert await raw.receive(group=group, attempt_id="two", wait_ms=0) == []
    again = await raw.receive(group=group, attempt_id="one", wait_ms=0)
    assert [one.system_properties.message_id for one in again] == [new_id(1), new_id(2)]
    assert [one.system_properties.delivery_attempt for one in again] == [1, 1]
    assert (await raw.ack(*first, group=group)).status.code == pb.INVALID_RECEIPT_HANDLE
    assert (await raw.ack(*again, group=group)).status.code == pb.OK


async def test_leases_of_a_broken_stream_are_released_uncounted(raw: Raw) -> None:
    await raw.send_ok(message(b"x" * 3_000_000, 1))
    # A small window blocks the answer to a client that stops reading.
    options = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 64 * 1024))
    async with grpc.aio.insecure_channel(f"127.0.0.1:{raw.endpoints.addresses[0].port}", options=options) as channel:
        broken = Raw(channel, 1).receiving()
        assert (await broken.read()).status.code == pb.OK
        broken.cancel()
        (again,) = await raw.receive()
        assert again.system_properties.delivery_attempt == 1


async def test_ordered_groups_have_an_assignment_for_each_queue(gateway: Gateway, raw: Raw) -> None:
    ordered = consumer_pb2.Group(name="ordered", ordered=True)
    await gateway.stub.CreateGroup(consumer_pb2.CreateGroupRequest(group=ordered))
    await raw.make_topic("wide", queue_count=16)
    for name, topic, queues in (
        ("billing", "orders", [-1]),
        ("ordered", "orders", [0, 1, 2, 3]),
        ("ordered", "wide", list(range(8))),
    ):
        answer = await raw.call(
            "QueryAssignment",
            topic=pb.Resource(name=topic),
            group=pb.Resource(name=name),
            endpoints=raw.endpoints,
        )
        assert [one.message_queue.id for one in answer.assignments] == queues
        assert answer.assignments[0].message_queue.broker.endpoints == raw.endpoints


async def test_groups_begin_at_the_earliest_and_retry_as_rocketmq_s(gateway: Gateway, raw: Raw) -> None:
    await raw.send_ok(message())
    assert len(await raw.receive()) == 1
    described = await gateway.stub.DescribeGroup(consumer_pb2.DescribeGroupRequest(name="billing"))
    retry = described.group.retry
    assert (described.group.start, retry.max_attempts) == (consumer_pb2.GROUP_START_EARLIEST, 17)
    assert list(retry.intervals.delays_ms)[:5] == [1_000, 5_000, 10_000, 30_000, 60_000]
    assert list(retry.intervals.delays_ms)[-1] == 7_200_000
    assert [member.name for member in described.members] == ["client"]


async def test_filters_by_tags_and_by_sql(raw: Raw) -> None:
    for number, tag in enumerate("abc"):
        one = message(number=number, tag=tag)
        one.user_properties["n"] = str(number)
        await raw.send_ok(one)
    tags = pb.FilterExpression(type=pb.TAG, expression="a || c")
    group = pb.Resource(name="tags")
    got = await raw.receive(group=group, filter_expression=tags)
    # A store answers with its finds so far when its step of a filtered scan is over.
    while len(got) < 2 and (more := await raw.receive(group=group, filter_expression=tags)):
        got += more
    assert sorted(one.system_properties.tag for one in got) == ["a", "c"]
    sql = pb.FilterExpression(type=pb.SQL, expression="n > 0 and TAGS = 'b'")
    got = await raw.receive(group=pb.Resource(name="sql"), filter_expression=sql)
    assert [one.system_properties.tag for one in got] == ["b"]


async def test_a_forwarded_message_is_a_dead_letter_with_its_origin(cluster: Cluster, whole: Raw) -> None:
    await whole.send_ok(message(b"poison", tag="t"))
    (got,) = await whole.receive()
    answer = await whole.call(
        "ForwardMessageToDeadLetterQueue",
        group=BILLING,
        topic=ORDERS,
        receipt_handle=got.system_properties.receipt_handle,
        message_id=new_id(),
        delivery_attempt=1,
        max_delivery_attempts=17,
    )
    assert answer.status.code == pb.OK
    dead = pb.Resource(name="%DLQ%billing")
    (letter,) = await whole.receive(topic=dead, group=pb.Resource(name="undertaker"))
    origin = letter.system_properties.dead_letter_queue
    assert (letter.body, origin.topic, origin.message_id) == (b"poison", "orders", new_id())
    again = await whole.call(
        "ForwardMessageToDeadLetterQueue",
        group=BILLING,
        topic=ORDERS,
        receipt_handle=got.system_properties.receipt_handle,
    )
    assert again.status.code == pb.OK
    assert len(await whole.receive(topic=dead, group=pb.Resource(name="another"))) == 1


async def test_after_the_last_attempt_a_message_is_a_dead_letter_with_its_history(whole: Raw) -> None:
    from duetime.v1 import gateway_pb2_grpc

    stub = gateway_pb2_grpc.GatewayStub(whole.channel)
    group = consumer_pb2.Group(name="billing")
    group.retry.max_attempts = 2
    await stub.CreateGroup(consumer_pb2.CreateGroupRequest(group=group))
    await whole.send_ok(message(b"poison"))
    for attempt in (1, 2):
        (got,) = await whole.receive()
        assert got.system_properties.delivery_attempt == attempt
        await whole.change(got.system_properties.receipt_handle, 10)
    request = consumer_pb2.ListDeadLettersRequest(filter=consumer_pb2.DeadLetterFilter(group="billing"))
    async with asyncio.timeout(60):
        while not (letters := await stub.ListDeadLetters(request)).letters:
            await whole.receive(wait_ms=100)
    (letter,) = await whole.receive(topic=pb.Resource(name="%DLQ%billing"), group=pb.Resource(name="undertaker"))
    assert letter.body == b"poison"
    assert [one.error.type for one in letters.letters[0].attempts] == ["LeaseExpired", "LeaseExpired"]


async def test_largest_body_goes_both_ways(raw: Raw) -> None:
    body = b"x" * (4 * 1024 * 1024)
    await raw.send_ok(message(body, 1))
    await raw.send_ok(message(b"small", 2))
    got = [*await raw.receive(), *await raw.receive(wait_ms=0)]
    assert sorted(len(one.body) for one in got) == [5, len(body)]


async def test_calls_that_no_client_makes_are_unimplemented(raw: Raw) -> None:
    call = raw.channel.unary_unary("/apache.rocketmq.v2.MessagingService/UpdateOffset")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(b"", metadata=raw.metadata, timeout=60)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize(("sys_flag", "pack"), [(0x301, zlib.compress), (0x101, lz4.frame.compress), (0x201, streamed)])
async def test_a_body_that_a_broker_s_client_packed_is_given_unpacked(
    tmp_path: Path, sys_flag: int, pack: Callable[[bytes], bytes]
) -> None:
    body = b"long " * 1_000
    bomb = pack(bytes(17 * 1024 * 1024))
    async with real_store(tmp_path) as store:
        for number, packed in enumerate((pack(body), pack(body)[:-9], bomb)):
            await fill(store, sent(f"m{number}", body=packed, sys_flag=sys_flag))
        async with Gateway(tmp_path, {0: store.port}) as gateway:
            raw = Raw(gateway.channel, gateway.node.port)
            got = await raw.receive()
            assert [one.body for one in got] == [body, pack(body)[:-9], bomb]
            for one in got:
                assert one.system_properties.body_encoding == pb.IDENTITY
                assert one.system_properties.body_digest.checksum == hashlib.md5(one.body).hexdigest().upper()
            receiver = AsyncReceiver(f"127.0.0.1:{gateway.node.port}", "orders", group="sdk")
            async with receiver:
                first, cut, large = await receiver.receive(max=3, wait="30s")
            assert (first.body, len(large.body)) == (body, 17 * 1024 * 1024)
            with pytest.raises(Damaged):
                _ = cut.body


async def test_limited_group_receives_at_its_rate(gateway: Gateway, raw: Raw) -> None:
    await raw.send_ok(message())
    assert len(await raw.receive()) == 1
    await raw.send_ok(message(number=2))
    rate = consumer_pb2.DeliveryRate(count=1, per_ms=86_400_000)
    request = consumer_pb2.LimitGroupRequest(name="billing", limit=consumer_pb2.GroupLimit(rate=rate))
    await gateway.stub.LimitGroup(request, timeout=60)
    assert await raw.receive(wait_ms=0) == []
    await gateway.stub.LimitGroup(consumer_pb2.LimitGroupRequest(name="billing"), timeout=60)
    assert await raw.receive()


async def test_paused_group_receives_nothing(gateway: Gateway, raw: Raw) -> None:
    await raw.send_ok(message())
    assert len(await raw.receive()) == 1
    await raw.send_ok(message(number=2))
    await gateway.stub.PauseGroup(consumer_pb2.PauseGroupRequest(name="billing"), timeout=60)
    assert await raw.receive(wait_ms=0) == []
    await gateway.stub.ResumeGroup(consumer_pb2.ResumeGroupRequest(name="billing"), timeout=60)
    await gateway.stub.PauseTopic(gateway_pb2.PauseTopicRequest(name=ORDERS.name), timeout=60)
    assert await raw.receive(wait_ms=0) == []
    await gateway.stub.ResumeTopic(gateway_pb2.ResumeTopicRequest(name=ORDERS.name), timeout=60)
    assert await raw.receive()
