"""Pullers: start, order, positions, filters, bounds, restarts, ends; by subscriptions, and by long polls."""

import asyncio
import logging
from typing import Any

import grpc
import pytest
from duetime import AsyncAdmin, AsyncProducer, AsyncPuller, Closed, InvalidArgument, Message, NotFound
from duetime.client.consuming import puller as puller_module
from duetime.client.consuming import subscription as subscription_module
from duetime.v1 import gateway_pb2
from duetime_core.testing import LocalCluster

from tests.sdk.gateway import NO_SUBSCRIPTION, Gateway

POLLED_ONLY = pytest.mark.parametrize("tap", ["polled"], indirect=True)


@pytest.fixture(params=["subscribed", "polled"])
def tap(tap: Gateway, request: pytest.FixtureRequest) -> Gateway:
    """One with subscriptions, and one whose subscriptions have run out."""
    if request.param == "polled":
        tap.closed["Subscribe"] = NO_SUBSCRIPTION
    return tap


@pytest.fixture
async def filled(tap: Gateway, topic: str) -> str:
    """A topic with queue 0: a0 to a4, queue 1: b0 to b2."""
    await fill(tap, topic, 2)
    return topic


async def fill(tap: Gateway, topic: str, queues: int) -> None:
    await tap.make_topic(topic, queues)
    async with AsyncProducer(tap.node) as producer:
        await producer.send_many(
            Message(topic, f"{name}{n}", queue=queue, tags=("even", "odd")[n % 2], properties={"n": str(n)})
            for queue, name, count in ((0, "a", 5), (1, "b", 3))
            for n in range(count)
        )


def subscribed(tap: Gateway) -> bool:
    return "Subscribe" not in tap.closed


def hide(tap: Gateway, queue: int) -> None:
    """The topic has a queue more than its first description, and the group's first offsets, say."""

    def without(_request: object, answer: Any) -> None:
        tap.after.pop("DescribeTopic" if isinstance(answer, gateway_pb2.TopicDescription) else "GetOffsets")
        for n in reversed(range(len(answer.queues))):
            if answer.queues[n].queue == queue:
                del answer.queues[n]

    tap.after["DescribeTopic"] = tap.after["GetOffsets"] = without


async def take(puller: AsyncPuller, count: int) -> list[bytes]:
    bodies: list[bytes] = []
    while len(bodies) < count:
        bodies += [message.body for message in await puller.poll(count - len(bodies), wait="30s")]
    return bodies


async def test_all_queues_are_read_each_in_order(tap: Gateway, filled: str) -> None:
    async with AsyncPuller(tap.address, filled) as puller:
        bodies = await take(puller, 8)
        assert [body for body in bodies if body.startswith(b"a")] == [b"a0", b"a1", b"a2", b"a3", b"a4"]
        assert [body for body in bodies if body.startswith(b"b")] == [b"b0", b"b1", b"b2"]
        assert puller.positions == {0: 5, 1: 3}


async def test_iteration_follows_and_ends_with_the_puller(tap: Gateway, filled: str) -> None:
    bodies = []
    async with AsyncPuller(tap.address, filled) as puller:
        async for message in puller:
            bodies.append(message.body)
            if len(bodies) == 8:
                await tap.put(filled, b"new", queue=1)
            if message.body == b"new":
                await puller.close()
    assert len(bodies) == 9


async def test_latest_gives_only_later_messages(tap: Gateway, filled: str) -> None:
    async with AsyncPuller(tap.address, filled, start="latest") as puller:
        await tap.put(filled, b"new", queue=0)
        assert await take(puller, 1) == [b"new"]
        assert await puller.poll(wait="0s") == []


async def test_start_may_be_an_offset_of_each_queue(tap: Gateway, filled: str) -> None:
    async with AsyncPuller(tap.address, filled, start={0: 4}) as puller:
        assert sorted(await take(puller, 4)) == [b"a4", b"b0", b"b1", b"b2"]


async def test_positions_follow_returned_messages_and_resume_a_puller(tap: Gateway, filled: str) -> None:
    async with AsyncPuller(tap.address, filled, start={1: 3}) as puller:
        assert await take(puller, 2) == [b"a0", b"a1"]
        positions = puller.positions
    assert positions == {0: 2, 1: 3}
    async with AsyncPuller(tap.address, filled, start=positions) as puller:
        assert await take(puller, 3) == [b"a2", b"a3", b"a4"]


async def test_poll_gives_at_most_max_and_nothing_after_the_wait(tap: Gateway, filled: str) -> None:
    async with AsyncPuller(tap.address, filled, start={1: 3}) as puller:
        assert [len(await puller.poll(max=count, wait="30s")) for count in (2, 2, 2)] == [2, 2, 1]
        assert await puller.poll(max=2, wait="10ms") == []


async def test_filters_are_the_servers_to_apply(tap: Gateway, filled: str) -> None:
    async with AsyncPuller(tap.address, filled, tags="odd || none", sql="n > 1") as puller:
        assert await take(puller, 1) == [b"a3"]
    asked = tap.requests["Subscribe" if subscribed(tap) else "PullQueues"]
    assert (asked[0].tags, asked[0].sql) == ("odd || none", "n > 1")


@pytest.mark.parametrize("tags", [None, "", "*"])
async def test_no_filter_takes_all(tap: Gateway, filled: str, tags: str | None) -> None:
    async with AsyncPuller(tap.address, filled, tags=tags) as puller:
        assert len(await take(puller, 8)) == 8


async def test_an_offset_out_of_range_moves_to_the_nearest_with_a_warning(
    tap: Gateway, filled: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "duetime"):
        async with AsyncPuller(tap.address, filled, start={0: 2, 1: 99}) as puller:
            assert await take(puller, 3) == [b"a2", b"a3", b"a4"]
            await tap.put(filled, b"b3", queue=1)
            assert await take(puller, 1) == [b"b3"]
    texts = [record.getMessage() for record in caplog.records if record.name == "duetime"]
    assert texts == [f"queue 1 of {filled}: offset 99 is outside 0 to 3; continuing at 3"]


async def test_no_more_is_fetched_than_the_window_has(
    tap: Gateway, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscription_module, "WINDOW_BYTES", 20_000)
    monkeypatch.setattr(subscription_module, "PULL_BYTES_MAX", 5_000)
    monkeypatch.setattr(subscription_module, "PULL_COUNT_MAX", 5)
    await tap.put(topic, *[bytes([n]) * 1_000 for n in range(100)])
    async with AsyncPuller(tap.address, topic) as puller:
        assert await take(puller, 1) == [bytes(1_000)]
        for _ in range(200):
            await asyncio.sleep(0)
        if subscribed(tap):
            # Nobody took an answer as a whole yet; a server keeps to its credit (tests/gateway/test_subscribing.py).
            assert [request.credit_bytes for request in tap.requests["Subscribe"]] == [20_000]
        else:
            assert len(tap.requests["PullQueues"]) <= 5
        assert len(await take(puller, 90)) == 90
    # Credit of delivered messages is given back, in halves of the window.
    assert all(request.credit_bytes >= 10_000 for request in tap.requests["Subscribe"])


async def test_queues_of_one_shard_are_asked_for_in_one_call(two_shards: LocalCluster, topic: str) -> None:
    async with Gateway(two_shards) as tap:
        await tap.make_topic(topic, 5)
        async with AsyncPuller(tap.address, topic, start="latest") as puller:
            for queue in range(5):
                await tap.put(topic, b"%d" % queue, queue=queue)
                assert await take(puller, 1) == [b"%d" % queue]
            assert puller.positions == dict.fromkeys(range(5), 1)
    firsts = [request for request in tap.requests["Subscribe"] if request.topic]
    async with AsyncAdmin(two_shards.address) as admin:
        queues = (await admin.topic(topic)).queues
    shards = [[queue.queue for queue in queues if queue.shard == shard] for shard in range(2)]
    assert sorted(sorted(one.queue for one in request.queues) for request in firsts) == sorted(shards)
    assert all(shards)


@POLLED_ONLY
async def test_busy_queue_delays_no_other_by_more_than_an_answer(
    tap: Gateway, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Puts its queue behind the others; a store does so for subscriptions (tests/store/test_subscriptions.py)."""
    monkeypatch.setattr(subscription_module, "PULL_COUNT_MAX", 10)
    await tap.make_topic(topic, 4)
    for queue in range(4):
        await tap.put(topic, *[b"busy" if queue < 2 else b"quiet"] * (100 if queue < 2 else 1), queue=queue)
    async with AsyncPuller(tap.address, topic) as puller:
        bodies = await take(puller, 202)
        assert max(n for n, body in enumerate(bodies) if body == b"quiet") <= 22
        assert puller.positions == {0: 100, 1: 100, 2: 1, 3: 1}


async def test_a_server_restart_is_survived(tap: Gateway, filled: str, caplog: pytest.LogCaptureFixture) -> None:
    async with AsyncPuller(tap.address, filled) as puller:
        assert len(await take(puller, 8)) == 8
        await tap.stop()
        # One warning: the call that was out was ended, or, where none was, no server answers.
        while not any(f"{filled}, shard 0: " in record.getMessage() for record in caplog.records):
            assert await puller.poll(wait="50ms") == []
        await tap.put(filled, b"new", queue=1)
        await tap.start()
        assert await take(puller, 1) == [b"new"]


async def test_a_new_queue_of_the_topic_is_noticed(tap: Gateway, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(puller_module, "ROUTE_INTERVAL_S", 0.01)
    await fill(tap, topic, 3)
    hide(tap, 2)
    async with AsyncPuller(tap.address, topic, start="latest") as puller:
        assert set(puller.positions) == {0, 1}
        await tap.put(topic, b"c0", queue=2)
        assert await take(puller, 1) == [b"c0"]
        assert puller.positions == {0: 5, 1: 3, 2: 1}


async def test_a_topic_that_does_not_exist_is_not_found(tap: Gateway, topic: str) -> None:
    with pytest.raises(NotFound, match=f"topic {topic}"):
        async with AsyncPuller(tap.address, topic):
            pass


async def test_a_start_at_a_queue_that_does_not_exist_is_not_found(tap: Gateway, filled: str) -> None:
    with pytest.raises(NotFound, match=f"topic {filled} has 2 queues, but no queue 7"):
        await AsyncPuller(tap.address, filled, start={7: 1}).poll()


async def test_a_pull_that_is_refused_ends_the_polls(tap: Gateway, filled: str) -> None:
    async with AsyncPuller(tap.address, filled, sql="size >>") as puller:
        for _ in range(2):
            with pytest.raises(InvalidArgument, match="sql: "):
                await puller.poll(wait="30s")


async def test_polling_a_closed_puller_is_an_error(tap: Gateway, filled: str) -> None:
    puller = AsyncPuller(tap.address, filled)
    await puller.poll(max=8)
    await puller.close()
    await puller.close()
    with pytest.raises(Closed):
        await puller.poll(max=8)


async def test_closing_wakes_a_poll_that_waits(tap: Gateway, filled: str) -> None:
    puller = AsyncPuller(tap.address, filled, start="latest")
    await puller.open()
    polling = asyncio.create_task(puller.poll(wait="1h"))
    await asyncio.sleep(0)
    await puller.close()
    with pytest.raises(Closed):
        await polling


async def test_a_cancelled_poll_loses_nothing(tap: Gateway, filled: str) -> None:
    async with AsyncPuller(tap.address, filled, start="latest") as puller:
        polling = asyncio.create_task(puller.poll(wait="1h"))
        await asyncio.sleep(0)
        polling.cancel()
        await tap.put(filled, b"new", queue=0)
        assert await take(puller, 1) == [b"new"]


async def test_a_group_resumes_at_its_commit(tap: Gateway, filled: str, group: str) -> None:
    async with AsyncPuller(tap.address, filled, group=group, start={1: 2}) as puller:
        assert await take(puller, 2) == [b"a0", b"a1"]
        await puller.commit()
    assert [(one.queue, one.offset) for one in tap.requests["CommitOffsets"][0].queues] == [(0, 2), (1, 2)]
    async with AsyncPuller(tap.address, filled, group=group, start="latest") as puller:
        assert sorted(await take(puller, 4)) == [b"a2", b"a3", b"a4", b"b2"]
    async with AsyncPuller(tap.address, filled, group=f"{group}-audit", start="latest") as puller:
        assert puller.positions == {0: 5, 1: 3}


async def test_commit_sends_changed_offsets(tap: Gateway, filled: str, group: str) -> None:
    positions = [gateway_pb2.QueuePosition(queue=0, offset=99), gateway_pb2.QueuePosition(queue=1, offset=3)]
    tap.after["GetOffsets"] = lambda *_: gateway_pb2.GetOffsetsResponse(queues=positions)
    async with AsyncPuller(tap.address, filled, group=group) as puller:
        await puller.commit()
        assert tap.requests["CommitOffsets"] == []
        await tap.put(filled, b"b3", queue=1)
        while puller.positions != {0: 5, 1: 4}:
            await puller.poll()
        await puller.commit()
        await puller.commit()
        assert len(tap.requests["CommitOffsets"]) == 1
        await puller.commit({0: 1})
    commits = [{one.queue: one.offset for one in request.queues} for request in tap.requests["CommitOffsets"]]
    assert commits == [{0: 5, 1: 4}, {0: 1}]


async def test_commit_is_repeated_until_it_is_answered(tap: Gateway, filled: str, group: str) -> None:
    tap.lose("CommitOffsets", codes=[grpc.StatusCode.UNAVAILABLE] * 2)
    async with AsyncPuller(tap.address, filled, group=group) as puller:
        await take(puller, 8)
        await puller.commit()
        assert len(tap.requests["CommitOffsets"]) == 3
        with pytest.raises(InvalidArgument, match="99"):
            await puller.commit({0: 99})


async def test_a_commit_needs_a_group(tap: Gateway, filled: str) -> None:
    async with AsyncPuller(tap.address, filled) as puller:
        with pytest.raises(ValueError, match="group: is not given"):
            await puller.commit()


async def test_new_queue_starts_where_the_group_has_committed(
    tap: Gateway, topic: str, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(puller_module, "ROUTE_INTERVAL_S", 0.01)
    await fill(tap, topic, 3)
    await tap.put(topic, b"c0", b"c1", queue=2)
    async with AsyncPuller(tap.node, topic, group=group) as other:
        await other.commit({2: 1})
    hide(tap, 2)
    async with AsyncPuller(tap.address, topic, group=group, start="latest") as puller:
        assert await take(puller, 1) == [b"c1"]


@pytest.mark.parametrize("start", ["now", "", "5"])
def test_a_start_that_is_no_start_is_refused(start: str) -> None:
    with pytest.raises(ValueError, match="is neither 'earliest', 'latest', a datetime nor"):
        AsyncPuller("localhost:9800", "orders", start=start)  # type: ignore[arg-type]


@pytest.mark.parametrize("wait", ["2", 2, "two", -1, "-1s", float("nan")])
async def test_a_wait_that_is_no_length_is_refused(tap: Gateway, topic: str, wait: str | float) -> None:
    with pytest.raises(ValueError, match="wait"):
        await AsyncPuller(tap.address, topic).poll(wait=wait)  # type: ignore[arg-type]


async def test_after_a_restart_a_puller_takes_what_the_server_has_left(
    tap: Gateway, filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So that it makes no difference whether a poll fails at the restart, or gRPC carries it over.
    monkeypatch.setattr(subscription_module, "STREAMLESS_S", 0.05)
    async with AsyncPuller(tap.address, filled) as puller:
        assert len(await take(puller, 8)) == 8
        await tap.stop()
        if tap.closed.pop("Subscribe", None) is None:
            tap.closed["Subscribe"] = NO_SUBSCRIPTION
        await tap.put(filled, b"new", queue=1)
        await tap.start()
        assert await take(puller, 1) == [b"new"]
        assert puller.positions == {0: 5, 1: 4}
        while not (tap.requests["Subscribe"] and tap.requests["PullQueues"]):
            await tap.put(filled, b"newer", queue=1)
            assert await take(puller, 1) == [b"newer"]


async def test_messages_fetched_before_a_stream_ended_come_once(
    tap: Gateway, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A few messages an answer.
    monkeypatch.setattr(subscription_module, "WINDOW_BYTES", 1_000)
    monkeypatch.setattr(subscription_module, "PULL_COUNT_MAX", 3)
    await tap.make_topic(topic, 2)
    for queue in range(2):
        await tap.put(topic, *[b"%d" % n for n in range(queue, 60, 2)], queue=queue)
    bodies: list[bytes] = []
    async with AsyncPuller(tap.address, topic) as puller:
        while len(bodies) < 60:
            bodies += await take(puller, 6)
            await tap.stop()
            await tap.start()
    assert [body for body in bodies if int(body) % 2 == 0] == [b"%d" % n for n in range(0, 60, 2)]
    assert [body for body in bodies if int(body) % 2] == [b"%d" % n for n in range(1, 60, 2)]


@pytest.mark.parametrize("start", ["earliest", "latest"])
async def test_topic_is_waited_for(tap: Gateway, topic: str, start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(puller_module, "MISSING_INTERVAL_S", 0.01)
    with pytest.raises(NotFound):
        await AsyncPuller(tap.address, topic).open()
    async with AsyncPuller(tap.address, topic, start=start, missing_ok=True) as puller:
        assert (await puller.poll(wait="0s"), puller.positions) == ([], {})
        await fill(tap, topic, 2)
        bodies = [(await anext(puller)).body for _ in range(8)]
    assert sorted(bodies) == [b"a0", b"a1", b"a2", b"a3", b"a4", b"b0", b"b1", b"b2"]


async def test_refusal_while_a_topic_is_waited_for_is_raised(
    tap: Gateway, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(puller_module, "MISSING_INTERVAL_S", 0.01)
    async with AsyncPuller(tap.address, topic, start={7: 0}, missing_ok=True) as puller:
        await tap.make_topic(topic, 2)
        with pytest.raises(NotFound, match="no queue 7"):
            await puller.poll(wait="60s")
