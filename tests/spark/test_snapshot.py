"""Snapshots against the whole log, read record by record, and against the store itself."""

import asyncio
import json
import pickle
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from duetime_format.lanes import is_timer_lane
from duetime_format.levels import DEFAULT_DELAY_LEVELS, DelayLevels
from duetime_format.names import SCHEDULE_TOPIC
from duetime_format.units import FILLER_SIZE, UNIT, UNIT_TYPE
from duetime_shard import shard as state
from duetime_shard.disk import LocalFiles, ShardFiles
from duetime_spark.shards.files import FsspecFiles, GrpcFiles
from duetime_spark.shards.snapshot import ShardImage, ShardSnapshot, open_shards, take_snapshot, take_snapshots
from duetime_spark.shards.units import window_of
from duetime_spark.tables import pending, schemas
from duetime_spark.tables.filters import RowFilter

from tests.format.golden import unpack
from tests.store.conftest import MIB, HandClock, sent
from tests.store.conftest import Shard as Store
from tests.store.test_promised_recovery import Cut
from tests.store.test_retention import HOUR_MS
from tests.store.test_retention import Shard as Cleaned

LEVELS = DelayLevels.parse(DEFAULT_DELAY_LEVELS)

Units = dict[tuple[str, int], dict[int, tuple[int, int, int]]]


def units_of(files: ShardFiles, snapshot: ShardSnapshot) -> Units:
    """All units that tasks would read, by queue and offset; without fillers."""
    found: Units = {}
    for queue in snapshot.queues:
        rows = found[queue.topic, queue.queue] = {}
        for offsets, units in window_of(queue, queue.min_offset, queue.max_offset).read(files, 1_000):
            for offset, unit in zip(offsets.tolist(), units.tolist(), strict=True):
                assert offset not in rows
                if unit[1] != FILLER_SIZE:
                    rows[offset] = unit
    return found


def assert_is_the_whole_log(root: Path, snapshot: ShardSnapshot, files: ShardFiles | None = None) -> None:
    """The snapshot equals the log."""
    whole = state.read(root, LEVELS)
    queues = {(queue.topic, queue.queue): (queue.min_offset, queue.max_offset) for queue in snapshot.queues}
    assert queues == {key: (queue.min_offset, queue.max_offset) for key, queue in whole.queues.items()}
    assert (snapshot.min_position, snapshot.end) == (whole.min_position, whole.end)
    marks = {level: (lane.watermark, tuple(lane.ahead.tolist())) for level, lane in state.restored(whole).items()}
    assert {lane.level: (lane.watermark, lane.ahead) for lane in snapshot.lanes} == marks
    expected: Units = {}
    for key, queue in whole.queues.items():
        expected[key] = {
            offset: unit
            for offsets, units in queue.read()
            for offset, unit in zip(offsets.tolist(), units.tolist(), strict=True)
        }
    assert units_of(files or LocalFiles(root), snapshot) == expected


def taken(root: Path) -> ShardSnapshot:
    return take_snapshot(LocalFiles(root), LEVELS)


def live_through(store: Store, rng: random.Random, steps: int, *, checkpoints: bool = True) -> None:
    """Sends to topics and lanes, restores, checkpoints."""
    number = 0
    for _ in range(steps):
        step = rng.random()
        store.clock.wall_ms += rng.randrange(2_000)
        if step < 0.5:
            ids = [f"M{number + index}" for index in range(rng.randrange(1, 60))]
            number += len(ids)
            level = rng.choice((0, 0, 1, 2))
            body = b"x" * rng.choice((5, 300, 2_000))
            store.put(*(sent(name, level=level, topic=rng.choice(("orders", "paid")), body=body) for name in ids))
        elif step < 0.8:
            level = rng.choice((1, 2))
            lane = store.store.lanes[level]
            count = min(lane.queue.max_offset - lane.watermark, rng.randrange(1, 40))
            if count > 0:
                store.restore(level, lane.watermark, count)
        elif checkpoints:
            store.checkpoint()


@pytest.mark.parametrize("seed", range(12))
def test_checkpoint_and_tail_equal_the_whole_log(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    store = Store(tmp_path / "store", HandClock())
    for _ in range(4):
        live_through(store, rng, rng.randrange(1, 25))
        snapshot = taken(store.root)
        assert_is_the_whole_log(store.root, snapshot)
        if store.root.joinpath("checkpoint").exists():
            assert not snapshot.is_whole
        if rng.random() < 0.5:
            store.reopen()
    store.crash()


def test_units_that_a_power_cut_took_are_made_from_the_log(tmp_path: Path) -> None:
    store = Store(tmp_path / "store", HandClock())
    live_through(store, random.Random(1), 30)
    store.checkpoint()
    before = {queue: queue.max_offset for queue in store.store.queues.all() if queue.max_offset}
    live_through(store, random.Random(2), 30, checkpoints=False)
    store.crash()
    for queue, kept in before.items():
        for path in queue.directory.iterdir():
            data = bytearray(path.read_bytes())
            first = max(kept * UNIT.size - int(path.name), 0)
            data[first:] = bytes(len(data[first:]))
            path.write_bytes(data)
    snapshot = taken(store.root)
    assert not snapshot.is_whole
    assert any(queue.made_offsets for queue in snapshot.queues)
    assert_is_the_whole_log(store.root, snapshot)
    again = ShardSnapshot.from_dict(json.loads(json.dumps(snapshot.to_dict())))
    assert again == snapshot


def test_record_that_a_killed_start_wrote_again_is_in_its_place(tmp_path: Path) -> None:
    cut = Cut(tmp_path / "store", HandClock())
    cut.put(sent("before"))
    cut.checkpoint()
    cut.fill("AB")
    cut.promise(1, 0, 2)
    cut.fall_due(1, 0, 2)
    cut.put(sent("after"))
    cut.lose_and_kill(cut.places()[1])
    snapshot = taken(cut.root)
    assert not snapshot.is_whole
    assert_is_the_whole_log(cut.root, snapshot)
    assert sorted(units_of(LocalFiles(cut.root), snapshot)["orders", 0]) == [0, 1, 2, 3]


def without_queue(root: Path) -> None:
    shutil.rmtree(root / "consumequeue" / "orders")


def without_last_units(root: Path) -> None:
    path = sorted((root / "consumequeue" / SCHEDULE_TOPIC / "0").iterdir())[-1]
    units = np.frombuffer(path.read_bytes(), UNIT_TYPE).copy()
    units[np.flatnonzero(units["size"])[-5:]] = 0
    path.write_bytes(units.tobytes())


def without_checkpoint(root: Path) -> None:
    (root / "checkpoint").unlink()


def with_a_short_log(root: Path) -> None:
    for path in sorted((root / "commitlog").iterdir())[1:]:
        path.unlink()


@pytest.mark.parametrize("damage", [without_queue, without_last_units, without_checkpoint, with_a_short_log])
def test_checkpoint_that_files_do_not_hold_is_not_trusted(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    store = Store(tmp_path / "store", HandClock())
    live_through(store, random.Random(5), 60)
    store.put(*(sent(f"L{number}", level=1, body=bytes(3_000)) for number in range(600)))
    store.checkpoint()
    store.crash()
    damage(store.root)
    snapshot = taken(store.root)
    assert snapshot.is_whole
    assert_is_the_whole_log(store.root, snapshot)


def test_torn_tail_is_not_in_it(tmp_path: Path) -> None:
    store = Store(tmp_path / "store", HandClock())
    live_through(store, random.Random(3), 20)
    end = store.store.log.end
    store.crash()
    path = store.root / "commitlog" / f"{end // MIB * MIB:020d}"
    with path.open("r+b") as file:
        file.seek(end % MIB)
        file.write(sent("torn")[:-30])
    snapshot = taken(store.root)
    assert snapshot.end == end
    assert_is_the_whole_log(store.root, snapshot)


@pytest.fixture
def memory(tmp_path: Path) -> Callable[[Path], FsspecFiles]:
    """Copies a directory to a file system of fsspec."""

    def copied(root: Path) -> FsspecFiles:
        files = FsspecFiles(f"memory://{tmp_path.name}/store")
        files._fs.put(str(root), f"/{tmp_path.name}/store", recursive=True)
        return files

    return copied


def test_other_file_systems_hold_the_same(tmp_path: Path, memory: Callable[[Path], FsspecFiles]) -> None:
    store = Store(tmp_path / "store", HandClock())
    live_through(store, random.Random(4), 40)
    store.checkpoint()
    live_through(store, random.Random(9), 10, checkpoints=False)
    store.crash()
    files = memory(store.root)
    assert_is_the_whole_log(store.root, take_snapshot(files, LEVELS), files)


def test_shards_with_one_number_get_their_own(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        store = Store(tmp_path / name, HandClock(), shard=1)
        store.put(sent("x"))
        store.crash()
    sources = [str(tmp_path / name) for name in ("a", "b", "c")]
    shards = open_shards(sources)
    assert [shard.snapshot.shard for shard in shards] == [1, 0, 2]
    pinned = open_shards(sources, snapshot=take_snapshots(sources))
    assert [shard.snapshot for shard in pinned] == [shard.snapshot for shard in shards]


# --- stores that run ------------------------------------------------------------------------------------------------


def waits(shard: ShardImage) -> list[dict[str, object]]:
    """The rows of table `pending`."""
    tasks = pending.plan([shard], schemas.PENDING, RowFilter(), 500)
    return [row for task in tasks for batch in task.batches() for row in batch.to_pylist()]


async def test_snapshot_is_right_during_retention(tmp_path: Path) -> None:
    async with Cleaned(tmp_path) as store:
        root = store.settings.data_dir
        for number in range(4):
            await store.put(*(sent(f"P{number}-{index}", level=2) for index in range(50)))
            await store.fill(2_500)
            await store.expire()
            snapshot = taken(root)
            assert not snapshot.is_whole
            assert_is_the_whole_log(root, snapshot)
            lanes = {lane.level: (lane.watermark, lane.max_offset) for lane in snapshot.lanes}
            own = [lane for lane in store.node.store.lanes if not is_timer_lane(lane.number)]
            assert lanes == {lane.number: (lane.watermark, lane.queue.max_offset) for lane in own}
            assert len(waits(ShardImage(LocalFiles(root), snapshot))) == 50 * (number + 1)


async def test_reading_continues_while_the_log_is_deleted(tmp_path: Path) -> None:
    async with Cleaned(tmp_path) as store:
        root = store.settings.data_dir
        await store.put(*(sent(f"P{index}", level=2) for index in range(300)))
        await store.fill(2_500)
        before = ShardImage(LocalFiles(root), taken(root))
        await store.expire()
        assert store.segments[0] > 0
        moved = waits(before)
        assert len(moved) == 300
        assert {row["topic"] for row in moved} == {"orders"}
        store.clock.move(HOUR_MS)
        while await store.drain():
            pass
        await store.fill(3_000)
        await store.expire()
        left = waits(before)
        assert sorted(row["offset"] for row in left) == list(range(300))
        assert len(waits(ShardImage(LocalFiles(root), taken(root)))) == 0


async def test_snapshots_under_traffic_hold_together(tmp_path: Path) -> None:
    async with Cleaned(tmp_path) as store:
        root, done = store.settings.data_dir, asyncio.Event()

        def take_moment() -> int:
            snapshot = taken(root)
            rows = waits(ShardImage(LocalFiles(root), snapshot))
            assert len({(row["level"], row["offset"]) for row in rows}) == len(rows)
            assert len(rows) == sum(lane.pending for lane in snapshot.lanes)
            assert all(row["topic"] == "orders" for row in rows if row["position"] is not None)
            return len(rows)

        async def looks() -> list[int]:
            counts = []
            while not done.is_set():
                counts.append(await asyncio.to_thread(take_moment))
            return counts

        looking = asyncio.create_task(looks())
        for number in range(12):
            await store.put(*(sent(f"P{number}-{index}", level=2) for index in range(40)))
            await store.fill(400)
            if number % 4 == 3:
                await store.expire()
        done.set()
        counts = await looking
        assert counts == sorted(counts)
        assert await asyncio.to_thread(take_moment) == 480


async def test_running_store_gives_the_same_by_export(tmp_path: Path) -> None:
    async with Cleaned(tmp_path) as store:
        root = store.settings.data_dir
        await store.put(*(sent(f"P{index}", level=2) for index in range(300)))
        await store.fill(2_500)
        await store.expire()
        await store.put(*(sent(f"Q{index}", level=1) for index in range(30)))

        def take_moment() -> None:
            (shard,) = open_shards([f"grpc://127.0.0.1:{store.node.port}"])
            assert isinstance(shard.files, GrpcFiles)
            assert_is_the_whole_log(root, shard.snapshot, shard.files)
            local = ShardImage(LocalFiles(root), shard.snapshot)
            assert waits(pickle.loads(pickle.dumps(shard))) == waits(local)
            assert shard.files.content("commitlog/" + "9" * 20) is None
            shard.files.close()

        await asyncio.to_thread(take_moment)


def test_timers_that_are_not_in_the_wheel_yet_are_read_as_those_that_are(tmp_path: Path) -> None:
    root = unpack("rmq-5.3.3-clean", tmp_path)
    before = take_snapshot(LocalFiles(root), LEVELS).timers
    check = root / "config" / "timercheck"
    content = bytearray(check.read_bytes())
    in_wheel = int.from_bytes(content[16:24], "big")
    content[16:24] = (in_wheel - 2).to_bytes(8, "big")
    check.write_bytes(content)
    after = take_snapshot(LocalFiles(root), LEVELS).timers
    assert before is not None
    assert after is not None
    assert set(after.made[1].tolist()) == set(before.made[1].tolist())
