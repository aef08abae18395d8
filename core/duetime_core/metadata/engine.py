"""Engines for SQLite and PostgreSQL that behave alike: short deadlines, and writers that never see a stale row."""

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
# Longest wait for a connection, and for one statement; less than what a transaction as a whole may take.
CONNECT_TIMEOUT_S = 4
STATEMENT_TIMEOUT_MS = 5_000


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


def make_engine(
    url: URL, *, connections_max: int = 4, lock_wait_ms: int = LOCK_WAIT_MS, may_make: bool = True
) -> Engine:
    """An engine whose transactions are consistent snapshots; conflicts of writers raise, and are to be repeated.

    `may_make`: a missing SQLite file is made, as an empty database.
    """
    if url.get_backend_name() == "sqlite":
        return _sqlite_engine(url, connections_max, lock_wait_ms, may_make)
    return create_engine(
        url,
        # Errors say of a statement what it is, and not which values it was given.
        hide_parameters=True,
        isolation_level="REPEATABLE READ",
        pool_size=connections_max,
        max_overflow=0,
        pool_timeout=CONNECT_TIMEOUT_S,
        connect_args={
            "connect_timeout": CONNECT_TIMEOUT_S,
            "application_name": "duetime",
            # A wait for a lock is a statement too.
            "options": f"-c statement_timeout={max(STATEMENT_TIMEOUT_MS, lock_wait_ms)} -c lock_timeout={lock_wait_ms}",
            # A server that vanished without closing is noticed.
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

    @event.listens_for(engine, "connect")
    def connected(connection: Any, record: Any) -> None:
        record.info["file"] = _file_at(path)
        # The driver would begin transactions only at the first write, and then deferred.
        connection.isolation_level = None
        connection.execute("PRAGMA foreign_keys = ON")
        # With WAL a power cut may undo the newest commits but never corrupts; nothing here needs more.
        connection.execute("PRAGMA synchronous = NORMAL")

    @event.listens_for(engine, "checkout")
    def checkout(connection: Any, record: Any, proxy: Any) -> None:
        # An open connection goes on with a file that was deleted or replaced, and nobody would ever see its writes.
        if record.info["file"] != _file_at(path):
            raise DisconnectionError("the database's file is another one by now")

    @event.listens_for(engine, "begin")
    def begin(connection: Any) -> None:
        # The write lock from the first statement on: no transaction fails half way because another one wrote.
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


def _file_at(path: str) -> tuple[int, int] | None:
    """What identifies a file; None: there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def ping_each_checkout(engine: Engine, taken: Callable[[Any], None]) -> None:
    """As `pool_pre_ping`, and calls `taken` with the connection before checking whether it still answers."""

    @event.listens_for(engine, "checkout")
    def checkout(connection: Any, record: Any, proxy: Any) -> None:
        taken(connection)
        try:
            engine.dialect.do_ping(connection)
        except engine.dialect.loaded_dbapi.Error as error:
            raise DisconnectionError(str(error)) from error


def break_off(connection: Any) -> None:
    """Ends a connection's running statement, from another thread; the thread that waits for it gets an error.

    A server that stands still (a stopped process, a machine that is gone) keeps no deadline of its own.
    """
    if isinstance(connection, sqlite3.Connection):
        connection.interrupt()
        return
    if not connection.closed:
        with suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as link:
            link.shutdown(socket.SHUT_RDWR)
