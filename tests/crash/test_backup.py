"""Backups of a cluster under traffic, restored into a new one, with every message accounted for.

accepted before the copy was begun ⊆ contents of the restored cluster, each once ⊆ all messages ever sent
"""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from duetime import AsyncProducer, DueTimeError, Message

from bench.processes import Processes
from tests.crash.contents import drain
from tests.crash.pulling import pulled_ids

LEVELS = {"DUETIME_DELAY_LEVELS": "1s 2s 10s"}
DELAYS = (None, "1s", "2s", "10s")
ENOUGH = 4_000
WITHIN_S = 90


class Sending:
    """Sends small batches until it is cancelled; records the accepted messages, and all that were ever sent."""

    def __init__(self, address: str) -> None:
        self.accepted: set[str] = set()
        self.sent: set[str] = set()
        self.enough = asyncio.Event()
        self._address = address

    async def run(self) -> None:
        async with AsyncProducer(self._address) as producer:
            number = 0
            while True:
                batch = [
                    Message("orders", b"x" * 300, DELAYS[n % len(DELAYS)], id=f"{number + n:032X}") for n in range(40)
                ]
                number += len(batch)
                self.sent |= {message.id for message in batch}
                for outcome in await producer.send_many(batch, errors="return"):
                    if not isinstance(outcome, DueTimeError):
                        self.accepted.add(outcome.message_id)
                if len(self.accepted) >= ENOUGH:
                    self.enough.set()
                await asyncio.sleep(0.01)


async def snapshot(cluster: Processes, target: Path) -> None:
    """Copies the files as a volume snapshot does: at one time, with the process stopped and its writes in the files."""
    pid = cluster.pids()["store"]
    os.kill(pid, signal.SIGSTOP)
    try:
        await copy(cluster.directory / "data" / "store-0", target / "store-0")
    finally:
        os.kill(pid, signal.SIGCONT)


async def copy(source: Path, target: Path) -> None:
    """Copies with holes: files of a store are longer than their contents."""
    target.parent.mkdir(parents=True, exist_ok=True)
    process = await asyncio.create_subprocess_exec("cp", "-r", "--sparse=always", str(source), str(target))
    assert await process.wait() == 0


async def imported(cluster: Processes, target: Path) -> None:
    """File by file from the running store, by the command that is made for it."""
    arguments = ["store", "import", str(cluster.directory / "data" / "store-0"), "--data", str(target)]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "duetime", *arguments, env={**os.environ, **LEVELS}, stdout=subprocess.DEVNULL
    )
    assert await process.wait() == 0


@pytest.mark.proof
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("backup", "metadata"),
    [
        pytest.param(snapshot, True, id="snapshot"),
        pytest.param(imported, False, id="imported, metadata lost"),
        pytest.param(snapshot, False, id="snapshot, metadata lost"),
        pytest.param(imported, True, id="imported"),
    ],
)
async def test_copy_of_a_live_store_is_restored_and_accounted_for(
    backup: object, metadata: bool, tmp_path: Path
) -> None:
    target = tmp_path / "new" / "data"
    with Processes(tmp_path / "old", LEVELS) as cluster:
        sending = Sending(cluster.address)
        task = asyncio.create_task(sending.run())
        async with asyncio.timeout(WITHIN_S):
            await sending.enough.wait()
        before = set(sending.accepted)
        await backup(cluster, target)  # type: ignore[operator]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    if metadata:
        shutil.copy(tmp_path / "old" / "data" / "metadata.db", target / "metadata.db")
    command = [sys.executable, "-m", "duetime", "store", "verify", str(target / "store-0")]
    verified = await asyncio.to_thread(
        subprocess.run, command, env={**os.environ, **LEVELS}, capture_output=True, text=True, timeout=60, check=False
    )
    assert verified.returncode == 0, verified.stdout
    with Processes(tmp_path / "new", LEVELS) as cluster:
        await drain(cluster.address, WITHIN_S)
        found = Counter(await pulled_ids(cluster.address, "orders"))
        assert before - found.keys() == set()
        assert found.keys() - sending.sent == set()
        assert [one for one, count in found.items() if count > 1] == []
        async with AsyncProducer(cluster.address) as producer:
            receipt = await producer.send("orders", b"after", delay="1s")
        await drain(cluster.address, WITHIN_S)
        assert receipt.message_id in await pulled_ids(cluster.address, "orders")
