"""One cluster for all tests of the folder; they leave it whole."""

import os
import random
from collections.abc import Iterator

import pytest

from tests.compose.stack import BUILD_S, NoEngine, Stack, check_engine


@pytest.fixture(scope="session")
def stack() -> Iterator[Stack]:
    """Built, up and healthy; DUETIME_TEST_COMPOSE_KEEP=1 leaves it there afterwards."""
    try:
        check_engine()
    except NoEngine as error:
        if os.environ.get("DUETIME_TEST_REQUIRE_COMPOSE") == "1":
            pytest.fail(f"Docker Compose is required and can't be had: {error}")
        pytest.skip(f"no Docker Compose: {error}")
    made = Stack(f"duetime-test-{os.getpid()}")
    try:
        # One after the other: engines without BuildKit share stages with what is there, not with what is under way.
        made.compose("build", "store-0", timeout_s=BUILD_S)
        made.compose("--profile", "*", "build", timeout_s=BUILD_S)
        try:
            print(f"up in {made.up():.0f} s")
        except AssertionError:
            print(made.logs())
            raise
        yield made
    finally:
        if os.environ.get("DUETIME_TEST_COMPOSE_KEEP") != "1":
            made.down()


@pytest.fixture
def dice() -> random.Random:
    """DUETIME_TEST_SEED repeats a run's choices; its moments are the machine's."""
    seed = int(os.environ.get("DUETIME_TEST_SEED") or random.SystemRandom().getrandbits(32))
    print(f"DUETIME_TEST_SEED={seed}")
    return random.Random(seed)
