"""Compiled hot loops: a module `_NAME` beside the Python that is its reference (docs/adr/0006).

Both give the same results; DUETIME_COMPILED=0 uses the Python everywhere.
"""

import os
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

ENABLED = os.environ.get("DUETIME_COMPILED", "1") != "0"
# Full names of the twins loaded by this process.
in_use: list[str] = []


def twin(name: str) -> ModuleType | None:
    """The compiled module of this full name; None: it was not built, or DUETIME_COMPILED=0."""
    if not ENABLED or find_spec(name) is None:
        return None
    module = import_module(name)
    if name not in in_use:
        in_use.append(name)
    return module
