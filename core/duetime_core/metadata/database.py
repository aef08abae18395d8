"""The metadata database as services use it: transactions on threads of its own, never on the event loop."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from sqlalchemy.exc import DBAPIError, IntegrityError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.orm import Session, sessionmaker

from duetime_core.errors import StartupError, Unavailable
from duetime_core.metadata.engine import make_engine, parse_url
from duetime_core.metadata.schema import head_revision, reason_of, refuse_unknown, revision_of

T = TypeVar("T")

THREADS = 4
ATTEMPTS = 8
# serialization_failure, deadlock_detected, lock_not_available; unique_violation: two ran "insert what is missing".
_REPEATABLE = {"40001", "40P01", "55P03", "23505"}


class Database:
    """A pool of connections and the threads that use them."""

    def __init__(self, url: str) -> None:
        self._url = parse_url(url)
        self._is_sqlite = self._url.get_backend_name() == "sqlite"
        # SQLite has one writer anyway: a second thread would only wait for the first.
        threads = 1 if self._is_sqlite else THREADS
        self._engine = make_engine(self._url, connections_max=threads)
        self._sessions = sessionmaker(self._engine, expire_on_commit=False)
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="metadata")

    async def start(self) -> None:
        """Connects and checks that the schema is this code's.

        Raises:
            StartupError: the database does not answer, has no schema, or another one.
        """
        if self._is_sqlite and not await asyncio.to_thread(Path(str(self._url.database)).exists):
            # SQLite would make an empty one.
            raise StartupError(f"metadata database {self._url.database} does not exist; {_REMEDY}")
        try:
            revision = await self.run(lambda session: revision_of(session.connection()))
        except Unavailable as error:
            raise StartupError(error.text) from error
        if revision != head_revision():
            refuse_unknown(revision)
            raise StartupError(f"metadata schema is {revision or 'missing'}, not {head_revision()}; {_REMEDY}")

    async def run(self, work: Callable[[Session], T]) -> T:
        """The result of `work`, done in one transaction and committed; on a conflict with others it is run again.

        Raises:
            Unavailable: the database does not answer, or conflicts did not end. `work` may have been committed
                if its answer was lost.
        """
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._run, work)

    def _run(self, work: Callable[[Session], T]) -> T:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                with self._sessions.begin() as session:
                    return work(session)
            except (DBAPIError, PoolTimeoutError) as error:
                if attempt < ATTEMPTS and _is_conflict(error):
                    continue
                if _is_outage(error):
                    text = f"metadata database does not answer: {reason_of(error)}"
                    raise Unavailable(text, reason="METADATA_UNAVAILABLE") from error
                raise
        raise AssertionError("the last attempt returns or raises")

    async def stop(self) -> None:
        """Waits for the transactions that are running, then closes all connections."""
        await asyncio.to_thread(self._executor.shutdown)
        self._engine.dispose()


_REMEDY = "run: python -m duetime_core.metadata upgrade --database-url URL"


def _is_conflict(error: Exception) -> bool:
    # SQLite's writers wait for each other inside the driver; what still fails after that is an outage.
    return getattr(getattr(error, "orig", None), "sqlstate", None) in _REPEATABLE


def _is_outage(error: Exception) -> bool:
    if isinstance(error, IntegrityError):
        return False
    return isinstance(error, OperationalError | InterfaceError | PoolTimeoutError) or _is_conflict(error)
