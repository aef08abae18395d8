"""Topics, groups, lanes and the backlog by `Admin`, of a cluster."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from duetime import (
    Admin,
    AlreadyExists,
    AsyncAdmin,
    Conflict,
    InvalidArgument,
    InvalidMessage,
    LeasedMessage,
    NotFound,
    Producer,
    Receiver,
    RetriesProgress,
    Unavailable,
)
from duetime_core.testing import LocalCluster


def test_topics_are_created_listed_and_described(cluster: LocalCluster, producer: Producer) -> None:
    with Admin(cluster.address) as admin:
        made = admin.create_topic("admin-orders", queues=3, max_delay="30d")
        assert (made.name, made.queue_count, made.max_delay) == ("admin-orders", 3, timedelta(days=30))
        assert admin.create_topic("admin-orders", queues=3, max_delay=timedelta(days=30)) == made
        assert made in admin.topics()
        with pytest.raises(AlreadyExists):
            admin.create_topic("admin-orders", queues=4)
        producer.send("admin-orders", b"x", queue=2)
        described = admin.topic("admin-orders")
        assert described.topic == made
        assert [(one.queue, one.min_offset, one.max_offset) for one in described.queues] == [
            (0, 0, 0),
            (1, 0, 0),
            (2, 0, 1),
        ]
        assert admin.create_topic("admin-plain").max_delay is None
        with pytest.raises(NotFound):
            admin.topic("admin-none")
        with pytest.raises(InvalidMessage, match="max_delay: 'soon'"):
            admin.create_topic("admin-late", max_delay="soon")


def test_topics_are_deleted(cluster: LocalCluster, producer: Producer) -> None:
    with Admin(cluster.address) as admin, Receiver(cluster.address, "admin-gone", group="admin-reader") as receiver:
        producer.send("admin-gone", b"x")
        (message,) = receiver.receive()
        receiver.ack([message])
        producer.send("admin-gone", b"y", delay="1h")
        with pytest.raises(Conflict, match="1 pending"):
            admin.delete_topic("admin-gone")
        told = admin.delete_topic("admin-gone", dry_run=True)
        assert (told.pending, told.transactions, told.is_empty) == (1, 0, False)
        assert admin.delete_topic("admin-gone", force=True) == told
        with pytest.raises(NotFound):
            admin.topic("admin-gone")


def test_groups_are_created_listed_and_described(cluster: LocalCluster, producer: Producer) -> None:
    since = datetime(2026, 1, 1, tzinfo=UTC)
    with Admin(cluster.address) as admin:
        made = admin.create_group("admin-billing", ordered=True, start=since, backoff="1s,5s", max_attempts=4)
        assert (made.name, made.start, made.ordered, made.retry) == ("admin-billing", since, True, "1s,5s,max=4")
        assert made in admin.groups()
        assert admin.create_group("admin-latest", start="latest").start == "latest"
        assert admin.create_group("admin-first").start == "earliest"
        with pytest.raises(AlreadyExists):
            admin.create_group("admin-billing")
        with pytest.raises(InvalidArgument, match="start: 'soon'"):
            admin.create_group("admin-soon", start="soon")  # type: ignore[arg-type]
        admin.create_topic("admin-parcels", queues=1)
        producer.send("admin-parcels", b"1")
        producer.send("admin-parcels", b"2")
        with Receiver(cluster.address, "admin-parcels", group="admin-first") as receiver:
            (first,) = receiver.receive(max=1, wait="30s")
            receiver.ack(first)
            receiver.receive(max=1, wait="30s")
            described = admin.group("admin-first")
        (queue,) = [one for one in described.queues if one.topic == "admin-parcels"]
        assert (queue.acknowledged_offset, queue.next_offset, queue.max_offset) == (1, 2, 2)
        assert (described.lag, queue.lag, queue.in_flight, queue.waiting) == (1, 1, 1, 0)
        assert queue.oldest_unacknowledged_at is not None
        assert [member.topic for member in described.members] == ["admin-parcels"]
        assert (described.group.name, described.dead_letters, described.unreachable_shards) == ("admin-first", 0, [])
        with pytest.raises(NotFound):
            admin.group("admin-none")


@pytest.fixture
def receiver(cluster: LocalCluster, producer: Producer) -> Iterator[Receiver]:
    """Its group `admin-retry` failed five messages, `a` to `e`, of which `d` and `e` are due first."""
    for name in "abcde":
        producer.send("admin-retries", b"x", id=name)
    with Receiver(cluster.address, "admin-retries", group="admin-retry") as receiver:
        taken: list[LeasedMessage] = []
        while len(taken) < 5:
            taken += receiver.receive()
        for message in taken:
            error, after = (KeyError("7"), "1h") if message.id in "de" else (TimeoutError("bank"), "2h")
            receiver.nack(message, error, after=after)
        yield receiver


def test_lapsed_messages_are_counted(cluster: LocalCluster) -> None:
    with Producer(cluster.address) as producer:
        producer.send("admin-lapsed", b"x", expires="1s")
        producer.send("admin-lapsed", b"kept")
    cluster.advance("1s")
    with Receiver(cluster.address, "admin-lapsed", group="admin-lapse") as receiver:
        (kept,) = receiver.receive()
        receiver.ack(kept)
    with Admin(cluster.address) as admin:
        described = admin.group("admin-lapse")
    assert (kept.body, described.lapsed_messages, described.lag) == (b"kept", 1, 0)


def test_waiting_retries_are_listed_and_ended(
    cluster: LocalCluster, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duetime.client.administering.admin.PAGE_COUNT", 2)
    group = "admin-retry"
    with Admin(cluster.address) as admin:
        described = admin.group(group)
        assert (described.waiting_retries, described.counting_shards, described.lag) == (5, [], 0)
        first, *others = admin.retries(group)
        assert {first.id, others[0].id} == {"d", "e"}
        assert {one.id for one in others[1:]} == {"a", "b", "c"}
        assert (first.topic, first.body, first.deliveries, first.error) == ("admin-retries", b"x", 1, "KeyError: '7'")
        assert described.next_retry_at == first.next_at
        assert [(one.attempt, one.error_type) for one in first.attempts] == [(1, "KeyError")]
        assert [one.body for one in admin.retries(group, topic="admin-retries", error="BANK", bodies=False)] == [
            b""
        ] * 3
        with pytest.raises(TypeError, match="ids=\\['a'\\]"):
            admin.retry_now(group, ids="a")

        assert list(admin.retry_now(group, ids=["a"], dry_run=True))[-1] == RetriesProgress(1, 0, 0, done=True)
        assert list(admin.retry_now(group, ids=["a"]))[-1] == RetriesProgress(1, 1, 0, done=True)
        cluster.advance("2ms")
        (again,) = receiver.receive()
        assert (again.id, again.attempt) == ("a", 2)
        assert list(admin.discard_retries(group, error="keyerror"))[-1] == RetriesProgress(2, 2, 0, done=True)
        assert {one.id for one in admin.retries(group)} == {"b", "c"}
        for ended in (admin.retries("admin-none"), admin.retry_now("admin-none"), admin.discard_retries("admin-none")):
            with pytest.raises(NotFound):
                list(ended)


def test_lanes_and_backlog_show_pending_messages(cluster: LocalCluster, producer: Producer) -> None:
    with Admin(cluster.address) as admin:
        before = {lane.number: lane.pending for lane in admin.lanes()}
        receipt = producer.send("admin-late", b"x", delay="2h")
        producer.send("admin-late", b"x", delay="90m")
        lanes = admin.lanes()
        assert lanes.unreachable_shards == ()
        (lane,) = [one for one in lanes if one.number == receipt.level]
        assert (lane.delay, lane.pending - before[lane.number]) == (timedelta(hours=2), 1)
        assert (lane.shard, lane.paused, bool(lane.owner)) == (0, False, True)
        assert any(one.delay is None and one.pending for one in lanes)
        backlog = admin.backlog("admin-late")
        assert (backlog.pending, backlog.overdue, backlog.unreachable_shards) == (2, 0, [])
        assert {count.topic for count in admin.backlog("admin-late", by_topic=True).counts} == {"admin-late"}
        with pytest.raises(InvalidArgument, match="before: "):
            admin.backlog(after=datetime(2026, 1, 2, tzinfo=UTC), before=datetime(2026, 1, 1, tzinfo=UTC))


async def test_calls_are_repeated_until_they_are_answered(quick: None) -> None:
    async with AsyncAdmin("127.0.0.1:1", timeout="200ms") as admin:
        with pytest.raises(Unavailable):
            await admin.topics()
