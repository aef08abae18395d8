"""Offsets of groups: RocketMQ's file, durable when answered, one write for many, nothing of a broker's lost."""

import asyncio
import errno
from collections.abc import AsyncIterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import grpc
import pytest
from duetime.v1 import gateway_pb2, store_pb2
from duetime_format.levels import DEFAULT_DELAY_LEVELS
from duetime_store.files import configs
from duetime_store.files.disk import Disk
from structlog.testing import capture_logs

from tests.faulty_disk import FaultyDisk
from tests.format import golden
from tests.store.conftest import MIB, sent
from tests.store.running import Running

FILE = configs.CONSUMER_OFFSETS


class Groups(Running):
    """A store with 3 messages in each of 2 queues of `orders`."""

    async def __aenter__(self) -> "Groups":
        await super().__aenter__()
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

    @property
    def file(self) -> dict[str, Any] | None:
        return configs.read(Path(self.settings.data_dir) / "config", FILE)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Groups]:
    async with Groups(tmp_path / "store") as running:
        await running.fill()
        yield running


async def refusal(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details() or ""


async def test_commit_is_in_the_file_when_it_is_answered(store: Groups) -> None:
    assert await store.offsets() == {}
    await store.commit({0: 2})
    assert store.file == {"offsetTable": {"orders@billing": {"0": 2}}}
    await store.commit({1: 3, 0: 1})
    assert store.file == {"offsetTable": {"orders@billing": {"0": 1, "1": 3}}}
    await store.commit({1: 0}, group="audit")
    assert (await store.offsets(), await store.offsets("audit")) == ({0: 1, 1: 3}, {1: 0})


async def test_file_is_as_a_broker_writes_it(store: Groups) -> None:
    await store.commit({0: 2, 1: 3})
    text = (Path(store.settings.data_dir) / "config" / FILE).read_text()
    assert text.startswith('{\n\t"offsetTable":{\n\t\t"orders@billing":{0:2,1:3\n\t\t}\n\t},\n\t"duetimeCrc32":')


async def test_restarted_store_has_them(tmp_path: Path) -> None:
    async with Groups(tmp_path / "store") as store:
        await store.fill()
        await store.commit({0: 2})
    async with Groups(tmp_path / "store") as again:
        assert await again.offsets() == {0: 2}


async def test_backup_serves_where_the_file_is_torn(tmp_path: Path) -> None:
    async with Groups(tmp_path / "store") as store:
        await store.fill()
        await store.commit({0: 1})
        await store.commit({0: 2})
    (tmp_path / "store" / "config" / FILE).write_text('{"offsetTable":{"orders@bil')
    async with Groups(tmp_path / "store") as again:
        assert await again.offsets() == {0: 1}


async def test_unreadable_file_is_reported(tmp_path: Path) -> None:
    config = tmp_path / "store" / "config"
    config.mkdir(parents=True)
    (config / FILE).write_text("torn")
    with capture_logs() as logs:
        async with Groups(tmp_path / "store") as again:
            await again.fill()
            assert await again.offsets() == {}
    assert [entry["file"] for entry in logs if "group offsets" in entry["event"]] == [FILE]


async def test_commits_at_once_share_writes(tmp_path: Path) -> None:
    disk = FaultyDisk()
    async with Groups(tmp_path / "store", disk) as store:
        await store.fill()
        before = disk.calls.get("replace", 0)
        with disk.stalled("replace") as stall:
            calls = [asyncio.ensure_future(store.commit({0: 1 + n % 3}, group=f"g{n}")) for n in range(20)]
            await asyncio.to_thread(stall.begun.wait, 10)
            async with asyncio.timeout(60):
                while not all([await store.offsets(f"g{n}") for n in range(20)]):
                    pass
            # The first of them is written, and none is answered yet.
            assert not any(call.done() for call in calls)
        await asyncio.gather(*calls)
        assert disk.calls["replace"] - before == 2
        assert store.file is not None
        assert len(store.file["offsetTable"]) == 20


async def test_unwritten_commit_is_refused_and_succeeds_later(tmp_path: Path) -> None:
    disk = FaultyDisk()
    async with Groups(tmp_path / "store", disk) as store:
        await store.fill()
        disk.fail("replace", errno.ENOSPC, path=FILE)
        assert (await refusal(store.commit({0: 1})))[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
        disk.mend()
        disk.fail("sync", errno.EIO, path=FILE)
        code, text = await refusal(store.commit({0: 2}))
        assert code is grpc.StatusCode.UNAVAILABLE
        assert text == "offsets are not saved, consumerOffset.json was not written: Input/output error"
        assert store.file is None
        disk.mend()
        await store.commit({1: 3})
        assert store.file == {"offsetTable": {"orders@billing": {"0": 2, "1": 3}}}


async def test_full_disk_has_room_for_offsets(tmp_path: Path) -> None:
    disk = FaultyDisk()
    async with Groups(tmp_path / "store", disk, reserve_bytes=MIB, disk_used_max=1) as store:
        await store.fill()
        await store.commit({0: 1})
        disk.leave(0)
        await store.commit({0: 2})
        assert store.file == {"offsetTable": {"orders@billing": {"0": 2}}}
        assert (await refusal(store.put(sent("full"))))[0] is grpc.StatusCode.RESOURCE_EXHAUSTED


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
