"""Directories of a store that runs: read and checked while it sends, restores and cleans."""

import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from duetime_format.levels import DEFAULT_DELAY_LEVELS, DelayLevels
from duetime_shard import shard as state
from duetime_store.offline.summary import summary
from duetime_store.offline.units import lines
from duetime_store.offline.verify import verify

from tests.store.conftest import MIB, sent
from tests.store.test_retention import HOUR_MS, Shard

LEVELS = DelayLevels.parse(DEFAULT_DELAY_LEVELS)


@pytest.fixture
async def shard(tmp_path: Path) -> AsyncIterator[Shard]:
    """With 40 messages pending for an hour, whose segment has left."""
    async with Shard(tmp_path) as shard:
        await shard.put(*(sent(f"P{number}", level=2) for number in range(40)))
        await shard.fill(2_500)
        await shard.expire()
        assert shard.segments[0] > 0
        yield shard


def root(shard: Shard) -> Path:
    return shard.settings.data_dir


async def test_running_store_that_has_cleaned_is_sound(shard: Shard) -> None:
    report = verify(root(shard), LEVELS)
    assert report.damages == []
    assert report.records > 500


async def test_pending_messages_are_their_copies(shard: Shard) -> None:
    read = state.read(root(shard), LEVELS)
    assert summary(read)["pendingPerDelayLevel"]["2"] == 40
    lane = list(lines(read, "SCHEDULE_TOPIC_XXXX"))
    assert len(lane) == 40
    assert not any('"damage"' in line for line in lane)


async def test_queues_made_from_the_log_name_the_copies(shard: Shard, tmp_path: Path) -> None:
    before = list(lines(state.read(root(shard), LEVELS), "SCHEDULE_TOPIC_XXXX"))
    copy = tmp_path / "copy"
    shutil.copytree(root(shard), copy)
    shutil.rmtree(copy / "consumequeue")
    assert list(lines(state.read(copy, LEVELS), "SCHEDULE_TOPIC_XXXX")) == before


async def test_restored_copies_that_are_still_in_the_log_are_no_damage(shard: Shard) -> None:
    shard.clock.move(HOUR_MS)
    assert len(await shard.drain()) == 40
    assert verify(root(shard), LEVELS).damages == []


def take_front(shard: Shard) -> Callable[[int], None]:
    """Deletes the first file of the log after the first read."""

    def take(_: int) -> None:
        for path in sorted((root(shard) / "commitlog").iterdir())[:-1]:
            path.unlink()

    return take


async def test_files_deleted_during_a_check_are_no_damage(shard: Shard) -> None:
    await shard.fill(3_000)
    before = len(shard.segments)
    assert verify(root(shard), LEVELS, take_front(shard)).damages == []
    assert len(shard.segments) == 1 < before


async def test_files_deleted_during_a_scan_are_missing(shard: Shard) -> None:
    await shard.fill(3_000)
    read = state.read(root(shard), LEVELS, take_front(shard))
    assert read.damaged == []
    assert read.min_position == shard.segments[0] * MIB
    assert not any('"damage"' in line for line in lines(read, "noise"))


async def test_lost_copy_is_reported(shard: Shard) -> None:
    read = state.read(root(shard), LEVELS)
    position, size, _ = next(read.queues["SCHEDULE_TOPIC_XXXX", 1].read())[1][7].tolist()
    path = root(shard) / "commitlog" / f"{position // MIB * MIB:020d}"
    with path.open("r+b") as file:
        file.seek(position % MIB)
        file.write(bytes(size))
    found = [(d.message.topic, d.message.queueOffset) for d in verify(root(shard), LEVELS).damages]
    assert ("SCHEDULE_TOPIC_XXXX", 7) in found
    assert all(topic == "SCHEDULE_TOPIC_XXXX" for topic, _ in found)
