"""ReceiveStream through the gateway: takes and acks of one stream, over one shard and over several."""

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from duetime.v1 import consumer_pb2, gateway_pb2, leases_pb2
from duetime_format import limits
from duetime_format.ranges import offsets_of
from duetime_format.view import View, split
from google.rpc import code_pb2

from tests.gateway.conftest import Gateway, message, real_store
from tests.gateway.test_consumer_groups import create, describe
from tests.gateway.test_leases import receive

EXPIRED, UNKNOWN = consumer_pb2.RECEIPT_STATUS_EXPIRED, consumer_pb2.RECEIPT_STATUS_UNKNOWN


class Stream:
    """One stream; its answers by number."""

    def __init__(self, gateway: Gateway, **subscription: Any) -> None:
        self.call: Any = gateway.stub.ReceiveStream()
        self._subscription = {"group": "billing", "topic": "orders", **subscription}
        self.taken: dict[int, leases_pb2.Taken] = {}
        self.acked: dict[int, leases_pb2.Acked] = {}

    async def ask(self, **parts: Any) -> None:
        request = leases_pb2.ReceiveStreamRequest(**parts)
        if self._subscription:
            request.subscription.CopyFrom(consumer_pb2.ReceiveRequest(**self._subscription))
            self._subscription = {}
        await self.call.write(request)

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not holds():
                response = await self.call.read()
                assert isinstance(response, leases_pb2.ReceiveStreamResponse), response
                self.taken.update((one.number, one) for one in response.taken)
                self.acked.update((one.number, one) for one in response.acked)

    async def take(self, number: int, **fields: Any) -> list[leases_pb2.LeaseRun]:
        await self.ask(takes=[leases_pb2.Take(number=number, **fields)])
        await self.until(lambda: number in self.taken)
        return list(self.taken[number].runs)

    async def ack(self, number: int, *messages: leases_pb2.LeaseOffsets) -> list[tuple[int, int]]:
        """Status and count of those that are not done."""
        await self.ask(acks=[leases_pb2.AckLeases(number=number, leases=messages)])
        await self.until(lambda: number in self.acked)
        assert not self.acked[number].HasField("fault"), self.acked[number]
        return [(one.status, len(offsets_of(one.messages.offsets))) for one in self.acked[number].rest]


def bodies(runs: list[leases_pb2.LeaseRun]) -> list[bytes]:
    return sorted(View(data).body for run in runs for data in split(run.records))


async def test_receivers_share_messages_of_several_shards(two_shards: Gateway) -> None:
    sent = [b"%03d" % n for n in range(200)]
    await two_shards.send(*(message(body, queue=n % 4) for n, body in enumerate(sent)))
    got: Counter[bytes] = Counter()

    async def work() -> None:
        stream, number = Stream(two_shards), 0
        while runs := await stream.take(number, max_count=7):
            assert await stream.ack(number, *(run.lease for run in runs)) == []
            got.update(bodies(runs))
            number += 1

    await asyncio.gather(*(work() for _ in range(4)))
    assert got == Counter(sent)
    described = await describe(two_shards)
    assert [(one.queue, one.lag, one.in_flight) for one in described.queues if one.topic == "orders"] == [
        (queue, 0, 0) for queue in range(4)
    ]


async def test_waiting_takes_get_arrivals_and_leave_nothing_behind(two_shards: Gateway) -> None:
    await two_shards.send(message(b"first"))
    stream = Stream(two_shards)
    (run,) = await stream.take(0)
    await stream.ask(takes=[leases_pb2.Take(number=n, max_count=1, wait_ms=20_000) for n in (1, 2, 3, 4)])
    assert await stream.ack(1, run.lease) == []
    await two_shards.send(*(message(b"%d" % n) for n in range(3)))
    await stream.until(lambda: len(stream.taken) == 4)
    await stream.ask(dropped=[1, 2, 3, 4])
    await stream.until(lambda: len(stream.taken) == 5)
    found = [body for taken in stream.taken.values() for body in bodies(list(taken.runs))]
    assert sorted(found) == [b"0", b"1", b"2", b"first"]
    await two_shards.send(message(b"later"))
    assert [one.message.body for one in (await receive(two_shards, wait_ms=5_000)).messages] == [b"later"]


async def test_broken_stream_of_one_shard_loses_no_message(gateway: Gateway) -> None:
    await go_away(gateway)


async def test_broken_stream_of_two_shards_loses_no_message(two_shards: Gateway) -> None:
    await go_away(two_shards)


async def go_away(gateway: Gateway) -> None:
    await gateway.stub.CreateTopic(gateway_pb2.CreateTopicRequest(name="orders", queue_count=4))
    streams = [Stream(gateway) for _ in range(3)]
    for stream in streams:
        await stream.ask(takes=[leases_pb2.Take(number=1, wait_ms=20_000)])
    await asyncio.wait([asyncio.ensure_future(stream.call.read()) for stream in streams], timeout=0.1)
    for stream in streams:
        stream.call.cancel()
    await gateway.send(message(b"later"))
    (leased,) = (await receive(gateway, wait_ms=5_000)).messages
    assert (leased.message.body, leased.attempt) == (b"later", 1)


async def test_acks_go_to_the_shards_that_gave_the_leases(two_shards: Gateway) -> None:
    await two_shards.send(*(message(b"%d" % n, queue=n % 4) for n in range(8)))
    stream = Stream(two_shards)
    runs = await stream.take(1)
    assert len({run.lease.lease[:2] for run in runs}) == 2
    strange = leases_pb2.LeaseOffsets(lease=b"\0\7" + runs[0].lease.lease[2:], offsets=runs[0].lease.offsets)
    assert await stream.ack(1, strange, *(run.lease for run in runs)) == [(UNKNOWN, len(offsets_of(strange.offsets)))]
    # Again, in another stream, which has asked no shard yet.
    assert await Stream(two_shards).ack(1, *(run.lease for run in runs)) == []
    assert not any(one.in_flight for one in (await describe(two_shards)).queues)


async def test_an_ordered_queue_continues_after_the_ack_of_the_request(gateway: Gateway) -> None:
    await create(gateway, ordered=True)
    await gateway.send(*(message(b"%d" % n, queue=0) for n in range(3)))
    stream = Stream(gateway)
    (run,) = await stream.take(1, max_count=1)
    assert await stream.take(2) == []
    ack = leases_pb2.AckLeases(number=1, leases=[run.lease])
    await stream.ask(acks=[ack], takes=[leases_pb2.Take(number=3)])
    await stream.until(lambda: 3 in stream.taken)
    assert bodies(list(stream.taken[3].runs)) == [b"1", b"2"]


async def test_faulty_take_harms_no_other(gateway: Gateway) -> None:
    await gateway.send(message(b"a"))
    stream = Stream(gateway)
    assert await stream.take(1, max_count=1_025) == []
    fault = stream.taken[1].fault
    assert (fault.code, [one.field for one in fault.violations]) == (code_pb2.INVALID_ARGUMENT, ["takes.max_count"])
    (run,) = await stream.take(2)
    await stream.ask(acks=[leases_pb2.AckLeases(number=3)])
    await stream.until(lambda: 3 in stream.acked)
    assert stream.acked[3].fault.code == code_pb2.INVALID_ARGUMENT
    assert await stream.ack(4, run.lease) == []
    lost = Stream(gateway, topic="odrers")
    assert await lost.take(1) == []
    assert lost.taken[1].fault.code == code_pb2.NOT_FOUND
    filtered = Stream(gateway, sql="a LIKE 'b'")
    assert await filtered.take(1) == []
    assert filtered.taken[1].fault.code == code_pb2.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("subscription", "why"),
    [({"group": ""}, "group: ''"), ({"invisible_ms": 9}, "invisible_ms: 9")],
)
async def test_a_bad_subscription_ends_the_stream(gateway: Gateway, subscription: dict[str, Any], why: str) -> None:
    stream = Stream(gateway, **subscription)
    await stream.ask()
    assert await stream.call.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert (await stream.call.details()).startswith(why)


async def test_a_stream_has_one_subscription(gateway: Gateway) -> None:
    await gateway.send(message(b"a"))
    stream = Stream(gateway)
    await stream.take(1)
    await stream.call.write(leases_pb2.ReceiveStreamRequest(subscription=consumer_pb2.ReceiveRequest(group="other")))
    assert await stream.call.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_streams_beyond_the_limit_are_refused(tmp_path: Path) -> None:
    async with (
        real_store(tmp_path) as store,
        Gateway(tmp_path, {0: store.port}, receive_streams_max=1) as gateway,
    ):
        await gateway.send(message(b"a"))
        first, second = Stream(gateway), Stream(gateway)
        assert await first.take(1)
        await second.ask()
        assert await second.call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert gateway.metric("duetime_gateway_receive_streams") == 1
        assert gateway.metric("duetime_gateway_receive_streams_max") == 1
        await first.call.done_writing()
        assert await first.call.read() is grpc.aio.EOF
        third = Stream(gateway)
        await third.take(1)
        assert not third.taken[1].HasField("fault")


async def test_takes_beyond_the_limit_are_refused(gateway: Gateway) -> None:
    await gateway.send(message(b"a"))
    stream = Stream(gateway)
    await stream.take(0)
    takes = [leases_pb2.Take(number=n, wait_ms=20_000) for n in range(1, limits.TAKES_MAX + 2)]
    await stream.ask(takes=takes)
    await stream.until(lambda: len(stream.taken) == 2)
    assert [one.fault.reason for one in stream.taken.values()] == ["", "TAKES_EXHAUSTED"]


async def test_a_stop_answers_acks_and_drops_takes(tmp_path: Path) -> None:
    async with real_store(tmp_path) as store, Gateway(tmp_path, {0: store.port}, drain_ms=5_000) as gateway:
        await gateway.send(message(b"a"))
        stream = Stream(gateway)
        (run,) = await stream.take(1)
        take = leases_pb2.Take(number=2, wait_ms=20_000)
        await stream.ask(acks=[leases_pb2.AckLeases(number=1, leases=[run.lease])], takes=[take])
        await stream.until(lambda: 1 in stream.acked)
        stopping = asyncio.ensure_future(gateway.node.stop())
        await stream.until(lambda: 2 in stream.taken)
        assert not stream.taken[2].runs
        assert await stream.call.code() is grpc.StatusCode.UNAVAILABLE
        await stopping


async def test_a_recovered_store_is_asked_in_another_stream(tmp_path: Path) -> None:
    async with AsyncExitStack() as later, AsyncExitStack() as first:
        store = await first.enter_async_context(real_store(tmp_path))
        gateway = await later.enter_async_context(Gateway(tmp_path, {0: store.port}))
        await gateway.send(message(b"a"), message(b"b", queue=1))
        stream = Stream(gateway)
        (run,) = await stream.take(1, max_count=1)
        await stream.take(2)
        await stream.ask(takes=[leases_pb2.Take(number=3, wait_ms=20_000)])
        await first.aclose()
        await stream.until(lambda: 3 in stream.taken)
        assert not stream.taken[3].runs
        await stream.ask(acks=[leases_pb2.AckLeases(number=0, leases=[run.lease])])
        await stream.until(lambda: 0 in stream.acked)
        assert stream.acked[0].fault.retriable
        await later.enter_async_context(real_store(tmp_path, port=store.port))
        # The gateway connects again by itself, after a while.
        while stream.acked[max(stream.acked)].HasField("fault"):
            number = max(stream.acked) + 1
            await stream.ask(acks=[leases_pb2.AckLeases(number=number, leases=[run.lease])])
            await stream.until(partial(stream.acked.__contains__, number))
        assert not stream.acked[max(stream.acked)].rest
