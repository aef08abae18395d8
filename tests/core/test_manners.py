"""Long background work takes only idle capacity of the machine."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest
from duetime_core.node.manners import is_served

GIVING_WAY = """
import os, sys
from pathlib import Path
from duetime_core.node.manners import giving_way_in
before = len(os.sched_getaffinity(0))
with giving_way_in(Path(sys.argv[1])):
    print(os.sched_getscheduler(0) == os.SCHED_IDLE, before - len(os.sched_getaffinity(0)))
print(before - len(os.sched_getaffinity(0)))
"""


def gave_way(directory: Path) -> list[str]:
    command = [sys.executable, "-c", GIVING_WAY, str(directory)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.split()


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="not Linux")
def test_work_in_a_served_directory_gives_way_and_no_other_does(tmp_path: Path) -> None:
    assert gave_way(tmp_path) == ["False", "0", "0"]
    with (tmp_path / "lock").open("w") as lock:
        assert gave_way(tmp_path) == ["False", "0", "0"]
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert is_served(tmp_path)
        assert gave_way(tmp_path) == ["True", "1" if len(os.sched_getaffinity(0)) > 1 else "0", "0"]
    assert not is_served(tmp_path)
