"""A job on a machine that serves messages."""

import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from duetime_core.testing import Cluster
from duetime_spark.priority import is_served_here

# A separate process: it cannot regain its former priority.
GIVE_WAY = """
import sys
from duetime_spark.priority import give_way
give_way(None, sys.argv[1:])
sys.stdin.read()
"""


def gives_way(source: str, *, cores: int) -> bool:
    """Whether a job that reads `source` gets idle time only, on this number of cores. It is looked at from outside: on
    a busy machine it may wait for such time without an end."""
    job = subprocess.Popen([sys.executable, "-c", GIVE_WAY, source], stdin=subprocess.PIPE)
    expected, deadline = (os.SCHED_IDLE, cores), time.monotonic() + 60
    try:
        while (found := (os.sched_getscheduler(job.pid), len(os.sched_getaffinity(job.pid)))) != expected:
            if job.poll() is not None or time.monotonic() > deadline:
                print(found, job.returncode)
                return False
            time.sleep(0.01)
        return True
    finally:
        with suppress(PermissionError):
            os.sched_setscheduler(job.pid, os.SCHED_OTHER, os.sched_param(0))
        job.kill()
        job.communicate()


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
    cores = len(os.sched_getaffinity(0))
    assert gives_way(str(tmp_path), cores=cores)
    assert gives_way("grpc://localhost:9800", cores=max(cores - 1, 1))
