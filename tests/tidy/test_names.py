"""A class is known by its name alone, in a stack trace or a log line: no two classes of the product share one."""

import ast
import re
from collections import defaultdict

from tests.tidy.sources import PACKAGES, content, files, name, nodes

# The same error on both sides of the wire, under the same name.
ERRORS = {"core/duetime_core/errors.py", "sdk/duetime/client/errors.py"}
# A class of Python and its compiled twin.
TWINS = {"View"}
# Names that Django demands.
DJANGO = {"Meta", "Migration"}
COMPILED = re.compile(r"^(?:cdef )?class (\w+)", re.MULTILINE)


def test_no_two_classes_share_a_name() -> None:
    places = defaultdict(set[str])
    for path in files(*PACKAGES.values(), suffixes=(".py", ".pyx")):
        if path.suffix == ".py":
            for node in nodes(path):
                if isinstance(node, ast.ClassDef):
                    places[node.name].add(f"{name(path)}:{node.lineno}")
        else:
            for found in COMPILED.finditer(content(path)):
                places[found[1]].add(name(path))
    assert len(places) > 1_000
    shared = {one: found for one, found in places.items() if len(found) > 1 and one not in TWINS | DJANGO}
    assert {one: found for one, found in shared.items() if {place.split(":")[0] for place in found} != ERRORS} == {}
