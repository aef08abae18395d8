"""Inserts with random due times, a restart, and a full drain in order, for each structure: `python -m bench.order`.

Each structure has a process of its own for each half, so that memory and start are its own. Rows are added in batches,
as a store publishes them, with a checkpoint after every million. Memory is the growth of the process since the first
row, without pages of its files in the system's cache; LMDB maps those pages, so they count.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from bench.order.ways import WAYS

HOUR_MS = 3_600_000
NOW_MS = 1_800_000_000_000
CHECKPOINT_ROWS = 1_000_000
COLUMNS = {
    "insert_us": "insert, µs/row",
    "insert_own_us": "caller's processor time",
    "insert_cpu_us": "all threads' processor time",
    "pause_ms": "longest call, ms",
    "insert_mb": "memory, MB",
    "start_s": "start, s",
    "count_ms": "exact count, ms",
    "head_us": "head of 2,048, µs",
    "head_own_us": "processor time",
    "drain_us": "drain, µs/row",
    "drain_pause_ms": "longest, ms",
    "drain_mb": "memory, MB",
    "disk_mb": "disk, MB",
}


def _memory_mb(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1_000


def insert(name: str, folder: Path, rows: int, batch: int, horizon_ms: int) -> dict[str, float]:
    """Adds all rows."""
    dice = np.random.default_rng(1)
    before_mb = _memory_mb("VmRSS")
    way = WAYS[name](folder)
    longest, started, cpu = 0.0, time.perf_counter(), time.process_time()
    making_s = making_cpu_s = own_s = 0.0
    for first in range(0, rows, batch):
        at, cpu_at = time.perf_counter(), time.process_time()
        dues = NOW_MS + dice.integers(0, horizon_ms, min(batch, rows - first))
        begun = time.perf_counter()
        making_s, making_cpu_s = making_s + begun - at, making_cpu_s + time.process_time() - cpu_at
        own = time.thread_time()
        way.add(dues, first)
        own_s += time.thread_time() - own
        longest = max(longest, time.perf_counter() - begun)
        if (first + batch) // CHECKPOINT_ROWS > first // CHECKPOINT_ROWS:
            way.checkpoint()
    way.checkpoint()
    took, took_cpu = time.perf_counter() - started - making_s, time.process_time() - cpu - making_cpu_s
    result = {
        "insert_us": took * 1e6 / rows,
        "insert_own_us": own_s * 1e6 / rows,
        "insert_cpu_us": took_cpu * 1e6 / rows,
        "pause_ms": longest * 1e3,
        "insert_mb": _memory_mb("VmHWM") - before_mb,
    }
    way.close()
    return result


def drain(name: str, folder: Path, rows: int, count: int, horizon_ms: int) -> dict[str, float]:
    """Opens, counts, and takes all rows in order."""
    before_mb = _memory_mb("VmRSS")
    started = time.perf_counter()
    way = WAYS[name](folder)
    taken = len(way.take(count))
    start_s = time.perf_counter() - started
    started = time.perf_counter()
    found = way.count_before(NOW_MS + horizon_ms // 2)
    count_ms = (time.perf_counter() - started) * 1e3
    assert 0.4 < found / rows < 0.6, found
    longest, calls, started, own = 0.0, 1, time.perf_counter(), time.thread_time()
    while True:
        begun = time.perf_counter()
        got = len(way.take(count))
        longest = max(longest, time.perf_counter() - begun)
        if not got:
            break
        taken, calls = taken + got, calls + 1
    took, own_s = time.perf_counter() - started, time.thread_time() - own
    assert taken == rows, (taken, rows)
    way.close()
    return {
        "start_s": start_s,
        "count_ms": count_ms,
        "head_us": took * 1e6 / calls,
        "head_own_us": own_s * 1e6 / calls,
        "drain_us": took * 1e6 / rows,
        "drain_pause_ms": longest * 1e3,
        "drain_mb": _memory_mb("VmHWM") - before_mb,
    }


def _own_process(*arguments: object) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.order", *map(str, arguments)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(name: str, arguments: argparse.Namespace) -> dict[str, float]:
    """Both halves."""
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        path = Path(folder) / name
        common = ["--rows", arguments.rows, "--batch", arguments.batch, "--head", arguments.head]
        common += ["--horizon-ms", arguments.horizon_ms]
        result = _own_process("--half", "insert", "--way", name, "--folder", path, *common)
        size = sum(one.stat().st_blocks * 512 for one in path.rglob("*") if one.is_file())
        result |= _own_process("--half", "drain", "--way", name, "--folder", path, *common)
    return result | {"disk_mb": size / 1e6}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.order", description=__doc__)
    parser.add_argument("--rows", type=int, default=3_000_000)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--head", type=int, default=2_048)
    parser.add_argument("--horizon-ms", type=int, default=HOUR_MS)
    parser.add_argument("--way", choices=WAYS, action="append", help="default: all installed ones")
    parser.add_argument("--half", choices=("insert", "drain"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, default=None)
    return parser


def main() -> None:
    """The command."""
    arguments = _parser().parse_args()
    if arguments.half:
        (name,) = arguments.way
        run: dict[str, Any] = {"insert": insert, "drain": drain}
        size = arguments.batch if arguments.half == "insert" else arguments.head
        print(json.dumps(run[arguments.half](name, arguments.folder, arguments.rows, size, arguments.horizon_ms)))
        return
    console = Console()
    results: dict[str, dict[str, float]] = {}
    for name in arguments.way or WAYS:
        try:
            results[name] = measure(name, arguments)
        except subprocess.CalledProcessError:
            console.print(f"{name} is skipped", style="yellow")
    table = Table(title=f"{arguments.rows:,} rows, due within {arguments.horizon_ms / 1e3:,.0f} s")
    table.add_column("")
    for name in results:
        table.add_column(WAYS[name].title, justify="right")
    for key, title in COLUMNS.items():
        table.add_row(title, *[f"{result[key]:,.2f}" for result in results.values()])
    console.print(table)


if __name__ == "__main__":
    main()
