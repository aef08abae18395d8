"""The test kit is quiet where nobody has set structlog up, and leaves everybody else's log lines alone."""

import subprocess
import sys

PROGRAM = """
import structlog
from duetime_core.testing import LocalCluster
with LocalCluster():
    structlog.get_logger().info("the application's")
    {inside}
structlog.configure_once()
"""


def printed(inside: str = "", before: str = "") -> str:
    command = [sys.executable, "-W", "error", "-c", before + PROGRAM.format(inside=inside)]
    return subprocess.run(command, capture_output=True, text=True, timeout=110, check=True).stdout


def test_cluster_prints_nothing_of_its_own() -> None:
    (line,) = printed().splitlines()
    assert "the application's" in line


def test_application_with_structlog_gets_the_clusters_log() -> None:
    out = printed("raise SystemExit", "import structlog\nstructlog.configure(cache_logger_on_first_use=False)\n")
    assert "the application's" in out
    assert "shard reached" in out
