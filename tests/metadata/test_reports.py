"""Reports of analysis jobs: one a snapshot, the newest snapshot's first, the oldest forgotten, none too large."""

import asyncio
import json
from typing import Any

import pytest
from duetime_core.errors import InvalidArgument, StartupError
from duetime_core.metadata import Database, JobReport, JobReportTable, ShardMoment, reports, upgrade
from duetime_core.metadata.models import BacklogReportModel
from sqlalchemy import func, select


def report(snapshot: int = 1, job: str = "backlog", **fields: Any) -> JobReport:
    values = {
        "created_at_ms": 5_000,
        "sources": ("file:///data/store", "grpc://gateway:9800"),
        "snapshots": (ShardMoment(0, 4_096, snapshot), ShardMoment(1, 2**40, snapshot - 1)),
        "summary": {"pending_count": snapshot, "pending": [{"topic": "b\u00fccher", "count": 2}]},
    }
    return JobReport(job, f"s{snapshot}", **{**values, **fields})


@pytest.fixture
async def database(empty_database_url: str):
    await asyncio.to_thread(upgrade, empty_database_url)
    database = Database(empty_database_url)
    await database.start()
    yield database
    await database.stop()


async def count(database: Database) -> int:
    query = select(func.count()).select_from(BacklogReportModel)
    return await database.run(lambda session: session.scalar(query)) or 0


async def test_report_is_read_as_it_was_written(database: Database) -> None:
    table = JobReportTable(database)
    assert await table.newest("backlog") is None
    assert await table.newest_key("backlog") is None
    number = await table.put(report())
    assert await table.newest("backlog") == report()
    assert await table.newest_key("backlog") == (number, 5_000)
    assert await table.newest("audit") is None


async def test_job_that_is_run_again_replaces_its_report_of_the_snapshot(database: Database) -> None:
    table = JobReportTable(database)
    number = await table.put(report(1))
    again = report(1, created_at_ms=9_000, summary={"pending_count": 7})
    assert await table.put(again) == number
    assert await table.newest("backlog") == again
    assert await table.newest_key("backlog") == (number, 9_000)
    await table.put(report(1, job="audit"))
    assert await count(database) == 2


async def test_newest_is_the_newest_snapshot_and_not_the_last_that_was_written(database: Database) -> None:
    table = JobReportTable(database)
    await table.put(report(200))
    await table.put(report(100, created_at_ms=9_000))
    assert await table.newest("backlog") == report(200)


async def test_oldest_are_forgotten_job_by_job(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "KEPT_COUNT", 3)
    table = JobReportTable(database)
    await table.put(report(1, job="audit"))
    for snapshot in (5, 3, 4, 2, 6):
        await table.put(report(snapshot))
    kept = select(BacklogReportModel.snapshot_id).where(BacklogReportModel.job == "backlog")
    assert set(await database.run(lambda session: session.scalars(kept).all())) == {"s4", "s5", "s6"}
    assert await table.newest("audit") == report(1, job="audit")


async def test_writers_at_once_leave_one_report(empty_database_url: str) -> None:
    await asyncio.to_thread(upgrade, empty_database_url)
    keeping = [asyncio.to_thread(reports.keep, empty_database_url, report(created_at_ms=n)) for n in range(4)]
    assert len(set(await asyncio.gather(*keeping))) == 1


async def test_too_long_values_are_refused(database: Database) -> None:
    large = report(job="j" * 65, summary={"x": "x" * reports.SUMMARY_BYTES_MAX})
    with pytest.raises(InvalidArgument, match="job: 65 characters are not within 1 and 64"):
        await JobReportTable(database).put(large)
    with pytest.raises(InvalidArgument, match="summary: 1048584 bytes are more than 1048576"):
        await JobReportTable(database).put(report(summary=large.summary))
    assert await count(database) == 0


def test_database_without_a_schema_is_reported_in_one_line(empty_database_url: str) -> None:
    with pytest.raises(StartupError, match=r"does not exist|schema is missing"):
        reports.keep(empty_database_url, report())


def result(topics: int) -> dict[str, Any]:
    pending = [
        {"shard": 0, "level": 1 + n % 2, "topic": f"topic-{n}", "count": n, "bytes": n * 100, "next_due_at_ms": None}
        for n in range(topics)
    ]
    return {
        "pending_count": sum(row["count"] for row in pending),
        "lanes": [{"shard": 0, "level": level, "pending_count": 9} for level in (1, 2, 3)],
        "pending": pending,
        "due_minutes": [{"at_ms": at, "level": n, "count": 1, "bytes": 10} for at in (60_000, 0) for n in (1, 2)],
        "due_hours": [],
    }


def test_condensed_result_keeps_all_that_fits() -> None:
    made = reports.condensed(result(5))
    assert (made["pending"], made["pending_left_out"]) == (result(5)["pending"], 0)
    assert made["due_minutes"] == [{"at_ms": 0, "count": 2, "bytes": 20}, {"at_ms": 60_000, "count": 2, "bytes": 20}]
    assert [lane["counted"] for lane in made["lanes"]] == [0 + 2 + 4, 1 + 3, 0]


def test_condensed_result_leaves_out_the_smallest_topics_and_says_so() -> None:
    whole = result(20_000)
    made = reports.condensed(whole)
    kept = len(made["pending"])
    assert len(json.dumps(made, separators=(",", ":"))) <= reports.SUMMARY_BYTES_MAX
    assert 8_000 < kept < 20_000
    assert made["pending_left_out"] == 20_000 - kept
    assert [row["count"] for row in made["pending"]] == list(range(20_000 - kept, 20_000))
    assert sum(lane["counted"] for lane in made["lanes"]) == whole["pending_count"]


def test_result_that_does_not_fit_without_its_topics_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="are more than 100"):
        reports.condensed(result(5), 100)
