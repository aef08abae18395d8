"""Wakes a relay when a transaction with messages commits: LISTEN on PostgreSQL, by psycopg."""

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from sqlalchemy import Engine

from duetime.client.connection import backoff_s, pause

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine  # needs greenlet

log = logging.getLogger("duetime.outbox")

CONNECT_TIMEOUT_S = 10


class CommitListener:
    """A dedicated connection that listens on a channel. `on`: it listens, so that polls can be rarer."""

    def __init__(self, engine: "Engine | AsyncEngine", channel: str, wake: asyncio.Event) -> None:
        self.on = False
        self._url = engine.url
        self._channel = channel
        self._wake = wake

    async def run(self) -> None:
        """Listens until it is cancelled; a lost connection is reopened. Returns at once without PostgreSQL or
        psycopg."""
        if self._url.get_backend_name() != "postgresql":
            return
        try:
            import psycopg
            from psycopg import conninfo, sql
        except ImportError:
            log.warning("psycopg is not installed: the outbox is polled, and commits do not wake the relay")
            return
        attempt = 0
        while True:
            attempt += 1
            try:
                connection = await psycopg.AsyncConnection.connect(
                    conninfo.make_conninfo(**self._options()), autocommit=True, connect_timeout=CONNECT_TIMEOUT_S
                )
                async with connection:
                    await connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._channel)))
                    attempt, self.on = 0, True
                    # Rows committed before the LISTEN.
                    self._wake.set()
                    async for _ in connection.notifies():
                        self._wake.set()
            except psycopg.Error as error:
                log.warning("listening to the database: %s; trying again", " ".join(str(error).split()))
            finally:
                self.on = False
            await pause(backoff_s(max(attempt, 1)))

    def _options(self) -> dict[str, Any]:
        """The URL's options, by libpq's names."""
        plain = {name: value for name, value in self._url.query.items() if isinstance(value, str)}
        return self._url.translate_connect_args(username="user", database="dbname") | plain
