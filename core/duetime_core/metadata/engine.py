"""Engines for SQLite and PostgreSQL that behave alike: short deadlines, and writers that never see a stale row."""

from typing import Any

from sqlalchemy import URL, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError

from duetime_core.errors import StartupError

# A write waits this long for another process's transaction.
LOCK_WAIT_MS = 5_000
# Longest wait for a connection, and for one statement.
CONNECT_TIMEOUT_S = 5
STATEMENT_TIMEOUT_MS = 10_000


def parse_url(text: str) -> URL:
    """The database's URL, with psycopg as PostgreSQL's driver.

    Raises:
        StartupError: malformed, neither SQLite nor PostgreSQL, or SQLite in memory, which no two processes share.
    """
    try:
        url = make_url(text)
    except (ArgumentError, ValueError) as error:
        raise StartupError(f"metadata database {text!r} is not a URL such as sqlite:////path/meta.db") from error
    backend = url.get_backend_name()
    if backend not in ("sqlite", "postgresql"):
        raise StartupError(f"metadata database {backend!r} is neither sqlite nor postgresql")
    if backend == "sqlite" and url.database in (None, "", ":memory:"):
        raise StartupError("metadata database needs a file: sqlite:////path/meta.db")
    return url.set(drivername="postgresql+psycopg") if backend == "postgresql" else url


def make_engine(url: URL, *, connections_max: int = 4, lock_wait_ms: int = LOCK_WAIT_MS) -> Engine:
    """An engine whose transactions are consistent snapshots; conflicts of writers raise, to be repeated."""
    if url.get_backend_name() == "sqlite":
        return _sqlite_engine(url, connections_max, lock_wait_ms)
    return create_engine(
        url,
        isolation_level="REPEATABLE READ",
        pool_size=connections_max,
        max_overflow=0,
        pool_timeout=CONNECT_TIMEOUT_S,
        pool_pre_ping=True,
        connect_args={
            "connect_timeout": CONNECT_TIMEOUT_S,
            "application_name": "duetime",
            "options": f"-c statement_timeout={STATEMENT_TIMEOUT_MS} -c lock_timeout={lock_wait_ms}",
            # A server that vanished without closing is noticed.
            "tcp_user_timeout": STATEMENT_TIMEOUT_MS,
        },
    )


def _sqlite_engine(url: URL, connections_max: int, lock_wait_ms: int) -> Engine:
    engine = create_engine(
        url,
        pool_size=connections_max,
        max_overflow=0,
        pool_timeout=CONNECT_TIMEOUT_S,
        connect_args={"timeout": lock_wait_ms / 1000.0, "check_same_thread": False},
    )

    @event.listens_for(engine, "connect")
    def connect(connection: Any, _: Any) -> None:
        # The driver would begin transactions only at the first write, and then deferred.
        connection.isolation_level = None
        connection.execute("PRAGMA foreign_keys = ON")
        # With WAL a power cut may undo the newest commits but never corrupts; nothing here needs more.
        connection.execute("PRAGMA synchronous = NORMAL")

    @event.listens_for(engine, "begin")
    def begin(connection: Any) -> None:
        # The write lock from the first statement on: no transaction fails half way because another one wrote.
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine
