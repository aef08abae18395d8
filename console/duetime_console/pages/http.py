"""The page of JSON over HTTP: its operations and objects, from the OpenAPI document."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from duetime_console.api.openapi import schemas, sections
from duetime_console.rendering import page


async def show(request: Request) -> Response:
    return page(request, "http.html", sections=sections(), schemas=schemas())


ROUTES = [Route("/api/v1", show, methods=["GET"])]
