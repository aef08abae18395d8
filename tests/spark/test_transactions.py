"""Transactions in the pipeline: tables of half messages and their ends, and their proof."""

from pathlib import Path
from typing import Any

import pytest
from duetime_format.halves import COMMITTED, ROLLED_BACK, end_tag
from duetime_format.levels import DEFAULT_DELAY_LEVELS, DelayLevels
from duetime_shard import halves
from duetime_shard.disk import LocalFiles
from duetime_shard.shard import read
from duetime_spark.jobs.audit_transactions import (
    COMMITTED_TWICE,
    NO_MESSAGE,
    NOT_COMMITTED,
    TransactionProof,
    TransactionViolation,
)
from duetime_spark.moment import take_moment
from duetime_spark.pages import print_outcome
from duetime_spark.report import page
from duetime_spark.running import JobOptions, run
from duetime_spark.shards.snapshot import ShardImage, ShardSnapshot, take_snapshot
from duetime_spark.tables import schemas, transactions
from duetime_spark.tables.filters import Bounds, RowFilter
from pyspark.sql import SparkSession

from tests.format import golden
from tests.store.half_log import START_MS
from tests.store.test_verify_halves import Scene

LEVELS = DelayLevels.parse(DEFAULT_DELAY_LEVELS)


def rows_of(root: Path, table: str, row_filter: RowFilter | None = None) -> list[dict[str, Any]]:
    files = LocalFiles(root)
    snapshot = ShardSnapshot.from_dict(take_snapshot(files, LEVELS).to_dict())
    plan = transactions.plan if table == "transactions" else transactions.plan_ends
    tasks = plan([ShardImage(files, snapshot)], schemas.SCHEMAS[table], row_filter or RowFilter())
    return [row for task in tasks for found in task.batches() for row in found.to_pylist()]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_table_has_every_half_message_and_its_end(scene: Scene) -> None:
    rows = rows_of(scene.root, "transactions")
    states = ["committed", "rolled back", "given up", "rolled back", "committed", "ended", "committed", "open", "open"]
    assert [row["state"] for row in rows] == states
    assert [row["end_position"] for row in rows] == [*(scene.end[offset][1] for offset in range(7)), None, None]
    assert [row["id"] for row in rows] == [f"id{offset}" for offset in range(9)]
    assert {(row["group"], row["topic"], row["prepared_at_ms"]) for row in rows} == {("g", "orders", START_MS)}


def test_table_is_the_same_without_marks(scene: Scene) -> None:
    known = rows_of(scene.root, "transactions")
    for offset in range(9):
        scene.mark(offset, 116)
    for path in (scene.root / "config").glob("consumerOffset.json*"):
        path.unlink()
    assert rows_of(scene.root, "transactions") == known


def test_transaction_ended_after_the_snapshot_is_open(scene: Scene) -> None:
    scene.mark(8, end_tag(ROLLED_BACK, scene.end_position + 500))
    assert rows_of(scene.root, "transactions")[8]["state"] == "open"


def test_open_ones_alone_are_read(scene: Scene) -> None:
    rows = rows_of(scene.root, "transactions", RowFilter({"state": Bounds(values=frozenset(("open",)))}))
    assert [row["offset"] for row in rows] == [7, 8]


def test_table_of_ends_follows_the_records(scene: Scene) -> None:
    rows = rows_of(scene.root, "transaction_ends")
    assert [(row["offset"], row["end"]) for row in rows] == [
        *((0, "committed"), (0, "committed"), (1, "rolled back"), (2, "given up"), (3, "given up")),
        *((2, "given up"), (3, "given up"), (3, "rolled back"), (4, "committed"), (5, "ended"), (None, "committed")),
    ]
    assert rows[0]["position"] == scene.end[0][1]
    assert (rows[0]["topic"], rows[0]["queue"], rows[0]["queue_offset"]) == ("orders", 0, 0)


@pytest.mark.parametrize("name", golden.NAMES)
def test_brokers_open_transactions_are_those_that_a_store_takes_over(name: str, tmp_path: Path) -> None:
    root = golden.unpack(name, tmp_path)
    expected = halves.of_state(read(root, LEVELS)).open
    rows = rows_of(root, "transactions")
    assert [row["offset"] for row in rows if row["state"] == "open"] == [half.offset for half in expected]
    assert [row["group"] for row in rows if row["state"] == "open"] == [half.group for half in expected]


# --- the audit --------------------------------------------------------------------------------------------------------


def audited(spark: SparkSession, root: Path) -> dict[str, Any]:
    moment = take_moment([str(root)], DEFAULT_DELAY_LEVELS)
    return run(spark, JobOptions("audit"), moment).to_dict()


@pytest.mark.proof
def test_audit_proves_ends_of_transactions(
    spark: SparkSession, scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    found = audited(spark, scene.root)
    proof = TransactionProof(
        0, 9, 0, open=2, committed=3, rolled_back=2, given_up=1, ended=1, violation_count=0, is_proven=True
    )
    assert [TransactionProof(**row) for row in found["transactions"]] == [proof]
    assert found["is_proven"]
    print_outcome("audit", found)
    assert "given up" in capsys.readouterr().out
    assert "Half messages of each shard by their ends" in page(found)


class Twice(Scene):
    """Half message 0 is committed twice."""

    def write(self) -> None:
        self.log.committed(0, ours=True)


def test_audit_names_faults(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scene = Twice(tmp_path)
    scene.mark(4, end_tag(ROLLED_BACK, scene.end[1][1]))
    scene.mark(8, end_tag(COMMITTED, scene.end[1][1] + 1))
    found = audited(spark, scene.root)
    assert not found["is_proven"]
    proof = TransactionProof(
        0, 9, 0, open=1, committed=3, rolled_back=3, given_up=1, ended=1, violation_count=3, is_proven=False
    )
    assert [TransactionProof(**row) for row in found["transactions"]] == [proof]
    violations = [TransactionViolation(**row) for row in found["transaction_violations"]]
    assert sorted(violations, key=lambda one: one.offset) == [
        TransactionViolation(COMMITTED_TWICE, 0, 0, "committed", scene.end[0][1]),
        TransactionViolation(NOT_COMMITTED, 0, 4, "rolled back", scene.end[4][1]),
        TransactionViolation(NO_MESSAGE, 0, 8, "committed", scene.end[1][1] + 1),
    ]
    print_outcome("audit", found)
    assert f"{NO_MESSAGE}: shard 0 half message 8" in capsys.readouterr().out
    assert "Violations of transactions" in page(found)


@pytest.mark.proof
def test_message_that_is_committed_twice_is_named(spark: SparkSession, tmp_path: Path) -> None:
    found = audited(spark, Twice(tmp_path).root)
    assert [(row["kind"], row["offset"]) for row in found["transaction_violations"]] == [(COMMITTED_TWICE, 0)]
    assert not found["is_proven"]
