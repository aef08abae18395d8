"""The schema's version: that of the code, that of a database, and the migration between them."""

import re
import sqlite3
from collections.abc import Callable
from functools import cache, partial
from importlib.resources import files
from typing import TypeVar

from sqlalchemy import Connection, Engine, inspect, text
from sqlalchemy.exc import OperationalError, SQLAlchemyError

from duetime_core.errors import StartupError
from duetime_core.metadata.engine import make_engine, parse_url
from duetime_core.metadata.faults import reason_of

T = TypeVar("T")

# A number used by no other application of the server: names the lock for one migration at a time.
ADVISORY_LOCK = 0x64756574696D65
_MIGRATION_WAIT_S = 60
_MIGRATIONS = files("duetime_core.metadata") / "migrations"
_FILE = re.compile(r"r(\d{4})_\w+\.py")
# Alembic's table. It is read without Alembic, which is loaded only to migrate: loading takes a tenth of a start.
_VERSION_TABLE = "alembic_version"


class _DatabaseNotReady(StartupError):
    """No answer, or another schema version: may be temporary."""


@cache
def revisions() -> list[str]:
    """All revisions of this code, in order; each file is named by its own."""
    names = (file.name for file in (_MIGRATIONS / "versions").iterdir())
    return sorted(match[1] for match in map(_FILE.fullmatch, names) if match)


def head_revision() -> str:
    """The revision of this code."""
    return revisions()[-1]


def revision_of(connection: Connection) -> str | None:
    """The revision of a database; None: no schema."""
    if not inspect(connection).has_table(_VERSION_TABLE):
        return None
    found: str | None = connection.execute(text(f"SELECT version_num FROM {_VERSION_TABLE}")).scalar()  # noqa: S608
    return found


def current_revision(database_url: str) -> str | None:
    """The revision of the database at a URL; None: no schema.

    Raises:
        StartupError: the database does not answer.
    """
    engine = make_engine(parse_url(database_url), connections_max=1)
    try:
        with engine.connect() as connection:
            return revision_of(connection)
    except (SQLAlchemyError, sqlite3.Error) as error:
        _refuse_damaged(engine, error)
        raise _DatabaseNotReady(f"metadata database does not answer: {reason_of(error)}") from error
    finally:
        engine.dispose()


def await_schema(database_url: str, timeout_s: float) -> str:
    """Returns the revision once the database at a URL answers and has this code's.

    Raises:
        StartupError: timeout, or its schema is newer than this code.
    """

    def check() -> str:
        revision = current_revision(database_url)
        refuse_unknown(revision)
        if revision != head_revision():
            raise _DatabaseNotReady(f"metadata schema is {revision or 'missing'}, not {head_revision()}")
        return head_revision()

    return _repeated(check, _may_pass, timeout_s, (0.3, 0.7))


def _repeated(
    work: Callable[[], T], may_pass: Callable[[BaseException], bool], timeout_s: float, pause_s: tuple[float, float]
) -> T:
    """Repeats the work, after pauses of random length, while its errors may pass. Raises: the last error."""
    # Imported where it is needed: a start with the right schema need not wait for it.
    from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_random

    waiting = Retrying(
        retry=retry_if_exception(may_pass), stop=stop_after_delay(timeout_s), wait=wait_random(*pause_s), reraise=True
    )
    return waiting(work)


def _may_pass(error: BaseException) -> bool:
    return isinstance(error, _DatabaseNotReady)


def upgrade(database_url: str) -> str:
    """Brings the schema to this code's revision and returns it. Idempotent; several processes may run it at once.

    All steps are one transaction: a schema is never partly migrated.

    Raises:
        StartupError: the database does not answer, or its schema is newer than this code.
    """
    engine = make_engine(parse_url(database_url), connections_max=1, lock_wait_ms=_MIGRATION_WAIT_S * 1000)
    try:
        _repeated(partial(_upgrade, engine), _is_busy, _MIGRATION_WAIT_S, (0.01, 0.1))
    except (SQLAlchemyError, sqlite3.Error) as error:
        _refuse_damaged(engine, error)
        raise StartupError(f"metadata database can't be migrated: {reason_of(error)}") from error
    finally:
        engine.dispose()
    return head_revision()


def _upgrade(engine: Engine) -> None:
    if engine.dialect.name == "sqlite":
        _set_wal(engine)
    else:
        # A process that has waited for the lock must see its holder's changes, not the state when the wait began.
        engine = engine.execution_options(isolation_level="READ COMMITTED")
    with engine.begin() as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:number)"), {"number": ADVISORY_LOCK})
        current = revision_of(connection)
        if current == head_revision():
            return
        refuse_unknown(current)
        _migrate(connection)


def _migrate(connection: Connection) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def refuse_unknown(revision: str | None) -> None:
    """Raises StartupError for a revision unknown to this code."""
    if revision is not None and revision not in revisions():
        raise StartupError(f"metadata schema {revision} is newer than this version of DueTime")


def _set_wal(engine: Engine) -> None:
    """Lets readers and the writer work without waiting for each other. Stored in the file permanently."""
    connection = engine.raw_connection()
    try:
        cursor = connection.cursor()
        if cursor.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
            cursor.execute("PRAGMA journal_mode = WAL")
    finally:
        connection.close()


def _refuse_damaged(engine: Engine, error: Exception) -> None:
    """Raises StartupError if SQLite's file is damaged or not a database: that is permanent."""
    code = getattr(getattr(error, "orig", None) or error, "sqlite_errorcode", 0)
    if code & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        raise StartupError(
            f"metadata database {engine.url.database} is damaged ({reason_of(error)}): restore a copy, or move it and "
            "its -wal and -shm away and start again: topics and groups are then restored from the shards"
        ) from error


def _is_busy(error: BaseException) -> bool:
    # SQLite does not wait for the lock needed to change the journal mode.
    return isinstance(error, OperationalError | sqlite3.OperationalError) and "locked" in str(error)
