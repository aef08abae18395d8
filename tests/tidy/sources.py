"""The project's own files, and their contents: for checks beyond linters."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
# Folder of each package.
PACKAGES = {
    "duetime_format": "format/duetime_format",
    "duetime_core": "core/duetime_core",
    "duetime_shard": "shard/duetime_shard",
    "duetime": "sdk/duetime",
    "duetime_gateway": "services/producer_gw/duetime_gateway",
    "duetime_store": "services/store/duetime_store",
    "duetime_scheduler": "services/scheduler/duetime_scheduler",
    "duetime_retry": "services/retry/duetime_retry",
    "duetime_webhooks": "services/webhooks/duetime_webhooks",
    "duetime_spark": "spark/duetime_spark",
    "duetime_console": "console/duetime_console",
}
# Folders of the product, and of all code.
PRODUCT = ("format", "core", "shard", "sdk", "services", "spark", "console")
SOURCES = (*PRODUCT, "tests", "bench", "deploy", "examples")
GENERATED = PROJECT / "sdk" / "duetime" / "v1"
# The rest of its folder is written by hand.
GENERATED_FILE = PROJECT / "services/producer_gw/duetime_gateway/rocketmq/wire/messaging_pb2.py"


@cache
def _below(folder: str) -> list[Path]:
    return sorted((PROJECT / folder).rglob("*.*"))


def files(*folders: str, suffixes: tuple[str, ...] = (".py",)) -> Iterator[Path]:
    """Every file of these kinds that people wrote, by folders of the project."""
    for folder in folders:
        for path in _below(folder):
            if path.suffix in suffixes and GENERATED not in path.parents and path != GENERATED_FILE:
                yield path


def documents() -> Iterator[Path]:
    yield from sorted(PROJECT.glob("*.md"))
    yield from files("docs", *SOURCES, suffixes=(".md",))


def name(path: Path) -> str:
    """A file as reports name it."""
    return str(path.relative_to(PROJECT))


def module_of(path: Path) -> str:
    """The dotted name of a module of one of the packages, of `tests` or of `bench`."""
    for folder in PACKAGES.values():
        if PROJECT / folder in path.parents:
            parts = path.relative_to((PROJECT / folder).parent).with_suffix("").parts
            break
    else:
        parts = path.relative_to(PROJECT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def content(path: Path) -> str:
    """A file's text, read once for all tests."""
    return path.read_text()


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(content(path))


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Every node of a file's tree, in no order that a test may rely on."""
    return tuple(ast.walk(tree(path)))
