"""Listing, redriving and discarding dead letters, on shards in memory and a fake clock."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from duetime.v1 import consumer_pb2
from duetime_core.clock import turn
from duetime_core.errors import InvalidArgument, NotFound, Unavailable
from duetime_core.testing import FakeClock
from duetime_retry import dead_letters
from duetime_retry.dead_letters import DISCARDED, FAILED, GONE, MATCHED, REDRIVEN, DeadLetterOperations
from prometheus_client import CollectorRegistry, Counter

from tests.retry.letter_store import GROUP, RETRY, START_MS, LetterStore, dead, ids


class Service:
    def __init__(self, *counts: int, **options: Any) -> None:
        letters = {shard: [dead(100 * shard + n) for n in range(count)] for shard, count in enumerate(counts)}
        self.store = LetterStore(letters, **options)
        self.groups = {GROUP}
        self.clock = FakeClock()
        self.registry = CollectorRegistry()
        ended = Counter("ended", "", ["outcome"], registry=self.registry)
        self.letters = DeadLetterOperations(
            self.store.call, self.store.places, self.is_group, self.store.ensure, self.clock, ended
        )

    async def is_group(self, group: str) -> bool:
        return group in self.groups

    async def page(
        self, max_count: int = 0, page: str = "", *, newest_first: bool = False, **wanted: Any
    ) -> consumer_pb2.ListDeadLettersResponse:
        given = {"group": GROUP, **wanted}
        filter_ = consumer_pb2.DeadLetterFilter(**given)
        request = consumer_pb2.ListDeadLettersRequest(
            filter=filter_, max_count=max_count, page=page, newest_first=newest_first
        )
        return await self.letters.page(request)

    async def listed(self, max_count: int = 0, *, newest_first: bool = False, **wanted: Any) -> list[str]:
        """Ids of all pages."""
        found, page = [], ""
        while True:
            answer = await self.page(max_count, page, newest_first=newest_first, **wanted)
            found += [letter.message.id for letter in answer.letters]
            page = answer.next_page
            if not page:
                return found

    def redrive(self, **options: Any) -> AsyncIterator[consumer_pb2.DeadLetterResult]:
        return self.letters.redrive(consumer_pb2.RedriveRequest(**with_filter(options)))

    def discard(self, **options: Any) -> AsyncIterator[consumer_pb2.DeadLetterResult]:
        return self.letters.discard(consumer_pb2.DiscardRequest(**with_filter(options)))


def with_filter(options: dict[str, Any]) -> dict[str, Any]:
    wanted = {"group": GROUP, **options.pop("wanted", {})}
    return {"filter": consumer_pb2.DeadLetterFilter(**wanted), **options}


async def all_of(stream: AsyncIterator[consumer_pb2.DeadLetterResult]) -> list[tuple[str, int]]:
    return [(one.message_id, one.outcome) async for one in stream]


# --- list -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_count", [0, 1, 2, 3, 5, 6, 7])
async def test_pages_continue_at_the_previous_end(max_count: int) -> None:
    service = Service(3, 0, 3)
    assert await service.listed(max_count) == ["id0", "id1", "id2", "id200", "id201", "id202"]


async def test_queues_are_listed_in_the_users_order() -> None:
    service = Service(2, 2, order=[1, 0])
    answer = await service.page()
    assert [(one.shard, one.queue, one.message.id) for one in answer.letters] == [
        (1, 0, "id100"),
        (1, 0, "id101"),
        (0, 1, "id0"),
        (0, 1, "id1"),
    ]
    assert answer.next_page == ""


async def test_a_sparse_filter_reads_a_bounded_number_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters, "PULL_COUNT", 4)
    monkeypatch.setattr(dead_letters, "SCAN_COUNT_MAX", 8)
    service = Service(30)
    answer = await service.page(ids=["id29"])
    assert (len(answer.letters), service.store.calls) == (0, ["PullDeadLetters"] * 2)
    assert answer.next_page
    assert await service.listed(ids=["id29"]) == ["id29"]


async def test_times_bound_the_list() -> None:
    service = Service(10, 10)
    found = await service.listed(from_ms=START_MS + 3_000, to_ms=START_MS + 5_000)
    assert found == ["id3", "id4", "id5"]
    assert await service.listed(1, from_ms=START_MS + 9_000, to_ms=START_MS + 101_000) == ["id9", "id100", "id101"]


def interleaved() -> Service:
    """Dead letters 0, 3, 6 on shard 0, none on shard 1, and 1, 2, 4, 5 on shard 2, by time."""
    service = Service(0, 0, 0)
    service.store.letters = {0: [dead(n) for n in (0, 3, 6)], 1: [], 2: [dead(n) for n in (1, 2, 4, 5)]}
    return service


@pytest.mark.parametrize("max_count", [0, 1, 2, 3, 6, 7])
async def test_newest_first_merges_the_shards_by_time(max_count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters, "PULL_COUNT", 2)
    service = interleaved()
    assert await service.listed(max_count, newest_first=True) == [f"id{n}" for n in range(6, -1, -1)]
    service.store.gone = {(2, 3), (0, 0)}
    assert await service.listed(max_count, newest_first=True) == ["id6", "id4", "id3", "id2", "id1"]


async def test_newest_first_keeps_filters_and_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters, "SCAN_COUNT_MAX", 2)
    service = interleaved()
    assert len((await service.page(newest_first=True, ids=["id0"])).letters) == 0
    assert await service.listed(newest_first=True, ids=["id0", "id5"]) == ["id5", "id0"]
    bounds = {"from_ms": START_MS + 2_000, "to_ms": START_MS + 5_000}
    assert await service.listed(1, newest_first=True, **bounds) == ["id5", "id4", "id3", "id2"]
    assert await service.listed(newest_first=True, to_ms=START_MS - 1) == []


async def test_later_pages_skip_new_dead_letters() -> None:
    service = interleaved()
    first = await service.page(1, newest_first=True)
    service.store.letters[2].append(dead(9))
    service.store.letters[0].append(dead(8))
    second = await service.page(2, first.next_page, newest_first=True)
    assert [one.message.id for one in second.letters] == ["id5", "id4"]


async def test_a_page_belongs_to_its_order() -> None:
    service = interleaved()
    for newest_first in (False, True):
        page = (await service.page(1, newest_first=newest_first)).next_page
        with pytest.raises(InvalidArgument, match="of an answer in this order"):
            await service.page(1, page, newest_first=not newest_first)


async def test_deleted_dead_letters_are_not_listed() -> None:
    service = Service(4)
    service.store.gone = {(0, 0), (0, 2)}
    assert await service.listed() == ["id1", "id3"]


async def test_group_without_dead_letters_has_an_empty_list_and_a_missing_one_is_not_found() -> None:
    service = Service(1)
    service.groups.add("new")
    assert await service.page(group="new") == consumer_pb2.ListDeadLettersResponse()
    with pytest.raises(NotFound, match="group other does not exist"):
        await service.page(group="other")


async def test_all_faults_are_reported_at_once() -> None:
    service = Service(1)
    with pytest.raises(InvalidArgument) as caught:
        await all_of(service.redrive(wanted={"group": "a b", "from_ms": -1}, rate=-1.0, max_count=-1))
    for part in ("filter.group: 'a b' is not", "filter.from_ms: -1", "rate: -1 is not", "max_count: -1"):
        assert part in caught.value.text
    with pytest.raises(InvalidArgument, match="page: 'x y'"):
        await service.page(page="x y")
    with pytest.raises(InvalidArgument, match="max_count: 1025"):
        await service.page(1_025)


# --- redrive ----------------------------------------------------------------------------------------------------------


async def test_redriven_ones_are_copied_on_their_shards_and_gone() -> None:
    service = Service(2, 1)
    results = await all_of(service.redrive())
    assert results == [("id0", REDRIVEN), ("id1", REDRIVEN), ("id100", REDRIVEN)]
    assert [(shard, copy.topic, copy.reconsume_times) for shard, copy in service.store.copies] == [
        (0, RETRY, 0),
        (0, RETRY, 0),
        (1, RETRY, 0),
    ]
    assert await service.listed() == []
    assert await all_of(service.redrive()) == []
    assert service.registry.get_sample_value("ended_total", {"outcome": "redriven"}) == 3


async def test_redrive_obeys_filter_and_maximum() -> None:
    service = Service(5, 5)
    assert await all_of(service.redrive(wanted={"key": "key101"})) == [("id101", REDRIVEN)]
    assert await all_of(service.redrive(max_count=6)) == [
        (one, REDRIVEN) for one in ("id0", "id1", "id2", "id3", "id4", "id100")
    ]
    assert await service.listed() == ["id102", "id103", "id104"]


async def test_a_dry_run_changes_nothing_and_takes_no_time() -> None:
    service = Service(3)
    assert await all_of(service.redrive(dry_run=True, rate=0.001)) == [(f"id{n}", MATCHED) for n in range(3)]
    assert await all_of(service.discard(dry_run=True, max_count=2)) == [("id0", MATCHED), ("id1", MATCHED)]
    assert service.store.gone == set()


@pytest.mark.parametrize(("rate", "count", "took_ms"), [(2.0, 5, 2_000), (0.5, 3, 4_000), (50.0, 100, 1_900)])
async def test_a_rate_is_kept_by_the_clock(rate: float, count: int, took_ms: float) -> None:
    service = Service(count)
    started_ms = service.clock.monotonic_ms()
    times: list[float] = []

    async def go() -> None:
        times.extend([service.clock.monotonic_ms() - started_ms async for _ in service.redrive(rate=rate)])

    task = asyncio.ensure_future(go())
    for _ in range(10_000):
        await turn()
        if task.done():
            break
        if service.clock.next_timer_ms():
            service.clock.move(min(service.clock.next_timer_ms() or 0, 100))
    await task
    assert times[-1] == pytest.approx(took_ms)
    for n, at_ms in enumerate(times):
        assert n + 1 <= at_ms * rate / 1_000 + max(1, rate * 0.1) + 0.001


async def test_one_that_dies_again_meanwhile_is_left_for_the_next_call() -> None:
    service = Service(3)
    found = []
    async for one in service.redrive(rate=0.0):
        found.append(one.message_id)
        service.store.letters[0].append(dead(50 + len(found)))
        assert len(found) < 10
    assert found == ["id0", "id1", "id2"]
    assert await service.listed() == ["id51", "id52", "id53"]


async def test_two_at_once_make_one_copy_of_each() -> None:
    service = Service(100, 100)
    first, second = await asyncio.gather(all_of(service.redrive()), all_of(service.redrive()))
    assert sorted(service.store.copy_ids) == sorted(set(service.store.copy_ids))
    assert len(service.store.copies) == 200
    outcomes = [outcome for _, outcome in first + second]
    assert outcomes.count(REDRIVEN) == 200
    assert set(outcomes) <= {REDRIVEN, GONE}


async def test_an_aborted_redrive_resumes_with_the_next_call() -> None:
    service = Service(600)
    service.store.gate = asyncio.Event()
    task = asyncio.ensure_future(all_of(service.redrive()))
    while not service.store.copies:
        await turn()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    done = len(service.store.copies)
    assert 0 < done < 600
    service.store.gate = None
    assert len(await all_of(service.redrive())) == 600 - done
    assert sorted(service.store.copy_ids) == sorted(f"id{n}" for n in range(600))


async def test_a_stop_ends_a_redrive_that_waits_for_its_turn() -> None:
    service = Service(3)
    stream = service.redrive(rate=0.001)
    assert (await anext(stream)).message_id == "id0"
    waiting = asyncio.ensure_future(anext(stream))
    while service.clock.next_timer_ms() is None:
        await turn()
    service.letters.end_streams()
    with pytest.raises(Unavailable, match="call again to continue"):
        await waiting
    with pytest.raises(Unavailable):
        await anext(service.redrive())


async def test_expired_dead_letter_is_not_redriven() -> None:
    service = Service(0)
    now_ms = service.clock.now_ms()
    lives = [now_ms + 1, now_ms, now_ms]
    letters = [dead(number, DT_EXPIRES=str(at_ms)) for number, at_ms in enumerate(lives[:2])]
    # A group that receives dead letters gets them after their expiry too.
    service.store.letters[0] = [*letters, dead(2, DT_EXPIRES=str(now_ms), RETRY_TOPIC="%DLQ%audit")]
    results = [one async for one in service.redrive()]
    assert [one.outcome for one in results] == [REDRIVEN, FAILED, REDRIVEN]
    assert f"it expired at {now_ms}" in results[1].fault.message
    assert await service.listed() == ["id1"]


async def test_failed_redrive_is_reported_and_the_letter_stays() -> None:
    service = Service(0)
    service.store.letters[0] = [dead(0), dead(1, RETRY_TOPIC="", DLQ_ORIGIN_TOPIC=""), dead(2)]
    results = [one async for one in service.redrive()]
    assert [one.outcome for one in results] == [REDRIVEN, FAILED, REDRIVEN]
    assert results[1].fault.reason == "NOT_REDRIVABLE"
    assert ids(copy for _, copy in service.store.copies) == ["id0", "id2"]
    assert await service.listed() == ["id1"]
    assert [one.outcome async for one in service.redrive()] == [FAILED]


# --- discard ----------------------------------------------------------------------------------------------------------


async def test_discarded_ones_are_gone() -> None:
    service = Service(4)
    assert await all_of(service.discard(wanted={"ids": ["id1", "id3"]})) == [("id1", DISCARDED), ("id3", DISCARDED)]
    assert await service.listed() == ["id0", "id2"]
    assert service.store.copies == []


async def test_redrive_and_discard_at_once_take_each_but_once() -> None:
    service = Service(400)
    redriven, discarded = await asyncio.gather(all_of(service.redrive()), all_of(service.discard()))
    outcomes = [outcome for _, outcome in redriven + discarded]
    assert outcomes.count(REDRIVEN) + outcomes.count(DISCARDED) == 400
    assert outcomes.count(REDRIVEN) == len(service.store.copies)
