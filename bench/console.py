"""Times of the console's pages, with a few messages pending and with many: `python -m bench.console`.

Two clusters run at the same time, each with its console. Requests alternate, so that other load of the machine affects
both. Read the ratio: a page with many pending must be no slower than one with few, and the first page must be painted
within 300 ms. Server time is from the request to the answer's last byte on a kept connection. Paint is reported by
Chromium for a page opened for the first time, in an empty profile.
"""

import argparse
import asyncio
import os
import select
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

from duetime import AsyncProducer
from playwright.async_api import Browser, async_playwright
from rich.console import Console
from rich.table import Table

from bench.load import accepted
from bench.machine import Meanwhile
from bench.peers import BODY
from bench.processes import Processes

TOPIC = "orders"
PACK, IN_FLIGHT = 4_000, 4
# Some have a level, the others are for any time.
DELAYS = ("30m", "1h", "2h", *(f"{minutes}m17s" for minutes in range(20, 180, 4)), "3d", "90d", "300d")
HOUR_MS, DAY_MS = 3_600_000, 86_400_000
TARGET_MS = 300
START_S, PAGE_S = 60, 30
CHROMIUM = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
PAGES = ("/", "/messages", f"/topics/{TOPIC}", "/lanes")
# The pictures ask for another range each time, since answers are cached for a second.
PICTURES = {"picture of an hour": HOUR_MS, "picture of two days": 2 * DAY_MS, "picture of two years": 730 * DAY_MS}
PAINTS = ("first paint", "first contentful paint", "picture drawn")
# Milliseconds by measurement.
Times = dict[str, list[float]]


@dataclass(frozen=True, slots=True)
class Shown:
    """A cluster with a number of pending messages, and its console."""

    pending: int
    cluster: Processes
    url: str

    async def fill(self) -> None:
        """Returns when all are accepted."""
        async with AsyncProducer(self.cluster.address, timeout="60s") as producer:
            packs = [min(PACK, self.pending - first) for first in range(0, self.pending, PACK)]
            if len(packs) == 1:
                # One message with each delay.
                packs = [1] * self.pending
            room = asyncio.Semaphore(IN_FLIGHT)

            async def send(number: int, count: int) -> int:
                async with room:
                    delay = DELAYS[number % len(DELAYS)]
                    return accepted(
                        await producer.send_many(TOPIC, bodies=[BODY] * count, delay=delay, errors="return")
                    )

            sent = sum(await asyncio.gather(*(send(number, count) for number, count in enumerate(packs))))
        if sent != self.pending:
            raise RuntimeError(f"{sent:,} of {self.pending:,} messages were accepted")

    def paths(self, turn: int) -> Iterator[tuple[str, str]]:
        """Requests to its server: name and address."""
        yield from ((page, page) for page in PAGES)
        now_ms = time.time_ns() // 1_000_000
        for name, span_ms in PICTURES.items():
            from_ms = now_ms - span_ms // 2 + turn
            yield name, f"/picture?from={from_ms}&before={from_ms + span_ms}"


@contextmanager
def showing(folder: Path, pending: int) -> Iterator[Shown]:
    """A started cluster without messages."""
    with Processes(folder, {"DUETIME_LOG_LEVEL": "WARNING"}, together=True) as cluster:
        variables = {name: value for name, value in os.environ.items() if not name.startswith("DUETIME_")}
        variables |= {"XDG_STATE_HOME": str(folder), "DUETIME_LOG_LEVEL": "WARNING"}
        command = [sys.executable, "-m", "duetime", "console", "--server", cluster.address, "--port", "0"]
        with subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True) as console:
            try:
                assert console.stdout is not None
                readable, _, _ = select.select([console.stdout], [], [], START_S)
                line = console.stdout.readline() if readable else ""
                if not line:
                    raise RuntimeError("the console does not start")
                yield Shown(pending, cluster, line.split()[-1].rstrip("/"))
            finally:
                console.terminate()


def serve(shown: Shown, turn: int, times: Times) -> None:
    """Makes one request of each kind."""
    connection = HTTPConnection(urlsplit(shown.url).netloc, timeout=PAGE_S)
    try:
        connection.request("GET", "/healthz")
        connection.getresponse().read()
        for name, path in shown.paths(turn):
            began = time.perf_counter()
            connection.request("GET", path)
            answer = connection.getresponse()
            answer.read()
            times[name].append((time.perf_counter() - began) * 1_000)
            if answer.status != 200:
                raise RuntimeError(f"{path} answers {answer.status}")
    finally:
        connection.close()


async def paint(browser: Browser, shown: Shown, times: Times) -> None:
    """Opens the first page once."""
    context = await browser.new_context()
    try:
        page = await context.new_page()
        await page.goto(f"{shown.url}/", wait_until="load", timeout=PAGE_S * 1_000)
        await page.locator("#picture canvas").first.wait_for(timeout=PAGE_S * 1_000)
        drawn = float(await page.evaluate("performance.now()"))
        found = await page.evaluate("performance.getEntriesByType('paint').map((one) => [one.name, one.startTime])")
        paints = {name.replace("-", " "): float(at) for name, at in found}
        for name in PAINTS:
            times[name].append(paints.get(name, drawn))
    finally:
        await context.close()


async def measure(shown: list[Shown], turns: int) -> list[Times]:
    """Times of each console; they alternate, in reversed order each time."""
    times: list[Times] = [defaultdict(list) for _ in shown]
    program = shutil.which("chromium")
    if program is None:
        raise SystemExit("chromium is missing: apt-get install chromium")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program, headless=True, args=CHROMIUM)
        # The first opening of each has a cold browser and uncompiled templates.
        for one in shown:
            await paint(browser, one, defaultdict(list))
        for turn in range(turns):
            order = list(enumerate(shown))
            for number, one in order if turn % 2 else reversed(order):
                await asyncio.to_thread(serve, one, turn, times[number])
                await paint(browser, one, times[number])
        await browser.close()
    return times


def table_of(shown: list[Shown], times: list[Times]) -> Table:
    """Medians, 95th percentiles, and the ratio of the medians."""
    few, many = shown
    table = Table("ms", title="The console's pages, by messages pending")
    for one in (few, many):
        table.add_column(f"{one.pending:,}: median", justify="right")
        table.add_column("p95", justify="right")
    table.add_column("ratio", justify="right")
    for name in times[0]:
        medians = [statistics.median(one[name]) for one in times]
        p95s = [statistics.quantiles(one[name], n=20)[-1] for one in times]
        cells = (f"{value:.1f}" for pair in zip(medians, p95s, strict=True) for value in pair)
        table.add_row(name, *cells, f"{medians[1] / medians[0]:.2f}")
    return table


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.console", description=__doc__)
    parser.add_argument("--few", type=int, default=10, metavar="N", help="messages of the first cluster")
    parser.add_argument("--pending", type=int, default=1_000_000, metavar="N", help="messages of the second cluster")
    parser.add_argument("--turns", type=int, default=30, metavar="N", help="requests of each page")
    parser.add_argument("--directory", default="/var/tmp", help="directory of the data")
    arguments = parser.parse_args()
    progress, meanwhile = Console(stderr=True), Meanwhile()
    with tempfile.TemporaryDirectory(prefix="duetime-bench-", dir=arguments.directory) as made:
        root = Path(made)
        with showing(root / "few", arguments.few) as few, showing(root / "many", arguments.pending) as many:
            for one in (few, many):
                progress.print(f"{one.pending:,} pending")
                asyncio.run(one.fill())
            progress.print(f"{arguments.turns} turns")
            times = asyncio.run(measure([few, many], arguments.turns))
    Console(width=None if sys.stdout.isatty() else 130).print(table_of([few, many], times))
    shares = meanwhile.shares()
    print(", ".join(f"{name} {share:.1%}" for name, share in shares.items()))
    worst = max(statistics.median(one[PAINTS[1]]) for one in times)
    print(f"first contentful paint: median {worst:.0f} ms at most; target: below {TARGET_MS}")
    return 0 if worst < TARGET_MS else 1


if __name__ == "__main__":
    sys.exit(main())
