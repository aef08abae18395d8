"""kill -9 of every process, or of one that is all, at random moments, doubled and frozen schedulers: nothing lost,
doubled or early."""

import asyncio
import os
import random
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from bench.processes import NAMES, TOGETHER, Processes
from tests.crash.contents import check, drain, read_all
from tests.crash.killing import KILLS_TIMEOUT_S, RESTART_DEADLINE_S, Breath, kill_one
from tests.crash.workload import Workload

DELAYS_MS = [1_000, 2_000, 3_000]
LEASE_MS = 1_000
FROZEN_S = 5.0
ENVIRONMENT = {
    "DUETIME_DELAY_LEVELS": "1s 2s 3s",
    "DUETIME_LOG_LEVEL": "WARNING",
    "DUETIME_STORE_SEGMENT_BYTES": str(4 * 1024 * 1024),
    "DUETIME_STORE_CHECKPOINT_MS": "1000",
    "DUETIME_SCHEDULER_LEASE_MS": str(LEASE_MS),
    "DUETIME_SCHEDULER_TICK_MS": "200",
    "DUETIME_SCHEDULER_PUBLISH_MS": "1000",
}
DEFAULT_LEASES = {"DUETIME_DELAY_LEVELS": "1s 2s 3s", "DUETIME_LOG_LEVEL": "WARNING"}
TAKE_OVER_MS_MAX = 5_000
DRAIN_DEADLINE_S = 300.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Processes]:
    processes = Processes(tmp_path, ENVIRONMENT, impatient=True)
    try:
        processes.start()
        yield processes
    finally:
        processes.stop()


async def kill_many(
    cluster: Processes, workload: Workload, kills: int, dice: random.Random, names: Sequence[str] = NAMES
) -> Counter[str]:
    """`kills` kills of random processes at random moments."""
    killed: Counter[str] = Counter()
    breath = Breath(lambda: (len(workload.acknowledged), len(workload.seen)))
    while killed.total() < kills:
        # Now and then right after the last one: services are killed while they start, too.
        await asyncio.sleep(dice.choice([0.0, dice.uniform(0.0, 1.0), dice.uniform(1.0, 3.0)]))
        name = dice.choice(names)
        await kill_one(cluster, name)
        await breath.taken()
        killed[name] += 1
    return killed


async def finish(cluster: Processes, workload: Workload, running: "asyncio.Task[None]") -> None:
    """Stops sending, waits for all that is pending, compares."""
    workload.stop()
    async with asyncio.timeout(DRAIN_DEADLINE_S):
        await asyncio.shield(running)
    lanes = await drain(cluster.address, DRAIN_DEADLINE_S)
    check(await read_all(cluster.address, lanes), workload)
    assert workload.acknowledged
    # The puller may have read nothing during the run on a busy machine.
    percentiles = np.percentile(workload.late_ms or [0], (50, 99, 100)).astype(int)
    print(
        f"{len(workload.acknowledged)} acknowledged, {len(workload.errors)} not, {workload.sent_back} sent back, "
        f"late p50/p99/max {'/'.join(map(str, percentiles))} ms"
    )


@pytest.mark.timeout(KILLS_TIMEOUT_S)
async def test_killing_any_process_at_any_time_loses_and_doubles_nothing(
    cluster: Processes, kills: int, dice: random.Random
) -> None:
    workload = Workload(cluster.address, DELAYS_MS, dice)
    await workload.prepare()
    async with asyncio.TaskGroup() as group:
        running = group.create_task(workload.run())
        killed = await kill_many(cluster, workload, kills, dice)
        print(dict(killed))
        await finish(cluster, workload, running)
    assert killed.total() >= kills
    assert cluster.stop() == 0


@pytest.mark.proof
@pytest.mark.timeout(KILLS_TIMEOUT_S)
async def test_killing_the_one_process_of_all_services_loses_and_doubles_nothing(
    tmp_path: Path, kills: int, dice: random.Random
) -> None:
    with Processes(tmp_path, ENVIRONMENT, impatient=True, together=True) as cluster:
        workload = Workload(cluster.address, DELAYS_MS, dice)
        await workload.prepare()
        async with asyncio.TaskGroup() as group:
            running = group.create_task(workload.run())
            killed = await kill_many(cluster, workload, max(kills // 10, 1), dice, [TOGETHER])
            print(dict(killed))
            await finish(cluster, workload, running)
        assert cluster.stop() == 0


@asynccontextmanager
async def another_scheduler(
    cluster: Processes, database_url: str, settings: Mapping[str, str] = ENVIRONMENT
) -> AsyncIterator[Process]:
    """One more scheduler against the cluster's store."""
    theirs = cluster.environment_of("scheduler")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DUETIME_")}
    environment |= {
        **settings,
        "DUETIME_SUPERVISED": "1",
        "DUETIME_SCHEDULER_STORES": theirs["DUETIME_SCHEDULER_STORES"],
        "DUETIME_SCHEDULER_DATABASE_URL": database_url,
    }
    command = [sys.executable, "-m", "duetime_scheduler", "--metrics-port", "-1"]
    process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=PIPE, stderr=DEVNULL)
    try:
        assert process.stdout is not None
        async with asyncio.timeout(RESTART_DEADLINE_S):
            assert await process.stdout.readline()
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def make_database(url: str) -> None:
    command = [sys.executable, "-m", "duetime_core.metadata", "upgrade", "--database-url", url]
    process = await asyncio.create_subprocess_exec(*command, stdout=DEVNULL, stderr=DEVNULL)
    assert await process.wait() == 0


@pytest.mark.proof
@pytest.mark.timeout(180)
async def test_two_schedulers_that_both_own_every_lane_double_nothing(
    cluster: Processes, tmp_path: Path, dice: random.Random
) -> None:
    url = f"sqlite:///{tmp_path / 'other.db'}"
    await make_database(url)
    workload = Workload(cluster.address, DELAYS_MS, dice)
    await workload.prepare()
    async with another_scheduler(cluster, url), asyncio.TaskGroup() as group:
        running = group.create_task(workload.run())
        await asyncio.sleep(15.0)
        await finish(cluster, workload, running)
    assert refused_as_duplicate(cluster) > 0, "the two never met at an entry: this run proves nothing"


@pytest.mark.proof
@pytest.mark.timeout(180)
async def test_lanes_of_a_killed_scheduler_are_taken_over_within_five_seconds(
    tmp_path: Path, dice: random.Random
) -> None:
    with Processes(tmp_path, DEFAULT_LEASES) as cluster:
        url = cluster.environment_of("scheduler")["DUETIME_SCHEDULER_DATABASE_URL"]
        workload = Workload(cluster.address, DELAYS_MS, dice)
        await workload.prepare()
        async with another_scheduler(cluster, url, DEFAULT_LEASES), asyncio.TaskGroup() as group:
            running = group.create_task(workload.run())
            for _ in range(3):
                await asyncio.sleep(dice.uniform(4.0, 6.0))
                await kill_one(cluster, "scheduler")
            await finish(cluster, workload, running)
    assert max(workload.late_ms) <= TAKE_OVER_MS_MAX


@pytest.mark.proof
@pytest.mark.timeout(180)
async def test_scheduler_frozen_for_longer_than_its_lease_doubles_nothing(
    cluster: Processes, dice: random.Random
) -> None:
    url = cluster.environment_of("scheduler")["DUETIME_SCHEDULER_DATABASE_URL"]
    workload = Workload(cluster.address, DELAYS_MS, dice)
    await workload.prepare()
    async with another_scheduler(cluster, url) as other, asyncio.TaskGroup() as group:
        running = group.create_task(workload.run())
        pids = [cluster.pids()["scheduler"], other.pid]
        for turn in range(4):
            await asyncio.sleep(dice.uniform(1.0, 2.0))
            os.kill(pids[turn % 2], signal.SIGSTOP)
            await asyncio.sleep(FROZEN_S)
            os.kill(pids[turn % 2], signal.SIGCONT)
        await finish(cluster, workload, running)
    assert max(workload.late_ms) < FROZEN_S * 1000, "nobody took over the lanes of the frozen scheduler"
    assert max(workload.late_ms) > LEASE_MS / 2, "the frozen scheduler held no lane: this run proves nothing"


def refused_as_duplicate(cluster: Processes) -> float:
    """The store's count of lane entries that were put a second time."""
    lines = cluster.metrics("store").splitlines()
    name = 'duetime_store_records_refused_total{status="DUPLICATE"}'
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))
