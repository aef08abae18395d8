"""A cluster for all tests of the folder, which leave it whole, and one with TLS and users for those of one module."""

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.compose.stack import BUILD_S, NoEngine, Secure, Stack, check_engine
from tests.compose.webhooks import SETTINGS
from tests.deploy.composing import SECURE
from tests.seeds import seed


@pytest.fixture(scope="session")
def images() -> None:
    """Built by Compose, of all services."""
    try:
        check_engine()
    except NoEngine as error:
        if os.environ.get("DUETIME_TEST_REQUIRE_COMPOSE") == "1":
            pytest.fail(f"Docker Compose is required and can't be had: {error}")
        pytest.skip(f"no Docker Compose: {error}")
    builder = Stack("duetime-build")
    # Build one after the other: engines without BuildKit share finished stages, not stages in progress.
    builder.compose("build", "store-0", timeout_s=BUILD_S)
    builder.compose("--profile", "*", "build", timeout_s=BUILD_S)


@pytest.fixture(scope="session")
def stack(images: None) -> Iterator[Stack]:
    """Up and healthy, with a worker of webhooks."""
    with up(Stack(f"duetime-test-{os.getpid()}", SETTINGS)) as made:
        yield made


@pytest.fixture(scope="module")
def secure(images: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    """Up and healthy, by the two commands that docs/operations.md has."""
    with up(Stack(f"duetime-secure-{os.getpid()}", SETTINGS | {"COMPOSE_PROFILES": ""}, files=SECURE)) as made:
        token = made.compose("exec", "-T", "gateway", "duetime", "users", "create", "ops", "--admin").strip()
        ca = tmp_path_factory.mktemp("secure") / "ca.crt"
        made.compose("cp", "gateway:/etc/duetime/tls/ca.crt", str(ca))
        yield Secure(made, token, ca)


@contextmanager
def up(made: Stack) -> Iterator[Stack]:
    """Gone afterwards, unless DUETIME_TEST_COMPOSE_KEEP=1 leaves it there."""
    try:
        try:
            print(f"{made.name}: up in {made.up():.0f} s")
        except AssertionError:
            print(made.logs())
            raise
        yield made
    finally:
        if os.environ.get("DUETIME_TEST_COMPOSE_KEEP") != "1":
            made.down()


@pytest.fixture
def dice() -> random.Random:
    """The choices of one commit; their times are the machine's."""
    print(f"DUETIME_TEST_SEED={seed()}")
    return random.Random(seed())
