"""Messages for any time, cancelled and replaced ones, as snapshots and tables have them: against the store itself."""

import random
from pathlib import Path

import numpy as np
import pytest
from duetime_format import ends, record
from duetime_format.levels import DelayLevels
from duetime_format.names import CANCELLED_TOPIC
from duetime_format.record import Record, encode
from duetime_format.units import UNIT_TYPE, dues_of
from duetime_shard.disk import LocalFiles
from duetime_spark.decoding.decode import Decoder
from duetime_spark.shards.snapshot import ShardImage, ShardSnapshot, take_snapshot
from duetime_spark.tables import ends as table_of_ends
from duetime_spark.tables import pending, schemas
from duetime_spark.tables.filters import Bounds, RowFilter

from tests.store.conftest import HandClock, sent, timer
from tests.store.conftest import Shard as Store
from tests.store.test_timers import restore_due
from tests.store.timer_log import START_MS, TimerLog

LEVELS = DelayLevels.parse("1s 5s")
LANE = 1_000


def rows_of(root: Path, table: str = "pending", rows: int = 50) -> list[dict[str, object]]:
    files = LocalFiles(root)
    snapshot = ShardSnapshot.from_dict(take_snapshot(files, LEVELS).to_dict())
    plan = table_of_ends.plan if table == "ends" else lambda *given: pending.plan(*given, rows)
    tasks = plan([ShardImage(files, snapshot)], schemas.SCHEMAS[table], RowFilter())
    return [row for task in tasks for found in task.batches() for row in found.to_pylist()]


def waiting(store: Store) -> set[tuple[int, int, int]]:
    """Lane, entry and due time of the store's pending messages."""
    found = set()
    for lane in store.store.lanes:
        entries = np.arange(lane.queue.min_offset, lane.queue.max_offset)
        units = lane.units(entries) if len(entries) else np.empty(0, UNIT_TYPE)
        gone = lane.progress().gone(entries, units["tags"].astype(np.int64))
        dues = dues_of(units["tags"].astype(np.int64))
        found |= {(lane.number, int(entry), int(due)) for entry, due in zip(entries[~gone], dues[~gone], strict=True)}
    return found


@pytest.mark.parametrize("seed", range(3))
def test_pending_agrees_with_the_store(seed: int, tmp_path: Path) -> None:
    """Sent in any order of due times, restored, cancelled, with and without a checkpoint in between."""
    dice, clock = random.Random(seed), HandClock()
    store = Store(tmp_path / "store", clock, delay_levels="1s 5s", timer_lanes=2)
    for _ in range(12):
        batch = [timer(f"m{dice.random()}", dice.randrange(1, 9_000), lane=dice.randrange(2)) for _ in range(20)]
        store.put(*batch, sent("level", level=2))
        clock.wall_ms += dice.randrange(1_500)
        for number in (LANE, LANE + 1):
            restore_due(store, dice.randrange(1, 30), number)
            lane = store.store.lanes[number]
            if len(head := lane.head(b"", 10).entries):
                cancel(store, number, head[dice.randrange(len(head)) :][:2])
        if dice.random() < 0.4:
            store.checkpoint()
        rows = rows_of(store.root)
        assert {(row["level"], row["offset"], row["due_at_ms"]) for row in rows} == waiting(store)
        assert len(rows) == len(waiting(store))
        assert {row["topic"] for row in rows} <= {"orders"}
        lanes = {lane.level: lane.pending for lane in take_snapshot(LocalFiles(store.root), LEVELS).lanes}
        known = {lane.number: lane.pending_count for lane in store.store.lanes}
        assert lanes == {number: count for number, count in known.items() if number in lanes}
    store.crash()


def cancel(store: Store, number: int, entries: np.ndarray) -> None:
    """As a cancel does: a record with the rows, then the marks."""
    lane = store.store.lanes[number]
    body = ends.encode(number, entries, dues_of(lane.units(entries)["tags"].astype(np.int64)))
    store.put(encode(Record(CANCELLED_TOPIC, 0, body, record.CRC_MARK)))
    lane.stage_cancel(entries)
    lane.publish_cancel(entries)


def test_cancels_are_rows_of_a_table(tmp_path: Path) -> None:
    log = TimerLog(tmp_path / "store")
    for number in range(3):
        log.timer(f"id{number}", START_MS + number)
    log.deferred("level", 2)
    log.cancelled(LANE, (1, START_MS + 1), (2, START_MS + 2))
    log.cancelled(2, (0, START_MS + 5_000))
    rows = rows_of(log.write(), "ends")
    assert [(row["level"], row["offset"], row["due_at_ms"], row["end"]) for row in rows] == [
        (LANE, 1, START_MS + 1, "cancelled"),
        (LANE, 2, START_MS + 2, "cancelled"),
        (2, 0, START_MS + 5_000, "cancelled"),
    ]


def test_record_that_takes_an_entrys_place_names_it(tmp_path: Path) -> None:
    """As a column of `messages`; one whose user has a property of that name elsewhere names none."""
    log = TimerLog(tmp_path / "store")
    log.timer("a", START_MS + 1)
    log.timer("b", START_MS + 2, replaces=(3, 7, START_MS))
    log.restored("c", LANE, 0, START_MS + 1)
    decoder = Decoder(len(log.data), 1 << 20, columns=("topic", "id", "lane_level", "lane_offset", "lane_due_at_ms"))
    decoder.feed(bytes(log.data), 0)
    found = {
        row["id"]: (row["lane_level"], row["lane_offset"], row["lane_due_at_ms"]) for row in decoder.take().to_pylist()
    }
    assert found == {"a": (None, None, None), "b": (3, 7, START_MS), "c": (LANE, 0, START_MS + 1)}


def test_filters_reach_timer_lanes(tmp_path: Path) -> None:
    log = TimerLog(tmp_path / "store")
    for number in range(6):
        log.timer(f"id{number}", START_MS + 1_000 * number, queue=number % 2)
    files = LocalFiles(log.write())
    shard = ShardImage(files, take_snapshot(files, LEVELS))
    row_filter = RowFilter()
    row_filter.columns["due_at_ms"] = Bounds(low=START_MS + 2_000)
    tasks = pending.plan([shard], schemas.PENDING, row_filter, 2)
    rows = [row for task in tasks for found in task.batches() for row in found.to_pylist()]
    assert sorted(row["due_at_ms"] - START_MS for row in rows) == [2_000, 3_000, 4_000, 5_000]
