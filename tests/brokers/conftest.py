"""Brokers of RocketMQ's versions, as Maven Central has them."""

from pathlib import Path

import pytest

from tests.brokers.broker import install


@pytest.fixture(scope="session")
def installed() -> dict[str, Path]:
    """Folders of jars by version, as they are installed."""
    return {}


@pytest.fixture
def jars(version: str, installed: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the version's jars."""
    if version not in installed:
        installed[version] = install(version, tmp_path_factory.mktemp("broker"))
    return installed[version]
