"""Tasks in FastAPI: the lifespan that connects, dependencies, and errors as responses.

tasks = App("shop")
api = FastAPI(lifespan=lifespan(tasks))
add_error_handlers(api)

@api.post("/orders")
async def place(producer: ProducerDependency) -> None: ...

Needs the extra `fastapi`.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Annotated, Any

from fastapi import Depends, FastAPI
from fastapi.requests import HTTPConnection
from fastapi.responses import JSONResponse

from duetime.client.errors import InvalidArgument, Overloaded, Timeout, Unavailable
from duetime.client.sending.producer import AsyncProducer
from duetime.client.tasks.app import App

RETRY_AFTER_S = 1


def lifespan(tasks: App, *, works: bool = False) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    """The lifespan of an application with tasks: it opens a producer, and disconnects at the end.

    In a lifespan of your own: `async with lifespan(tasks)(api): yield`.

    Arguments:
        works: run the tasks in this process too, with their schedules, until the application stops; it then drains.
            `duetime work` is for processes of their own.

    Raises:
        InvalidArgument: the server, token or certificates of the tasks break a rule, or `works` finds no task.
    """

    @asynccontextmanager
    async def connected(api: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(asyncio.to_thread, tasks.close)
            api.state.duetime = tasks
            api.state.duetime_producer = await stack.enter_async_context(tasks.async_producer())
            if works:
                await stack.enter_async_context(tasks.consumer(schedules=True))
            yield

    return connected


def tasks_of(connection: HTTPConnection) -> App:
    """The tasks of the application, for a request or a websocket. Raises: RuntimeError: no lifespan has run."""
    return _state(connection, "duetime")  # type: ignore[no-any-return]


def producer_of(connection: HTTPConnection) -> AsyncProducer:
    """The producer of the application, as `tasks_of`."""
    return _state(connection, "duetime_producer")  # type: ignore[no-any-return]


TasksDependency = Annotated[App, Depends(tasks_of)]
"""The `App`, as the type of a parameter."""
ProducerDependency = Annotated[AsyncProducer, Depends(producer_of)]
"""The producer of the lifespan, on the event loop of the requests."""


def add_error_handlers(api: FastAPI) -> None:
    """Makes responses of errors that no endpoint handles: 422 in FastAPI's form if an argument breaks a rule, 503 with
    Retry-After if the server does not take messages now."""
    api.add_exception_handler(InvalidArgument, _rejected)
    for kind in (Overloaded, Timeout, Unavailable):
        api.add_exception_handler(kind, _unavailable)


def _state(connection: HTTPConnection, name: str) -> Any:
    found = getattr(connection.app.state, name, None)
    if found is None:
        raise RuntimeError("the lifespan has not run: FastAPI(lifespan=lifespan(tasks))")
    return found


async def _rejected(connection: HTTPConnection, error: Exception) -> JSONResponse:
    assert isinstance(error, InvalidArgument)
    detail = [
        {"type": "value_error", "loc": ["body", one.field], "msg": one.description} for one in error.violations
    ] or [{"type": "value_error", "loc": ["body"], "msg": str(error)}]
    return JSONResponse({"detail": detail}, 422)


async def _unavailable(connection: HTTPConnection, error: Exception) -> JSONResponse:
    wait_s = max(math.ceil(getattr(error, "retry_after_s", 0.0)), RETRY_AFTER_S)
    return JSONResponse({"detail": "messages can't be sent now"}, 503, {"Retry-After": str(wait_s)})
