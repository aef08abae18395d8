"""Time limits in tasks that are being cancelled, also before Python 3.11.3."""

import asyncio
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from duetime import deadlines

SDK = Path(deadlines.__file__).parent
PROGRAM = """
import asyncio, sys
import deadlines

async def late(limit):
    try:
        await asyncio.Event().wait()
    finally:
        try:
            async with limit(0.01) as scope:
                await asyncio.Event().wait()
        except TimeoutError:
            print("late", scope.expired())

async def cancelled_within():
    try:
        async with deadlines.within(60):
            await asyncio.Event().wait()
    except TimeoutError:
        print("wrong")

async def main():
    loop = asyncio.get_running_loop()
    later = [lambda s, of=of: of(loop.time() + s) for of in (deadlines.until, deadlines.MendedTimeout)]
    limits = deadlines.within, *later
    for work in (*map(late, limits), cancelled_within()):
        task = asyncio.create_task(work)
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        print(task.cancelled())
    async with deadlines.within(None):
        print("no limit")

asyncio.run(main())
"""
# Its fault is the reason for the module; Debian 12 has it.
OLD = next((found for found in map(shutil.which, ("/usr/bin/python3", "python3.11")) if found), sys.executable)


@pytest.mark.parametrize("python", [sys.executable, OLD])
def test_time_limit_holds_in_a_task_that_is_being_cancelled(python: str) -> None:
    done = subprocess.run([python, "-c", PROGRAM], cwd=SDK, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n") == [*(["late True", "True"] * 3), "True", "no limit", ""]


def test_clients_have_no_other_time_limits() -> None:
    files = [path for path in SDK.rglob("*.py") if path.name != "deadlines.py"]
    assert len(files) > 100
    assert [path.name for path in files if "asyncio.timeout" in path.read_text()] == []


async def test_time_limit_ends_a_wait() -> None:
    with pytest.raises(TimeoutError):
        async with deadlines.within(0.001):
            await asyncio.Event().wait()
