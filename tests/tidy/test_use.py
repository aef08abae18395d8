"""A package's definitions are used by more than its tests."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.tidy.sources import PACKAGES, PROJECT, content, files, name, tree

# Names used by tests alone, or by code outside the project, with the reason.
ALLOWED = {
    "core/duetime_core/testing/cluster.py stop_node": "the test kit is for tests, users' too",
    "core/duetime_core/pytest_plugin.py pytest_addoption": "called by pytest",
    "core/duetime_core/rpc/serving.py add_registered_method_handlers": "called by gRPC's generated code",
    "sdk/duetime/client/tasks/app.py put_schedules": "for users' programs that run the consumer themselves",
    "sdk/duetime/django/apps.py DueTimeConfig": "found by Django",
    "sdk/duetime/django/outbox/apps.py OutboxConfig": "found by Django",
    "sdk/duetime/fastapi.py add_error_handlers": "called by users' applications",
    "services/store/duetime_store/lanes/attendance.py asking_count": "tests wait for it",
    "services/store/duetime_store/queues/consumequeue.py write_late": "tests write units at moments of their choice",
    "services/store/duetime_store/log/intake.py whole_bytes": "the twin's is used; this is what it is compared with",
}
# Alembic calls these.
MIGRATIONS = PROJECT / PACKAGES["duetime_core"] / "metadata" / "migrations" / "versions"
PLAIN_DECORATORS = re.compile(r"property|cached_property|staticmethod|classmethod|cache|\w*contextmanager|dataclass.*")
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def words(tree: ast.AST) -> Counter[str]:
    """Names used by code: variables that are read, attributes, arguments, and words of short texts."""
    found: Counter[str] = Counter()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Store):
            found[node.id] += 1
        elif isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Store):
            found[node.attr] += 1
        elif isinstance(node, ast.keyword) and node.arg:
            found[node.arg] += 1
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) < 200:
            found.update(re.findall(r"\w+", node.value))
    return found


def definitions(node: ast.AST, is_free: bool = True) -> Iterator[Definition]:
    """Functions and classes of a module, and methods of classes without a base: a base may call the others. A
    decorator's registry calls its functions.
    """
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Definition):
            if is_free and all(PLAIN_DECORATORS.fullmatch(ast.unparse(each)) for each in child.decorator_list):
                yield child
            if isinstance(child, ast.ClassDef):
                yield from definitions(child, is_free=not child.bases)


def used_words() -> Counter[str]:
    found: Counter[str] = Counter()
    for path in [*files(*PACKAGES.values(), "bench", "deploy"), PROJECT / "sdk" / "hatch_build.py"]:
        found += words(tree(path))
    described = [PROJECT / "pyproject.toml", PROJECT / "sdk" / "pyproject.toml"]
    others = [*described, *files(*PACKAGES.values(), suffixes=(".pyx", ".pxd", ".html"))]
    for path in others:
        found.update(re.findall(r"\w+", content(path)))
    return found


def unused(path: Path, used: Counter[str]) -> Iterator[str]:
    for node in definitions(tree(path)):
        if not node.name.startswith("__") and used[node.name] <= words(node)[node.name]:
            yield f"{name(path)} {node.name}"


def test_definitions_are_used_outside_of_tests() -> None:
    used = used_words()
    found = [
        each for path in files(*PACKAGES.values()) if MIGRATIONS not in path.parents for each in unused(path, used)
    ]
    assert len(used) > 1_000
    assert [each for each in found if each not in ALLOWED] == []
    assert [each for each in ALLOWED if each not in found] == []


# Calls that print, and the reason why each prints no control characters of senders.
PRINTED = {
    "format/duetime_format/printing.py print": "escapes the texts of all others",
    "spark/duetime_spark/session.py os.write": "passes visible",
    "sdk/duetime/cli/__init__.py print": "a line of ours, where packages are missing",
    "sdk/duetime/cli/consume.py sys.stderr.write": "standard error of the operator's own program",
    "sdk/duetime/cli/demo.py self._console.print": "bodies pass on_one_line",
    "sdk/duetime/cli/output.py console.print": "a table, whose cells pass printable",
    "sdk/duetime/cli/output.py print": "the same table",
    "sdk/duetime/cli/output.py sys.stdout.write": "clears the screen",
    "sdk/duetime/cli/top.py console.print": "tables, whose cells pass printable",
}
PRINTING = re.compile(
    r"print|.*\b_?console\.(print|log|out)|(typer|click)\.s?echo|sys\.(__)?std(out|err)(__)?\.write(lines)?|os\.write"
    r"|logging\.Formatter|logging\.basicConfig\(format\)"
)


def test_texts_for_terminals_are_printed_in_one_place() -> None:
    """By `duetime_format.printing.echo`, which escapes control characters of senders."""

    def called(node: ast.Call) -> str:
        has_format = any(one.arg == "format" for one in node.keywords)
        return ast.unparse(node.func) + "(format)" * has_format

    found = {
        f"{name(path)} {called(node)}"
        for path in files(*PACKAGES.values())
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call) and PRINTING.fullmatch(called(node))
    }
    assert found == set(PRINTED)
