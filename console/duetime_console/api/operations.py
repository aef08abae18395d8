"""Operations of the API, and the path of a request through one: checks, call, answer or problem.

request ─▶ method? Accept? ─▶ token, query, JSON ─▶ handler ─▶ gateway
│
application/json  ◀── answer                                     │
application/problem+json  ◀── Problem, GatewayError ◀────────────┘
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from duetime_console.api.fields import QueryModel
from duetime_console.api.limits import HTTP_CALL_S_MAX
from duetime_console.api.problems import Problem
from duetime_console.api.reading import JSON_TYPE, check_accept, checked, key_of, query_of, read_json, token_of
from duetime_console.callers import caller_of
from duetime_console.gateway import GatewayError

T = TypeVar("T")


class EmptyQuery(QueryModel):
    """No parameters."""


@dataclass(frozen=True)
class OperationAnswer:
    """The answer of a handler."""

    model: BaseModel
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


class OperationCall:
    """A request with valid form: its caller and its content."""

    def __init__(self, request: Request, token: str, key: str) -> None:
        self._request = request
        self.token = token
        # The Idempotency-Key; empty: none.
        self.key = key

    @property
    def errors_url(self) -> str:
        return errors_url_of(self._request)

    @property
    def caller(self) -> str:
        """The caller that shares limits: a token's user, or else a host."""
        return caller_of(self._request.scope, self.token)

    @property
    def message_id(self) -> str:
        """The message id in the path."""
        return str(self._request.path_params["id"])

    @property
    def topic(self) -> str:
        """The topic in the path."""
        return str(self._request.path_params["name"])

    @property
    def schedule(self) -> str:
        """The schedule's name in the path."""
        return str(self._request.path_params["schedule"])

    @property
    def webhook(self) -> str:
        """The webhook's name in the path."""
        return str(self._request.path_params["webhook"])

    @property
    def group(self) -> str:
        """The group in the path."""
        return str(self._request.path_params["group"])

    async def gateway(self, method: str, request: Any, wait_s: float = 0.0) -> Any:
        """The gateway's answer. Raises: GatewayError."""
        return await self._request.app.state.gateway.call(
            method, request, token=self.token, timeout=HTTP_CALL_S_MAX + wait_s
        )

    async def last(self, method: str, request: Any) -> Any:
        """The last progress of a call within HTTP_CALL_S_MAX; None: there was none. Raises: GatewayError."""
        return await self._request.app.state.gateway.last(method, request, self.token, HTTP_CALL_S_MAX)

    async def while_there(self, work: Coroutine[Any, Any, T]) -> T:
        """Returns the result of `work`; it is cancelled when the client disconnects.

        Raises:
            ClientDisconnected: the client disconnected.
        """
        task = asyncio.ensure_future(work)
        gone = asyncio.ensure_future(_gone(self._request))
        try:
            await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return await task
            raise ClientDisconnected
        finally:
            for each in (task, gone):
                each.cancel()
            await asyncio.gather(task, gone, return_exceptions=True)


def errors_url_of(request: Request) -> str:
    """The URL of the errors' page in the documents."""
    return str(request.app.state.settings.errors)


class ClientDisconnected(Exception):
    """The client disconnected: no one reads an answer."""


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


Handler = Callable[[OperationCall, Any, Any], Awaitable[OperationAnswer]]


@dataclass(frozen=True)
class Operation:
    """One method of one path."""

    method: str
    path: str
    name: str
    summary: str
    handler: Handler
    # Answers by status.
    answers: dict[int, type[BaseModel]]
    query: type[BaseModel] = EmptyQuery
    body: type[BaseModel] | None = None
    description: str = ""
    # Use of the Idempotency-Key; empty: the operation accepts none.
    key: str = ""


class Resource:
    """A path and its operations, as an ASGI application."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        self._operations = {each.method: each for each in operations}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            response = await self._response(request)
        except Problem as problem:
            response = problem.response(errors_url_of(request))
        except GatewayError as error:
            response = Problem.of_error(error).response(errors_url_of(request))
        except ClientDisconnected:
            return
        await response(scope, receive, send)

    async def _response(self, request: Request) -> Response:
        operation = self._operations.get("GET" if request.method == "HEAD" else request.method)
        if operation is None:
            methods = {*self._operations, *({"HEAD"} if "GET" in self._operations else ())}
            detail = f"{request.url.path} does not support {request.method}"
            raise Problem(405, "METHOD_NOT_ALLOWED", detail, headers={"Allow": ", ".join(sorted(methods))})
        check_accept(request)
        key = key_of(request)
        if key and not operation.key:
            raise Problem(400, "REQUEST_INVALID", f"{operation.name} takes no Idempotency-Key")
        call = OperationCall(request, token_of(request), key)
        query = checked(operation.query, query_of(request), "the query")
        body = None
        if operation.body:
            # The body of an unauthenticated caller is not read.
            await request.app.state.sessions.admit(call.token)
            body = checked(operation.body, await read_json(request), "the body")
        answer = await operation.handler(call, query, body)
        text = answer.model.model_dump_json(exclude_unset=True)
        headers = {"Cache-Control": "no-store", **answer.headers}
        return Response(text.encode(), answer.status, headers, JSON_TYPE)


class UnknownResource:
    """Answers unknown paths below /api, as an ASGI application."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        detail = f"{request.url.path} does not exist; /api/v1/openapi.json lists all paths"
        response = Problem(404, "PATH_NOT_FOUND", detail).response(errors_url_of(request))
        await response(scope, receive, send)
