"""Webhooks: posted messages per second of one worker, lateness of requests, and its memory.

`python -m bench.webhooks [--count N]` measures a cluster of its own, whose worker posts to a process of this module
over plain HTTP: connections are kept, so that TLS would add to their start and to the bytes alone. It adds the results
to the last run's.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from duetime import Admin, Producer, Webhooks
from duetime_core.metadata.webhooks import WEBHOOKS_MAX

from bench import report
from bench.processes import WEBHOOKS, Processes, cpu_s, memory_mb, wait_until

COUNT, FEW, MANY = 20_000, 1, 16
RATE, SECONDS, DELAY_S = 100, 20, 3
BODY_BYTES = 128
# Messages of each webhook for a receiver that hangs.
LARGE_BYTES, LARGE_COUNT = 1024 * 1024, 16
SETTLE_S, DEADLINE_S = 15.0, 600.0
ENVIRONMENT = {
    "DUETIME_UP_WEBHOOKS": "1",
    "DUETIME_LOG_LEVEL": "WARNING",
    "DUETIME_WEBHOOKS_PERMITTED_NETWORKS": "127.0.0.1",
    "DUETIME_WEBHOOKS_ALLOW_HTTP": "1",
}
# The path of requests that are answered once the receiver is reset.
_HANGS = "/hangs"
_ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"


class Receipts:
    """Requests of a receiver: their number, the times of the first and the last, and lateness by the body's time."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.count, self.first_s, self.last_s = 0, 0.0, 0.0
        self.late_ms: list[float] = []
        self.ended = asyncio.Event()

    def take(self, body: bytes) -> None:
        now_s = time.time()
        self.first_s = self.first_s or now_s
        self.last_s, self.count = now_s, self.count + 1
        if len(body) < LARGE_BYTES and (due := json.loads(body).get("due_ms")):
            self.late_ms.append(now_s * 1_000 - due)

    def shown(self) -> bytes:
        late = sorted(self.late_ms)
        parts = {f"p{part}": late[min(len(late) * part // 100, len(late) - 1)] for part in (50, 99) if late}
        return json.dumps({"count": self.count, "seconds": self.last_s - self.first_s, **parts}).encode()


async def _serve(receipts: Receipts) -> None:
    """Answers POST with 200, GET with the receipts, and DELETE resets them. Prints its port."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                words = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if b": " in line)
                body = await reader.readexactly(int(words.get(b"content-length", b"0")))
                answer = _ANSWER
                if head.startswith(b"POST"):
                    receipts.take(body)
                    if _HANGS.encode() in head.split(b"\r\n")[0]:
                        await receipts.ended.wait()
                elif head.startswith(b"DELETE"):
                    receipts.ended.set()
                    receipts.reset()
                else:
                    shown = receipts.shown()
                    answer = _ANSWER.replace(b"length: 0", b"length: %d" % len(shown)) + shown
                writer.write(answer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await server.serve_forever()


class RemoteReceiver:
    """The receiver's process."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/hook"

    def found(self) -> dict[str, Any]:
        with urllib.request.urlopen(self.url, timeout=60) as answer:
            return dict(json.loads(answer.read()))

    def reset(self) -> None:
        urllib.request.urlopen(urllib.request.Request(self.url, method="DELETE"), timeout=60).close()

    def until(self, count: int) -> dict[str, Any]:
        wait_until(lambda: self.found()["count"] >= count, DEADLINE_S, f"{count} requests")
        return self.found()


@contextmanager
def receiving() -> Iterator[RemoteReceiver]:
    command = [sys.executable, "-m", "bench.webhooks", "--receive"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield RemoteReceiver(int(process.stdout.readline()))
        finally:
            process.terminate()


def measured(root: Path, count: int) -> dict[str, Any]:
    """The figures of a cluster below `root`, each rate with `count` messages."""
    with Processes(root, ENVIRONMENT) as cluster, receiving() as receiver:
        return _measured(cluster, receiver, count)


def _measured(cluster: Processes, receiver: RemoteReceiver, count: int) -> dict[str, Any]:
    """Rates with few and many webhooks, lateness, and memory; each webhook has a topic and a group of its own."""
    found: dict[str, Any] = {"count": count, "rate": RATE, "many_count": MANY, "most_count": WEBHOOKS_MAX}
    with Admin(cluster.address) as admin, Webhooks(cluster.address) as webhooks:
        _create(admin, webhooks, receiver, range(FEW))
        found["memory_few_mb"] = memory_mb(cluster.pids()[WEBHOOKS])[0]
        found["few"] = _rate(cluster, webhooks, receiver, range(FEW), count)
        found["late_ms"] = _lateness(cluster, receiver)
        _create(admin, webhooks, receiver, range(FEW, MANY))
        found["many"] = _rate(cluster, webhooks, receiver, range(MANY), count)
        _create(admin, webhooks, receiver, range(MANY, WEBHOOKS_MAX))
        threading.Event().wait(SETTLE_S)
        found["memory_max_mb"] = memory_mb(pid := cluster.pids()[WEBHOOKS])[0]
        before_s, began_s = cpu_s(pid), time.monotonic()
        threading.Event().wait(SETTLE_S)
        found["idle_cores"] = (cpu_s(pid) - before_s) / (time.monotonic() - began_s)
        # Last: an allocator keeps memory.
        found["full"] = _memory_full(cluster, webhooks, receiver)
    return found


def _create(admin: Admin, webhooks: Webhooks, receiver: RemoteReceiver, numbers: Sequence[int]) -> None:
    for number in numbers:
        admin.create_topic(f"topic-{number}")
        admin.create_group(f"group-{number}")
        webhooks.create(f"hook-{number}", topic=f"topic-{number}", group=f"group-{number}", url=receiver.url)
    webhooks.test(f"hook-{numbers[-1]}", wait="60s")


def _rate(
    cluster: Processes, webhooks: Webhooks, receiver: RemoteReceiver, numbers: Sequence[int], count: int
) -> dict[str, float]:
    """Messages a second, and the worker's share of a core meanwhile; all messages are stored before."""
    for number in numbers:
        webhooks.pause(f"hook-{number}")
    # A worker applies a pause within two seconds.
    threading.Event().wait(3)
    receiver.reset()
    each = count // len(numbers)
    with Producer(cluster.address) as producer:
        for number in numbers:
            producer.send_many(f"topic-{number}", bodies=[b'{"pad": "%s"}' % (b"x" * (BODY_BYTES - 11))] * each)
    before_s = cpu_s(pid := cluster.pids()[WEBHOOKS])
    for number in numbers:
        webhooks.resume(f"hook-{number}")
    found = receiver.until(each * len(numbers))
    return {"per_s": found["count"] / found["seconds"], "cores": (cpu_s(pid) - before_s) / found["seconds"]}


def _memory_full(cluster: Processes, webhooks: Webhooks, receiver: RemoteReceiver) -> dict[str, float]:
    """The largest memory of the worker while a receiver answers none of many large messages."""
    for number in range(MANY):
        webhooks.update(f"hook-{number}", url=receiver.url + _HANGS, timeout="60s")
    # A worker applies a change within two seconds.
    threading.Event().wait(3)
    receiver.reset()
    with Producer(cluster.address) as producer:
        for _ in range(LARGE_COUNT):
            for number in range(MANY):
                producer.send(f"topic-{number}", os.urandom(LARGE_BYTES))
    pid, largest = cluster.pids()[WEBHOOKS], 0.0
    end_s = time.monotonic() + SETTLE_S
    while time.monotonic() < end_s:
        largest = max(largest, memory_mb(pid)[0])
        threading.Event().wait(0.1)
    for number in range(MANY):
        webhooks.update(f"hook-{number}", url=receiver.url)
    receiver.reset()
    receiver.until(1)
    return {"memory_mb": largest, "stored_mb": MANY * LARGE_COUNT * LARGE_BYTES / 1e6}


def _lateness(cluster: Processes, receiver: RemoteReceiver) -> dict[str, float]:
    """From the due time to the arrival of the request, at a constant rate."""
    receiver.reset()
    begun, pause = time.monotonic(), threading.Event()
    with Producer(cluster.address) as producer:
        for number in range(RATE * SECONDS):
            pause.wait(max(0.0, begun + number / RATE - time.monotonic()))
            due_ms = round(time.time() * 1_000) + DELAY_S * 1_000
            producer.send("topic-0", {"due_ms": due_ms}, deliver_at=datetime.fromtimestamp(due_ms / 1_000, UTC))
    found = receiver.until(RATE * SECONDS)
    return {name: found[name] for name in ("p50", "p99")}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.webhooks", description=__doc__)
    parser.add_argument("--count", type=int, default=COUNT, metavar="N", help="messages of a rate")
    parser.add_argument("--directory", default="/var/tmp", help="directory of the data; on a disk")
    parser.add_argument("--receive", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.receive:
        asyncio.run(_serve(Receipts()))
        return 0
    with tempfile.TemporaryDirectory(prefix="duetime-bench-", dir=arguments.directory) as root:
        report.keep_webhooks(measured(Path(root), arguments.count))
    return 0


if __name__ == "__main__":
    sys.exit(main())
