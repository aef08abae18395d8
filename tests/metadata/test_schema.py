"""The schema: migrations make the models' schema, repeated or run by several processes."""

import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from duetime_core.errors import StartupError
from duetime_core.metadata import Database, MetadataBase, current_revision, head_revision, upgrade
from duetime_core.metadata.__main__ import main
from duetime_core.metadata.engine import make_engine, parse_url
from duetime_core.metadata.faults import reason_of
from duetime_core.metadata.schema import ADVISORY_LOCK, await_schema, revisions
from sqlalchemy import text
from sqlalchemy.exc import TimeoutError as PoolTimeoutError


def test_revisions_are_those_of_the_migrations() -> None:
    config = Config()
    config.set_main_option("script_location", "core/duetime_core/metadata/migrations")
    script = ScriptDirectory.from_config(config)
    assert revisions() == [one.revision for one in reversed(list(script.walk_revisions()))]
    assert head_revision() == script.get_current_head()


def test_empty_database_has_no_revision(empty_database_url: str) -> None:
    assert current_revision(empty_database_url) is None


def test_migrations_match_the_models(empty_database_url: str) -> None:
    assert upgrade(empty_database_url) == head_revision()
    engine = make_engine(parse_url(empty_database_url))
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, MetadataBase.metadata) == []
    engine.dispose()


def test_repeated_upgrade_keeps_the_data(empty_database_url: str) -> None:
    upgrade(empty_database_url)
    engine = make_engine(parse_url(empty_database_url))
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO topics VALUES ('orders', 4, 1, 0, 0, 0, 0, '')"))
    upgrade(empty_database_url)
    with engine.connect() as connection:
        assert connection.execute(text("SELECT name FROM topics")).scalar_one() == "orders"
    engine.dispose()


def test_several_processes_may_upgrade_at_once(empty_database_url: str) -> None:
    command = [sys.executable, "-m", "duetime_core.metadata", "upgrade", "--database-url", empty_database_url]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    for process in running:
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out.strip(), err) == (0, f"the metadata database has schema {head_revision()}", "")
    assert current_revision(empty_database_url) == head_revision()


@pytest.mark.postgres
def test_upgrades_that_waited_for_another_find_its_work_done(postgres_url: str) -> None:
    """All wait for the lock before the first of them migrates, so each looks at the schema after it has waited."""
    holder, waiting = make_engine(parse_url(postgres_url)), "SELECT count(*) FROM pg_locks WHERE NOT granted"
    with ThreadPoolExecutor(2) as threads:
        with holder.begin() as lock:
            lock.execute(text("SELECT pg_advisory_xact_lock(:number)"), {"number": ADVISORY_LOCK})
            upgrades = [threads.submit(upgrade_in_process, postgres_url) for _ in range(2)]
            with holder.connect().execution_options(isolation_level="AUTOCOMMIT") as watcher:
                while watcher.execute(text(waiting)).scalar_one() < len(upgrades):
                    assert not any(one.done() for one in upgrades)
        assert [one.result(timeout=60) for one in upgrades] == [(0, "")] * 2
    holder.dispose()


def upgrade_in_process(url: str) -> tuple[int, str]:
    """The exit code and the error text."""
    ended = subprocess.run(
        [sys.executable, "-m", "duetime_core.metadata", "upgrade", "--database-url", url],
        capture_output=True,
        text=True,
        timeout=60,
    )
    return ended.returncode, ended.stderr


def test_sqlite_is_put_into_wal_mode(sqlite_url: str) -> None:
    upgrade(sqlite_url)
    engine = make_engine(parse_url(sqlite_url))
    with engine.connect() as connection:
        assert connection.execute(text("PRAGMA journal_mode")).scalar_one() == "wal"
        assert connection.execute(text("PRAGMA foreign_keys")).scalar_one() == 1
    engine.dispose()


@pytest.mark.parametrize(
    ("url", "clause"),
    [
        ("meta.db", "is not a URL"),
        ("mysql://localhost/meta", "neither sqlite nor postgresql"),
        ("sqlite://", "needs a file"),
        ("sqlite:///:memory:", "needs a file"),
    ],
)
def test_url_that_names_no_usable_database_is_refused(url: str, clause: str) -> None:
    with pytest.raises(StartupError, match=clause):
        Database(url)


def test_schema_of_a_newer_version_is_refused(empty_database_url: str) -> None:
    upgrade(empty_database_url)
    engine = make_engine(parse_url(empty_database_url))
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    engine.dispose()
    with pytest.raises(StartupError, match="9999 is newer than this version of DueTime"):
        upgrade(empty_database_url)


@pytest.mark.parametrize("command", ["upgrade", "current"])
def test_command_reports_errors_in_one_line(command: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'missing' / 'metadata.db'}"
    ended = subprocess.run(
        [sys.executable, "-m", "duetime_core.metadata", command, "--database-url", url],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 1
    assert ended.stderr.count("\n") == 1
    assert "unable to open database file" in ended.stderr


def test_waiting_process_continues_once_the_schema_is_upgraded(empty_database_url: str) -> None:
    command = [sys.executable, "-m", "duetime_core.metadata", "wait", "--database-url", empty_database_url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as waiting:
        with pytest.raises(subprocess.TimeoutExpired):
            waiting.wait(timeout=1.5)
        upgrade(empty_database_url)
        assert waiting.communicate(timeout=60)[0].endswith(f" {head_revision()}\n")
    assert waiting.returncode == 0


def test_waiting_for_the_schema_times_out_with_the_fault(empty_database_url: str) -> None:
    with pytest.raises(StartupError, match="metadata schema is missing"):
        await_schema(empty_database_url, 0.1)
    with pytest.raises(StartupError, match="does not answer"):
        await_schema("sqlite:////no/such/folder/meta.db", 0.1)


def rotten(path: Path, kind: str) -> str:
    """The URL of a database file that is none, or is damaged in all but its first page."""
    url = f"sqlite:///{path}"
    if kind == "garbage":
        path.write_bytes(random.Random(1).randbytes(20_000))
    else:
        upgrade(url)
        data = path.read_bytes()
        path.write_bytes(data[:4_096] + bytes(at * 7 % 251 for at in range(len(data) - 4_096)))
    return url


@pytest.mark.parametrize("kind", ["garbage", "pages"])
@pytest.mark.parametrize("command", ["upgrade", "current"])
def test_damaged_file_is_reported_in_one_plain_line(
    tmp_path: Path, kind: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "metadata.db"
    assert main([command, "--database-url", rotten(path, kind)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"metadata database {path} is damaged (")
    assert "restore a copy, or move it and" in line
    assert "Background" not in line


def test_sqlalchemy_errors_are_shown_without_links() -> None:
    error = PoolTimeoutError("QueuePool limit of size 1 reached", code="3o7r")
    assert "Background" in str(error)
    assert reason_of(error) == "QueuePool limit of size 1 reached"
