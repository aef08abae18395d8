"""Jobs over running stores, from their directories and by Export: their results are true at their snapshot."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from duetime_spark.moment import take_moment
from duetime_spark.running import JobOptions, run
from pyspark.sql import SparkSession

from tests.spark.reading import log_of
from tests.spark.story import TABLES, Story, begun, lanes_of

pytestmark = pytest.mark.proof

Found = dict[str, Any]


def result(spark: SparkSession, job: str, sources: list[str], **options: Any) -> Found:
    return run(spark, JobOptions(job, **options), take_moment(sources)).to_dict()


def without_names(found: Found) -> Found:
    """The result without the places that it was read from."""
    shards = [{**shard, "name": ""} for shard in found["shards"]]
    return {**found, "shards": shards}


async def test_all_ways_to_a_running_cluster_agree(spark: SparkSession, tmp_path: Path) -> None:
    story = await begun(tmp_path, 5, shards=2, consumes=True)
    async with story.life(TABLES[1]):
        await story.cluster.advance("4m")
        await story.live(15)
        ways = {
            "directories": [str(root) for root in story.roots.values()],
            "stores": [f"grpc://127.0.0.1:{node.port}" for node in story.cluster.stores],
            "gateway": [f"grpc://{story.cluster.address}"],
        }
        for job, options in (("backlog", {"now_ms": story.now_ms}), ("audit", {}), ("retries", {})):
            found = {
                way: without_names(await asyncio.to_thread(result, spark, job, sources, **options))
                for way, sources in ways.items()
            }
            assert found["stores"] == found["directories"], job
            assert found["gateway"] == found["directories"], job
            if job == "backlog":
                waiting = Counter((one.level, one.topic) for one in story.account.pending(story.now_ms))
                counts: Counter[Any] = Counter()
                for row in found["gateway"]["pending"]:
                    counts[row["level"], row["topic"]] += row["count"]
                assert counts == waiting
            elif job == "audit":
                assert found["gateway"]["is_proven"], found["gateway"]["violations"]
                assert {
                    (row["shard"], row["level"]): (row["accepted"], row["pending"]) for row in found["gateway"]["lanes"]
                } == {lane: (behind, pending) for lane, (_, _, behind, pending) in lanes_of(story.cluster).items()}


@pytest.mark.parametrize("way", ["directory", "export"])
async def test_under_traffic_it_is_true_at_the_snapshot(spark: SparkSession, tmp_path: Path, way: str) -> None:
    """Retention deletes nothing here, so that the log still has its contents at the snapshot."""
    story = await begun(tmp_path, 6, shards=2, consumes=True)
    async with story.life(TABLES[1]):
        directories = [str(root) for root in story.roots.values()]
        sources = directories if way == "directory" else [f"grpc://{story.cluster.address}"]
        for job in ("backlog", "audit"):
            running = asyncio.create_task(asyncio.to_thread(result, spark, job, sources))
            steps = await lived_beside(story, running)
            found = await running
            assert steps > 3
            (assert_backlog if job == "backlog" else assert_audit)(story, found)


async def lived_beside(story: Story, running: "asyncio.Task[Found]") -> int:
    steps = 0
    while not running.done():
        await story.live(1)
        steps += 1
        # Its calls to the stores are answered by this loop.
        await asyncio.wait({running}, timeout=0.01)
    return steps


def assert_backlog(story: Story, found: Found) -> None:
    log = log_of(story.roots, {shard["shard"]: shard["position"] for shard in found["shards"]})
    waiting: Counter[tuple[int, int]] = Counter()
    for lane, entries in log.entries.items():
        ended = log.restored[lane].keys() | log.dead[lane].keys()
        waiting[lane] = len(entries.keys() - ended)
    damaged = Counter((shard, level) for shard, level, offset in story.account.damaged)
    counts: Counter[tuple[int, int]] = Counter()
    for row in found["pending"]:
        counts[row["shard"], row["level"]] += row["count"]
    for lane in counts | waiting:
        # A damaged record is no record, and waits as well until it is put aside.
        assert 0 <= counts[lane] - waiting[lane] <= damaged[lane], lane


def assert_audit(story: Story, found: Found) -> None:
    log = log_of(story.roots, {shard["shard"]: shard["position"] for shard in found["shards"]})
    assert found["is_proven"], found["violations"]
    for row in found["lanes"]:
        lane = (row["shard"], row["level"])
        assert (row["restored"], row["dead"]) == (len(log.restored[lane]), len(log.dead[lane])), lane
        assert row["expired"] == 0


async def test_while_segments_leave_the_proof_holds(spark: SparkSession, tmp_path: Path) -> None:
    settings = {"retention_ms": 120_000, "retention_check_ms": 10_000}
    story = await begun(tmp_path, 7, shards=1, consumes=False, **settings)
    async with story.life(TABLES[1]):
        before = lanes_of(story.cluster)
        for job in ("audit", "backlog"):
            running = asyncio.create_task(asyncio.to_thread(result, spark, job, [str(story.roots[0])]))
            await lived_beside(story, running)
            found = await running
            if job == "audit":
                assert found["is_proven"], (found["violation_counts"], found["violations"])
            else:
                assert found["pending_count"] == sum(lane["pending_count"] for lane in found["lanes"])
        after = lanes_of(story.cluster)
    assert any(after[lane][1] > before[lane][1] for lane in after), "nothing has left"
