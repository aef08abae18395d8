"""Processes that ought to end: one that does not says where its threads stand."""

import os
import signal
import subprocess
from typing import Any

import pytest

# Python children write the stacks of all threads on SIGABRT.
os.environ.setdefault("PYTHONFAULTHANDLER", "1")


def ended(process: subprocess.Popen[Any], within_s: float) -> tuple[Any, Any]:
    """Output of a Python process up to its end."""
    try:
        return process.communicate(timeout=within_s)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)
        _, stacks = process.communicate()
    pytest.fail(f"it does not end, {within_s:g} s:\n{stacks if isinstance(stacks, str) else stacks.decode()}")
