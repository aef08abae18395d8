"""Groups through the gateway: made, changed, announced to the shards, adopted from them, described, reset, deleted."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from duetime.v1 import consumer_pb2, gateway_pb2
from duetime.v1.consumer_pb2 import GROUP_START_LATEST, GROUP_START_TIME, Group, GroupDescription
from duetime_core.errors import Unavailable
from duetime_core.rpc import retry_policy
from duetime_core.testing import FakeClock
from duetime_format import limits as contract
from duetime_format import rates
from structlog.testing import capture_logs

from tests.format import golden
from tests.gateway.conftest import MIB, NOW_MS, Gateway, TappedStore, error_of, message, real_store, tapped_store
from tests.gateway.test_leases import make_topic, receive
from tests.tap import WAIT_S


async def create(gateway: Gateway, name: str = "billing", **fields: Any) -> Group:
    request = consumer_pb2.CreateGroupRequest(group=Group(name=name, **fields))
    return await gateway.stub.CreateGroup(request, timeout=WAIT_S)


async def names(gateway: Gateway) -> list[str]:
    listed = await gateway.stub.ListGroups(consumer_pb2.ListGroupsRequest(), timeout=WAIT_S)
    return [group.name for group in listed.groups]


def describe(gateway: Gateway, name: str = "billing") -> Any:
    return gateway.stub.DescribeGroup(consumer_pb2.DescribeGroupRequest(name=name), timeout=WAIT_S)


def reset(gateway: Gateway, **fields: Any) -> Any:
    request = consumer_pb2.ResetGroupRequest(**{"name": "billing", "topic": "orders", **fields})
    return gateway.stub.ResetGroup(request, timeout=WAIT_S)


def delete(gateway: Gateway, name: str = "billing", *, force: bool = False) -> Any:
    return gateway.stub.DeleteGroup(consumer_pb2.DeleteGroupRequest(name=name, force=force), timeout=WAIT_S)


async def test_new_and_changed_groups_are_announced_to_all_shards(tapped: Gateway, taps: list[TappedStore]) -> None:
    made = await create(tapped, ordered=True)
    assert await create(tapped, ordered=True) == made
    error = await error_of(create(tapped))
    assert (error.code(), error.details()) == (
        grpc.StatusCode.ALREADY_EXISTS,
        "group billing exists with ordered true",
    )
    request = consumer_pb2.UpdateGroupRequest(name="billing", retry=retry_policy.parse("1s,max=3"))
    changed = await tapped.stub.UpdateGroup(request)
    assert (changed.retry.max_attempts, changed.ordered) == (3, True)
    for tap in taps:
        await tap.until_requests("PutGroup", 2)
        assert tap.requests["PutGroup"] == [made, changed]
    assert await names(tapped) == ["billing"]


async def test_recovered_shard_learns_of_it_when_the_group_receives(tapped: Gateway, taps: list[TappedStore]) -> None:
    await make_topic(tapped)
    made = await create(tapped)
    await taps[1].stop()
    await error_of(receive(tapped))
    announced = taps[1].requests["PutGroup"]
    announced.clear()
    await taps[1].start()
    async with asyncio.timeout(WAIT_S):
        while not announced:
            with suppress(grpc.aio.AioRpcError):
                await receive(tapped, wait_ms=100)
    assert announced == [made]


async def test_latest_is_by_the_clock_of_the_slowest_shard(tapped: Gateway, taps: list[TappedStore]) -> None:
    taps[1].after["Describe"] = lambda _, answer: setattr(answer, "now_ms", NOW_MS - 5_000)
    assert (await create(tapped, start=GROUP_START_LATEST, start_at_ms=3)).start_at_ms == NOW_MS - 5_000
    await taps[1].stop()
    assert (await create(tapped, "other", start=GROUP_START_LATEST)).start_at_ms == NOW_MS


REFUSED = [
    ({"name": "a b"}, "group.name: 'a b' is not 1 to 120 characters"),
    ({"start": 3}, "group.start: 3 is not within 0 and 2"),
    ({"start": GROUP_START_TIME}, "group.start_at_ms: 0 is not above 0"),
    ({"retry": {"max_attempts": -1}}, "group.retry.max_attempts: -1 is not within 1 and 1000"),
]


async def test_bad_group_is_refused(gateway: Gateway) -> None:
    for fields, why in REFUSED:
        error = await error_of(create(gateway, **fields))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert why in error.details()
    assert await names(gateway) == []


async def test_unknown_group_is_not_found(gateway: Gateway) -> None:
    await make_topic(gateway)
    update = gateway.stub.UpdateGroup(consumer_pb2.UpdateGroupRequest(name="billing"))
    for call in (describe(gateway), reset(gateway, latest=True), update):
        error = await error_of(call)
        assert (error.code(), error.details()) == (grpc.StatusCode.NOT_FOUND, "group billing does not exist")


async def test_description_puts_the_shards_together(tapped: Gateway, taps: list[TappedStore]) -> None:
    await make_topic(tapped)
    made = await create(tapped)
    route = await tapped.stub.GetRoute(gateway_pb2.GetRouteRequest(topic="orders"))
    shards = {one.queue: one.shard for one in route.queues}
    await receive(tapped, member="both")
    await tapped.send(*(message(queue=queue) for queue in range(4) for _ in range(queue + 1)))

    def add(shard: int) -> Callable[[Any, GroupDescription], None]:
        """Has the shard know one more receiver, and of retries."""

        def change(_: Any, answer: GroupDescription) -> None:
            answer.queues[-1].waiting = 5
            answer.members[0].seen_at_ms = 100 + shard
            answer.members.add(name=f"m{shard}", topic="orders", seen_at_ms=50)
            answer.acks_per_s, answer.receives_per_s, answer.dead_letters, answer.lapsed_messages = 1.5, 2.5, 3, 4

        return change

    for tap in taps:
        tap.after["DescribeGroup"] = add(tap.shard)
    described = await describe(tapped)
    assert described.group == made
    assert [(one.topic, one.queue, one.lag) for one in described.queues[:4]] == [("orders", n, n + 1) for n in range(4)]
    assert {one.queue: one.shard for one in described.queues[:4]} == shards
    assert [(one.topic, one.shard, one.waiting) for one in described.queues[4:]] == [
        ("%RETRY%billing", 0, 5),
        ("%RETRY%billing", 1, 5),
    ]
    assert [(one.name, one.seen_at_ms) for one in described.members] == [("both", 101), ("m0", 50), ("m1", 50)]
    assert (described.acks_per_s, described.receives_per_s) == (3, 5)
    assert (described.dead_letters, described.lapsed_messages) == (6, 8)
    taps[0].refuse(Unavailable("away"), "DescribeGroup")
    assert list((await describe(tapped)).unreachable_shards) == [0]


async def test_reset_asks_each_shard_for_its_queues(tapped: Gateway, taps: list[TappedStore]) -> None:
    await make_topic(tapped)
    await create(tapped)
    answer = await reset(tapped, at_ms=77, dry_run=True)
    assert [one.queue for one in answer.queues] == [0, 1, 2, 3]
    assert {one.shard for one in answer.queues} == {0, 1}
    for tap in taps:
        asked = tap.requests["ResetGroup"][-1]
        assert (asked.at_ms, asked.dry_run) == (77, True)
        assert [one.queue for one in asked.queues] == [one.queue for one in answer.queues if one.shard == tap.shard]
    (only,) = (await reset(tapped, queue=2, offset=0)).queues
    assert only.queue == 2
    assert not taps[1 - only.shard].requests["ResetGroup"][-1].HasField("queue")


RESETS = [
    ({}, "earliest: none of earliest, latest, at_ms and offset is set"),
    ({"offset": 4}, "queue: is not set; an offset belongs to one queue"),
    ({"at_ms": -1}, "at_ms: -1 is not within 0 and"),
    ({"latest": True, "queue": -1}, "queue: -1 is not within 0 and 1023"),
    ({"latest": True, "queue": 4}, "queue 4 is not one of the 4 queues of topic orders"),
    ({"latest": True, "topic": "nothing"}, "topic nothing does not exist"),
]


async def test_bad_reset_is_refused(tapped: Gateway, taps: list[TappedStore]) -> None:
    await make_topic(tapped)
    await create(tapped)
    for fields, why in RESETS:
        assert why in (await error_of(reset(tapped, **fields))).details()
    assert not any(tap.requests["ResetGroup"] for tap in taps)


async def test_group_in_use_is_deleted_only_by_force(tmp_path: Path) -> None:
    async with (
        tapped_store(tmp_path, 0) as first,
        tapped_store(tmp_path, 1) as second,
        Gateway(tmp_path, {0: first.port, 1: second.port}) as gateway,
    ):
        await make_topic(gateway)
        await receive(gateway, member="worker-1")
        error = await error_of(delete(gateway))
        assert (error.code(), error.details()) == (
            grpc.StatusCode.FAILED_PRECONDITION,
            "group billing is in use: receivers were seen within a minute (worker-1); force deletes it anyway",
        )
        assert await names(gateway) == ["billing"]
        assert not first.requests["DeleteGroup"]
        await delete(gateway, force=True)
        assert await names(gateway) == []
        for tap in (first, second):
            assert tap.requests["DeleteGroup"] == [consumer_pb2.DeleteGroupRequest(name="billing", force=True)]
        await receive(gateway, member="worker-1")

        def age(_: Any, answer: GroupDescription) -> None:
            for member in answer.members:
                member.seen_at_ms -= 61_000

        first.after["DescribeGroup"] = second.after["DescribeGroup"] = age
        await delete(gateway)
        assert await names(gateway) == []


async def test_group_stays_as_long_as_a_shard_has_not_forgotten_it(tapped: Gateway, taps: list[TappedStore]) -> None:
    await create(tapped)
    taps[0].refuse(Unavailable("away"), "DeleteGroup")
    assert (await error_of(delete(tapped))).code() is grpc.StatusCode.UNAVAILABLE
    assert await names(tapped) == ["billing"]
    taps[0].accept()
    await delete(tapped)
    assert await names(tapped) == []


async def test_groups_of_a_shard_are_adopted_but_for_a_broker_s_own(tmp_path: Path, tap: TappedStore) -> None:
    found = ["paid", "a b", "CID_RMQ_SYS_TRANS", "SELF_TEST_C_GROUP", "TOOLS_CONSUMER"]
    groups = [Group(name=name) for name in found]
    groups[0].retry.max_attempts = 4
    tap.after["ListGroups"] = lambda *_: consumer_pb2.ListGroupsResponse(groups=groups)
    with capture_logs() as logs:
        async with Gateway(tmp_path, {0: tap.port}) as gateway:
            listed = (await gateway.stub.ListGroups(consumer_pb2.ListGroupsRequest())).groups
    assert [(group.name, group.retry.max_attempts) for group in listed] == [("paid", 4)]
    assert [line["group"] for line in logs if line["event"] == "group of a shard has an invalid name: not served"] == [
        "a b"
    ]


async def test_shard_without_an_answer_to_that_is_served_without_its_groups(tmp_path: Path, tap: TappedStore) -> None:
    tap.closed["ListGroups"] = Unavailable("as the test wants it")
    with capture_logs() as logs:
        async with Gateway(tmp_path, {0: tap.port}) as gateway:
            assert await names(gateway) == []
    assert "cannot inspect a shard's groups" in [line["event"] for line in logs]


@pytest.mark.parametrize("name", golden.NAMES)
async def test_groups_of_a_broker_s_directory_are_served(tmp_path: Path, name: str) -> None:
    directory = golden.unpack(name, tmp_path)
    async with (
        real_store(tmp_path, data_dir=directory, segment_bytes=MIB) as store,
        Gateway(tmp_path, {0: store.port}) as gateway,
    ):
        # Those of the summary's clients, none of the broker's.
        found = {group[2:] for group in await names(gateway)} - {"_g_pop"}
    assert found == {"_g_fail", "_g_later", "_g_ok", "_g_pull"}


async def test_group_is_paused_on_all_shards(tapped: Gateway, taps: list[TappedStore]) -> None:
    await make_topic(tapped)
    await tapped.send(*(message(queue=queue) for queue in range(4)))
    unknown = await error_of(tapped.stub.PauseGroup(consumer_pb2.PauseGroupRequest(name="billing"), timeout=WAIT_S))
    assert unknown.code() == grpc.StatusCode.NOT_FOUND
    await create(tapped)
    request = consumer_pb2.PauseGroupRequest(name="billing", for_ms=60_000)
    (paused,) = (await tapped.stub.PauseGroup(request, timeout=WAIT_S)).pauses
    assert (paused.topic, paused.until_ms) == ("", NOW_MS + 60_000)
    assert not (await receive(tapped, wait_ms=50)).messages
    assert list((await describe(tapped)).pauses) == [paused]
    taps[1].refuse(Unavailable("away"), "ResumeGroup")
    half = await error_of(tapped.stub.ResumeGroup(consumer_pb2.ResumeGroupRequest(name="billing"), timeout=WAIT_S))
    assert half.code() == grpc.StatusCode.UNAVAILABLE
    assert half.details() == "the other shards have done it, but shard 1 has not done it (away): repeat the call"
    taps[1].accept()
    resumed = await tapped.stub.ResumeGroup(consumer_pb2.ResumeGroupRequest(name="billing"), timeout=WAIT_S)
    assert not resumed.pauses
    found = [one for _ in range(2) for one in (await receive(tapped, wait_ms=1_000)).messages]
    assert len(found) == 4


async def test_shard_that_joins_later_is_paused_too(tmp_path: Path) -> None:
    async with real_store(tmp_path, 0) as old, Gateway(tmp_path, {0: old.port}) as alone:
        await create(alone)
        pause = consumer_pb2.PauseGroupRequest(name="billing")
        for _ in range(2):
            await alone.stub.PauseGroup(pause, timeout=WAIT_S)
        async with (
            real_store(tmp_path, 1) as new,
            Gateway(tmp_path, {0: old.port, 1: new.port}) as both,
        ):
            await make_topic(both)
            await both.send(*(message(queue=queue) for queue in range(4)))
            assert not (await receive(both, wait_ms=50)).messages
            resume = consumer_pb2.ResumeGroupRequest(name="billing")
            assert not (await both.stub.ResumeGroup(resume, timeout=WAIT_S)).pauses
            found = [one for _ in range(2) for one in (await receive(both, wait_ms=1_000)).messages]
            assert len(found) == 4


async def test_topic_is_paused_on_all_shards(tapped: Gateway, taps: list[TappedStore]) -> None:
    stub = tapped.stub
    pause, resume = gateway_pb2.PauseTopicRequest(name="orders", for_ms=60_000), gateway_pb2.ResumeTopicRequest
    for unknown in (stub.PauseTopic(pause, timeout=WAIT_S), stub.ResumeTopic(resume(name="orders"), timeout=WAIT_S)):
        assert (await error_of(unknown)).code() == grpc.StatusCode.NOT_FOUND
    await make_topic(tapped)
    await tapped.send(*(message(queue=queue) for queue in range(4)))
    (paused,) = (await stub.PauseTopic(pause, timeout=WAIT_S)).pauses
    assert (paused.topic, paused.until_ms, paused.all_groups) == ("orders", NOW_MS + 60_000, True)
    assert not (await receive(tapped, wait_ms=50)).messages
    assert list((await describe(tapped)).pauses) == [paused]
    asked = gateway_pb2.DescribeTopicRequest(name="orders")
    assert (await stub.DescribeTopic(asked, timeout=WAIT_S)).pause == paused
    listed = await stub.ListTopics(gateway_pb2.ListTopicsRequest(), timeout=WAIT_S)
    assert (list(listed.pauses), list(listed.unreachable_shards)) == ([paused], [])
    taps[1].refuse(Unavailable("away"), "ResumeGroup", "DescribeGroup")
    assert (
        await error_of(stub.ResumeTopic(resume(name="orders"), timeout=WAIT_S))
    ).code() == grpc.StatusCode.UNAVAILABLE
    listed = await stub.ListTopics(gateway_pb2.ListTopicsRequest(), timeout=WAIT_S)
    assert (list(listed.pauses), list(listed.unreachable_shards)) == ([], [1])
    taps[1].accept()
    assert (await stub.DescribeTopic(asked, timeout=WAIT_S)).pause == paused
    assert not (await stub.ResumeTopic(resume(name="orders"), timeout=WAIT_S)).pauses
    assert not (await stub.DescribeTopic(asked, timeout=WAIT_S)).HasField("pause")
    found = [one for _ in range(2) for one in (await receive(tapped, wait_ms=1_000)).messages]
    assert len(found) == 4
    bad = await error_of(stub.PauseTopic(gateway_pb2.PauseTopicRequest(name="a b"), timeout=WAIT_S))
    assert bad.code() == grpc.StatusCode.INVALID_ARGUMENT


def limit(gateway: Gateway, rate: str = "", topic: str = "") -> Any:
    request = consumer_pb2.LimitGroupRequest(name="billing")
    request.limit.topic = topic
    if rate:
        rates.fill(request.limit.rate, rate)
    return gateway.stub.LimitGroup(request, timeout=WAIT_S)


def limits_of(group: Group) -> list[tuple[str, str]]:
    return [(one.topic, rates.written(one.rate)) for one in group.limits.limits]


async def test_group_is_limited_on_all_shards(tapped: Gateway, taps: list[TappedStore]) -> None:
    await make_topic(tapped)
    await tapped.send(*(message(queue=queue) for queue in range(4)))
    assert (await error_of(limit(tapped, "1/d"))).code() == grpc.StatusCode.NOT_FOUND
    made = await create(tapped)
    limited = await limit(tapped, "1/d")
    assert (limits_of(limited), limited.limits.set_at_ms > made.created_at_ms) == ([("", "1/d")], True)
    for tap in taps:
        assert tap.requests["PutGroup"][-1] == limited
    assert (await describe(tapped)).group == limited
    assert not (await receive(tapped, wait_ms=50)).messages
    for tap in taps:
        asked = tap.requests["Receive"][-1]
        assert (asked.limits, asked.shard_count) == (limited.limits, len(taps))
    both = await limit(tapped, "1000000/s", "orders")
    assert limits_of(both) == [("", "1/d"), ("orders", "1000000/s")]
    assert (await receive(tapped, wait_ms=10_000)).messages
    assert limits_of(await limit(tapped)) == [("orders", "1000000/s")]
    assert limits_of(await limit(tapped, topic="orders")) == []


async def test_shard_that_was_away_learns_the_limit_with_a_receive(tapped: Gateway, taps: list[TappedStore]) -> None:
    await make_topic(tapped)
    await create(tapped)
    await taps[1].stop()
    await error_of(receive(tapped))
    limited = await limit(tapped, "1/d")
    await taps[1].start()
    asked = taps[1].requests["Receive"]
    asked.clear()
    async with asyncio.timeout(WAIT_S):
        while not asked:
            with suppress(grpc.aio.AioRpcError):
                await receive(tapped, wait_ms=100)
    assert asked[0].limits == limited.limits


def declare(gateway: Gateway, *limits: consumer_pb2.GroupLimit, name: str = "billing") -> Any:
    return gateway.stub.DeclareGroupLimits(
        consumer_pb2.DeclareGroupLimitsRequest(name=name, limits=limits), timeout=WAIT_S
    )


async def test_declared_limits_are_beside_those_of_operators(tapped: Gateway, taps: list[TappedStore]) -> None:
    by_key = consumer_pb2.GroupLimit(topic="orders", per_key=1)
    made = await declare(tapped, by_key, consumer_pb2.GroupLimit(topic="mail", per_key=2))
    assert [(one.topic, one.per_key, one.declared) for one in made.limits.limits] == [
        ("mail", 2, True),
        ("orders", 1, True),
    ]
    for tap in taps:
        assert tap.requests["PutGroup"][-1] == made
    assert await declare(tapped, by_key, consumer_pb2.GroupLimit(topic="mail", per_key=2)) == made
    both = await limit(tapped, "50/s")
    assert [(one.topic, one.declared) for one in both.limits.limits] == [("mail", True), ("orders", True), ("", False)]
    changed = await declare(tapped, by_key)
    assert changed.limits.set_at_ms > both.limits.set_at_ms
    assert list(changed.limits.limits) == list(both.limits.limits)[1:]
    assert [one.topic for one in (await limit(tapped, topic="orders")).limits.limits] == ["orders", ""]
    assert limits_of(await declare(tapped)) == [("", "50/s")]


async def test_bad_declared_limits_are_rejected(tapped: Gateway) -> None:
    empty, by_key = consumer_pb2.GroupLimit(topic="mail"), consumer_pb2.GroupLimit(topic="mail", per_key=10_001)
    text = str((await error_of(declare(tapped, empty, by_key, consumer_pb2.GroupLimit(per_key=1)))).details())
    assert "limits[0]: has neither a rate nor per_key" in text
    assert "limits[1].per_key: 10001 is not within 0 and 10000" in text
    assert "limits[1].topic: mail has a limit before this one" in text
    assert "limits[2].topic: " in text
    await create(tapped, "ledger", ordered=True)
    by_key.per_key = 1
    assert (await error_of(declare(tapped, by_key, name="ledger"))).code() == grpc.StatusCode.FAILED_PRECONDITION
    request = consumer_pb2.LimitGroupRequest(name="ledger", limit=consumer_pb2.GroupLimit(declared=True))
    assert "limit.declared" in str((await error_of(tapped.stub.LimitGroup(request, timeout=WAIT_S))).details())


async def test_two_gateways_share_a_rate(tmp_path: Path) -> None:
    clock = FakeClock()
    async with real_store(tmp_path, clock=clock) as store:
        stores = {0: store.port}
        async with Gateway(tmp_path, stores) as first, Gateway(tmp_path, stores) as second:
            await make_topic(first)
            await first.send(*(message(queue=0) for _ in range(20)))
            await create(first)
            await limit(first, "4/s")
            for gateway in (first, second):
                assert not (await receive(gateway)).messages
            clock.move(1_000)
            assert len((await receive(first, max_count=3)).messages) == 3
            assert len((await receive(second, max_count=3)).messages) == 1
            assert not (await receive(first)).messages
            # The first gateway names the former limit for up to a second: the later one counts.
            await limit(second, "8/s")
            assert not (await receive(first)).messages
            clock.move(1_000)
            got = [len((await receive(gateway, max_count=6)).messages) for gateway in (first, second, first)]
            assert got == [6, 2, 0]


async def test_bad_limits_are_rejected(tapped: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    await create(tapped)
    bad = consumer_pb2.LimitGroupRequest(name="a b")
    bad.limit.rate.count = 3
    error = await error_of(tapped.stub.LimitGroup(bad, timeout=WAIT_S))
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "limit.rate.per_ms: 0 is not 1000, 60000, 3600000 or 86400000" in str(error.details())
    assert (await error_of(limit(tapped, "1/s", "orders"))).code() == grpc.StatusCode.NOT_FOUND
    assert limits_of(await limit(tapped, topic="orders")) == []
    given = consumer_pb2.GroupLimits(set_at_ms=1)
    assert "group.limits: are set by LimitGroup" in str((await error_of(create(tapped, limits=given))).details())
    await create(tapped, "ledger", ordered=True)
    by_key = consumer_pb2.LimitGroupRequest(name="ledger", limit=consumer_pb2.GroupLimit(per_key=1))
    error = await error_of(tapped.stub.LimitGroup(by_key, timeout=WAIT_S))
    assert error.code() == grpc.StatusCode.FAILED_PRECONDITION
    by_key.limit.per_key = 10_001
    error = await error_of(tapped.stub.LimitGroup(by_key, timeout=WAIT_S))
    assert "limit.per_key: 10001 is not within 0 and 10000" in str(error.details())
    by_key.name, by_key.limit.per_key = "billing", 3
    assert [one.per_key for one in (await tapped.stub.LimitGroup(by_key, timeout=WAIT_S)).limits.limits] == [3]
    monkeypatch.setattr(contract, "GROUP_LIMITS_MAX", 1)
    await limit(tapped, "1/s")
    await make_topic(tapped)
    full = await error_of(limit(tapped, "1/s", "orders"))
    assert full.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert limits_of(await limit(tapped, "2/s")) == [("", "2/s")]


async def test_pause_of_an_unknown_topic_is_rejected(tapped: Gateway) -> None:
    await create(tapped)
    pause = consumer_pb2.PauseGroupRequest(name="billing", topic="orders")
    unknown = await error_of(tapped.stub.PauseGroup(pause, timeout=WAIT_S))
    assert unknown.code() == grpc.StatusCode.NOT_FOUND
    await tapped.stub.PauseGroup(consumer_pb2.PauseGroupRequest(name="billing"), timeout=WAIT_S)
    # The pause of a topic that is gone can be ended.
    request = consumer_pb2.ResumeGroupRequest(name="billing", topic="orders")
    assert len((await tapped.stub.ResumeGroup(request, timeout=WAIT_S)).pauses) == 1


async def test_pauses_of_shards_are_joined(tapped: Gateway, taps: list[TappedStore]) -> None:
    await make_topic(tapped)
    await create(tapped)
    times = {0: (5, 9), 1: (3, 0)}

    def add(shard: int) -> Callable[[Any, GroupDescription], None]:
        since_ms, until_ms = times[shard]

        def change(_: Any, answer: GroupDescription) -> None:
            answer.pauses.add(topic="orders", since_ms=since_ms, until_ms=until_ms)

        return change

    for tap in taps:
        tap.after["DescribeGroup"] = add(tap.shard)
    (paused,) = (await describe(tapped)).pauses
    assert (paused.topic, paused.since_ms, paused.until_ms) == ("orders", 3, 0)


@pytest.mark.parametrize(("fields", "field"), [({"name": "a b"}, "name"), ({"topic": "a b"}, "topic")])
async def test_pause_of_a_wrong_name_is_rejected(tapped: Gateway, fields: dict[str, Any], field: str) -> None:
    request = consumer_pb2.PauseGroupRequest(**{"name": "billing", **fields})
    error = await error_of(tapped.stub.PauseGroup(request, timeout=WAIT_S))
    assert (error.code(), field in (error.details() or "")) == (grpc.StatusCode.INVALID_ARGUMENT, True)
