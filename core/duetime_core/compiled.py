"""Which of the hot loops are compiled: a module `_NAME` beside the Python that is its reference (docs/adr/0006).

Both give the same results; DUETIME_COMPILED=0 uses the Python everywhere.
"""

import os
from importlib import import_module
from types import ModuleType

WANTED = os.environ.get("DUETIME_COMPILED", "1") != "0"
# Full names of the twins that are in use.
in_use: list[str] = []


def twin(name: str) -> ModuleType | None:
    """The compiled module of this full name; None where it was not built, or Python is asked for."""
    if not WANTED:
        return None
    try:
        module = import_module(name)
    except ModuleNotFoundError:
        return None
    in_use.append(name)
    return module
