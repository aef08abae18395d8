"""Twins that can't be loaded leave their Python in use."""

import subprocess
import sys
from importlib.util import find_spec

import pytest

# Hides a module from the imports of others, and shows whether a twin of the store that uses it is loaded.
LOAD = """
import sys
sys.modules[{name!r}] = None
from duetime_store.log import spread
from duetime_format.compiled import in_use
print("duetime_store.log._spread" in in_use)
"""


def load(hidden: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", LOAD.format(name=hidden)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.mark.skipif(find_spec("duetime_store.log._spread") is None, reason="nothing is compiled here")
def test_twin_whose_own_twin_is_absent_is_not_used() -> None:
    done = load("duetime_format._buffer")
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr
    assert load("duetime_format._none").stdout == "True\n"
