"""The project's documents in its tree: their list, headings, links and tables."""

import re
from collections.abc import Iterator
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
EXAMPLES = PROJECT / "examples"
# Folders with documents of their own; docs/ also has subfolders with documents.
FOLDERS = (".", "docs", "console", "native", "services", "sdk", "spark", "examples")

_FENCE = re.compile(r"\s*(```+|~~~+)")
_HEADING = re.compile(r"(#{1,6})\s+(.+?)\s*#*$")
_CODE = re.compile(r"(`+)(.+?)\1")
# Its text may begin on the line before.
_LINK = re.compile(r"(?<=\]\()([^)\s]+)(?=\))")
_ELSEWHERE = re.compile(r"[a-z]+:")


def documents() -> list[Path]:
    """Every document of the site except the generated ones."""
    found = set(PROJECT.glob("*.md"))
    for folder in FOLDERS[1:]:
        found |= set((PROJECT / folder).rglob("*.md"))
    return sorted(found)


def prose(text: str) -> Iterator[tuple[int, str]]:
    """Lines of a document outside of code blocks, counted from 1."""
    fence = ""
    for number, line in enumerate(text.splitlines(), 1):
        mark = _FENCE.match(line)
        if mark and (not fence or mark[1].startswith(fence)):
            fence = "" if fence else mark[1]
        elif not fence:
            yield number, line


def slug(heading: str) -> str:
    """The anchor of a heading, in the form of repository hosts and the site."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def anchors(text: str) -> set[str]:
    """The anchors of a document; the second of equal headings ends with `-1`."""
    found: set[str] = set(re.findall(r'\bid="([^"]+)"', text))
    counts: dict[str, int] = {}
    for _, line in prose(text):
        if heading := _HEADING.match(line):
            name = slug(heading[2])
            count = counts.get(name, 0)
            counts[name] = count + 1
            found.add(f"{name}-{count}" if count else name)
    return found


def links(text: str) -> Iterator[tuple[int, str]]:
    """Line and target of every link and picture, except those to other hosts."""
    for number, line in prose(text):
        for link in _LINK.finditer(_without_code(line)):
            if not _ELSEWHERE.match(link[1]):
                yield number, link[1]


def _without_code(line: str) -> str:
    """The line with blanks in place of code."""
    return _CODE.sub(lambda code: " " * len(code[0]), line)


def relinked(text: str, source: Path, target: Path) -> str:
    """The text of a document, or a part of it, with links adjusted to another path.

    At the target READMEs are index pages, and that of the examples has their text.
    """

    def moved(link: str) -> str:
        path, _, anchor = link.partition("#")
        if _ELSEWHERE.match(link) or (not path and source == target):
            return link
        aim = (source.parent / path).resolve() if path else source
        if aim.parent == EXAMPLES and aim.suffix == ".py":
            aim, anchor = EXAMPLES / "README.md", slug(aim.name)
        place = aim.with_name("index.md") if aim.name == "README.md" else aim
        return _way(place, target.parent) + ("#" + anchor if anchor else "")

    lines = text.splitlines(keepends=True)
    for number, line in list(prose(text)):
        for link in reversed(list(_LINK.finditer(_without_code(line)))):
            whole = lines[number - 1]
            lines[number - 1] = whole[: link.start()] + moved(link[1]) + whole[link.end() :]
    return "".join(lines)


def _way(place: Path, folder: Path) -> str:
    """A path relative to a folder that need not be above it."""
    common = next(parent for parent in (folder, *folder.parents) if parent == place.parent or parent in place.parents)
    up = len(folder.parts) - len(common.parts)
    return "/".join([".."] * up + list(place.parts[len(common.parts) :]))


def rows(text: str) -> Iterator[list[str]]:
    """Cells of all rows of all tables, without the dashes. A `|` in code, or after `\\`, separates no cells."""
    for _, line in prose(text):
        if line.startswith("|") and not re.fullmatch(r"[|\s:-]+", line):
            whole = _CODE.sub(lambda code: code[0].replace("\\|", "|").replace("|", "\0"), line.strip())
            cells = re.split(r"(?<!\\)\|", whole.strip("|"))
            yield [cell.strip().replace("\0", "|").replace("\\|", "|") for cell in cells]


def section(text: str, heading: str) -> str:
    """The part of a document below a heading, up to the next one of its level or above."""
    found = re.search(rf"^(#+) {re.escape(heading)}$", text, re.M)
    if not found:
        raise LookupError(f"no heading {heading!r}")
    rest = text[found.end() :]
    end = re.search(rf"^#{{1,{len(found[1])}}} ", rest, re.M)
    return rest[: end.start()] if end else rest
