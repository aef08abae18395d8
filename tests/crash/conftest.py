"""How often to kill, and with which dice."""

import os
import random

import pytest


@pytest.fixture
def kills() -> int:
    """DUETIME_TEST_KILLS: how many processes the long test kills; `make kills` has 200."""
    return int(os.environ.get("DUETIME_TEST_KILLS", "50"))


@pytest.fixture
def dice() -> random.Random:
    """DUETIME_TEST_SEED repeats a run's choices; its moments are the machine's."""
    seed = int(os.environ.get("DUETIME_TEST_SEED") or random.SystemRandom().getrandbits(32))
    print(f"DUETIME_TEST_SEED={seed}")
    return random.Random(seed)
