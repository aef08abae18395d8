"""Groups as records and in RocketMQ's file: it gets those of gateways at checkpoints, and keeps those of a broker."""

import asyncio
import errno
from pathlib import Path
from typing import Any

import grpc
import pytest
from duetime.v1 import consumer_pb2
from duetime.v1.consumer_pb2 import Group
from duetime.v1.message_pb2 import RetryPolicy
from duetime_format.levels import DEFAULT_DELAY_LEVELS
from duetime_store.files import configs
from structlog.testing import capture_logs

from tests.faulty_disk import FaultyDisk
from tests.format import golden
from tests.store.groups.running import Consuming
from tests.store.running import Running

BROKER_4 = {
    "dataVersion": {"counter": 4, "timestamp": 5},
    "subscriptionGroupTable": {
        "CID_a": {
            "brokerId": 3,
            "consumeEnable": True,
            "consumeFromMinEnable": False,
            "groupName": "CID_a",
            "retryMaxTimes": 2,
            "retryQueueNums": 1,
            "whichBrokerWhenConsumeSlowly": 1,
        }
    },
}


async def put(store: Running, name: str, *, ordered: bool = False, max_attempts: int = 17) -> None:
    group = Group(name=name, ordered=ordered, retry=RetryPolicy(max_attempts=max_attempts))
    await store.stub.PutGroup(group, timeout=60)


async def listed(store: Running) -> dict[str, tuple[int, bool]]:
    answer = await store.stub.ListGroups(consumer_pb2.ListGroupsRequest(), timeout=60)
    return {group.name: (group.retry.max_attempts, group.ordered) for group in answer.groups}


async def content(store: Running) -> dict[str, Any]:
    """The file after a checkpoint."""
    assert await store.node.parts.checkpointer.write()
    return configs.read(Path(store.settings.data_dir) / "config", configs.GROUPS) or {}


def write_file(root: Path, value: dict[str, Any]) -> None:
    (root / "config").mkdir(parents=True)
    (root / "config" / configs.GROUPS).write_text(configs.render(value))


async def test_group_is_written_as_a_broker_writes_it_and_survives_a_restart(tmp_path: Path) -> None:
    async with Running(tmp_path) as store:
        assert await listed(store) == {}
        await put(store, "billing", max_attempts=5)
        assert await listed(store) == {"billing": (5, False)}
        table = (await content(store))["subscriptionGroupTable"]
        assert table == {
            "billing": {
                "brokerId": 0,
                "consumeBroadcastEnable": True,
                "consumeEnable": True,
                "consumeFromMinEnable": True,
                "groupName": "billing",
                "notifyConsumerIdsChangedEnable": True,
                "retryMaxTimes": 4,
                "retryQueueNums": 1,
                "whichBrokerWhenConsumeSlowly": 1,
            }
        }
        assert list(table["billing"]) == sorted(table["billing"])
    async with Running(tmp_path) as store:
        assert await listed(store) == {"billing": (5, False)}


async def test_fields_of_a_broker_are_kept(tmp_path: Path) -> None:
    write_file(tmp_path, BROKER_4)
    async with Running(tmp_path) as store:
        assert await listed(store) == {"CID_a": (3, False)}
        await put(store, "CID_a", ordered=True)
        await put(store, "new")
        kept = await content(store)
    entry = kept["subscriptionGroupTable"]["CID_a"]
    before = BROKER_4["subscriptionGroupTable"]["CID_a"]
    assert {name: entry[name] for name in before} == before | {"retryMaxTimes": 16}
    assert entry["consumeMessageOrderly"] is True
    assert kept["dataVersion"]["counter"] == 5
    assert "attributes" not in kept["subscriptionGroupTable"]["new"]


@pytest.mark.parametrize("name", golden.params())
async def test_group_beside_a_broker_s_has_the_same_fields(tmp_path: Path, name: str) -> None:
    directory = golden.unpack(name, tmp_path)
    before = configs.read(directory / "config", configs.GROUPS) or {}
    async with Running(directory, delay_levels=DEFAULT_DELAY_LEVELS) as store:
        await put(store, "billing")
        after = await content(store)
    ours = after["subscriptionGroupTable"].pop("billing")
    assert after["subscriptionGroupTable"] == before["subscriptionGroupTable"]
    theirs = before["subscriptionGroupTable"]["SELF_TEST_C_GROUP"]
    assert list(ours) == list(theirs)
    assert ours == theirs | {"groupName": "billing"}
    assert after.keys() == before.keys()


async def test_group_that_is_there_already_is_not_written_again(tmp_path: Path) -> None:
    async with Running(tmp_path) as store:
        await put(store, "billing")
        counter, end = (await content(store))["dataVersion"]["counter"], store.node.store.published_end
        await put(store, "billing")
        assert store.node.store.published_end == end
        assert (await content(store))["dataVersion"]["counter"] == counter
        await asyncio.gather(*(put(store, f"g{number}") for number in range(20)))
        assert len(await listed(store)) == len((await content(store))["subscriptionGroupTable"]) == 21


async def test_changes_outlive_a_kill(tmp_path: Path) -> None:
    async with Consuming(tmp_path) as store:
        await put(store, "billing", max_attempts=5)
        await put(store, "gone")
        await content(store)
        await put(store, "billing", ordered=True)
        await put(store, "late")
        await store.stub.DeleteGroup(consumer_pb2.DeleteGroupRequest(name="gone"), timeout=60)
        for _ in range(2):
            await store.kill()
            assert await listed(store) == {"billing": (17, True), "late": (17, False)}
        assert len((await content(store))["subscriptionGroupTable"]) == 2


async def test_groups_of_a_broker_that_served_since_count(tmp_path: Path) -> None:
    """Groups that its file lacks come from the log."""
    async with Consuming(tmp_path) as store:
        await put(store, "billing", max_attempts=5)
        before = await content(store)
        await put(store, "billing", max_attempts=9)
        await put(store, "late", max_attempts=9)
        before["subscriptionGroupTable"]["billing"]["retryMaxTimes"] = 1
        file = tmp_path / "config" / configs.GROUPS
        await store.kill(lambda: file.write_text(configs.render(before)) and None)
        assert await listed(store) == {"billing": (2, False), "late": (9, False)}


async def test_group_fails_with_the_flush(tmp_path: Path) -> None:
    disk = FaultyDisk()
    async with Consuming(tmp_path, disk=disk) as store:
        disk.fail("datasync", errno.EIO)
        for name in ("billing", "other"):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await put(store, name)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert await listed(store) == {}
        await store.kill(disk.mend)
        assert set(await listed(store)) <= {"billing"}


async def test_damaged_file_is_reported_and_its_backup_read(tmp_path: Path) -> None:
    write_file(tmp_path, BROKER_4)
    file = tmp_path / "config" / configs.GROUPS
    file.rename(f"{file}.bak")
    file.write_text("{torn")
    with capture_logs() as logs:
        async with Running(tmp_path) as store:
            assert await listed(store) == {"CID_a": (3, False)}
    assert [line["file"] for line in logs if line["event"] == "groups' file is damaged"] == [configs.GROUPS]


async def test_odd_entries_and_counts_do_no_harm(tmp_path: Path) -> None:
    table = {"a": {"retryMaxTimes": -1}, "b": {"retryMaxTimes": 10**9}, "c": 7, "d": {"retryMaxTimes": "x"}}
    write_file(tmp_path, {"subscriptionGroupTable": table})
    async with Running(tmp_path) as store:
        assert await listed(store) == {"a": (17, False), "b": (1_000, False), "d": (17, False)}
        await put(store, "e")
        assert (await content(store))["subscriptionGroupTable"]["c"] == 7


async def test_invalid_name_is_rejected(tmp_path: Path) -> None:
    async with Running(tmp_path) as store:
        with pytest.raises(grpc.aio.AioRpcError, match="group: 'a b' is not 1 to 120 characters"):
            await put(store, "a b")


@pytest.mark.parametrize("attempts", [-1, 1_001, 2**31 - 1])
async def test_attempts_out_of_range_are_refused(tmp_path: Path, attempts: int) -> None:
    async with Running(tmp_path / "store") as store:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await put(store, "g", max_attempts=attempts)
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert await listed(store) == {}


async def test_many_groups_share_a_record(tmp_path: Path) -> None:
    disk = FaultyDisk()
    async with Running(tmp_path, disk=disk) as store:
        with disk.stalled("datasync") as stall:
            first = asyncio.create_task(put(store, "first"))
            await asyncio.to_thread(stall.begun.wait)
            others = [asyncio.create_task(put(store, f"g{number}", max_attempts=5)) for number in range(300)]
            async with asyncio.timeout(60):
                while len(store.node.store.journal.waiters) < 300:
                    assert await listed(store) == {}
        await asyncio.gather(first, *others)
        assert store.node.store.queues.find("DT_STATE", 0).max_offset == 2
        assert len(await listed(store)) == 301
    async with Running(tmp_path) as store:
        assert (await listed(store))["g299"] == (5, False)
