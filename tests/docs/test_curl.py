"""The examples of the page on HTTP, run one after another as written, each answered as the page shows.

The status of the answer is above each: `<!-- curl: 201 -->`. A block of JSON below it is a part of the answer; a text
in it that has `…` matches any such text.
"""

import asyncio
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from duetime_core.testing import FakeClock, LocalCluster

from tests.console.console import running

PAGE = Path(__file__).resolve().parents[2] / "docs" / "http.md"
ADDRESS = "localhost:9880"
NOON = datetime(2026, 12, 1, 12, tzinfo=UTC)
DEADLINE_S = 60.0
EXAMPLE = re.compile(
    r"<!-- curl: (?P<status>\d+) -->\n```sh\n(?P<code>.*?)^```$(?:\n\n```json\n(?P<answer>.*?)^```$)?", re.M | re.S
)


@contextmanager
def console_of(server: str) -> Iterator[str]:
    """The address of a console, which runs on a thread of its own."""
    address: list[str] = []
    is_up, stop = threading.Event(), asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def run() -> None:
        loops.append(asyncio.get_running_loop())
        async with running(server) as browser:
            address.append(browser.client.base_url.netloc.decode())
            is_up.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    try:
        assert is_up.wait(DEADLINE_S), "the console does not start"
        yield address[0]
    finally:
        loops[0].call_soon_threadsafe(stop.set)
        thread.join(DEADLINE_S)


def fits(told: Any, wanted: Any) -> bool:
    """Whether an answer has all that the page shows."""
    if isinstance(wanted, dict):
        return isinstance(told, dict) and all(name in told and fits(told[name], wanted[name]) for name in wanted)
    if isinstance(wanted, list):
        return isinstance(told, list) and len(told) == len(wanted) and all(map(fits, told, wanted))
    if isinstance(wanted, str) and "…" in wanted:
        pattern = ".*".join(map(re.escape, wanted.split("…")))
        return isinstance(told, str) and re.fullmatch(pattern, told) is not None
    return bool(told == wanted)


def test_answers_may_have_more_fields_than_the_page_shows() -> None:
    assert fits({"a": [{"b": 1, "c": 2}], "d": "https://x#y"}, {"a": [{"b": 1}], "d": "https://…#y"})
    for told in ({"a": []}, {"a": [{"b": 2}]}, {"a": [{"b": 1}, {}]}, {}):
        assert not fits(told, {"a": [{"b": 1}]})


async def test_examples_work_as_documented(tmp_path: Path) -> None:
    examples = list(EXAMPLE.finditer(PAGE.read_text()))
    assert len(examples) == PAGE.read_text().count("```sh") > 8
    clock, keyed = FakeClock(int(NOON.timestamp() * 1000)), {"secrets_key": "A" * 43 + "="}
    with LocalCluster(clock=clock, gateway_settings=keyed) as cluster, console_of(cluster.address) as address:
        for example in examples:
            code = example["code"].replace(ADDRESS, address).replace("curl -sS", "curl -sS -w '%{stderr}%{http_code}'")
            process = await asyncio.create_subprocess_exec(
                "bash", "-ec", code, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, cwd=tmp_path
            )
            output, errors = await asyncio.wait_for(process.communicate(), DEADLINE_S)
            assert process.returncode == 0, errors.decode()
            assert errors.decode() == example["status"], (code, output.decode())
            if example["answer"]:
                told, wanted = json.loads(output), json.loads(example["answer"])
                assert fits(told, wanted), (code, told)


@pytest.mark.parametrize("answer", [each["answer"] for each in EXAMPLE.finditer(PAGE.read_text()) if each["answer"]])
def test_answers_on_the_page_are_json(answer: str) -> None:
    assert isinstance(json.loads(answer), dict)
