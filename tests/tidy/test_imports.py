"""Imports between modules: no circles, no module without an importer, and pure modules stay pure."""

import ast
import re
import tomllib
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import grimp

from tests.tidy.sources import PACKAGES, PRODUCT, PROJECT, content, documents, files, module_of, name, nodes, tree

CONFIG: dict[str, Any] = tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["importlinter"]
# Files that start modules without an import: the build, containers, tasks.
STARTERS = ("pyproject.toml", "sdk/pyproject.toml", "Makefile", "Dockerfile", "docker-compose.yml", "deploy")
# Alembic finds its scripts by their folder.
MIGRATIONS = "duetime_core.metadata.migrations."
# Django finds these modules of an app by their names.
DJANGO = re.compile(r"duetime\.django\.(\w+\.)?(apps|admin|models|migrations\.\w+|management\.commands\.\w+)")
DOTTED = re.compile(r"\b(?:duetime\w*|bench|tests)(?:\.\w+)+")


@cache
def graph() -> grimp.ImportGraph:
    """Imports by module, also those in functions and for types only."""
    return grimp.build_graph(*PACKAGES, cache_dir=None)


def contract(title: str) -> dict[str, Any]:
    (found,) = [each for each in CONFIG["contracts"] if each["name"] == title]
    return dict(found)


def test_modules_import_each_other_in_no_circle() -> None:
    """Circles of folders are import-linter's."""
    imports = graph()
    TopologicalSorter({each: imports.find_modules_directly_imported_by(each) for each in imports.modules}).prepare()


def test_folders_of_every_package_are_held_free_of_circles() -> None:
    assert set(contract("no circle of imports between files and folders")["ancestors"]) == set(PACKAGES)


@cache
def imported_by(path: Path) -> frozenset[str]:
    """The modules that a file imports, and the dotted names in its texts: modules are also loaded by name."""
    found: set[str] = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found |= set(DOTTED.findall(node.value))
    return frozenset(found)


def lazy_names(path: Path) -> set[str]:
    """Imports of a package's `__getattr__`: the values of its table of modules."""
    texts = {node.value for node in nodes(path) if isinstance(node, ast.Constant)}
    return {f"{module_of(path)}.{text}" for text in texts if isinstance(text, str) and text.isidentifier()}


def test_every_module_is_imported_or_started() -> None:
    ours = {path: module_of(path) for path in files(*PRODUCT, "bench")}
    alive: set[str] = set()
    for path in ours:
        alive |= imported_by(path) - {ours[path]}
        if path.name == "__init__.py":
            alive |= lazy_names(path)
    for starter in STARTERS:
        for path in [PROJECT / starter] if (PROJECT / starter).is_file() else (PROJECT / starter).rglob("*.*"):
            if path.suffix != ".pyc":
                text = content(path)
                alive |= set(re.findall(r"\b(?:duetime|bench)\w*(?:\.\w+)*", text))
                alive |= {
                    script.replace("/", ".") for script in re.findall(r"(?:python |path = \")(\w+/\w+)\.py", text)
                }
    for path in documents():
        text = content(path)
        alive |= set(re.findall(r"python -m ([\w.]+)", text))
        alive |= {f"{package}.{each}" for package, each in re.findall(r"from (duetime) import (\w+)", text)}
    dead = [
        each
        for path, each in ours.items()
        if each not in alive
        and path.name not in ("__init__.py", "__main__.py")
        and not each.startswith(MIGRATIONS)
        and not DJANGO.fullmatch(each)
    ]
    assert dead == []


def test_every_module_of_the_tests_is_used() -> None:
    """pytest finds tests and conftest by their names; some test imports every other module."""
    ours = {path: module_of(path) for path in files("tests")}
    alive: set[str] = set()
    for path in ours:
        alive |= imported_by(path) - {ours[path]}
    alive |= set(re.findall(r"\btests(?:\.\w+)+", (PROJECT / "Makefile").read_text()))
    found_by_pytest = re.compile(r"(test_\w+|conftest|__init__|__main__)\.py")
    assert [
        name(path) for path, each in ours.items() if each not in alive and not found_by_pytest.fullmatch(path.name)
    ] == []


def test_modules_that_call_themselves_pure_are_listed() -> None:
    """They say so by a sentence that begins with `Pure`."""
    pure = {
        module_of(path)
        for path in files(*PRODUCT)
        if re.search(r"(?:^|[.:;?] )Pure\b", ast.get_docstring(tree(path)) or "", re.M)
    }
    assert len(pure) > 10
    assert pure - set(contract("pure modules do no I/O")["source_modules"]) == set()
