"""The cost of Spark's jobs, and their effect on serving: `make bench-spark`.

    python -m bench.spark jobs [--pending 20000000]      the backlog and scans, over a directory made for it
    python -m bench.spark beside [--rounds 4]            lateness of a cluster, with and without a job beside it

Wall time on a shared machine says little. So each figure also has the processor time of the driver, its JVM and the
Python workers, and the share of the machine that others used meanwhile.
"""

import argparse
import json
import os
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import contest, spark_store
from bench.machine import Meanwhile, core_count
from bench.processes import Processes
from bench.usage import Tree

MIB = 1024 * 1024
ROUNDS = 3
# The columns of each record that jobs read, without the body; properties are parsed into a map.
ALL_COLUMNS = "all columns but bodies"
JOB_COLUMNS = "shard,topic,real_topic,lane_level,stored_at_ms"
START_S = 180.0


@dataclass(frozen=True)
class Took:
    """The cost of one run: seconds, and processor seconds of all of its processes."""

    wall_s: float
    cpu_s: float


@contextmanager
def _timed(took: list[Took]) -> Iterator[None]:
    tree, started = Tree(os.getpid()), time.perf_counter()
    before = tree.cpu_s()
    yield
    took.append(Took(time.perf_counter() - started, tree.cpu_s() - before))


def jobs(root: Path, master: str, rounds: int, shards: int) -> dict[str, Any]:
    """Figures of one directory, each over some rounds; the first round has a cold JVM.

    Several shards read the directory as many times: the backlog of a disk that does not exist.
    """
    from duetime_spark.moment import take_moment
    from duetime_spark.running import JobOptions, run, tables
    from duetime_spark.session import start

    meanwhile, watch = Meanwhile(), Tree(os.getpid())
    found: dict[str, Any] = {"cores": core_count(), "log_mb": shards * _log_bytes(root) / 1e6}
    sources = [str(root)] * shards
    session: list[Took] = []
    with _timed(session):
        spark = start(master)
        spark.range(1).count()
    found["session"] = _figures(session)
    watch.watch_memory()

    backlog: list[Took] = []
    for _ in range(rounds):
        with _timed(backlog):
            outcome = run(spark, JobOptions("backlog"), take_moment(sources))
    found["pending"] = outcome.to_dict()["pending_count"]
    found["backlog"] = _figures(backlog, found["pending"])

    read = tables(spark, take_moment(sources))
    everything = ",".join(_columns("queue_entries"))
    for name, table, columns in (
        ("queue_entries", "queue_entries", everything),
        ("queue_entries, due times alone", "queue_entries", "due_at_ms"),
        (f"messages, {JOB_COLUMNS}", "messages", JOB_COLUMNS),
        (f"messages, {ALL_COLUMNS}", "messages", ",".join(_columns("messages"))),
    ):
        scans: list[Took] = []
        for _ in range(rounds):
            with _timed(scans):
                rows = _drained(read(table, columns))
        found[name] = _figures(scans, rows, found["log_mb"] if table == "messages" else None)
    found["memory_mb"] = watch.memory_mb()
    spark.stop()
    # The times of the JVM and its workers are known once they have ended.
    found["meanwhile"] = meanwhile.shares()
    return found


def _columns(table: str) -> list[str]:
    from duetime_spark.tables.schemas import schema_of

    return list(schema_of(table, None).names)


def _drained(frame: Any) -> int:
    """Sends every column of every row to the JVM as Arrow, and reads it there."""
    names = [f"`{name}`" for name, kind in frame.dtypes if kind != "map<string,string>"]
    maps = [f"sum(size(`{name}`))" for name, kind in frame.dtypes if kind == "map<string,string>"]
    row = frame.selectExpr("count(*)", *(f"max({name})" for name in names), *maps).collect()[0]
    return int(row[0])


def _figures(took: list[Took], rows: int | None = None, megabytes: float | None = None) -> dict[str, Any]:
    best = min(took, key=lambda one: one.wall_s)
    found: dict[str, Any] = {
        "first_s": round(took[0].wall_s, 2),
        "wall_s": [round(one.wall_s, 2) for one in took],
        "cpu_s": [round(one.cpu_s, 2) for one in took],
    }
    if rows is not None:
        found |= {"rows": rows, "rows_per_s": rows / best.wall_s, "rows_per_cpu_s": rows / best.cpu_s}
    if megabytes is not None:
        found |= {"mb_per_s": megabytes / best.wall_s, "mb_per_cpu_s": megabytes / best.cpu_s}
    return found


def _log_bytes(root: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in (root / "commitlog").iterdir())


# --- beside -----------------------------------------------------------------------------------------------------------

# Repeats one job; prints its start and each end.
_LOOP = """
import sys, time
from duetime_spark.moment import take_moment
from duetime_spark.running import JobOptions, run
from duetime_spark.priority import give_way
from duetime_spark.session import start
give_way(None, sys.argv[2:])
spark = start(None)
spark.range(1).count()
print("ready", flush=True)
while True:
    run(spark, JobOptions(sys.argv[1]), take_moment(sys.argv[2:]))
    print("done", flush=True)
"""


class Running:
    """A job that runs repeatedly, in processes of its own."""

    def __init__(self, job: str, *sources: str) -> None:
        self.count = 0
        command = [sys.executable, "-c", _LOOP, job, *sources]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], START_S)
        if not readable or self._process.stdout.readline() != "ready\n":
            self.stop()
            raise RuntimeError("Spark does not start")

    def stop(self) -> int:
        """Returns the number of completed runs."""
        self._process.terminate()
        return self._process.communicate()[0].count("done")


def beside(directory: Path, pending: int, rounds: int, rate: int, seconds: float) -> dict[str, Any]:
    """Lateness by itself, beside a job on the store's directory, and beside one by Export, in turns."""
    import asyncio

    from bench.load import fill
    from bench.peers.duetime import DueTime

    duetime = DueTime("sync", 2)
    duetime.start(directory)
    found: dict[str, Any] = {"pending": pending, "rate": rate, "seconds": seconds, "rounds": []}
    meanwhile = Meanwhile()
    try:
        asyncio.run(fill(duetime.cluster.address, "far", count=pending, level=18))
        ways = {"alone": (), "directory": (_store(duetime.cluster),), "export": (f"grpc://{duetime.cluster.address}",)}
        for number in range(rounds):
            for way, sources in ways.items():
                job = Running("backlog", *sources) if sources else None
                try:
                    late = contest.lateness(duetime, f"late-{number}-{way}", rate, seconds)
                finally:
                    ended = job.stop() if job else 0
                found["rounds"].append({"way": way, "jobs": ended, **late})
                print(way, ended, {name: round(value, 1) for name, value in late.items()}, file=sys.stderr, flush=True)
    finally:
        duetime.stop()
    found["meanwhile"] = meanwhile.shares()
    for way in ("directory", "export"):
        found[way] = {
            name: statistics.median(_of(found, way, name)) / statistics.median(_of(found, "alone", name))
            for name in ("p50", "p99", "stored p99")
        }
    return found


def _of(found: dict[str, Any], way: str, name: str) -> list[float]:
    return [one[name] for one in found["rounds"] if one["way"] == way]


def _store(cluster: Processes) -> str:
    return str(cluster.directory / "data" / "store-0")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=("jobs", "beside"))
    parser.add_argument("--directory", type=Path, help="where the store's directory is created, or exists")
    parser.add_argument("--pending", type=int)
    parser.add_argument("--shards", type=int, default=1, help="number of shards that the directory is read as")
    parser.add_argument("--master", default="local[*]")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--rate", type=int, default=1_000, help="messages per second, for beside")
    parser.add_argument("--seconds", type=float, default=15.0, help="seconds of a round, for beside")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="duetime-bench-") as temporary:
        root = arguments.directory or Path(temporary) / "store"
        if arguments.task == "beside":
            count = arguments.pending or 1_000_000
            found = beside(root, count, arguments.rounds, arguments.rate, arguments.seconds)
        else:
            if not root.exists():
                spark_store.make(root, arguments.pending or 20_000_000)
            found = jobs(root, arguments.master, arguments.rounds, arguments.shards)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
