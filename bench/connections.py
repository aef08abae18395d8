"""Many connections to one process with each gRPC server: `python -m bench.connections`; needs the wheels of `make
native`.

First idle ones, after one call each; then, beside them, others that send one message a second each. A lap counts from
the time at which its message was to be sent.
"""

import argparse
import json
import re
import resource
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from duetime.v1 import gateway_pb2
from duetime_format.limits import GRPC_MESSAGE_BYTES_MAX
from rich.console import Console
from rich.table import Table

from bench.lone_client import BODY, DELAY_MS
from bench.peers.duetime import DueTime
from bench.processes import TOGETHER, cpu_s, memory_mb

FRONTS = ("grpcio", "compiled")
TOPIC = "accepted"
CALL_TIMEOUT_S = 30.0
# Threads that make calls; an answer takes some milliseconds.
CALLERS = 32
HEALTH, SEND = "/grpc.health.v1.Health/Check", "/duetime.v1.Gateway/Send"
# Memory is read after frees and late allocations of the calls before.
SETTLED_S = 2.0


def measure(front: str, idle: int, senders: int, seconds: float, root: Path) -> dict[str, Any]:
    """Memory in KiB a connection, laps in ms, processor time in microseconds a message, and failed calls by reason."""
    most = str(4 * (idle + senders))
    peer = DueTime("sync", 8, settings={"DUETIME_FRONT": front, "DUETIME_GATEWAY_CONNECTIONS_MAX": most}, together=True)
    peer.start(root / front)
    try:
        peer.make_topic(TOPIC)
        pid = peer.cluster.pids()[TOGETHER]
        with ThreadPoolExecutor(CALLERS) as pool:
            before_mb = _settled_mb(pid)
            waiting = _connected(pool, peer.cluster.address, idle)
            idle_mb = _settled_mb(pid)
            sending = _connected(pool, peer.cluster.address, senders)
            began_s = cpu_s(pid)
            laps_ms, faults = _send(pool, sending, seconds)
            used_s = cpu_s(pid) - began_s
            counts = re.findall(r"^duetime_connections{.*} (\d+)", peer.cluster.metrics("gateway"), re.MULTILINE)
        del waiting
        p50, p99 = map(float, np.percentile(laps_ms, (50, 99)))
        return {
            "idle_kib": (idle_mb - before_mb) * 1024 / idle,
            "open": max(map(int, counts)),
            "p50": p50,
            "p99": p99,
            "max": max(laps_ms),
            "server_us": used_s / len(laps_ms) * 1e6,
            "sent": len(laps_ms),
            "faults": faults,
            "memory_mb": memory_mb(pid)[1],
        }
    finally:
        peer.stop()


def _settled_mb(pid: int) -> float:
    time.sleep(SETTLED_S)
    return memory_mb(pid)[1]


def _connected(pool: ThreadPoolExecutor, address: str, count: int) -> list[Any]:
    """Channels after one call each."""
    import duetime_wire

    host, _, port = address.rpartition(":")
    made = [duetime_wire.Channel(host, int(port), message_bytes_max=GRPC_MESSAGE_BYTES_MAX) for _ in range(count)]
    list(pool.map(lambda one: one.call(HEALTH, b"", CALL_TIMEOUT_S, ()), made))
    return made


def _send(pool: ThreadPoolExecutor, channels: list[Any], seconds: float) -> tuple[list[float], Counter[str]]:
    """Sends by each channel once a second, spread evenly. Returns laps in ms, and failed calls by reason."""
    laps_ms: list[float] = []
    faults: Counter[str] = Counter()
    request = gateway_pb2.SendRequest()
    request.messages.add(topic=TOPIC, body=BODY, delay_ms=DELAY_MS)
    data = request.SerializeToString()
    started = time.monotonic()

    def call(number: int) -> None:
        due = started + number / len(channels)
        time.sleep(max(0.0, due - time.monotonic()))
        try:
            channels[number % len(channels)].call(SEND, data, CALL_TIMEOUT_S, ())
        except Exception as error:
            faults[str(error)] += 1
        else:
            laps_ms.append((time.monotonic() - due) * 1e3)

    list(pool.map(call, range(int(seconds * len(channels)))))
    return laps_ms, faults


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--idle", type=int, default=10_000)
    parser.add_argument("--senders", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=15.0, help="seconds of sending")
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--directory", default="/var/tmp", help="directory of the data")
    arguments = parser.parse_args()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    found: dict[str, list[dict[str, Any]]] = {front: [] for front in FRONTS}
    for turn in range(arguments.turns):
        for front in FRONTS if turn % 2 == 0 else FRONTS[::-1]:
            with tempfile.TemporaryDirectory(prefix="duetime-connections-", dir=arguments.directory) as root:
                one = measure(front, arguments.idle, arguments.senders, arguments.seconds, Path(root))
                found[front].append(one)
                print(front, json.dumps(one), file=sys.stderr)
    table = Table("front", "KiB an idle connection", "p50, ms", "p99, ms", "server, µs a message")
    for front, each in found.items():
        figures = ("idle_kib", "p50", "p99", "server_us")
        table.add_row(front, *(f"{np.median([one[figure] for one in each]):.3g}" for figure in figures))
    Console().print(table)


if __name__ == "__main__":
    main()
