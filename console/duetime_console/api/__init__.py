"""JSON over HTTP: the same cluster for those without gRPC. docs/http.md tells how to use it."""

from itertools import groupby
from operator import attrgetter

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from duetime_console.api.openapi import OPERATIONS, document
from duetime_console.api.operations import Nowhere, Resource

_BY_PATH = sorted(OPERATIONS, key=attrgetter("path"))


async def _document(request: Request) -> Response:
    return JSONResponse(document(), headers={"Cache-Control": "no-cache"})


def _pattern(path: str) -> str:
    """Ids may have slashes."""
    return path.replace("{id}", "{id:path}")


ROUTES = [
    Route("/api/v1/openapi.json", _document, methods=["GET"]),
    *(Route(_pattern(path), Resource(list(each))) for path, each in groupby(_BY_PATH, key=attrgetter("path"))),
    Route("/api/{rest:path}", Nowhere()),
]
