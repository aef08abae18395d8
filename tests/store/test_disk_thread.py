"""The thread that appends to the log: its results and errors are those of an executor's thread."""

import asyncio
import errno
import os
import resource
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path

import pytest
from duetime_store.files.disk import Disk
from duetime_store.log.disk_thread import DiskThread, WriteFailed, append
from duetime_store.log.segment import Segment
from hypothesis import given
from hypothesis import strategies as st

from tests.twins import compiled

SIZE = 1 << 20
SAFETY_S = 60


@pytest.fixture(params=["python", "compiled"])
def thread(request: pytest.FixtureRequest) -> Iterator[Executor]:
    if request.param == "compiled":
        compiled("duetime_store.log._disk_thread")
    with ThreadPoolExecutor(1) if request.param == "python" else DiskThread() as executor:
        yield executor


@pytest.fixture
def segment(tmp_path: Path) -> Iterator[Segment]:
    made = Segment(Disk(), tmp_path / "0", SIZE, SIZE)
    yield made
    made.close()


class Elsewhere:
    """A segment with another file's descriptor."""

    is_plain, base = True, 0

    def __init__(self, file: int) -> None:
        self.file = file

    def write(self, position: int, buffers: list[bytes]) -> None:
        os.pwritev(self.file, buffers, position)

    def flush(self) -> None:
        os.fdatasync(self.file)


async def test_buffers_follow_each_other(thread: Executor, segment: Segment) -> None:
    whole = bytearray(b"abcdef")
    await append(thread, segment, SIZE + 10, [b"one", memoryview(whole)[2:4], b"", whole], [segment])
    assert segment.read(SIZE + 9, 13) == b"\0onecdabcdef\0"


@given(st.lists(st.binary(max_size=50), max_size=3_000), st.integers(0, 1_000))
async def test_any_number_of_buffers_is_written(
    tmp_path_factory: pytest.TempPathFactory, buffers: list[bytes], at: int
) -> None:
    compiled("duetime_store.log._disk_thread")
    segment = Segment(Disk(), tmp_path_factory.mktemp("log") / "0", 0, SIZE)
    with DiskThread() as thread:
        await append(thread, segment, at, buffers, [])
        data = b"".join(buffers)
        assert segment.read(0, at + len(data) + 1) == bytes(at) + data + b"\0"
    segment.close()


async def test_work_is_done_in_order(thread: Executor, segment: Segment) -> None:
    loop, seen = asyncio.get_running_loop(), []
    works = []
    for number in range(20):
        works.append(append(thread, segment, SIZE, [b"%02d" % number], []))
        works.append(loop.run_in_executor(thread, lambda: seen.append(segment.read(SIZE, 2))))
    await asyncio.gather(*works)
    assert seen == [b"%02d" % number for number in range(20)]


async def test_results_and_errors_of_calls_are_returned(thread: Executor) -> None:
    loop = asyncio.get_running_loop()
    assert await loop.run_in_executor(thread, divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await loop.run_in_executor(thread, divmod, 7, 0)


async def test_failed_write_is_no_failed_flush(thread: Executor, segment: Segment) -> None:
    full = os.open("/dev/full", os.O_RDWR)
    with pytest.raises(WriteFailed) as found:
        await append(thread, Elsewhere(full), 0, [b"x"], [segment])  # type: ignore[arg-type]
    os.close(full)
    assert found.value.error.errno == errno.ENOSPC


async def test_failed_flush_is_an_error_of_the_disk(thread: Executor, segment: Segment) -> None:
    reader, writer = os.pipe()
    try:
        with pytest.raises(OSError, match="Invalid argument") as found:
            await append(thread, segment, SIZE, [b"x"], [segment, Elsewhere(reader)])  # type: ignore[list-item]
    finally:
        os.close(reader)
        os.close(writer)
    assert found.value.errno == errno.EINVAL
    assert segment.read(SIZE, 1) == b"x"


async def test_write_that_finds_room_for_a_part_fails(thread: Executor, tmp_path: Path) -> None:
    segment = Segment(Disk(), tmp_path / "0", 0, SIZE)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(WriteFailed) as found:
            await append(thread, segment, 90, [b"123456", b"7890abc"], [segment])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert found.value.error.errno == errno.EFBIG
    assert segment.read(90, 13) == b"1234567890\0\0\0"
    segment.close()


async def test_append_needs_no_gil(segment: Segment) -> None:
    compiled("duetime_store.log._disk_thread")
    before = sys.getswitchinterval()
    with DiskThread() as thread:
        # A thread that starts would get the GIL from this one.
        await asyncio.get_running_loop().run_in_executor(thread, int)
        sys.setswitchinterval(2 * SAFETY_S)
        try:
            done = append(thread, segment, SIZE, [b"written"], [segment])
            end = time.monotonic() + SAFETY_S
            while segment.map[:7] != b"written":
                assert time.monotonic() < end, "the thread waits for the GIL"
        finally:
            sys.setswitchinterval(before)
        await done


async def test_shutdown_waits_for_all_work(segment: Segment) -> None:
    compiled("duetime_store.log._disk_thread")
    thread = DiskThread()
    done = append(thread, segment, SIZE, [b"written"], [segment])
    called = thread.submit(divmod, 7, 2)
    thread.shutdown()
    assert segment.read(SIZE, 7) == b"written"
    assert called.result() == (3, 1)
    await done
    with pytest.raises(RuntimeError, match="stopped"):
        thread.submit(divmod, 7, 2)


async def test_abandoned_append_keeps_its_buffers(segment: Segment) -> None:
    compiled("duetime_store.log._disk_thread")
    with DiskThread() as thread:
        for number in range(50):
            append(thread, segment, SIZE + 7 * number, [b"%07d" % number], []).cancel()
        await asyncio.get_running_loop().run_in_executor(thread, lambda: None)
    assert segment.read(SIZE, 350) == b"".join(b"%07d" % number for number in range(50))
