"""One real cluster for the tests of the client commands, and one on a fake clock behind a tap."""

from collections.abc import Iterator

import pytest

from tests.cli.cluster import Up
from tests.sdk.conftest import group, nodes, threaded_tap, topic

__all__ = ["group", "nodes", "threaded_tap", "topic"]


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with Up(tmp_path_factory.mktemp("cluster") / "data") as up:
        yield up
        code, errors = up.end()
        assert (code, errors) == (0, "")


@pytest.fixture
def server(cluster: Up, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("DUETIME_SERVER", cluster.server)
    return cluster.server
