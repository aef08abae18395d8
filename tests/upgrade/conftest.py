"""Copies of the release's data, as this version's tests open them."""

import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from duetime_core.testing import Cluster, FakeClock

from tests.upgrade import release
from tests.upgrade.release import FIXTURES, SAFELY


@pytest.fixture
def unpack(tmp_path: Path) -> Callable[[str], Path]:
    """Unpacks `clean` or `killed`: a directory with store-0 and metadata.db, the test's own."""

    def unpack_one(name: str) -> Path:
        directory = tmp_path / name
        with tarfile.open(FIXTURES / f"{name}.tar.xz") as packed:
            packed.extractall(directory, **SAFELY)
        return directory

    return unpack_one


@pytest.fixture(scope="session")
def manifest() -> dict[str, Any]:
    """The manifest of `clean` by scene.py."""
    loaded: dict[str, Any] = json.loads((FIXTURES / "clean.json").read_text())
    return loaded


@pytest.fixture(scope="session")
def release_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The release's, in an environment of its own; DUETIME_UPGRADE_RELEASE names a directory that is kept for it."""
    kept = os.environ.get("DUETIME_UPGRADE_RELEASE")
    try:
        return release.install(Path(kept) if kept else tmp_path_factory.mktemp("release"))
    except release.NoRelease as error:
        pytest.fail(str(error))


def cluster_on(directory: Path, clock: FakeClock) -> Cluster:
    """This version's cluster on the release's files."""
    return Cluster(directory, clock=clock, store_settings={"disk_force": 1})
