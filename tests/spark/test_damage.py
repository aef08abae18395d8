"""Damage after a checkpoint, which the snapshot does not read: it is reported, and the rest is computed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from duetime import AsyncProducer, Message
from duetime_core.testing import Cluster
from duetime_format.names import SCHEDULE_TOPIC
from duetime_format.units import UNIT
from duetime_spark.moment import take_moment
from duetime_spark.running import JobOptions, run
from pyspark.sql import SparkSession

COUNT = 40
LEVEL = 2
ENTRY = 17
SEGMENT, QUEUE = "commitlog/00000000000000000000", f"consumequeue/{SCHEDULE_TOPIC}/{LEVEL - 1}"


@pytest.fixture
async def store(tmp_path: Path) -> Path:
    """Stopped cleanly: its checkpoint is behind everything."""
    async with (
        Cluster(tmp_path, delay_levels="1s 1h", store_settings={"segment_bytes": 1 << 20}) as cluster,
        AsyncProducer(cluster.address) as producer,
    ):
        await producer.send_many([Message("orders", bytes(100), level=LEVEL) for _ in range(COUNT)])
    return tmp_path / "store-0"


def entry(root: Path) -> tuple[int, int]:
    """Position and size of the record of entry ENTRY."""
    units = (root / QUEUE / f"{0:020d}").read_bytes()
    position, size, _ = UNIT.unpack_from(units, ENTRY * UNIT.size)
    return position, size


def overwrite(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def body(root: Path) -> dict[str, Any]:
    position, size = entry(root)
    overwrite(root / SEGMENT, position + 100, b"\xff")
    return {"shard": 0, "path": SEGMENT, "position": position, "size": size}


def head(root: Path) -> dict[str, Any]:
    position, size = entry(root)
    overwrite(root / SEGMENT, position, bytes(48))
    return {"shard": 0, "path": SEGMENT, "position": position, "size": size}


def result(spark: SparkSession, job: str, root: Path, *, is_strict: bool = False) -> dict[str, Any]:
    return run(spark, JobOptions(job, is_strict=is_strict), take_moment([str(root)])).to_dict()


def without_words(findings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    assert all(one["words"] for one in findings)
    return [{name: one[name] for name in one if name != "words"} for one in findings]


@pytest.mark.proof
@pytest.mark.parametrize("damage", [body, head])
def test_damaged_record_is_reported(spark: SparkSession, store: Path, damage: Callable[[Path], dict[str, Any]]) -> None:
    assert take_moment([str(store)]).findings == []
    assert result(spark, "backlog", store, is_strict=True)["findings"] == []
    expected = damage(store)
    assert take_moment([str(store)]).findings == []
    backlog = result(spark, "backlog", store, is_strict=True)
    assert expected in without_words(backlog["findings"])
    assert backlog["pending_count"] == COUNT
    assert without_words(result(spark, "audit", store)["findings"]) == [expected]
    assert without_words(result(spark, "lateness", store)["findings"]) == [expected]


def test_backlog_reports_entries_with_unreadable_records(spark: SparkSession, store: Path) -> None:
    position, _ = entry(store)
    overwrite(store / QUEUE / f"{0:020d}", ENTRY * UNIT.size, (position + 7).to_bytes(8, "big"))
    expected = {"shard": 0, "path": QUEUE, "position": ENTRY * UNIT.size, "size": UNIT.size}
    found = result(spark, "backlog", store)
    assert without_words(found["findings"]) == [expected]
    assert f"entry {ENTRY} names no readable record" in found["findings"][0]["words"]
    assert found["pending_count"] == COUNT
    assert {row["topic"]: row["count"] for row in found["pending"]} == {"orders": COUNT - 1, None: 1}
