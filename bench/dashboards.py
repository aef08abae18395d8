"""Draws Grafana's dashboards without Grafana: a cluster under load, a real Prometheus, and the panels' own queries.

    python -m bench.dashboards [--seconds 150]

writes docs/pictures/dashboard-*.png. Needs the programs of Debian's package prometheus, and matplotlib. The store is
killed half-way, so that the pictures show a failure as an operator would see it.
"""

import argparse
import asyncio
import importlib.util
import json
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
from duetime import AsyncProducer, Consumer, Message
from duetime.client.consuming.leased import LeasedMessage
from matplotlib.ticker import EngFormatter

from bench.processes import NAMES, Processes, wait_until

PROJECT = Path(__file__).resolve().parents[1]
OBSERVABILITY = PROJECT / "deploy" / "observability"
PICTURES = PROJECT / "docs" / "pictures"
# Grafana uses at least four scrapes; here they are a second apart.
RATE_INTERVAL = "8s"
RATE = 400
FAILING = 101
LEVELS = "1s 2s 5s 10s 20s"
UNITS = {"ms": "s", "s": "s", "bytes": "B", "Bps": "B/s", "percentunit": "", "short": ""}
Series = list[tuple[str, list[float], list[float]]]


class Prometheus:
    """A Prometheus that scrapes a cluster's processes once a second."""

    def __init__(self, folder: Path, ports: dict[str, int]) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._address = f"127.0.0.1:{free.getsockname()[1]}"
        jobs = "".join(
            f"  - job_name: duetime-{name}\n"
            f"    static_configs:\n"
            f"      - targets: ['127.0.0.1:{port}']\n"
            f"        labels: {{instance: {name}}}\n"
            for name, port in ports.items()
        )
        (folder / "prometheus.yml").write_text(
            "global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}\n"
            f"rule_files: ['{OBSERVABILITY}/alerts/*.yml']\nscrape_configs:\n{jobs}"
        )
        program = shutil.which("prometheus")
        if program is None:
            raise SystemExit("prometheus is missing: apt-get install prometheus")
        with (folder / "prometheus.log").open("w") as log:
            self.process = subprocess.Popen(
                [
                    program,
                    f"--config.file={folder / 'prometheus.yml'}",
                    f"--storage.tsdb.path={folder / 'tsdb'}",
                    f"--web.listen-address={self._address}",
                ],
                stderr=log,
            )
        wait_until(self._ready, 30, "Prometheus is ready")

    def _ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self._address}/-/ready", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def range(self, query: str, legend: str, start: float, end: float) -> Series:
        """Label, times and values of each line of a query."""
        asked = {"query": query.replace("$__rate_interval", RATE_INTERVAL), "start": start, "end": end, "step": 1}
        url = f"http://{self._address}/api/v1/query_range?{urllib.parse.urlencode(asked)}"
        with urllib.request.urlopen(url, timeout=30) as answer:
            results = json.loads(answer.read())["data"]["result"]
        return [
            (
                _label(legend, found["metric"]),
                [point[0] - start for point in found["values"]],
                [float(point[1]) for point in found["values"]],
            )
            for found in results
        ]


def _label(legend: str, labels: dict[str, str]) -> str:
    for name, value in labels.items():
        legend = legend.replace(f"{{{{{name}}}}}", value.removeprefix("duetime-"))
    return legend


async def load(address: str, seconds: float) -> None:
    """Delayed messages of all levels, a consumer that fails now and then, and a retry after each failure."""
    delays = LEVELS.split()
    end = time.monotonic() + seconds
    consumer = Consumer(address, group="billing", drain="1s")

    # One message in a hundred fails at the first attempt, some also at the last one.
    @consumer.handler("orders", lease="5s", max_attempts=2, backoff="2s")
    async def handle(message: LeasedMessage) -> None:
        if message.offset % FAILING == 0 and (message.attempt == 1 or message.offset % 2):
            raise ValueError("no such order")

    async with AsyncProducer(address, timeout="5s") as producer:
        await producer.send("orders", b"first")
        consuming = asyncio.create_task(consumer.run_async())
        number = 0
        while time.monotonic() < end:
            batch = [Message("orders", b"x" * 128, delays[(number + n) % len(delays)]) for n in range(RATE // 10)]
            number += 1
            await asyncio.gather(producer.send_many(batch), asyncio.sleep(0.1))
        consumer.stop()
        await consuming


async def run(cluster: Processes, seconds: float) -> None:
    loading = asyncio.create_task(load(cluster.address, seconds))
    await asyncio.sleep(seconds / 2)
    cluster.kill("store")
    await loading


def draw(dashboard: Any, prometheus: Prometheus, start: float, end: float) -> list[str]:
    """Draws one picture; returns the titles of empty panels."""
    rows = dashboard.rows
    columns = 12
    figure = plt.figure(figsize=(14, sum(1.1 if row[0].kind == "stat" else 3 for row in rows)), dpi=75)
    grid = figure.add_gridspec(
        len(rows), columns, height_ratios=[1 if row[0].kind == "stat" else 3 for row in rows], hspace=0.45, wspace=1.2
    )
    empty = []
    for at, row in enumerate(rows):
        width = columns // len(row)
        for column, panel in enumerate(row):
            axes = figure.add_subplot(grid[at, column * width : (column + 1) * width])
            lines = [line for query, legend in panel.queries for line in prometheus.range(query, legend, start, end)]
            if not lines:
                empty.append(panel.title)
            (_stat if panel.kind == "stat" else _graph)(axes, panel, lines)
    figure.suptitle(f"{dashboard.title} — drawn from Prometheus, without Grafana", x=0.01, ha="left", fontsize=12)
    figure.subplots_adjust(left=0.045, right=0.985, top=0.93, bottom=0.05)
    figure.savefig(PICTURES / f"dashboard-{dashboard.name}.png")
    plt.close(figure)
    return empty


def _stat(axes: Any, panel: Any, lines: Series) -> None:
    axes.axis("off")
    value = lines[0][2][-1] if lines else 0.0
    scale = 0.001 if panel.unit == "ms" else 1
    red = panel.red_above is not None and value > panel.red_above
    text = (
        f"{value:.1%}"
        if panel.unit == "percentunit"
        else EngFormatter(UNITS[panel.unit], places=0 if panel.unit == "ms" else None)(value * scale)
    )
    axes.text(0.5, 0.42, text, ha="center", va="center", fontsize=20, color="#c4162a" if red else "#37872d")
    axes.set_title(panel.title, fontsize=9)


def _graph(axes: Any, panel: Any, lines: Series) -> None:
    for label, times, values in sorted(lines, key=lambda line: -max(line[2]))[:10]:
        scale = 0.001 if panel.unit == "ms" else 1
        axes.plot(times, [value * scale for value in values], label=label or panel.title, linewidth=1.1)
    axes.set_title(panel.title, fontsize=9, loc="left")
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(EngFormatter(UNITS[panel.unit]))
    axes.tick_params(labelsize=7)
    axes.grid(alpha=0.3)
    if any(label for label, _, _ in lines):
        axes.legend(fontsize=6, loc="upper left", ncols=2)


def main() -> None:
    """Runs the load and draws."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=150)
    seconds = parser.parse_args().seconds
    spec = importlib.util.spec_from_file_location("dashboards", OBSERVABILITY / "dashboards.py")
    assert spec is not None
    assert spec.loader is not None
    dashboards = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(dashboards)
    with tempfile.TemporaryDirectory() as folder, Processes(Path(folder), {"DUETIME_DELAY_LEVELS": LEVELS}) as cluster:
        ports = {name: cluster.serving["processes"][name]["metrics_port"] for name in NAMES}
        prometheus = Prometheus(Path(folder), ports)
        try:
            start = time.time()
            asyncio.run(run(cluster, seconds))
            for dashboard in dashboards.DASHBOARDS:
                empty = draw(dashboard, prometheus, start, time.time())
                print(f"{dashboard.name}: nothing to show in {empty or 'no panel'}")
        finally:
            prometheus.process.terminate()
            prometheus.process.wait()


if __name__ == "__main__":
    main()
