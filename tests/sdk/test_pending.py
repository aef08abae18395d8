"""Clients that cancel, reschedule, list and count pending messages."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import grpc
import pytest
from duetime import (
    AsyncFinder,
    AsyncProducer,
    CancelResult,
    InvalidArgument,
    InvalidMessage,
    NotFound,
    Receipt,
    ServerError,
    Timeout,
    Unavailable,
)
from duetime.client.message import moment
from duetime.client.sending.ending import REQUEST_BYTES_MAX, REQUEST_COUNT_MAX
from duetime.v1 import message_pb2
from duetime_format.limits import BODY_BYTES_MAX

from tests.sdk.fake_pending import DUE_MS, FakePendingGateway

CANCELLED, FIRED, NOT_FOUND = CancelResult.CANCELLED, CancelResult.ALREADY_FIRED, CancelResult.NOT_FOUND


@pytest.fixture
async def gateway() -> AsyncIterator[FakePendingGateway]:
    gateway = FakePendingGateway(count=8)
    gateway.fired.add("m7")
    await gateway.start()
    yield gateway
    await gateway.stop()


@pytest.fixture
async def producer(gateway: FakePendingGateway, quick: None) -> AsyncIterator[AsyncProducer]:
    async with AsyncProducer(gateway.address, timeout=10) as producer:
        yield producer


@pytest.fixture
async def hasty(gateway: FakePendingGateway, quick: None) -> AsyncIterator[AsyncProducer]:
    """A producer that gives up soon, but not while a busy machine thinks."""
    async with AsyncProducer(gateway.address, timeout=2) as producer:
        yield producer


@pytest.fixture
async def finder(gateway: FakePendingGateway) -> AsyncIterator[AsyncFinder]:
    async with AsyncFinder(gateway.address) as finder:
        yield finder


def receipt(message_id: str = "m1", **fields: object) -> Receipt:
    values = {"message_id": message_id, "shard": 3, "lane": 1_000, "offset": 5, "deliver_at_ms": DUE_MS, **fields}
    return Receipt(message_pb2.SendResult(**values), "orders")  # type: ignore[arg-type]


async def test_a_receipt_and_an_id_are_cancelled(gateway: FakePendingGateway, producer: AsyncProducer) -> None:
    assert await producer.cancel(receipt()) is CANCELLED
    assert await producer.cancel("m7") is FIRED
    assert await producer.cancel("none") is NOT_FOUND
    by_receipt, by_id, _ = (call.messages[0] for call in gateway.calls)
    assert (by_receipt.message_id, by_receipt.topic) == ("m1", "orders")
    assert (by_receipt.shard, by_receipt.lane, by_receipt.entry) == (3, 1_000, 5)
    assert (by_id.message_id, by_id.topic, by_id.lane) == ("m7", "", 0)


async def test_a_receipt_without_a_lane_names_its_topic_only(
    gateway: FakePendingGateway, producer: AsyncProducer
) -> None:
    """Of a message that was not delayed, or of a gateway of release 0.1."""
    await producer.cancel(receipt(lane=0, delay_level=3))
    (ref,) = gateway.calls[0].messages
    assert (ref.message_id, ref.topic, ref.shard, ref.lane, ref.entry) == ("m1", "orders", 0, 0, 0)


async def test_any_number_is_split_into_requests(gateway: FakePendingGateway, producer: AsyncProducer) -> None:
    gateway.count = 10_000
    ids = [f"m{n}" for n in range(2 * REQUEST_COUNT_MAX + 3)]
    assert await producer.cancel(one for one in ids) == [CANCELLED if one != "m7" else FIRED for one in ids]
    assert sorted(len(call.messages) for call in gateway.calls) == [3, REQUEST_COUNT_MAX, REQUEST_COUNT_MAX]
    assert gateway.cancelled == set(ids) - {"m7"}
    assert await producer.cancel([]) == []


async def test_large_bodies_are_split_too(gateway: FakePendingGateway, producer: AsyncProducer) -> None:
    body = bytes(REQUEST_BYTES_MAX // 2 - 100)
    results = await producer.reschedule(["m0", "m1", "m2"], delay=5, body=body)
    assert [getattr(one, "status", one) for one in results] == ["rescheduled"] * 3
    assert sorted(len(call.messages) for call in gateway.calls) == [1, 2]


async def test_lost_answers_and_shards_that_are_away_are_asked_again(
    gateway: FakePendingGateway, producer: AsyncProducer
) -> None:
    gateway.statuses.append(grpc.StatusCode.UNAVAILABLE)
    gateway.away.add("m1")
    assert await producer.cancel(["m0", "m1", "m7"]) == [CANCELLED, CANCELLED, FIRED]
    # The first answer was lost; after that only what is not known is asked for.
    assert [len(call.messages) for call in gateway.calls] == [3, 3]
    gateway.away.add("m1")
    assert await producer.cancel(["m0", "m1", "m7"]) == [CANCELLED, CANCELLED, FIRED]
    assert [len(call.messages) for call in gateway.calls[2:]] == [3, 1]


async def test_what_stays_unknown_is_an_error_of_its_own(gateway: FakePendingGateway, hasty: AsyncProducer) -> None:
    gateway.statuses.extend([grpc.StatusCode.UNAVAILABLE] * 1_000)
    (error,) = await hasty.cancel(["m0"])
    # The last attempt may run into the deadline.
    assert isinstance(error, Unavailable | Timeout)
    assert error.message_id == "m0"
    with pytest.raises((Unavailable, Timeout)):
        await hasty.cancel("m0")
    gateway.statuses.clear()
    gateway.statuses.append(grpc.StatusCode.NOT_FOUND)
    with pytest.raises(NotFound):
        await hasty.cancel("m0")
    gateway.short_answer = True
    with pytest.raises(ServerError, match="the server returned 0 results for 1 messages"):
        await hasty.cancel("m0")


async def test_what_is_no_message_is_a_type_error(producer: AsyncProducer) -> None:
    with pytest.raises(TypeError, match="5 is neither a receipt, nor a message that was found, nor an id"):
        await producer.cancel([5])  # type: ignore[list-item]
    with pytest.raises(TypeError, match=r"None is neither .* nor an id, nor several of these"):
        await producer.cancel(None)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="b'm1' is neither"):
        await producer.reschedule(b"m1", delay="1h")  # type: ignore[call-overload]
    with pytest.raises(InvalidMessage, match=r"message_id: .* surrogates not allowed"):
        await producer.cancel("\ud800")
    with pytest.raises(TypeError, match="body is int, not bytes, str, dict"):
        await producer.reschedule("m1", delay="1h", body=42)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("after", "before", "field", "text"),
    [
        (datetime(2026, 1, 2), datetime(2026, 1, 1), "before", "is not later than 2026-01-02"),
        (datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC), "before", "is not later than"),
        ("2026-01-01", None, "after", "is not a datetime"),
        (None, 5, "before", "is not a datetime"),
    ],
)
async def test_a_range_of_due_times_is_checked(
    gateway: FakePendingGateway, finder: AsyncFinder, after: object, before: object, field: str, text: str
) -> None:
    with pytest.raises(InvalidArgument, match=text) as caught:
        await anext(finder.pending(after=after, before=before))  # type: ignore[arg-type]
    assert caught.value.violations[0].field == field
    assert not gateway.calls


async def test_a_range_may_reach_to_the_ends_of_the_calendar(gateway: FakePendingGateway, finder: AsyncFinder) -> None:
    for after, before in ((datetime.min, datetime.max), (datetime.min.replace(tzinfo=UTC), datetime.max)):
        assert [one.id async for one in finder.pending(after=after, before=before)]


async def test_messages_get_another_time(gateway: FakePendingGateway, producer: AsyncProducer) -> None:
    moved = await producer.reschedule(receipt(), delay="1h30m", body=b"new")
    assert (moved.status, moved.message_id, moved.was_past) == ("rescheduled", "m1", False)
    assert moved.deliver_at == moment(DUE_MS) + timedelta(hours=1, minutes=30)
    assert moved.place == (1, 1_000, 77)
    (asked,) = gateway.calls[0].messages
    assert (asked.message.entry, asked.delay_ms, asked.body) == (5, 5_400_000, b"new")
    at = datetime(2026, 12, 24, 18, tzinfo=UTC)
    one, fired, none = await producer.reschedule(["m0", "m7", "none"], deliver_at=at)
    assert [getattr(each, "status", each) for each in (one, fired, none)] == [
        "rescheduled",
        "already fired",
        "not found",
    ]
    assert not gateway.calls[1].messages[0].HasField("body")
    assert getattr(one, "was_past", None)


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({}, "delay"),
        ({"delay": 5, "deliver_at": datetime(2026, 1, 1, tzinfo=UTC)}, "delay"),
        ({"delay": -1}, "delay"),
        ({"delay": 10**30}, "delay"),
        ({"deliver_at": datetime(2026, 1, 1)}, "deliver_at"),
        ({"delay": 5, "body": b"x" * (BODY_BYTES_MAX + 1)}, "body"),
    ],
)
async def test_a_malformed_reschedule_is_refused(
    gateway: FakePendingGateway, producer: AsyncProducer, asked: dict[str, object], field: str
) -> None:
    with pytest.raises(InvalidMessage) as caught:
        await producer.reschedule("m1", **asked)  # type: ignore[call-overload]
    assert caught.value.violations[0].field == field
    assert not gateway.calls


async def test_cancelling_what_matches_tells_how_far_it_is(
    gateway: FakePendingGateway, producer: AsyncProducer
) -> None:
    before = datetime(2027, 1, 1, tzinfo=UTC)
    told = [one async for one in producer.cancel_matching("orders", key="k", before=before, dry_run=True)]
    assert [(one.seen, one.matched, one.cancelled, one.already_fired, one.done) for one in told] == [
        (5, 3, 2, 1, False),
        (9, 6, 5, 1, True),
    ]
    assert [one.looked_until for one in told] == [moment(DUE_MS), None]
    request = gateway.calls[0]
    assert (request.filter.topic, request.filter.key, request.dry_run) == ("orders", "k", True)
    assert (request.filter.due_from_ms, moment(request.filter.due_before_ms)) == (0, before)


async def test_pending_messages_are_listed_page_by_page(
    gateway: FakePendingGateway, finder: AsyncFinder, producer: AsyncProducer
) -> None:
    listed = finder.pending("orders", key="k", bodies=False)
    first = await anext(listed)
    assert len(gateway.calls) == 1
    assert (first.id, first.topic, first.queue, first.keys, first.body) == ("m0", "orders", 0, ["k"], b"body")
    assert (first.due_at, first.place) == (moment(DUE_MS), (0, 1_000, 0))
    assert [one.id async for one in listed] == [f"m{n}" for n in range(1, 8)]
    assert [bytes(call.page_token) for call in gateway.calls] == [b"", b"3", b"6"]
    assert {(call.filter.topic, call.filter.key, call.omit_bodies) for call in gateway.calls} == {("orders", "k", True)}
    assert await producer.cancel(first) is CANCELLED
    assert gateway.calls[-1].messages[0].lane == 1_000


async def test_a_found_message_says_where_it_waits(
    gateway: FakePendingGateway, finder: AsyncFinder, producer: AsyncProducer
) -> None:
    found = await finder.get("m1")
    assert (found.state, found.lane, found.entry, found.before_count) == ("pending", 1_000, 7, 12)
    assert await producer.cancel(found) is CANCELLED
    assert gateway.calls[-1].messages[0].entry == 7
    found = await finder.get("m1")
    assert (found.state, found.lane, found.entry, found.before_count) == ("cancelled", None, None, None)


async def test_the_backlog_is_counted(gateway: FakePendingGateway, finder: AsyncFinder) -> None:
    found = await finder.backlog("orders", after=datetime(2026, 1, 1, tzinfo=UTC), by_lane=True)
    assert (found.pending, found.overdue, found.unreachable_shards) == (4, 1, [2])
    (count,) = found.counts
    assert (count.start, count.width, count.count) == (moment(DUE_MS), timedelta(minutes=1), 4)
    assert (count.topic, count.lane) == ("orders", 1_000)
    request = gateway.calls[0]
    assert (request.all_topics_together, request.all_lanes_together) == (True, False)
    assert (moment(request.due_from_ms), request.due_before_ms) == (datetime(2026, 1, 1, tzinfo=UTC), 0)


async def test_receipts_say_what_was_done(gateway: FakePendingGateway) -> None:
    one = receipt(was_past=True, replaced_id="m0")
    assert (one.lane, one.level, one.was_past, one.replaced_id) == (1_000, None, True, "m0")
    level = receipt(lane=3, delay_level=3)
    assert (level.lane, level.level, level.was_past, level.replaced_id) == (3, 3, False, None)
    old = receipt(lane=0, delay_level=3)
    assert (old.lane, old.level) == (3, 3)
