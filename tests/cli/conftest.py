"""One real cluster for the tests of the client commands, and one on a fake clock behind a tap."""

import sys
from collections.abc import Iterator

import pytest
import structlog

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


@pytest.fixture(autouse=True)
def logs_apart() -> Iterator[None]:
    """Writes the log lines of clusters in this process past `capsys`: they are no output of a command. A cluster of
    other tests may log at any time, for instance a call's deadline while its clock is stopped."""
    before = structlog.get_config()
    structlog.configure(logger_factory=structlog.WriteLoggerFactory(sys.__stderr__))
    yield
    structlog.configure(**before)
