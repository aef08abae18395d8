"""An app: tasks by name, their messages, and the consumer that runs them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar, Unpack, cast, overload

from duetime.client.administering.schedules import AsyncSchedules
from duetime.client.callables import check_function, check_returned
from duetime.client.connection import resolve_server
from duetime.client.consuming.consumer import CONCURRENCY_MAX, Unhandled
from duetime.client.consuming.leased import LeasedMessage
from duetime.client.consuming.leases import LEASE_S_MAX, named, tag_named
from duetime.client.consuming.wrapping import Middleware, checked
from duetime.client.counts import whole
from duetime.client.errors import InvalidArgument
from duetime.client.lengths import Length, limit_seconds
from duetime.client.retry_policy import Backoff, handler_policy
from duetime.client.sending.producer import AsyncProducer
from duetime.client.sync.background import background
from duetime.client.sync.clients import Producer
from duetime.client.tasks.context import Provider
from duetime.client.tasks.eager import EagerClock, EagerMessage, EagerQueue, EagerSchedule
from duetime.client.tasks.limits import TaskLimit, declared
from duetime.client.tasks.naming import naming
from duetime.client.tasks.processes import TaskProcesses, check_hosted
from duetime.client.tasks.schedules import (
    EverySettings,
    SchedulePutter,
    TaskConsumer,
    schedule_times,
    scheduled_message,
)
from duetime.client.tasks.sender import MessageWriter, TaskSender
from duetime.client.tasks.task import Task, TaskOptions
from duetime.client.tokens import TokenSource
from duetime.client.trust import Tls

P = ParamSpec("P")
R = TypeVar("R")


class App:
    """Functions as tasks: a call is a message, and `duetime work MODULE:APP` runs it.

        app = App("shop")

        @app.task(retry="exponential:1s..10m", max_attempts=8)
        def send_mail(order_id: int, kind: str) -> None: ...

        send_mail.later("30m", 42, kind="late")

    Arguments:
        name: the consumer group of its workers, and the topic of tasks without one.
        server, token, tls: as for `Producer` and `Consumer`.
        middleware: called around every task; the first one is outermost.
        unhandled: for a message of its topics that names no task: "retry": it fails, so that a worker of another
            version may run it; "reject": a dead letter at once.
        named_by: the property whose value names a message's task, for messages of other senders. Its own messages have
            it beside the tag, and the tag names those without it. None: the tag.
        outbox: a `duetime.outbox.Outbox`, for `Task.send_in`.

    Raises:
        InvalidArgument: an argument breaks its rule.
    """

    def __init__(
        self,
        name: str,
        server: str | None = None,
        *,
        middleware: Sequence[Middleware] = (),
        unhandled: Unhandled = "retry",
        named_by: str | None = None,
        outbox: MessageWriter | None = None,
        token: TokenSource | None = None,
        tls: Tls | None = None,
    ) -> None:
        self.name = named("name", name)
        self.tasks: dict[str, Task[..., Any]] = {}
        self.overrides: dict[Provider, Provider] = {}
        """Providers to use in place of others, for tests: `app.overrides[open_mailer] = FakeMailer`."""
        self._server, self._token, self._tls = server, token, tls
        self._middleware = checked(middleware)
        self._unhandled = unhandled
        self._named_by = named_by
        self.name_of = naming(named_by)
        """The name of a message's task, for middleware: `app.name_of(message)`."""
        self.processes = TaskProcesses()
        self._sender = TaskSender(self._make_producer, outbox)

    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...

    @overload
    def task(
        self,
        *,
        topic: str | None = None,
        name: str | None = None,
        retry: Backoff | None = None,
        max_attempts: int | None = None,
        timeout: Length | None = None,
        process: bool = False,
        rate: str | None = None,
        per_key: int | None = None,
        sharding_key: str = "",
    ) -> Callable[[Callable[P, R]], Task[P, R]]: ...

    def task(
        self,
        function: Callable[..., Any] | None = None,
        *,
        topic: str | None = None,
        name: str | None = None,
        retry: Backoff | None = None,
        max_attempts: int | None = None,
        timeout: Length | None = None,
        process: bool = False,
        rate: str | None = None,
        per_key: int | None = None,
        sharding_key: str = "",
    ) -> Any:
        """Makes a function a task. Workers run coroutine functions on their event loop, others in threads.

        Arguments:
            topic: the topic of its messages; None: the app's name.
            name: the tag of its messages, unique in the app; None: the function's name.
            retry, max_attempts: times and number of the runs of a failed call, as `backoff` and `max_attempts` of
                `Consumer.handler`; None: the group's.
            timeout: a call that runs longer has failed, and a coroutine is cancelled. None: no limit.
            process: runs it in another process of the worker: for code that holds the interpreter. `timeout` ends that
                process. For plain functions of a module, on Linux and macOS.
            rate: at most this many runs begin, over all workers: "50/s", "3000/m", "100/h" or "5000/d"; `,burst=N` for
                N at once after a rest. Tasks of one topic share it.
            per_key: calls with one sharding key that run at a time, 1 to 10,000; with 1 in the order of their sends.
            sharding_key: the parameter whose value is the sharding key of a call. Default: with `per_key` the first
                one, else none.

        Raises:
            InvalidArgument: an argument breaks its rule, the name is taken, a task of the same topic has another limit,
                or the function can't be a task: it has `*args`, or a type that JSON can't hold.
        """
        options = TaskOptions(
            name or "",
            topic or self.name,
            retry,
            max_attempts,
            limit_seconds(timeout, "timeout"),
            process=process,
            limit=TaskLimit(rate, per_key),
            sharding_key=sharding_key,
        )
        return partial(self._add, options) if function is None else self._add(options, function)

    def every(self, times: Length, **settings: Unpack[EverySettings]) -> Callable[[Callable[..., R]], Task[..., R]]:
        """Makes a function a task that the server's schedule sends, under the task's name.

            @app.every("30 2 * * mon-fri", zone="Europe/Berlin")
            def nightly(occurrence: Occurrence) -> None: ...

        A worker puts the schedule when it starts; the same one again changes nothing. Without the function the schedule
        remains, until `duetime schedules delete` ends it: workers log the command.

        Arguments:
            times: a cron expression (minute, hour, day of the month, month, day of the week, or @daily and its kin),
                or an interval of 1 s or more, such as "90s", which counts from its creation.
            zone, in_gap, in_fold: of a cron expression; see `ScheduleTimes`. Default: UTC.
            missed: occurrences of an outage of the server: "one" (default), "all" or "skip".
            topic, name, retry, max_attempts, timeout, process: as for `task`.

        The function's parameter `occurrence`, or one annotated with `Occurrence`, is the running one. Others need
        defaults, or are injected.

        Raises:
            InvalidArgument: as `task`, or the times break a rule. The server checks a cron expression and its zone.
        """
        found = schedule_times(times, settings)
        options = TaskOptions(
            settings.get("name", ""),
            settings.get("topic") or self.name,
            settings.get("retry"),
            settings.get("max_attempts"),
            limit_seconds(settings.get("timeout"), "timeout"),
            found,
            settings.get("process", False),
        )
        return partial(self._add, options)

    def _add(self, options: TaskOptions, function: Callable[P, R]) -> Task[P, R]:
        """Adds a task; `options.name` empty: the function's."""
        if isinstance(function, staticmethod):
            function = function.__func__
        check_function(function, "task")
        if options.process:
            check_hosted(function)
        name = tag_named("name", options.name or getattr(function, "__name__", ""))
        handler_policy(options.retry, options.max_attempts)
        if name in self.tasks:
            raise InvalidArgument.of("name", f"{name} is a task already; give one of them another name")
        for other in self.tasks.values():
            if other.topic == options.topic:
                options.limit.check_beside(other.options.limit, other.name, other.topic)
        options = replace(options, name=name, named_by=self._named_by)
        task = Task(function, options, self._sender, self.overrides, self._middleware)
        self.tasks[name] = task
        return task

    @property
    def producer(self) -> Producer:
        """The producer of all sends, made at the first use: for `send_many`, transactions and `reschedule`."""
        return self._sender.producer

    def async_producer(self) -> AsyncProducer:
        """A further producer, for one event loop: `async with app.async_producer() as producer`."""
        return AsyncProducer(self._server, token=self._token, tls=self._tls)

    def consumer(
        self,
        *,
        topics: Iterable[str] | None = None,
        concurrency: int = 32,
        drain: Length = "30s",
        time_limit: Length | None = None,
        middleware: Sequence[Middleware] = (),
        schedules: bool = False,
        kind: type[TaskConsumer] = TaskConsumer,
    ) -> TaskConsumer:
        """A consumer of all tasks, or of those of some topics: for tests, and for workers of your own.

        Arguments:
            concurrency: maximum tasks of each topic run at once.
            drain: as for `Consumer`.
            time_limit: the timeout of tasks without a shorter one. Leases last longer than twice this limit, at least
                a minute: code that holds the interpreter stops their renewal.
            middleware: called around the app's own, which runs beside its function, also in another process.
            schedules: put those of its tasks while it runs, as workers do.
            kind: for `duetime work`.

        Raises:
            InvalidArgument: there is no task, or none of a given topic.
        """
        concurrency = whole("concurrency", concurrency, CONCURRENCY_MAX)
        of = {task.topic for task in self.tasks.values()}
        wanted = of if topics is None else set(topics)
        if not wanted or wanted - of:
            missing = f"no task of the topic {', '.join(sorted(wanted - of))}" if wanted else "no task"
            raise InvalidArgument.of("topics", f"{self.name} has {missing}")
        found = kind(
            self._server,
            group=self.name,
            drain=drain,
            middleware=middleware,
            unhandled=self._unhandled,
            token=self._token,
            tls=self._tls,
        )
        found.name_of = self.name_of
        found.schedules = self.schedules(wanted) if schedules else None
        found.limits = declared((task.topic, task.options.limit) for task in self.tasks.values())
        limit_s = limit_seconds(time_limit, "time_limit")
        # The rest of a lease is at least half of it: it is renewed after a third, by checks at each sixth.
        lease_s = min(max(60.0, 2 * (limit_s or 0.0) + 30.0), LEASE_S_MAX)
        for task in self.tasks.values():
            if task.topic in wanted:
                options = task.options
                timeout_s = min((one for one in (options.timeout_s, limit_s) if one is not None), default=None)
                call, around = task.handler(timeout_s), self._middleware
                if options.process:
                    task.wrapped_handler()  # it raises here, not in the process
                    call = self.processes.handler(task.__wrapped__, timeout_s, around)
                    # The process has the time limit, which ends it, and the middleware.
                    timeout_s, around = None, ()
                found.handler(
                    task.topic,
                    tag=task.name,
                    concurrency=self._concurrency(task.topic, concurrency),
                    middleware=around,
                    max_attempts=options.max_attempts,
                    backoff=options.retry,
                    lease=timedelta(seconds=lease_s),
                    timeout=None if timeout_s is None else timedelta(seconds=timeout_s),
                )(call)
        return found

    def _concurrency(self, topic: str, count_max: int) -> int:
        """Tasks of a topic at once. Tasks in processes alone: no more than processes, so that none waits here while
        another worker is idle."""
        is_hosted = all(task.options.process for task in self.tasks.values() if task.topic == topic)
        return min(count_max, self.processes.count_max) if is_hosted else count_max

    def run(self) -> None:
        """Puts the schedules, and runs tasks in this process until SIGTERM or SIGINT: `Consumer.run`. `duetime work`
        runs several processes."""
        self.consumer(schedules=True).run()

    def put_schedules(self) -> None:
        """Puts the schedules of functions with `every`, and waits for the server: for programs without a worker. In the
        eager mode it does nothing.

        Raises:
            DueTimeError: as `Schedules.put`.
        """
        if self._sender.eager is None:
            background.run(self.schedules().put())

    def schedules(self, topics: Iterable[str] | None = None) -> SchedulePutter:
        """The schedules of its tasks, or of those of some topics, for workers."""
        wanted = None if topics is None else set(topics)
        tasks = [task for task in self.tasks.values() if wanted is None or task.topic in wanted]
        return SchedulePutter(self.name, tasks, partial(AsyncSchedules, self._server, token=self._token, tls=self._tls))

    @contextmanager
    def eager(self, clock: EagerClock | None = None) -> Iterator[EagerQueue]:
        """A with block for tests: sends run the tasks here, when they are due by a clock that `advance` moves. No
        server is needed.

            with app.eager() as eager:
                remind.later("2h", 42)
                eager.advance("2h")

        Arguments:
            clock: the test kit's `FakeClock`, for instance; None: one that starts at the real time.
        """
        before, self._sender.eager = self._sender.eager, EagerQueue(self._call_eagerly, clock, self._eager_schedules())
        try:
            yield self._sender.eager
        finally:
            self._sender.eager = before

    def close(self) -> None:
        """Disconnects the producer, and ends processes of tasks; the next send connects again."""
        self._sender.close()
        self.processes.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"App({resolve_server(self._server)}, name={self.name!r}, tasks={list(self.tasks)})"

    def _eager_schedules(self) -> Iterator[EagerSchedule]:
        for task in self.tasks.values():
            if task.options.times is not None:
                yield EagerSchedule(task.name, scheduled_message(self.name, task), task.options.times)

    def _make_producer(self) -> Producer:
        return Producer(self._server, token=self._token, tls=self._tls)

    def _call_eagerly(self, message: EagerMessage) -> Any:
        task = self.tasks[self.name_of(cast("LeasedMessage", message))]
        call = task.wrapped_handler()

        async def call_async() -> object:
            return check_returned(await call(cast("LeasedMessage", message)))

        return call_async() if task.is_asynchronous else check_returned(call(cast("LeasedMessage", message)))
