"""A database in trouble: every state of it is told as UNAVAILABLE, none as a defect, and its end is noticed."""

import asyncio
import os
import signal
import socket
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from duetime_core.errors import StartupError, Unavailable
from duetime_core.metadata import ANY_FAULT, OUTAGES, Database, SchedulerModel, TopicModel, database, upgrade
from duetime_core.metadata.faults import Fault
from prometheus_client import CollectorRegistry
from sqlalchemy import event, func, make_url, select, text
from sqlalchemy.exc import IntegrityError, ProgrammingError
from sqlalchemy.orm import Session
from structlog.testing import capture_logs


def read(session: Session) -> int:
    # Sum a column without an index: this reads the table's own pages.
    return session.scalar(select(func.sum(TopicModel.queue_count))) or 0


def write(session: Session) -> None:
    session.merge(SchedulerModel(member_id="a", address="", heartbeat=1, started_at_ms=0))


class Told:
    """A database, and its reports of availability."""

    def __init__(self, url: str) -> None:
        self.registry = CollectorRegistry()
        self.database = Database(url, self.registry)

    def value(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(name, labels) or 0.0

    async def refused(self, work: Callable[[Session], Any] = write) -> str:
        with pytest.raises(Unavailable) as failure:
            await self.database.run(work)
        assert failure.value.reason == "METADATA_UNAVAILABLE"
        return failure.value.text

    async def back(self) -> None:
        async with asyncio.timeout(60):
            while not self.database.available:
                await asyncio.wait({asyncio.get_running_loop().create_future()}, timeout=0.02)
        await self.database.run(write)


@pytest.fixture
async def sqlite(sqlite_url: str) -> AsyncIterator[Told]:
    await asyncio.to_thread(upgrade, sqlite_url)
    told = Told(sqlite_url)
    await told.database.start()
    yield told
    await told.database.stop()


@pytest.fixture
async def server(postgres_url: str) -> AsyncIterator[Told]:
    await asyncio.to_thread(upgrade, postgres_url)
    told = Told(postgres_url)
    await told.database.start()
    yield told
    await told.database.stop()


def execute(url: str, *statements: str) -> None:
    plain = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(plain, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement)


def end_sessions(url: str) -> str:
    name = make_url(url).database
    others = f"datname = '{name}' AND pid <> pg_backend_pid()"
    return f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}"


# --- SQLite -----------------------------------------------------------------------------------------------------------


def file_of(url: str) -> Path:
    return Path(str(make_url(url).database))


async def test_damaged_file_is_an_outage_until_it_is_put_back(sqlite: Told, sqlite_url: str) -> None:
    await sqlite.database.run(write)
    path = file_of(sqlite_url)
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    sound = path.read_bytes()
    path.write_bytes(b"\xa5" * len(sound))
    with capture_logs() as lines:
        for _ in range(5):
            assert (await sqlite.refused()).startswith("metadata database is damaged: ")
        assert sqlite.value("duetime_metadata_up") == 0
        assert sqlite.value("duetime_metadata_errors_total", fault="damaged") >= 5
        path.write_bytes(sound)
        await sqlite.back()
    assert [(line["event"], line.get("fault")) for line in lines] == [
        ("metadata database unavailable", "damaged"),
        ("metadata database is back", None),
    ]
    assert sqlite.value("duetime_metadata_up") == 1


async def test_damage_within_the_file_is_seen_by_the_probe_too(sqlite: Told, sqlite_url: str) -> None:
    """The damage hits the tables' pages only: the part of the file that the probe reads is sound."""
    path = file_of(sqlite_url)

    def fill(session: Session) -> None:
        for number in range(2_000):
            session.add(TopicModel(name=f"topic-{number}", queue_count=1, created_at_ms=0))

    await sqlite.database.run(fill)
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        root = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'topics'").fetchone()[0]
        size = connection.execute("PRAGMA page_size").fetchone()[0]
    connection.close()
    sound = path.read_bytes()
    at = (root - 1) * size
    path.write_bytes(sound[:at] + b"\xa5" * size + sound[at + size :])
    # SQLite does not reread pages that it has in memory.
    sqlite.database._engine.dispose()
    await sqlite.refused(read)
    await asyncio.wait({asyncio.get_running_loop().create_future()}, timeout=1.2)
    assert not sqlite.database.available
    path.write_bytes(sound)
    await sqlite.back()


async def test_deleted_file_is_an_outage_and_not_recreated(sqlite: Told, sqlite_url: str) -> None:
    path = file_of(sqlite_url)
    await sqlite.database.run(write)
    for name in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
        name.unlink(missing_ok=True)
    assert "unable to open database file" in await sqlite.refused()
    assert not path.exists()
    await asyncio.to_thread(upgrade, sqlite_url)
    await sqlite.back()


async def test_file_that_was_replaced_is_used_from_then_on(sqlite: Told, sqlite_url: str, tmp_path: Path) -> None:
    other = f"sqlite:///{tmp_path / 'other.db'}"
    await asyncio.to_thread(upgrade, other)
    with sqlite3.connect(file_of(other)) as connection:
        connection.execute("INSERT INTO topics VALUES ('orders', 1, 0, 0, 0, 0, 0, '')")
    connection.close()
    assert await sqlite.database.run(read) == 0
    os.replace(file_of(other), file_of(sqlite_url))
    assert await sqlite.database.run(read) == 1


async def test_read_only_file_is_an_outage(sqlite: Told, sqlite_url: str) -> None:
    """The file system was remounted read-only: every connection fails."""
    # Root may write despite the file's mode.
    sqlite.database._engine.dispose()

    def read_only(connection: Any, record: Any) -> None:
        connection.execute("PRAGMA query_only = ON")

    event.listen(sqlite.database._engine, "connect", read_only)
    assert (await sqlite.refused()).startswith("metadata database is read-only: ")
    event.remove(sqlite.database._engine, "connect", read_only)
    await sqlite.back()


async def test_lock_that_another_process_keeps_is_an_outage(sqlite: Told, sqlite_url: str) -> None:
    holder = sqlite3.connect(file_of(sqlite_url), isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    assert (await sqlite.refused()).startswith("metadata database is busy: ")
    holder.execute("ROLLBACK")
    holder.close()
    # No report is needed.
    assert sqlite.database.available
    await sqlite.database.run(write)


async def test_lost_table_is_an_outage(sqlite: Told, sqlite_url: str) -> None:
    with sqlite3.connect(file_of(sqlite_url)) as connection:
        connection.execute("ALTER TABLE schedulers RENAME TO gone")
    assert (await sqlite.refused()).startswith("metadata database lacks this version's schema: ")
    with sqlite3.connect(file_of(sqlite_url)) as connection:
        connection.execute("ALTER TABLE gone RENAME TO schedulers")
    connection.close()
    await sqlite.back()


# --- PostgreSQL -------------------------------------------------------------------------------------------------------


@pytest.mark.postgres
async def test_read_only_server_answers_readers_and_is_an_outage_to_writers(server: Told, postgres_url: str) -> None:
    name = make_url(postgres_url).database
    execute(postgres_url, f"ALTER DATABASE {name} SET default_transaction_read_only = on", end_sessions(postgres_url))
    assert (await server.refused()).startswith("metadata database is read-only: ")
    assert await server.database.run(read) == 0
    execute(postgres_url, "SET default_transaction_read_only = off", f"ALTER DATABASE {name} RESET ALL")
    # No session is ended here: a failover leaves those to the former primary as they are.
    await server.back()


@pytest.mark.postgres
async def test_privilege_that_is_missing_is_an_outage(server: Told, postgres_url: str) -> None:
    role = f"r{make_url(postgres_url).database}"
    everything = "ALL TABLES IN SCHEMA public"
    execute(postgres_url, f"CREATE ROLE {role} LOGIN PASSWORD '{role}'", f"GRANT ALL ON {everything} TO {role}")
    told = Told(make_url(postgres_url).set(username=role, password=role).render_as_string(hide_password=False))
    try:
        await told.database.start()
        await told.database.run(write)
        execute(postgres_url, f"REVOKE INSERT ON schedulers FROM {role}")
        insert = "INSERT INTO schedulers VALUES ('b', '', 1, 1)"
        assert "permission denied" in await told.refused(lambda session: session.execute(text(insert)))
        assert await told.database.run(read) == 0
        execute(postgres_url, f"GRANT INSERT ON schedulers TO {role}")
        await told.back()
        execute(postgres_url, f"REVOKE ALL ON {everything} FROM {role}")
        other = Database(make_url(postgres_url).set(username=role, password=role).render_as_string(hide_password=False))
        with pytest.raises(StartupError, match="metadata database rejects this process: permission denied"):
            await other.start(despite=OUTAGES)
        await other.stop()
    finally:
        await told.database.stop()
        execute(postgres_url, f"REVOKE ALL ON {everything} FROM {role}", f"DROP ROLE {role}")


@pytest.mark.postgres
async def test_dropped_schema_is_an_outage(server: Told, postgres_url: str) -> None:
    execute(postgres_url, "DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
    assert (await server.refused()).startswith("metadata database lacks this version's schema: ")
    await asyncio.to_thread(upgrade, postgres_url)
    await server.back()


@pytest.mark.postgres
async def test_frozen_server_delays_no_other(server: Told, postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its sessions stand still in the middle: each call ends in time, further ones at once, and no thread stays."""
    monkeypatch.setattr(database, "ANSWER_TIMEOUT_S", 1.0)
    pids = await asyncio.gather(
        *(server.database.run(lambda s: s.scalar(text("SELECT pg_backend_pid()"))) for _ in range(4))
    )
    name = make_url(postgres_url).database
    if not all(is_session_here(pid, str(name)) for pid in pids):
        pytest.skip("the server's processes are not this machine's")
    for pid in set(pids):
        os.kill(pid, signal.SIGSTOP)
    try:
        async with asyncio.timeout(60):
            outcomes = await asyncio.gather(*(server.database.run(read) for _ in range(20)), return_exceptions=True)
        assert {type(one).__name__ for one in outcomes if one != 0} <= {"_TransactionFailure"}
    finally:
        for pid in set(pids):
            os.kill(pid, signal.SIGCONT)
    await server.back()
    assert [await server.database.run(read) for _ in range(8)] == [0] * 8


@pytest.mark.postgres
async def test_connection_in_use_during_a_fault_is_closed(server: Told) -> None:
    used: list[Any] = []
    event.listen(server.database._engine, "checkout", lambda connection, *_: used.append(connection))
    held, released = threading.Event(), threading.Event()

    def hold(session: Session) -> int:
        count = read(session)
        held.set()
        released.wait(60)
        return count

    holding = asyncio.create_task(server.database.run(hold))
    assert await asyncio.to_thread(held.wait, 60)
    await server.refused(lambda session: session.execute(text("SELECT pg_terminate_backend(pg_backend_pid())")))
    released.set()
    assert await holding == 0
    await server.back()
    await server.database.stop()
    assert len(used) > 2
    assert all(connection.closed for connection in used)


def is_session_here(pid: int, name: str) -> bool:
    try:
        return name.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


@pytest.mark.postgres
async def test_calls_fail_at_once_during_an_outage_and_recover(postgres_url: str, unused_port: int) -> None:
    await asyncio.to_thread(upgrade, postgres_url)
    url = make_url(postgres_url)
    relay = await relayed(url.host, url.port, unused_port)
    told = Told(url.set(host="127.0.0.1", port=unused_port).render_as_string(hide_password=False))
    try:
        await told.database.start()
        relay.close()
        with capture_logs() as lines:
            assert (await told.refused()).startswith("metadata database does not answer: ")
            for _ in range(100):
                await told.refused()
            relay = await relayed(url.host, url.port, unused_port)
            await told.back()
        assert [line["event"] for line in lines] == ["metadata database unavailable", "metadata database is back"]
    finally:
        relay.close()
        await told.database.stop()


async def relayed(host: str | None, port: int | None, at: int) -> "Relay":
    relay = Relay(host, port)
    await relay.listen(at)
    return relay


class Relay:
    """A way to the server that can be cut."""

    def __init__(self, host: str | None, port: int | None) -> None:
        self._target = host, port
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    async def listen(self, at: int) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", at, reuse_port=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(*self._target)
        self._writers |= {writer, back}
        await asyncio.gather(self._pass(reader, back), self._pass(there, writer))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65_536):
                writer.write(data)
        except OSError:
            pass
        writer.close()

    def close(self) -> None:
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()


@pytest.fixture
def unused_port() -> Iterator[int]:
    """A port of the test's own, on which nobody listens yet."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind(("127.0.0.1", 0))
        yield int(holder.getsockname()[1])


# --- starts and defects -----------------------------------------------------------------------------------------------


@pytest.mark.postgres
async def test_start_with_a_database_that_is_away_waits_for_it_and_then_checks_its_schema(
    postgres_url: str, unused_port: int
) -> None:
    url = make_url(postgres_url)
    told = Told(url.set(host="127.0.0.1", port=unused_port).render_as_string(hide_password=False))
    await told.database.start(despite=OUTAGES)
    assert not told.database.available
    relay = await relayed(url.host, url.port, unused_port)
    try:
        async with asyncio.timeout(60):
            while "metadata schema is missing" not in await told.refused(read):
                await asyncio.wait({asyncio.get_running_loop().create_future()}, timeout=0.02)
        await asyncio.to_thread(upgrade, postgres_url)
        await told.back()
    finally:
        await told.database.stop()
        relay.close()


async def test_wrong_database_prevents_a_start_unless_faults_are_tolerated(sqlite_url: str) -> None:
    file_of(sqlite_url).write_bytes(b"this is no database, but a text that is long enough" * 40)
    strict = Database(sqlite_url)
    with pytest.raises(StartupError, match="metadata database is damaged: file is not a database"):
        await strict.start(despite=OUTAGES)
    await strict.stop()
    told = Told(sqlite_url)
    await told.database.start(despite=ANY_FAULT)
    await told.refused()
    file_of(sqlite_url).unlink()
    await asyncio.to_thread(upgrade, sqlite_url)
    await told.back()
    await told.database.stop()


async def test_start_with_a_database_that_is_busy_looks_at_it_later(sqlite_url: str) -> None:
    await asyncio.to_thread(upgrade, sqlite_url)
    holder = sqlite3.connect(file_of(sqlite_url), isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    told = Told(sqlite_url)
    await told.database.start(despite=OUTAGES)
    assert await told.refused() == "metadata database is busy: database is locked"
    holder.execute("ROLLBACK")
    holder.close()
    async with asyncio.timeout(60):
        while True:
            try:
                await told.database.run(write)
                break
            except Unavailable:
                await asyncio.wait({asyncio.get_running_loop().create_future()}, timeout=0.02)
    await told.database.stop()


async def test_defect_is_no_outage(sqlite: Told) -> None:
    with pytest.raises(IntegrityError):
        await sqlite.database.run(lambda session: session.execute(text("INSERT INTO topics (name) VALUES ('a')")))
    with pytest.raises(Exception, match="syntax error"):
        await sqlite.database.run(lambda session: session.execute(text("SELEC 1")))
    assert sqlite.database.available
    assert sqlite.value("duetime_metadata_errors_total", fault=Fault.AWAY.value) == 0


@pytest.mark.postgres
async def test_statement_that_no_server_takes_is_a_defect(server: Told) -> None:
    with pytest.raises(ProgrammingError):
        await server.database.run(lambda session: session.execute(text("SELEC 1")))
    assert server.database.available
