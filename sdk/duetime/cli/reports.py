"""`duetime reports`: the latest results of Spark's jobs, as figures."""

from typing import Any

import typer
from duetime_format.printing import echo

from duetime.cli.gateway import call
from duetime.cli.options import Json, Server, watched
from duetime.cli.output import about, iso, local, moment_or_none, now_ms, print_json, print_table, size
from duetime.v1 import backlog_pb2
from duetime.v1 import reports_pb2 as pb

_COLUMNS = ["job", "read", "age", "found"]
_LATENESS = (
    *("late_ms", "count", "p50_ms", "p99_ms", "p999_ms", "max_ms", "early_count", "late_count"),
    *("late_accept", "late_scan", "late_consumer", "undated_count"),
)
_PROOF = ("accepted", "expired", "pending", "restored", "dead", "cancelled", "replaced", "missing", "early")
_TRANSACTIONS = ("accepted", "expired", "open", "committed", "rolled_back", "given_up", "ended")
_Origin = backlog_pb2.BacklogReport | pb.ReportOrigin


@watched
def reports(server: Server = None, as_json: Json = False) -> None:
    """Show the latest results of Spark's jobs.

    Shows the latest reports of `duetime spark backlog`, `lateness` and `audit` with --database-url. Backlog and audit
    come with the current live counters: drift is the difference, allowing for messages that came and went since; 0 is
    right. For the rows of the backlog: `duetime backlog --spark`.

    \b
    Examples:
      duetime reports
      duetime reports --json | jq 'select(.job == "audit").is_proven'
    """
    found: pb.GetReportsResponse = call(server, "GetReports", pb.GetReportsRequest())
    if as_json:
        for one in _objects(found):
            print_json(one)
    else:
        _print(found)
    for shard in found.unreachable_shards:
        echo(f"duetime: shard {shard} does not answer: the drift omits it", err=True)
    if found.unreachable_shards:
        raise typer.Exit(1)


def _print(found: pb.GetReportsResponse) -> None:
    rows = []
    if found.HasField("backlog"):
        report = found.backlog.report
        words = f"{report.pending_count:,} pending ({size(report.pending_bytes)}), {report.overdue_count:,} overdue"
        rows.append(_row("backlog", report, f"{words}; {_drift(found.backlog)}"))
    if found.HasField("lateness"):
        late = found.lateness
        words = f"{late.count:,} delivered, p50 {late.p50_ms:,} ms, p99 {late.p99_ms:,} ms, at most {late.max_ms:,} ms"
        rows.append(_row("lateness", late.origin, f"{words}; {late.late_count:,} late, {late.early_count:,} early"))
    if found.HasField("audit"):
        audit = found.audit
        words = "proven" if audit.is_proven else "NOT PROVEN"
        words += f": {audit.accepted:,} accepted, {audit.restored:,} delivered, {audit.missing:,} missing"
        rows.append(_row("audit", audit.origin, f"{words}; {_drift(audit)}"))
    if rows:
        print_table(_COLUMNS, rows)
    else:
        echo("no report exists yet: `duetime spark audit STORES --database-url URL` writes one")
    for kind, count in sorted(found.audit.violations.items()):
        echo(f"audit: violations, {kind}: {count:,}")
    for name, origin in (("lateness", found.lateness.origin), ("audit", found.audit.origin)):
        if origin.damage_count:
            echo(f"{name}: damaged places skipped: {origin.damage_count:,}")


def _row(job: str, origin: _Origin, words: str) -> tuple[str, ...]:
    taken_ms = max((one.at_ms for one in origin.snapshots), default=0)
    age = about(max(0, now_ms() - taken_ms)) if taken_ms else "-"
    return job, local(moment_or_none(taken_ms)), age, words


def _drift(found: backlog_pb2.GetBacklogReportResponse | pb.AuditReport) -> str:
    return f"now {found.live_count:,}, drift {found.drift:,}"


def _objects(found: pb.GetReportsResponse) -> list[dict[str, Any]]:
    """The reports for machines. Names are those of the contract; times are text."""
    made: list[dict[str, Any]] = []
    if found.HasField("backlog"):
        report = found.backlog.report
        figures = {name: getattr(report, name) for name in ("pending_count", "pending_bytes", "overdue_count")}
        figures |= {"overdue_by_ms": report.overdue_by_ms, "next_due_at": iso(moment_or_none(report.next_due_at_ms))}
        made.append({**_head("backlog", report), **figures, **_live(found.backlog)})
    if found.HasField("lateness"):
        late = found.lateness
        made.append({**_head("lateness", late.origin), **{name: getattr(late, name) for name in _LATENESS}})
    if found.HasField("audit"):
        audit = found.audit
        proof = {"is_proven": audit.is_proven, **{name: getattr(audit, name) for name in _PROOF}}
        proof["violations"] = dict(sorted(audit.violations.items()))
        proof["transactions"] = {name: getattr(audit.transactions, name) for name in _TRANSACTIONS}
        made.append({**_head("audit", audit.origin), **proof, **_live(audit)})
    return [{**one, "unreachable_shards": list(found.unreachable_shards)} for one in made]


def _head(job: str, origin: _Origin) -> dict[str, Any]:
    head = {
        "job": job,
        "created_at": iso(moment_or_none(origin.created_at_ms)),
        "sources": list(origin.sources),
        "snapshot_id": origin.snapshot_id,
        "snapshots": [
            {"shard": one.shard, "position": one.position, "at": iso(moment_or_none(one.at_ms))}
            for one in origin.snapshots
        ],
    }
    return head if isinstance(origin, backlog_pb2.BacklogReport) else {**head, "damage_count": origin.damage_count}


def _live(found: backlog_pb2.GetBacklogReportResponse | pb.AuditReport) -> dict[str, int]:
    return {"live_count": found.live_count, "drift": found.drift}
