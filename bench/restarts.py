"""How soon killed processes serve again under load: `python -m bench.restarts [--kills 50]`.

A cluster of four processes takes delayed messages at a rate and delivers them meanwhile. Store and gateway are killed
(SIGKILL) in turns. Two times are taken for each kill: until the process's port reports SERVING again, and until the
gateway accepts a message from a new connection. The same on a machine with too much to do:
`python -m tests.loaded 2 .venv/bin/python -m bench.restarts`.
"""

import argparse
import asyncio
import contextlib
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
from duetime import AsyncProducer, AsyncPuller, DueTimeError
from duetime_core.health import health_of
from rich.console import Console
from rich.table import Table

from bench.load import RefusedError, Target, make
from bench.peers import BODY
from bench.processes import Processes, wait_until

NAMES = ("store", "gateway")
TOPIC, DELAY = "restarts", "1s"
RATE = 1_000
DEADLINE_S = 60.0
# Between the end of one restart and the next kill: senders catch up, and both processes get a spare. A kill before
# the spare has loaded its modules takes an ordinary start.
PAUSE_S = 6.0
LOOK_S = 0.005
HEALTH_TIMEOUT_S = 1.0
SEND_TIMEOUT_S = 1.0
# Goals for the time from the kill to SERVING, on the machine of docs/benchmarks.md.
GOALS_S = {"store": 1.5, "gateway": 1.0}
SERVING, ACCEPTED = "kill to SERVING", "kill to an accepted send"
Times = dict[tuple[str, str], list[float]]


async def load(address: str, rate: int) -> None:
    """Sends and receives until it is cancelled; errors do not end it."""

    async def send(producer: AsyncProducer) -> None:
        with contextlib.suppress(DueTimeError):
            await producer.send(TOPIC, BODY, delay=DELAY)

    async def receive() -> None:
        while True:
            with contextlib.suppress(DueTimeError):
                async with AsyncPuller(address, TOPIC) as puller:
                    async for _ in puller:
                        pass

    async with AsyncProducer(address) as producer, asyncio.TaskGroup() as group:
        group.create_task(receive())
        begun = time.perf_counter()
        sent = 0
        while True:
            sent += 1
            group.create_task(send(producer))
            await asyncio.sleep(max(0.0, begun + sent / rate - time.perf_counter()))


@contextlib.contextmanager
def loaded(address: str, rate: int) -> Iterator[None]:
    command = [sys.executable, "-m", "bench.restarts", "--load", address, "--rate", str(rate)]
    process = subprocess.Popen(command)
    try:
        yield
        if process.poll() is not None:
            raise RuntimeError("the load ended")
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def accepts(address: str) -> bool:
    """Whether the gateway accepts a message from a new connection."""

    async def send() -> bool:
        target = Target(address, echo=False)
        try:
            async with asyncio.timeout(SEND_TIMEOUT_S):
                return bool(await target.send(make(TOPIC, 1, DELAY)))
        except (grpc.RpcError, RefusedError, TimeoutError):
            return False
        finally:
            await target.close()

    return asyncio.run(send())


def restart(cluster: Processes, name: str) -> tuple[float, float]:
    """Seconds from the kill to SERVING, and from the kill to an accepted send."""
    place = cluster.serving["processes"][name]["address"]
    killed = cluster.kill(name)
    killed_at = time.monotonic()
    _await(lambda: cluster.pids().get(name) not in (None, killed))
    _await(lambda: health_of(place, timeout_s=HEALTH_TIMEOUT_S) == "SERVING")
    serving_s = time.monotonic() - killed_at
    _await(lambda: accepts(cluster.address))
    return serving_s, time.monotonic() - killed_at


def _await(true: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE_S
    while not true():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {DEADLINE_S:g} s")
        time.sleep(LOOK_S)


def measure(cluster: Processes, kills: int, pause_s: float, progress: Console) -> Times:
    found: Times = defaultdict(list)
    wait_until(lambda: accepts(cluster.address), DEADLINE_S, "the cluster accepts messages")
    for number in range(kills):
        for name in NAMES:
            time.sleep(pause_s)
            times_s = restart(cluster, name)
            for kind, time_s in zip((SERVING, ACCEPTED), times_s, strict=True):
                found[name, kind].append(time_s)
            progress.print(f"{number + 1}/{kills} {name}: {times_s[0]:.2f} s, {times_s[1]:.2f} s")
    return found


def table_of(found: Times) -> Table:
    table = Table("killed", "time", "kills", "p50, s", "p90, s", "worst, s", "goal, s")
    for (name, kind), times_s in found.items():
        ordered = sorted(times_s)
        goal = f"{GOALS_S[name]:g}" if kind == SERVING else "-"
        shown = (statistics.median(ordered), ordered[len(ordered) * 9 // 10 - 1], ordered[-1])
        table.add_row(name, kind, str(len(ordered)), *(f"{one:.2f}" for one in shown), goal)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50, help="of each process")
    parser.add_argument("--pause", type=float, default=PAUSE_S, metavar="SECONDS", help="before each kill")
    parser.add_argument("--rate", type=int, default=RATE, help="messages a second")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all times there too")
    parser.add_argument("--load", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.load:
        asyncio.run(load(arguments.load, arguments.rate))
        return
    with (
        tempfile.TemporaryDirectory(prefix="duetime-restarts-", dir="/var/tmp") as root,
        Processes(Path(root), {"DUETIME_LOG_LEVEL": "WARNING"}, impatient=True) as cluster,
        loaded(cluster.address, arguments.rate),
    ):
        found = measure(cluster, arguments.kills, arguments.pause, Console(stderr=True))
    if arguments.json:
        arguments.json.write_text(json.dumps({f"{name}, {kind}": times for (name, kind), times in found.items()}))
    Console().print(table_of(found))


if __name__ == "__main__":
    main()
