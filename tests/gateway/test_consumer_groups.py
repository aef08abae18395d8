"""Groups through the gateway: made, changed, announced to the shards, adopted from them, described, reset, deleted."""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from duetime.v1 import consumer_pb2, gateway_pb2
from duetime.v1.consumer_pb2 import GROUP_START_LATEST, GROUP_START_TIME, Group, GroupMember, GroupQueue
from duetime_core import retry_policy
from duetime_core.clock import SystemClock, turn
from duetime_core.errors import Unavailable
from structlog.testing import capture_logs

from tests.format import golden
from tests.gateway.conftest import MIB, Gateway, error_of, real_store
from tests.gateway.fake_store import NOW_MS, FakeStore
from tests.gateway.test_leases import make_topic, offsets, receive


async def create(gateway: Gateway, name: str = "billing", **fields: Any) -> Group:
    request = consumer_pb2.CreateGroupRequest(group=Group(name=name, **fields))
    return await gateway.stub.CreateGroup(request, timeout=10)


async def names(gateway: Gateway) -> list[str]:
    listed = await gateway.stub.ListGroups(consumer_pb2.ListGroupsRequest(), timeout=10)
    return [group.name for group in listed.groups]


def describe(gateway: Gateway, name: str = "billing") -> Any:
    return gateway.stub.DescribeGroup(consumer_pb2.DescribeGroupRequest(name=name), timeout=10)


def reset(gateway: Gateway, **fields: Any) -> Any:
    request = consumer_pb2.ResetGroupRequest(**{"name": "billing", "topic": "orders", **fields})
    return gateway.stub.ResetGroup(request, timeout=10)


def delete(gateway: Gateway, name: str = "billing", *, force: bool = False) -> Any:
    return gateway.stub.DeleteGroup(consumer_pb2.DeleteGroupRequest(name=name, force=force), timeout=10)


async def test_new_and_changed_groups_are_announced_to_all_shards(faked: Gateway, fakes: list[FakeStore]) -> None:
    made = await create(faked, ordered=True)
    assert await create(faked, ordered=True) == made
    error = await error_of(create(faked))
    assert (error.code(), error.details()) == (
        grpc.StatusCode.ALREADY_EXISTS,
        "group billing exists with ordered true",
    )
    request = consumer_pb2.UpdateGroupRequest(name="billing", retry=retry_policy.parse("1s,max=3"))
    changed = await faked.stub.UpdateGroup(request)
    assert (changed.retry.max_attempts, changed.ordered) == (3, True)
    for store in fakes:
        # They are announced while the answers go out.
        async with asyncio.timeout(10):
            while len(store.group_calls) < 2:
                await turn()
        assert store.group_calls == [made, changed]
    assert await names(faked) == ["billing"]


async def test_shard_that_was_away_learns_of_it_when_the_group_receives(faked: Gateway, fakes: list[FakeStore]) -> None:
    await make_topic(faked)
    made = await create(faked)
    port = fakes[1].port
    await fakes[1].stop()
    await error_of(receive(faked))
    fakes[1].group_calls.clear()
    await fakes[1].start(port)
    for _ in range(20):
        if fakes[1].group_calls:
            break
        with suppress(grpc.aio.AioRpcError):
            await offsets(receive(faked, wait_ms=100))
    assert fakes[1].group_calls == [made]


async def test_latest_is_by_the_clock_of_the_slowest_shard(faked: Gateway, fakes: list[FakeStore]) -> None:
    fakes[1].now_ms = NOW_MS - 5_000
    assert (await create(faked, start=GROUP_START_LATEST, start_at_ms=3)).start_at_ms == NOW_MS - 5_000
    await fakes[1].stop()
    assert (await create(faked, "other", start=GROUP_START_LATEST)).start_at_ms == NOW_MS


REFUSED = [
    ({"name": "a b"}, "group.name: 'a b' is not 1 to 120 characters"),
    ({"start": 3}, "group.start: 3 is not within 0 and 2"),
    ({"start": GROUP_START_TIME}, "group.start_at_ms: 0 is not above 0"),
    ({"retry": {"max_attempts": -1}}, "group.retry.max_attempts: -1 is not within 1 and 1000"),
]


@pytest.mark.parametrize(("fields", "why"), REFUSED)
async def test_bad_group_is_refused(faked: Gateway, fields: dict[str, Any], why: str) -> None:
    error = await error_of(create(faked, **fields))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert why in error.details()
    assert await names(faked) == []


async def test_unknown_group_is_not_found(faked: Gateway) -> None:
    await make_topic(faked)
    update = faked.stub.UpdateGroup(consumer_pb2.UpdateGroupRequest(name="billing"))
    for call in (describe(faked), reset(faked, latest=True), update):
        error = await error_of(call)
        assert (error.code(), error.details()) == (grpc.StatusCode.NOT_FOUND, "group billing does not exist")


async def test_description_puts_the_shards_together(faked: Gateway, fakes: list[FakeStore]) -> None:
    await make_topic(faked)
    made = await create(faked)
    route = await faked.stub.GetRoute(gateway_pb2.GetRouteRequest(topic="orders"))
    queue_of = {(one.shard, one.queue): one.queue for one in route.queues}
    for store in fakes:
        mine = [queue for shard, queue in queue_of if shard == store.shard]
        store.description.queues.extend(GroupQueue(topic="orders", queue=queue, lag=queue + 1) for queue in mine)
        store.description.queues.add(topic="%RETRY%billing", queue=0, waiting=5)
        store.description.members.append(GroupMember(name="both", topic="orders", seen_at_ms=100 + store.shard))
        store.description.members.append(GroupMember(name=f"m{store.shard}", topic="orders", seen_at_ms=50))
        store.description.acks_per_s, store.description.receives_per_s = 1.5, 2.5
        store.description.dead_letters = 3
    described = await describe(faked)
    assert described.group == made
    assert [(one.topic, one.queue, one.lag) for one in described.queues[:4]] == [("orders", n, n + 1) for n in range(4)]
    assert {(one.shard, one.queue) for one in described.queues[:4]} == set(queue_of)
    assert [(one.topic, one.shard, one.waiting) for one in described.queues[4:]] == [
        ("%RETRY%billing", 0, 5),
        ("%RETRY%billing", 1, 5),
    ]
    assert [(one.name, one.seen_at_ms) for one in described.members] == [("both", 101), ("m0", 50), ("m1", 50)]
    assert (described.acks_per_s, described.receives_per_s, described.dead_letters) == (3, 5, 6)
    fakes[0].error = Unavailable("away")
    assert list((await describe(faked)).unreachable_shards) == [0]


async def test_reset_asks_each_shard_for_its_queues(faked: Gateway, fakes: list[FakeStore]) -> None:
    await make_topic(faked)
    await create(faked)
    answer = await reset(faked, at_ms=77, dry_run=True)
    assert [one.queue for one in answer.queues] == [0, 1, 2, 3]
    assert {one.shard for one in answer.queues} == {0, 1}
    for store in fakes:
        asked = store.group_calls[-1]
        assert (asked.at_ms, asked.dry_run) == (77, True)
        assert [one.queue for one in asked.queues] == [one.queue for one in answer.queues if one.shard == store.shard]
    (only,) = (await reset(faked, queue=2, offset=0)).queues
    assert only.queue == 2
    assert not fakes[1 - only.shard].group_calls[-1].HasField("queue")


RESETS = [
    ({}, "earliest: is not set, nor are latest, at_ms and offset"),
    ({"offset": 4}, "queue: is not set; an offset is one queue's"),
    ({"at_ms": -1}, "at_ms: -1 is not within 0 and"),
    ({"latest": True, "queue": -1}, "queue: -1 is not within 0 and 1023"),
    ({"latest": True, "queue": 4}, "queue 4 is not one of the 4 queues of topic orders"),
    ({"latest": True, "topic": "nothing"}, "topic nothing does not exist"),
]


@pytest.mark.parametrize(("fields", "why"), RESETS)
async def test_bad_reset_is_refused(faked: Gateway, fakes: list[FakeStore], fields: dict[str, Any], why: str) -> None:
    await make_topic(faked)
    await create(faked)
    assert why in (await error_of(reset(faked, **fields))).details()
    assert all(isinstance(call, Group) for store in fakes for call in store.group_calls)


async def test_group_in_use_is_deleted_only_by_force(faked: Gateway, fakes: list[FakeStore]) -> None:
    await create(faked)
    now_ms = SystemClock().now_ms()
    fakes[1].description.members.add(name="worker-1", topic="orders", seen_at_ms=now_ms - 5_000)
    error = await error_of(delete(faked))
    assert (error.code(), error.details()) == (
        grpc.StatusCode.FAILED_PRECONDITION,
        "group billing is in use: receivers were seen within a minute (worker-1); force deletes it all the same",
    )
    assert await names(faked) == ["billing"]
    assert not any(isinstance(call, consumer_pb2.DeleteGroupRequest) for call in fakes[0].group_calls)
    await delete(faked, force=True)
    assert await names(faked) == []
    for store in fakes:
        assert store.group_calls[-1] == consumer_pb2.DeleteGroupRequest(name="billing", force=True)
    fakes[1].description.members[0].seen_at_ms = now_ms - 61_000
    await delete(faked)


async def test_group_stays_as_long_as_a_shard_has_not_forgotten_it(faked: Gateway, fakes: list[FakeStore]) -> None:
    await create(faked)
    fakes[0].error = Unavailable("away")
    assert (await error_of(delete(faked))).code() is grpc.StatusCode.UNAVAILABLE
    assert await names(faked) == ["billing"]
    fakes[0].error = None
    await delete(faked)
    assert await names(faked) == []


async def test_groups_of_a_shard_are_adopted_but_for_a_broker_s_own(tmp_path: Path) -> None:
    store = FakeStore(0)
    mine = ["CID_RMQ_SYS_TRANS", "SELF_TEST_C_GROUP", "TOOLS_CONSUMER"]
    store.groups = [Group(name=name) for name in ("paid", "a b", *mine)]
    store.groups[0].retry.max_attempts = 4
    await store.start()
    with capture_logs() as logs:
        async with Gateway(tmp_path, {0: store.port}) as gateway:
            listed = (await gateway.stub.ListGroups(consumer_pb2.ListGroupsRequest())).groups
    await store.stop()
    assert [(group.name, group.retry.max_attempts) for group in listed] == [("paid", 4)]
    assert [line["group"] for line in logs if line["event"] == "group of a shard has an invalid name: not served"] == [
        "a b"
    ]


async def test_shard_without_an_answer_to_that_is_served_without_its_groups(tmp_path: Path) -> None:
    store = FakeStore(0)

    async def refuse(request: Any, context: Any) -> Any:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "older")

    store.list_groups = refuse  # type: ignore[method-assign]
    await store.start()
    with capture_logs() as logs:
        async with Gateway(tmp_path, {0: store.port}) as gateway:
            assert await names(gateway) == []
    await store.stop()
    assert "groups of a shard not inspected" in [line["event"] for line in logs]


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
