"""Python's task queues: a job with a delay, and a worker that runs it when it is due.

    sender ── a call of the library for each job, 4 at once ──▶ Redis, or DueTime ──▶ worker, in the receiver's process

The job notes its number and the time. Each library is used as its documentation says, with its own defaults. Workers of
Celery and dramatiq take delayed jobs before they are due and keep them in memory; Taskiq's scheduler searches for due
jobs. So jobs can't be held back until all are due, and there is no burst.
"""

import asyncio
import importlib.metadata
import itertools
import logging
import queue
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Hashable
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

from duetime import App

from bench.peers import BODY, Missing, Peer, Receiver, Sender
from bench.peers.duetime import DueTime
from bench.peers.redis import Redis

TEXT = BODY.decode()
# Sending threads, and concurrent jobs of a worker.
THREADS = 4
WORKERS = 8
# Queues of DueTime's topics; automatic ones have as many.
QUEUES = 4
# Taskiq's scheduler sends due jobs at each whole second; it learns of new schedules once a minute, or this often.
LOOK = timedelta(seconds=1)

# A job's number, its due time and the time of its run, in Unix ms.
Ran = tuple[int, int, float]
Note = Callable[[int, str, int], None]


class TaskQueue(Redis):
    """A library, on a Redis server of its own that syncs before it answers."""

    bursts = False
    is_slow = True
    # Each job is a call of its own: a batch saves nothing, and jobs in flight at the end are not counted.
    batch = 16
    in_flight = THREADS
    package: ClassVar[str]

    def start(self, directory: Path) -> None:
        try:
            version = importlib.metadata.version(self.package)
        except importlib.metadata.PackageNotFoundError as error:
            raise Missing(f"{self.package} is not installed: pip install duetime[tasks]") from error
        super().start(directory)
        self.version = f"{version}, Redis {self.version}"

    def settle(self) -> None:
        """Removes the remains of a measurement, such as a topic's jobs due in an hour."""
        import redis

        with redis.Redis(unix_socket_path=self._socket) as client:
            client.flushall()


class Job:
    """Sends jobs of a topic and runs its worker; rebuilt in each process, since these libraries' objects can't be
    pickled."""

    def __init__(self, socket: str, topic: str) -> None:
        self.socket, self.topic = socket, topic

    @abstractmethod
    async def connect(self, note: Note) -> None:
        """Declares the job; it calls `note`."""

    @abstractmethod
    async def send(self, number: int, due_at_ms: int, delay_s: float) -> None: ...

    @abstractmethod
    async def work(self) -> None:
        """Starts to run jobs."""

    async def close(self) -> None:
        return


class JobSender(Sender):
    """Makes a call of the library for each job."""

    _numbers = itertools.count()

    def __init__(self, job: Job) -> None:
        self._job = job

    async def send(self, count: int, delay_s: float) -> None:
        for number in itertools.islice(self._numbers, count):
            await self._job.send(number, time.time_ns() // 1_000_000 + round(delay_s * 1000), delay_s)

    async def close(self) -> None:
        await self._job.close()


class JobReceiver(Receiver):
    """A worker, and the notes of its jobs."""

    def __init__(self, kind: type[Job], socket: str, topic: str) -> None:
        self._kind, self._socket, self._topic = kind, socket, topic

    async def open(self) -> None:
        self._ran: queue.SimpleQueue[Ran] = queue.SimpleQueue()
        self._job = self._kind(self._socket, self._topic)
        await self._job.connect(self._note)
        await self._job.work()

    def _note(self, number: int, text: str, due_at_ms: int) -> None:
        self._ran.put(((number, len(text))[0], due_at_ms, time.time_ns() / 1e6))

    async def receive(self, wait_s: float) -> list[Ran]:
        end = time.monotonic() + wait_s
        # Jobs run in threads or on this loop and note their time, so polling here does not affect the result.
        while self._ran.empty() and time.monotonic() < end:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        return [self._ran.get_nowait() for _ in range(self._ran.qsize())]

    def read(self, messages: list[Any]) -> list[Hashable]:
        return [number for number, _, _ in messages]

    def late_ms(self, messages: list[Any], wall_ms: float) -> list[float]:
        return [ran_at_ms - due_at_ms for _, due_at_ms, ran_at_ms in messages]

    async def close(self) -> None:
        await self._job.close()


class CeleryJob(Job):
    """`apply_async(countdown=)`, and a worker with a pool of threads."""

    async def connect(self, note: Note) -> None:
        import celery

        self._app = celery.Celery("bench", broker=f"redis+socket://{self.socket}")
        self._app.conf.update(task_ignore_result=True, task_default_queue=self.topic, worker_hijack_root_logger=False)
        self._task = self._app.task(note, name="job")

    async def send(self, number: int, due_at_ms: int, delay_s: float) -> None:
        await asyncio.to_thread(self._task.apply_async, (number, TEXT, due_at_ms), countdown=delay_s)

    async def work(self) -> None:
        started = threading.Event()
        controller = type("Worker", (self._app.WorkController,), {"on_consumer_ready": lambda *_: started.set()})
        worker = controller(app=self._app, pool="threads", concurrency=WORKERS, queues=[self.topic])
        threading.Thread(target=worker.start, daemon=True).start()
        await asyncio.to_thread(started.wait)

    async def close(self) -> None:
        self._app.close()


class DramatiqJob(Job):
    """`send_with_options(delay=)`, and a worker of 8 threads."""

    async def connect(self, note: Note) -> None:
        import dramatiq
        from dramatiq.brokers.redis import RedisBroker

        self._broker = RedisBroker(url=f"unix://{self.socket}")
        self._actor = dramatiq.actor(note, actor_name="job", queue_name=self.topic, broker=self._broker)

    async def send(self, number: int, due_at_ms: int, delay_s: float) -> None:
        await asyncio.to_thread(
            self._actor.send_with_options, args=(number, TEXT, due_at_ms), delay=round(delay_s * 1000)
        )

    async def work(self) -> None:
        import dramatiq

        dramatiq.Worker(self._broker, worker_threads=WORKERS).start()

    async def close(self) -> None:
        self._broker.client.close()


class TaskiqJob(Job):
    """`schedule_by_time` into a source of schedules, a scheduler and a worker on one loop."""

    async def connect(self, note: Note) -> None:
        from taskiq import TaskiqScheduler
        from taskiq_redis import ListQueueBroker, ListRedisScheduleSource

        url = f"unix://{self.socket}"

        async def job(number: int, text: str, due_at_ms: int) -> None:
            note(number, text, due_at_ms)

        self._broker = ListQueueBroker(url, queue_name=self.topic)
        self._task = self._broker.task(task_name="job")(job)
        self._source = ListRedisScheduleSource(url, prefix=f"{self.topic}-schedules")
        self._scheduler = TaskiqScheduler(self._broker, [self._source])
        self._running: list[asyncio.Task[None]] = []
        logging.getLogger("taskiq").setLevel(logging.ERROR)

    async def send(self, number: int, due_at_ms: int, delay_s: float) -> None:
        when = datetime.fromtimestamp(due_at_ms / 1000, UTC)
        await self._task.schedule_by_time(self._source, when, number, TEXT, due_at_ms)

    async def work(self) -> None:
        from taskiq.api import run_receiver_task, run_scheduler_task

        # The worker looks up tasks by name in its own broker.
        self._running = [
            asyncio.create_task(run_receiver_task(self._broker, run_startup=True)),
            asyncio.create_task(run_scheduler_task(self._scheduler, interval=LOOK)),
        ]

    async def close(self) -> None:
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        await self._broker.shutdown()
        # The library has no way to close them.
        await self._source._connection_pool.disconnect()


class DueTimeJob(Job):
    """`Task.aat`, and the consumer of an app with 8 threads. `socket` is the gateway's address."""

    async def connect(self, note: Note) -> None:
        def job(number: int, text: str, due_at_ms: int) -> None:
            note(number, text, due_at_ms)

        self._app = App(self.topic, self.socket)
        self._task = self._app.task(job)
        self._working = AsyncExitStack()

    async def send(self, number: int, due_at_ms: int, delay_s: float) -> None:
        await self._task.aat(datetime.fromtimestamp(due_at_ms / 1000, UTC), number, TEXT, due_at_ms)

    async def work(self) -> None:
        await self._working.enter_async_context(self._app.consumer(concurrency=WORKERS))

    async def close(self) -> None:
        await self._working.aclose()
        await asyncio.to_thread(self._app.close)


class DueTimeTasks(Peer):
    """DueTime by `duetime.App`: a cluster of its own, of four processes."""

    name, title = "duetime tasks", "DueTime's App"
    bursts = False
    is_slow = True
    batch = TaskQueue.batch
    in_flight = TaskQueue.in_flight

    def __init__(self) -> None:
        self._duetime = DueTime("sync", QUEUES)

    def start(self, directory: Path) -> None:
        self._duetime.start(directory)
        self.version = importlib.metadata.version("duetime")

    def stop(self) -> None:
        self._duetime.stop()

    def make_topic(self, name: str) -> None:
        self._duetime.make_topic(name)

    async def sender(self, topic: str) -> JobSender:
        return await _sender(DueTimeJob(self._duetime.cluster.address, topic))

    def receiver(self, topic: str) -> JobReceiver:
        return JobReceiver(DueTimeJob, self._duetime.cluster.address, topic)


class Celery(TaskQueue):
    """Celery's worker takes delayed jobs at once, and holds them until they are due."""

    name, title, package = "celery", "Celery", "celery"

    async def sender(self, topic: str) -> JobSender:
        return await _sender(CeleryJob(self._socket, topic))

    def receiver(self, topic: str) -> JobReceiver:
        return JobReceiver(CeleryJob, self._socket, topic)


class Dramatiq(TaskQueue):
    """dramatiq's worker does the same, from a queue of delayed jobs."""

    name, title, package = "dramatiq", "dramatiq", "dramatiq"

    async def sender(self, topic: str) -> JobSender:
        return await _sender(DramatiqJob(self._socket, topic))

    def receiver(self, topic: str) -> JobReceiver:
        return JobReceiver(DramatiqJob, self._socket, topic)


class Taskiq(TaskQueue):
    """Taskiq's scheduler finds due jobs and sends them to the worker."""

    name, title, package = "taskiq", "Taskiq", "taskiq-redis"

    async def sender(self, topic: str) -> JobSender:
        return await _sender(TaskiqJob(self._socket, topic))

    def receiver(self, topic: str) -> JobReceiver:
        return JobReceiver(TaskiqJob, self._socket, topic)


async def _sender(job: Job) -> JobSender:
    def never(number: int, text: str, due_at_ms: int) -> None:
        raise AssertionError("the sender runs no jobs")

    await job.connect(never)
    return JobSender(job)
