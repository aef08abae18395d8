"""`duetime backlog --spark`, `duetime reports`: results of Spark's jobs, beside the live counters."""

import json
import time
from typing import Any

import pytest
from duetime.cli.app import run
from duetime.cli.gateway import call
from duetime.cli.output import about, size
from duetime.v1 import gateway_pb2
from duetime_core.metadata import JobReport, ShardMoment, reports

from tests.cli.cluster import Up


@pytest.fixture
def pending(server: str, capsys: pytest.CaptureFixture[str]) -> str:
    """A topic with 3 messages that are due in 30 minutes."""
    for body in "xyz":
        assert run(["send", "billing", body, "--delay", "30m"]) == 0
    capsys.readouterr()
    return "billing"


def test_report_is_shown_beside_the_live_counters(
    cluster: Up, pending: str, capsys: pytest.CaptureFixture[str]
) -> None:
    live_count = sum(lane.pending_count for lane in live_lanes())
    now_ms = time.time_ns() // 1_000_000
    reports.keep(f"sqlite:///{cluster.data / 'metadata.db'}", report(now_ms, live_lanes()))
    assert run(["backlog", "--spark", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["drift"], found["live_count"]) == (0, live_count)
    assert found["pending"][0]["topic"] == "billing"
    assert found["forecast"]["measured_peak_per_s"] == 40
    assert run(["backlog", "--spark"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith(" old, from file:///store")
    assert "falling due: 3 within 10 minutes, 3 within hour" in lines[2]
    assert lines[4] == f"live counters now: {live_count:,} pending; drift 0"
    counts = [int(line.split()[3].replace(",", "")) for line in lines[7:]]
    assert sum(counts) == live_count


def test_figures_of_all_jobs_are_shown(cluster: Up, pending: str, capsys: pytest.CaptureFixture[str]) -> None:
    now_ms = time.time_ns() // 1_000_000
    url, moments = f"sqlite:///{cluster.data / 'metadata.db'}", (ShardMoment(0, 1, now_ms),)
    counted = [
        {"shard": lane.shard, "level": lane.level, "watermark": lane.watermark, "max_offset": lane.max_offset,
         "counted": lane.pending_count}
        for lane in live_lanes()
    ]  # fmt: skip
    live_count = sum(lane["counted"] for lane in counted)
    reports.keep(url, report(now_ms, live_lanes()))
    late = {"late_ms": 100, "count": 2_000, "p50_ms": 3, "p99_ms": 40, "max_ms": 50, "late_count": 1}
    reports.keep(url, JobReport("lateness", "s1", now_ms, ("file:///store",), moments, late))
    proof = {
        "accepted": 5,
        "restored": 4,
        "missing": 1,
        "violations": {"missing": 1},
        "lanes": counted,
        "damage_count": 2,
    }
    reports.keep(url, JobReport("audit", "s1", now_ms, ("file:///store",), moments, proof))
    assert run(["reports", "-o", "json"]) == 0
    found = {one["job"]: one for one in map(json.loads, capsys.readouterr().out.splitlines())}
    assert list(found) == ["backlog", "lateness", "audit"]
    assert (found["backlog"]["live_count"], found["backlog"]["drift"]) == (live_count, 0)
    assert (found["lateness"]["p99_ms"], found["lateness"]["damage_count"]) == (40, 0)
    assert (found["audit"]["is_proven"], found["audit"]["drift"], found["audit"]["violations"]) == (
        False,
        0,
        {"missing": 1},
    )
    assert found["audit"]["snapshots"][0]["position"] == 1
    assert run(["reports"]) == 0
    text = capsys.readouterr().out
    assert "2,000 delivered, p50 3 ms, p99 40 ms, at most 50 ms; 1 late, 0 early" in text
    assert f"NOT PROVEN: 5 accepted, 4 delivered, 1 missing; now {live_count:,}, drift 0" in text
    assert "audit: violations, missing: 1\naudit: damaged places skipped: 2\n" in text


def live_lanes() -> list[gateway_pb2.Lane]:
    return list(call(None, "ListLanes", gateway_pb2.ListLanesRequest()).lanes)


def report(now_ms: int, lanes: list[gateway_pb2.Lane]) -> JobReport:
    rows = [
        {
            "shard": lane.shard,
            "level": lane.level,
            "topic": "billing",
            "count": lane.pending_count,
            "bytes": 1_000,
            "oldest_due_at_ms": now_ms,
            "overdue_count": 0,
            "overdue_by_ms": 0,
            "next_due_at_ms": now_ms,
        }
        for lane in lanes
        if lane.pending_count
    ]
    result: dict[str, Any] = {
        "now_ms": now_ms,
        "pending_count": sum(row["count"] for row in rows),
        "pending_bytes": 1_000 * len(rows),
        "overdue_count": 0,
        "overdue_by_ms": 0,
        "next_due_at_ms": now_ms,
        "forecast": {
            "needed_per_s": 0.1,
            "needed_at_ms": now_ms,
            "measured_per_s": 12.25,
            "measured_peak_per_s": 40,
        },
        "lanes": [
            {
                "shard": lane.shard,
                "level": lane.level,
                "watermark": lane.watermark,
                "max_offset": lane.max_offset,
                "pending_count": lane.pending_count,
            }
            for lane in lanes
        ],
        "pending": rows,
        "due_minutes": [{"at_ms": now_ms, "level": 15, "count": 3, "bytes": 300}],
        "due_hours": [],
        "later_count": 0,
    }
    moments = (ShardMoment(0, 1, now_ms),)
    return JobReport("backlog", "s1", now_ms, ("file:///store",), moments, reports.condensed(result))


@pytest.mark.parametrize(
    ("length_ms", "text"),
    [(0, "0ms"), (999, "999ms"), (1_000, "1s"), (61_500, "1m 1s"), (3_600_000, "1h"), (90_061_000, "1d 1h")],
)
def test_lengths_have_two_units_at_most(length_ms: int, text: str) -> None:
    assert about(length_ms) == text


@pytest.mark.parametrize(("count", "text"), [(0, "0 B"), (999, "999 B"), (1_000, "1.0 kB"), (1_234_567_890, "1.2 GB")])
def test_sizes_have_the_largest_unit_that_fits(count: int, text: str) -> None:
    assert size(count) == text
