"""Pending messages through a gateway: cancelled, rescheduled, listed and counted."""

import asyncio
import math
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import grpc
import pytest
from duetime.v1 import gateway_pb2
from duetime.v1 import pending_pb2 as pb
from duetime_core.errors import DiskFull, Unavailable
from duetime_format import limits
from duetime_format.levels import DELAY_MS_MAX
from duetime_gateway.pending import jobs
from duetime_store.pending import listing
from google.rpc import code_pb2

from tests.gateway.conftest import NOW_MS, Gateway, TappedStore, WallClock, error_of, message, waiting
from tests.gateway.test_adoption import fill
from tests.store.conftest import timer
from tests.tap import WAIT_S

CANCELLED, FIRED, NOT_FOUND = 1, 2, 3
AWAY = Unavailable("away", reason="SHARD_UNAVAILABLE")


@pytest.fixture(autouse=True)
def _whole_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores fill their pages, however long that takes."""
    monkeypatch.setattr(listing, "PAGE_S", math.inf)


@pytest.fixture
def one_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """One CancelMatching at a time. It comes before the gateway."""
    monkeypatch.setattr(jobs, "JOBS_MAX", 1)


async def sent(tapped: Gateway, *ids: str, topic: str = "orders", **fields: object) -> list[pb.PendingRef]:
    """Messages due one ms after the other, over both shards."""
    asked = [message(topic=topic, id=one, delay_ms=10_000 + n, queue=n % 4, **fields) for n, one in enumerate(ids)]
    results = await tapped.send(*asked)
    return [
        pb.PendingRef(message_id=one.message_id, topic=topic, shard=one.shard, lane=one.lane, entry=one.offset)
        for one in results
    ]


async def cancel(tapped: Gateway, refs: Iterable[pb.PendingRef]) -> list[pb.CancelResult]:
    return list((await tapped.stub.Cancel(pb.CancelRequest(messages=refs), timeout=WAIT_S)).results)


def fire(taps: Iterable[TappedStore], message_id: str) -> None:
    """Has the store say of this message that it has fired, when it is cancelled."""

    def change(request: pb.CancelRequest, answer: pb.CancelResponse) -> None:
        for ref, result in zip(request.messages, answer.results, strict=True):
            if ref.message_id == message_id:
                result.CopyFrom(pb.CancelResult(status=FIRED))

    for tap in taps:
        tap.after["Cancel"] = change


def page_by(taps: Iterable[TappedStore], count: int) -> None:
    """Limits pages of the stores to `count` messages."""
    for tap in taps:
        tap.before["ListPending"] = lambda request: setattr(request, "max_count", count)


def by_id(*ids: str, topic: str = "") -> list[pb.PendingRef]:
    return [pb.PendingRef(message_id=one, topic=topic) for one in ids]


async def test_messages_are_cancelled_by_their_places(tapped: Gateway, taps: list[TappedStore]) -> None:
    refs = await sent(tapped, "a", "b", "c")
    fire(taps, "c")
    results = await cancel(tapped, [*refs, refs[0]])
    assert [one.status for one in results] == [CANCELLED, CANCELLED, FIRED, CANCELLED]
    assert [one.due_at_ms for one in results] == [NOW_MS + 10_000, NOW_MS + 10_001, 0, NOW_MS + 10_000]
    # Each shard was asked once, about its own.
    for tap in taps:
        (request,) = tap.requests["Cancel"]
        assert {one.shard for one in request.messages} == {tap.shard}


@pytest.mark.parametrize("topic", ["", "orders"])
async def test_by_id_alone_all_shards_are_asked(tapped: Gateway, taps: list[TappedStore], topic: str) -> None:
    await sent(tapped, "a", "b")
    results = await cancel(tapped, by_id("a", "b", "none", topic=topic))
    assert [one.status for one in results] == [CANCELLED, CANCELLED, NOT_FOUND]
    assert [len(tap.requests["Cancel"][0].messages) for tap in taps] == [3, 3]


async def test_unavailable_shard_is_a_fault_only_of_missing_messages(tapped: Gateway, taps: list[TappedStore]) -> None:
    refs = await sent(tapped, "a", "b")
    away = taps[refs[1].shard]
    away.refuse(AWAY, "Cancel")
    results = await cancel(tapped, [*by_id("a", "b"), refs[1]])
    assert [one.status for one in results] == [CANCELLED, 0, 0]
    assert [one.fault.reason for one in results] == ["", "SHARD_UNAVAILABLE", "SHARD_UNAVAILABLE"]
    assert results[1].fault.retriable
    away.accept()
    assert [one.status for one in await cancel(tapped, by_id("b"))] == [CANCELLED]


async def test_a_shard_that_hangs_keeps_no_answer_of_the_others(
    tmp_path: Path, tapped: Gateway, taps: list[TappedStore]
) -> None:
    refs = await sent(tapped, "a", "b")
    hung = taps[refs[1].shard]
    hung.hold("Cancel", "Backlog")
    request = pb.CancelRequest(messages=[*by_id("a", "b", "none"), *refs])
    async with Gateway(tmp_path, {tap.shard: tap.port for tap in taps}, store_timeout_ms=1_000) as gateway:
        cancelled, found = await asyncio.gather(
            gateway.stub.Cancel(request, timeout=WAIT_S), gateway.stub.Backlog(pb.BacklogRequest(), timeout=WAIT_S)
        )
    results = cancelled.results
    assert [one.status for one in results] == [CANCELLED, 0, 0, CANCELLED, 0]
    assert {one.fault.reason for one in results if not one.status} == {"SHARD_UNAVAILABLE"}
    assert all(one.fault.retriable for one in results if not one.status)
    assert list(found.unreachable_shards) == [hung.shard]
    assert [one.message.id for one in await waiting(tapped)] == ["b"]


async def test_shards_have_less_time_than_their_caller(tapped: Gateway, taps: list[TappedStore]) -> None:
    await tapped.stub.Cancel(pb.CancelRequest(messages=by_id("none")), timeout=10)
    await tapped.stub.Backlog(pb.BacklogRequest(), timeout=10)
    for tap in taps:
        for left_s in tap.remaining["Cancel"] + tap.remaining["Backlog"]:
            assert left_s is not None
            # gRPC rounds deadlines up.
            assert left_s < 9


async def test_wrong_names_are_faults_of_their_own(tapped: Gateway) -> None:
    (right,) = await sent(tapped, "a")
    strange = pb.PendingRef(message_id="a", shard=9, lane=1_000)
    wrong = pb.PendingRef(topic="a b", lane=-1, entry=-1)
    results = await cancel(tapped, [right, strange, wrong, *by_id("a", topic="unknown"), *by_id("x" * 256)])
    assert [one.status for one in results] == [CANCELLED, 0, 0, 0, 0]
    assert [one.fault.reason for one in results[1:4]] == ["SHARD_NOT_FOUND", "MESSAGE_INVALID", "TOPIC_NOT_FOUND"]
    assert [one.field for one in results[2].fault.violations] == ["message_id", "topic", "lane", "entry"]
    assert results[4].fault.message.endswith("has 256 characters; an id has 1 to 255")


async def test_calls_bound_named_messages(tapped: Gateway) -> None:
    for call, most in (
        (tapped.stub.Cancel(pb.CancelRequest()), limits.CANCEL_COUNT_MAX),
        (tapped.stub.Cancel(pb.CancelRequest(messages=by_id(*["a"] * 4_097))), limits.CANCEL_COUNT_MAX),
        (tapped.stub.Reschedule(pb.RescheduleRequest()), limits.REPLACE_COUNT_MAX),
    ):
        error = await error_of(call)
        assert str(error.details()).endswith(f"messages; a request has 1 to {most}")


# --- reschedule -------------------------------------------------------------------------------------------------------


async def reschedule(tapped: Gateway, *messages: pb.Reschedule) -> list[pb.RescheduleResult]:
    return list((await tapped.stub.Reschedule(pb.RescheduleRequest(messages=messages), timeout=WAIT_S)).results)


async def test_messages_get_another_time_and_body(tapped: Gateway, taps: list[TappedStore]) -> None:
    first, second, third = await sent(tapped, "a", "b", "c")
    results = await reschedule(
        tapped,
        pb.Reschedule(message=first, delay_ms=77, body=b"new"),
        pb.Reschedule(message=second, deliver_at_ms=NOW_MS + 9),
        pb.Reschedule(message=third, deliver_at_ms=3),
        pb.Reschedule(message=by_id("none")[0], delay_ms=0),
    )
    assert [one.status for one in results] == [CANCELLED, CANCELLED, CANCELLED, NOT_FOUND]
    assert [one.deliver_at_ms for one in results] == [NOW_MS + 77, NOW_MS + 9, NOW_MS + 1, 0]
    assert [one.was_past for one in results] == [False, False, True, False]
    assert [(one.shard, one.lane) for one in results[:3]] == [(ref.shard, 1_000) for ref in (first, second, third)]
    found = {one.message.id: one.message for one in await waiting(tapped)}
    assert (found["a"].body, found["b"].body) == (b"new", b"body")
    assert found["a"].offset == results[0].entry
    # Times below 10**12 are delays for a store.
    asked = [one.reschedule.deliver_at_ms for tap in taps for one in tap.requests["Replace"][-1].replacements]
    assert 10**12 + 1 in asked


async def test_a_wrong_reschedule_is_a_fault_of_its_own(tapped: Gateway) -> None:
    await tapped.stub.CreateTopic(gateway_pb2.CreateTopicRequest(name="short", max_delay_ms=60_000))
    (ref,) = await sent(tapped, "a")
    (short,) = await sent(tapped, "s", topic="short")
    results = await reschedule(
        tapped,
        pb.Reschedule(message=ref),
        pb.Reschedule(message=ref, delay_ms=-1),
        pb.Reschedule(message=ref, deliver_at_ms=-1, body=bytes(limits.BODY_BYTES_MAX + 1)),
        pb.Reschedule(message=ref, delay_ms=DELAY_MS_MAX + 1),
        pb.Reschedule(message=short, delay_ms=60_001),
        pb.Reschedule(message=short, delay_ms=60_000),
        pb.Reschedule(message=pb.PendingRef(), delay_ms=1),
    )
    assert [[one.field for one in result.fault.violations] for result in results] == [
        ["delay_ms"],
        ["delay_ms"],
        ["deliver_at_ms", "body"],
        ["delay_ms"],
        ["delay_ms"],
        [],
        ["message_id"],
    ]
    assert {result.fault.code for result in results if result.HasField("fault")} == {code_pb2.INVALID_ARGUMENT}


async def test_a_topics_limit_holds_at_a_gateway_that_has_not_seen_the_topic(
    tmp_path: Path, taps: list[TappedStore]
) -> None:
    ports = {store.shard: store.port for store in taps}
    async with Gateway(tmp_path, ports) as first:
        await first.stub.CreateTopic(gateway_pb2.CreateTopicRequest(name="short", max_delay_ms=60_000))
        (short,) = await sent(first, "s", topic="short")
    async with Gateway(tmp_path, ports) as second:
        (result,) = await reschedule(second, pb.Reschedule(message=short, delay_ms=60_001))
        assert result.fault.message == "delay_ms: 1m1ms exceeds the limit of 1m for topic short"
        (result,) = await reschedule(second, pb.Reschedule(message=short, delay_ms=60_000))
        assert result.status == CANCELLED


# --- cancel by filter -------------------------------------------------------------------------------------------------


async def progress(tapped: Gateway, *, dry_run: bool = False, **wanted: object) -> list[pb.CancelProgress]:
    """The answers; the last one has all. On a slow machine there are more."""
    request = pb.CancelMatchingRequest(filter=pb.PendingFilter(**wanted), dry_run=dry_run)  # type: ignore[arg-type]
    return [one async for one in tapped.stub.CancelMatching(request, timeout=WAIT_S)]


async def test_matching_messages_are_cancelled(tapped: Gateway, taps: list[TappedStore]) -> None:
    ids = [f"m{n}" for n in range(50)]
    await sent(tapped, *ids, keys=["k"])
    await sent(tapped, *(f"o{n}" for n in range(50)))
    *_, counted = await progress(tapped, topic="orders", key="k", dry_run=True)
    assert (counted.matched_count, counted.cancelled_count, counted.seen_count) == (50, 0, 100)
    assert len(await waiting(tapped)) == 100
    page_by(taps, 7)
    fire(taps, "m3")
    *_, last = await progress(tapped, topic="orders", key="k")
    assert (last.matched_count, last.cancelled_count, last.fired_count) == (50, 49, 1)
    assert last.done
    assert last.seen_count == 100
    taps[0].accept()
    taps[1].accept()
    assert {one.message.id[0] for one in await waiting(tapped)} == {"o"}
    # Another call has nothing left to do.
    *_, again = await progress(tapped, topic="orders", key="k")
    assert (again.matched_count, again.done) == (0, True)


async def test_progress_comes_as_time_goes_by(
    tapped: Gateway, taps: list[TappedStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    await sent(tapped, *(f"m{n}" for n in range(20)))
    page_by(taps, 4)
    monkeypatch.setattr(jobs, "PROGRESS_MS", 0)
    told = await progress(tapped, due_before_ms=NOW_MS + 20_000)
    assert [one.cancelled_count for one in told] == [8, 16, 20, 20]
    assert [one.done for one in told] == [False, False, True, True]
    assert [one.due_at_ms for one in told] == sorted(one.due_at_ms for one in told)
    assert told[0].due_at_ms == NOW_MS + 10_006


async def test_a_range_of_due_times_is_cancelled(tapped: Gateway, taps: list[TappedStore]) -> None:
    await sent(tapped, *(f"m{n}" for n in range(10)))
    *_, last = await progress(tapped, due_from_ms=NOW_MS + 10_003, due_before_ms=NOW_MS + 10_006)
    assert last.cancelled_count == 3
    left = [one.message.due_at_ms - NOW_MS for one in await waiting(tapped)]
    assert left == [10_000, 10_001, 10_002, 10_006, 10_007, 10_008, 10_009]


async def test_a_filter_names_a_topic_or_a_range(tapped: Gateway) -> None:
    for wanted in (pb.PendingFilter(), pb.PendingFilter(key="k")):
        call = tapped.stub.CancelMatching(pb.CancelMatchingRequest(filter=wanted))
        error = await error_of(call.read())
        assert error.details() == "filter: names neither a topic nor a range of due times"


async def test_finished_work_is_reported_before_an_error(tapped: Gateway, taps: list[TappedStore]) -> None:
    await sent(tapped, *(f"m{n}" for n in range(8)))
    taps[1].refuse(DiskFull("full"), "Cancel")
    call = tapped.stub.CancelMatching(pb.CancelMatchingRequest(filter=pb.PendingFilter(topic="orders")))
    while (told := await call.read()).cancelled_count < 4:
        assert not told.done
    assert not told.done
    assert (await error_of(call.read())).details() == "full"
    taps[1].accept()
    *_, last = await progress(tapped, topic="orders")
    assert (last.cancelled_count, last.done) == (4, True)


async def test_a_stop_ends_running_cancels(
    tapped: Gateway, taps: list[TappedStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The first page may take more than a second on a loaded machine.
    monkeypatch.setattr(jobs, "PROGRESS_MS", 3_600_000)
    await sent(tapped, *(f"m{n}" for n in range(8)))
    page_by(taps, 1)
    for tap in taps:
        tap.hold("ListPending")
    call = tapped.stub.CancelMatching(pb.CancelMatchingRequest(filter={"topic": "orders"}))
    await taps[0].until_waiting("ListPending", 1)
    tapped.node.parts.face.end_streams()
    for tap in taps:
        tap.release()
    # The progress by then comes before the error.
    told = await call.read()
    assert (told.cancelled_count, told.done) == (2, False)
    assert (await error_of(call.read())).details() == "the gateway is stopping"
    for tap in taps:
        tap.accept()
    assert len(await waiting(tapped)) == 6


async def test_a_disconnected_client_frees_capacity(one_job: None, tapped: Gateway, taps: list[TappedStore]) -> None:
    await sent(tapped, *(f"m{n}" for n in range(8)))
    page_by(taps, 1)
    for tap in taps:
        tap.hold("ListPending")
    call = tapped.stub.CancelMatching(pb.CancelMatchingRequest(filter={"topic": "orders"}))
    await taps[0].until_waiting("ListPending", 1)
    error = await error_of(progress(tapped, topic="orders"))
    assert (
        error.details()
        == "1 calls of CancelMatching are running; the limit is 1; 1 belong to ipv4:127.0.0.1; its limit is 1"
    )
    call.cancel()
    for tap in taps:
        tap.release()
    told: list[pb.CancelProgress] = []
    async with asyncio.timeout(WAIT_S):
        while not told:
            with suppress(grpc.aio.AioRpcError):
                told = await progress(tapped, topic="orders")
    assert told[-1].done
    assert not await waiting(tapped)


async def test_waiting_retries_match_no_filter(tapped: Gateway, taps: list[TappedStore]) -> None:
    await sent(tapped, "m2", "m3")
    for number, tap in enumerate(taps):
        await fill(tap.store, timer(f"m{number}", 10_000, topic="%RETRY%g"))
    for dry_run in (True, False):
        *_, last = await progress(tapped, due_before_ms=NOW_MS + 20_000, dry_run=dry_run)
        assert (last.seen_count, last.matched_count, last.cancelled_count) == (4, 2, 0 if dry_run else 2)
    assert sorted(one.message.id for one in await waiting(tapped)) == ["m0", "m1"]


async def test_system_topics_are_refused(tapped: Gateway, taps: list[TappedStore]) -> None:
    for topic in ("SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer", "DT_CANCELLED", "%RETRY%g"):
        fault = f"topic: '{topic}' is a system topic; only DueTime itself writes to it"
        error = await error_of(tapped.stub.CancelMatching(pb.CancelMatchingRequest(filter={"topic": topic})).read())
        assert error.details() == f"filter.{fault}"
        if topic.startswith("%RETRY%"):
            continue
        results: list[pb.CancelResult | pb.RescheduleResult] = [*await cancel(tapped, by_id("a", topic=topic))]
        results += await reschedule(tapped, pb.Reschedule(message=by_id("a", topic=topic)[0], delay_ms=1))
        assert [(one.fault.reason, one.fault.message) for one in results] == [("MESSAGE_INVALID", fault)] * 2
    assert not any(tap.requests[call] for tap in taps for call in ("ListPending", "Cancel", "Replace"))


# --- list -------------------------------------------------------------------------------------------------------------


async def pages(tapped: Gateway, **fields: object) -> list[list[pb.PendingMessage]]:
    request = pb.ListPendingRequest(**fields)  # type: ignore[arg-type]
    found = []
    while True:
        page = await tapped.stub.ListPending(request, timeout=WAIT_S)
        found.append(list(page.messages))
        if not page.next_page_token:
            return found
        request.page_token = page.next_page_token


async def test_pages_of_all_shards_are_in_due_order(tapped: Gateway, taps: list[TappedStore]) -> None:
    ids = [f"m{n}" for n in range(25)]
    refs = await sent(tapped, *ids)
    found = await pages(tapped, max_count=10)
    assert [len(page) for page in found] == [10, 10, 5]
    listed = [one for page in found for one in page]
    assert [one.message.id for one in listed] == ids
    assert [(one.shard, one.lane, one.message.offset) for one in listed] == [
        (ref.shard, ref.lane, ref.entry) for ref in refs
    ]
    assert listed[3].message.body == b"body"
    (bare,) = await pages(tapped, max_count=1_000, omit_bodies=True, filter={"topic": "orders"})
    assert {one.message.body for one in bare} == {b""}


async def test_a_list_needs_all_its_shards(tapped: Gateway, taps: list[TappedStore]) -> None:
    await sent(tapped, "a", "b")
    taps[1].refuse(AWAY, "ListPending")
    error = await error_of(tapped.stub.ListPending(pb.ListPendingRequest()))
    assert error.code().name == "UNAVAILABLE"


async def test_fields_of_a_list_are_checked(tapped: Gateway) -> None:
    request = pb.ListPendingRequest(max_count=1_001, filter={"topic": "a b", "due_from_ms": -1})
    error = await error_of(tapped.stub.ListPending(request))
    assert error.details() == (
        "filter.topic: 'a b' holds characters other than [%|a-zA-Z0-9_-]; "
        "filter.due_from_ms: -1 is not within 0 and 9223372036854775807; max_count: 1001 is not within 0 and 1000"
    )
    error = await error_of(
        tapped.stub.ListPending(pb.ListPendingRequest(filter={"due_from_ms": 5, "due_before_ms": 5}))
    )
    assert error.details() == "filter.due_before_ms: 5 is not above due_from_ms, 5"
    error = await error_of(tapped.stub.ListPending(pb.ListPendingRequest(filter={"topic": "unknown"})))
    assert error.code().name == "NOT_FOUND"
    error = await error_of(tapped.stub.ListPending(pb.ListPendingRequest(page_token=b"x")))
    assert error.details() == "page_token: was not returned by ListPending"


# --- count ------------------------------------------------------------------------------------------------------------


async def test_counts_of_shards_are_added_up(tapped: Gateway, taps: list[TappedStore], clock: WallClock) -> None:
    refs = await sent(tapped, *(f"m{n}" for n in range(6)))
    assert {ref.shard for ref in refs} == {0, 1}
    clock.move(10_001)
    taps[1].after["Backlog"] = lambda _, answer: setattr(answer, "now_ms", answer.now_ms + 1)
    found = await tapped.stub.Backlog(pb.BacklogRequest())
    assert (found.pending_count, found.overdue_count, found.now_ms) == (6, 2, NOW_MS + 10_001)
    assert sum(one.count for one in found.buckets) == 6
    assert list(found.unreachable_shards) == []
    taps[0].refuse(AWAY, "Backlog")
    found = await tapped.stub.Backlog(pb.BacklogRequest())
    assert (found.pending_count, list(found.unreachable_shards)) == (sum(ref.shard == 1 for ref in refs), [0])
    error = await error_of(tapped.stub.Backlog(pb.BacklogRequest(due_from_ms=-1)))
    assert error.details() == "due_from_ms: -1 is not within 0 and 9223372036854775807"
