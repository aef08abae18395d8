"""JSON over HTTP, for programs without gRPC; docs/http.md describes its use."""

from itertools import groupby
from operator import attrgetter

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from duetime_console.api.openapi import OPERATIONS, document
from duetime_console.api.operations import Operation, Resource, UnknownResource

# The end of a path sorts last: a schedule may be named `a/pause`, so its path is tried after the longer one.
_BY_PATH = sorted(OPERATIONS, key=lambda each: f"{each.path}~")


async def _document(request: Request) -> Response:
    return JSONResponse(document(), headers={"Cache-Control": "no-cache"})


def _route(path: str, operations: list[Operation]) -> Route:
    """Ids and names of schedules may contain slashes."""
    pattern = path.replace("{id}", "{id:path}").replace("{schedule}", "{schedule:path}")
    # Other methods fall through to a schedule whose name ends like this path.
    methods = [each.method for each in operations] if "{schedule}/" in path else None
    return Route(pattern, Resource(operations), methods=methods)


ROUTES = [
    Route("/api/v1/openapi.json", _document, methods=["GET"]),
    *(_route(path, list(each)) for path, each in groupby(_BY_PATH, key=attrgetter("path"))),
    Route("/api/{rest:path}", UnknownResource()),
]
