"""Engines for SQLite and PostgreSQL with equal behaviour: short deadlines, and writers that never see a stale row."""

import os
import socket
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from urllib.parse import quote

from sqlalchemy import URL, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DisconnectionError

from duetime_core.errors import StartupError

# A write waits this long for another process's transaction.
LOCK_WAIT_MS = 4_000
# Longest wait for a connection, and for one statement; less than that of a whole transaction.
CONNECT_TIMEOUT_S = 4
STATEMENT_TIMEOUT_MS = 5_000


def parse_url(text: str) -> URL:
    """The database's URL, with psycopg as PostgreSQL's driver.

    Raises:
        StartupError: malformed, neither SQLite nor PostgreSQL, or SQLite in memory, which processes cannot share.
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


def make_engine(
    url: URL, *, connections_max: int = 4, lock_wait_ms: int = LOCK_WAIT_MS, may_make: bool = True
) -> Engine:
    """An engine whose transactions are consistent snapshots. Conflicts of writers raise; the caller retries.

    `may_make`: creates a missing SQLite file as an empty database.
    """
    if url.get_backend_name() == "sqlite":
        return _sqlite_engine(url, connections_max, lock_wait_ms, may_make)
    return create_engine(
        url,
        # Errors then name a statement without its values.
        hide_parameters=True,
        isolation_level="REPEATABLE READ",
        pool_size=connections_max,
        max_overflow=0,
        pool_timeout=CONNECT_TIMEOUT_S,
        connect_args={
            "connect_timeout": CONNECT_TIMEOUT_S,
            "application_name": "duetime",
            # A wait for a lock is also limited by the statement timeout.
            "options": f"-c statement_timeout={max(STATEMENT_TIMEOUT_MS, lock_wait_ms)} -c lock_timeout={lock_wait_ms}",
            # Detects a server that vanished without closing.
            "tcp_user_timeout": STATEMENT_TIMEOUT_MS,
        },
    )


def _sqlite_engine(url: URL, connections_max: int, lock_wait_ms: int, may_make: bool) -> Engine:
    path = os.path.abspath(str(url.database))
    uri = f"file:{quote(path)}?mode={'rwc' if may_make else 'rw'}"

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(uri, uri=True, timeout=lock_wait_ms / 1000.0, check_same_thread=False)

    engine = create_engine(
        url,
        creator=connect,
        hide_parameters=True,
        pool_size=connections_max,
        max_overflow=0,
        pool_timeout=CONNECT_TIMEOUT_S,
    )

    # An open connection keeps using a deleted or replaced file, whose content no other process would see.
    reconnect_on_change(engine, lambda: _file_at(path), "the database's file was replaced")

    @event.listens_for(engine, "connect")
    def connected(connection: Any, record: Any) -> None:
        # The driver would start transactions only at the first write, and then deferred.
        connection.isolation_level = None
        connection.execute("PRAGMA foreign_keys = ON")
        # WAL: a power cut may undo the latest commits but never corrupts; nothing here needs more.
        connection.execute("PRAGMA synchronous = NORMAL")

    @event.listens_for(engine, "begin")
    def begin(connection: Any) -> None:
        # Take the write lock at the first statement: no transaction fails halfway because of another writer.
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


def _file_at(path: str) -> tuple[int, int] | None:
    """The identity of a file; None: it does not exist."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def reconnect_on_change(engine: Engine, state: Callable[[], object], reason: str) -> None:
    """Replaces a connection at its next use if the state has changed since it was made.

    `Engine.dispose` would leave connections in use to the garbage collector: they return to a pool that nobody closes.
    """

    @event.listens_for(engine, "connect")
    def connected(connection: Any, record: Any) -> None:
        record.info[reason] = state()

    @event.listens_for(engine, "checkout")
    def checkout(connection: Any, record: Any, proxy: Any) -> None:
        if record.info[reason] != state():
            raise DisconnectionError(reason)


def ping_each_checkout(engine: Engine, taken: Callable[[Any], None]) -> None:
    """As `pool_pre_ping`, and passes the connection to `taken` before testing it."""

    @event.listens_for(engine, "checkout")
    def checkout(connection: Any, record: Any, proxy: Any) -> None:
        taken(connection)
        try:
            engine.dialect.do_ping(connection)
        except engine.dialect.loaded_dbapi.Error as error:
            raise DisconnectionError(str(error)) from error


def break_off(connection: Any) -> None:
    """Cancels a connection's running statement from another thread; the waiting thread gets an error.

    Needed for a server that hangs (a stopped process, a lost machine): it does not keep its own deadline.
    """
    if isinstance(connection, sqlite3.Connection):
        connection.interrupt()
        return
    if not connection.closed:
        with suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as link:
            link.shutdown(socket.SHUT_RDWR)
