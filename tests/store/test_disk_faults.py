"""A store whose disk is full, fails or hangs: lost data, reported errors, and recovery."""

import asyncio
import errno
import os
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import grpc
import pytest
from duetime.v1 import store_pb2
from duetime_core.errors import DueTimeError
from duetime_core.rpc.calls import translate
from duetime_format import record
from duetime_store.files.disk import Disk
from duetime_store.files.reserve import Reserve
from duetime_store.queues.consumequeue import UNIT, ConsumeQueue
from duetime_store.queues.queuedisk import QueueDisk
from duetime_store.recovery.recovery import RecoveryReport
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tests.faulty_disk import GIB, FaultyDisk
from tests.rounds import one_by_one
from tests.store.conftest import MIB, ids, sent
from tests.store.test_holding import Lane

FULL, STALLED, FAILED = "DISK_FULL", "FLUSH_STALLED", "STORE_READ_ONLY"
# Behind it a segment has no room for a large record.
LARGE = 600_000


async def refusal(call: Awaitable[object]) -> DueTimeError:
    """The error of a refused call."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return translate(caught.value, "the store", "NO_ANSWER")


async def reason_of(call: Awaitable[object]) -> str:
    """Of a refusal; empty: the call is answered."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return translate(error, "the store", "NO_ANSWER").reason
    return ""


class Sick(Lane):
    """A store on a disk with faults."""

    disk: FaultyDisk

    def __init__(self, root: Path, disk: FaultyDisk | None = None, **settings: object) -> None:
        super().__init__(root, disk or FaultyDisk(), **{"reserve_bytes": MIB, "disk_used_max": 1, **settings})

    @property
    def report(self) -> RecoveryReport:
        """Of the recovery."""
        return self.node.report

    @property
    def reserve_is_there(self) -> bool:
        return Reserve(self.disk, self.settings.data_dir, MIB).held

    async def until(self, there: Callable[[], bool]) -> None:
        """Lets a second of the clock pass again and again."""
        async with asyncio.timeout(60):
            while not there():
                await self.clock.advance(1_000)
                await self.describe()

    async def describe(self) -> store_pb2.DescribeResponse:
        return await self.stub.Describe(store_pb2.DescribeRequest())

    async def serving(self) -> bool:
        answer = await health_pb2_grpc.HealthStub(self.channel).Check(health_pb2.HealthCheckRequest())
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    async def restore(self, first: int, count: int) -> store_pb2.RestoreResponse:
        return await self.put_entries(self.restored(first, count), lane=1, first_entry=first)

    async def checkpoint(self) -> None:
        await self.node.parts.checkpointer.write()

    def metric(self, name: str, **labels: str) -> float:
        for family in text_string_to_metric_families(generate_latest(self.node.registry).decode()):
            for sample in family.samples:
                if sample.name == name and sample.labels == labels:
                    return sample.value
        raise KeyError(name)

    def all_stored(self) -> list[str]:
        """The ids in all topics, except lanes and changes of state."""
        store, found = self.node.store, []
        for queue in store.queues.all():
            if queue.topic not in ("SCHEDULE_TOPIC_XXXX", "DT_QUARANTINE", "DT_STATE"):
                for offset in range(queue.max_offset):
                    unit = queue.read(offset, 1).tolist()[0]
                    found.append(store.read_record(unit[0], unit[1]))
        return sorted(ids([record.decode(data) for data in found]))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


async def test_a_full_disk_refuses_sends_and_still_restores(root: Path) -> None:
    async with Sick(root) as store:
        await store.put(sent("A"))
        await store.fill("XYZ")
        store.disk.leave(100_000)
        first = await refusal(store.put(sent("B", body=bytes(LARGE)), sent("C")))
        assert first.retriable
        assert (first.status, first.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, FULL)
        assert str(root) in first.text
        assert "No space left on device" in first.text
        # Now the store refuses without trying to write, and reports the fault everywhere.
        writes = store.disk.calls["pwritev"]
        again = await refusal(store.put(sent("B")))
        assert again.reason == FULL
        assert store.disk.calls["pwritev"] == writes
        assert not store.reserve_is_there
        assert (await store.describe()).refusal == again.text
        assert store.metric("duetime_store_refusing", reason=FULL) == 1
        assert store.metric("duetime_store_flush_errors_total", errno="ENOSPC") == 1
        assert await store.serving()
        store.clock.move(20)
        assert list((await store.restore(0, 3)).queue_offsets) == [1, 2, 3]
        assert store.all_stored() == ["A", "X", "Y", "Z"]

        # The reserve alone is not enough: the next send would find the disk full again.
        store.disk.leave(MIB + 1)
        await store.clock.advance(5_000)
        assert (await refusal(store.put(sent("B")))).reason == FULL
        store.disk.leave(3 * MIB)
        await store.until(lambda: not store.node.store.gate.full)
        assert store.reserve_is_there
        await store.put(sent("B"))
        assert (await store.describe()).refusal == ""
    async with Sick(root) as store:
        assert store.all_stored() == ["A", "B", "X", "Y", "Z"]


async def test_nothing_of_a_refused_batch_is_stored(root: Path) -> None:
    """Its first half was written: a crash must not find it."""
    async with Sick(root) as store:
        await store.put(sent("A"))
        store.disk.leave(100_000)
        assert await refusal(store.put(*(sent(f"B{n}", body=bytes(50_000)) for n in range(5))))
        log = store.node.store.log
        end = store.node.store.published_end
        segment = log.segment_at(end)
        assert segment is not None
        assert not segment.read(end, MIB).strip(b"\0")
        assert log.end == end
        store.disk.leave(GIB // 2)
        await store.until(lambda: not store.node.store.gate.full)
        answer = await store.put(sent("B0"))
        assert (list(answer.statuses), list(answer.queue_offsets)) == ([], [1])
        repeated = await store.put(sent("B0"), sent("B1"))
        assert list(repeated.statuses) == [store_pb2.PUT_STATUS_DUPLICATE, store_pb2.PUT_STATUS_OK]
        assert store.all_stored() == ["A", "B0", "B1"]


async def test_use_above_the_limit_refuses_before_the_disk_is_full(root: Path) -> None:
    async with Sick(root, disk_used_max=0.5) as store:
        await store.put(sent("A"))
        store.disk.leave(GIB // 4)
        await store.until(lambda: bool(store.node.store.gate.full))
        error = await refusal(store.put(sent("B")))
        assert error.reason == FULL
        assert "is 75.0% used; sends are accepted up to 50.0%" in error.text
        assert store.reserve_is_there
        store.disk.leave(GIB // 4 * 3)
        await store.until(lambda: not store.node.store.gate.full)
        await store.put(sent("B"))


async def test_a_store_starts_on_a_full_disk(root: Path) -> None:
    async with Sick(root) as store:
        await store.put(sent("A"))
        await store.fill("X")
    disk = FaultyDisk()
    disk.leave(300_000)
    async with Sick(root, disk) as store:
        store.clock.move(2_000)
        error = await refusal(store.put(sent("B")))
        assert error.reason == FULL
        await store.restore(0, 1)
        assert store.all_stored() == ["A", "X"]


NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
RECORDS = [("pwritev", "commitlog")]
SEGMENTS = [("open", f"{MIB:020d}"), ("truncate", f"{MIB:020d}")]
UNITS = [(name, "consumequeue") for name in ("pwrite", "open", "truncate", "make_directory")]
FILES = [*((name, "config") for name in ("open", "pwrite", "replace")), ("open", "checkpoint"), ("sync", "checkpoint")]
MATRIX = [
    # The failing operation, and the refusals of a send, the next send, and a restore.
    *((*what, error, (FULL, FULL, FULL)) for what in RECORDS for error in NO_ROOM),
    *((*what, error, (FULL, FULL, "")) for what in SEGMENTS for error in NO_ROOM),
    *((*what, errno.EIO, (FAILED, FAILED, FAILED)) for what in (*RECORDS, *SEGMENTS)),
    *((*what, error, ("", FULL, "")) for what in UNITS for error in NO_ROOM),
    *((*what, errno.EIO, ("", FAILED, FAILED)) for what in UNITS),
    *((*what, error, ("", "", "")) for what in FILES for error in (*NO_ROOM, errno.EIO)),
    *(("datasync", "commitlog", error, (FAILED, FAILED, FAILED)) for error in (errno.EIO, errno.ENOSPC)),
    *(("datasync", "consumequeue", error, ("", FAILED, FAILED)) for error in (errno.EIO, errno.ENOSPC)),
]


@pytest.mark.parametrize(("operation", "path", "error", "told"), one_by_one(MATRIX, 5))
async def test_fault_by_fault(root: Path, operation: str, path: str, error: int, told: tuple[str, str, str]) -> None:
    """After a restart, answered records exist once; records refused for lack of space do not."""
    answered = ["A"]

    async def attempt(name: str, call: Awaitable[object]) -> str:
        reason = await reason_of(call)
        if not reason:
            answered.append(name)
        return reason

    async with Sick(root) as store:
        await store.put(sent("A", body=bytes(LARGE)))
        await store.fill("X")
        store.disk.fail(operation, error, path=path)
        # It needs a segment and a queue that are not there yet.
        first = await attempt("B", store.put(sent("B", topic="fresh", body=bytes(LARGE))))
        await store.checkpoint()
        second = await attempt("C", store.put(sent("C", topic="fresh")))
        third = await attempt("X", store.restore(0, 1))
        assert (first, second, third) == told
        # Readers see every answered record, also while its units wait for space.
        assert store.all_stored() == sorted(answered)
        store.disk.mend()
        if second != FAILED:
            await store.until(lambda: not store.node.store.gate.full)
            await attempt("D", store.put(sent("D", topic="fresh")))
            assert answered[-1] == "D"
            await store.checkpoint()
            assert store.node.store.queues.late_bytes == 0
            again = await store.restore(0, 1)
            assert list(again.statuses) == ([] if third else [store_pb2.PUT_STATUS_DUPLICATE])
            answered = sorted({*answered, "X"})
    async with Sick(root) as store:
        found = store.all_stored()
        if second != FAILED:
            assert found == answered
        assert set(answered) <= set(found)
        assert len(found) == len(set(found))
        assert store.node.store.lanes[1].watermark == ("X" in found)


def test_late_units_grow_while_their_errors_are_known(tmp_path: Path) -> None:
    """An error's traceback holds on to the bytes that could not be written."""
    disk = FaultyDisk()
    shared = QueueDisk(disk, tmp_path / "consumequeue", 100 * UNIT.size, 32)
    queue = ConsumeQueue(shared, "orders", 0, 100 * UNIT.size)
    disk.fail("pwrite", errno.ENOSPC)
    known = []
    for number in range(3):
        queue.staged += UNIT.pack(number, 100, 0)
        with pytest.raises(OSError, match="No space left") if not number else nullcontext():
            queue.publish(1)
        with pytest.raises(OSError, match="No space left") as caught:
            queue.write_late()
        known.append(caught.value)
    assert queue.read(0, 3)["position"].tolist() == [0, 1, 2]
    disk.mend()
    queue.write_late()
    assert queue.late_bytes == 0
    assert queue.read(0, 3)["position"].tolist() == [0, 1, 2]
    assert len(known) == 3
    shared.close()


@pytest.mark.parametrize("operation", ["pwritev", "datasync"])
async def test_a_disk_that_hangs_refuses_sends_until_it_answers(root: Path, operation: str) -> None:
    async with Sick(root) as store:
        await store.put(sent("A"))
        with store.disk.stalled(operation) as stall:
            waiting = asyncio.create_task(store.put(sent("B")))
            await asyncio.to_thread(stall.begun.wait, 10)
            early = asyncio.create_task(store.put(sent("C")))
            async with asyncio.timeout(60):
                while not store.node.store._staged.count:
                    await store.describe()
            store.clock.move(4_999)
            assert not store.node.store.gate.refusals()
            store.clock.move(1)
            error = await refusal(store.put(sent("D")))
            assert error.retriable
            assert (error.status, error.reason) == (grpc.StatusCode.UNAVAILABLE, STALLED)
            assert "has not answered for 5000 ms" in error.text
            assert store.metric("duetime_store_refusing", reason=STALLED) == 1
            assert store.metric("duetime_store_stalled_seconds") == 5
            async with asyncio.timeout(60):
                while await store.serving():
                    await store.clock.advance(1_000)
            assert (waiting.done(), early.done()) == (False, False)
            assert (await store.pull()).max_offset == 1
        await waiting
        await early
        await store.put(sent("D"))
        async with asyncio.timeout(60):
            while not await store.serving():
                await store.clock.advance(1_000)
        assert store.all_stored() == ["A", "B", "C", "D"]


async def test_a_failed_flush_is_not_tried_again(root: Path) -> None:
    async with Sick(root) as store:
        await store.put(sent("A"))
        store.disk.fail("datasync", errno.EIO, path="commitlog", times=1)
        error = await refusal(store.put(sent("B")))
        assert error.reason == FAILED
        assert "Input/output error" in error.text
        calls = store.disk.calls["datasync"]
        await store.clock.advance(60_000)
        error = await refusal(store.put(sent("C")))
        assert error.reason == FAILED
        assert store.disk.calls["datasync"] == calls
        assert (await store.describe()).read_only
        assert store.metric("duetime_store_flush_errors_total", errno="EIO") == 1
        async with asyncio.timeout(60):
            while await store.serving():
                await store.clock.advance(1_000)
    assert (root / "abort").exists(), "a store that failed did not stop cleanly"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MiB."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={16 * MIB}", "tmpfs", str(tmp_path)], capture_output=True, text=True
    )
    if mount.returncode:
        pytest.skip(f"no small file system can be mounted here: {mount.stderr.strip()}")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


async def test_a_real_disk_that_is_full(small_disk: Path) -> None:
    def real(root: Path) -> Sick:
        store = Sick(root, queue_file_units=100)
        store.disk = Disk()  # type: ignore[assignment]
        return store

    root = small_disk / "store"
    async with real(root) as store:
        await store.fill("XYZ")
        store.clock.move(30)
        filler = small_disk / "filler"
        filler.write_bytes(bytes(12 * MIB))
        answered, reason = 0, ""
        while not reason:
            reason = await reason_of(store.put(sent(f"{answered}", body=bytes(200_000))))
            answered += not reason
        assert reason == FULL
        assert await store.serving()
        assert list((await store.restore(0, 3)).queue_offsets) == [answered, answered + 1, answered + 2]
        filler.unlink()
        await store.until(lambda: not store.node.store.gate.full)
        await store.put(sent("B"))
        assert (root / "reserve").stat().st_blocks * 512 == MIB
    async with real(root) as store:
        assert store.all_stored() == sorted([*(f"{n}" for n in range(answered)), "X", "Y", "Z", "B"])
