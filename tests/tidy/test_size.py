"""Files and functions stay small, lines stay within 120 columns, and every module states its purpose."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.tidy.sources import PRODUCT, PROJECT, SOURCES, content, documents, files, name, nodes, tree

FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 70
COLUMNS_MAX = 120
# ruff has those of .py.
WRAPPED = (".pyx", ".pxd")
# Too long today, with the lines that they may have.
LONG_FILES = {
    "format/duetime_format/events.py": 502,
    "services/producer_gw/duetime_gateway/packing/_packing.pyx": 760,
    # Generated: a signature and a docstring for each method of the asynchronous clients.
    "sdk/duetime/client/sync/clients.py": 1420,
}
LONG_FUNCTIONS: dict[str, int] = {}
PARAMETERS_MAX = 8
# Signatures that users call: each parameter is an option of a message, a handler or a client.
WIDE_API = {
    "core/duetime_core/testing/cluster.py Cluster.__init__",
    "core/duetime_core/testing/local.py LocalCluster.__init__",
    "sdk/duetime/client/consuming/consumer.py Consumer.__init__",
    "sdk/duetime/client/consuming/consumer.py Consumer.handler",
    "sdk/duetime/client/consuming/puller.py AsyncPuller.__init__",
    "sdk/duetime/client/consuming/receiver.py AsyncReceiver.__init__",
    "sdk/duetime/client/sending/producer.py AsyncProducer.send",
    "sdk/duetime/client/sending/producer.py AsyncProducer.transaction",
    "sdk/duetime/client/sync/clients.py Producer.send",
    "sdk/duetime/client/sync/clients.py Producer.transaction",
    "sdk/duetime/client/sync/clients.py Puller.__init__",
    "sdk/duetime/client/sync/clients.py Receiver.__init__",
    "sdk/duetime/client/tasks/app.py App.task",
    "sdk/duetime/outbox/relay.py Relay.__init__",
}
# Modules of commands: each option of a command is a parameter.
COMMANDS = ("sdk/duetime/cli/", "spark/duetime_spark/cli.py")

# Name, first line and number of lines.
Length = tuple[str, int, int]


def compiled_functions(path: Path) -> Iterator[Length]:
    """Functions of a .pyx or .pxd, with their lines: from the head to the last line that is indented more."""
    lines = content(path).splitlines()
    for start, line in enumerate(lines):
        head = re.match(r"(\s*)(?:cdef|cpdef|def)\s(?!class\b).*?(\w+)\(", line)
        if not head:
            continue
        body, open_brackets = start, line.count("(") - line.count(")")
        while open_brackets > 0:
            body += 1
            open_brackets += lines[body].count("(") - lines[body].count(")")
        if not lines[body].rstrip().endswith(":"):
            continue  # a declaration
        end = body
        for number in range(body + 1, len(lines)):
            if lines[number].strip() and not lines[number].startswith(head[1] + " "):
                break
            if lines[number].strip():
                end = number
        yield head[2], start + 1, end - start + 1


def functions(path: Path) -> Iterator[Length]:
    if path.suffix != ".py":
        yield from compiled_functions(path)
        return
    for node in nodes(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node.lineno, (node.end_lineno or node.lineno) - node.lineno + 1


def test_no_file_is_long() -> None:
    lines = {name(path): content(path).count("\n") for path in files(*SOURCES, suffixes=(".py", ".pyx", ".pxd"))}
    assert len(lines) > 100
    assert {each: count for each, count in lines.items() if count > LONG_FILES.get(each, FILE_LINES_MAX)} == {}
    assert [each for each in LONG_FILES if lines.get(each, 0) <= FILE_LINES_MAX] == []


def test_no_function_is_long() -> None:
    found = [
        (f"{name(path)} {function}", line, length)
        for path in files(*SOURCES, suffixes=(".py", ".pyx", ".pxd"))
        for function, line, length in functions(path)
    ]
    assert len(found) > 10_000
    longest = Counter[str]()
    for each, _, length in found:
        longest[each] = max(longest[each], length)
    assert [
        f"{each} at line {line}: {length} lines"
        for each, line, length in found
        if length > LONG_FUNCTIONS.get(each, FUNCTION_LINES_MAX)
    ] == []
    assert [each for each in LONG_FUNCTIONS if longest[each] <= FUNCTION_LINES_MAX] == []


def parameters(owner: ast.AST, prefix: str = "") -> Iterator[Length]:
    """Functions by qualified name, with the number of their parameters, except `self` and `cls`."""
    for node in ast.iter_child_nodes(owner):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            taken = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            yield prefix + node.name, node.lineno, sum(one.arg not in ("self", "cls") for one in taken)
        inner = f"{prefix}{node.name}." if hasattr(node, "name") and isinstance(node.name, str) else prefix
        yield from parameters(node, inner)


def test_no_function_of_the_product_takes_many_parameters() -> None:
    found = {
        f"{name(path)} {function}": count
        for path in files(*PRODUCT)
        for function, _, count in parameters(tree(path))
        if count > PARAMETERS_MAX
    }
    assert {
        each: count for each, count in found.items() if each not in WIDE_API and not each.startswith(COMMANDS)
    } == {}
    assert WIDE_API - found.keys() == set()


def test_parameters_are_counted_by_qualified_name() -> None:
    text = "class A:\n    def f(self, a, /, b, *c, d=1, **e):\n        async def g(x): pass\n"
    assert list(parameters(ast.parse(text))) == [("A.f", 2, 3), ("A.f.g", 3, 1)]


def test_functions_of_one_name_are_measured_apart(tmp_path: Path) -> None:
    """Methods of several classes share names, and a later short one must not hide a long one."""
    long = "\n".join(["class A:", "    def __init__(self):", *["        pass"] * 80])
    path = tmp_path / "two.py"
    path.write_text(f"{long}\nclass B:\n    def __init__(self):\n        pass\n")
    assert list(functions(path)) == [("__init__", 2, 81), ("__init__", 84, 2)]


def test_every_module_states_its_purpose() -> None:
    sources = (*PRODUCT, "bench", "deploy")
    assert [name(path) for path in files(*sources) if not ast.get_docstring(tree(path))] == []
    heads = {path: content(path) for path in files(*sources, suffixes=(".pyx", ".pxd"))}
    silent = [name(path) for path, text in heads.items() if not re.match(r'(# cython: .*\n)?("""|# )\w', text)]
    assert silent == []


def test_no_line_is_long() -> None:
    long = [
        f"{name(path)}:{number}"
        for path in files(*SOURCES, suffixes=WRAPPED)
        for number, line in enumerate(content(path).splitlines(), 1)
        if len(line) > COLUMNS_MAX
    ]
    assert long == []


def prose(text: str) -> Iterator[tuple[int, str]]:
    """Lines of a Markdown document, counted from 1, without code blocks and tables."""
    fence = ""
    for number, line in enumerate(text.splitlines(), 1):
        mark = re.match(r"\s*(```+|~~~+)", line)
        if mark and (not fence or mark[1].startswith(fence)):
            fence = "" if fence else mark[1]
        elif not fence and not line.lstrip().startswith("|") and not line.startswith("    "):
            yield number, line


def test_documents_are_wrapped() -> None:
    """A word that is longer, as a link, may stand beyond."""
    long = [
        f"{name(path)}:{number}"
        for path in documents()
        for number, line in prose(content(path))
        if len(line) > COLUMNS_MAX and len(line.rsplit(" ", 1)[0]) > COLUMNS_MAX
    ]
    assert PROJECT / "README.md" in documents()
    assert long == []
