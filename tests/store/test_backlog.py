"""Backlog and ListPending of one shard: against every pending message counted one by one."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from duetime.v1 import message_pb2, pending_pb2, store_pb2
from duetime_core.clock import turn
from duetime_format import record
from duetime_format.properties import encode_properties
from duetime_format.record import Record
from duetime_store.pending import backlog, listing

from tests.rounds import one_by_one
from tests.store.conftest import Shard, flip, log_file, restored, sent, timer
from tests.store.counted import check_counts, pending
from tests.store.running import Running

LEVELS = "1s 90s 9m 1h 3d 70d"
MINUTE_MS, DAY_MS = 60_000, 86_400_000


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Running]:
    async with Running(tmp_path, delay_levels=LEVELS) as running:
        yield running


async def ask(store: Running, **options: Any) -> pending_pb2.BacklogResponse:
    return await store.stub.Backlog(pending_pb2.BacklogRequest(**options), timeout=60)


async def page(store: Running, **options: Any) -> pending_pb2.ListPendingResponse:
    found = {
        name: options.pop(name) for name in list(options) if name in pending_pb2.PendingFilter.DESCRIPTOR.fields_by_name
    }
    request = pending_pb2.ListPendingRequest(filter=pending_pb2.PendingFilter(**found), **options)
    return await store.stub.ListPending(request, timeout=60)


async def pages(store: Running, **options: Any) -> list[pending_pb2.PendingMessage]:
    messages, token = [], b""
    while True:
        answer = await page(store, page_token=token, **options)
        messages += answer.messages
        token = answer.next_page_token
        if not token:
            return messages


def keyed(message_id: str, topic: str, level: int, keys: str) -> bytes:
    properties = {"KEYS": keys, "UNIQ_KEY": message_id, **record.deferral(level, topic, 0)}
    text = record.with_crc_mark(encode_properties(properties))
    return record.encode(Record("SCHEDULE_TOPIC_XXXX", level - 1, b"body", text))


async def move(store: Running, by_ms: int) -> None:
    store.clock.move(by_ms)
    for _ in range(10):
        await turn()


async def restore_due(store: Running) -> range:
    """Restores the due entries of level 1."""
    due = await store.pull_due(1)
    await store.put_entries(
        restored(store.node.store, 1, due.first_entry, len(due.sizes)), lane=1, first_entry=due.first_entry
    )
    return range(due.first_entry, due.first_entry + len(due.sizes))


async def fill(store: Running, count: int = 200, seed: int = 1) -> None:
    """Messages of all levels and for any time, of three topics."""
    dice = random.Random(seed)
    for batch in range(5):
        records = []
        for number in range(count // 5):
            message_id, topic = f"m{seed}-{batch}-{number}", dice.choice(["orders", "mail", "bills"])
            level, keys = dice.randint(1, 6), dice.choice(["one", "two", "one two", "three"])
            if dice.random() < 0.5:
                records.append(keyed(message_id, topic, level, keys))
            else:
                delay_ms = dice.choice([0, 500, 30_000, 3_600_000, 30 * DAY_MS, 400 * DAY_MS]) + dice.randrange(100_000)
                records.append(timer(message_id, delay_ms, topic=topic, key=keys))
        await store.put(*records)
        await move(store, dice.choice([1, 999, 61_000]))


def check(store: Running, answer: pending_pb2.BacklogResponse, **asked: Any) -> None:
    """The answer equals the messages pending now."""
    messages = pending(store.node.store)
    topic = asked.get("topic", "")
    held = 0
    for bucket in answer.buckets:
        stop_ms = bucket.due_from_ms + bucket.width_ms
        own = [
            one
            for one in messages
            if bucket.due_from_ms <= one[3] < stop_ms
            and bucket.topic in ("", one[2])
            and bucket.lane in (0, one[0])
            and topic in ("", one[2])
        ]
        assert bucket.count == len(own) > 0
        held += len(own)
    assert [bucket.due_from_ms for bucket in answer.buckets] == sorted(one.due_from_ms for one in answer.buckets)
    assert answer.pending_count == held
    from_ms, before_ms = asked.get("due_from_ms", 0), asked.get("due_before_ms", 0) or 1 << 62
    wanted = [one for one in messages if topic in ("", one[2]) and from_ms <= one[3] < before_ms]
    for _, _, _, due_at_ms in wanted:
        assert any(one.due_from_ms <= due_at_ms < one.due_from_ms + one.width_ms for one in answer.buckets)
    if not asked.get("due_from_ms") and not asked.get("due_before_ms"):
        assert held == len(wanted)
        assert answer.overdue_count == sum(due_at_ms <= answer.now_ms for *_, due_at_ms in wanted)


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"topic": "mail"},
        {"all_topics_together": True},
        {"all_topics_together": True, "all_lanes_together": True},
        {"all_lanes_together": True, "topic": "orders"},
        {"due_from_ms": 30_000},
        {"due_from_ms": 100_000, "due_before_ms": 700_000, "all_topics_together": True},
        {"due_before_ms": 1, "topic": "orders"},
        {"topic": "nobody's"},
    ],
)
async def test_backlog_equals_pending_messages(store: Running, asked: dict[str, Any]) -> None:
    await fill(store)
    now_ms = store.node.store.clock.now_ms()
    for name in ("due_from_ms", "due_before_ms"):
        if name in asked:
            asked = {**asked, name: now_ms + asked[name]}
    check(store, await ask(store, **asked), **asked)


async def test_seconds_are_counted_where_topics_are_together(store: Running) -> None:
    await fill(store)
    answer = await ask(store, all_topics_together=True)
    widths = {bucket.width_ms for bucket in answer.buckets}
    assert widths == {1_000, MINUTE_MS, 60 * MINUTE_MS, 24 * 60 * MINUTE_MS}
    near = answer.now_ms // MINUTE_MS * MINUTE_MS
    for bucket in answer.buckets:
        assert (bucket.width_ms == 1_000) == (near <= bucket.due_from_ms < near + 11 * MINUTE_MS)
    assert not {bucket.width_ms for bucket in (await ask(store)).buckets} & {1_000}


async def test_answer_of_many_buckets_is_coarser(store: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    await fill(store)
    monkeypatch.setattr(backlog, "BUCKETS_MAX", 40)
    answer = await ask(store)
    check(store, answer)
    assert min(bucket.width_ms for bucket in answer.buckets) > MINUTE_MS
    monkeypatch.setattr(backlog, "BUCKETS_MAX", 2)
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await ask(store)
    assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_counts_hold_beside_restores_and_across_a_restart(tmp_path: Path) -> None:
    async with Running(tmp_path, delay_levels=LEVELS) as store:
        await fill(store)
        assert await restore_due(store)
        check_counts(store.node.store)
        before = (await ask(store)).buckets
        clock = store.clock
    async with Running(tmp_path, delay_levels=LEVELS) as store:
        store.clock.step_wall(clock.now_ms() - store.clock.now_ms())
        check_counts(store.node.store)
        assert (await ask(store)).buckets == before


async def test_cancelled_and_rescheduled_messages_are_counted_so(tmp_path: Path) -> None:
    async with Running(tmp_path, delay_levels=LEVELS) as store:
        await fill(store)
        every = await pages(store)
        refs = [
            pending_pb2.PendingRef(message_id=one.message.id, lane=one.lane, entry=one.message.offset) for one in every
        ]
        await store.stub.Cancel(pending_pb2.CancelRequest(messages=refs[::3]), timeout=60)
        check_counts(store.node.store)
        moved = [
            store_pb2.Replacement(message=ref, reschedule=pending_pb2.Reschedule(delay_ms=7 * DAY_MS))
            for ref in refs[1::3]
        ]
        results = (await store.stub.Replace(store_pb2.ReplaceRequest(replacements=moved), timeout=60)).results
        assert not any(result.HasField("fault") for result in results)
        check_counts(store.node.store)
        check(store, await ask(store))
        left = await pages(store)
        assert len(left) == len(refs) - len(refs[::3])
        clock = store.clock
    async with Running(tmp_path, delay_levels=LEVELS) as store:
        store.clock.step_wall(clock.now_ms() - store.clock.now_ms())
        check_counts(store.node.store)
        assert await pages(store) == left


async def test_spans_are_refined_as_their_time_comes(store: Running) -> None:
    await fill(store)
    surveyor = store.node.parts.surveyor
    for _ in range(12):
        await move(store, 7 * 3_600_000)
        await surveyor.tend()
        check_counts(store.node.store)
    answer = await ask(store)
    check(store, answer)
    in_time = [bucket for bucket in answer.buckets if bucket.due_from_ms < answer.now_ms + 48 * 3_600_000]
    assert {bucket.width_ms for bucket in in_time} == {MINUTE_MS}


async def test_lanes_with_wrong_sums_are_recounted(store: Running) -> None:
    await fill(store)
    counts = store.node.store.ledger.counts
    counts.suspects.add(5)
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await ask(store)
    assert error.value.code() == grpc.StatusCode.UNAVAILABLE
    await store.node.parts.surveyor.tend()
    check(store, await ask(store))


def test_damage_to_a_counted_record_recounts_its_lane(shard: Shard) -> None:
    shard.put(*(keyed(f"m{number}", "mail", 1, "one") for number in range(3)))
    check_counts(shard.store)
    unit = shard.store.lanes[1].queue.read(1, 1)[0].item()
    # Its magic: nothing says any more where it goes.
    flip(log_file(shard), unit[0] + 4)
    shard.clock.wall_ms += 1_000
    shard.put_entries(restored(shard.store, 1, 0, 2), lane=1, first_entry=0)
    assert shard.store.ledger.counts.suspects == {1}
    shard.store.ledger.recount(shard.store.lanes[1])
    check_counts(shard.store)


@pytest.mark.parametrize(
    "filtered", [{}, {"topic": "mail"}, {"key": "two"}, {"topic": "bills", "key": "one"}, {"topic": "x"}]
)
@pytest.mark.parametrize("max_count", one_by_one([1, 7, 0]))
async def test_list_gives_all_that_match_in_order(store: Running, filtered: dict[str, str], max_count: int) -> None:
    await fill(store, 60)
    found = await pages(store, max_count=max_count, **filtered)
    order = [(one.message.due_at_ms, one.lane, one.message.offset) for one in found]
    assert order == sorted(order)
    topic = filtered.get("topic", "")
    expected = [one for one in pending(store.node.store) if topic in ("", one[2])]
    if "key" in filtered:
        assert all(filtered["key"] in one.message.keys for one in found)
        every = await pages(store, topic=topic)
        assert len(found) == sum(filtered["key"] in one.message.keys for one in every)
    else:
        listed = [(one.lane, one.message.offset, one.message.topic, one.message.due_at_ms) for one in found]
        assert sorted(listed) == sorted(expected)
    assert all(one.message.body == b"body" and one.message.id for one in found)


async def test_list_of_a_time_without_bodies(store: Running) -> None:
    await fill(store, 60)
    now_ms = store.node.store.clock.now_ms()
    found = await pages(store, due_from_ms=now_ms + MINUTE_MS, due_before_ms=now_ms + 2 * 3_600_000, omit_bodies=True)
    expected = [one for one in pending(store.node.store) if now_ms + MINUTE_MS <= one[3] < now_ms + 2 * 3_600_000]
    assert len(found) == len(expected) > 0
    assert not any(one.message.body for one in found)


@pytest.mark.parametrize("filtered", [{}, {"topic": "mail"}, {"key": "two"}, {"topic": "bills", "key": "one"}])
@pytest.mark.parametrize("max_count", [7, 1_000])
async def test_list_of_names_has_the_same_messages(store: Running, filtered: dict[str, str], max_count: int) -> None:
    await fill(store, 60)
    every = await pages(store, max_count=max_count, **filtered)
    for one in every:
        kept = {name: getattr(one.message, name) for name in ("id", "topic", "keys", "offset", "due_at_ms")}
        one.message.CopyFrom(message_pb2.StoredMessage(**kept))
    assert every
    assert await pages(store, max_count=max_count, names_only=True, **filtered) == every


async def test_empty_page_reports_its_progress(store: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    await fill(store, 60)
    monkeypatch.setattr(listing, "LOOK_MAX", 10)
    monkeypatch.setattr(listing, "_CHUNK_RECORDS", 5)
    answer, token, seen = await page(store, key="four"), b"", 0
    while True:
        answer = await page(store, key="four", page_token=token)
        assert not answer.messages
        seen += answer.seen_count
        token = answer.next_page_token
        if not token:
            break
        assert answer.due_at_ms > 0
    assert seen == 60


@pytest.mark.parametrize("filtered", [{}, {"topic": "orders"}, {"key": "two"}, {"topic": "orders", "key": "two"}])
@pytest.mark.parametrize("max_count", [1, 7, 1_000])
async def test_pages_count_each_message_once(store: Running, filtered: dict[str, str], max_count: int) -> None:
    await fill(store, 60)
    seen, token = 0, b""
    while True:
        answer = await page(store, max_count=max_count, page_token=token, **filtered)
        assert answer.seen_count >= len(answer.messages)
        seen, token = seen + answer.seen_count, answer.next_page_token
        if not token:
            break
    assert seen == 60


async def test_page_that_takes_its_time_comes_short(store: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    await fill(store, 60)
    monkeypatch.setattr(listing, "PAGE_S", 0.0)
    monkeypatch.setattr(listing, "_CHUNK_RECORDS", 5)
    monkeypatch.setattr(listing, "_CHUNK_ROWS", 5)
    whole, token, found, calls = await pages(store), b"", 0, 0
    while calls == 0 or token:
        answer = await page(store, key="two", page_token=token)
        assert answer.seen_count < 60
        found, calls, token = found + len(answer.messages), calls + 1, answer.next_page_token
    assert found == sum("two" in one.message.keys for one in whole) > 0


async def test_list_continues_after_restored_entries(store: Running) -> None:
    await fill(store, 60)
    first = await page(store, max_count=5)
    entries = await restore_due(store)
    assert entries
    rest = [message async for message in _rest(store, first.next_page_token)]
    gone = {(1, entry) for entry in entries}
    listed = {(one.lane, one.message.offset) for one in (*first.messages, *rest)}
    assert {(lane, entry) for lane, entry, *_ in pending(store.node.store)} == listed - gone


async def _rest(store: Running, token: bytes) -> AsyncIterator[pending_pb2.PendingMessage]:
    while token:
        answer = await page(store, page_token=token, max_count=7)
        token = answer.next_page_token
        for message in answer.messages:
            yield message


@pytest.mark.parametrize("token", [b"x", b"\0" * 25, b"\x01" * 25])
async def test_invalid_token_is_rejected(store: Running, token: bytes) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await page(store, page_token=token)
    assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("asked", [{"max_count": 1_001}, {"max_count": -1}, {"due_from_ms": 5, "due_before_ms": 5}])
async def test_request_that_can_not_be_is_refused(store: Running, asked: dict[str, int]) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await page(store, **asked)
    assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_numbers_of_an_answer_are_of_one_time(store: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages come between all its steps."""
    await fill(store, 40)
    counts = store.node.store.ledger.counts
    totals: list[int] = []
    snapshot = counts.snapshot
    monkeypatch.setattr(counts, "snapshot", lambda: (totals.append(sum(counts.totals.values())), snapshot())[1])
    sending = asyncio.create_task(_send_on(store))
    store.node.parts.turns.now = _hasty()
    try:
        for _ in range(2):
            before = sum(counts.totals.values())
            answer = await ask(store, all_topics_together=True)
            assert answer.pending_count == totals[-1] > before
    finally:
        sending.cancel()
        with suppress(asyncio.CancelledError):
            await sending
    check(store, await ask(store, all_topics_together=True))


def _hasty() -> Any:
    """A clock by which every step seems instant."""
    ticks = iter(range(1 << 62))
    return lambda: next(ticks) * 0.002


async def _send_on(store: Running) -> None:
    number = 0
    while True:
        number += 1
        await store.put(sent(f"more{number}", level=2), sent(f"and{number}", level=3))
