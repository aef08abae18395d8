"""Inputs of tasks: ranges and windows that hold every row once."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from duetime_format.levels import DEFAULT_DELAY_LEVELS, DelayLevels
from duetime_format.names import SCHEDULE_TOPIC
from duetime_shard.disk import LocalFiles
from duetime_spark.shards.snapshot import ShardImage, take_snapshot
from duetime_spark.shards.units import first_at, read_units
from duetime_spark.source import ReadTask
from duetime_spark.tables import messages, pending, queue_entries, schemas
from duetime_spark.tables.filters import RowFilter
from pyspark.sql.datasource import EqualTo, Filter, GreaterThanOrEqual, In, IsNotNull, LessThan, Not

from bench.spark_store import FIRST_MS, TOPICS, make
from tests.store.conftest import MIB

PENDING = 20_000


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> ShardImage:
    root = tmp_path_factory.mktemp("made") / "store"
    make(root, PENDING, segment_bytes=MIB)
    files = LocalFiles(root)
    return ShardImage(files, take_snapshot(files, DelayLevels.parse(DEFAULT_DELAY_LEVELS)))


def read(tasks: Sequence[ReadTask]) -> list[dict[str, object]]:
    return [row for task in tasks for batch in task.batches() for row in batch.to_pylist()]


@pytest.mark.parametrize("rows", [300, 7_000, 1_000_000])
def test_each_pending_entry_is_in_one_task(shard: ShardImage, rows: int) -> None:
    tasks = pending.plan([shard], schemas.PENDING, RowFilter(), rows)
    assert len(tasks) >= min(PENDING // rows, 1)
    found = read(tasks)
    assert len({(row["level"], row["offset"]) for row in found}) == len(found) == PENDING
    assert {row["topic"] for row in found} == set(TOPICS)


def test_a_task_reads_one_stretch_of_the_log(shard: ShardImage) -> None:
    tasks = pending.plan([shard], schemas.PENDING, RowFilter(), 2_000)
    spans = [[row["position"] for row in read([task])] for task in tasks]
    assert all(max(before) < min(behind) for before, behind in pairwise(spans))


def test_the_first_record_at_a_position_is_found(shard: ShardImage) -> None:
    queue = next(one for one in shard.snapshot.queues if one.topic == SCHEDULE_TOPIC)
    low, high = queue.min_offset, queue.max_offset
    places = [int(read_units(shard.files, queue, offset, 1)["position"][0]) for offset in range(low, low + 3)]
    for offset, place in enumerate(places, low):
        found = [first_at(shard.files, queue, low, high, place + by) for by in (-1, 0)]
        assert found == [(offset, place)] * 2
        assert first_at(shard.files, queue, low, high, place + 1)[0] == offset + 1


def test_each_record_is_in_one_task(shard: ShardImage) -> None:
    schema = schemas.chosen("messages", ["position", "size"])
    tasks = messages.plan([shard], schema, RowFilter(), 100_000)
    assert len(tasks) > 20
    found = read(tasks)
    assert len({row["position"] for row in found}) == len(found) == PENDING


@pytest.mark.parametrize(
    "filters",
    [
        [GreaterThanOrEqual(("stored_at_ms",), FIRST_MS + 3_000_000)],
        [EqualTo(("shard",), 7)],
        [LessThan(("position",), 2_000_000), GreaterThanOrEqual(("position",), 1_500_000)],
    ],
)
def test_unneeded_records_are_hardly_read(shard: ShardImage, filters: list[Filter]) -> None:
    schema = schemas.chosen("messages", ["shard", "position", "stored_at_ms"])
    everything = read(messages.plan([shard], schema, RowFilter(), 100_000))
    expected = [row for row in everything if all(_holds(one, row) for one in filters)]
    tasks = messages.plan([shard], schema, RowFilter.of(filters), 100_000)
    assert read(tasks) == expected
    ranges = [behind - first for task in tasks for first, behind in task.ranges]
    assert sum(ranges) <= (len(expected) / PENDING + 0.1) * shard.snapshot.end


def test_unneeded_dues_are_not_read(shard: ShardImage) -> None:
    filters = [LessThan(("due_at_ms",), FIRST_MS + 60_000), In(("level",), (1, 2, 18))]
    found = pending.plan([shard], schemas.chosen("pending", ["level", "due_at_ms"]), RowFilter.of(filters), 100)
    rows = read(found)
    assert {row["level"] for row in rows} == {1, 2}
    assert sum(len(part.window) for task in found for part in task.parts) < len(rows) + 300
    everything = read(pending.plan([shard], schemas.PENDING, RowFilter(), 1_000))
    expected = [row for row in everything if row["level"] in (1, 2, 18) and row["due_at_ms"] < FIRST_MS + 60_000]
    assert len(rows) == len(expected)


@pytest.mark.parametrize(
    ("filters", "kept"),
    [
        ([IsNotNull(("lane_level",))], lambda row: row["lane_level"] is not None),
        ([Not(EqualTo(("topic",), "orders"))], lambda row: row["topic"] != "orders"),
        ([Not(EqualTo(("position",), 7)), IsNotNull(("position",))], lambda row: row["position"] != 7),
    ],
)
def test_unneeded_rows_are_dropped(filters: list[Filter], kept: Callable[[dict[str, object]], bool]) -> None:
    rows: list[dict[str, object]] = [
        {"topic": topic, "lane_level": level, "position": position}
        for position, (topic, level) in enumerate([("orders", 1), ("mail", None), ("orders", None), ("mail", 2)], 6)
    ]
    schema = schemas.chosen("messages", ["topic", "lane_level", "position"])
    found = RowFilter.of(filters).keep(pa.RecordBatch.from_pylist(rows, schema))
    assert found.to_pylist() == [row for row in rows if kept(row)]
    assert 0 < found.num_rows < len(rows)


def test_entries_of_other_queues_are_not_read(shard: ShardImage) -> None:
    row_filter = RowFilter.of([Not(EqualTo(("topic",), SCHEDULE_TOPIC))])
    assert queue_entries.plan([shard], schemas.QUEUE_ENTRIES, row_filter, 1_000) == []
    positions = np.array([6, 7, 8])
    mask = RowFilter.of([Not(EqualTo(("position",), 7))]).mask("position", positions)
    assert mask is not None
    assert mask.tolist() == [True, False, True]


def _holds(one: Filter, row: dict[str, object]) -> bool:
    value = row[one.attribute[0]]
    if isinstance(one, EqualTo):
        return value == one.value
    return value >= one.value if isinstance(one, GreaterThanOrEqual) else value < one.value
