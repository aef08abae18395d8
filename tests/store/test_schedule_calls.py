"""PutSchedule and ChangeSchedule: changes of schedules, beside their occurrences and beside other messages."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from duetime.v1 import pending_pb2, schedules_pb2, store_pb2
from duetime_format import record
from duetime_format.columns import take
from duetime_format.schedules import schedule_of
from duetime_store.finding import finder
from duetime_store.pending import listing
from duetime_store.writing import holding

from tests.store.conftest import sent, timer
from tests.store.running import Running
from tests.store.scheduling import LANE, MINUTE_MS, asked
from tests.store.test_retention import HOUR_MS, Shard

Change = store_pb2.ScheduleChange
PAUSE, RESUME = Change.SCHEDULE_CHANGE_PAUSE, Change.SCHEDULE_CHANGE_RESUME
DELETE, RUN = Change.SCHEDULE_CHANGE_DELETE, Change.SCHEDULE_CHANGE_RUN
LOOK = Change.SCHEDULE_CHANGE_UNSPECIFIED


@pytest.fixture
async def shard(tmp_path: Path) -> AsyncIterator[Shard]:
    async with Shard(tmp_path / "store") as shard:
        yield shard


async def put(shard: Running, name: str = "report", **own: object) -> schedules_pb2.PutScheduleResponse:
    return await shard.stub.PutSchedule(asked(name, **own), timeout=60)


async def change(shard: Running, what: Change, name: str = "report", **own: object) -> store_pb2.ChangeScheduleResponse:
    request = store_pb2.ChangeScheduleRequest(topic="orders", name=name, change=what, **own)  # type: ignore[arg-type]
    return await shard.stub.ChangeSchedule(request, timeout=60)


async def occur(shard: Running, by_ms: int = 0, lane: int = LANE) -> store_pb2.RestoreResponse:
    """Restores all due entries, as a scheduler does."""
    shard.clock.move(by_ms)
    due = await shard.pull_due(lane, may_keep=True)
    request = store_pb2.RestoreRequest(lane=lane, first_entry=due.first_entry, kept_count=due.kept_count)
    return await shard.stub.Restore(request, timeout=60)


async def planned(shard: Running) -> list[int]:
    """Planned times of the delivered occurrences."""
    queue = shard.node.store.queues.find("orders", 0)
    units = queue.read(queue.min_offset, queue.max_offset - queue.min_offset).tolist()
    records = [record.decode(shard.node.store.read_record(*unit[:2])) for unit in units]
    return [schedule.planned for one in records if (schedule := schedule_of(one.properties))]


async def failing(call: object, reason: str) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call  # type: ignore[misc]
    assert reason in str(caught.value.trailing_metadata()) + str(caught.value.details()), caught.value
    return str(caught.value.details())


async def test_a_schedule_is_put_and_read(shard: Shard) -> None:
    now_ms = shard.clock.now_ms()
    answer = await put(shard, body=b"all of it", missed=schedules_pb2.MISSED_POLICY_ALL)
    assert (answer.created, answer.unchanged, answer.stored_bytes) == (True, False, 9)
    found = (await change(shard, LOOK, next_count=3)).schedule
    answer.schedule.next_at_ms.extend(found.next_at_ms[1:])
    assert found == answer.schedule
    assert (found.name, found.version, found.created_at_ms, found.paused) == ("report", 1, now_ms, False)
    assert (found.message.topic, found.message.body) == ("orders", b"all of it")
    assert found.every == schedules_pb2.IntervalTimes(every_ms=MINUTE_MS, start_at_ms=now_ms)
    assert found.missed == schedules_pb2.MISSED_POLICY_ALL
    assert [at - now_ms for at in found.next_at_ms] == [MINUTE_MS, 2 * MINUTE_MS, 3 * MINUTE_MS]
    assert (found.due_at_ms, found.lane, found.entry) == (now_ms + MINUTE_MS, LANE, 0)


async def test_the_same_schedule_again_stores_nothing(shard: Shard) -> None:
    first = await put(shard)
    end = shard.node.store.published_end
    shard.clock.move(1_000)
    again = await put(shard, create_only=True)
    assert (again.created, again.unchanged, again.stored_bytes) == (False, True, 0)
    assert again.schedule == first.schedule
    assert shard.node.store.published_end == end


async def test_another_body_keeps_the_planned_time(shard: Shard) -> None:
    first = await put(shard)
    shard.clock.move(10_000)
    second = (await put(shard, body=b"other")).schedule
    assert (second.version, second.message.body) == (2, b"other")
    assert second.next_at_ms == first.schedule.next_at_ms
    assert second.message_id != first.schedule.message_id
    assert shard.node.store.lanes[LANE].pending_count == 1


async def test_other_times_are_planned_from_now(shard: Shard) -> None:
    await put(shard)
    shard.clock.move(10_000)
    found = (await put(shard, every=schedules_pb2.IntervalTimes(every_ms=5_000))).schedule
    assert list(found.next_at_ms) == [shard.clock.now_ms() + 5_000]
    start = shard.clock.now_ms() + 777
    found = (await put(shard, every=schedules_pb2.IntervalTimes(every_ms=5_000, start_at_ms=start))).schedule
    assert list(found.next_at_ms) == [start]
    times = [shard.clock.now_ms() + 100, shard.clock.now_ms() - 100]
    found = (await put(shard, at=schedules_pb2.ListedTimes(at_ms=times))).schedule
    assert (list(found.next_at_ms), found.version) == (times[:1], 4)
    assert shard.node.store.lanes[LANE].pending_count == 1


async def test_a_changed_interval_has_equal_gaps(shard: Shard) -> None:
    await put(shard)
    shard.clock.move(59_000)
    await put(shard, every=schedules_pb2.IntervalTimes(every_ms=2 * MINUTE_MS))
    times = list((await change(shard, LOOK, next_count=3)).schedule.next_at_ms)
    assert [at - shard.clock.now_ms() for at in times] == [2 * MINUTE_MS, 4 * MINUTE_MS, 6 * MINUTE_MS]
    rule = schedules_pb2.CronRule(expression="30 2 * * *", zone="Europe/Berlin")
    await put(shard, cron=rule)
    assert (await put(shard, cron=rule)).unchanged


async def test_create_only_keeps_another_schedule(shard: Shard) -> None:
    await put(shard)
    await failing(put(shard, body=b"other", create_only=True), "SCHEDULE_EXISTS")
    assert (await change(shard, LOOK)).schedule.message.body == b"body"


async def test_occurrences_are_delivered_and_changes_meet_the_next_one(shard: Shard) -> None:
    first = await put(shard)
    await occur(shard, MINUTE_MS)
    found = (await change(shard, LOOK)).schedule
    assert [at - first.schedule.created_at_ms for at in found.next_at_ms] == [2 * MINUTE_MS]
    assert (await put(shard)).unchanged
    changed = (await put(shard, body=b"other")).schedule
    assert (changed.version, changed.next_at_ms) == (2, found.next_at_ms)
    await occur(shard, MINUTE_MS)
    assert [at - first.schedule.created_at_ms for at in await planned(shard)] == [MINUTE_MS, 2 * MINUTE_MS]
    assert shard.node.store.lanes[LANE].pending_count == 1


async def test_a_paused_schedule_waits_and_continues_from_now(shard: Shard) -> None:
    await put(shard)
    paused = (await change(shard, PAUSE)).schedule
    assert (paused.paused, list(paused.next_at_ms), paused.version) == (True, [], 2)
    assert (await change(shard, PAUSE)).schedule == paused
    assert (await put(shard, body=b"other")).schedule.paused
    shard.clock.move(HOUR_MS)
    resumed = (await change(shard, RESUME)).schedule
    assert (resumed.paused, resumed.version, resumed.message.body) == (False, 4, b"other")
    assert list(resumed.next_at_ms) == [shard.clock.now_ms() + MINUTE_MS]
    assert (await change(shard, RESUME)).schedule == resumed
    await occur(shard, MINUTE_MS)
    assert len(await planned(shard)) == 1


@pytest.mark.parametrize(
    ("missed", "count"),
    [
        (schedules_pb2.MISSED_POLICY_SKIP, 0),
        (schedules_pb2.MISSED_POLICY_ONE, 1),
        (schedules_pb2.MISSED_POLICY_ALL, 5),
        (schedules_pb2.MISSED_POLICY_UNSPECIFIED, 1),
    ],
)
async def test_missed_occurrences_follow_the_policy(
    shard: Shard, missed: "schedules_pb2.MissedPolicy", count: int
) -> None:
    made = (await put(shard, missed=missed, every=schedules_pb2.IntervalTimes(every_ms=2 * MINUTE_MS))).schedule
    await shard.put(sent("other"))
    shard.clock.move(11 * MINUTE_MS)
    while (await change(shard, LOOK)).schedule.next_at_ms[0] <= shard.clock.now_ms():
        statuses = (await occur(shard)).statuses
        assert list(statuses) == ([] if count else [store_pb2.PUT_STATUS_CANCELLED])
        shard.clock.move(holding.GATHER_MS)
    assert await planned(shard) == [made.next_at_ms[0] + number * 2 * MINUTE_MS for number in range(count)]
    assert (await change(shard, LOOK)).schedule.next_at_ms[0] == made.next_at_ms[0] + 10 * MINUTE_MS


async def test_a_schedule_without_further_times_is_not_resumed(shard: Shard) -> None:
    await put(shard, at=schedules_pb2.ListedTimes(at_ms=[shard.clock.now_ms() + 1_000]))
    await change(shard, PAUSE)
    shard.clock.move(2_000)
    await failing(change(shard, RESUME), "SCHEDULE_ENDED")
    assert (await change(shard, LOOK)).schedule.paused


async def test_a_deleted_schedule_is_gone(shard: Shard) -> None:
    first = (await put(shard)).schedule
    await change(shard, DELETE)
    for what in (LOOK, PAUSE, RESUME, DELETE, RUN):
        await failing(change(shard, what), "SCHEDULE_NOT_FOUND")
    assert shard.node.store.lanes[LANE].pending_count == 0
    again = await put(shard)
    assert again.created
    assert again.schedule.message_id != first.message_id


async def test_the_last_listed_time_ends_the_schedule(shard: Shard) -> None:
    await put(shard, at=schedules_pb2.ListedTimes(at_ms=[shard.clock.now_ms() + 1_000]))
    await occur(shard, 1_000)
    await failing(change(shard, LOOK), "SCHEDULE_NOT_FOUND")
    assert (await put(shard)).created


@pytest.mark.parametrize("restarts", [False, True])
async def test_the_same_listed_times_again_change_nothing_after_the_last(shard: Shard, restarts: bool) -> None:
    times = schedules_pb2.ListedTimes(at_ms=[shard.clock.now_ms() + 1_000, shard.clock.now_ms() + 2_000])
    await put(shard, at=times)
    await occur(shard, 1_000)
    shard.clock.move(1_000)
    # Its last occurrence is due, and not delivered yet.
    assert (await put(shard, at=times)).unchanged
    await occur(shard)
    if restarts:
        await shard.restart("")
    again = await put(shard, at=times, create_only=True)
    assert (again.created, again.unchanged, list(again.schedule.next_at_ms)) == (False, True, [])
    assert len(await planned(shard)) == 2
    for own in ({"body": b"other"}, {"missed": schedules_pb2.MISSED_POLICY_ALL}, {"name": "other"}):
        assert "schedule.at" in await failing(put(shard, at=times, **own), "none of its times is ahead")  # type: ignore[arg-type]
    await put(shard, "deleted", at=schedules_pb2.ListedTimes(at_ms=[shard.clock.now_ms() + 1_000]))
    await change(shard, DELETE, "deleted")
    shard.clock.move(2_000)
    gone = schedules_pb2.ListedTimes(at_ms=[shard.clock.now_ms() - 1_000])
    assert "schedule.at" in await failing(put(shard, "deleted", at=gone), "none of its times is ahead")


async def test_a_repeated_run_is_found_after_a_change(shard: Shard) -> None:
    await put(shard)
    ran = await change(shard, RUN, request_id="a1")
    await put(shard, body=b"later")
    assert (await change(shard, RUN, request_id="a1")).message_id == ran.message_id
    assert len(await planned(shard)) == 1


async def test_an_additional_occurrence_changes_nothing_else(shard: Shard) -> None:
    before = (await put(shard)).schedule
    shard.clock.move(5)
    ran = await change(shard, RUN, request_id="a1")
    assert ran.message_id
    assert (await change(shard, RUN, request_id="a1")).message_id == ran.message_id
    assert (await change(shard, RUN)).message_id != ran.message_id
    assert await planned(shard) == [shard.clock.now_ms()] * 2
    (one, *_) = (await shard.pull()).messages
    assert (one.body, one.keys, one.id) == (b"body", ["report"], ran.message_id)
    assert (await change(shard, LOOK)).schedule == before
    paused = (await change(shard, PAUSE)).schedule
    await change(shard, RUN)
    assert (await change(shard, LOOK)).schedule == paused


@pytest.mark.parametrize("gone", ["", "checkpoint", "consumequeue", "index"])
async def test_a_restart_finds_the_schedule(shard: Shard, gone: str) -> None:
    await put(shard)
    await put(shard, "poll", every=schedules_pb2.IntervalTimes(every_ms=2 * MINUTE_MS))
    await occur(shard, MINUTE_MS)
    if gone == "checkpoint":
        await shard.node.parts.checkpointer.write()
    await shard.restart(gone)
    assert not (await put(shard, body=b"other")).created
    assert (await put(shard, "poll", every=schedules_pb2.IntervalTimes(every_ms=2 * MINUTE_MS))).unchanged
    assert shard.node.store.lanes[LANE].pending_count == 2
    await occur(shard, MINUTE_MS)
    assert len(await planned(shard)) == 3
    assert shard.node.store.lanes[LANE].pending_count == 2


async def test_retention_keeps_schedules(shard: Shard) -> None:
    await put(shard, "waiting", every=schedules_pb2.IntervalTimes(every_ms=100 * HOUR_MS))
    await put(shard, "paused")
    await change(shard, PAUSE, "paused")
    for _ in range(2):
        await shard.fill(1_500)
        await shard.expire()
    assert shard.segments[0] > 0
    await shard.restart("consumequeue")
    assert (await change(shard, LOOK, "paused")).schedule.paused
    assert (await put(shard, "waiting", every=schedules_pb2.IntervalTimes(every_ms=100 * HOUR_MS))).unchanged
    assert (await change(shard, RESUME, "paused")).schedule.next_at_ms
    await occur(shard, MINUTE_MS)
    assert shard.node.store.lanes[LANE].pending_count == 2


async def test_a_key_is_a_schedules_or_a_messages(shard: Shard) -> None:
    await put(shard)
    one = store_pb2.Replacement(record=timer("A", 1_000, key="report"))
    answer = await shard.stub.Replace(store_pb2.ReplaceRequest(replacements=[one]), timeout=60)
    assert answer.results[0].fault.reason == "KEY_TAKEN"
    other = store_pb2.Replacement(record=timer("B", 1_000, key="cart"))
    answer = await shard.stub.Replace(store_pb2.ReplaceRequest(replacements=[other]), timeout=60)
    assert not answer.results[0].HasField("fault")
    await failing(put(shard, "cart"), "KEY_TAKEN")
    await failing(change(shard, PAUSE, "cart"), "KEY_TAKEN")
    await put(shard, "plain")
    await shard.put(sent("C", KEYS="plain"))
    assert shard.node.store.lanes[LANE].pending_count == 3


async def test_a_rescheduled_occurrence_moves_alone(shard: Shard) -> None:
    first = (await put(shard)).schedule
    ref = pending_pb2.PendingRef(message_id=first.message_id, topic="orders")
    asked_for = pending_pb2.Reschedule(message=ref, delay_ms=5_000)
    request = store_pb2.ReplaceRequest(replacements=[store_pb2.Replacement(reschedule=asked_for)])
    assert (await shard.stub.Replace(request, timeout=60)).results[0].status
    found = (await change(shard, LOOK)).schedule
    assert (found.due_at_ms, found.next_at_ms) == (shard.clock.now_ms() + 5_000, first.next_at_ms)
    await occur(shard, 5_000)
    assert await planned(shard) == list(first.next_at_ms)
    found = (await change(shard, LOOK)).schedule
    assert list(found.next_at_ms) == [first.next_at_ms[0] + MINUTE_MS]


async def test_a_paused_occurrence_is_not_rescheduled(shard: Shard) -> None:
    await put(shard)
    paused = (await change(shard, PAUSE)).schedule
    ref = pending_pb2.PendingRef(message_id=paused.message_id, topic="orders")
    request = store_pb2.ReplaceRequest(
        replacements=[store_pb2.Replacement(reschedule=pending_pb2.Reschedule(message=ref, delay_ms=5_000))]
    )
    (result,) = (await shard.stub.Replace(request, timeout=60)).results
    assert (result.fault.code, result.fault.reason) == (9, "SCHEDULE_PAUSED")
    assert (await change(shard, LOOK)).schedule == paused


async def test_a_rescheduled_occurrence_keeps_the_limit_of_bodies(shard: Shard) -> None:
    first = (await put(shard)).schedule
    ref = pending_pb2.PendingRef(message_id=first.message_id, topic="orders")
    asked_for = pending_pb2.Reschedule(message=ref, delay_ms=5_000, body=b"x" * (256 * 1024 + 1))
    request = store_pb2.ReplaceRequest(replacements=[store_pb2.Replacement(reschedule=asked_for)])
    (result,) = (await shard.stub.Replace(request, timeout=60)).results
    assert result.fault.violations[0].field == "reschedule.body"


async def test_a_cancelled_occurrence_ends_its_schedule(shard: Shard) -> None:
    first = (await put(shard)).schedule
    ref = pending_pb2.PendingRef(message_id=first.message_id, topic="orders")
    answer = await shard.stub.Cancel(pending_pb2.CancelRequest(messages=[ref]), timeout=60)
    assert answer.results[0].status == pending_pb2.CANCEL_STATUS_CANCELLED
    await failing(change(shard, LOOK), "SCHEDULE_NOT_FOUND")


async def test_calls_at_once_leave_one_occurrence(shard: Shard) -> None:
    bodies = [b"%d" % number for number in range(20)]
    answers = await asyncio.gather(*(put(shard, body=body) for body in bodies))
    assert sorted(one.schedule.version for one in answers) == list(range(1, 21))
    await asyncio.gather(change(shard, PAUSE), put(shard, body=b"x"), change(shard, RESUME), put(shard, body=b"y"))
    assert shard.node.store.lanes[LANE].pending_count == 1


async def test_a_list_of_schedules_reads_no_other_message(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    await shard.put(*(timer(f"m{number}", 500) for number in range(50)))
    await put(shard)
    read, message = [], listing._message

    def noted(found: record.Record, spot: listing.Spot) -> pending_pb2.PendingMessage:
        read.append(found)
        return message(found, spot)

    monkeypatch.setattr(listing, "_message", noted)
    answer = await shard.stub.ListPending(pending_pb2.ListPendingRequest(schedules_only=True), timeout=60)
    assert [one.schedule.name for one in answer.messages] == ["report"]
    assert len(read) == 1


async def test_the_list_shows_schedules_alone(shard: Shard) -> None:
    await put(shard, "b")
    await put(shard, "a", every=schedules_pb2.IntervalTimes(every_ms=1_000))
    await shard.put(timer("A", 500), sent("B", level=2))
    request = pending_pb2.ListPendingRequest(schedules_only=True)
    found = (await shard.stub.ListPending(request, timeout=60)).messages
    assert [(one.schedule.name, one.schedule.every.every_ms) for one in found] == [("a", 1_000), ("b", MINUTE_MS)]
    every = (await shard.stub.ListPending(pending_pb2.ListPendingRequest(), timeout=60)).messages
    assert [one.HasField("schedule") for one in every] == [False, True, True, False]


FAULTS = [
    ("schedule.name", {"name": "two words"}),
    ("schedule.name", {"name": "x" * 128}),
    ("schedule.name", {"name": "."}),
    ("schedule.name", {"name": ".."}),
    ("schedule.every.every_ms", {"every": schedules_pb2.IntervalTimes(every_ms=999)}),
    ("schedule.every.start_at_ms", {"every": schedules_pb2.IntervalTimes(every_ms=1_000, start_at_ms=10**13)}),
    ("schedule.at", {"at": schedules_pb2.ListedTimes(at_ms=[5])}),
    ("schedule.at.at_ms", {"at": schedules_pb2.ListedTimes()}),
    ("schedule.at.at_ms", {"at": schedules_pb2.ListedTimes(at_ms=range(1, 300))}),
    ("schedule.at", {"at": schedules_pb2.ListedTimes(at_ms=[9_000_000_000_000])}),
    ("schedule.cron.expression", {"cron": schedules_pb2.CronRule()}),
    ("schedule.cron.zone", {"cron": schedules_pb2.CronRule(expression="* * * * *", zone="x" * 65)}),
    ("schedule.cron.in_gap", {"cron": schedules_pb2.CronRule(expression="* * * * *", in_gap=9)}),  # type: ignore[arg-type]
    ("schedule.cron", {"cron": schedules_pb2.CronRule(expression="bad")}),
    ("schedule.missed", {"missed": 9}),
    ("schedule.message.body", {"body": b"x" * (256 * 1024 + 1)}),
]


@pytest.mark.parametrize(("field", "own"), FAULTS)
async def test_a_wrong_schedule_is_refused(shard: Shard, field: str, own: dict[str, object]) -> None:
    assert field in await failing(put(shard, **own), "INVALID_ARGUMENT")  # type: ignore[arg-type]
    assert shard.node.store.published_end == shard.node.store.log.min_position


async def test_many_occurrences_of_one_moment_are_stored_in_steps(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holding, "OCCURRENCES_AT_ONCE", 3)
    steps: list[int] = []
    restore = shard.node.store.restore
    monkeypatch.setattr(
        shard.node.store,
        "restore",
        lambda intake, *args, **own: steps.append(intake.count) or restore(intake, *args, **own),
    )
    await asyncio.gather(*(put(shard, f"s{number}") for number in range(10)))
    await shard.put(timer("plain", MINUTE_MS))
    await occur(shard, MINUTE_MS)
    assert steps == [3, 3, 3, 2]
    assert len(await planned(shard)) == 10
    assert shard.node.store.lanes[LANE].pending_count == 10


async def test_a_largest_schedule_occurs(shard: Shard) -> None:
    await put(shard, body=b"x" * 256 * 1024)
    await occur(shard, MINUTE_MS)
    await occur(shard, MINUTE_MS)
    assert len(await planned(shard)) == 2


async def test_a_name_that_is_busy_in_other_topics_is_found_without_decoding_theirs(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All lanes' records with one key are in one chain of the index."""
    await put(shard)
    await shard.put(*(timer(f"m{number}", 500_000, topic=f"t{number % 7}", key="report") for number in range(300)))
    shard.node.parts.schedules._keys._known.clear()
    decoded: list[int] = []

    def noted(data: bytes, at: int, position: int) -> object:
        decoded.append(position)
        return take(data, at, position)

    monkeypatch.setattr(finder, "take", noted)
    assert (await change(shard, PAUSE)).schedule.paused
    assert len(decoded) <= 2
