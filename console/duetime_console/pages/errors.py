"""Reasons of errors, from the documents of this version: the target of a problem's `type`."""

import re
from functools import cache
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from duetime_console.rendering import FOLDER, page

_NAMES = ("protocol.md", "http.md")
# The path in a wheel, and in a source tree.
_FOLDERS = (FOLDER, FOLDER.parents[1] / "docs")
_ROW = re.compile(r"^\| (`[A-Z_]+`(?:, `[A-Z_]+`)*) \| ([^|]+) \| (.+?) \|(?: ([^|]+) \|)?$", re.M)


class Reason(NamedTuple):
    name: str
    status: str
    text: str
    # Whether to repeat the call; empty: unspecified.
    repeat: str


async def show(request: Request) -> Response:
    return page(request, "errors.html", reasons=_reasons())


@cache
def _reasons() -> list[Reason]:
    """Reasons by name; the first if one occurs twice."""
    found: dict[str, Reason] = {}
    for name in _NAMES:
        path = next((folder / name for folder in _FOLDERS if (folder / name).is_file()), None)
        text = path.read_text().partition("\n## Errors\n")[2].partition("\n## ")[0] if path else ""
        for names, *cells in _ROW.findall(text):
            for reason in re.findall(r"\w+", names):
                found.setdefault(reason, Reason(reason, *map(_plain, cells)))
    return [found[name] for name in sorted(found)]


def _plain(text: str) -> str:
    """Removes links and marks."""
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text).replace("`", "")


ROUTES = [Route("/errors", show, methods=["GET"])]
