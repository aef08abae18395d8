"""The published offset table, and a store's contradictions of it."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from duetime_core.metadata import Database, DelayOffsetModel, upgrade
from duetime_scheduler.offsets import LaneOffsets, OffsetTable, contradiction, read_offsets

from tests.scheduler.conftest import Bench

LANE = LaneOffsets(shard=0, level=1, next_offset=50, min_offset=10, max_offset=90)


@pytest.mark.parametrize(
    ("published", "fault"),
    [
        (9, "below the lane's min"),
        (10, ""),
        (49, ""),
        (50, ""),
        (51, "ahead of the watermark"),
        (90, "ahead of the watermark"),
        (91, "above the lane's max"),
    ],
)
def test_contradictions_of_published_offsets(published: int, fault: str) -> None:
    assert contradiction(published, LANE) == fault


@pytest.fixture
async def database(empty_database_url: str) -> AsyncIterator[Database]:
    await asyncio.to_thread(upgrade, empty_database_url)
    database = Database(empty_database_url)
    yield database
    await database.stop()


async def row(database: Database, level: int = 1) -> tuple[int, int, int, int, str] | None:
    found = await database.run(lambda session: session.get(DelayOffsetModel, (0, level)))
    if found is None:
        return None
    return found.next_offset, found.min_offset, found.max_offset, found.published_at_ms, found.published_by


async def publish_wrong(database: Database, next_offset: int) -> None:
    wrong = DelayOffsetModel(
        shard=0,
        level=1,
        next_offset=next_offset,
        min_offset=0,
        max_offset=0,
        published_at_ms=1,
        published_by="earlier",
    )
    await database.run(lambda session: session.add(wrong))


async def test_only_lanes_held_are_published(database: Database) -> None:
    other = LaneOffsets(0, 2, 5, 0, 7)
    assert await OffsetTable(database, "me").publish([LANE, other], {(0, 1)}, 123) == 0
    assert await row(database) == (50, 10, 90, 123, "me")
    assert await row(database, 2) is None


async def test_row_that_the_store_contradicts_is_corrected_and_counted(database: Database) -> None:
    await publish_wrong(database, 5_000)
    assert await OffsetTable(database, "me").publish([LANE], {(0, 1)}, 123) == 1
    assert await row(database) == (50, 10, 90, 123, "me")


async def test_row_of_the_past_is_no_contradiction(database: Database) -> None:
    await publish_wrong(database, 20)
    assert await OffsetTable(database, "me").publish([LANE], {(0, 1)}, 123) == 0
    assert await row(database) == (50, 10, 90, 123, "me")


async def test_lane_that_comes_back_is_compared_again(database: Database) -> None:
    table = OffsetTable(database, "me")
    await table.publish([LANE], {(0, 1)}, 1)
    await table.publish([], set(), 2)

    def spoil(session) -> None:
        session.get_one(DelayOffsetModel, (0, 1)).next_offset = 77

    await database.run(spoil)
    assert await table.publish([LANE], {(0, 1)}, 3) == 1


async def test_offsets_are_read_from_the_store(bench: Bench) -> None:
    await bench.send("A", "B", level=2)
    assert await read_offsets(bench.stub, 0, 5.0) == [
        LaneOffsets(0, 1, 0, 0, 0),
        LaneOffsets(0, 2, 0, 0, 2),
        LaneOffsets(0, 1000, 0, 0, 0),
    ]
