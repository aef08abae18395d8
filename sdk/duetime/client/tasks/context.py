"""The delivery of a running task, and values that are injected into its call."""

import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    contextmanager,
)
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, TypeVar, overload

from duetime.client.callables import is_asynchronous
from duetime.client.consuming.leased import LeasedMessage
from duetime.client.message import moment

T = TypeVar("T")
Provider = Callable[[], Any]
Overrides = Mapping[Provider, Provider]


@dataclass(frozen=True, slots=True)
class Context:
    """The delivery that a task runs for: `current()`, or a parameter with this annotation."""

    task: str
    topic: str
    message_id: str
    attempt: int = 1
    """The number of this delivery, from 1."""
    due_at: datetime | None = None
    """The due time of this delivery, by the server's clock; None: it was sent without a delay."""
    deadline: datetime | None = None
    """The end of the task's timeout, by this machine's clock; None: it has no timeout."""


@dataclass(frozen=True, slots=True)
class Occurrence:
    """The occurrence that a function of `App.every` runs for: its parameter `occurrence`, or one with this annotation.
    Every attempt has an equal one, so it is the key of a job that must run once."""

    schedule: str
    planned_at: datetime
    """The planned time, also if it runs late; for a call that was sent by hand the time of its sending."""


class TaskRun:
    """One run of a task for a message. Its context is made when it is read: most runs do not need it."""

    __slots__ = ("_context", "_ends_ns", "_message", "_task")

    def __init__(self, task: str, message: LeasedMessage, timeout_s: float | None) -> None:
        self._task, self._message = task, message
        self._ends_ns = None if timeout_s is None else time.time_ns() + round(timeout_s * 1e9)
        self._context: Context | None = None

    @property
    def context(self) -> Context:
        """The same object each time."""
        if self._context is None:
            message = self._message
            deadline = None if self._ends_ns is None else moment(self._ends_ns // 1_000_000)
            self._context = Context(self._task, message.topic, message.id, message.attempt, message.due_at, deadline)
        return self._context

    @property
    def occurrence(self) -> Occurrence:
        message = self._message
        return Occurrence(message.schedule or self._task, message.planned_at or message.born_at)


# None: no task runs.
running: ContextVar[TaskRun | None] = ContextVar("duetime_task", default=None)


def current() -> Context:
    """The context of the running task, also in threads and asyncio tasks that it starts with its context.

    Raises:
        LookupError: no task runs.
    """
    return _running().context


def occurrence() -> Occurrence:
    """The occurrence of the running task. Raises: LookupError: no task runs."""
    return _running().occurrence


def current_if_any() -> Context | None:
    """As `current`; None: no task runs."""
    found = running.get()
    return None if found is None else found.context


def occurrence_if_any() -> Occurrence | None:
    """As `occurrence`; None: no task runs."""
    found = running.get()
    return None if found is None else found.occurrence


def _running() -> TaskRun:
    found = running.get()
    if found is None:
        raise LookupError("no task runs here")
    return found


@dataclass(frozen=True, slots=True)
class Dependency:
    """The default of a parameter that gets its value from a provider."""

    provider: Provider


@overload
def Depends(provider: Callable[[], AsyncIterator[T]]) -> T: ...


@overload
def Depends(provider: Callable[[], Iterator[T]]) -> T: ...


@overload
def Depends(provider: Callable[[], Awaitable[T]]) -> T: ...


@overload
def Depends(provider: Callable[[], T]) -> T: ...


def Depends(provider: Provider) -> Any:  # noqa: N802  the field's name for it
    """The default of a task's parameter: each run gets its value from a function without arguments, and it is no part
    of the message. A generator yields the value, and continues after the run.

    Coroutine functions and asynchronous generators are for tasks that are coroutine functions.
    """
    return Dependency(provider)


def needs_loop(provider: Provider) -> bool:
    """Whether the value of a provider is awaited."""
    return is_asynchronous(provider) or inspect.isasyncgenfunction(provider)


def provided(dependencies: Mapping[str, Dependency], overrides: Overrides, stack: ExitStack) -> dict[str, Any]:
    """The value of each dependency; `stack` ends their generators."""
    return {name: _value(overrides.get(one.provider, one.provider), stack) for name, one in dependencies.items()}


async def provided_async(
    dependencies: Mapping[str, Dependency], overrides: Overrides, stack: AsyncExitStack
) -> dict[str, Any]:
    """As `provided`, in an event loop."""
    values = {}
    for name, one in dependencies.items():
        provider = overrides.get(one.provider, one.provider)
        if inspect.isasyncgenfunction(provider):
            opened = asynccontextmanager(provider)()
            values[name] = await opened.__aenter__()
            stack.push_async_exit(partial(_close_async, opened))
        elif is_asynchronous(provider):
            values[name] = await provider()
        else:
            values[name] = _value(provider, stack)
    return values


def _value(provider: Provider, stack: ExitStack | AsyncExitStack) -> Any:
    if inspect.isgeneratorfunction(provider):
        opened = contextmanager(provider)()
        value = opened.__enter__()
        stack.push(partial(_close, opened))
        return value
    return provider()


def _close(opened: AbstractContextManager[Any], *error: Any) -> None:
    """Ends a generator. It may catch the error of the task, but never hides it: the message would be acknowledged."""
    opened.__exit__(*error)


async def _close_async(opened: AbstractAsyncContextManager[Any], *error: Any) -> None:
    """As `_close`, in an event loop."""
    await opened.__aexit__(*error)
