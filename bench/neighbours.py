"""The effect of a flooding user on another: `python -m bench.neighbours`.

A cluster with authentication and two users: one sends a message every 20 ms; in every other turn the second sends at
full speed, from a process of its own. Read the ratio of the first user's times with the flood to those without it. The
flood's client uses processors too, which no gateway can prevent.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from duetime.client.tokens import TOKEN_VARIABLE
from rich.console import Console
from rich.table import Table

from bench.load import Target, closed_loop, make
from bench.peers import BODY
from bench.peers.duetime import DueTime

PERIOD_S = 0.02
TOPICS = {"polite": "mine", "greedy": "theirs"}
# Messages per request, and concurrent requests, of each flood.
FLOODS = {"one by one": (1, 64), "batches of 256": (256, 16), "packs of 2,048": (2_048, 8)}
# Larger requests are sent as packs.
BATCH_MAX = 256
SETTLE_S = 1.0
# Time until a gateway knows a user's rights.
KNOWN_S = 5.0
PERCENTILES = (0.5, 0.9, 0.99)


async def flood(address: str, kind: str, seconds: float) -> float:
    """Messages per second."""
    batch, in_flight = FLOODS[kind]
    target = Target(address, echo=False)

    async def send(count: int) -> None:
        if count > BATCH_MAX:
            await target.send_bodies(TOPICS["greedy"], [BODY] * count)
        else:
            await target.send(make(TOPICS["greedy"], count))

    try:
        await target.ready()
        found, _ = await closed_loop(send, batch=batch, in_flight=in_flight, seconds=seconds)
    finally:
        await target.close()
    return found


async def polite(address: str, seconds: float) -> list[float]:
    """The duration of each send, in ms."""
    target = Target(address, echo=False)
    took: list[float] = []

    async def send(at_s: float) -> None:
        await asyncio.sleep(at_s)
        sent_s = time.perf_counter()
        await target.send(make(TOPICS["polite"], 1))
        took.append((time.perf_counter() - sent_s) * 1000)

    try:
        await target.ready()
        await target.send(make(TOPICS["polite"], 1))
        async with asyncio.TaskGroup() as group:
            for number in range(int(seconds / PERIOD_S)):
                group.create_task(send(number * PERIOD_S))
    finally:
        await target.close()
    return took


def make_users(cluster: DueTime, directory: Path) -> dict[str, str]:
    """Two users with a topic each; returns their tokens."""
    (database,) = directory.rglob("metadata.db")

    def run(*words: str) -> str:
        command = [sys.executable, "-m", "duetime", *words, "--database-url", f"sqlite:///{database}"]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    tokens = {}
    for user, topic in TOPICS.items():
        tokens[user] = run("users", "create", user)
        for right in ("send", "manage"):
            run("grants", "add", user, right, topic)
    time.sleep(KNOWN_S)
    for user, topic in TOPICS.items():
        os.environ[TOKEN_VARIABLE] = tokens[user]
        cluster.make_topic(topic)
    return tokens


def measure(cluster: DueTime, kind: str, tokens: dict[str, str], turns: int, seconds: float) -> list[str]:
    """A row: times without and with the flood, and the flood's accepted rate."""
    address, quiet, loud, rates = cluster.cluster.address, list[float](), list[float](), list[float]()
    os.environ[TOKEN_VARIABLE] = tokens["polite"]
    for _ in range(turns):
        quiet += asyncio.run(polite(address, seconds))
        command = [sys.executable, "-m", "bench.neighbours", "--flood", kind, "--address", address]
        environment = {**os.environ, TOKEN_VARIABLE: tokens["greedy"]}
        length = ["--seconds", str(seconds + SETTLE_S)]
        with subprocess.Popen([*command, *length], env=environment, stdout=subprocess.PIPE, text=True) as other:
            time.sleep(SETTLE_S)
            loud += asyncio.run(polite(address, seconds))
            rates.append(float(other.communicate()[0]))
    pairs = [(percentile(quiet, part), percentile(loud, part)) for part in PERCENTILES]
    cells = [f"{before:.1f} → {after:.1f} ({after / before:.1f})" for before, after in pairs]
    return [kind, *cells, f"{sum(rates) / len(rates):,.0f}"]


def percentile(took: list[float], part: float) -> float:
    return sorted(took)[min(int(len(took) * part), len(took) - 1)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=4.0, help="seconds of each half of a turn")
    parser.add_argument("--flood", help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.flood:
        print(asyncio.run(flood(arguments.address, arguments.flood, arguments.seconds)))
        return
    table = Table("flood", *(f"p{part * 100:.0f}, ms (ratio)" for part in PERCENTILES), "flood's messages/s")
    with tempfile.TemporaryDirectory(prefix="duetime-neighbours-") as root:
        cluster = DueTime("sync", 4, settings={"DUETIME_GATEWAY_AUTH": "required"})
        try:
            cluster.start(Path(root) / "cluster")
            tokens = make_users(cluster, Path(root))
            for kind in FLOODS:
                table.add_row(*measure(cluster, kind, tokens, arguments.turns, arguments.seconds))
        finally:
            cluster.stop()
    Console().print(table)


if __name__ == "__main__":
    main()
