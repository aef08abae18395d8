"""Offsets of groups: records of the log, RocketMQ's file at checkpoints, nothing of a broker's lost."""

import asyncio
import errno
from collections.abc import AsyncIterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import grpc
import pytest
from duetime.v1 import consumer_pb2, gateway_pb2, store_pb2
from duetime_format import changes, record
from duetime_format.levels import DEFAULT_DELAY_LEVELS, DelayLevels
from duetime_shard import shard
from duetime_store.files import configs, kept
from duetime_store.files.disk import Disk
from duetime_store.offline.export import export_directory
from duetime_store.offline.summary import summary
from structlog.testing import capture_logs

from tests.faulty_disk import FaultyDisk
from tests.format import golden
from tests.store.conftest import MIB, sent
from tests.store.groups.running import Consuming
from tests.store.groups.test_disk import RETAINED, let_all_leave
from tests.store.running import Running

FILE = configs.CONSUMER_OFFSETS


class Groups(Consuming):
    """A store with 3 messages in each of 2 queues of `orders`."""

    def __init__(self, root: Path, disk: Disk | None = None, **settings: Any) -> None:
        super().__init__(root, disk=disk, queues=2, **settings)

    async def __aenter__(self) -> "Groups":
        await Running.__aenter__(self)
        return self

    async def fill(self) -> None:
        await self.stub.PutTopic(store_pb2.PutTopicRequest(name="orders", queue_count=2))
        await self.put(*(sent(f"{n}", queue=n % 2) for n in range(6)))

    async def commit(
        self, offsets: Mapping[int, int], group: str = "billing", topic: str = "orders"
    ) -> gateway_pb2.CommitOffsetsResponse:
        queues = [
            gateway_pb2.QueuePosition(queue=queue + 10, shard_queue=queue, offset=offset)
            for queue, offset in offsets.items()
        ]
        request = gateway_pb2.CommitOffsetsRequest(group=group, topic=topic, queues=queues)
        return await self.stub.CommitOffsets(request, timeout=60)

    async def offsets(self, group: str = "billing", topic: str = "orders") -> dict[int, int]:
        answer = await self.stub.GetOffsets(gateway_pb2.GetOffsetsRequest(group=group, topic=topic), timeout=60)
        return {position.shard_queue: position.offset for position in answer.queues}

    async def checkpoint(self) -> None:
        assert await self.node.parts.checkpointer.write()

    @property
    def config(self) -> Path:
        return Path(self.settings.data_dir) / "config"

    def broker_writes(self, queues: Mapping[int, int], key: str = "orders@billing", name: str = FILE) -> None:
        """As a broker leaves the file that has served the directory."""
        content = configs.read(self.config, name) or {}
        table = {one: configs.numbered(row) for one, row in content.get("offsetTable", {}).items()}
        path = self.config / name
        path.write_text(configs.render({**content, "offsetTable": {**table, key: {**table.get(key, {}), **queues}}}))

    @property
    def file(self) -> dict[str, Any] | None:
        return configs.read(self.config, FILE)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Groups]:
    async with Groups(tmp_path / "store") as running:
        await running.fill()
        yield running


async def refusal(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details() or ""


async def test_commit_is_in_the_file_after_a_checkpoint(store: Groups) -> None:
    assert await store.offsets() == {}
    await store.commit({0: 2})
    assert (await store.offsets(), store.file) == ({0: 2}, None)
    await store.checkpoint()
    assert store.file == {"offsetTable": {"orders@billing": {"0": 2}}}
    await store.commit({1: 3, 0: 1})
    await store.commit({1: 0}, group="audit")
    await store.checkpoint()
    assert store.file == {"offsetTable": {"orders@billing": {"0": 1, "1": 3}, "orders@audit": {"1": 0}}}
    assert (await store.offsets(), await store.offsets("audit")) == ({0: 1, 1: 3}, {1: 0})


async def test_file_is_as_a_broker_writes_it(store: Groups) -> None:
    await store.commit({0: 2, 1: 3})
    await store.checkpoint()
    text = (store.config / FILE).read_text()
    assert text.startswith('{\n\t"offsetTable":{\n\t\t"orders@billing":{0:2,1:3\n\t\t}\n\t},\n\t"duetimeCrc32":')


@pytest.mark.parametrize("whole", [False, True])
async def test_answered_commits_outlive_a_kill(store: Groups, whole: bool) -> None:
    await store.commit({0: 1, 1: 1})
    await store.commit({1: 1}, group="gone")
    await store.checkpoint()
    await store.commit({0: 3})
    await store.commit({0: 2}, group="audit")
    await store.stub.DeleteGroup(consumer_pb2.DeleteGroupRequest(name="gone"), timeout=60)
    lost = (store.config.parent / "checkpoint").unlink if whole else lambda: None
    for meanwhile in (lost, lambda: None):
        await store.kill(meanwhile)
        assert await store.offsets() == {0: 3, 1: 1}
        assert (await store.offsets("audit"), await store.offsets("gone")) == ({0: 2}, {})
    assert store.file == {"offsetTable": {"orders@billing": {"0": 3, "1": 1}, "orders@audit": {"0": 2}}}


async def test_commits_outlive_their_records(tmp_path: Path) -> None:
    async with Groups(tmp_path / "store", **RETAINED) as store:
        await store.fill()
        await store.commit({0: 2})
        await let_all_leave(store)
        await store.kill((store.config.parent / "checkpoint").unlink)
        assert await store.offsets() == {0: 2}


@pytest.mark.parametrize("whole", [False, True])
async def test_offsets_of_a_broker_that_served_since_count(store: Groups, whole: bool) -> None:
    """Its changes do, also backwards and regardless of the log."""
    await store.commit({0: 2, 1: 1})
    await store.commit({0: 1}, group="audit")
    await store.checkpoint()
    await store.commit({0: 3})
    await store.commit({1: 3}, group="audit")
    await store.commit({1: 2}, group="late")

    def serve() -> None:
        store.broker_writes({0: 1})
        store.broker_writes({0: 0}, "orders@late")
        if whole:
            (store.config.parent / "checkpoint").unlink()

    await store.kill(serve)
    for _ in range(2):
        assert await store.offsets() == {0: 1, 1: 1}
        assert (await store.offsets("audit"), await store.offsets("late")) == ({0: 1, 1: 3}, {0: 0, 1: 2})
        # Commits after the broker count, also if its file is still there.
        await store.kill()
    await store.commit({0: 2})
    await store.kill()
    assert await store.offsets() == {0: 2, 1: 1}


async def test_a_brokers_file_counts_once_without_a_checkpoint(tmp_path: Path) -> None:
    """The first checkpoint fails, and later commits are newer than the broker's."""
    disk = FaultyDisk()
    async with Groups(tmp_path / "store", disk) as store:
        await store.fill()
        await store.commit({0: 2})
        await store.checkpoint()

        def serve() -> None:
            store.broker_writes({0: 1})
            disk.fail("write_file", errno.EIO, path=FILE)

        await store.kill(serve)
        assert await store.offsets() == {0: 1}
        await store.commit({0: 3})
        await store.kill(disk.mend)
        assert await store.offsets() == {0: 3}


async def test_offsets_of_the_last_release_count(store: Groups) -> None:
    """It has no records, and writes the file with its CRC."""
    await store.commit({0: 2, 1: 3})
    await store.checkpoint()
    table = {"orders@billing": {"0": 1, "1": 3}, "orders@audit": {"0": 3}}
    await store.kill(lambda: configs.write(Disk(), store.config, FILE, {"offsetTable": table}))
    assert (await store.offsets(), await store.offsets("audit")) == ({0: 1, 1: 3}, {0: 3})


async def test_inspect_and_export_of_a_killed_directory_have_them(store: Groups) -> None:
    await store.commit({0: 1, 1: 1})
    await store.checkpoint()
    await store.commit({0: 3})
    root, made = store.config.parent, store.config.parent.with_name("made")

    def read_files() -> None:
        levels = DelayLevels.parse("1s 1h")
        assert summary(shard.read(root, levels))["consumerOffset"] == {"orders@billing": {"0": 3, "1": 1}}
        export_directory(root, made, levels, accept_damage=False)

    await store.kill(read_files)
    assert (configs.read(made / "config", FILE) or {})["offsetTable"] == {"orders@billing": {"0": 3, "1": 1}}
    assert not (made / "config" / kept.OFFSETS_FILE).exists()


@pytest.mark.parametrize("name", [FILE, kept.OFFSETS_FILE])
async def test_each_file_serves_without_the_other(store: Groups, name: str) -> None:
    await store.commit({0: 2, 1: 3})
    await store.checkpoint()
    await store.kill((store.config / name).unlink)
    assert await store.offsets() == {0: 2, 1: 3}


async def test_restarted_store_has_them(tmp_path: Path) -> None:
    async with Groups(tmp_path / "store") as store:
        await store.fill()
        await store.commit({0: 2})
    async with Groups(tmp_path / "store") as again:
        assert await again.offsets() == {0: 2}


async def test_older_backup_does_not_count(store: Groups) -> None:
    for offset in (1, 2):
        await store.commit({0: offset})
        await store.checkpoint()
    await store.kill(lambda: (store.config / FILE).write_text('{"offsetTable":{"orders@bil') and None)
    assert await store.offsets() == {0: 2}


async def test_unreadable_file_is_reported(tmp_path: Path) -> None:
    config = tmp_path / "store" / "config"
    config.mkdir(parents=True)
    (config / FILE).write_text("torn")
    with capture_logs() as logs:
        async with Groups(tmp_path / "store") as again:
            await again.fill()
            assert await again.offsets() == {}
    assert [entry["file"] for entry in logs if "group offsets" in entry["event"]] == [FILE]


async def test_commits_at_once_share_a_record(tmp_path: Path) -> None:
    disk = FaultyDisk()
    async with Groups(tmp_path / "store", disk) as store:
        await store.fill()
        with disk.stalled("datasync") as stall:
            calls = [asyncio.ensure_future(store.commit({0: 1}, group="first"))]
            await asyncio.to_thread(stall.begun.wait, 10)
            calls += [asyncio.ensure_future(store.commit({0: 1 + n % 3}, group=f"g{n % 10}")) for n in range(20)]
            async with asyncio.timeout(60):
                while len(store.node.store.journal.waiters) < 20:
                    await store.offsets()
            # None is answered yet, and nobody sees their offsets.
            assert not any(call.done() for call in calls)
            assert await store.offsets("g0") == {}
        await asyncio.gather(*calls)
        queue = store.node.store.queues.find("DT_STATE", 0)
        *_, first, second = (
            record.decode(store.node.store.read_record(*unit[:2])) for unit in queue.read(0, 9).tolist()
        )
        assert [len(changes.decode(one.body)) for one in (first, second)] == [1, 10]


async def test_commit_fails_with_the_flush(tmp_path: Path) -> None:
    disk = FaultyDisk()
    async with Groups(tmp_path / "store", disk) as store:
        await store.fill()
        await store.commit({0: 1})
        disk.fail("datasync", errno.EIO)
        assert (await refusal(store.commit({0: 2})))[0] is grpc.StatusCode.UNAVAILABLE
        assert (await refusal(store.commit({0: 2})))[0] is grpc.StatusCode.UNAVAILABLE
        assert await store.offsets() == {0: 1}
        await store.kill(disk.mend)
        # It was not answered, and may be there.
        assert (await store.offsets())[0] in (1, 2)


async def test_full_disk_has_room_for_offsets(tmp_path: Path) -> None:
    disk = FaultyDisk()
    async with Groups(tmp_path / "store", disk, reserve_bytes=MIB, disk_used_max=1) as store:
        await store.fill()
        await store.commit({0: 1})
        disk.leave(100_000)
        large = sent("full", body=bytes(600_000))
        assert (await refusal(store.put(large)))[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
        await store.commit({0: 2})
        assert await store.offsets() == {0: 2}
        assert (await refusal(store.put(large)))[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
        await store.kill()
        assert await store.offsets() == {0: 2}


async def test_invalid_group_offset_is_refused(store: Groups) -> None:
    invalid = grpc.StatusCode.INVALID_ARGUMENT
    assert await refusal(store.commit({0: 4, 1: -1})) == (
        invalid,
        "queues.offset: 4 is not within 0 and 3 of queue 10 of orders; "
        "queues.offset: -1 is not within 0 and 3 of queue 11 of orders",
    )
    for group in ("", "a@b", "x" * 121):
        code, text = await refusal(store.commit({0: 1}, group=group))
        assert code is invalid
        shown = f"{group!r}" if len(group) <= 64 else f"{group[:64]!r}..."
        assert text == f"group: {shown} is not 1 to 120 characters of [%|a-zA-Z0-9_-]"
        assert (await refusal(store.offsets(group)))[0] is invalid
    assert (await refusal(store.commit({})))[0] is invalid
    assert (await refusal(store.commit({2: 0})))[0] is grpc.StatusCode.NOT_FOUND
    assert (await refusal(store.commit({0: 0}, topic="nothing")))[0] is grpc.StatusCode.NOT_FOUND
    assert (await refusal(store.offsets(topic="nothing")))[0] is grpc.StatusCode.NOT_FOUND
    assert store.file is None


async def test_other_content_is_kept(tmp_path: Path) -> None:
    config = tmp_path / "store" / "config"
    config.mkdir(parents=True)
    (config / FILE).write_text(
        '{"dataVersion":{"counter":7,"stateVersion":0,"timestamp":1},"groupTopicMap":{"billing":["other"]},'
        '"offsetTable":{"other@billing":{0:5},"odd@billing":"?","DtPay-ment_1@Dt_g_ok":{"0":325}}}'
    )
    async with Groups(tmp_path / "store") as store:
        await store.fill()
        await store.commit({1: 2})
        await store.commit({1: 3})
        await store.checkpoint()
        assert store.file == {
            "dataVersion": {"counter": 7, "stateVersion": 0, "timestamp": 1},
            "groupTopicMap": {"billing": ["other", "orders"]},
            "offsetTable": {
                "other@billing": {"0": 5},
                "odd@billing": "?",
                "DtPay-ment_1@Dt_g_ok": {"0": 325},
                "orders@billing": {"1": 3},
            },
        }


@pytest.mark.parametrize("name", golden.params())
async def test_groups_of_a_broker_resume_at_their_offsets(tmp_path: Path, name: str) -> None:
    directory = golden.unpack(name, tmp_path)
    told = deepcopy(golden.summary(name)["consumerOffset"])
    before = configs.read(directory / "config", FILE)
    assert before is not None
    if name == "rmq-5.3.3-killed":
        # A message that was received by POP, and not acknowledged.
        told["DkPop@Dk_g_pop"]["0"] = before["offsetTable"]["DkPop@Dk_g_pop"]["0"] = 0
    async with Groups(directory, delay_levels=DEFAULT_DELAY_LEVELS) as store:
        for key, offsets in told.items():
            topic, _, group = key.partition("@")
            assert await store.offsets(group, topic) == {int(queue): offset for queue, offset in offsets.items()}
        key = next(key for key in told if "Orders@" in key)
        topic, _, group = key.partition("@")
        await store.commit({0: 1}, group=group, topic=topic)
    after = configs.read(directory / "config", FILE)
    before["offsetTable"][key]["0"] = 1
    assert after == before


async def test_offsets_behind_the_end_of_their_queue_go_back_to_it(tmp_path: Path) -> None:
    async with Groups(tmp_path / "store") as store:
        await store.fill()
        await store.commit({0: 3, 1: 2})
    # A power cut in the async mode has taken messages that were read.
    config = tmp_path / "store" / "config"
    table = {"orders@billing": {"0": 7, "1": 2}, "RMQ_SYS_TRANS_HALF_TOPIC@CID_RMQ_SYS_TRANS": {"0": 9}}
    configs.write(Disk(), config, FILE, {"offsetTable": table})
    async with Groups(tmp_path / "store") as store:
        assert await store.offsets() == {0: 3, 1: 2}
        assert store.file == {"offsetTable": table | {"orders@billing": {"0": 3, "1": 2}}}
        await store.put(*(sent(f"new{n}") for n in range(2)))
    async with Groups(tmp_path / "store") as store:
        assert await store.offsets() == {0: 3, 1: 2}
