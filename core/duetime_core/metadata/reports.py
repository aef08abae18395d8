"""Reports of analysis jobs: written by the jobs, read by gateways.

A job has one report per snapshot: writing again replaces it, so a job may be repeated. The latest 1,000 of each job are
kept. The latest report is the one with the latest snapshot, regardless of the time of writing.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from duetime_core.errors import InvalidArgument, Violation
from duetime_core.metadata.database import Database
from duetime_core.metadata.models import JOB_CHARS_MAX, SNAPSHOT_ID_CHARS_MAX, BacklogReportModel

SUMMARY_BYTES_MAX = 1024 * 1024
KEPT_COUNT = 1_000
BACKLOG, LATENESS, AUDIT = "backlog", "lateness", "audit"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ShardMoment:
    """The position up to which a shard's log was read, and its last record's store time."""

    shard: int
    position: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class JobReport:
    """A job's report; `summary` is its result as a JSON object, at most 1 MiB of text (`condensed`)."""

    job: str
    snapshot_id: str
    created_at_ms: int
    sources: tuple[str, ...]
    snapshots: tuple[ShardMoment, ...]
    summary: Mapping[str, Any]

    @property
    def snapshot_at_ms(self) -> int:
        return max((one.at_ms for one in self.snapshots), default=0)


class JobReportTable:
    """The table of reports."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def put(self, report: JobReport) -> int:
        """Stores a report. Returns its number, which is the same for repeated writes of a job and a snapshot.

        Raises:
            InvalidArgument: a name or the summary is too long.
            Unavailable: the database does not answer.
        """
        values = _columns(report)

        def work(session: Session) -> int:
            row = session.scalar(
                select(BacklogReportModel).filter_by(job=report.job, snapshot_id=report.snapshot_id).with_for_update()
            )
            if row is None:
                row = BacklogReportModel(job=report.job, snapshot_id=report.snapshot_id)
                session.add(row)
            for name, value in values.items():
                setattr(row, name, value)
            session.flush()
            _forget_old(session, report.job)
            return row.id

        return await self._database.run(work)

    async def newest(self, job: str) -> JobReport | None:
        """The report on the latest snapshot; None: the job has none. Raises: Unavailable."""
        row = await self._database.run(lambda session: session.scalar(_newest_first(job).limit(1)))
        return None if row is None else _report(row)

    async def newest_key(self, job: str) -> tuple[int, int] | None:
        """A key that changes whenever `newest` does: its number and time of writing. Raises: Unavailable."""
        columns = BacklogReportModel.id, BacklogReportModel.created_at_ms
        query = _newest_first(job).with_only_columns(*columns).limit(1)
        row = await self._database.run(lambda session: session.execute(query).first())
        return None if row is None else (row[0], row[1])


def keep(database_url: str, report: JobReport) -> int:
    """`JobReportTable.put` for callers without an event loop, such as a Spark driver.

    Raises:
        StartupError: the database does not answer, or has another schema.
        InvalidArgument: a name or the summary is too long.
        Unavailable: the database stopped answering.
    """

    return asyncio.run(_with(database_url, lambda database: JobReportTable(database).put(report)))


def check(database_url: str) -> None:
    """Checks before a long job that its report can be stored. Raises: StartupError."""
    asyncio.run(_with(database_url, lambda database: JobReportTable(database).newest_key(BACKLOG)))


async def _with(database_url: str, work: Callable[[Database], Awaitable[T]]) -> T:
    database = Database(database_url)
    try:
        await database.start()
        return await work(database)
    finally:
        await database.stop()


def condensed(result: Mapping[str, Any], bytes_max: int = SUMMARY_BYTES_MAX) -> dict[str, Any]:
    """The result of the job `backlog`, reduced to fit: due counts are summed over levels; of too many `pending` rows
    those with the most messages are kept, and `pending_left_out` counts the others; `lanes` have the sum of all their
    rows in `counted`.

    Raises:
        InvalidArgument: it does not fit without them.
    """
    summary = dict(result)
    for name in ("due_minutes", "due_hours"):
        summary[name] = _over_levels(result[name])
    counted: Counter[tuple[int, int]] = Counter()
    for row in result["pending"]:
        counted[row["shard"], row["level"]] += row["count"]
    summary["lanes"] = [{**lane, "counted": counted[lane["shard"], lane["level"]]} for lane in result["lanes"]]
    summary |= {"pending": [], "pending_left_out": len(result["pending"])}
    room = bytes_max - len(_json(summary))
    kept = []
    for place, row in sorted(enumerate(result["pending"]), key=lambda one: -one[1]["count"]):
        room -= len(_json(row)) + 1
        if room < 0:
            break
        kept.append((place, row))
    summary["pending"] = [row for _, row in sorted(kept, key=lambda one: one[0])]
    summary["pending_left_out"] -= len(kept)
    _check_size(_json(summary), bytes_max)
    return summary


def _over_levels(dues: list[dict[str, Any]]) -> list[dict[str, Any]]:
    sums: dict[int, list[int]] = {}
    for due in dues:
        found = sums.setdefault(due["at_ms"], [0, 0])
        found[0] += due["count"]
        found[1] += due["bytes"]
    return [{"at_ms": at_ms, "count": count, "bytes": size} for at_ms, (count, size) in sorted(sums.items())]


def _columns(report: JobReport) -> dict[str, Any]:
    found = [
        Violation(name, f"{len(value)} characters are not within 1 and {limit}")
        for name, value, limit in (
            ("job", report.job, JOB_CHARS_MAX),
            ("snapshot_id", report.snapshot_id, SNAPSHOT_ID_CHARS_MAX),
        )
        if not 1 <= len(value) <= limit
    ]
    if found:
        raise InvalidArgument(found)
    summary = _json(report.summary)
    _check_size(summary, SUMMARY_BYTES_MAX)
    return {
        "snapshot_at_ms": report.snapshot_at_ms,
        "created_at_ms": report.created_at_ms,
        "sources": _json(report.sources),
        "snapshots": _json([asdict(one) for one in report.snapshots]),
        "summary": summary,
    }


def _report(row: BacklogReportModel) -> JobReport:
    return JobReport(
        row.job,
        row.snapshot_id,
        row.created_at_ms,
        tuple(json.loads(row.sources)),
        tuple(ShardMoment(**one) for one in json.loads(row.snapshots)),
        json.loads(row.summary),
    )


def _forget_old(session: Session, job: str) -> None:
    kept = _newest_first(job).with_only_columns(BacklogReportModel.id).limit(KEPT_COUNT)
    session.execute(
        delete(BacklogReportModel).where(BacklogReportModel.job == job, BacklogReportModel.id.not_in(kept)),
        execution_options={"synchronize_session": False},
    )


def _newest_first(job: str) -> Any:
    order = BacklogReportModel.snapshot_at_ms.desc(), BacklogReportModel.id.desc()
    return select(BacklogReportModel).where(BacklogReportModel.job == job).order_by(*order)


def _check_size(summary: str, bytes_max: int) -> None:
    size = len(summary)
    if size > bytes_max:
        raise InvalidArgument([Violation("summary", f"{size} bytes are more than {bytes_max}")])


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
