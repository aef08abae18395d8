"""Common parts of all tests: metadata databases, and runs of examples."""

import gc
import os
import signal
import uuid
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import duetime
import psycopg
import pytest
from hypothesis import HealthCheck, settings
from sqlalchemy import make_url
from xdist.scheduler import LoadFileScheduling

from tests.postgresql import NoPostgres, postgres_server

# A shell makes its background processes ignore Ctrl-C, and so would every process that a test starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Every store of a test would take 64 MiB of the disk for as long as the test runs.
os.environ.setdefault("DUETIME_STORE_RESERVE_BYTES", "0")
# The fill level of this machine's disk must not influence a store.
os.environ.setdefault("DUETIME_STORE_DISK_USED_MAX", "1")
os.environ.setdefault("DUETIME_STORE_DISK_FORCE", "1")
# Most runs of `duetime up` end before a spare process would pay.
os.environ.setdefault("DUETIME_UP_NO_SPARES", "1")
# Tests send few messages: the tables of the index and of recent ids would be half of the work of a store's start.
os.environ.setdefault("DUETIME_STORE_INDEX_SLOTS", "65536")
os.environ.setdefault("DUETIME_STORE_INDEX_ENTRIES", "262144")
os.environ.setdefault("DUETIME_STORE_RECENT_IDS_COUNT", "65536")

# Half a million objects of modules and tests live as long as the process: a collection that walks them finds nothing.
gc.set_threshold(10_000, 20, 20)

# A call of a client does not fail because a machine is slow.
for name in duetime.__all__:
    defaults = getattr(getattr(duetime, name).__init__, "__kwdefaults__", None) or {}
    if defaults.get("timeout") == "10s":
        defaults["timeout"] = "60s"

# Examples have no time limit: a busy machine is no fault. `make test` tries the same few each time, so that a failure
# is due to the change; `make explore` tries many new ones, RUNS of each test.
runs = int(os.environ.get("RUNS") or 2_000)
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=runs)
settings.register_profile("duetime", settings.get_profile("explore"), derandomize=True, max_examples=25)
settings.load_profile("duetime")


# Folders whose files take longest. They go first: one that began last would have the other worker wait for it.
LONG = ("spark", "soak", "crash", "hostile", "docs", "packages", "cli", "upgrade", "cluster", "rocketmq")


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    folders = {folder: number for number, folder in enumerate(LONG)}
    items.sort(key=lambda item: folders.get(item.path.parent.name, len(LONG)))


class OneSpark(LoadFileScheduling):
    """Files of tests go to the next free worker; those of Spark to one, since a session takes 20 s to get warm."""

    def _split_scope(self, nodeid: str) -> str:
        return "tests/spark" if nodeid.startswith("tests/spark/") else super()._split_scope(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    return OneSpark(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Reports pass between processes as UTF-8, and some tests print other bytes."""
    report = yield
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    return report


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The URL of a PostgreSQL server's first database."""
    required = os.environ.get("DUETIME_TEST_REQUIRE_POSTGRES") == "1"
    server = postgres_server()
    try:
        url = server.__enter__()
    except NoPostgres as error:
        if required:
            pytest.fail(f"PostgreSQL is required and can't be had: {error}")
        pytest.skip(f"no PostgreSQL: {error}")
    try:
        yield url
    finally:
        server.__exit__(None, None, None)


@pytest.fixture
def postgres_url(postgres: str) -> Iterator[str]:
    """The URL of a new, empty database."""
    url = make_url(postgres)
    name = f"test_{uuid.uuid4().hex}"
    plain = url.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(plain, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        yield url.set(database=name).render_as_string(hide_password=False)
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """The URL of a database file that does not exist yet."""
    return f"sqlite:///{tmp_path / 'metadata.db'}"


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def empty_database_url(request: pytest.FixtureRequest) -> str:
    """The URL of an empty database: each test runs on SQLite and on PostgreSQL."""
    return str(request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "postgres_url"))
