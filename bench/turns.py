"""Processor time of two versions, side by side: `python -m bench.turns --base CHECKOUT`.

CHECKOUT is another tree after `make setup` there, or this one with other settings: `--base . --base-setting
DUETIME_STORE_RECENT_IDS_COUNT=0` shows the cost of the window of recent ids. A cluster of each runs at the same time,
and they take turns at the same work, so that other load of the machine affects both. Read the ratio of each pair of
turns, and its spread. With `--together` the new one is a single process; compare the sums. `--base . --callers` shows
the cost of authentication, `--base . --quotas` that of quotas that reject nothing.
"""

import argparse
import asyncio
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from duetime.client.tokens import TOKEN_VARIABLE
from rich.console import Console
from rich.table import Table

from bench.consume import RECEIVERS, stock, take
from bench.load import Target, make, send_count
from bench.peers import FAR_DELAY_S
from bench.peers.duetime import LEVELS, DueTime
from bench.processes import cpu_s

SERVICES = ("gateway", "store", "scheduler")
# The sum over all of a cluster's processes except the supervisor.
ALL = "all"
DELAY_S = 1.0
RECEIVE_WAIT_S = 1.0
LEAST_US = 0.01
# Messages in the topic of the groups.
STOCK = 50_000
TOPICS = ("turns", "stock")


@dataclass(frozen=True, slots=True)
class Work:
    """The work of one turn."""

    name: str
    run: Callable[[DueTime, int], Awaitable[None]]
    count: int
    services: tuple[str, ...] = ("gateway", "store")


async def _send(cluster: DueTime, count: int, *, batch: int, in_flight: int, delay_s: float = 0.0) -> None:
    target = Target(cluster.cluster.address, echo=False)
    delay = LEVELS[delay_s] if delay_s else None
    try:
        await target.ready()
        await send_count(lambda size: target.send(make("turns", size, delay)), count, batch=batch, in_flight=in_flight)
    finally:
        await target.close()


async def _batches(cluster: DueTime, count: int) -> None:
    await _send(cluster, count, batch=256, in_flight=8)


async def _packs(cluster: DueTime, count: int) -> None:
    """Sends by the SDK, in its stream."""
    sender = await cluster.sender("turns")
    try:
        await send_count(lambda size: sender.send(size, FAR_DELAY_S), count, batch=256, in_flight=8)
    finally:
        await sender.close()


async def _single(cluster: DueTime, count: int) -> None:
    await _send(cluster, count, batch=1, in_flight=64)


async def _delayed(cluster: DueTime, count: int) -> None:
    """Sends, waits for the delivery, and reads."""
    receiver = cluster.receiver("turns")
    await receiver.open()
    try:
        await _send(cluster, count, batch=256, in_flight=8, delay_s=DELAY_S)
        received = 0
        while received < count:
            received += len(await receiver.receive(RECEIVE_WAIT_S))
    finally:
        await receiver.close()


async def _received(cluster: DueTime, count: int) -> None:
    """Leases and acknowledges, by a group of its own."""
    await take(cluster.cluster.address, "stock", f"group-{secrets.token_hex(8)}", count, RECEIVERS)


WORK = (
    Work("sent in batches of 256", _batches, 50_000),
    Work("sent as packs of 256", _packs, 100_000),
    Work("sent one by one", _single, 5_000),
    Work("delayed, and read", _delayed, 30_000, SERVICES),
    Work("received and acknowledged", _received, STOCK),
)


async def prepare(cluster: DueTime, count: int = STOCK) -> None:
    """Creates the topics, and `count` messages to be received."""
    for topic in TOPICS:
        cluster.make_topic(topic)
    await stock(cluster.cluster.address, "stock", count)


async def turn(cluster: DueTime, work: Work) -> dict[str, float]:
    """Microseconds per message, by process and in total."""
    pids = cluster.cluster.pids()
    before = {name: cpu_s(pid) for name, pid in pids.items()}
    await work.run(cluster, work.count)
    spent = {name: (cpu_s(pid) - before[name]) * 1e6 / work.count for name, pid in pids.items()}
    return spent | {ALL: sum(spent.values())}


async def compare(base: DueTime, new: DueTime, turns: int, progress: Console) -> dict[str, list[tuple[float, float]]]:
    """Microseconds per message of the base and of the new one, by row and pair of turns."""
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for work in WORK:
        for number in range(turns + 1):
            pair = base, new
            # The order alternates: the first one finds the machine as the other left it.
            order = pair if number % 2 else pair[::-1]
            spent = {id(one): await turn(one, work) for one in order}
            # The first turn warms up.
            for name in (*work.services, ALL) if number else ():
                if name in spent[id(new)]:
                    found[f"{work.name}: {name}"].append((spent[id(base)][name], spent[id(new)][name]))
        progress.print(f"{work.name}: {turns} turns each")
    return found


async def measure(base: DueTime, new: DueTime, turns: int, *, has_quotas: bool) -> dict[str, list[tuple[float, float]]]:
    for cluster in (base, new):
        await prepare(cluster)
    if has_quotas:
        set_quotas(new)
    return await compare(base, new, turns, Console(stderr=True))


def table_of(found: dict[str, list[tuple[float, float]]]) -> Table:
    table = Table("µs a message", "base", "new", "ratio", "middle half")
    for name, pairs in found.items():
        base, new = (statistics.fmean(one) for one in zip(*pairs, strict=True))
        # The clock ticks every 10 ms: a short turn may show no time.
        low, _, high = statistics.quantiles([after / max(before, LEAST_US) for before, after in pairs], n=4)
        ratio = new / max(base, LEAST_US)
        table.add_row(name, f"{base:.2f}", f"{new:.2f}", f"{ratio:.3f}", f"{low:.2f} to {high:.2f}")
    return table


def make_caller(directory: Path) -> None:
    """Creates a user with rights to the measured objects only; all calls from here send its token."""
    (database,) = directory.rglob("metadata.db")

    def run(*words: str) -> str:
        command = [sys.executable, "-m", "duetime", *words, "--database-url", f"sqlite:///{database}"]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    os.environ[TOKEN_VARIABLE] = run("users", "create", "turns")
    for topic in TOPICS:
        for right in ("send", "receive", "manage"):
            run("grants", "add", "turns", right, topic, "--group", "group-*")


def set_quotas(cluster: DueTime) -> None:
    """Sets quotas of each host and each topic that reject nothing."""
    much = str(1 << 40)
    rates = ("--messages-per-s", much, "--bytes-per-s", much, "--server", cluster.cluster.address)
    whose = [("user", "*", "--per-host", "--streams", "1000000"), *(("topic", topic) for topic in TOPICS)]
    for words in whose:
        command = [sys.executable, "-m", "duetime", "quotas", "set", *words, *rates]
        subprocess.run(command, check=True, capture_output=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", type=Path, required=True, help="the other tree, with its .venv")
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument(
        "--base-setting", action="append", default=[], metavar="NAME=VALUE", help="a setting of the base only"
    )
    parser.add_argument("--together", action="store_true", help="the new one is a single process")
    parser.add_argument(
        "--callers", action="store_true", help="the new one requires authentication; all calls send a token"
    )
    parser.add_argument("--quotas", action="store_true", help="the new one has quotas")
    arguments = parser.parse_args()
    python = arguments.base.resolve() / ".venv/bin/python"
    if not python.exists():
        parser.error(f"{python} is missing: run make setup there")
    with tempfile.TemporaryDirectory(prefix="duetime-turns-") as root:
        settings = dict(one.split("=", 1) for one in arguments.base_setting)
        base = DueTime("sync", 8, python=str(python), settings=settings)
        asks = {"DUETIME_GATEWAY_AUTH": "required"} if arguments.callers else None
        new = DueTime("sync", 8, settings=asks, together=arguments.together)
        try:
            for name, cluster in (("base", base), ("new", new)):
                cluster.start(Path(root) / name)
                if cluster is new and arguments.callers:
                    make_caller(Path(root) / name)
            # One loop for all: gRPC prints an error for each closed one.
            found = asyncio.run(measure(base, new, arguments.turns, has_quotas=arguments.quotas))
        finally:
            for cluster in (base, new):
                cluster.stop()
    Console().print(table_of(found))


if __name__ == "__main__":
    main()
