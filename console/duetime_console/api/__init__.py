"""JSON over HTTP, for programs without gRPC; docs/http.md describes its use."""

from itertools import groupby
from operator import attrgetter

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Match, Route
from starlette.types import Scope

from duetime_console.api.openapi import OPERATIONS, document
from duetime_console.api.operations import Operation, Resource, UnknownResource

# The end of a path sorts last: a schedule may be named `a/pause`, so its path is tried after the longer one.
_BY_PATH = sorted(OPERATIONS, key=lambda each: f"{each.path}~")


async def _document(request: Request) -> Response:
    return JSONResponse(document(), headers={"Cache-Control": "no-cache"})


class _PartRoute(Route):
    """A path below a schedule, such as `history`. An escaped slash before it is one of the schedule's name."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        last = self.path.rpartition("/")[2].encode()
        if scope.get("raw_path", b"").lower().endswith(b"%2f" + last):
            return Match.NONE, {}
        return super().matches(scope)


def _route(path: str, operations: list[Operation]) -> Route:
    """Ids and names of schedules may contain slashes."""
    pattern = path.replace("{id}", "{id:path}").replace("{schedule}", "{schedule:path}")
    # Other methods fall through to a schedule whose name ends like this path.
    if "{schedule}/" in path:
        return _PartRoute(pattern, Resource(operations), methods=[each.method for each in operations])
    return Route(pattern, Resource(operations))


ROUTES = [
    Route("/api/v1/openapi.json", _document, methods=["GET"]),
    *(_route(path, list(each)) for path, each in groupby(_BY_PATH, key=attrgetter("path"))),
    Route("/api/{rest:path}", UnknownResource()),
]
