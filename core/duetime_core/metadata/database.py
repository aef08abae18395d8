"""Access of services to the metadata database: transactions on separate threads, never on the event loop.

In any state of the database, a transaction ends within ANSWER_TIMEOUT_S, as done or as `Unavailable`; if still running,
it is cancelled, so that a server that hangs keeps no thread. While the database does not answer, calls fail at once and
a probe retries it (`standing`): no call waits for a database known to be unavailable.
"""

import asyncio
import threading
from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry
from sqlalchemy import insert, literal, select, text, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session, sessionmaker

from duetime_core.errors import StartupError, Unavailable
from duetime_core.metadata.engine import break_off, make_engine, parse_url, ping_each_checkout, reconnect_on_change
from duetime_core.metadata.faults import SENTENCES, Fault, fault_of, is_conflict, reason_of
from duetime_core.metadata.models import MetadataBase
from duetime_core.metadata.schema import head_revision, refuse_unknown, revision_of
from duetime_core.metadata.standing import DatabaseAvailability

T = TypeVar("T")

THREADS = 4
ATTEMPTS = 8
# Longest time of a transaction, including waits for a thread, a connection and locks.
ANSWER_TIMEOUT_S = 8.0
# Longest wait of `refresh`.
PATIENCE_S = 0.25
# Longest wait of a stop for running transactions.
STOP_WAIT_S = 2.0
REASON = "METADATA_UNAVAILABLE"
ANY_FAULT = frozenset(Fault)
# The other faults mean that the database has never served this process: it is the wrong one, or not created yet.
OUTAGES = ANY_FAULT - {Fault.SCHEMA, Fault.DAMAGED, Fault.REFUSED}


class _Attempt:
    """A running transaction, which can be cancelled."""

    def __init__(self) -> None:
        self.connection: Any = None
        self.has_begun = False
        self.given_up = False

    def give_up(self) -> None:
        self.given_up = True
        if self.connection is not None:
            break_off(self.connection)

    @property
    def fault(self) -> Fault:
        """The fault of a cancelled transaction. If it never had a thread, the database is not to blame."""
        return Fault.AWAY if self.has_begun else Fault.BUSY


class Database:
    """A pool of connections and the threads that use them."""

    def __init__(self, url: str, registry: CollectorRegistry | None = None) -> None:
        self._url = parse_url(url)
        self._is_sqlite = self._url.get_backend_name() == "sqlite"
        # SQLite has a single writer: a second thread would only wait for the first.
        threads = 1 if self._is_sqlite else THREADS
        # Otherwise SQLite would create an empty file.
        self._engine = make_engine(self._url, connections_max=threads, may_make=False)
        # Replaced by each fault, from any thread: no connection of before is used again.
        self._era = object()
        reconnect_on_change(self._engine, lambda: self._era, "the connection is older than a fault")
        self._sessions = sessionmaker(self._engine, expire_on_commit=False)
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="metadata")
        self._running: set[_Attempt] = set()
        self._here = threading.local()
        if not self._is_sqlite:
            ping_each_checkout(self._engine, self._taken)
        self._standing = DatabaseAvailability(registry)
        self._probe_at: TimerHandle | None = None
        self._stopped = False
        # Whether the schema was verified. A later migration by a newer version does not matter.
        self._schema_known = True

    @property
    def available(self) -> bool:
        """Whether it is readable and writable, as last observed."""
        return self._standing.fault is None

    async def start(self, *, despite: Collection[Fault] = ()) -> None:
        """Connects and verifies the schema.

        `despite`: faults that do not fail the start. The database is then awaited in the background, and used once its
        schema is verified. OUTAGES: for processes that can work without it, ANY_FAULT for those that must.

        Raises:
            StartupError: it does not exist, has no schema or another one, does not answer, or is not a database.
        """
        self._schema_known = False
        try:
            if self._is_sqlite and not await asyncio.to_thread(Path(str(self._url.database)).exists):
                raise StartupError(f"metadata database {self._url.database} does not exist; {_REMEDY}")
            await self._await(*self._submit(_check_schema))
            self._schema_known = True
        except StartupError as error:
            if Fault.SCHEMA not in despite:
                raise
            self._failed(Fault.SCHEMA, error.text)
        except _TransactionFailure as error:
            if error.fault not in despite:
                raise StartupError(error.text) from error
            if self._probe_at is None:
                # Busy is not reported as a fault, but the schema must still be verified.
                self._probe_later()

    async def run(self, work: Callable[[Session], T]) -> T:
        """Runs `work` in one transaction, commits, and returns its result; repeats it on conflicts with others.

        Raises:
            Unavailable: the database does not answer, rejects, or conflicts persist. If the answer was lost, `work` may
            have been committed.
        """
        self._check_standing()
        return await self._await(*self._submit(work))

    def begin(self, work: Callable[[Session], T]) -> "asyncio.Future[T]":
        """As `run`, for callers that do not wait: it runs in any case.

        Raises:
            Unavailable: the database is known not to answer.
        """
        self._check_standing()
        return self._submit(work)[0]

    async def refresh(self, work: Callable[[Session], T], then: Callable[[T], None]) -> None:
        """Refreshes a value cached by the caller, for whom the cached one is better than waiting: returns within
        PATIENCE_S. `then` gets the result when it arrives; it is not called on errors."""
        try:
            running = self.begin(work)
        except Unavailable:
            return
        running.add_done_callback(lambda done: None if done.cancelled() or done.exception() else then(done.result()))
        await asyncio.wait({running}, timeout=PATIENCE_S)
        if running.done() and not isinstance(running.exception(), Unavailable):
            running.result()

    def _check_standing(self) -> None:
        if self._standing.fault is Fault.AWAY or not self._schema_known:
            raise Unavailable(self._standing.text or "metadata database has not answered yet", reason=REASON)

    async def _await(self, running: "asyncio.Future[T]", attempt: _Attempt) -> T:
        """Waits for at most the time of a transaction, even if its thread hangs in a name server or a network drive."""
        try:
            done, _ = await asyncio.wait({running}, timeout=ANSWER_TIMEOUT_S + 1)
        except asyncio.CancelledError:
            running.cancel()
            raise
        if not done:
            running.cancel()
            raise self._failed(attempt.fault, _no_answer())
        return running.result()

    def _submit(self, work: Callable[[Session], T]) -> "tuple[asyncio.Future[T], _Attempt]":
        loop, attempt = asyncio.get_running_loop(), _Attempt()
        running = self._executor.submit(self._run, work, attempt)
        self._running.add(attempt)
        end = loop.call_later(ANSWER_TIMEOUT_S, attempt.give_up)
        running.add_done_callback(partial(self._ended, loop, attempt, end))
        future = asyncio.wrap_future(running)
        # The caller may have left.
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        return future, attempt

    def _ended(self, loop: AbstractEventLoop, attempt: _Attempt, end: TimerHandle, running: "Future[Any]") -> None:
        """Runs on the transaction's thread."""
        error = None if running.cancelled() else running.exception()
        with suppress(RuntimeError):
            # The loop may have been closed.
            loop.call_soon_threadsafe(self._settle, attempt, end, error)

    def _settle(self, attempt: _Attempt, end: TimerHandle, error: BaseException | None) -> None:
        end.cancel()
        self._running.discard(attempt)
        if isinstance(error, _TransactionFailure):
            self._failed(error.fault, error.words)

    def _taken(self, connection: Any) -> None:
        attempt: _Attempt | None = getattr(self._here, "attempt", None)
        if attempt is not None:
            attempt.connection = connection

    def _run(self, work: Callable[[Session], T], attempt: _Attempt) -> T:
        self._here.attempt = attempt
        if attempt.given_up:
            raise _TransactionFailure(attempt.fault, _no_answer())
        attempt.has_begun = True
        for number in range(1, ATTEMPTS + 1):
            try:
                with self._sessions.begin() as session:
                    return work(session)
            except _TransactionFailure:
                # SQLite would keep parts of a damaged file in memory, and not read them again.
                self._era = object()
                raise
            except SQLAlchemyError as error:
                if number < ATTEMPTS and is_conflict(error) and not attempt.given_up:
                    continue
                fault = Fault.AWAY if attempt.given_up else fault_of(error)
                if fault is None:
                    raise
                if fault is not Fault.BUSY:
                    # The next connection may reach a new server after a failover, or a restored file.
                    self._era = object()
                raise _TransactionFailure(fault, _no_answer() if attempt.given_up else reason_of(error)) from error
        raise AssertionError("the last attempt returns or raises")

    # --- unavailability ---------------------------------------------------------------------------------------------

    def _failed(self, fault: Fault, words: str) -> Unavailable:
        """Records a fault, and starts a probe that detects its end."""
        self._standing.failed(fault, words)
        if fault is not Fault.BUSY and self._probe_at is None:
            self._probe_later()
        return _TransactionFailure(fault, words)

    def _probe_later(self) -> None:
        if not self._stopped:
            loop = asyncio.get_running_loop()
            self._probe_at = loop.call_later(self._standing.pause_s, self._probe)

    def _probe(self) -> None:
        fault, schema_known = self._standing.fault, self._schema_known
        probing, _ = self._submit(lambda session: _probe(session, fault, check_schema=not schema_known))
        probing.add_done_callback(self._probed)

    def _probed(self, probing: "asyncio.Future[None]") -> None:
        self._probe_at = None
        error = None if probing.cancelled() else probing.exception()
        if error is None and not probing.cancelled():
            self._schema_known = True
            self._standing.well()
        elif not isinstance(error, _TransactionFailure):
            # A wrong schema, or an impossible answer to a probe.
            self._standing.failed(Fault.SCHEMA, error.text if isinstance(error, StartupError) else repr(error))
        if self._standing.fault is not None or not self._schema_known:
            self._probe_later()

    async def stop(self) -> None:
        """Waits for running transactions, at most some seconds, then closes all connections."""
        self._stopped = True
        if self._probe_at is not None:
            self._probe_at.cancel()
        ending = asyncio.ensure_future(asyncio.to_thread(partial(self._executor.shutdown, cancel_futures=True)))
        if not (await asyncio.wait({ending}, timeout=STOP_WAIT_S))[0]:
            for attempt in self._running:
                attempt.give_up()
        await ending
        self._engine.dispose()


class _TransactionFailure(Unavailable):
    """A transaction failed; `fault` is the cause."""

    reason = REASON

    def __init__(self, fault: Fault, words: str) -> None:
        super().__init__(f"{SENTENCES[fault]}: {words}")
        self.fault = fault
        self.words = words


_REMEDY = "run: python -m duetime_core.metadata upgrade --database-url URL"


def _no_answer() -> str:
    return f"no response within {ANSWER_TIMEOUT_S:g} s"


def _check_schema(session: Session) -> None:
    """Raises: StartupError."""
    revision = revision_of(session.connection())
    if revision != head_revision():
        refuse_unknown(revision)
        raise StartupError(f"metadata schema is {revision or 'missing'}, not {head_revision()}; {_REMEDY}")


def _probe(session: Session, fault: Fault | None, *, check_schema: bool) -> None:
    """Raises the errors that running processes would get: each table must exist, readable and writable."""
    if check_schema:
        _check_schema(session)
    if fault is Fault.DAMAGED and session.get_bind().dialect.name == "sqlite":
        found = session.execute(text("PRAGMA quick_check(1)")).scalar_one()
        if found != "ok":
            raise _TransactionFailure(Fault.DAMAGED, " ".join(str(found).split()))
    for table in MetadataBase.metadata.sorted_tables:
        columns = list(table.columns)
        nothing = select(*columns).where(literal(1) == 0)
        session.execute(insert(table).from_select([column.name for column in columns], nothing))
        session.execute(update(table).where(literal(1) == 0).values({columns[0].name: columns[0]}))
