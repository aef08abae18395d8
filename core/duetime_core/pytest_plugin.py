"""The pytest plugin: tests applications against a real cluster in their own process, on a clock that they move.

def test_reminder(duetime_cluster):
    with Producer() as producer:                # DUETIME_SERVER is the cluster's address
        producer.send("reminders", b"pay", delay="2h")
    duetime_cluster.advance("2h")               # milliseconds of real time later, the message is in its topic

Each test has its own cluster, unless the setting `duetime_cluster_scope` is class, module, package or session.
pytest loads this in every environment that has DueTime, so nothing else is imported before the fixture is used.
"""

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from duetime_core.testing import LocalCluster

_SCOPE = "duetime_cluster_scope"
_SERVER_VARIABLE = "DUETIME_SERVER"
# Tests are independent of the disk's fill level.
_ANY_DISK = {"disk_used_max": 1, "disk_force": 1}


class RunningCluster:
    """A cluster that runs until its tests have ended, and its clock."""

    def __init__(self, cluster: "LocalCluster") -> None:
        self._cluster = cluster

    @property
    def address(self) -> str:
        """HOST:PORT, also in DUETIME_SERVER."""
        return self._cluster.address

    @property
    def now(self) -> datetime:
        """The time of its clock: that of its start, until it is moved."""
        return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=self._cluster.now_ms())

    def advance(self, by: str | timedelta) -> None:
        """Moves its clock by "2h", "1h30m" or a timedelta, from due time to due time.

        On return all due messages are in their topics; consumers receive them a moment later.

        Raises:
            ValueError: not a length.
            TimeoutError: due messages are not delivered, as with a paused lane.
        """
        self._cluster.advance(by)

    def __repr__(self) -> str:
        return f"RunningCluster({self.address}, {self.now:%Y-%m-%d %H:%M:%S} UTC)"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(_SCOPE, "Tests that share a cluster: those of a function, class, module, package or session.")


def _scope(fixture_name: str, config: pytest.Config) -> Any:
    return config.getini(_SCOPE) or "function"


@pytest.fixture(scope=_scope)
def duetime_cluster() -> Iterator[RunningCluster]:
    """A DueTime cluster in this process, on a clock that `advance` moves. DUETIME_SERVER is its address."""
    try:
        from duetime_core.testing import LocalCluster
    except ImportError as error:
        pytest.fail(f"the fixture duetime_cluster needs the server: pip install 'duetime[server]' ({error})")
    variables = os.environ  # noqa: TID251  the application under test reads it
    before = variables.get(_SERVER_VARIABLE)
    with LocalCluster(store_settings=_ANY_DISK) as cluster:
        variables[_SERVER_VARIABLE] = cluster.address
        try:
            yield RunningCluster(cluster)
        finally:
            del variables[_SERVER_VARIABLE]
            if before is not None:
                variables[_SERVER_VARIABLE] = before
