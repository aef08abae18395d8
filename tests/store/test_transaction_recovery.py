"""Transactions through crashes: torn batches, lost files, retention, and disks that take nothing."""

import asyncio
import errno
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from duetime.v1 import store_pb2
from duetime_format import halves, record
from duetime_format.names import GIVEN_UP_TOPIC, OP_TOPIC
from duetime_store.lanes.alarm import ClockAlarm, ShardClock
from duetime_store.metrics import StoreMetrics
from duetime_store.queues.consumequeue import ConsumeQueue
from duetime_store.transactions import tablefile
from duetime_store.transactions.giving_up import TransactionExpirer
from duetime_store.writing.halves import HalfResolutions, end
from prometheus_client import CollectorRegistry

from tests.rounds import ONE_IN, some
from tests.store.conftest import HandClock, ids, log_file
from tests.store.half_shard import HalfShard, idle_flusher
from tests.store.transacting import COMMIT, COMMITTED, GIVEN_UP, OPEN, ROLLBACK, ROLLED_BACK, half

TABLES = (tablefile.FILE, tablefile.BACKUP)


@pytest.fixture
def shard(tmp_path: Path, clock: HandClock) -> Iterator[HalfShard]:
    shard = HalfShard(tmp_path / "store", clock)
    yield shard
    shard.crash()


def ops(shard: HalfShard) -> list[tuple[int, bytes]]:
    """Decisions and bodies of op records."""
    found = shard.pulled(OP_TOPIC) if OP_TOPIC in shard.store.queues.counts else []
    return [(halves.decision_of(one.properties), one.body) for one in found]


def give_up(shard: HalfShard, name: str) -> None:
    """Stages the end of a transaction after too many checks."""
    offset = shard.halves[name].offset
    position, size, _ = shard.store.halves.units(np.array([offset]))[0].item()
    copy = halves.given_up(record.decode(shard.store.read_record(position, size)), 15)
    end(
        shard.store,
        HalfResolutions([offset], [halves.GIVEN_UP], [copy]),
        lambda offsets: shard.table.end(np.array(offsets)),
    )


@pytest.mark.parametrize("table", [True, False])
@pytest.mark.parametrize("checkpoint", ["before", "between", "none"])
def test_reopened_it_knows_all(shard: HalfShard, table: bool, checkpoint: str) -> None:
    names = ["m0", "m1", "m2", "m3", "m4"]
    shard.prepare(*names[:4])
    if checkpoint == "before":
        shard.checkpoint()
    shard.end({"m0": COMMIT, "m1": ROLLBACK})
    if checkpoint == "between":
        shard.checkpoint()
    shard.prepare("m4", CHECK_IMMUNITY_TIME_IN_SECONDS="60")
    give_up(shard, "m3")
    shard.flush()
    tags = shard.tags(names)
    before = shard.table.snapshot().rows()
    shard.crash()
    if not table:
        for name in TABLES:
            (shard.root / name).unlink(missing_ok=True)
    shard.open()
    states = [(COMMITTED, True), (ROLLED_BACK, True), (OPEN, False), (GIVEN_UP, True), (OPEN, False)]
    assert shard.states(names) == states
    assert shard.tags(names) == tags
    rows = shard.table.snapshot().rows()
    assert all((one == other).all() for one, other in zip(rows, before, strict=True))
    assert shard.store.take() is None


@pytest.fixture(scope="module")
def torn(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, HandClock, dict[str, store_pb2.Half], int, bytes]:
    """A crashed directory whose last batch is not written, its half messages, the batch's position, and its bytes."""
    root, clock = tmp_path_factory.mktemp("torn") / "store", HandClock()
    shard = HalfShard(root, clock, queue_file_units=100)
    shard.prepare("m0", "m1", "m2")
    shard.prepare("m3", DELAY="1")
    shard.checkpoint()
    shard.stage({"m0": COMMIT, "m1": ROLLBACK, "m3": COMMIT})
    batch = shard.store.take()
    assert batch is not None
    ((position, buffers),) = batch.runs
    shard.crash()
    return root, clock, dict(shard.halves), position, b"".join(bytes(one) for one in buffers)


@pytest.mark.parametrize("one_in", ONE_IN)
def test_torn_at_every_byte_it_is_decided_by_the_real_record(
    torn: tuple[Path, HandClock, dict[str, store_pb2.Half], int, bytes], tmp_path: Path, one_in: int
) -> None:
    root, clock, known, position, data = torn
    first, second, _, rolled_back = np.cumsum(_sizes(data)).tolist()
    edges = [0, first, second, len(data) - _sizes(data)[-1], len(data)]
    near = {edge + step for edge in edges for step in range(-4, 5)}
    # All others were tried once; a start takes its time.
    for cut in some(sorted({*range(0, len(data), 41), *near} & set(range(len(data) + 1))), one_in):
        shutil.copytree(root, tmp_path / "copy")
        with log_file_of(tmp_path / "copy").open("r+b") as file:
            file.seek(position)
            file.write(data[:cut])
        shard = HalfShard(tmp_path / "copy", clock)
        shard.halves = known
        expected = {
            "m0": (COMMITTED, True) if cut >= first else (OPEN, False),
            "m1": (ROLLED_BACK, True) if cut >= rolled_back else (OPEN, False),
            "m2": (OPEN, False),
            "m3": (COMMITTED, True) if cut >= second else (OPEN, False),
        }
        assert dict(zip(expected, shard.states(list(expected)), strict=True)) == expected, cut
        # The op record is appended; nothing is delivered twice.
        shard.flush()
        named = [offset for code, body in ops(shard) if code == halves.COMMITTED for offset in halves.ended_by(body)]
        assert sorted(named) == [shard.halves[one].offset for one in ("m0", "m3") if expected[one][0] == COMMITTED]
        results = shard.end(dict.fromkeys(expected, COMMIT))
        assert [one.duplicate for one in results] == [state != OPEN for state, _ in expected.values()]
        delivered = ids(shard.pulled())
        assert sorted(delivered) == sorted({"m0", "m1", "m2"} - {"m1" for _ in range(cut >= rolled_back)})
        assert shard.store.lanes[1].pending_count == 1
        assert not shard.open_offsets
        shard.crash()
        shutil.rmtree(tmp_path / "copy")


def log_file_of(root: Path) -> Path:
    return root / "commitlog" / ("0" * 20)


def _sizes(data: bytes) -> list[int]:
    """Of the records in it."""
    sizes, at = [], 0
    while at < len(data):
        sizes.append(int.from_bytes(data[at : at + 4], "big"))
        at += sizes[-1]
    return sizes


def test_copy_without_its_op_record_counts_as_abandoned(shard: HalfShard) -> None:
    shard.prepare("m0")
    give_up(shard, "m0")
    batch = shard.store.take()
    assert batch is not None
    ((position, buffers),) = batch.runs
    shard.crash()
    with log_file(shard).open("r+b") as file:
        file.seek(position)
        file.write(buffers[0])
    shard.open()
    assert shard.states(["m0"]) == [(GIVEN_UP, True)]
    shard.flush()
    assert ops(shard) == [(halves.GIVEN_UP, b"0,")]
    assert len(shard.pulled(GIVEN_UP_TOPIC)) == 1


def test_given_up_is_ended_by_an_operator_alone(shard: HalfShard) -> None:
    shard.prepare("m0", "m1")
    for name in ("m0", "m1"):
        give_up(shard, name)
    shard.flush()
    (refused,) = shard.end({"m0": COMMIT})
    assert refused.fault.reason == "TRANSACTION_GIVEN_UP"
    results = shard.end({"m0": COMMIT, "m1": ROLLBACK}, given_up=True)
    expected = [(COMMITTED, True), (ROLLED_BACK, True)]
    assert [(one.state, one.duplicate) for one in results] == [(COMMITTED, False), (ROLLED_BACK, False)]
    assert ids(shard.pulled()) == ["m0"]
    shard.reopen()
    assert shard.states(["m0", "m1"]) == expected
    shard.checkpoint()
    shard.reopen()
    assert shard.states(["m0", "m1"]) == expected
    (again,) = shard.end({"m0": ROLLBACK}, given_up=True)
    assert (again.state, again.duplicate) == (COMMITTED, True)


def test_one_that_has_left_its_queue_is_forgotten(shard: HalfShard) -> None:
    shard.prepare("m0")
    assert shard.store.halves.queue is not None
    shard.store.halves.queue.trim(shard.store.published_end)
    shard.clock.wall_ms += 61_000
    alarm, metrics = ClockAlarm(ShardClock(shard.clock)), StoreMetrics(CollectorRegistry())
    giving_up = TransactionExpirer(shard.store, shard.table, alarm, idle_flusher(shard.store), metrics, keep_ms=60_000)
    assert asyncio.run(giving_up._step())
    assert shard.open_offsets == []


def test_end_that_is_taken_back_leaves_it_open(shard: HalfShard) -> None:
    shard.prepare("m0")
    shard.stage({"m0": COMMIT})
    assert shard.states(["m0"]) == [(COMMITTED, True)]
    shard.store.undo()
    assert shard.states(["m0"]) == [(OPEN, False)]
    (result,) = shard.end({"m0": ROLLBACK})
    assert (result.state, result.duplicate) == (ROLLED_BACK, False)
    assert not shard.pulled()


def test_prepare_that_is_taken_back_opens_nothing(shard: HalfShard) -> None:
    shard.prepare("m0")
    tried = shard.preparing.stage(half("m1"))
    shard.store.undo()
    assert shard.open_offsets == [0]
    assert shard.prepare("m2").positions == tried.positions


def test_mark_that_is_not_written_waits_and_holds_up_checkpoints(
    shard: HalfShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard.prepare("m0", "m1")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    shard.stage({"m0": COMMIT})
    with monkeypatch.context() as patched:
        patched.setattr(ConsumeQueue, "repoint", full)
        batch = shard.store.take()
        assert batch is not None
        for segment in shard.store.log.write(batch.runs):
            segment.flush()
        assert shard.store.publish(batch, shard.clock.now_ms()) is not None
        assert not shard.store.halves.is_even
    assert shard.states(["m0", "m1"]) == [(COMMITTED, True), (OPEN, False)]
    assert not halves.are_ended(np.array(shard.tags(["m0"]))).any()
    shard.store.halves.write()
    assert shard.store.halves.is_even
    assert halves.are_ended(np.array(shard.tags(["m0"]))).all()


def test_marks_of_ends_that_the_log_has_lost_are_taken_back(shard: HalfShard) -> None:
    """As a power cut in the async mode may leave them."""
    shard.prepare("m0", "m1")
    shard.checkpoint()
    before, tags = shard.store.published_end, shard.tags(["m0"])
    shard.end({"m0": COMMIT})
    shard.crash()
    with log_file(shard).open("r+b") as file:
        file.seek(before)
        file.write(bytes(4_096))
    shard.open()
    assert shard.states(["m0", "m1"]) == [(OPEN, False)] * 2
    assert shard.tags(["m0"]) == tags
    assert shard.open_offsets == [0, 1]


@pytest.mark.parametrize("damage", ["missing", "flipped"])
def test_op_record_without_its_real_record_ends_nothing(shard: HalfShard, damage: str) -> None:
    shard.prepare("m0")
    shard.stage({"m0": COMMIT})
    batch = shard.store.take()
    assert batch is not None
    ((position, buffers),) = batch.runs
    data = bytearray(b"".join(bytes(one) for one in buffers))
    size = _sizes(bytes(data))[0]
    if damage == "missing":
        data[8:size] = bytes(size - 8)
    else:
        data[100] ^= 1
    shard.crash()
    with log_file(shard).open("r+b") as file:
        file.seek(position)
        file.write(data)
    shard.open()
    assert shard.states(["m0"]) == [(OPEN, False)]
    assert shard.open_offsets == [0]
    (result,) = shard.end({"m0": COMMIT})
    assert (result.state, result.duplicate) == (COMMITTED, False)
