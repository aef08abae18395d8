"""A function whose calls can be sent: now, later, in a transaction."""

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from copy import copy
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, ParamSpec, Self, TypedDict, TypeVar, Unpack

from duetime.client.administering.schedules import ScheduleTimes
from duetime.client.callables import is_asynchronous
from duetime.client.consuming.failing import Reject
from duetime.client.consuming.leased import LeasedMessage
from duetime.client.consuming.wrapping import HandlerCallOptions, Middleware
from duetime.client.decoding import TypeMismatch
from duetime.client.errors import BadBody
from duetime.client.lengths import Length
from duetime.client.message import CancelResult, Message, MessageRef, Receipt
from duetime.client.retry_policy import Backoff
from duetime.client.tasks.arguments import TaskSignature
from duetime.client.tasks.context import Dependency, Overrides, TaskRun, provided, provided_async, running
from duetime.client.tasks.limits import TaskLimit
from duetime.client.tasks.naming import named
from duetime.client.tasks.sender import TaskSender

P = ParamSpec("P")
R = TypeVar("R")


class SendOptions(TypedDict, total=False):
    """The options of a send; see `Message`."""

    delay: Length
    deliver_at: datetime
    expires: Length
    key: str
    replace: bool
    max_wait: Length
    priority: int
    properties: Mapping[str, str]
    sharding_key: str
    retry: str
    id: str


@dataclass(frozen=True, slots=True)
class TaskOptions:
    """The options of a task's runs; `timeout_s` None: no limit."""

    name: str
    topic: str
    retry: Backoff | None = None
    max_attempts: int | None = None
    timeout_s: float | None = None
    # The times of its schedule; None: it has none.
    times: ScheduleTimes | None = None
    # Whether workers run it in a process of its own; see `processes.py`.
    process: bool = False
    limit: TaskLimit = field(default_factory=TaskLimit)
    # The parameter with the sharding key of a call; empty: the first one if the limit has `per_key`, else none.
    sharding_key: str = ""
    # The property of its messages that has its name, beside the tag; None: none.
    named_by: str | None = None


class Task(Generic[P, R]):
    """A function of an app, made by `App.task`. A call runs the function here; `send` and its kin send a message.

    Each method for plain code has a twin with an `a` before its name, which is awaited in an event loop.
    """

    __name__: str
    __wrapped__: Callable[..., Any]

    def __init__(
        self,
        function: Callable[P, R],
        options: TaskOptions,
        sender: TaskSender,
        overrides: Overrides,
        middleware: Sequence[Middleware],
    ) -> None:
        functools.update_wrapper(self, function)
        self._function: Callable[..., Any] = function
        self._signature = TaskSignature(function, is_scheduled=options.times is not None)
        # The parameter with the sharding key; empty: there is none.
        self._key = self._signature.key(options.sharding_key, is_needed=options.limit.per_key is not None)
        self.is_asynchronous = is_asynchronous(function)
        self.options = options
        self._sender = sender
        self._overrides = overrides
        self._middleware = middleware
        self._send_options: SendOptions = {}

    @property
    def name(self) -> str:
        """The tag of its messages."""
        return self.options.name

    @property
    def topic(self) -> str:
        return self.options.topic

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Calls the function here. Injected parameters may be given by name."""
        injected = self._signature.injected
        given = {name: kwargs[name] for name in kwargs if name in injected}
        sent = {name: value for name, value in kwargs.items() if name not in injected}
        call: Callable[..., Any] = self._call_async if self.is_asynchronous else self._call
        result: R = call(self._signature.bound(args, sent) | given)
        return result

    def with_options(self, **options: Unpack[SendOptions]) -> Self:
        """The same task, with options for its sends: `remind.with_options(key="42", replace=True).later("1h", 42)`."""
        other = copy(self)
        other._send_options = {**self._send_options, **options}
        return other

    def message(self, *args: P.args, **kwargs: P.kwargs) -> Message:
        """The message that a send sends: for `app.producer.send_many` and transactions.

        Raises:
            TypeError: the function does not take these arguments.
            InvalidArgument: an argument does not fit its annotation, has no form in JSON, or would arrive as another
                value. Or `properties` give the one that names the task another value.
        """
        arguments = self._signature.bound(args, kwargs)
        options = self._send_options
        if self._key and "sharding_key" not in options:
            options = {**options, "sharding_key": self._signature.key_text(self._key, arguments)}
        if self.options.named_by is not None:
            options = {**options, "properties": self.named(options.get("properties", {}))}
        message = Message(self.topic, self._signature.encoded(arguments), tags=self.name, **options)
        self._signature.check(message.body, arguments)
        return message

    def named(self, properties: Mapping[str, str]) -> Mapping[str, str]:
        """Properties of a message, with the one that names the task, if the app has one. Raises: InvalidArgument."""
        return named(properties, self.options.named_by, self.name)

    def send(self, *args: P.args, **kwargs: P.kwargs) -> Receipt:
        """Sends a call of the function; a worker runs it.

        Raises:
            TypeError, InvalidArgument: as `message`.
            DueTimeError: as `Producer.send`.
        """
        return self._sender.send(self.message(*args, **kwargs))

    def later(self, delay: Length, /, *args: P.args, **kwargs: P.kwargs) -> Receipt:
        """As `send`, for a run after a delay: "30m", "1h30m" or a timedelta."""
        return self.with_options(delay=delay).send(*args, **kwargs)

    def at(self, when: datetime, /, *args: P.args, **kwargs: P.kwargs) -> Receipt:
        """As `send`, for a run at a time, which has a time zone."""
        return self.with_options(deliver_at=when).send(*args, **kwargs)

    def send_in(self, session: Any, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Writes the call into the app's outbox, in the transaction of a session; returns the message's id. For an
        asynchronous session: awaited.

        Raises:
            InvalidArgument: as `message`, or the app has no outbox.
        """
        return self._sender.send_in(session, self.message(*args, **kwargs))

    def cancel(self, call: MessageRef | str) -> CancelResult:
        """Cancels a pending call by its receipt or id, as `Producer.cancel` does."""
        return self._sender.cancel(call, self.topic)

    async def asend(self, *args: P.args, **kwargs: P.kwargs) -> Receipt:
        """As `send`, in an event loop."""
        return await self._sender.asend(self.message(*args, **kwargs))

    async def alater(self, delay: Length, /, *args: P.args, **kwargs: P.kwargs) -> Receipt:
        """As `later`, in an event loop."""
        return await self.with_options(delay=delay).asend(*args, **kwargs)

    async def aat(self, when: datetime, /, *args: P.args, **kwargs: P.kwargs) -> Receipt:
        """As `at`, in an event loop."""
        return await self.with_options(deliver_at=when).asend(*args, **kwargs)

    async def acancel(self, call: MessageRef | str) -> CancelResult:
        """As `cancel`, in an event loop."""
        return await self._sender.acancel(call, self.topic)

    def __repr__(self) -> str:
        return f"Task({self.name}, topic={self.topic!r})"

    def handler(self, timeout_s: float | None = None) -> Callable[[LeasedMessage], Any]:
        """The handler of its messages for a consumer: a coroutine function if the function is one.

        It rejects a message whose arguments the function does not take: a retry would not help. `timeout_s`: the limit
        that the consumer keeps, for the context's deadline; None: the task's own.
        """

        timeout_s = self.options.timeout_s if timeout_s is None else timeout_s

        def handle(message: LeasedMessage) -> Any:
            arguments = self._arguments(message)
            token = running.set(TaskRun(self.name, message, timeout_s))
            try:
                return self._call(arguments)
            finally:
                running.reset(token)

        name, function, has_injected = self.name, self._function, bool(self._signature.injected)
        decoded = self._signature.decoded

        async def handle_async(message: LeasedMessage) -> Any:
            try:
                arguments = decoded(message.body, message.content_type)
            except (TypeMismatch, BadBody) as error:
                raise Reject(str(error)) from error
            before = running.get()
            running.set(TaskRun(name, message, timeout_s))
            try:
                return await (self._call_async(arguments) if has_injected else function(**arguments))
            finally:
                # No token: an abandoned coroutine ends in another context.
                running.set(before)

        return handle_async if self.is_asynchronous else handle

    def wrapped_handler(self, timeout_s: float | None = None) -> Callable[[LeasedMessage], Any]:
        """As `handler`, with the app's middleware around it.

        Raises:
            InvalidArgument: middleware is a coroutine function, and the task is not.
        """
        return HandlerCallOptions(self._middleware).wrapped(self.handler(timeout_s))

    def _arguments(self, message: LeasedMessage) -> dict[str, Any]:
        """Raises: Reject."""
        try:
            return self._signature.decoded(message.body, message.content_type)
        except (TypeMismatch, BadBody) as error:
            raise Reject(str(error)) from error

    def _call(self, arguments: dict[str, Any]) -> Any:
        if not self._signature.injected:
            return self._function(**arguments)
        with ExitStack() as stack:
            values = provided(self._missing(arguments), self._overrides, stack)
            return self._function(**arguments, **values)

    async def _call_async(self, arguments: dict[str, Any]) -> Any:
        async with AsyncExitStack() as stack:
            values = await provided_async(self._missing(arguments), self._overrides, stack)
            return await self._function(**arguments, **values)

    def _missing(self, arguments: Mapping[str, Any]) -> dict[str, Dependency]:
        return {name: one for name, one in self._signature.injected.items() if name not in arguments}
