"""Processes of the supervisor, and their spares."""

import os
import signal
from pathlib import Path

from duetime.cli.child import Child

SAMPLE = str(Path(__file__).parents[1] / "core" / "sample_node.py")


async def test_a_killed_process_is_followed_by_its_spare(tmp_path: Path) -> None:
    child = Child("sample", [SAMPLE], [], tmp_path, has_spare=True)
    await child.start()
    try:
        first = child.pid
        await child.keep_spare()
        spare = child._spare
        assert spare is not None
        await child.keep_spare()
        assert child._spare is spare
        os.kill(first, signal.SIGKILL)
        assert await child.ended() == -signal.SIGKILL
        await child.start()
        assert (child.pid, child._spare) == (spare.pid, None)
    finally:
        await child.stop(60)


async def test_a_spare_that_died_is_replaced(tmp_path: Path) -> None:
    child = Child("sample", [SAMPLE], [], tmp_path, has_spare=True)
    await child.start()
    try:
        await child.keep_spare()
        spare = child._spare
        assert spare is not None
        for pid in (spare.pid, child.pid):
            os.kill(pid, signal.SIGKILL)
        await spare.wait()
        await child.ended()
        await child.start()
        assert child.pid != spare.pid
    finally:
        await child.stop(60)


async def test_a_stop_ends_the_spare(tmp_path: Path) -> None:
    child = Child("sample", [SAMPLE], [], tmp_path, has_spare=True)
    await child.start()
    await child.keep_spare()
    spare = child._spare
    assert spare is not None
    await child.stop(60)
    assert spare.returncode == -signal.SIGKILL


async def test_a_process_without_spares_gets_none(tmp_path: Path) -> None:
    child = Child("sample", [SAMPLE], [], tmp_path)
    await child.start()
    await child.keep_spare()
    assert child._spare is None
    await child.stop(60)
