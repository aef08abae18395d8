"""The SDK in typical applications: one message per call from many tasks or threads, and handlers."""

import asyncio
import threading
import time

from duetime import AsyncProducer, Consumer, LeasedMessage, Producer

from bench.load import WARM_UP_S, closed_loop
from bench.peers import BODY

# Concurrent handlers.
CONCURRENCY = 1_024
SILENCE_S = 15.0


async def one_by_one(address: str, topic: str, *, tasks: int, seconds: float) -> float:
    """Messages/s of a number of tasks that each await AsyncProducer.send."""
    async with AsyncProducer(address) as producer:

        async def send(_: int) -> None:
            await producer.send(topic, BODY, tags="paid")

        rate, _ = await closed_loop(send, batch=1, in_flight=tasks, seconds=seconds)
    return rate


def from_threads(address: str, topic: str, *, threads: int, seconds: float) -> float:
    """Messages/s of a number of threads that each wait for Producer.send."""
    counts = [0] * threads
    started = time.perf_counter()
    counting_from, end = started + WARM_UP_S, started + WARM_UP_S + seconds

    def work(number: int) -> None:
        while time.perf_counter() < end:
            producer.send(topic, BODY, tags="paid")
            if counting_from <= time.perf_counter() < end:
                counts[number] += 1

    with Producer(address) as producer:
        running = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
    return sum(counts) / seconds


async def handle(address: str, topic: str, *, count: int) -> float:
    """Messages/s of a Consumer with an empty handler: from its start until all `count` are acknowledged.

    Raises:
        RuntimeError: a message came twice, or not all came.
    """
    consumer = Consumer(address, group=f"{topic}-handlers")
    ids: set[str] = set()
    taken, heard, done = 0, time.monotonic(), asyncio.Event()

    @consumer.handler(topic, concurrency=CONCURRENCY)
    async def note(message: LeasedMessage) -> None:
        nonlocal taken, heard
        ids.add(message.id)
        taken, heard = taken + 1, time.monotonic()
        if taken == count:
            done.set()

    started = time.perf_counter()
    async with consumer:
        while not done.is_set() and time.monotonic() - heard < SILENCE_S:
            try:
                async with asyncio.timeout(1):
                    await done.wait()
            except TimeoutError:
                continue
    # The block ends when all finished handlers are acknowledged.
    took_s = time.perf_counter() - started
    if not taken == len(ids) == consumer.stats.handled == count:
        raise RuntimeError(f"{topic}: {taken} came, {len(ids)} different ones, {consumer.stats.handled} acknowledged")
    return count / took_s
