"""A job on a machine that serves messages."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from duetime_core.testing import Cluster
from duetime_spark.priority import is_served_here

# Use a separate process: it cannot regain its former priority.
GIVE_WAY = """
import os, sys
from duetime_spark.priority import give_way
before = len(os.sched_getaffinity(0))
give_way(None, sys.argv[1:])
print(os.sched_getscheduler(0) == os.SCHED_IDLE, before - len(os.sched_getaffinity(0)))
"""


def gave_way(*sources: str) -> list[str]:
    command = [sys.executable, "-c", GIVE_WAY, *sources]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.split()


async def test_stores_served_on_this_machine_are_known(tmp_path: Path) -> None:
    root = tmp_path / "store-0"
    async with Cluster(tmp_path) as cluster:
        assert is_served_here(str(root))
        assert is_served_here(f"grpc://{cluster.address}")
    assert not is_served_here(str(root))
    assert not is_served_here(str(tmp_path / "nowhere"))
    assert not is_served_here("s3://bucket/store-0")
    assert not is_served_here("grpc://gateway.example:9800")


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="not Linux")
def test_job_runs_at_low_priority_and_leaves_a_core_to_a_server(tmp_path: Path) -> None:
    assert gave_way(str(tmp_path)) == ["True", "0"]
    cores = len(os.sched_getaffinity(0))
    assert gave_way("grpc://localhost:9800") == ["True", "1" if cores > 1 else "0"]
