"""A day of the cluster on a fast clock, with all pages read repeatedly: the console's memory does not grow.

Only memory counts that the console's own code has allocated and holds. DUETIME_CONSOLE_SOAK_HOURS is the length of the
run by the cluster's clock, DUETIME_CONSOLE_SOAK_MINUTES its least length in real time.
"""

import gc
import os
import time
import tracemalloc

import pytest
from duetime.v1 import consumer_pb2
from duetime_console.rendering import FOLDER
from duetime_core.testing import Cluster

from tests.console.console import Browser, running
from tests.console.traffic import BILLING, ORDERS, REMINDERS, Traffic

HOURS = float(os.environ.get("DUETIME_CONSOLE_SOAK_HOURS", "1"))
MINUTES = float(os.environ.get("DUETIME_CONSOLE_SOAK_MINUTES", "0"))
STEP_MINUTES = 5
# Growth of all memory held by the console's code after the first quarter.
GROWTH_BYTES_MAX = 128 * 1024
PATHS = (
    "/",
    "/topics",
    f"/topics/{ORDERS}",
    "/groups",
    f"/groups/{BILLING}",
    "/lanes",
    "/shards/0",
    f"/dead-letters?group={BILLING}",
    f"/dead-letters/redrive?group={BILLING}",
    "/messages",
    "/transactions",
    "/api/v1",
)


async def work(traffic: Traffic, cluster: Cluster, browser: Browser) -> None:
    """Five minutes: messages for later, some that fail and die, and a look at each page."""
    await traffic.send(REMINDERS, 5, delay="1h")
    await traffic.send(REMINDERS, 5, delay="90s")
    await traffic.kill(BILLING, ORDERS, 2, "ValueError")
    for path in PATHS:
        assert (await browser.get(path)).status_code == 200, path
    await cluster.advance(f"{STEP_MINUTES}m")


async def discard(traffic: Traffic) -> None:
    """Deletes dead messages, so that the cluster's own state keeps its size."""
    wanted = consumer_pb2.DiscardRequest(filter=consumer_pb2.DeadLetterFilter(group=BILLING))
    await traffic.drain("DiscardDeadLetters", wanted)


def held() -> int:
    """Bytes."""
    gc.collect()
    own = tracemalloc.Filter(inclusive=True, filename_pattern=f"{FOLDER}/*", all_frames=False)
    return sum(one.size for one in tracemalloc.take_snapshot().filter_traces([own]).traces)


@pytest.mark.proof
@pytest.mark.timeout(max(MINUTES * 60, HOURS * 120) + 600)
async def test_the_console_s_memory_does_not_grow() -> None:
    give_up = time.monotonic() + MINUTES * 60
    steps = int(HOURS * 60 / STEP_MINUTES)
    async with (
        Cluster() as cluster,
        Traffic(cluster.address) as traffic,
        running(cluster.address, cluster.clock, history_hours=1) as browser,
    ):
        for topic in (ORDERS, REMINDERS):
            await traffic.create_topic(topic)
        tracemalloc.start()
        try:
            before, done = 0, 0
            while done < steps or time.monotonic() < give_up:
                await work(traffic, cluster, browser)
                await discard(traffic)
                done += 1
                if done == max(steps // 4, 2):
                    before = held()
            after = held()
        finally:
            tracemalloc.stop()
    print(f"{done * STEP_MINUTES / 60:.1f} h, {done * len(PATHS)} pages: {before:,} bytes, then {after:,}")
    assert before > 0
    assert after - before < GROWTH_BYTES_MAX
