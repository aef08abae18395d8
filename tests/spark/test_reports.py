"""Results of jobs in the metadata database: the gateway reports them, with the figures of the jobs' own output."""

import asyncio
import json
from pathlib import Path

import pytest
from duetime import AsyncProducer, Message
from duetime.v1 import gateway_pb2_grpc
from duetime.v1 import reports_pb2 as pb
from duetime_core.rpc.serving import make_channel
from duetime_core.testing import Cluster
from duetime_spark.cli import main
from duetime_spark.jobs.lateness import LatenessJobResult
from duetime_spark.moment import Moment
from duetime_spark.running import JobOptions, JobOutcome
from duetime_spark.summaries import summary_of

FIGURES = ("accepted", "expired", "pending", "restored", "dead", "cancelled", "replaced", "missing", "early")


@pytest.mark.proof
@pytest.mark.usefixtures("spark")
async def test_figures_of_all_jobs_reach_clients_of_the_gateway(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with (
        Cluster(tmp_path, shards=2) as cluster,
        AsyncProducer(cluster.address) as producer,
        make_channel(cluster.address) as channel,
    ):
        stub = gateway_pb2_grpc.GatewayStub(channel)  # type: ignore[no-untyped-call]
        assert await stub.GetReports(pb.GetReportsRequest(), timeout=60) == pb.GetReportsResponse()
        receipts = await producer.send_many([Message("orders", b"x", delay=one) for one in ("1s", "90s", "1h") * 5])
        await producer.cancel(receipts[2])
        await cluster.advance("95s")
        told = {}
        for job in ("backlog", "lateness", "audit"):
            command = [job, f"grpc://{cluster.address}", "--database-url", cluster.database_url, "--json"]
            assert await asyncio.to_thread(main, command) == 0
            told[job] = json.loads(capsys.readouterr().out)
        # Later messages are no drift.
        await producer.send("orders", b"x", delay="2h")
        found = await stub.GetReports(pb.GetReportsRequest(), timeout=60)

        assert (found.backlog.report.pending_count, found.backlog.live_count, found.backlog.drift) == (4, 5, 0)
        late, total = found.lateness, told["lateness"]["total"]
        assert {name: getattr(late, name) for name in total if name not in ("level", "topic", "at_ms")} == {
            name: value for name, value in total.items() if name not in ("level", "topic", "at_ms")
        }
        assert (late.count, late.late_ms, late.undated_count) == (10, 100, 0)
        audit, proof = found.audit, told["audit"]["total"]
        assert {name: getattr(audit, name) for name in FIGURES} == {name: proof[name] for name in FIGURES}
        assert (audit.is_proven, audit.accepted, audit.restored, audit.cancelled) == (True, 15, 10, 1)
        assert (audit.live_count, audit.drift, dict(audit.violations)) == (5, 0, {})
        for origin, job in ((late.origin, "lateness"), (audit.origin, "audit")):
            assert origin.snapshot_id == told[job]["snapshot_id"]
            assert list(origin.sources) == [f"grpc://{cluster.address}"]
            assert [one.shard for one in origin.snapshots] == [0, 1]
            assert origin.damage_count == 0


def test_lateness_of_nothing_is_nothing() -> None:
    found = LatenessJobResult(100, None, [], [], [], 0, undated_count=3)
    outcome = JobOutcome(JobOptions("lateness"), Moment((), "", "", ()), found, [{"shard": 0}])
    summary = summary_of(outcome)
    assert (summary["count"], summary["p99_ms"], summary["undated_count"], summary["damage_count"]) == (0, 0, 3, 1)
