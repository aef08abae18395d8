"""A Prometheus for the tests: the distribution's program, on a free port, scraping once a second.

DUETIME_TEST_REQUIRE_PROMTOOL=1   a program that is not there fails the tests instead of skipping them
"""

import asyncio
import json
import os
import re
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

START_S = 60.0
_LISTENS, _READY = re.compile(r'msg="Listening on" address=(\S+)'), "Server is ready to receive web requests"


def prometheus_path() -> str:
    """The program; a test without it is skipped by name, unless it is asked for."""
    program = shutil.which("prometheus")
    if program is None:
        why = "prometheus is missing: Debian's package prometheus has it"
        if os.environ.get("DUETIME_TEST_REQUIRE_PROMTOOL"):
            pytest.fail(why)
        pytest.skip(why)
    return program


@asynccontextmanager
async def scraping(folder: Path, ports: Mapping[str, int]) -> AsyncIterator[str]:
    """Its URL. `ports`: of metrics on loopback, by job."""
    program = prometheus_path()
    jobs = [
        {"job_name": job, "static_configs": [{"targets": [f"127.0.0.1:{port}"], "labels": {"cluster": "tests"}}]}
        for job, port in ports.items()
    ]
    config = folder / "prometheus.json"
    # JSON is YAML.
    config.write_text(json.dumps({"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "scrape_configs": jobs}))
    process = await asyncio.create_subprocess_exec(
        program,
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'tsdb'}",
        "--web.listen-address=127.0.0.1:0",
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    listening = asyncio.create_task(_drained(process.stderr, ready := asyncio.get_running_loop().create_future()))
    try:
        yield f"http://{await asyncio.wait_for(ready, START_S)}"
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
        await listening


async def _drained(lines: asyncio.StreamReader, ready: "asyncio.Future[str]") -> None:
    """Reports its address once it is ready, and reads its output until it ends."""
    address, told = "", []
    async for line in lines:
        told.append(text := line.decode())
        if found := _LISTENS.search(text):
            address = found[1]
        if _READY in text and not ready.done():
            ready.set_result(address)
    if not ready.done():
        ready.set_exception(RuntimeError("".join(told[-5:])))
