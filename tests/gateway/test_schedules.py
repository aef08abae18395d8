"""Schedules through gateways: their shard, their list over all shards, refused fields, audit log and quotas."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from duetime import AsyncSchedules, Message, Overloaded, Schedule, ScheduleDefinition, Timeout
from duetime.v1 import audit_pb2, gateway_pb2, message_pb2, quotas_pb2, schedules_pb2

from tests.gateway.conftest import WAIT_S, Gateway, WallClock, error_of, message, real_store, until, waiting

NAMES = [f"s{number}" for number in range(12)]
MINUTE_MS = 60_000
NOW_MS = 1_800_000_000_000


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    """Two shards whose clock does not move."""
    async with AsyncExitStack() as stack:
        clock = WallClock(NOW_MS)
        stores = [await stack.enter_async_context(real_store(tmp_path, shard, clock=clock)) for shard in (0, 1)]
        ports = {shard: store.port for shard, store in enumerate(stores)}
        yield await stack.enter_async_context(Gateway(tmp_path, ports))


def schedule(name: str = "report", every_ms: int = MINUTE_MS, **fields: Any) -> schedules_pb2.Schedule:
    every = schedules_pb2.IntervalTimes(every_ms=every_ms)
    return schedules_pb2.Schedule(name=name, message=message(**fields), every=every)


async def put(gateway: Gateway, one: schedules_pb2.Schedule, **own: Any) -> schedules_pb2.PutScheduleResponse:
    return await gateway.stub.PutSchedule(schedules_pb2.PutScheduleRequest(schedule=one, **own), timeout=WAIT_S)


def ref(name: str = "report", topic: str = "orders") -> schedules_pb2.ScheduleRef:
    return schedules_pb2.ScheduleRef(topic=topic, name=name)


async def listed(gateway: Gateway, max_count: int = 5) -> list[schedules_pb2.Schedule]:
    found: list[schedules_pb2.Schedule] = []
    request = schedules_pb2.ListSchedulesRequest(topic="orders", max_count=max_count)
    while True:
        page = await gateway.stub.ListSchedules(request, timeout=WAIT_S)
        found += page.schedules
        if not page.next_page_token:
            return found
        request.page_token = page.next_page_token


async def test_schedules_of_all_shards_are_listed_in_order(gateway: Gateway) -> None:
    retry = message_pb2.RetryPolicy(max_attempts=3)
    for number, name in enumerate(NAMES):
        one = schedule(
            name, MINUTE_MS * (len(NAMES) - number), tags="t", properties={"p": "v"}, flag=7, retry=retry, expires_ms=5
        )
        assert (await put(gateway, one)).created
    await gateway.send(message(delay_ms=5_000))
    found = await listed(gateway)
    assert [one.name for one in found] == NAMES[::-1]
    assert {one.shard for one in found} == {0, 1}
    for one in found:
        asked = schedules_pb2.GetScheduleRequest(topic="orders", name=one.name)
        assert await gateway.stub.GetSchedule(asked, timeout=WAIT_S) == one
        assert one.message == message(tags="t", properties={"p": "v"}, flag=7, retry=one.message.retry, expires_ms=5)
        assert one.message.retry.max_attempts == 3
    await gateway.stub.PauseSchedule(ref("s11"), timeout=WAIT_S)
    assert [one.name for one in await listed(gateway)] == [*NAMES[10::-1], "s11"]


async def counted(gateway: Gateway, topic: str = "") -> schedules_pb2.CountSchedulesResponse:
    request = schedules_pb2.CountSchedulesRequest(topic=topic)
    return await gateway.stub.CountSchedules(request, timeout=WAIT_S)


async def test_schedules_are_counted_by_topic_and_shard(gateway: Gateway) -> None:
    shards = Counter[tuple[str, int]]()
    for name in NAMES:
        for topic in ("orders", "bills"):
            shards[topic, (await put(gateway, schedule(name, topic=topic))).schedule.shard] += 1
    paused = (await gateway.stub.PauseSchedule(ref("s3"), timeout=WAIT_S)).shard
    expected = [
        schedules_pb2.ScheduleCount(
            topic=topic, shard=shard, schedule_count=count, paused_count=int((topic, shard) == ("orders", paused))
        )
        for (topic, shard), count in sorted(shards.items())
    ]
    assert list((await counted(gateway)).counts) == expected
    assert list((await counted(gateway, "bills")).counts) == expected[:2]
    assert (await error_of(counted(gateway, "none"))).code().name == "NOT_FOUND"
    assert "topic" in str((await error_of(counted(gateway, "two words"))).details())


async def test_a_schedule_stays_on_its_shard_through_any_gateway(gateway: Gateway, tmp_path: Path) -> None:
    for name in NAMES:
        await put(gateway, schedule(name))
    stores = dict(one.split("=127.0.0.1:") for one in gateway.settings.stores.split(","))
    async with Gateway(tmp_path, {int(shard): int(port) for shard, port in stores.items()}) as other:
        for name in NAMES:
            assert (await put(other, schedule(name), create_only=True)).unchanged
            assert (await put(other, schedule(name, body=b"other"))).schedule.version == 2
            assert (await other.stub.PauseSchedule(ref(name), timeout=WAIT_S)).paused
            assert not (await gateway.stub.ResumeSchedule(ref(name), timeout=WAIT_S)).paused
    assert len(await waiting(gateway)) == len(NAMES)


async def test_a_schedule_creates_its_topic(gateway: Gateway) -> None:
    answer = await put(gateway, schedule(topic="new"))
    assert (answer.schedule.message.topic, answer.created) == ("new", True)
    assert [topic.name for topic in (await gateway.stub.ListTopics(gateway_pb2.ListTopicsRequest())).topics] == ["new"]


async def test_a_dry_run_answers_with_times_and_stores_nothing(gateway: Gateway) -> None:
    one = schedule(topic="new", properties={"p": "v"})
    answer = await put(gateway, one, dry_run=True, next_count=3)
    times = answer.schedule.next_at_ms
    assert [at - times[0] for at in times] == [0, MINUTE_MS, 2 * MINUTE_MS]
    assert (answer.created, answer.unchanged, answer.stored_bytes, answer.schedule.message_id) == (False, False, 0, "")
    assert len((await put(gateway, one, dry_run=True)).schedule.next_at_ms) == 1
    topics = (await gateway.stub.ListTopics(gateway_pb2.ListTopicsRequest())).topics
    assert "new" not in [topic.name for topic in topics]
    past = schedules_pb2.ListedTimes(at_ms=[1])
    for field, wrong in (
        ("schedule.every.every_ms", {"every": schedules_pb2.IntervalTimes(every_ms=1)}),
        ("schedule.at", {"at": past}),
        ("schedule.cron", {"cron": schedules_pb2.CronRule(expression="0 0 31 2 *")}),
        ("schedule.cron", {"cron": schedules_pb2.CronRule(expression="* * * * *", zone="Europe/Berlim")}),
    ):
        asked = schedules_pb2.Schedule(name="x", message=message(), **wrong)
        error = await error_of(put(gateway, asked, dry_run=True))
        assert str(error.details()).startswith(f"{field}: "), error.details()
    error = await error_of(put(gateway, one, dry_run=True, next_count=101))
    assert "next_count" in str(error.details())


@pytest.mark.parametrize(
    ("kind", "times"),
    [
        ("every", {"every": schedules_pb2.IntervalTimes(every_ms=2 * MINUTE_MS)}),
        ("at", {"at": schedules_pb2.ListedTimes(at_ms=[NOW_MS + 1_000, NOW_MS + 2_000, NOW_MS + 3 * MINUTE_MS])}),
        ("cron", {"cron": schedules_pb2.CronRule(expression="0 * * * *")}),
    ],
)
async def test_max_delay_limits_the_longest_wait(gateway: Gateway, kind: str, times: dict[str, Any]) -> None:
    await gateway.stub.CreateTopic(gateway_pb2.CreateTopicRequest(name="short", max_delay_ms=MINUTE_MS))
    one = schedules_pb2.Schedule(name="far", message=message(topic="short"), **times)
    error = await error_of(gateway.stub.PutSchedule(schedules_pb2.PutScheduleRequest(schedule=one), timeout=WAIT_S))
    assert str(error.details()).startswith(f"schedule.{kind}: "), error.details()
    assert (await put(gateway, schedule("near", topic="short"))).created


async def test_an_additional_occurrence_arrives_with_the_schedules_name(gateway: Gateway) -> None:
    await put(gateway, schedule(body=b"now"))
    asked = schedules_pb2.RunScheduleRequest(topic="orders", name="report", request_id="x1")
    ran = await gateway.stub.RunSchedule(asked, timeout=WAIT_S)
    assert ran.stored_bytes == 3
    assert (await gateway.stub.RunSchedule(asked, timeout=WAIT_S)).message_id == ran.message_id
    found = [one for queue in range(4) for one in (await gateway.pull(queue=queue)).messages]
    assert [(one.id, one.keys, one.body) for one in found] == [(ran.message_id, ["report"], b"now")]


@pytest.mark.parametrize(
    ("field", "one"),
    [
        ("schedule.name", schedule("two words")),
        ("schedule.message.keys", schedule(keys=["k"])),
        ("schedule.message.queue", schedule(queue=0)),
        ("schedule.message.delay_ms", schedule(delay_ms=5)),
        ("schedule.message.deliver_at_ms", schedule(deliver_at_ms=5)),
        ("schedule.message.id", schedule(id="x")),
        ("schedule.message.replace", schedule(replace=True)),
        ("schedule.message.priority", schedule(priority=1)),
        ("schedule.message.topic", schedule(topic="two words")),
        ("schedule.message.properties", schedule(properties={"DT_SCHEDULE": "x"})),
        ("schedule.message.body", schedule(body=b"x" * (256 * 1024 + 1))),
        ("schedule.every.every_ms", schedule(every_ms=5)),
        ("schedule.times", schedules_pb2.Schedule(name="x", message=message())),
    ],
)
async def test_a_wrong_schedule_is_refused(gateway: Gateway, field: str, one: schedules_pb2.Schedule) -> None:
    error = await error_of(put(gateway, one))
    assert error.code().name == "INVALID_ARGUMENT"
    assert field in str(error.details())
    assert await waiting(gateway) == []


async def test_calls_about_unknown_schedules_fail(gateway: Gateway) -> None:
    await put(gateway, schedule())
    for call in (gateway.stub.PauseSchedule, gateway.stub.ResumeSchedule, gateway.stub.DeleteSchedule):
        assert "has no schedule 'other'" in str((await error_of(call(ref("other")))).details())
        assert (await error_of(call(ref(topic="none")))).code().name == "NOT_FOUND"
    await gateway.stub.DeleteSchedule(ref(), timeout=WAIT_S)
    assert (await error_of(gateway.stub.DeleteSchedule(ref()))).code().name == "NOT_FOUND"
    assert await listed(gateway) == []


async def test_changes_are_audited(gateway: Gateway) -> None:
    await put(gateway, schedule())
    await gateway.stub.PauseSchedule(ref(), timeout=WAIT_S)
    await gateway.stub.DeleteSchedule(ref(), timeout=WAIT_S)
    events: list[audit_pb2.AuditEvent] = []
    async with asyncio.timeout(WAIT_S):
        while len(events) < 3:
            answer = await gateway.stub.ListAuditEvents(audit_pb2.ListAuditEventsRequest())
            events = [one for one in answer.events if "Schedule" in one.method]
    assert {one.resource for one in events} == {"schedule report of topic orders"}


async def test_a_put_counts_against_quotas(gateway: Gateway) -> None:
    quota = quotas_pb2.Quota(of=quotas_pb2.QuotaOf(topic="orders"), bytes_per_s=1, burst_bytes=5 * 1024 * 1024)
    await gateway.stub.SetQuota(quotas_pb2.SetQuotaRequest(quota=quota), timeout=WAIT_S)
    await until(gateway, lambda: bool(gateway.node.parts.quotas.quotas.active))
    for number in range(20):
        await put(gateway, schedule(f"s{number}", body=b"x" * 200_000))
    refused = await error_of(_put_many(gateway))
    assert refused.code().name == "RESOURCE_EXHAUSTED"


async def test_more_than_a_quota_takes_at_once_is_put_in_parts(gateway: Gateway) -> None:
    quota = quotas_pb2.Quota(of=quotas_pb2.QuotaOf(topic="orders"), pending_count=5)
    await gateway.stub.SetQuota(quotas_pb2.SetQuotaRequest(quota=quota), timeout=WAIT_S)
    await until(gateway, lambda: bool(gateway.node.parts.quotas.quotas.active))
    definitions = [ScheduleDefinition(f"s{number}", Message("orders", b"x"), every="1h") for number in range(16)]
    async with AsyncSchedules(f"127.0.0.1:{gateway.node.port}", timeout="2s") as client:
        outcomes = await client.put_all(definitions, errors="return")
    put = {one.name for one in outcomes if isinstance(one, Schedule)}
    assert put == {one.name for one in await listed(gateway)} != set()
    # The rest did not fit when it was asked for, which is no fault of the request.
    assert {type(one) for one in outcomes} <= {Schedule, Overloaded, Timeout}


async def put_all(gateway: Gateway, *puts: schedules_pb2.PutScheduleRequest) -> list[schedules_pb2.PutScheduleResult]:
    answer = await gateway.stub.PutSchedules(schedules_pb2.PutSchedulesRequest(puts=puts), timeout=WAIT_S)
    return list(answer.results)


async def test_many_schedules_are_put_on_all_shards_with_an_answer_each(gateway: Gateway) -> None:
    await gateway.stub.CreateTopic(gateway_pb2.CreateTopicRequest(name="short", max_delay_ms=MINUTE_MS))
    asked = [*(schedule(name) for name in NAMES), schedule("x", topic="new"), schedule("y", topic="two words")]
    asked += [schedule("far", 2 * MINUTE_MS, topic="short"), schedule("z", keys=["k"]), schedule("s0", body=b"later")]
    results = await put_all(gateway, *(schedules_pb2.PutScheduleRequest(schedule=one) for one in asked))
    faults = [[one.field for one in result.fault.violations] for result in results]
    assert faults == [
        *[[]] * 13,
        *[["schedule.message.topic"], ["schedule.every"], ["schedule.message.keys"]],
        [],
    ]
    assert {one.put.schedule.shard for one in results[:12]} == {0, 1}
    for name, result in zip(NAMES[1:], results[1:12], strict=True):
        found = await gateway.stub.GetSchedule(
            schedules_pb2.GetScheduleRequest(topic="orders", name=name), timeout=WAIT_S
        )
        found.ClearField("message")
        assert found == result.put.schedule
    assert results[-1].put.schedule.version == 2
    assert {one.name for one in await listed(gateway)} == set(NAMES)


async def test_a_shard_that_does_not_answer_is_a_fault_of_its_schedules(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack, AsyncExitStack() as ending:
        store = await stack.enter_async_context(real_store(tmp_path, 0))
        gone = await ending.enter_async_context(real_store(tmp_path, 1))
        gateway = await stack.enter_async_context(Gateway(tmp_path, {0: store.port, 1: gone.port}))
        puts = [schedules_pb2.PutScheduleRequest(schedule=schedule(name)) for name in NAMES]
        shards = [one.put.schedule.shard for one in await put_all(gateway, *puts)]
        await ending.aclose()
        request = schedules_pb2.PutSchedulesRequest(puts=puts)
        results = (await gateway.stub.PutSchedules(request, timeout=60)).results
        counts = await counted(gateway)
        assert ([one.shard for one in counts.counts], list(counts.unreachable_shards)) == ([0], [1])
    assert [(one.put.unchanged, one.fault.retriable) for one in results] == [
        (shard == 0, shard == 1) for shard in shards
    ]


async def test_a_put_of_many_is_limited_audited_and_charged(gateway: Gateway) -> None:
    one = schedules_pb2.PutScheduleRequest(schedule=schedule(body=b"x" * 200_000))
    assert "bytes exceed" in str((await error_of(put_all(gateway, *[one] * 22))).details())
    assert "puts" in str((await error_of(put_all(gateway))).details())
    one.dry_run = True
    assert "puts.dry_run" in str((await error_of(put_all(gateway, one))).details())
    one.dry_run = False
    quota = quotas_pb2.Quota(of=quotas_pb2.QuotaOf(topic="orders"), bytes_per_s=1, burst_bytes=5 * 1024 * 1024)
    await gateway.stub.SetQuota(quotas_pb2.SetQuotaRequest(quota=quota), timeout=WAIT_S)
    await until(gateway, lambda: bool(gateway.node.parts.quotas.quotas.active))
    await put_all(gateway, *[one] * 20)
    assert (await error_of(put_all(gateway, *[one] * 20))).code().name == "RESOURCE_EXHAUSTED"
    async with asyncio.timeout(WAIT_S):
        while True:
            answer = await gateway.stub.ListAuditEvents(audit_pb2.ListAuditEventsRequest())
            events = [event for event in answer.events if "PutSchedules" in event.method]
            if len(events) == 5:
                break
    assert any(event.resource.startswith("20 schedules: schedule report of topic orders, ") for event in events)


async def _put_many(gateway: Gateway) -> None:
    for number in range(20, 60):
        await put(gateway, schedule(f"s{number}", body=b"x" * 200_000))
