"""A shard's files listed and copied as raw bytes: contents, refusals, and yielding to other work."""

import asyncio
import errno
import os
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from duetime.v1 import export_pb2 as pb
from duetime.v1 import store_pb2
from duetime_core.clock import SystemClock, turn
from duetime_core.rpc.calls import translate
from duetime_core.testing import FakeClock
from duetime_format import record
from duetime_store import exporting
from duetime_store.exporting import CHUNK_BYTES, Throttle
from duetime_store.node import StoreNode

from tests.store.conftest import MIB, sent
from tests.store.running import Running

LOG = "commitlog/" + "0" * 20
WHEEL_BYTES = 3 * MIB + 77


class Exporting(Running):
    """A node with a client of its files."""

    @property
    def root(self) -> Path:
        return self.settings.data_dir

    def export(self, path: str, offset: int = 0, length: int = 0) -> Any:
        return self.stub.Export(pb.ExportRequest(path=path, offset=offset, length=length), timeout=60)

    async def bytes_of(self, path: str, offset: int = 0, length: int = 0) -> bytes:
        return b"".join([chunk.data async for chunk in self.export(path, offset, length)])

    async def listed(self) -> dict[str, pb.StoredFile]:
        files = (await self.stub.ListFiles(pb.ListFilesRequest(), timeout=60)).files
        assert [file.path for file in files] == sorted(file.path for file in files)
        return {file.path: file for file in files}

    async def refused(self, *range_: Any) -> tuple[grpc.StatusCode, str]:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await self.bytes_of(*range_)
        return caught.value.code(), translate(caught.value, "store", "").reason

    @property
    def waiting(self) -> int:
        """How many streams wait for their turn."""
        assert self.node.parts.exporter is not None
        return self.node.parts.exporter.throttle.waiting_count

    def metric(self, name: str) -> float:
        return self.node.registry.get_sample_value(name) or 0.0

    async def until(self, what: Any) -> None:
        """Returns once it is so; calls to the node turn its loop."""
        async with asyncio.timeout(60):
            while not what():
                await self.stub.Describe(store_pb2.DescribeRequest())


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Exporting]:
    """With a file that a broker has left, larger than a chunk."""
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "timerwheel").write_bytes(random.Random(7).randbytes(WHEEL_BYTES))
    async with Exporting(tmp_path / "store", export_bytes_per_s=0) as running:
        await running.put(*(sent(f"{n}", body=bytes(500)) for n in range(20)), sent("later", level=2))
        yield running


@pytest.fixture
async def slow(tmp_path: Path) -> AsyncIterator[Exporting]:
    """On a fake clock, with a chunk a second, two exports at most."""
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "timerwheel").write_bytes(bytes(3 * CHUNK_BYTES))
    async with Exporting(tmp_path / "store", export_bytes_per_s=CHUNK_BYTES, exports_max=4) as running:
        yield running


def descriptors(path: Path) -> int:
    """How often this process has a file open."""
    links = [Path("/proc/self/fd") / name for name in os.listdir("/proc/self/fd")]
    return sum(os.readlink(link).startswith(str(path)) for link in links if link.is_symlink())


async def test_listing_has_only_files_of_known_kinds(store: Exporting) -> None:
    root = store.root
    (root / "commitlog" / "notes.txt").write_text("mine")
    (root / "config" / "secret.key").write_text("mine")
    (root / "consumequeue" / "orders" / "0" / "more").mkdir()
    (root / "linked").symlink_to("/etc")
    found = await store.listed()
    queues = {f"consumequeue/{name}/{'0' * 20}" for name in ("orders/0", "SCHEDULE_TOPIC_XXXX/1")}
    assert {LOG, "checkpoint", "abort", "timerwheel", "config/topics.json"} | queues <= set(found)
    known = ("commitlog/0", "consumequeue/", "config/", "checkpoint", "abort", "timerwheel", "duetimeGroups")
    assert all(path.startswith(known) for path in found)
    assert not {"lock", "reserve", "config/secret.key", "linked"} & set(found)
    assert {path: file.size for path, file in found.items()} == {path: (root / path).stat().st_size for path in found}


async def test_export_gives_every_file_as_it_is(store: Exporting) -> None:
    found = await store.listed()
    for path, file in found.items():
        assert await store.bytes_of(path) == (store.root / path).read_bytes()[: file.written_bytes], path
    assert store.metric("duetime_store_export_bytes_total") == sum(file.written_bytes for file in found.values())


@pytest.mark.parametrize(
    ("offset", "length"),
    [
        (0, 1),
        (5, 0),
        (CHUNK_BYTES - 1, 2),
        (0, CHUNK_BYTES),
        (CHUNK_BYTES, CHUNK_BYTES + 1),
        (WHEEL_BYTES - 3, 100),
        (WHEEL_BYTES, 0),
        (WHEEL_BYTES + 9, 5),
        (2**62, 2**62),
    ],
)
async def test_export_gives_the_range_asked_for(store: Exporting, offset: int, length: int) -> None:
    content = (store.root / "timerwheel").read_bytes()
    wanted = content[offset : offset + length] if length else content[offset:]
    assert await store.bytes_of("timerwheel", offset, length) == wanted


async def test_chunks_have_at_most_a_mebibyte(store: Exporting) -> None:
    sizes = [len(chunk.data) async for chunk in store.export("timerwheel", 1)]
    assert sizes == [CHUNK_BYTES, CHUNK_BYTES, CHUNK_BYTES, 76]


async def test_log_is_given_as_far_as_it_is_written_and_no_prepared_room(store: Exporting) -> None:
    await store.put(*(sent(f"prepared-{n}", body=bytes(5_000)) for n in range(110)))
    end = store.node.store.published_end
    store.node.store.log.prepare(end)
    found = await store.listed()
    prepared = f"commitlog/{MIB:020}"
    assert [(found[path].size, found[path].written_bytes) for path in (LOG, prepared)] == [(MIB, end), (MIB, 0)]
    assert len(await store.bytes_of(LOG)) == end
    assert len(await store.bytes_of(LOG, end - 10, 4_096)) == 10
    assert await store.bytes_of(prepared) == b""


NO_PATHS = [
    "",
    "/etc/passwd",
    "../store/checkpoint",
    "commitlog",
    "commitlog/../checkpoint",
    "commitlog/../../etc/passwd",
    "commitlog/" + "0" * 19,
    "commitlog/" + "\u0663" * 20,
    "consumequeue/../0/" + "0" * 20,
    "consumequeue/./0/" + "0" * 20,
    "consumequeue/orders/x/" + "0" * 20,
    "config/../lock",
    "config/..json/..",
    "config/a/b.json",
    "config/a\0.json",
    "./checkpoint",
    "checkpoint/",
    "checkpoint\n",
    "lock",
    "reserve",
    "index/1",
]


async def test_path_of_an_unknown_kind_is_rejected(store: Exporting) -> None:
    (store.root / "index").mkdir(exist_ok=True)
    (store.root / "index" / "1").write_bytes(b"index")
    for path in NO_PATHS:
        assert await store.refused(path) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT"), path


async def test_negative_range_is_refused(store: Exporting) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await store.bytes_of("checkpoint", -1, -2)
    fields = [violation.field for violation in translate(caught.value, "store", "").violations]
    assert fields == ["offset", "length"]


async def test_links_are_neither_listed_nor_followed(store: Exporting, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "0").mkdir(parents=True)
    (outside / "0" / ("0" * 20)).write_bytes(b"secret")
    (store.root / "consumequeue" / "leak").symlink_to(outside)
    (store.root / "config" / "leak.json").symlink_to(outside / "0" / ("0" * 20))
    os.mkfifo(store.root / "config" / "pipe.json")
    (store.root / "config" / "folder.json").mkdir()
    paths = [f"consumequeue/leak/0/{'0' * 20}", "config/leak.json", "config/pipe.json", "config/folder.json"]
    assert not set(paths) & set(await store.listed())
    for path in paths:
        assert await store.refused(path) == (grpc.StatusCode.NOT_FOUND, "FILE_NOT_FOUND"), path
    assert descriptors(outside) == descriptors(store.root / "config") == 0


async def test_file_that_went_is_not_found(store: Exporting) -> None:
    assert await store.refused(f"commitlog/{MIB * 5:020}") == (grpc.StatusCode.NOT_FOUND, "FILE_NOT_FOUND")
    assert await store.refused(f"consumequeue/none/0/{'0' * 20}") == (grpc.StatusCode.NOT_FOUND, "FILE_NOT_FOUND")


async def test_file_deleted_during_an_export_is_sent_to_its_end(slow: Exporting) -> None:
    call = slow.export("timerwheel")
    data = (await call.read()).data
    (slow.root / "timerwheel").unlink()
    await slow.clock.advance(10_000)
    async with asyncio.timeout(60):
        while chunk := await call.read():
            data += chunk.data
            await slow.clock.advance(10_000)
    assert len(data) == 3 * CHUNK_BYTES
    assert descriptors(slow.root / "timerwheel") == 0


async def test_file_with_read_errors_is_reported_as_such(store: Exporting, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(exporting.os, "pread", broken)
    assert await store.refused("timerwheel") == (grpc.StatusCode.UNAVAILABLE, "FILE_UNREADABLE")
    assert store.metric("duetime_store_exports") == 0
    assert descriptors(store.root / "timerwheel") == 0


async def test_rate_holds_for_all_streams_together_and_they_take_turns(slow: Exporting) -> None:
    order: list[str] = []

    async def follow(name: str) -> None:
        call = slow.export("timerwheel")
        while await call.read():
            order.append(name)

    async with asyncio.TaskGroup() as group:
        for waiting, name in enumerate("AB", 1):
            group.create_task(follow(name))
            await slow.until(lambda waiting=waiting: slow.waiting == waiting)
        for second in range(1, 6):
            await slow.until(lambda second=second: len(order) == second and slow.waiting == (2 if second < 4 else 1))
            assert slow.metric("duetime_store_export_bytes_total") == second * CHUNK_BYTES
            await slow.clock.advance(1_000)
    assert order == ["A", "A", "B", "A", "B", "B"]


async def test_cancelled_stream_leaves_its_place_and_its_file(slow: Exporting) -> None:
    calls = [slow.export("timerwheel"), slow.export("timerwheel")]
    await slow.until(lambda: slow.waiting and slow.metric("duetime_store_exports") == 2)
    assert await slow.refused("timerwheel") == (grpc.StatusCode.RESOURCE_EXHAUSTED, "EXPORTS_EXHAUSTED")
    for call in calls:
        call.cancel()
    await slow.until(lambda: slow.metric("duetime_store_exports") == 0)
    await slow.until(lambda: descriptors(slow.root / "timerwheel") == 0)
    await slow.clock.advance(1_000)
    assert len(await slow.bytes_of("timerwheel", 0, CHUNK_BYTES)) == CHUNK_BYTES


async def test_slow_reader_is_not_read_ahead_of(store: Exporting) -> None:
    os.truncate(store.root / "timerwheel", 512 * MIB)
    call = store.export("timerwheel")
    assert await call.read()
    for _ in range(500):
        await store.stub.Describe(store_pb2.DescribeRequest())
    assert store.metric("duetime_store_export_bytes_total") < 64 * MIB
    call.cancel()
    await store.until(lambda: store.metric("duetime_store_exports") == 0)


async def test_stop_ends_streams_at_once(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "timerwheel").write_bytes(bytes(WHEEL_BYTES))
    async with Exporting(tmp_path / "store", export_bytes_per_s=MIB, drain_ms=600_000) as running:
        call = running.export("timerwheel")
        assert await call.read()
        await running.until(lambda: running.waiting)
        ended = asyncio.ensure_future(call.read())
        async with asyncio.timeout(60):
            await running.node.stop()
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await ended
        assert translate(caught.value, "store", "").reason == "STOPPING"
        assert descriptors(running.root / "timerwheel") == 0
        running.node = StoreNode(running.settings, running.clock)


async def test_log_that_is_exported_under_traffic_holds_whole_records(tmp_path: Path) -> None:
    running = Exporting(tmp_path / "store", segment_bytes=8 * MIB)
    running.clock = SystemClock()  # type: ignore[assignment]
    async with running:
        going = True

        async def traffic() -> None:
            number = 0
            while going:
                await running.put(*(sent(f"{number}-{n}", body=bytes(900)) for n in range(50)))
                number += 1

        await running.put(sent("first"))
        sending = asyncio.ensure_future(traffic())
        exported = b""
        while len(exported) < 3 * MIB:
            exported += await running.bytes_of(LOG, len(exported))
            position = 0
            while position < len(exported):
                position += record.decode(exported, position).size
            assert position == len(exported)
        going = False
        await sending
        assert (running.root / LOG).read_bytes()[: len(exported)] == exported


async def test_throttle_saves_no_burst_and_skips_ended_callers() -> None:
    clock = FakeClock()
    throttle = Throttle(clock, 1_000_000)
    await clock.advance(60_000)
    passed: list[int] = []

    async def ask(number: int) -> None:
        await throttle.take(100_000)
        passed.append(number)

    async with asyncio.TaskGroup() as group:
        asking = [group.create_task(ask(number)) for number in range(5)]
        await turn()
        assert passed == [0]
        asking[1].cancel()
        await clock.advance(80)
        assert passed == [0, 2]
        await clock.advance(99)
        assert passed == [0, 2]
        await clock.advance(1)
        assert passed == [0, 2, 3]
        throttle.end()
        await turn()
        assert passed == [0, 2, 3, 4]


async def test_small_reads_count_as_the_cost_of_a_call() -> None:
    clock = FakeClock()
    throttle = Throttle(clock, exporting.CHARGE_BYTES_MIN)
    await throttle.take(1)
    second = asyncio.ensure_future(throttle.take(1))
    await clock.advance(999 - exporting.SAVED_MS_MAX)
    assert not second.done()
    await clock.advance(1 + exporting.SAVED_MS_MAX)
    await second


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16_383, 16_384, CHUNK_BYTES - 1, CHUNK_BYTES])
def test_chunk_encoding_follows_the_contract(size: int) -> None:
    data = random.Random(size).randbytes(size)
    assert pb.ExportChunk.FromString(exporting.encoded_chunk(data)) == pb.ExportChunk(data=data)
