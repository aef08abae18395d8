"""The console killed and restarted: the cluster is undisturbed, and begun work continues."""

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2
from duetime_core.node.supervised import SUPERVISED_VARIABLE
from duetime_core.testing import Cluster

from tests.console.console import SECRET
from tests.console.traffic import Traffic

READY_S = 60


class Process:
    """`python -m duetime_console`, and its output when it was ready."""

    def __init__(self, process: asyncio.subprocess.Process, port: int, metrics_port: int) -> None:
        self._process = process
        self.address = f"http://127.0.0.1:{port}"
        self.metrics = f"http://127.0.0.1:{metrics_port}/metrics"

    async def end(self, number: signal.Signals) -> int:
        if self._process.returncode is None:
            self._process.send_signal(number)
        return await asyncio.wait_for(self._process.wait(), READY_S)


@asynccontextmanager
async def console(server: str) -> AsyncIterator[Process]:
    settings = {"SERVER": server, "PORT": "0", "METRICS_PORT": "0", "SECRET": SECRET}
    told = {f"DUETIME_CONSOLE_{name}": value for name, value in settings.items()}
    environment = os.environ | told | {SUPERVISED_VARIABLE: "1"}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", "duetime_console", stdout=asyncio.subprocess.PIPE, env=environment
    )
    assert process.stdout is not None
    try:
        ready = json.loads(await asyncio.wait_for(process.stdout.readline(), READY_S))
        started = Process(process, ready["port"], ready["metrics_port"])
        yield started
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def fields_of(client: httpx2.AsyncClient) -> dict[str, str]:
    """Fields of the form that redrives the rest, by a dry run."""
    page = (await client.get("/dead-letters/redrive?group=killed")).text
    return dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', page))


async def test_a_killed_console_disturbs_nothing_and_the_next_continues() -> None:
    async with Cluster() as cluster, Traffic(cluster.address) as traffic:
        await traffic.create_topic("orders")
        sent = await traffic.kill("killed", "orders", 8, "ValueError")
        async with console(cluster.address) as first:
            async with httpx2.AsyncClient(base_url=first.address, timeout=60) as client:
                # A letter in a thousand seconds of a clock that stands: the job is in the middle when the console dies.
                form = await fields_of(client) | {"rate": "0.001"}
                job = (await client.post("/dead-letters/redrive", data=form)).headers["location"]
                async with asyncio.timeout(READY_S):
                    while "1 of 8" not in (await client.get(job)).text:
                        await traffic.send("beside", 1)
                metrics = (await client.get(first.metrics)).text
                cookies = dict(client.cookies)
            assert 'duetime_console_requests_total{status="2xx"}' in metrics
            assert "duetime_console_jobs_running 1.0" in metrics
            assert 'process="console"' in metrics
            await first.end(signal.SIGKILL)
        await traffic.send("orders", 5)
        async with (
            console(cluster.address) as second,
            httpx2.AsyncClient(base_url=second.address, timeout=60, cookies=cookies) as client,
        ):
            assert (await client.get(job)).status_code == 404
            # The session is that of before: its proof counts, since both consoles have the same secret.
            form = await fields_of(client) | {"rate": "0"}
            job = (await client.post("/dead-letters/redrive", data=form)).headers["location"]
            async with asyncio.timeout(READY_S):
                while "Done" not in (await client.get(job)).text:
                    await cluster.settle()
            assert "7 of 7" in (await client.get(job)).text
            assert await second.end(signal.SIGTERM) == 0
        came = [one.message.id for one in await traffic.receive("killed", "orders", 8 + 5)]
        assert len(set(came)) == len(came) == 13
        assert set(sent) < set(came)
