"""Builds the documents as a site that loads nothing from other hosts: `dist/site/html`.

The documents keep their paths: the site's source is a copy of the tree's Markdown, with READMEs as index pages and the
generated reference beside it. Zensical turns it into HTML, and fails on broken links.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from deploy.site import rpcs, sdk, tables
from deploy.site.documents import EXAMPLES, PROJECT, documents, links, relinked

TEMPLATE = Path(__file__).with_name("zensical.toml")
STYLE = Path(__file__).with_name("extra.css")
# Zensical loads it from another host; search needs it if pages are opened as files.
SHIM = Path(__file__).with_name("iframe-worker.js")
SHIM_URL = "https://unpkg.com/iframe-worker/shim"
REFERENCE = Path("docs") / "reference"
# Resources that a page would load from other hosts.
_LOADED = re.compile(
    r"<(?:script|img|iframe|source)[^>]*\ssrc=[\"']?https?:"
    r"|<link[^>]*rel=[\"']?(?:stylesheet|preconnect|icon)[^>]*href=[\"']?https?:"
)


def reference() -> Iterator[tuple[Path, str]]:
    """Path within the site's source, and text, of every generated page."""
    for name in sdk.pages():
        yield REFERENCE / "sdk" / f"{name}.md", sdk.page(name)
    for name in rpcs.files():
        yield REFERENCE / "rpc" / f"{name}.md", rpcs.page(name)
    for name, make in (("errors", tables.errors), ("metrics", tables.metrics), ("settings", tables.settings)):
        path = REFERENCE / f"{name}.md"
        yield path, make(PROJECT / path)


def assemble(source: Path) -> None:
    """Writes the Markdown of the site, and the files that it links to."""
    for path in documents():
        place = path.with_name("index.md") if path.name == "README.md" else path
        text = relinked(path.read_text(), path, place)
        if path.parent == EXAMPLES:
            text += "".join(_program(each) for each in sorted(path.parent.glob("*.py")))
        _write(source / place.relative_to(PROJECT), text)
        for _, link in links(path.read_text()):
            aim = (path.parent / link.partition("#")[0]).resolve()
            if aim.is_file() and aim.suffix != ".md":
                copy = source / aim.relative_to(PROJECT)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(aim, copy)
    for name, text in reference():
        _write(source / name, text)
    for path in (STYLE, SHIM):
        _write(source / path.name, path.read_text())


def _program(path: Path) -> str:
    return f"\n## {path.name}\n\n```python\n{path.read_text()}```\n"


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def configuration() -> str:
    """The template, filled with the found pages: decisions, parts of the SDK, files of the contract."""
    decisions = sorted((PROJECT / "docs" / "adr").glob("*.md"))
    lists = {
        "@sdk@": [f'{{"{sdk.title(name)}" = "docs/reference/sdk/{name}.md"}}' for name in sdk.pages()],
        "@decisions@": [f'"docs/adr/{path.name}"' for path in decisions],
        "@rpcs@": [f'{{"{rpcs.title(name)}" = "docs/reference/rpc/{name}.md"}}' for name in sorted(rpcs.files())],
    }
    text = TEMPLATE.read_text()
    for mark, items in lists.items():
        text = text.replace(f'"{mark}"', ",\n        ".join(items))
    return text


def load_shim_from_here(html: Path) -> None:
    for page in html.rglob("*.html"):
        way = "/".join([".."] * (len(page.relative_to(html).parts) - 1) + [SHIM.name])
        page.write_text(page.read_text().replace(SHIM_URL, way))


def loaded_from_elsewhere(html: Path) -> list[str]:
    """Pages that would load a file from another host."""
    return [str(page) for page in sorted(html.rglob("*.html")) if _LOADED.search(page.read_text())]


def build(folder: Path) -> Path:
    """Builds the site in `folder/html`.

    Raises:
        CalledProcessError: a page has a fault, which is printed.
        ValueError: a page loads a file from another host.
    """
    shutil.rmtree(folder, ignore_errors=True)
    assemble(folder / "source")
    (folder / "zensical.toml").write_text(configuration())
    zensical = Path(sys.executable).with_name("zensical")
    subprocess.run([zensical, "build", "--strict", "--clean"], cwd=folder, check=True)
    load_shim_from_here(folder / "html")
    if pages := loaded_from_elsewhere(folder / "html"):
        raise ValueError(f"pages load files of other hosts: {pages}")
    return folder / "html"


if __name__ == "__main__":
    print(f"the site is in {build(PROJECT / 'dist' / 'site').relative_to(PROJECT)}: open index.html")
