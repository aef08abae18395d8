"""A delayed queue made by hand in PostgreSQL: one table, COPY in, DELETE ... SKIP LOCKED out.

    sender ── COPY, a transaction per batch, 4 connections ──▶ delayed (primary key: due time, id)
       │                                                          │ DELETE ... SKIP LOCKED ... RETURNING due rows
       └── NOTIFY of a due time that no receiver wakes for ────▶ receiver: sleeps until the next due time

The server keeps all durability settings (fsync, synchronous_commit), and gets ample memory and log space.
"""

import asyncio
import os
import pwd
import select
import shutil
import signal
import struct
import subprocess
import time
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import psycopg

from bench.peers import BODY, START_DEADLINE_S, Missing, Peer, Program, Promises, Receiver, Sender
from bench.usage import Tree

USER = "postgres"
CONNECTIONS = 4
TAKEN_MAX = 1024
# Interval of reads that find rows stored after their promised time.
LOOK_MS_MAX = 1000.0
SETTINGS = {
    "autovacuum": "on",
    "autovacuum_naptime": "5s",
    "checkpoint_timeout": "15min",
    # Statistics of a queue are always old: after an analysis of an empty table, the planner would read it whole.
    "enable_seqscan": "off",
    "fsync": "on",
    "full_page_writes": "on",
    "jit": "off",
    "listen_addresses": "",
    "max_wal_senders": "0",
    "max_wal_size": "8GB",
    "min_wal_size": "1GB",
    "shared_buffers": "1GB",
    "synchronous_commit": "on",
    "wal_buffers": "64MB",
    "wal_level": "minimal",
}
# The due time first: one index finds due rows, in order, and names each row. Truncating the end of the file would lock
# the table meanwhile.
TABLE = """
CREATE TABLE delayed (
    id bigint GENERATED ALWAYS AS IDENTITY,
    due_at_ms bigint NOT NULL,
    topic text NOT NULL,
    tags text NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (due_at_ms, id)
) WITH (autovacuum_vacuum_scale_factor = 0.02, vacuum_truncate = false)
"""
COPY = "COPY delayed (due_at_ms, topic, tags, body) FROM STDIN (FORMAT binary)"
COPY_HEAD = b"PGCOPY\n\xff\r\n\0" + struct.pack(">ii", 0, 0)
COPY_TAIL = struct.pack(">h", -1)
FIELD_COUNT_DUE = struct.Struct(">hiq")
LENGTH = struct.Struct(">i")
# Allows several receivers: none waits for rows locked by another.
TAKE = """
DELETE FROM delayed WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM delayed WHERE due_at_ms <= %b ORDER BY due_at_ms, id LIMIT %b FOR UPDATE SKIP LOCKED
)) RETURNING id, due_at_ms, topic, tags, body
"""
NEXT = "SELECT due_at_ms FROM delayed WHERE due_at_ms > %b ORDER BY due_at_ms LIMIT 1"


class Postgres(Peer):
    """A cluster made for the run, reached by a Unix socket."""

    name = "postgres"
    title = "PostgreSQL queue"
    in_flight = CONNECTIONS

    def __init__(self) -> None:
        self._server: Program | None = None
        # For psycopg.connect.
        self.where = ""

    def start(self, directory: Path) -> None:
        programs = _programs()
        directory.mkdir()
        as_user: dict[str, Any] = {}
        if os.geteuid() == 0:
            # The server does not run as root.
            shutil.chown(directory, USER, USER)
            as_user = {"user": USER, "group": USER, "extra_groups": []}
        data = str(directory / "data")
        made = [str(programs / "initdb"), "-D", data, "-U", USER, "-A", "trust", "-E", "UTF8", "--locale=C"]
        subprocess.run(made, cwd=directory, stdout=subprocess.DEVNULL, check=True, timeout=START_DEADLINE_S, **as_user)
        options = [word for name, value in SETTINGS.items() for word in ("-c", f"{name}={value}")]
        self._server = Program(
            [str(programs / "postgres"), "-D", data, "-k", str(directory), *options], directory, **as_user
        )
        self.where = f"host={directory} user={USER} dbname=postgres"
        self._server.wait_until(self._answers)
        with psycopg.connect(self.where, autocommit=True) as connection:
            connection.execute(TABLE)
            self.version = connection.info.parameter_status("server_version") or ""

    def stop(self) -> None:
        if self._server is not None:
            # Immediate, without a checkpoint: the data are no longer needed.
            self._server.stop(signal.SIGQUIT)

    def cpu_s(self) -> float:
        """Processor seconds used by the server, ended connections included."""
        assert self._server is not None
        return Tree(self._server.pid).cpu_s()

    async def sender(self, topic: str) -> "PostgresSender":
        connections = [await psycopg.AsyncConnection.connect(self.where, autocommit=True) for _ in range(CONNECTIONS)]
        return PostgresSender(connections, topic)

    def receiver(self, topic: str) -> "PostgresReceiver":
        return PostgresReceiver(self.where)

    def settle(self) -> None:
        with psycopg.connect(self.where, autocommit=True) as connection:
            connection.execute("VACUUM (ANALYZE) delayed")

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.where).close()
        except psycopg.OperationalError:
            return False
        return True


class PostgresSender(Sender):
    """COPY is the cheapest way in, for the client and for the server; a batch is a transaction."""

    def __init__(self, connections: list[psycopg.AsyncConnection[Any]], topic: str) -> None:
        self._connections = connections
        self._idle: asyncio.LifoQueue[psycopg.AsyncConnection[Any]] = asyncio.LifoQueue()
        for connection in connections:
            self._idle.put_nowait(connection)
        self._topic_tags = _field(topic.encode()) + _field(b"paid")
        self._promises = Promises()

    async def send(self, count: int, delay_s: float) -> None:
        connection = await self._idle.get()
        try:
            now_ms = time.time_ns() // 1_000_000
            due_at_ms = now_ms + round(delay_s * 1000)
            rows = self._rows([BODY] * count, due_at_ms)
            async with connection.cursor() as cursor, cursor.copy(COPY) as copy:
                await copy.write(rows)
            if self._promises.must_tell(due_at_ms, now_ms):
                # After the rows: a NOTIFY in their transaction would block the commits of other transactions.
                await connection.execute("SELECT pg_notify('due', %s)", (str(due_at_ms),))
        finally:
            self._idle.put_nowait(connection)

    def _rows(self, bodies: list[bytes], due_at_ms: int) -> bytes:
        start = FIELD_COUNT_DUE.pack(4, 8, due_at_ms) + self._topic_tags
        return b"".join([COPY_HEAD, *[start + _field(body) for body in bodies], COPY_TAIL])

    async def close(self) -> None:
        for connection in self._connections:
            await connection.close()


class PostgresReceiver(Receiver):
    """One connection that also listens."""

    def __init__(self, where: str) -> None:
        self._where = where

    async def open(self) -> None:
        self._connection = psycopg.connect(self._where, autocommit=True)
        self._connection.execute("LISTEN due")
        self._connection.add_notify_handler(self._on_notice)
        self._cursor = self._connection.cursor(binary=True)
        self._taken_to_ms = 0
        # The time of the next due row; None: unknown.
        self._next_ms: float | None = 0.0

    def _on_notice(self, notify: psycopg.Notify) -> None:
        if self._next_ms is not None:
            self._next_ms = min(self._next_ms, float(notify.payload))

    async def receive(self, wait_s: float) -> list[Any]:
        # Nothing else runs in this process, so it may block; asyncio's epoll has a resolution of milliseconds.
        end = time.time() + wait_s
        while True:
            next_ms = self._look() if self._next_ms is None else self._next_ms
            now = time.time()
            if next_ms <= now * 1000:
                if messages := self._take(int(now * 1000)):
                    return messages
            elif now >= end:
                return []
            elif select.select([self._connection.fileno()], [], [], min(next_ms / 1000, end) - now)[0]:
                # Any statement processes pending notices.
                self._connection.execute("")

    def _take(self, now_ms: int) -> list[Any]:
        taken = self._cursor.execute(TAKE, (now_ms, TAKEN_MAX), prepare=True).fetchall()
        self._taken_to_ms = now_ms
        self._next_ms = now_ms if len(taken) == TAKEN_MAX else None
        return taken

    def _look(self) -> float:
        # Set before the read, so that later notices count.
        self._next_ms = time.time() * 1000 + LOOK_MS_MAX
        if found := self._cursor.execute(NEXT, (self._taken_to_ms,), prepare=True).fetchone():
            self._next_ms = min(self._next_ms, float(found[0]))
        return self._next_ms

    def read(self, messages: list[Any]) -> list[Hashable]:
        return [(message[0], len(message[4]))[0] for message in messages]

    def late_ms(self, messages: list[Any], wall_ms: float) -> list[float]:
        return [wall_ms - message[1] for message in messages]

    async def close(self) -> None:
        self._connection.close()


def _field(value: bytes) -> bytes:
    return LENGTH.pack(len(value)) + value


def _programs() -> Path:
    """The directory of the latest initdb and postgres."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    on_path = shutil.which("initdb")
    if not found and not on_path:
        raise Missing("initdb and postgres are not on this machine")
    if os.geteuid() == 0 and USER not in {user.pw_name for user in pwd.getpwall()}:
        raise Missing(f"it does not run as root, and there is no user {USER}")
    return found[-1].parent if found else Path(str(on_path)).resolve().parent
