"""ReceiveStream: takes and acks in one stream, answered by number; undelivered leases are released."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from duetime.v1 import consumer_pb2, leases_pb2, store_pb2, store_pb2_grpc
from duetime_format import limits, receipts
from duetime_format.ranges import offsets_of, ranges
from google.rpc import code_pb2

from tests.store.groups.running import EXPIRED, INVISIBLE_MS, OK, TOPIC, UNKNOWN, Consuming, told
from tests.store.running import MIB
from tests.store.test_put_stream import Held

Run = leases_pb2.LeaseRun


class Stream:
    """One stream to a node; its answers by number."""

    def __init__(self, store: Consuming) -> None:
        self._store = store
        self.call: Any = store.stub.ReceiveStream()
        self.taken: dict[int, leases_pb2.Taken] = {}
        self.acked: dict[int, leases_pb2.Acked] = {}
        # Takes and acks that each response answered.
        self.responses: list[tuple[int, int]] = []
        self._begun = False

    async def ask(self, *, dropped: tuple[int, ...] = (), **parts: Any) -> None:
        """`takes`: number and fields; `acks`: number and messages, as (lease, offsets)."""
        request = leases_pb2.ReceiveStreamRequest(dropped=dropped)
        if not self._begun:
            request.subscription.CopyFrom(self._store.request(**parts.pop("subscription", {})))
            self._begun = True
        for number, fields in parts.get("takes", {}).items():
            request.takes.add(number=number, **fields)
        for number, messages in parts.get("acks", {}).items():
            ack = request.acks.add(number=number)
            for lease, offsets in messages:
                ack.leases.add(lease=lease, offsets=offsets if isinstance(offsets, bytes) else ranges(offsets))
        await self.call.write(request)

    async def read(self) -> None:
        async with asyncio.timeout(60):
            response = await self.call.read()
        assert isinstance(response, leases_pb2.ReceiveStreamResponse), response
        self.responses.append((len(response.taken), len(response.acked)))
        self.taken.update((one.number, one) for one in response.taken)
        self.acked.update((one.number, one) for one in response.acked)

    async def take(self, number: int, **fields: Any) -> list[Run]:
        await self.ask(takes={number: fields})
        while number not in self.taken:
            await self.read()
        return list(self.taken[number].runs)

    async def ack(self, number: int, *messages: tuple[bytes, list[int] | bytes]) -> list[tuple[int, list[int]]]:
        """Status and offsets of those that are not done."""
        await self.ask(acks={number: messages})
        while number not in self.acked:
            await self.read()
        assert not self.acked[number].HasField("fault"), self.acked[number]
        return [(one.status, offsets_of(one.messages.offsets)) for one in self.acked[number].rest]


async def until(store: Consuming, condition: Callable[[], bool]) -> None:
    """Returns once it holds in the node."""
    async with asyncio.timeout(60):
        while not condition():
            await store.stub.Describe(store_pb2.DescribeRequest())


async def until_waiting(store: Consuming, count: int) -> None:
    """Waits until `count` takes wait for messages."""
    lines = store.node.parts.receiver._lines._lines
    await until(store, lambda: sum(len(line.waiters) for line in lines.values()) == count)


async def until_ended(store: Consuming) -> None:
    """The node has no streams any more."""
    streams = partial(store.node.registry.get_sample_value, "duetime_store_receive_streams")
    await until(store, lambda: streams() == 0)


def flushed_count(store: Consuming) -> int:
    return int(store.node.registry.get_sample_value("duetime_store_flush_seconds_count") or 0)


def offsets(run: Run) -> list[int]:
    return offsets_of(run.lease.offsets)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Consuming]:
    async with Consuming(tmp_path / "store") as running:
        yield running


async def test_messages_acknowledged_in_a_stream_are_done(store: Consuming) -> None:
    await store.send("a", "b", "c")
    stream = Stream(store)
    (run,) = await stream.take(1, max_count=2)
    assert (run.topic, run.queue, offsets(run), list(run.attempts)) == (TOPIC, 0, [0, 1], [1])
    assert run.lease_ends_at_ms == store.clock.now_ms() + INVISIBLE_MS
    assert told(await store.receive()) == [("c", 1)]
    assert await stream.ack(2, (run.lease.lease, [0])) == []
    assert await stream.ack(3, (run.lease.lease, [0, 1])) == []
    assert await stream.ack(4, (run.lease.lease, [0, 1])) == []
    await store.clock.advance(INVISIBLE_MS)
    assert told(await store.receive()) == [("c", 2)]


async def test_receipts_of_a_lease_s_messages_are_made_of_its_name(store: Consuming) -> None:
    await store.send("a", "b", "c")
    (run,) = await Stream(store).take(1)
    names = receipts.of_lease(run.lease.lease, offsets(run))
    assert await store.ack(names[0]) == [OK]
    assert await store.change(names[1]) == [OK]
    (again,) = await store.receive()
    assert (again.message.id, again.attempt) == ("b", 2)
    assert await store.ack(again, names[2]) == [OK, OK]


async def test_acks_of_ended_and_unknown_leases_name_their_messages(store: Consuming) -> None:
    await store.send("a", "b", "c")
    stream = Stream(store)
    (run,) = await stream.take(1)
    lease = run.lease.lease
    await store.change(*receipts.of_lease(lease, [1]))
    assert await stream.ack(2, (lease, [0, 1, 2])) == [(EXPIRED, [1])]
    other = lease[:9] + bytes([lease[9] ^ 1])
    assert await stream.ack(3, (b"junk", [5]), (b"\0\7" + lease[2:], [6]), (other, [7])) == [
        (UNKNOWN, [5]),
        (UNKNOWN, [6]),
        (UNKNOWN, [7]),
    ]
    # Another group's stream.
    stranger = Stream(store)
    await stranger.ask(subscription={"group": "other"})
    assert await stranger.ack(1, (lease, [0])) == [(UNKNOWN, [0])]
    await store.clock.advance(INVISIBLE_MS)
    assert told(await store.receive()) == [("b", 2)]


@pytest.mark.parametrize(
    "given", [b"junk", ranges([3]) + ranges([3]), b"", ranges([0])[:8] + b"\xff\xff\xff\xff", b"\xff" * 12]
)
async def test_invalid_offsets_are_rejected_and_harm_no_others(store: Consuming, given: bytes) -> None:
    await store.send("a")
    stream = Stream(store)
    (run,) = await stream.take(1)
    await stream.ask(acks={2: [(run.lease.lease, given)], 3: [(run.lease.lease, [0])]})
    while len(stream.acked) < 2:
        await stream.read()
    assert stream.acked[2].fault.code == code_pb2.INVALID_ARGUMENT
    assert not stream.acked[3].HasField("fault")


async def test_an_ordered_queue_continues_after_the_ack_in_the_same_request(store: Consuming) -> None:
    await store.send("a", "b", "c")
    stream = Stream(store)
    await stream.ask(subscription={"ordered": True})
    (run,) = await stream.take(1, max_count=1)
    assert await stream.take(2) == []
    await stream.ask(acks={3: [(run.lease.lease, [0])]}, takes={4: {}})
    while 4 not in stream.taken:
        await stream.read()
    assert [offsets(one) for one in stream.taken[4].runs] == [[1, 2]]


async def test_an_ack_and_a_take_of_one_request_are_flushed_and_answered_together(tmp_path: Path) -> None:
    disk = Held()
    async with Consuming(tmp_path / "store", disk=disk) as store:
        await store.send("a", "b")
        stream = Stream(store)
        (run,) = await stream.take(1, max_count=1)
        disk.is_free.clear()
        flushed = flushed_count(store)
        await stream.ask(acks={2: [(run.lease.lease, [0])]}, takes={3: {}})
        disk.is_free.set()
        await stream.read()
        assert stream.responses[-1] == (1, 1)
        assert flushed_count(store) == flushed + 1


async def test_a_waiting_take_gets_arrivals_and_blocks_nothing(store: Consuming) -> None:
    await store.send("a")
    stream = Stream(store)
    (run,) = await stream.take(1)
    await stream.ask(takes={2: {"wait_ms": 20_000}})
    assert await stream.ack(3, (run.lease.lease, [0])) == []
    assert 2 not in stream.taken
    await store.send("b")
    await stream.read()
    assert [offsets(one) for one in stream.taken[2].runs] == [[1]]


async def test_a_dropped_take_is_answered_with_nothing_and_takes_nothing(store: Consuming) -> None:
    stream = Stream(store)
    await stream.ask(takes={1: {"wait_ms": 20_000}, 2: {"wait_ms": 20_000}}, dropped=(1,))
    await stream.ask(dropped=(1, 2, 3))
    while len(stream.taken) < 2:
        await stream.read()
    assert not any(one.runs or one.HasField("fault") for one in stream.taken.values())
    await store.send("a")
    assert told(await store.receive()) == [("a", 1)]


async def test_leases_of_an_abandoned_stream_are_released_uncounted(tmp_path: Path) -> None:
    disk = Held()
    async with Consuming(tmp_path / "store", disk=disk) as store:
        waiting, caught = Stream(store), Stream(store)
        await waiting.ask(takes={1: {"wait_ms": 20_000}})
        await until_waiting(store, 1)
        waiting.call.cancel()
        await until_waiting(store, 0)
        await store.send("a")
        disk.is_free.clear()
        # This one has leased, and its lease is not durable yet.
        await caught.ask(takes={1: {}})
        await until(store, lambda: store.node.parts.groups.progress.outstanding == 1)
        caught.call.cancel()
        # An answer that left before the node knows counts as received.
        await until_ended(store)
        disk.is_free.set()
        assert told(await store.receive(wait_ms=5_000)) == [("a", 1)]


async def test_a_stream_ends_after_all_that_it_has_taken_is_answered(store: Consuming) -> None:
    await store.send("a")
    stream = Stream(store)
    (run,) = await stream.take(1)
    await stream.ask(acks={2: [(run.lease.lease, [0])]}, takes={3: {"wait_ms": 20_000}})
    await stream.call.done_writing()
    while len(stream.taken) < 2 or len(stream.acked) < 1:
        await stream.read()
    assert not stream.taken[3].runs
    assert await stream.call.read() is grpc.aio.EOF
    assert await stream.call.code() is grpc.StatusCode.OK


async def test_takes_beyond_the_limit_are_refused_but_not_acks(store: Consuming) -> None:
    await store.send("a")
    stream = Stream(store)
    (run,) = await stream.take(0)
    await stream.ask(takes={number: {"wait_ms": 20_000} for number in range(1, limits.TAKES_MAX + 2)})
    while not stream.taken.keys() - {0}:
        await stream.read()
    refused = [one for one in stream.taken.values() if one.HasField("fault")]
    assert [(one.fault.reason, one.fault.retriable) for one in refused] == [("TAKES_EXHAUSTED", True)]
    assert await stream.ack(99, (run.lease.lease, [0])) == []


@pytest.mark.parametrize(
    ("fields", "named"),
    [({"max_count": 1_025}, "max_count"), ({"max_bytes": -1}, "max_bytes"), ({"wait_ms": 30_001}, "wait_ms")],
)
async def test_a_take_out_of_bounds_is_refused_alone(store: Consuming, fields: dict[str, int], named: str) -> None:
    await store.send("a")
    stream = Stream(store)
    assert await stream.take(1, **fields) == []
    assert [one.field for one in stream.taken[1].fault.violations] == [f"takes.{named}"]
    assert await stream.take(2)


async def test_errors_of_a_take_are_its_own(store: Consuming) -> None:
    await store.send("a")
    await store.receive(tags="x")
    stream = Stream(store)
    await stream.ask(subscription={"tags": "y"})
    await stream.take(1)
    assert stream.taken[1].fault.reason == "FILTER_CONFLICT"
    await stream.ask(acks={2: [(b"0123456789", [0])]})
    await stream.read()
    assert 2 in stream.acked


async def test_a_first_request_without_a_subscription_ends_the_stream(store: Consuming) -> None:
    call = store.stub.ReceiveStream()
    await call.write(leases_pb2.ReceiveStreamRequest())
    assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
    bad = Stream(store)
    await bad.ask(subscription={"sql": "a LIKE 'b'"})
    assert await bad.call.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_receiver_that_reads_nothing_holds_its_share_of_answers_and_no_more(tmp_path: Path) -> None:
    count = 24
    async with Consuming(tmp_path / "store", segment_bytes=64 * MIB, answer_bytes_max=32 * MIB) as store:
        for number in range(count):
            await store.send(f"m{number}", body=bytes(MIB))
        stream = Stream(store)
        answers, groups = store.node.parts.traffic.answers.shares, store.node.parts.groups
        # Half of the room is one connection's: 15 answers, and a 16th once gRPC has taken an earlier one.
        for number in range(15):
            await stream.ask(takes={number: {"max_count": 1}})
            await until(store, lambda least=number: groups.progress.outstanding > least)
        await stream.ask(takes={number: {"max_count": 1} for number in range(15, count)})
        # Use a separate connection.
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(f"127.0.0.1:{store.node.port}", options) as channel:
            other = store_pb2_grpc.StoreStub(channel)
            assert len((await received(other, store.request(max_count=1))).messages) == 1
        assert answers.used < 20 * MIB
        while len(stream.taken) < count:
            await stream.read()
        given = [run for one in stream.taken.values() for run in one.runs]
        assert {one.fault.reason for one in stream.taken.values() if one.HasField("fault")} == {"ANSWERS_EXHAUSTED"}
        assert 15 <= len(given) < count
        assert groups.progress.outstanding == len(given) + 1


async def received(stub: store_pb2_grpc.StoreStub, request: consumer_pb2.ReceiveRequest) -> Any:
    """Repeats a call as clients do: an answer that is being made for the other connection of this host is counted."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await stub.Receive(request, timeout=60)
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                    raise


async def test_a_stop_answers_taken_puts_and_ends_the_stream(store: Consuming) -> None:
    await store.send("a")
    stream = Stream(store)
    (run,) = await stream.take(1)
    await stream.ask(acks={2: [(run.lease.lease, [0])]}, takes={3: {"wait_ms": 20_000}})
    await until_waiting(store, 1)
    store.node._service.end_streams()
    while 3 not in stream.taken or 2 not in stream.acked:
        await stream.read()
    assert await stream.call.code() is grpc.StatusCode.UNAVAILABLE
    assert "stopping" in (await stream.call.details() or "")
    late = Stream(store)
    with suppress(grpc.aio.AioRpcError):
        # The stream may have ended before its first request is written.
        await late.ask()
    assert await late.call.code() is grpc.StatusCode.UNAVAILABLE


async def test_an_acknowledged_message_stays_done_after_a_kill(store: Consuming) -> None:
    await store.send("a", "b", "c")
    stream = Stream(store)
    (run,) = await stream.take(1)
    assert await stream.ack(2, (run.lease.lease, [0, 2])) == []
    await store.kill()
    assert await Stream(store).ack(1, (run.lease.lease, [0])) == []
    await store.clock.advance(INVISIBLE_MS)
    assert told(await store.receive()) == [("b", 2)]


async def test_a_new_subscription_counts_for_the_takes_behind_it(store: Consuming) -> None:
    await store.send("a")
    stream = Stream(store)
    await stream.ask(takes={1: {"wait_ms": 20_000, "max_count": 1}})
    (first,) = await wait_for(stream, 1)
    request = leases_pb2.ReceiveStreamRequest(subscription=store.request(invisible_ms=50_000))
    await stream.call.write(request)
    await store.send("b")
    (second,) = await stream.take(2)
    assert second.lease_ends_at_ms - first.lease_ends_at_ms == 50_000 - INVISIBLE_MS


async def wait_for(stream: Stream, number: int) -> list[Run]:
    while number not in stream.taken:
        await stream.read()
    return list(stream.taken[number].runs)
