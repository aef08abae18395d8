"""One message at a time, from 1 to 64 client processes: `python -m bench.lone [--base CHECKOUT] [--together]`.

Each process waits for the answer to its message before it sends the next: `Producer.send` to DueTime, and a single
INSERT by psycopg to the PostgreSQL queue, both durable. The systems take turns. With `--base` another tree after `make
setup` is measured beside this one, servers and clients; `--base . --base-setting NAME=VALUE` shows the effect of an
environment variable on both. Each `--variant 'NAME=VALUE ...'` is this tree once more, with these variables.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from bench.figures import ONE_PROCESS
from bench.lone_client import Order
from bench.lone_tables import lone_tables
from bench.peers import Missing
from bench.peers.duetime import DueTime
from bench.peers.postgres import Postgres
from bench.processes import inherited
from bench.report import draw_tables

COUNTS = (1, 8, 32, 64)
TOPIC = "accepted"
TREE = Path(__file__).parents[1]
# The start is this long after the last client is ready: all have read the start time by then.
LEAD_S = 0.3
FIGURES = ("rate", "p50", "p99", "client_us", "server_us", "switches")


@dataclass(frozen=True)
class System:
    """A running server, and the way of its clients."""

    name: str
    order: Order
    # Processor seconds used by all of its processes.
    cpu_s: Callable[[], float]
    python: str = sys.executable
    environment: Mapping[str, str] = field(default_factory=dict)


def system_of(name: str, peer: DueTime | Postgres, seconds: float) -> System:
    """A started peer as a system."""
    if isinstance(peer, Postgres):
        return System(name, Order("insert", peer.where, TOPIC, seconds), peer.cpu_s)
    order = Order("producer", peer.cluster.address, TOPIC, seconds)
    return System(name, order, peer.cluster.cpu_s, peer.python, peer.settings)


def compare(
    systems: Sequence[System], turns: int, say: Callable[[str], None], counts: Sequence[int] = COUNTS
) -> dict[str, Any]:
    """The medians of the turns, by number of clients and system."""
    found: dict[str, Any] = {}
    for count in counts:
        results: dict[str, list[dict[str, float]]] = {system.name: [] for system in systems}
        for turn in range(turns):
            # The order alternates: the first one finds the machine as the other left it.
            for system in systems if turn % 2 == 0 else systems[::-1]:
                say(f"one message at a time, {count} clients, turn {turn + 1} of {turns}: {system.name}")
                results[system.name].append(run(system, count))
                # Its writes are flushed to the disk now, and not in another system's turn.
                os.sync()
        found[str(count)] = {
            name: {figure: statistics.median(one[figure] for one in each) for figure in FIGURES}
            for name, each in results.items()
        }
    return found


def run(system: System, count: int) -> dict[str, float]:
    """One turn of `count` client processes: messages/s, ms, and microseconds and switches per message.

    Raises:
        RuntimeError: a client ended with an error.
    """
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(_client(system)) for _ in range(count)]
        for client in clients:
            _tell(client, json.dumps(asdict(system.order)))
        for client in clients:
            _hear(client)
        started = time.monotonic() + LEAD_S
        for client in clients:
            _tell(client, str(started))
        time.sleep(max(0.0, started - time.monotonic()))
        before = system.cpu_s()
        time.sleep(max(0.0, started + system.order.seconds - time.monotonic()))
        server_s = system.cpu_s() - before
        return figures([json.loads(_hear(client)) for client in clients], server_s, system.order.seconds)


def figures(found: Sequence[Mapping[str, Any]], server_s: float, seconds: float) -> dict[str, float]:
    """The figures of a turn, of all its clients together."""
    laps_us = np.concatenate([one["laps_us"] for one in found])
    if not len(laps_us):
        raise RuntimeError(f"no message was answered within {seconds:g} s")
    p50, p99 = map(float, np.percentile(laps_us, (50, 99)) / 1000)
    count = len(laps_us)
    return {
        "rate": count / seconds,
        "p50": p50,
        "p99": p99,
        "client_us": sum(one["cpu_s"] for one in found) / count * 1e6,
        "server_us": server_s / count * 1e6,
        "switches": sum(one["switches"] for one in found) / count,
    }


@contextlib.contextmanager
def _client(system: System) -> Any:
    environment = inherited() | system.environment
    process = subprocess.Popen(
        [system.python, "-m", "bench.lone_client"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=TREE,
        env=environment,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _tell(client: "subprocess.Popen[str]", line: str) -> None:
    assert client.stdin is not None
    client.stdin.write(line + "\n")
    client.stdin.flush()


def _hear(client: "subprocess.Popen[str]") -> str:
    assert client.stdout is not None
    line = client.stdout.readline()
    if not line:
        raise RuntimeError(f"a client ended with {client.wait()}; its error is above")
    return line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds of a turn")
    parser.add_argument("--clients", type=int, nargs="+", default=COUNTS, metavar="N", help="default: 1 8 32 64")
    parser.add_argument("--base", type=Path, help="another tree, with its .venv")
    parser.add_argument(
        "--base-setting", action="append", default=[], metavar="NAME=VALUE", help="a setting of the base only"
    )
    parser.add_argument(
        "--variant", action="append", default=[], metavar="NAME=VALUE ...", help="this tree with variables; repeatable"
    )
    parser.add_argument("--together", action="store_true", help="DueTime is a single process")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures")
    parser.add_argument("--directory", default="/var/tmp", help="directory of the data; on a disk, not in memory")
    arguments = parser.parse_args()
    name = ONE_PROCESS if arguments.together else "duetime"
    peers: dict[str, DueTime | Postgres] = {}
    if arguments.base:
        python = str(arguments.base.resolve() / ".venv/bin/python")
        settings = dict(one.split("=", 1) for one in arguments.base_setting)
        peers["base"] = DueTime("sync", 1, python, settings, together=arguments.together)
    for variant in arguments.variant:
        settings = dict(one.split("=", 1) for one in variant.split())
        peers[" ".join(settings.values())] = DueTime("sync", 1, settings=settings, together=arguments.together)
    peers |= {name: DueTime("sync", 1, together=arguments.together), "postgres": Postgres()}
    with (
        tempfile.TemporaryDirectory(prefix="duetime-lone-", dir=arguments.directory) as root,
        contextlib.ExitStack() as running,
    ):
        # The directory holds that of a server that runs as another user.
        Path(root).chmod(0o711)
        progress = Console(stderr=True)
        for each, peer in list(peers.items()):
            try:
                running.callback(peer.stop)
                peer.start(Path(root) / each.replace(" ", "-"))
                peer.make_topic(TOPIC)
            except Missing as error:
                del peers[each]
                progress.print(f"{each} is skipped: {error}", style="yellow")
        systems = [system_of(each, peer, arguments.seconds) for each, peer in peers.items()]
        found = compare(systems, arguments.turns, progress.print, arguments.clients)
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=2) + "\n")
    draw_tables(lone_tables(found), Console(width=None if sys.stdout.isatty() else 130))


if __name__ == "__main__":
    main()
