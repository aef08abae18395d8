"""JSON over HTTP, for programs without gRPC; docs/http.md describes its use."""

from itertools import groupby
from operator import attrgetter

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from duetime_console.api.openapi import OPERATIONS, document
from duetime_console.api.operations import Resource, UnknownResource

_BY_PATH = sorted(OPERATIONS, key=attrgetter("path"))


async def _document(request: Request) -> Response:
    return JSONResponse(document(), headers={"Cache-Control": "no-cache"})


def _pattern(path: str) -> str:
    """The regular expression of a path. Ids may contain slashes."""
    return path.replace("{id}", "{id:path}")


ROUTES = [
    Route("/api/v1/openapi.json", _document, methods=["GET"]),
    *(Route(_pattern(path), Resource(list(each))) for path, each in groupby(_BY_PATH, key=attrgetter("path"))),
    Route("/api/{rest:path}", UnknownResource()),
]
