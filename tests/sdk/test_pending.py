"""Clients that cancel, reschedule, list and count pending messages."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from itertools import repeat
from typing import Any

import grpc
import pytest
from duetime import (
    AsyncFinder,
    AsyncProducer,
    CancelResult,
    InvalidArgument,
    InvalidMessage,
    Message,
    NotFound,
    Receipt,
    ServerError,
    Timeout,
    Unavailable,
)
from duetime.client.message import moment
from duetime.client.sending.ending import REQUEST_BYTES_MAX, REQUEST_COUNT_MAX
from duetime.v1 import message_pb2
from duetime.v1 import pending_pb2 as pb
from duetime_core.testing import LocalCluster
from duetime_format.limits import BODY_BYTES_MAX

from tests.sdk.gateway import Gateway

CANCELLED, FIRED, NOT_FOUND = CancelResult.CANCELLED, CancelResult.ALREADY_FIRED, CancelResult.NOT_FOUND
DELAY = timedelta(hours=2)


@pytest.fixture
async def producer(tap: Gateway, quick: None) -> AsyncIterator[AsyncProducer]:
    async with AsyncProducer(tap.address, timeout="60s") as producer:
        yield producer


@pytest.fixture
async def hasty(tap: Gateway, quick: None) -> AsyncIterator[AsyncProducer]:
    async with AsyncProducer(tap.address, timeout="200ms") as producer:
        yield producer


@pytest.fixture
async def finder(tap: Gateway) -> AsyncIterator[AsyncFinder]:
    async with AsyncFinder(tap.address) as finder:
        yield finder


async def wait_for(tap: Gateway, topic: str, count: int = 1) -> list[str]:
    """Ids of messages that are pending, each due 1 ms after the one before it."""
    ids = [f"{topic}-{n}" for n in range(count)]
    # Delays that equal no level's.
    delays = [DELAY + timedelta(milliseconds=1 + n) for n in range(count)]
    async with AsyncProducer(tap.node) as producer:
        sent = await producer.send_many(
            Message(topic, b"body", id=one, key="k", delay=delay, queue=n % 2)
            for n, (one, delay) in enumerate(zip(ids, delays, strict=True))
        )
    assert all(isinstance(one, Receipt) for one in sent)
    return ids


def asked(tap: Gateway, method: str = "Cancel") -> list[int]:
    """How many messages each request has."""
    return [len(request.messages) for request in tap.requests[method]]


def receipt(**fields: Any) -> Receipt:
    return Receipt(message_pb2.SendResult(message_id="m1", shard=3, offset=5, **fields), "orders")


async def test_a_receipt_and_an_id_are_cancelled(two_shards: LocalCluster, topic: str) -> None:
    async with Gateway(two_shards) as tap, AsyncProducer(tap.address) as producer:
        sent = [await producer.send(topic, b"x", queue=queue, delay=DELAY) for queue in range(4)]
        by_receipt = next(one for one in sent if one.shard)
        fired = await producer.send(topic, b"x")
        assert await producer.cancel(by_receipt) is CANCELLED
        assert await producer.cancel(fired.message_id) is FIRED
        assert await producer.cancel("none") is NOT_FOUND
    first, second, _ = (request.messages[0] for request in tap.requests["Cancel"])
    assert (first.message_id, first.topic, first.shard) == (by_receipt.message_id, topic, 1)
    assert (first.lane, first.entry) == (by_receipt.lane, by_receipt.offset)
    assert (second.message_id, second.topic, second.lane) == (fired.message_id, "", 0)


def test_a_receipt_without_a_lane_names_its_topic_only() -> None:
    """A message without a delay."""
    ref = receipt(lane=0)._ref()
    assert (ref.message_id, ref.topic, ref.shard, ref.lane, ref.entry) == ("m1", "orders", 0, 0, 0)


async def test_any_number_is_split_into_requests(
    tap: Gateway, topic: str, producer: AsyncProducer, finder: AsyncFinder
) -> None:
    ids = await wait_for(tap, topic, 2 * REQUEST_COUNT_MAX + 2)
    ids.insert(7, "none")
    assert await producer.cancel((one for one in ids), topic=topic) == [
        CANCELLED if one != "none" else NOT_FOUND for one in ids
    ]
    assert sorted(asked(tap)) == [3, REQUEST_COUNT_MAX, REQUEST_COUNT_MAX]
    assert (await finder.backlog(topic)).pending == 0
    assert await producer.cancel([]) == []


async def test_large_bodies_are_split_too(tap: Gateway, topic: str, producer: AsyncProducer) -> None:
    ids = await wait_for(tap, topic, 3)
    body = bytes(REQUEST_BYTES_MAX // 2 - 100)
    results = await producer.reschedule(ids, delay=DELAY, body=body)
    assert [getattr(one, "status", one) for one in results] == ["rescheduled"] * 3
    assert sorted(asked(tap, "Reschedule")) == [1, 2]
    assert await producer.cancel(ids) == [CANCELLED] * 3


async def test_lost_answers_and_unreachable_shards_are_asked_again(
    tap: Gateway, topic: str, producer: AsyncProducer
) -> None:
    ids = await wait_for(tap, topic, 3)
    tap.lose("Cancel", codes=[grpc.StatusCode.UNAVAILABLE])
    assert await producer.cancel(ids) == [CANCELLED] * 3
    assert asked(tap) == [3, 3]
    away = message_pb2.Fault(code=14, reason="SHARD_UNAVAILABLE", message="shard 1 is away", retriable=True)

    def refuse(_request: pb.CancelRequest, answer: pb.CancelResponse) -> None:
        tap.after.pop("Cancel")
        answer.results[1].CopyFrom(pb.CancelResult(fault=away))

    tap.after["Cancel"] = refuse
    assert await producer.cancel([*ids, "none"]) == [*[CANCELLED] * 3, NOT_FOUND]
    # Only the message without a result is requested again.
    assert asked(tap)[2:] == [4, 1]
    assert tap.requests["Cancel"][3].messages[0].message_id == ids[1]


async def test_unknown_outcome_of_a_cancel_is_an_error(
    tap: Gateway, topic: str, producer: AsyncProducer, hasty: AsyncProducer
) -> None:
    (one,) = await wait_for(tap, topic)
    tap.lose("Cancel", codes=repeat(grpc.StatusCode.UNAVAILABLE))
    (error,) = await hasty.cancel([one], errors="return")
    # The last attempt may run into the deadline.
    assert isinstance(error, Unavailable | Timeout)
    assert error.message_id == one
    with pytest.raises((Unavailable, Timeout)):
        await hasty.cancel(one)
    tap.lose("Cancel", codes=[grpc.StatusCode.NOT_FOUND])
    with pytest.raises(NotFound):
        await producer.cancel(one)
    tap.after["Cancel"] = lambda _, answer: answer.ClearField("results")
    with pytest.raises(ServerError, match="the server returned 0 results for 1 messages"):
        await producer.cancel(one)


async def test_wrong_type_of_message_is_a_type_error(producer: AsyncProducer) -> None:
    with pytest.raises(TypeError, match="5 is not a receipt, a found message or an id"):
        await producer.cancel([5])  # type: ignore[list-item]
    with pytest.raises(TypeError, match=r"None is not a receipt, a found message, an id, or an iterable of these"):
        await producer.cancel(None)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="b'm1' is not a receipt"):
        await producer.reschedule(b"m1", delay="1h")  # type: ignore[call-overload]
    with pytest.raises(InvalidMessage, match=r"message_id: .* surrogates not allowed"):
        await producer.cancel("\ud800")
    with pytest.raises(TypeError, match="body is int, not bytes, str, dict"):
        await producer.reschedule("m1", delay="1h", body=42)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("after", "before", "field", "text"),
    [
        (datetime(2026, 1, 2), datetime(2026, 1, 1), "before", "is not later than `after`, 2026-01-02"),
        (datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC), "before", "is not later than"),
        ("2026-01-01", None, "after", "is not a datetime"),
        (None, 5, "before", "is not a datetime"),
    ],
)
async def test_a_range_of_due_times_is_checked(
    tap: Gateway, finder: AsyncFinder, after: object, before: object, field: str, text: str
) -> None:
    with pytest.raises(InvalidArgument, match=text) as caught:
        await anext(finder.pending(after=after, before=before))  # type: ignore[arg-type]
    assert caught.value.violations[0].field == field
    assert not tap.arrived


async def test_a_range_may_reach_to_the_ends_of_the_calendar(tap: Gateway, topic: str, finder: AsyncFinder) -> None:
    ids = await wait_for(tap, topic, 3)
    for after, before in ((datetime.min, datetime.max), (datetime.min.replace(tzinfo=UTC), datetime.max)):
        assert [one.id async for one in finder.pending(topic, after=after, before=before)] == ids


async def test_messages_get_another_time(tap: Gateway, topic: str, producer: AsyncProducer) -> None:
    sent = await producer.send(topic, b"old", delay=DELAY)
    fired = await producer.send(topic, b"x")
    now = moment(tap.nodes.now_ms())
    moved = await producer.reschedule(sent, delay="1h30m1s", body=b"new")
    assert (moved.status, moved.message_id, moved.was_past) == ("rescheduled", sent.message_id, False)
    assert moved.deliver_at == now + timedelta(hours=1, minutes=30, seconds=1)
    assert moved.place == (0, 1_000, moved.place[2])
    (first,) = tap.requests["Reschedule"][0].messages
    assert (first.message.entry, first.delay_ms, first.body) == (sent.offset, 5_401_000, b"new")
    one, second, none = await producer.reschedule(
        [sent.message_id, fired.message_id, "none"], deliver_at=datetime(2020, 12, 24, 18, tzinfo=UTC)
    )
    assert [getattr(each, "status", each) for each in (one, second, none)] == [
        "rescheduled",
        "already fired",
        "not found",
    ]
    assert not tap.requests["Reschedule"][1].messages[0].HasField("body")
    assert getattr(one, "was_past", None)


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({}, "delay"),
        ({"delay": "5s", "deliver_at": datetime(2026, 1, 1, tzinfo=UTC)}, "delay"),
        ({"delay": "-1s"}, "delay"),
        ({"delay": 30}, "delay"),
        ({"delay": "99999d"}, "delay"),
        ({"deliver_at": datetime(2026, 1, 1)}, "deliver_at"),
        ({"delay": "5s", "body": b"x" * (BODY_BYTES_MAX + 1)}, "body"),
    ],
)
async def test_a_malformed_reschedule_is_refused(
    tap: Gateway, producer: AsyncProducer, asked: dict[str, object], field: str
) -> None:
    with pytest.raises(InvalidMessage) as caught:
        await producer.reschedule("m1", **asked)  # type: ignore[call-overload]
    assert caught.value.violations[0].field == field
    assert not tap.arrived


async def test_cancels_by_filter_are_counted(tap: Gateway, topic: str, producer: AsyncProducer) -> None:
    await wait_for(tap, topic, 3)
    await producer.send(topic, b"x", delay=DELAY, key="other")
    now = moment(tap.nodes.now_ms())
    before = now + 2 * DELAY
    for dry_run, cancelled in ((True, 0), (False, 3)):
        *_, last = [one async for one in producer.cancel_matching(topic, key="k", before=before, dry_run=dry_run)]
        assert (last.matched, last.cancelled, last.already_fired, last.done) == (3, cancelled, 0, True)
        assert last.looked_until == now + DELAY + timedelta(milliseconds=3)
    first, second = tap.requests["CancelMatching"]
    assert (first.filter.topic, first.filter.key, first.dry_run, second.dry_run) == (topic, "k", True, False)
    assert (first.filter.due_from_ms, moment(first.filter.due_before_ms)) == (0, before)


async def test_pending_messages_are_listed_page_by_page(
    tap: Gateway, topic: str, finder: AsyncFinder, producer: AsyncProducer
) -> None:
    ids = await wait_for(tap, topic, 8)
    tap.before["ListPending"] = lambda request: setattr(request, "max_count", 3)
    due = moment(tap.nodes.now_ms()) + DELAY + timedelta(milliseconds=1)
    listed = finder.pending(topic, key="k")
    first = await anext(listed)
    assert len(tap.requests["ListPending"]) == 1
    assert (first.id, first.topic, first.queue, first.keys, first.body) == (ids[0], topic, 0, ["k"], b"body")
    assert (first.due_at, first.place[:2]) == (due, (0, 1_000))
    assert [one.id async for one in listed] == ids[1:]
    tokens = [request.page_token for request in tap.requests["ListPending"]]
    # A server in a hurry returns shorter pages.
    assert tokens[0] == b""
    assert len(tokens) >= 3
    assert all(tokens[1:])
    assert await producer.cancel(first) is CANCELLED
    assert tap.requests["Cancel"][-1].messages[0].entry == first.place[2]
    assert [one.body async for one in finder.pending(topic, bodies=False)] == [b""] * 7


async def test_a_found_message_shows_its_lane(
    tap: Gateway, topic: str, finder: AsyncFinder, producer: AsyncProducer
) -> None:
    ids = await wait_for(tap, topic, 3)
    places = [one.place async for one in finder.pending(topic)]
    found = await finder.get(ids[1])
    assert (found.state, found.lane, found.entry) == ("pending", 1_000, places[1][2])
    counts = [(await finder.get(one)).before_count or 0 for one in ids]
    assert 0 < counts[1] < counts[2]
    assert await producer.cancel(found) is CANCELLED
    assert tap.requests["Cancel"][-1].messages[0].entry == found.entry
    found = await finder.get(ids[1])
    assert (found.state, found.lane, found.entry, found.before_count) == ("cancelled", None, None, None)


async def test_the_backlog_is_counted(tap: Gateway, topic: str, finder: AsyncFinder) -> None:
    await wait_for(tap, topic, 4)
    more = pb.BacklogResponse(overdue_count=1, unreachable_shards=[2])
    tap.after["Backlog"] = lambda _, answer: answer.MergeFrom(more)
    after = moment(tap.nodes.now_ms())
    found = await finder.backlog(topic, after=after, by_lane=True)
    assert (found.pending, found.overdue, found.unreachable_shards) == (4, 1, [2])
    assert found.at == after
    (count,) = found.counts
    assert count.start <= after + DELAY < count.start + count.width
    assert (count.count, count.topic, count.lane) == (4, topic, 1_000)
    request = tap.requests["Backlog"][0]
    assert (request.all_topics_together, request.all_lanes_together) == (True, False)
    assert (moment(request.due_from_ms), request.due_before_ms) == (after, 0)


def test_receipts_state_the_result() -> None:
    one = receipt(lane=1_000, was_past=True, replaced_id="m0")
    assert (one.lane, one.level, one.was_past, one.replaced_id) == (1_000, None, True, "m0")
    level = receipt(lane=3, delay_level=3)
    assert (level.lane, level.level, level.was_past, level.replaced_id) == (3, 3, False, None)
    old = receipt(lane=0, delay_level=3)
    assert (old.lane, old.level) == (3, 3)


async def test_topic_that_does_not_exist_has_nothing_if_that_is_allowed(tap: Gateway, topic: str) -> None:
    async with AsyncFinder(tap.address) as finder:
        with pytest.raises(NotFound):
            await anext(finder.pending(topic))
        with pytest.raises(NotFound):
            await finder.find(topic, "42")
        assert [one async for one in finder.pending(topic, missing_ok=True)] == []
        assert await finder.find(topic, "42", missing_ok=True) == []
