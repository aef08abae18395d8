"""Compiled modules in tests: tests of one are skipped where it is not built, unless the environment requires it."""

import importlib
import os
import random
from types import ModuleType

import pytest
from duetime_format.compiled import twin


def compiled(name: str) -> ModuleType:
    """The twin of this full name; for a test, a fixture or a whole module."""
    module = twin(name)
    if module is None:
        if os.environ.get("DUETIME_TEST_REQUIRE_COMPILED") == "1":
            pytest.fail(f"{name} is not built")
        pytest.skip(f"{name} is not built here", allow_module_level=True)
    return module


def native(name: str) -> ModuleType:
    """The module of this optional wheel in Rust (`make native`); for a test, a fixture or a whole module."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        if os.environ.get("DUETIME_TEST_REQUIRE_NATIVE") == "1":
            pytest.fail(f"{name} is not built")
        pytest.skip(f"{name} is not built here: make native", allow_module_level=True)


def damaged(data: bytes, chance: random.Random, flips: int) -> bytes:
    """With some bytes changed, and sometimes cut."""
    found = bytearray(data)
    for _ in range(flips):
        found[chance.randrange(len(found))] = chance.randrange(256)
    return bytes(found[: chance.randint(0, len(found))] if chance.random() < 0.3 else found)
