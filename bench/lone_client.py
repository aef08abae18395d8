"""A client process of `bench.lone`: sends one message at a time, and waits for each answer.

A program of its own, so that it can run with another tree's packages. It reads its order as JSON, prints "ready" once
it is connected and warm, then reads the start time, and prints its laps.
"""

import json
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

BODY = b"x" * 128
WARM_UP_COUNT = 20
TAGS = "paid"
DELAY_MS = 3_600_000
INSERT = "INSERT INTO delayed (due_at_ms, topic, tags, body) VALUES (%b, %b, %b, %b)"
Send = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Order:
    """The way to send, the server's address or connection string, the topic, and the seconds to measure."""

    way: str
    where: str
    topic: str
    seconds: float


@contextmanager
def _producer(order: Order) -> Iterator[Send]:
    from duetime import Producer

    with Producer(order.where) as producer:
        yield lambda: producer.send(order.topic, BODY, delay="1h", tags=TAGS)


@contextmanager
def _insert(order: Order) -> Iterator[Send]:
    """Each INSERT is a transaction of its own, prepared after the first few."""
    import psycopg

    with psycopg.connect(order.where, autocommit=True) as connection, connection.cursor(binary=True) as cursor:

        def send() -> None:
            due_at_ms = time.time_ns() // 1_000_000 + DELAY_MS
            cursor.execute(INSERT, (due_at_ms, order.topic, TAGS, BODY), prepare=True)

        yield send


WAYS = {"producer": _producer, "insert": _insert}


def laps(send: Send, started: float, seconds: float) -> list[float]:
    """Seconds of each call, from `started` by time.monotonic: the calls that end within `seconds`."""
    time.sleep(max(0.0, started - time.monotonic()))
    end, found = started + seconds, []
    before = time.monotonic()
    while True:
        send()
        now = time.monotonic()
        if now > end:
            return found
        found.append(now - before)
        before = now


def main() -> None:
    order = Order(**json.loads(sys.stdin.readline()))
    with WAYS[order.way](order) as send:
        for _ in range(WARM_UP_COUNT):
            send()
        print("ready", flush=True)
        started = float(sys.stdin.readline())
        before = resource.getrusage(resource.RUSAGE_SELF)
        found = laps(send, started, order.seconds)
        after = resource.getrusage(resource.RUSAGE_SELF)
        cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        switches = after.ru_nvcsw + after.ru_nivcsw - before.ru_nvcsw - before.ru_nivcsw
        print(json.dumps({"laps_us": [round(lap * 1e6) for lap in found], "cpu_s": cpu_s, "switches": switches}))


if __name__ == "__main__":
    main()
