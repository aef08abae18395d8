"""The SDK in typical applications: one message per call from many tasks or threads, and handlers."""

import asyncio
import threading
import time
from collections.abc import Hashable

from duetime import App, AsyncProducer, Consumer, LeasedMessage, Producer

from bench.load import WARM_UP_S, closed_loop
from bench.peers import BODY

# Concurrent handlers.
CONCURRENCY = 1_024
SILENCE_S = 15.0
# Calls of tasks in one send, and the text of each.
TASKS_AT_ONCE = 4_096
TEXT = BODY.decode()


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
    consumer, ids = Consumer(address, group=f"{topic}-handlers"), Arrivals(count)

    @consumer.handler(topic, concurrency=CONCURRENCY)
    async def note(message: LeasedMessage) -> None:
        ids.add(message.id)

    return await _rate(consumer, topic, ids)


async def run_tasks(address: str, topic: str, *, count: int) -> float:
    """As `handle`, of an App with an empty task of two arguments, which are sent before."""
    app, numbers = App(f"{topic}-app", address), Arrivals(count)

    @app.task(topic=topic)
    async def note(number: int, text: str) -> None:
        numbers.add(number)

    async with AsyncProducer(address) as producer:
        for first in range(0, count, TASKS_AT_ONCE):
            calls = [note.message(number, TEXT) for number in range(first, min(first + TASKS_AT_ONCE, count))]
            await producer.send_many(calls)
    return await _rate(app.consumer(concurrency=CONCURRENCY), topic, numbers)


class Arrivals:
    """The expected arrivals of a topic, by id or by number."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.taken = 0
        self.heard_s = time.monotonic()
        self.done = asyncio.Event()
        self.different: set[Hashable] = set()

    def add(self, name: Hashable) -> None:
        self.different.add(name)
        self.taken, self.heard_s = self.taken + 1, time.monotonic()
        if self.taken == self.count:
            self.done.set()


async def _rate(consumer: Consumer, topic: str, arrivals: Arrivals) -> float:
    """Messages/s from the start of a consumer on. Raises: RuntimeError: as `handle`."""
    started, arrivals.heard_s = time.perf_counter(), time.monotonic()
    async with consumer:
        while not arrivals.done.is_set() and time.monotonic() - arrivals.heard_s < SILENCE_S:
            try:
                async with asyncio.timeout(1):
                    await arrivals.done.wait()
            except TimeoutError:
                continue
    # The block ends when all finished handlers are acknowledged.
    took_s = time.perf_counter() - started
    taken, different, acknowledged = arrivals.taken, len(arrivals.different), consumer.stats.handled
    if not taken == different == acknowledged == arrivals.count:
        raise RuntimeError(f"{topic}: {taken} came, {different} different ones, {acknowledged} acknowledged")
    return arrivals.count / took_s
