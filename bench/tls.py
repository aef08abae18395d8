"""The cost of TLS and authentication: `python -m bench.tls`.

Three clusters run at the same time and take turns at the same work: a plain one, one with authentication, and one with
authentication and TLS only, between its processes too. Read the ratio of each turn to the plain one beside it: the
accepted rate in batches must stay above 0.95 with tokens and above 0.8 with both, that of single sends above 0.8.
"""

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from duetime import Tls
from duetime.client.connection import GatewayConnection
from duetime.client.tokens import TOKEN_VARIABLE
from duetime.v1 import gateway_pb2
from rich.console import Console
from rich.table import Table

from bench.load import Target, closed_loop, make
from bench.peers.duetime import DueTime
from bench.processes import cpu_s
from bench.turns import make_caller

TOPIC = "turns"
# Messages per request, and concurrent requests.
WORK = {"batches of 256": (256, 8), "single sends": (1, 64)}
PLAIN, AUTHENTICATED, ENCRYPTED = "plain", "tokens", "TLS and tokens"
CALL_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Way:
    """A cluster, with the credentials and trusted certificates of its clients."""

    name: str
    cluster: DueTime
    token: str | None = None
    tls: Tls | None = None

    async def make_topic(self) -> None:
        connection = GatewayConnection(self.cluster.cluster.address, self.token, self.tls)
        try:
            request = gateway_pb2.CreateTopicRequest(name=TOPIC, queue_count=8)
            await connection.call("CreateTopic", request, CALL_TIMEOUT_S)
        finally:
            await connection.close()

    async def turn(self, batch: int, in_flight: int, seconds: float) -> tuple[float, float]:
        """Messages accepted per second, and processor time per message of all processes and the client, in µs."""
        pids = self.cluster.cluster.pids().values()
        before = sum(map(cpu_s, pids)) + time.process_time()
        target = Target(self.cluster.cluster.address, echo=False, token=self.token, tls=self.tls)
        try:
            await target.ready()
            rate, total = await closed_loop(
                lambda count: target.send(make(TOPIC, count)), batch=batch, in_flight=in_flight, seconds=seconds
            )
        finally:
            await target.close()
        return rate, (sum(map(cpu_s, pids)) + time.process_time() - before) * 1e6 / total


def start(root: Path, *, together: bool) -> list[Way]:
    """Starts the three clusters; the caller stops them."""
    certs = root / "certs"
    subprocess.run([sys.executable, "-m", "duetime", "certs", "init", certs], check=True, capture_output=True)
    asks = {"DUETIME_GATEWAY_AUTH": "required"}
    made: list[Way] = []
    for name in (PLAIN, AUTHENTICATED, ENCRYPTED):
        encrypted = name == ENCRYPTED
        settings = None if name == PLAIN else asks
        cluster = DueTime("sync", 8, settings=settings, together=together, certs=certs if encrypted else None)
        made.append(Way(name, cluster))
        cluster.start(root / name.replace(" ", "-"))
        if name != PLAIN:
            make_caller(root / name.replace(" ", "-"))
            token = os.environ.pop(TOKEN_VARIABLE)
            made[-1] = Way(name, cluster, token, Tls(certs / "ca.crt") if encrypted else None)
    return made


Turns = dict[str, dict[str, list[tuple[float, float]]]]


def measure(ways: list[Way], turns: int, seconds: float, progress: Console) -> Turns:
    """The results of each turn, by work and way."""
    found: Turns = defaultdict(lambda: defaultdict(list))
    for work, (batch, in_flight) in WORK.items():
        for number in range(turns + 1):
            # The order alternates: the first one finds the machine as the other left it.
            for way in ways if number % 2 else ways[::-1]:
                results = asyncio.run(way.turn(batch, in_flight, seconds))
                # The first turn warms up.
                if number:
                    found[work][way.name].append(results)
        progress.print(f"{work}: {turns} turns each")
    return found


def table_of(found: Turns) -> Table:
    table = Table("accepted", "", "messages/s", "of plain", "middle half", "µs a message", "of plain")
    for work, by_way in found.items():
        for name, results in by_way.items():
            (rates, spent), cells = zip(*results, strict=True), [work, name]
            ratios = [rate / beside for rate, (beside, _) in zip(rates, by_way[PLAIN], strict=True)]
            low, middle, high = statistics.quantiles(ratios, n=4)
            cells += [f"{statistics.fmean(rates):,.0f}", f"{middle:.3f}", f"{low:.2f} to {high:.2f}"]
            usual = statistics.median(beside for _, beside in by_way[PLAIN])
            cells += [f"{statistics.median(spent):.1f}", f"{statistics.median(spent) / usual:.3f}"]
            table.add_row(*cells)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=12, help="2 or more")
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds of a turn")
    parser.add_argument("--together", action="store_true", help="each cluster is one process")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="duetime-tls-") as root:
        ways: list[Way] = []
        try:
            ways = start(Path(root), together=arguments.together)
            for way in ways:
                asyncio.run(way.make_topic())
            found = measure(ways, arguments.turns, arguments.seconds, Console(stderr=True))
        finally:
            for way in ways:
                way.cluster.stop()
    Console().print(table_of(found))


if __name__ == "__main__":
    main()
