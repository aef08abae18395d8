"""The reference of the SDK, from its docstrings: a page for each part, a heading for each class and method."""

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from functools import cache
from types import ModuleType
from typing import Any

import duetime
from duetime import DueTimeError

TITLES = {
    "sending": "Sending",
    "consuming": "Consuming",
    "tasks": "Tasks",
    "finding": "Finding, pending messages, dead letters",
    "transactions": "Transactions",
    "administering": "Topics, groups and lanes",
    "errors": "Errors of the SDK",
    "outbox": "The outbox",
    "testing": "The test kit",
}
# Modules of duetime.client whose names are on another page than their folder's; the longest prefix wins.
PLACES = {
    "message": "sending",
    "tokens": "sending",
    "trust": "sending",
    "bodies": "sending",
    "record": "consuming",
    "transaction": "transactions",
    "sending.transact": "transactions",
    "sending.checking": "transactions",
    "finding.transactions": "transactions",
}
OTHER_PACKAGES = {
    "outbox": ("duetime.outbox", ["Outbox", "Relay"]),
    "testing": ("duetime_core.testing", ["LocalCluster", "Cluster", "FakeClock"]),
}

Function = ast.FunctionDef | ast.AsyncFunctionDef
_SECTION = re.compile(r"(Arguments|Raises|Returns|Yields):(?: (.*))?")
_ITEM = re.compile(r"    (\S.*?): (.*)")


def pages() -> dict[str, tuple[str, list[str]]]:
    """The module for imports, and the names, of each page. Every public name is on one page."""
    found: dict[str, tuple[str, list[str]]] = {name: OTHER_PACKAGES.get(name, ("duetime", [])) for name in TITLES}
    for name in duetime.__all__:
        found.setdefault(_page_of(name), ("duetime", []))[1].append(name)
    return found


def _page_of(name: str) -> str:
    modules = duetime._MODULE_BY_NAME
    module = modules.get(name, "errors")
    if module == "sync.clients":
        module = modules[f"Async{name}"]
    place = max((each for each in PLACES if module.startswith(each)), key=len, default="")
    return PLACES[place] if place else module.partition(".")[0]


def title(name: str) -> str:
    return TITLES.get(name, name.capitalize())


def page(name: str) -> str:
    """One page of the reference."""
    module, names = pages()[name]
    parts = [f"# {title(name)}"]
    for each in names:
        parts += _described(each, module, getattr(importlib.import_module(module), each))
    return "\n\n".join(part for part in parts if part) + "\n"


def _described(name: str, module: str, value: Any) -> Iterator[str]:
    if inspect.isfunction(value):
        yield from _function(name, _definition(value))
    elif not inspect.isclass(value):
        yield f"## {name}"
        yield f"An alias: `{value}`.".replace("duetime.client.", "")
    else:
        yield f"## {name}"
        yield _code(f"from {module} import {name}")
        yield from _class(name, value)


def _class(name: str, kind: type) -> Iterator[str]:
    if issubclass(kind, DueTimeError) and kind is not DueTimeError:
        yield f"Based on {', '.join(f'`{base.__name__}`' for base in kind.__bases__)}."
        shown: tuple[type, ...] = (kind,)  # the rest is on the same page
    else:
        shown = kind.__mro__
    if kind.__doc__ and not kind.__doc__.startswith(f"{kind.__name__}("):  # a dataclass without a docstring has one
        yield markdown(kind.__doc__)
    methods: dict[str, Function] = {}
    fields: dict[str, str] = {}
    for base in shown:
        if base.__module__.startswith("duetime"):
            node = _definition(base)
            assert isinstance(node, ast.ClassDef)
            fields = _fields(node) | fields
            methods |= {each.name: each for each in _methods(node) if each.name not in methods}
    if init := methods.pop("__init__", None):
        yield _code(_signature(name, init))
        yield markdown(ast.get_docstring(init) or "")
    yield "\n".join(f"- `{field}`: {text}" if text else f"- `{field}`" for field, text in fields.items())
    for method, function in methods.items():
        yield from _function(f"{name}.{method}", function)


def _methods(node: ast.ClassDef) -> Iterator[Function]:
    for each in node.body:
        if isinstance(each, Function) and (each.name == "__init__" or not each.name.startswith("_")):
            decorators = {ast.unparse(decorator) for decorator in each.decorator_list}
            if "overload" not in decorators and not any(one.endswith(".setter") for one in decorators):
                yield each


def _fields(node: ast.ClassDef) -> dict[str, str]:
    """`name: type = default` of each public field, and its docstring; members of enumerations too."""
    found = {}
    for each, after in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(each, ast.AnnAssign | ast.Assign):
            name = ast.unparse(each.target if isinstance(each, ast.AnnAssign) else each.targets[0])
            if not name.startswith("_"):
                is_text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
                text = after.value.value if is_text else ""  # type: ignore[union-attr]
                found[ast.unparse(each)] = " ".join(str(text).split())
    return found


def _function(name: str, node: Function | ast.ClassDef) -> Iterator[str]:
    assert not isinstance(node, ast.ClassDef)
    yield f"### {name}"
    is_property = any(ast.unparse(each).endswith("property") for each in node.decorator_list)
    short = name.rpartition(".")[2]
    if is_property:
        yield _code(f"{short}: {ast.unparse(node.returns) if node.returns else 'Any'}")
    else:
        prefix = "await " if isinstance(node, ast.AsyncFunctionDef) else ""
        yield _code(prefix + _signature(short, node))
    if text := ast.get_docstring(node):
        yield markdown(text)


def _signature(name: str, node: Function) -> str:
    given = node.args
    plain = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(plain) - len(given.defaults)) + list(given.defaults)
    words = [_argument(each, default) for each, default in zip(plain, defaults, strict=True)]
    if given.posonlyargs:
        words.insert(len(given.posonlyargs), "/")
    words = [word for word in words if word not in ("self", "cls")]
    if given.vararg:
        words.append(f"*{_argument(given.vararg, None)}")
    elif given.kwonlyargs:
        words.append("*")
    words += [_argument(each, default) for each, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    if given.kwarg:
        words.append(f"**{_argument(given.kwarg, None)}")
    result = "" if node.returns is None or node.name == "__init__" else f" -> {ast.unparse(node.returns)}"
    line = f"{name}({', '.join(words)}){result}"
    if len(line) <= 88:
        return line
    return f"{name}(\n" + "".join(f"    {word},\n" for word in words) + f"){result}"


def _argument(each: ast.arg, default: ast.expr | None) -> str:
    kind = f": {ast.unparse(each.annotation)}" if each.annotation else ""
    if default is None:
        return each.arg + kind
    return f"{each.arg}{kind}{' = ' if kind else '='}{ast.unparse(default)}"


def _code(text: str) -> str:
    return f"```python\n{text}\n```"


@cache
def _module(module: ModuleType) -> ast.Module:
    return ast.parse(inspect.getsource(module))


def _definition(value: Any) -> Function | ast.ClassDef:
    """The syntax tree of a class or function; for a compiled twin, that of its Python source."""
    module = importlib.import_module(value.__module__.replace("._", "."))
    return next(
        node
        for node in ast.walk(_module(module))
        if isinstance(node, Function | ast.ClassDef) and node.name == value.__name__
    )


def markdown(docstring: str) -> str:
    """A docstring as Markdown: sections become lists."""
    lines = inspect.cleandoc(docstring).splitlines()
    out: list[str] = []
    in_section = False
    for line in lines:
        if found := _SECTION.fullmatch(line):
            in_section = True
            out += ["", f"**{found[1]}:** {found[2] or ''}".rstrip(), ""]
        elif in_section and (item := _ITEM.fullmatch(line)) and not line.startswith("     "):
            out.append(f"- `{item[1]}`: {item[2]}")
        elif in_section and line.startswith("        "):
            out.append(f"    {line.strip()}")
        elif line and not line.startswith(" "):
            in_section = False
            out.append(line)
        else:
            out.append(line)
    return textwrap.dedent("\n".join(out)).strip()
