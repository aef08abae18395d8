"""Compiled hot loops: a module `_NAME` beside the Python that is its reference (docs/adr/0006).

Both give the same results; DUETIME_COMPILED=0 uses the Python everywhere.
"""

import os
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

ENABLED = os.environ.get("DUETIME_COMPILED", "1") != "0"
# The interface of each optional wheel in Rust (native/README.md) that this version uses.
INTERFACES = {"duetime_front": 1, "duetime_raft": 2, "duetime_wire": 1}
# Full names of the twins loaded by this process.
in_use: list[str] = []


def twin(name: str) -> ModuleType | None:
    """The compiled module of this full name; None: it or one that it uses was not built, or DUETIME_COMPILED=0."""
    if not ENABLED or find_spec(name) is None:
        return None
    try:
        module = import_module(name)
    except ModuleNotFoundError as error:
        # A compiled server beside the client's wheel for any platform, which has no twins.
        if not str(error.name).startswith("duetime_format._"):
            raise
        return None
    if name not in in_use:
        in_use.append(name)
    return module


def check_fits(wheel: ModuleType) -> None:
    """Raises: ImportError: the optional wheel was built for another version; the versions of packages may be equal."""
    has, needed = getattr(wheel, "INTERFACE", 0), INTERFACES[wheel.__name__]
    if has != needed:
        raise ImportError(f"{wheel.__name__} has interface {has}, and {needed} is needed: build it again")
