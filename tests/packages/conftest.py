"""The wheels of both distributions, built once."""

from pathlib import Path

import pytest

from tests.packages.building import PROJECT, build


@pytest.fixture(scope="session")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For any platform."""
    return build(PROJECT / "sdk", tmp_path_factory.mktemp("client"), DUETIME_PURE="1")


@pytest.fixture(scope="session")
def compiled_client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(PROJECT / "sdk", tmp_path_factory.mktemp("compiled"))


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(PROJECT, tmp_path_factory.mktemp("server"))
