"""How often to kill, and with which dice."""

import random

import pytest

from tests.crash.killing import KILLS
from tests.seeds import seed


@pytest.fixture
def kills() -> int:
    return KILLS


@pytest.fixture
def dice() -> random.Random:
    """The choices of a run repeat with its seed; its moments are the machine's."""
    print(f"DUETIME_TEST_SEED={seed()}")
    return random.Random(seed())
