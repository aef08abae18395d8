"""Pullers: start, order, positions, filters, bounds, reconnecting, ends; by subscriptions, and by long polls."""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from duetime import AsyncPuller, Closed, NotFound
from duetime.client.consuming import puller as puller_module
from duetime.client.consuming import subscription as subscription_module

from tests.sdk.fake_gateway import FakeGateway


@pytest.fixture(params=["subscribed", "polled"])
async def gateway(request: pytest.FixtureRequest) -> AsyncIterator[FakeGateway]:
    """One that knows subscriptions, and one of release 0.1."""
    gateway = FakeGateway(knows_subscribe=request.param == "subscribed")
    await gateway.start()
    yield gateway
    await gateway.stop()


@pytest.fixture
def filled(gateway: FakeGateway) -> FakeGateway:
    """Topic `orders` with queue 0: a0 to a4, queue 1: b0 to b2."""
    gateway.make_topic("orders")
    for queue, count in ((0, 5), (1, 3)):
        for n in range(count):
            gateway.append("orders", queue, f"{'ab'[queue]}{n}".encode(), b"TAGS\x01" + (b"even", b"odd")[n % 2])
    return gateway


async def take(puller: AsyncPuller, count: int) -> list[bytes]:
    bodies: list[bytes] = []
    while len(bodies) < count:
        bodies += [message.body for message in await puller.poll(count - len(bodies), wait="10s")]
    return bodies


async def test_all_queues_are_read_each_in_order(filled: FakeGateway) -> None:
    async with AsyncPuller(filled.address, "orders") as puller:
        bodies = await take(puller, 8)
        assert [body for body in bodies if body.startswith(b"a")] == [b"a0", b"a1", b"a2", b"a3", b"a4"]
        assert [body for body in bodies if body.startswith(b"b")] == [b"b0", b"b1", b"b2"]
        assert puller.positions == {0: 5, 1: 3}


async def test_iteration_follows_and_ends_with_the_puller(filled: FakeGateway) -> None:
    bodies = []
    async with AsyncPuller(filled.address, "orders") as puller:
        async for message in puller:
            bodies.append(message.body)
            if len(bodies) == 8:
                filled.append("orders", 1, b"new")
            if message.body == b"new":
                await puller.close()
    assert len(bodies) == 9


async def test_latest_gives_only_what_comes_after(filled: FakeGateway) -> None:
    async with AsyncPuller(filled.address, "orders", start="latest") as puller:
        filled.append("orders", 0, b"new")
        assert await take(puller, 1) == [b"new"]
        assert await puller.poll(wait=0) == []


async def test_start_may_be_an_offset_of_each_queue(filled: FakeGateway) -> None:
    async with AsyncPuller(filled.address, "orders", start={0: 4}) as puller:
        assert sorted(await take(puller, 4)) == [b"a4", b"b0", b"b1", b"b2"]


async def test_positions_move_with_what_is_handed_out_and_are_a_start(filled: FakeGateway) -> None:
    async with AsyncPuller(filled.address, "orders", start={1: 3}) as puller:
        assert await take(puller, 2) == [b"a0", b"a1"]
        positions = puller.positions
    assert positions == {0: 2, 1: 3}
    async with AsyncPuller(filled.address, "orders", start=positions) as puller:
        assert await take(puller, 3) == [b"a2", b"a3", b"a4"]


async def test_poll_gives_at_most_max_and_nothing_after_the_wait(filled: FakeGateway) -> None:
    async with AsyncPuller(filled.address, "orders", start={1: 3}) as puller:
        assert [len(await puller.poll(max=count, wait="10s")) for count in (2, 2, 2)] == [2, 2, 1]
        assert await puller.poll(max=2, wait="10ms") == []


async def test_filters_are_the_servers_to_apply(filled: FakeGateway) -> None:
    async with AsyncPuller(filled.address, "orders", tags="odd || none", sql="size > 5") as puller:
        assert len(await take(puller, 8)) == 8
    asked = filled.subscribes if filled.knows_subscribe else filled.pulls
    assert {(request.tags, request.sql) for request in asked} == {("odd || none", "size > 5")}


@pytest.mark.parametrize("tags", [None, "", "*"])
async def test_no_filter_takes_all(filled: FakeGateway, tags: str | None) -> None:
    async with AsyncPuller(filled.address, "orders", tags=tags) as puller:
        assert len(await take(puller, 8)) == 8


async def test_an_offset_out_of_range_moves_to_the_nearest_and_says_so(
    filled: FakeGateway, caplog: pytest.LogCaptureFixture
) -> None:
    filled.min_offset = 2
    with caplog.at_level(logging.WARNING, "duetime"):
        async with AsyncPuller(filled.address, "orders", start={0: 0, 1: 99}) as puller:
            assert await take(puller, 3) == [b"a2", b"a3", b"a4"]
            filled.append("orders", 1, b"b3")
            assert await take(puller, 1) == [b"b3"]
    texts = sorted(record.getMessage() for record in caplog.records)
    assert texts == [
        "queue 0 of orders: offset 0 is outside 2 to 5; continuing at 2",
        "queue 1 of orders: offset 99 is outside 2 to 3; continuing at 3",
    ]


async def test_no_more_is_fetched_than_the_window_has(gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscription_module, "WINDOW_BYTES", 20_000)
    monkeypatch.setattr(subscription_module, "PULL_BYTES_MAX", 5_000)
    monkeypatch.setattr(subscription_module, "PULL_COUNT_MAX", 5)
    gateway.answer_count = 5
    gateway.make_topic("orders", 1)
    for n in range(100):
        gateway.append("orders", 0, bytes([n]) * 1_000)
    async with AsyncPuller(gateway.address, "orders") as puller:
        assert await take(puller, 1) == [bytes(1_000)]
        for _ in range(200):
            await asyncio.sleep(0)
        fetched = sum(gateway.answer_sizes) if gateway.knows_subscribe else 5_500 * len(gateway.pulls)
        # One answer of five messages more, as some credit was left for it.
        assert fetched <= 26_000
        assert len(await take(puller, 90)) == 90
    # What was handed out is given back, in halves of the window.
    assert all(request.credit_bytes >= 10_000 for request in gateway.subscribes)


async def test_queues_of_one_shard_are_asked_for_in_one_call(gateway: FakeGateway) -> None:
    gateway.shard_count = 2
    gateway.make_topic("orders", 5)
    async with AsyncPuller(gateway.address, "orders", start="latest") as puller:
        for queue in range(5):
            gateway.append("orders", queue, str(queue).encode())
            assert await take(puller, 1) == [str(queue).encode()]
        assert puller.positions == dict.fromkeys(range(5), 1)
    requests = gateway.subscribes if gateway.knows_subscribe else gateway.pulls
    asked = {frozenset(position.queue for position in request.queues) for request in requests}
    assert asked == {frozenset({0, 2, 4}), frozenset({1, 3})}


async def test_a_busy_queue_delays_no_other_by_more_than_an_answer(
    gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscription_module, "PULL_COUNT_MAX", 10)
    gateway.answer_count = 10
    gateway.make_topic("orders", 4)
    for n in range(200):
        gateway.append("orders", n % 2, b"busy")
    gateway.append("orders", 2, b"quiet")
    gateway.append("orders", 3, b"quiet")
    async with AsyncPuller(gateway.address, "orders") as puller:
        bodies = await take(puller, 202)
        assert max(n for n, body in enumerate(bodies) if body == b"quiet") <= 22
        assert puller.positions == {0: 100, 1: 100, 2: 1, 3: 1}


async def test_a_server_restart_is_survived(filled: FakeGateway, caplog: pytest.LogCaptureFixture) -> None:
    async with AsyncPuller(filled.address, "orders") as puller:
        assert len(await take(puller, 8)) == 8
        await filled.stop()
        # One warning: the call that was out was ended, or, where none was, no server answers.
        while not any("orders, shard 0: " in record.getMessage() for record in caplog.records):
            assert await puller.poll(wait="50ms") == []
        filled.append("orders", 1, b"new")
        await filled.start()
        assert await take(puller, 1) == [b"new"]


async def test_a_new_queue_of_the_topic_is_noticed(filled: FakeGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(puller_module, "ROUTE_INTERVAL_S", 0.01)
    async with AsyncPuller(filled.address, "orders", start="latest") as puller:
        filled.make_topic("orders", 3)
        filled.append("orders", 2, b"c0")
        assert await take(puller, 1) == [b"c0"]
        assert puller.positions == {0: 5, 1: 3, 2: 1}


async def test_a_topic_that_does_not_exist_is_not_found(gateway: FakeGateway) -> None:
    with pytest.raises(NotFound, match="no topic orders"):
        async with AsyncPuller(gateway.address, "orders"):
            pass


async def test_a_start_at_a_queue_that_does_not_exist_is_not_found(filled: FakeGateway) -> None:
    with pytest.raises(NotFound, match="topic orders has 2 queues, and no queue 7"):
        await AsyncPuller(filled.address, "orders", start={7: 1}).poll()


async def test_a_pull_that_is_refused_ends_the_polls(filled: FakeGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse_stream(self: FakeGateway, requests: object, context: Any) -> AsyncIterator[object]:
        await refuse(self, requests, context)
        yield

    async def refuse(self: FakeGateway, request: object, context: grpc.aio.ServicerContext[object, object]) -> None:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "tags: too many")

    monkeypatch.setattr(FakeGateway, "PullQueues", refuse)
    monkeypatch.setattr(FakeGateway, "Subscribe", refuse_stream)
    await filled.stop()
    await filled.start()
    async with AsyncPuller(filled.address, "orders") as puller:
        for _ in range(2):
            with pytest.raises(ValueError, match="tags: too many"):
                await puller.poll(wait="10s")


async def test_polling_a_closed_puller_is_an_error(filled: FakeGateway) -> None:
    puller = AsyncPuller(filled.address, "orders")
    await puller.poll(max=8)
    await puller.close()
    await puller.close()
    with pytest.raises(Closed):
        await puller.poll(max=8)


async def test_closing_wakes_a_poll_that_waits(filled: FakeGateway) -> None:
    puller = AsyncPuller(filled.address, "orders", start="latest")
    await puller.open()
    polling = asyncio.create_task(puller.poll(wait="1h"))
    await asyncio.sleep(0)
    await puller.close()
    with pytest.raises(Closed):
        await polling


async def test_a_cancelled_poll_loses_nothing(filled: FakeGateway) -> None:
    async with AsyncPuller(filled.address, "orders", start="latest") as puller:
        polling = asyncio.create_task(puller.poll(wait="1h"))
        await asyncio.sleep(0)
        polling.cancel()
        filled.append("orders", 0, b"new")
        assert await take(puller, 1) == [b"new"]


async def test_a_group_goes_on_where_it_has_committed(filled: FakeGateway) -> None:
    async with AsyncPuller(filled.address, "orders", group="billing", start={1: 2}) as puller:
        assert await take(puller, 2) == [b"a0", b"a1"]
        await puller.commit()
    assert filled.offsets == {("billing", "orders", 0): 2, ("billing", "orders", 1): 2}
    async with AsyncPuller(filled.address, "orders", group="billing", start="latest") as puller:
        assert sorted(await take(puller, 4)) == [b"a2", b"a3", b"a4", b"b2"]
    async with AsyncPuller(filled.address, "orders", group="audit", start="latest") as puller:
        assert puller.positions == {0: 5, 1: 3}


async def test_commit_sends_what_has_moved(filled: FakeGateway) -> None:
    filled.offsets = {("billing", "orders", 0): 99, ("billing", "orders", 1): 3}
    async with AsyncPuller(filled.address, "orders", group="billing") as puller:
        await puller.commit()
        assert filled.commits == []
        filled.append("orders", 1, b"b3")
        while puller.positions != {0: 5, 1: 4}:
            await puller.poll()
        await puller.commit()
        await puller.commit()
        assert len(filled.commits) == 1
        await puller.commit({0: 1})
    assert [{one.queue: one.offset for one in commit.queues} for commit in filled.commits] == [{0: 5, 1: 4}, {0: 1}]


async def test_commit_is_repeated_until_it_is_answered(filled: FakeGateway) -> None:
    filled.commit_errors += [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNAVAILABLE]
    async with AsyncPuller(filled.address, "orders", group="billing") as puller:
        await take(puller, 8)
        await puller.commit()
        assert (len(filled.commits), len(filled.offsets)) == (3, 2)
        filled.commit_errors.append(grpc.StatusCode.INVALID_ARGUMENT)
        with pytest.raises(ValueError, match="as the test wants it"):
            await puller.commit({0: 1})


async def test_a_commit_needs_a_group(filled: FakeGateway) -> None:
    async with AsyncPuller(filled.address, "orders") as puller:
        with pytest.raises(ValueError, match="group: is not given"):
            await puller.commit()


async def test_new_queue_starts_where_the_group_has_committed(
    filled: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(puller_module, "ROUTE_INTERVAL_S", 0.01)
    async with AsyncPuller(filled.address, "orders", group="billing", start="latest") as puller:
        filled.offsets["billing", "orders", 2] = 1
        filled.make_topic("orders", 3)
        filled.append("orders", 2, b"c0")
        filled.append("orders", 2, b"c1")
        assert await take(puller, 1) == [b"c1"]


@pytest.mark.parametrize("start", ["now", "", "5"])
def test_a_start_that_is_no_start_is_refused(start: str) -> None:
    with pytest.raises(ValueError, match="is neither 'earliest', 'latest', a datetime nor"):
        AsyncPuller("localhost:9800", "orders", start=start)  # type: ignore[arg-type]


@pytest.mark.parametrize("wait", ["2", "two", -1, "-1s", float("nan")])
async def test_a_wait_that_is_no_length_is_refused(gateway: FakeGateway, wait: str | float) -> None:
    with pytest.raises(ValueError, match="wait"):
        await AsyncPuller(gateway.address, "orders").poll(wait=wait)


async def test_a_server_that_learns_subscriptions_is_subscribed_to_after_its_restart(
    filled: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So that it makes no difference whether a poll fails at the restart, or gRPC carries it over.
    monkeypatch.setattr(subscription_module, "OLDER_SERVER_S", 0.05)
    async with AsyncPuller(filled.address, "orders") as puller:
        assert len(await take(puller, 8)) == 8
        await filled.stop()
        filled.knows_subscribe = not filled.knows_subscribe
        filled.append("orders", 1, b"new")
        await filled.start()
        assert await take(puller, 1) == [b"new"]
        assert puller.positions == {0: 5, 1: 4}
        while not (filled.subscribes and filled.pulls):
            filled.append("orders", 1, b"newer")
            assert await take(puller, 1) == [b"newer"]


async def test_what_was_fetched_before_a_stream_ended_comes_once(
    gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.answer_count = 3
    gateway.make_topic("orders", 2)
    for n in range(60):
        gateway.append("orders", n % 2, b"%d" % n)
    bodies: list[bytes] = []
    async with AsyncPuller(gateway.address, "orders") as puller:
        while len(bodies) < 60:
            bodies += await take(puller, 6)
            await gateway.stop()
            await gateway.start()
    assert [body for body in bodies if int(body) % 2 == 0] == [b"%d" % n for n in range(0, 60, 2)]
    assert [body for body in bodies if int(body) % 2] == [b"%d" % n for n in range(1, 60, 2)]
