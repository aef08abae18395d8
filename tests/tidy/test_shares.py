"""The table of shared limits in docs/limits.md is the code's: each place that counts callers, its share and refusal."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache

from duetime_core.errors import Overloaded

from tests.tidy.sources import PACKAGES, PROJECT, content, files, module_of

COUNTING = {"Seats", "Shares", "Room"}
ARITHMETIC = {"duetime_core.limits.seats", "duetime_core.limits.shares", "duetime_core.limits.room"}
# Limits that are kept without them.
BY_HAND = {"duetime_core.limits.shedding"}
SECTION = re.compile(r"^## Shares of callers\n(.*?)^## ", re.MULTILINE | re.DOTALL)
REASON = re.compile(r"\b[A-Z_]+_(?:EXHAUSTED|REQUESTS|OVERLOADED|KEPT|FULL|EXCEEDED)\b")


@dataclass
class Row:
    """Rows of the table for one module."""

    shares: str = ""
    reasons: set[str] = field(default_factory=set)


def section() -> str:
    found = SECTION.search(content(PROJECT / "docs/limits.md"))
    assert found is not None
    return found[1]


def table() -> dict[str, Row]:
    """By module."""
    rows: dict[str, Row] = {}
    for line in section().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and cells[1].startswith("`"):
            row = rows.setdefault(cells[1].strip("`"), Row())
            row.shares += f" {cells[3]}"
            row.reasons |= set(REASON.findall(cells[4]))
    return rows


def name_of(node: ast.expr) -> str:
    """`Shares` of `Shares`, `Shares[str]` and `shares.Shares`."""
    node = node.value if isinstance(node, ast.Subscript) else node
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


@cache
def nodes() -> list[tuple[str, ast.Call | ast.ClassDef]]:
    """Calls and classes by module, of all files of processes that are about limits."""
    found = []
    for path in files(*(folder for name, folder in PACKAGES.items() if name != "duetime")):
        if re.search(r"Seats|Shares|Room|Overloaded|_EXHAUSTED", content(path)):
            walk = ast.walk(ast.parse(content(path)))
            found += [(module_of(path), node) for node in walk if isinstance(node, ast.Call | ast.ClassDef)]
    return found


def calls() -> Iterator[tuple[str, ast.Call]]:
    for module, node in nodes():
        if isinstance(node, ast.Call):
            yield module, node


def overloads() -> dict[str, str]:
    """The reasons of errors for lack of room, by class."""
    found = {one.__name__: one.reason for one in (Overloaded, *Overloaded.__subclasses__())}
    for _, node in nodes():
        if isinstance(node, ast.ClassDef) and "Overloaded" in map(name_of, node.bases):
            for line in node.body:
                if isinstance(line, ast.Assign) and name_of(line.targets[0]) == "reason":
                    found[node.name] = ast.literal_eval(line.value)
    return found


def counting() -> dict[str, list[ast.Call]]:
    """The calls that make something that counts callers, by module."""
    found: dict[str, list[ast.Call]] = {}
    for module, call in calls():
        if name_of(call.func) in COUNTING and module not in ARITHMETIC:
            found.setdefault(module, []).append(call)
    return found


def reasons_of(call: ast.Call) -> set[str]:
    values = {keyword.arg: keyword.value for keyword in call.keywords}
    reason, error = values.get("reason"), values.get("error")
    if isinstance(reason, ast.Constant):
        return {str(reason.value)}
    if error is not None:
        return {overloads()[name_of(error)]}
    return set()


def test_table_has_each_place_that_counts_callers() -> None:
    assert set(table()) == set(counting()) | BY_HAND


def test_table_has_the_share_and_the_refusal_of_each() -> None:
    rows = table()
    for module, made in counting().items():
        for call in made:
            assert reasons_of(call) <= rows[module].reasons, module
            has_share = any(keyword.arg == "share" for keyword in call.keywords)
            has_share |= name_of(call.func) == "Shares" and len(call.args) > 1
            # Without a share of its own it has half; where there are several, the table names both.
            assert has_share or "half" in rows[module].shares, module
            assert not has_share or rows[module].shares.strip() != "half", module


def test_each_capacity_rejection_is_shared_or_listed_as_unshared() -> None:
    told = set(REASON.findall(section()))
    raised = set(overloads().values())
    for _, call in calls():
        for keyword in call.keywords:
            value = keyword.value
            if keyword.arg == "reason" and isinstance(value, ast.Constant) and str(value.value).endswith("_EXHAUSTED"):
                raised.add(str(value.value))
    assert raised - told == set()
