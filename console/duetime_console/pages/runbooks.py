"""The runbooks from the documents of this version: available when other documentation is not."""

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

from markdown_it import MarkdownIt
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from duetime_console.rendering import FOLDER, page

# The path in a wheel, and in a source tree.
_PLACES = (FOLDER / "runbooks.md", FOLDER.parents[1] / "docs" / "runbooks.md")


class RunbookSection(NamedTuple):
    anchor: str
    title: str
    html: Markup


async def show(request: Request) -> Response:
    path = next((one for one in _PLACES if one.is_file()), None)
    return page(request, "runbooks.html", sections=_sections(path) if path else [])


@cache
def _sections(path: Path) -> list[RunbookSection]:
    parts = re.split(r"^## (.+)$", path.read_text(), flags=re.MULTILINE)[1:]
    titles, texts = parts[::2], parts[1::2]
    return [RunbookSection(_anchor(title), title, _html(text)) for title, text in zip(titles, texts, strict=True)]


def _html(text: str) -> Markup:
    """Escapes HTML in the text. Links to other pages of the documents become text: they are not served here."""
    text = re.sub(r"\[([^\]]+)\]\((?!#|https?:)[^)]*\)", r"\1", text)
    return Markup(MarkdownIt("commonmark", {"html": False}).enable("table").render(text))  # noqa: S704  the package's text


def _anchor(title: str) -> str:
    return re.sub(r"[^\w-]", "", title.lower().replace(" ", "-"))


ROUTES = [Route("/runbooks", show, methods=["GET"])]
