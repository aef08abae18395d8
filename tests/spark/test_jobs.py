"""All jobs on the directories of a cluster that has sent, restored, retried, buried and redriven."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from duetime import AsyncDeadLetters, AsyncProducer, Message
from duetime.v1 import consumer_pb2, gateway_pb2_grpc
from duetime.v1 import reports_pb2 as pb
from duetime_core.rpc.serving import make_channel
from duetime_core.testing import Cluster
from duetime_spark.cli import main

GROUP, TOPIC = "billing", "orders"


async def receive(stub: Any) -> list[consumer_pb2.LeasedMessage]:
    """All that can be received now."""
    found: list[consumer_pb2.LeasedMessage] = []
    request = consumer_pb2.ReceiveRequest(group=GROUP, topic=TOPIC, max_count=512)
    while answer := list((await stub.Receive(request, timeout=60)).messages):
        found += answer
    return found


async def fail(stub: Any, messages: list[consumer_pb2.LeasedMessage], *, reject: bool = False) -> None:
    nacks = [
        consumer_pb2.Nack(
            receipt=one.receipt,
            reject=reject,
            error=consumer_pb2.HandlerError(type="KeyError", message=f"no account {number}"),
        )
        for number, one in enumerate(messages)
    ]
    await stub.Nack(consumer_pb2.NackRequest(group=GROUP, nacks=nacks), timeout=60)


async def acknowledge(stub: Any, messages: list[consumer_pb2.LeasedMessage]) -> None:
    receipts = [one.receipt for one in messages]
    await stub.Ack(consumer_pb2.AckRequest(group=GROUP, receipts=receipts), timeout=60)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Of two shards: 60 restored, of which 10 fail once, 6 are dead letters and 2 of these redriven; 40 are pending."""
    async with Cluster(tmp_path, shards=2) as cluster, AsyncProducer(cluster.address) as producer:
        channel = make_channel(cluster.address)
        stub = gateway_pb2_grpc.GatewayStub(channel)
        await stub.CreateGroup(consumer_pb2.CreateGroupRequest(group=consumer_pb2.Group(name=GROUP)), timeout=60)
        await producer.send_many([Message(TOPIC, b"soon", delay="5s") for _ in range(60)])
        await cluster.advance("6s")
        first = await receive(stub)
        assert len(first) == 60
        await acknowledge(stub, first[:44])
        await fail(stub, first[44:54])
        await fail(stub, first[54:], reject=True)
        await cluster.advance("1m")
        again = await receive(stub)
        assert len(again) == 10
        await acknowledge(stub, again)
        async with AsyncDeadLetters(cluster.address, GROUP) as letters:
            some = [letter.id async for letter in letters.list()][:2]
            assert len([one async for one in letters.redrive(ids=some)]) == 2
        await producer.send_many([Message(TOPIC, b"later", delay="1h") for _ in range(40)])
        yield cluster
        await channel.close()


async def told(capsys: pytest.CaptureFixture[str], job: str, *arguments: str) -> dict[str, Any]:
    # A report is kept by a loop of its own.
    assert await asyncio.to_thread(main, [job, *arguments, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.usefixtures("spark")
async def test_jobs_agree_with_the_cluster(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sources = [str(tmp_path / f"store-{shard}") for shard in range(2)]
    lanes = [lane for shard in range(2) for lane in await cluster.lanes(shard)]
    live = {(lane.shard, lane.level): lane.pending_count for lane in lanes if lane.pending_count}

    kept = ("--database-url", cluster.database_url)
    backlog = await told(capsys, "backlog", *sources, *kept)
    assert Counter({(row["shard"], row["level"]): row["count"] for row in backlog["pending"]}) == live
    assert (backlog["pending_count"], {row["topic"] for row in backlog["pending"]}) == (40, {TOPIC})

    audit = await told(capsys, "audit", *sources, *kept)
    assert audit["is_proven"], audit
    assert (audit["total"]["accepted"], audit["total"]["restored"], audit["total"]["pending"]) == (110, 70, 40)

    lateness = await told(capsys, "lateness", *sources, *kept)
    by_topic = {(row["level"], row["topic"]): row["count"] for row in lateness["topics"]}
    assert by_topic[2, TOPIC] == 60
    assert sum(by_topic.values()) == 70
    assert lateness["total"]["early_count"] == 0

    async with make_channel(cluster.address) as channel:
        stub = gateway_pb2_grpc.GatewayStub(channel)  # type: ignore[no-untyped-call]
        reports = await stub.GetReports(pb.GetReportsRequest(), timeout=60)
    assert (reports.backlog.report.pending_count, reports.backlog.live_count, reports.backlog.drift) == (40, 40, 0)
    for report, figures, least in (
        (reports.audit, audit["total"], {"accepted", "restored", "pending", "missing"}),
        (reports.lateness, lateness["total"], {"count", "p99_ms", "max_ms", "late_count"}),
    ):
        names = {field.name for field in report.DESCRIPTOR.fields} & figures.keys()
        assert names >= least
        assert {name: getattr(report, name) for name in names} == {name: figures[name] for name in names}
    assert reports.audit.is_proven
    assert [one.origin.snapshot_id for one in (reports.audit, reports.lateness)] == [
        audit["snapshot_id"],
        lateness["snapshot_id"],
    ]

    letters = await told(capsys, "dead_letters", *sources)
    assert letters["count"] == 4
    assert {(row["group"], row["topic"], row["signature"]) for row in letters["groups"]} == {
        (GROUP, TOPIC, "KeyError: no account #")
    }

    (retries,) = (await told(capsys, "retries", *sources))["groups"]
    assert (retries["succeeded"], retries["failed"], retries["dead"]) == (54, 10, 6)
    assert retries["by_attempt"] == {"1": 44, "2": 10}
