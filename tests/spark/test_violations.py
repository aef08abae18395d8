"""The audit finds violations: they are planted by writing them into the files of a store."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from duetime_format import record
from duetime_format.record import Record
from duetime_format.units import UNIT_TYPE
from duetime_spark.moment import take_moment
from duetime_spark.running import JobOptions, run
from pyspark.sql import SparkSession

from tests.spark.log_records import encoded
from tests.spark.reading import walk
from tests.store.conftest import MIB, HandClock, sent
from tests.store.conftest import Shard as Store

COUNT = 60
LEVEL = 1
FIRST_MS = 1_700_000_000_000


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store that has restored all entries of a lane but the last ten. Its checkpoint says so: without it the
    watermark would be found at the first entry that has no copy."""
    store = Store(tmp_path / "store", HandClock())
    store.put(*(sent(f"m{number}", level=LEVEL) for number in range(COUNT)))
    store.clock.wall_ms += 5_000
    store.restore(LEVEL, 0, COUNT - 10)
    store.checkpoint()
    store.crash()
    return store.root


def audit(spark: SparkSession, root: Path) -> dict[str, Any]:
    return run(spark, JobOptions("audit"), take_moment([str(root)])).to_dict()


def restored(root: Path, offset: int) -> Record:
    """The copy of an entry."""
    entries = ((record.find_lane_entry(one.properties), one) for one in walk(root) if one.topic == "orders")
    return next(one for entry, one in entries if entry is not None and entry[1] == offset)


def write(root: Path, position: int, data: bytes) -> None:
    with (root / "commitlog" / f"{position // MIB * MIB:020d}").open("r+b") as file:
        file.seek(position % MIB)
        file.write(data)


def changed(one: Record, **values: Any) -> Record:
    fields = {name: getattr(one, name) for name in Record.__slots__} | values
    return Record(**{**fields, "properties": record.without_crc_mark(fields["properties"])})


def append(root: Path, one: Record) -> int:
    last = list(walk(root))[-1]
    position = last.position + last.size
    write(root, position, encoded(one, position, with_crc=True))
    return position


def twice(root: Path) -> tuple[str, int, str, int]:
    one = restored(root, 7)
    append(root, changed(one, queue_offset=COUNT - 10))
    return "twice", 7, "m7", one.position


def missing(root: Path) -> tuple[str, int, str, int]:
    one = restored(root, 11)
    lane = next(found for found in walk(root) if found.topic != "orders" and found.queue_offset == 11)
    plain = b"DT_ENTRY\x01%d:%d:" % (LEVEL, 11)
    text = one.properties.replace(plain, plain.replace(b"DT_ENTRY", b"XX_ENTRY"))
    write(root, one.position, encoded(changed(one, properties=text, topic="others"), one.position, with_crc=True))
    return "missing", 11, "m11", lane.position


def early(root: Path) -> tuple[str, int, str, int]:
    one = restored(root, 20)
    entry = record.find_lane_entry(one.properties)
    assert entry is not None
    write(root, one.position, encoded(changed(one, stored_at_ms=entry[2] - 1), one.position, with_crc=True))
    return "early", 20, "m20", one.position


def other_due(root: Path) -> tuple[str, int, str, int]:
    """The unit of the lane says another due time than the copy."""
    path = sorted((root / "consumequeue" / "SCHEDULE_TOPIC_XXXX" / str(LEVEL - 1)).iterdir())[0]
    units = np.frombuffer(path.read_bytes(), UNIT_TYPE).copy()
    units["tags"][30] += 1
    path.write_bytes(units.tobytes())
    return "due differs", 30, "m30", restored(root, 30).position


@pytest.mark.proof
@pytest.mark.parametrize("plant", [twice, missing, early, other_due])
def test_planted_violations_are_found(
    spark: SparkSession, root: Path, plant: Callable[[Path], tuple[str, int, str, int]]
) -> None:
    sound = audit(spark, root)
    assert sound["is_proven"], sound["violations"]
    assert (sound["total"]["restored"], sound["total"]["pending"]) == (COUNT - 10, 10)
    kind, offset, name, position = plant(root)
    found = audit(spark, root)
    assert not found["is_proven"]
    assert {kind: count for kind, count in found["violation_counts"].items() if count} == {kind: 1}
    (violation,) = found["violations"]
    told = (violation["kind"], violation["level"], violation["offset"], violation["id"], violation["position"])
    assert told == (kind, LEVEL, offset, name, position)


def test_all_of_them_together_are_found(spark: SparkSession, root: Path) -> None:
    planted = [plant(root) for plant in (twice, missing, early, other_due)]
    damaged = next(one for one in walk(root) if one.topic != "orders" and one.queue_offset == COUNT - 5)
    write(root, damaged.position + 88, bytes([damaged.body[0] ^ 1]))
    found = audit(spark, root)
    assert not found["is_proven"]
    kinds = dict.fromkeys((kind for kind, *_ in planted), 1)
    assert {kind: count for kind, count in found["violation_counts"].items() if count} == kinds
    names = ("kind", "offset", "id", "position")
    assert sorted(tuple(one[name] for name in names) for one in found["violations"]) == sorted(planted)
    assert {one["level"] for one in found["violations"]} == {LEVEL}
    assert [(one["position"], one["size"]) for one in found["findings"]] == [(damaged.position, damaged.size)]
    assert (found["total"]["missing"], found["total"]["pending"]) == (1, 10)
