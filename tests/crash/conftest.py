"""How often to kill, and with which dice."""

import os
import random

import pytest

from tests.seeds import seed


@pytest.fixture
def kills() -> int:
    """DUETIME_TEST_KILLS: the number of kills in one run; `make kills` has 200."""
    return int(os.environ.get("DUETIME_TEST_KILLS", "6"))


@pytest.fixture
def dice() -> random.Random:
    """The choices of a run repeat with its seed; its moments are the machine's."""
    print(f"DUETIME_TEST_SEED={seed()}")
    return random.Random(seed())
