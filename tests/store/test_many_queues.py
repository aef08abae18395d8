"""More queues than a process may have open files: open files, reads at a start, and trust in the table of queues."""

import asyncio
import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from duetime.v1 import store_pb2
from duetime_store.queues import queuetable
from duetime_store.queues.queuetable import QueueTableHead, QueueTableRow

from tests.faulty_disk import FaultyDisk
from tests.power_disk import PowerDisk
from tests.store.conftest import MIB, sent
from tests.store.test_disk_faults import Sick, reason_of

TOPICS = 40


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


def few_files(root: Path, disk: FaultyDisk | None = None, **settings: object) -> Sick:
    return Sick(root, disk, **{"queue_files_max": 4, "queue_file_units": 100, **settings})


async def fill(store: Sick, prefix: str = "m") -> None:
    await store.put(*(sent(f"{prefix}{number}", topic=f"topic{number}") for number in range(TOPICS)))


async def ids_of(store: Sick, topic: str, count: int) -> list[str]:
    """Of the first messages; a pull ends where units begin that wait for their file."""
    found: list[str] = []
    offset = 0
    while len(found) < count:
        answer = await store.pull(offset, topic=topic)
        assert answer.messages, f"{found} of {count}"
        found += [message.id for message in answer.messages]
        offset = answer.next_offset
    return found


def queue_files(root: Path, topic: str = "topic*") -> list[Path]:
    return sorted(root.glob(f"consumequeue/{topic}/0/*"))


def settle_times(root: Path, topic: str = "topic*") -> None:
    """Files look as if they had been written a minute ago."""
    for path in queue_files(root, topic):
        found = path.stat()
        os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns - 60_000_000_000))


async def quiet(store: Sick) -> None:
    """Nothing is being written any more."""
    await store.until(lambda: not store.node.store.queues.late_bytes)
    await asyncio.get_running_loop().run_in_executor(store.node._threads.checkpoint, lambda: None)


async def settled(store: Sick, root: Path) -> None:
    """Dates the table a minute back; a checkpoint in between has recorded other times."""
    await quiet(store)
    settle_times(root)
    store.node.parts.checkpointer._table._is_whole = False


def everything(store: Sick) -> list[str]:
    return sorted(store.all_stored())


NAMES = sorted(f"m{number}" for number in range(TOPICS))


# --- open files -----------------------------------------------------------------------------------------------------


async def test_no_more_files_are_open_than_may_be_and_all_queues_are_served(root: Path) -> None:
    async with few_files(root) as store:
        shared = store.node.store.queues.shared
        for turn in range(3):
            await fill(store, f"r{turn}-")
            assert shared.open_count <= 4
        for number in range(TOPICS):
            assert await ids_of(store, f"topic{number}", 3) == [f"r{turn}-{number}" for turn in range(3)]
            assert shared.open_count <= 4
        assert await store.node.parts.checkpointer.write()
        assert store.node.store.queues.late_bytes == 0
        assert store.metric("duetime_store_queue_files_max") == 4
    assert len(queue_files(root)) == TOPICS


async def test_a_publish_opens_few_files_and_the_rest_is_written_beside_it(root: Path) -> None:
    async with few_files(root, queue_files_max=1_000) as store:
        store.node.store.queues.shared.opens_at_once = 3
        with store.disk.stalled("make_directory") as stall:
            store.node.store.queues.shared.opens_at_once = 0
            await fill(store)
            # Units are read from memory: no file exists yet.
            assert everything(store) == NAMES
            assert not queue_files(root)
            await store.until(stall.begun.is_set)
        await store.until(lambda: not store.node.store.queues.late_bytes)
        assert len(queue_files(root)) == TOPICS
        assert everything(store) == NAMES


async def test_a_unit_that_changes_while_it_is_written_is_written_again(root: Path) -> None:
    async with few_files(root) as store:
        queues = store.node.store.queues
        queues.shared.opens_at_once = 0
        with store.disk.stalled("make_directory"):
            await fill(store)
            queue = queues.find("topic0", 0)
            units = queue.read(0, 1).copy()
            units["tags"] = 4711
            await store.until(lambda: bool(queues.late_bytes))
            queue.repoint(np.arange(1), units)
        await store.until(lambda: not queues.late_bytes)
        assert queue.read(0, 1)["tags"].tolist() == [4711]


@pytest.mark.parametrize("tells", [True, False])
async def test_checkpoint_flushes_files_closed_unflushed(
    root: Path, tells: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint flushes the file system where that reports errors; elsewhere each file is flushed before it is
    closed.
    """
    if not tells:
        monkeypatch.setattr(FaultyDisk, "open_whole", lambda *_: None)
    async with few_files(root) as store:
        await store.node.parts.checkpointer.write()
        before = store.disk.calls.copy()
        await fill(store)
        assert await store.node.parts.checkpointer.write()
        assert (store.disk.calls.get("sync_whole", 0) > before.get("sync_whole", 0)) == tells
        if not tells:
            assert store.disk.calls["datasync"] - before["datasync"] >= TOPICS
    async with few_files(root) as store:
        assert everything(store) == NAMES


async def test_a_write_back_that_failed_after_its_file_was_closed_ends_the_writing(root: Path) -> None:
    async with few_files(root) as store:
        await fill(store)
        store.disk.fail("sync_whole", errno.EIO)
        assert not await store.node.parts.checkpointer.write()
        assert "Input/output error" in store.node.store.read_only_reason


# --- descriptors ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENFILE])
async def test_a_want_of_descriptors_is_no_failed_disk(root: Path, error: int) -> None:
    async with few_files(root) as store:
        await store.put(sent("first"))
        for path in ("consumequeue", "config", "checkpoint", "duetime"):
            store.disk.fail("open", error, path=path)
        await fill(store)
        assert not await store.node.parts.checkpointer.write()
        assert not await reason_of(store.stub.PutTopic(store_pb2.PutTopicRequest(name="t", queue_count=1)))
        assert (store.node.store.read_only_reason, store.node.store.gate.full) == ("", "")
        assert everything(store) == sorted(["first", *NAMES])
        assert await store.serving()
        store.disk.mend()
        await store.until(lambda: not store.node.store.queues.late_bytes)
        assert await store.node.parts.checkpointer.write()
    async with few_files(root) as store:
        assert everything(store) == sorted(["first", *NAMES])


async def test_a_segment_that_can_not_be_opened_refuses_the_batch_alone(root: Path) -> None:
    async with few_files(root) as store:
        await store.put(sent("first"))
        store.disk.fail("open", errno.EMFILE, path=f"{MIB:020d}")
        large = [sent(f"L{number}", body=bytes(400_000)) for number in range(3)]
        assert await reason_of(store.put(*large)) == "TOO_MANY_REQUESTS"
        assert not store.node.store.read_only_reason
        await store.put(sent("second"))
        store.disk.mend()
        await store.put(*large)
        assert everything(store) == sorted(["first", "second", "L0", "L1", "L2"])


async def test_sends_to_new_queues_are_refused_past_the_limit_and_others_are_not(root: Path) -> None:
    async with few_files(root, topics_max=100, queues_max=130) as store:
        many = [sent(f"{number}", topic=f"topic{number}") for number in range(150)]
        answer = await store.put(*many)
        stored = [index for index in range(150) if index not in answer.faults]
        assert 60 < len(stored) < 100
        assert stored == list(range(len(stored)))
        assert {fault.reason for fault in answer.faults.values()} <= {"TOPICS_EXHAUSTED", "QUEUES_EXHAUSTED"}
        assert list(answer.queue_offsets[: len(stored)]) == [0] * len(stored)
        again = await store.put(sent("again", topic="topic0"), sent("new", topic="new"), sent("%", topic="%RETRY%g"))
        assert list(again.faults) == [1]
        assert store.metric("duetime_store_queues") <= 131
        # Due messages are restored to any topic.
        await store.fill("X")
        store.clock.move(2_000)
        assert not (await store.restore(0, 1)).faults


# --- starts ---------------------------------------------------------------------------------------------------------


async def stopped(root: Path) -> None:
    async with few_files(root) as store:
        await fill(store)
        await settled(store, root)


async def test_a_start_after_a_clean_stop_looks_into_no_queue(root: Path) -> None:
    await stopped(root)
    async with few_files(root) as store:
        assert store.report.read_queues == 0
        assert everything(store) == NAMES
        await fill(store, "n")
        assert await ids_of(store, "topic7", 2) == ["m7", "n7"]


async def test_a_unit_in_an_open_file_is_in_the_next_table(root: Path) -> None:
    async with few_files(root, queue_files_max=2 * TOPICS) as store:
        await fill(store)
        await settled(store, root)
        assert await store.node.parts.checkpointer.write()
        await store.put(sent("n7", topic="topic7"))
        await quiet(store)
        settle_times(root, "topic7")
    async with few_files(root) as store:
        assert store.report.read_queues == 0
        assert await ids_of(store, "topic7", 2) == ["m7", "n7"]


async def test_an_idle_checkpoint_of_many_queues_writes_the_few_that_changed(root: Path) -> None:
    async with few_files(root) as store:
        await fill(store)
        await quiet(store)
        await store.describe()
        await store.put(sent("zero", topic="topic6"))
        await quiet(store)
        assert await store.node.parts.checkpointer.write()
        size = (root / queuetable.FILE).stat().st_size
        await store.put(sent("one", topic="topic7"))
        await quiet(store)
        before = store.disk.calls.copy()
        assert await store.node.parts.checkpointer.write()
        assert (root / queuetable.FILE).stat().st_size - size < 120
        assert store.disk.calls.get("sync_whole", 0) == before.get("sync_whole", 0)
        assert store.disk.calls["datasync"] - before["datasync"] <= 3


async def test_a_checkpoint_that_failed_leaves_its_rows_to_the_next(root: Path) -> None:
    async with few_files(root) as store:
        await fill(store)
        await settled(store, root)
        assert await store.node.parts.checkpointer.write()
        await store.put(sent("new", topic="topic-new"))
        await quiet(store)
        settle_times(root, "topic-new")
        store.disk.fail("open", errno.EMFILE, path="checkpoint")
        assert not await store.node.parts.checkpointer.write()
        store.disk.mend()
        assert await store.node.parts.checkpointer.write()
    async with few_files(root) as store:
        assert store.report.read_queues == 0
        assert await ids_of(store, "topic-new", 1) == ["new"]


async def test_a_queue_that_retention_has_trimmed_is_in_the_next_table(root: Path) -> None:
    async with few_files(root) as store:
        await fill(store)
        await settled(store, root)
        assert await store.node.parts.checkpointer.write()
        queue = store.node.store.queues.find("topic7", 0)
        queue.trim(store.node.store.published_end)
        assert await store.node.parts.checkpointer.write()
    async with few_files(root) as store:
        assert store.report.read_queues == 0
        assert store.node.store.queues.find("topic7", 0).min_offset == 1


def killed(root: Path) -> Path:
    """The directory as a process that was killed leaves it; times of files are kept, and so is `abort`."""
    copy = root.parent / "killed"
    shutil.copytree(root, copy)
    return copy


async def test_a_start_after_a_kill_looks_into_the_queues_that_were_written_to(root: Path) -> None:
    async with few_files(root) as store:
        await fill(store)
        await settled(store, root)
        await store.node.parts.checkpointer.write()
        await store.put(sent("one", topic="topic7"), sent("new", topic="fresh"))
        copy = killed(root)
    async with few_files(copy) as store:
        assert 1 <= store.report.read_queues <= 3
        assert not store.report.whole_log
        assert everything(store) == sorted([*NAMES, "one", "new"])


async def test_queue_of_lost_records_is_cut_at_the_checkpoint(root: Path) -> None:
    """Asynchronous flushes, and a power cut that took the log's tail and left the units."""
    async with few_files(root) as store:
        await fill(store)
        await settled(store, root)
        await store.node.parts.checkpointer.write()
        end = store.node.store.published_end
        await store.put(sent("lost", topic="topic7"), sent("gone", topic="fresh"))
        copy = killed(root)
    with (copy / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(end)
        file.write(bytes(10_000))
    async with few_files(copy) as store:
        assert everything(store) == NAMES
        await store.put(sent("later", topic="topic7"))
    assert not any((copy / "consumequeue/topic7/0" / f"{0:020d}").read_bytes()[40:])
    assert not list((copy / "consumequeue/fresh/0").iterdir())


def remove_file(path: Path, older: Path) -> None:
    path.unlink()


def remove_all(path: Path, older: Path) -> None:
    shutil.rmtree(path.parents[2])


def shorten(path: Path, older: Path) -> None:
    os.truncate(path, 20)


def blank(path: Path, older: Path) -> None:
    with path.open("r+b") as file:
        file.write(bytes(100))


def older_backup(path: Path, older: Path) -> None:
    shutil.copy2(older, path)


@pytest.mark.parametrize("harm", [remove_file, remove_all, shorten, blank, older_backup])
async def test_a_queue_that_is_not_as_it_was_is_made_again(
    root: Path, tmp_path: Path, harm: Callable[[Path, Path], None]
) -> None:
    await stopped(root)
    older = shutil.copy2(queue_files(root)[7], tmp_path / "older")
    async with few_files(root) as store:
        await fill(store, "n")
        await settled(store, root)
    harm(queue_files(root)[7], older)
    async with few_files(root) as store:
        # The rebuild starts from the older checkpoint where that fits.
        assert store.report.whole_log or store.report.rebuilt_units >= TOPICS
        assert everything(store) == sorted([*NAMES, *(f"n{number}" for number in range(TOPICS))])


async def test_a_file_in_the_middle_of_a_queue_is_missed(root: Path) -> None:
    async with few_files(root) as store:
        for first in range(0, 350, 50):
            await store.put(*(sent(f"{number}", topic="topic") for number in range(first, first + 50)))
        settle_times(root)
    queue_files(root)[1].unlink()
    async with few_files(root) as store:
        assert store.report.whole_log
        assert len(everything(store)) == 350


async def test_a_copy_of_the_directory_is_read_once(root: Path) -> None:
    await stopped(root)
    copy = root.parent / "copy"
    shutil.copytree(root, copy, copy_function=shutil.copy)
    async with few_files(copy) as store:
        assert store.report.read_queues == TOPICS
        assert not store.report.whole_log
        assert everything(store) == NAMES
        await store.until(lambda: not store.node.store.queues.late_bytes)
        settle_times(copy)
    async with few_files(copy) as store:
        assert store.report.read_queues <= TOPICS


@pytest.mark.parametrize("harm", ["gone", "torn", "flipped", "older", "longer"])
async def test_without_its_table_a_start_looks_into_every_queue(root: Path, harm: str) -> None:
    await stopped(root)
    path = root / queuetable.FILE
    older = path.read_bytes()
    async with few_files(root) as store:
        await store.put(sent("one", topic="topic7"))
    data = bytearray(path.read_bytes())
    if harm == "gone":
        path.unlink()
    elif harm == "longer":
        path.write_bytes(data + b"DTQ1" + bytes(40))
    elif harm == "older":
        path.write_bytes(older)
    elif harm == "torn":
        path.write_bytes(data[:-3])
    else:
        data[len(data) // 2] ^= 0x10
        path.write_bytes(data)
    async with few_files(root) as store:
        assert not store.report.whole_log
        assert (store.report.read_queues >= TOPICS) == (harm != "longer")
        assert everything(store) == sorted([*NAMES, "one"])
        await store.put(sent("two", topic="topic8"))
    async with few_files(root) as store:
        assert store.report.read_queues < TOPICS
        assert everything(store) == sorted([*NAMES, "one", "two"])


# --- the table ------------------------------------------------------------------------------------------------------


def row(number: int, last: int = 5) -> QueueTableRow:
    return QueueTableRow(f"topic{number}", number, 1, last, 300, 7 * number)


def test_a_table_is_read_as_of_each_of_its_checkpoints(tmp_path: Path) -> None:
    path = tmp_path / queuetable.FILE
    whole = queuetable.encode(QueueTableHead(4, 100, 0, 2_000, whole=True), [row(1), row(2)])
    later = queuetable.encode(QueueTableHead(5, 200, 0, 2_000), [row(2, 9), row(3)])
    path.write_bytes(whole + later)
    before, after = queuetable.read(path, 4, 100), queuetable.read(path, 5, 200)
    assert before is not None
    assert after is not None
    assert list(before.rows.values()) == [row(1), row(2)]
    assert list(after.rows.values()) == [row(1), row(2, 9), row(3)]
    assert (before.end, after.end, before.size) == (len(whole), len(whole + later), len(whole + later))
    assert queuetable.read(path, 5, 100) is None
    assert queuetable.read(path, 6, 200) is None
    assert queuetable.read(path, 3, 100) is None


def test_a_damaged_block_ends_the_table(tmp_path: Path) -> None:
    path = tmp_path / queuetable.FILE
    whole = queuetable.encode(QueueTableHead(4, 100, 0, 2_000, whole=True), [row(1), row(2)])
    later = queuetable.encode(QueueTableHead(5, 200, 0, 2_000), [row(3)])
    for at in range(len(whole + later)):
        data = bytearray(whole + later)
        data[at] ^= 0x40
        path.write_bytes(data)
        assert queuetable.read(path, 5, 200) is None
        found = queuetable.read(path, 4, 100)
        assert (found is None) == (at < len(whole))


def test_a_long_table_is_rewritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queuetable, "_SPARE", 10)
    disk = FaultyDisk()
    (tmp_path / "consumequeue").mkdir()
    table = queuetable.QueueTableFile(disk, tmp_path / queuetable.FILE, tmp_path / "consumequeue")
    assert table.wants_all
    for serial in range(1, 30):
        table.write(QueueTableHead(serial, serial, 0, 2_000), [row(number, serial) for number in range(3)])
        table.shorten()
        found = queuetable.read(tmp_path / queuetable.FILE, serial, serial)
        assert found is not None
        assert list(found.rows.values()) == [row(number, serial) for number in range(3)]
        assert found.row_count <= 20
        assert found.end == found.size


def test_a_flush_of_the_file_system_keeps_all_that_was_written(tmp_path: Path) -> None:
    """The model of a power cut has it so: a file that was closed, and its name."""
    import random

    root = tmp_path / "disk"
    root.mkdir()
    disk = PowerDisk(root, random.Random(3))
    whole = disk.open_whole(root)
    assert whole is not None
    for number in range(20):
        disk.write_file(root / f"file{number}", b"content", durable=False)
    disk.sync_whole(whole)
    disk.close_all()
    disk.lose()
    assert all((root / f"file{number}").read_bytes() == b"content" for number in range(20))
