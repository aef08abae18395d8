"""The relay: moves the rows of an outbox to the server until it is stopped.

    claim ──▶ ask the server about rows possibly sent too long ago ──▶ send ──▶ settle
      │ commits: the rows are this relay's until the lease ends, and may have been sent        │ commits

A relay can die between any two steps. The next relay that claims its rows after the lease sends them again under the
same ids, and the server answers with the first result within its window of ids; `verdicts.py` covers later repeats.
"""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

from sqlalchemy import Connection, Engine, MetaData, inspect
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.pool import SingletonThreadPool

from duetime import deadlines
from duetime.client.connection import backoff_s, pause, resolve_server
from duetime.client.counts import whole
from duetime.client.errors import DueTimeError, InvalidArgument, NotFound, PermissionDenied, Unavailable
from duetime.client.finding.finder import AsyncFinder, FoundMessage
from duetime.client.lengths import Length, milliseconds, seconds
from duetime.client.message import Message, Receipt
from duetime.client.process import Signals
from duetime.client.sending.batch import REQUEST_COUNT_MAX
from duetime.client.sending.producer import AsyncProducer
from duetime.outbox.listening import CommitListener
from duetime.outbox.rows import ClaimedRow, ClaimedRows, Rows
from duetime.outbox.table import DOUBTFUL, FAILED, SENT, WAITING, Outbox
from duetime.outbox.verdicts import RowVerdict, Trust, is_away, of_outcomes

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine  # needs greenlet

log = logging.getLogger("duetime.outbox")

# Rows in one round: one request.
BATCH_MAX = REQUEST_COUNT_MAX
# A round asks about rows and sends up to two requests after the claim; all of that must fit within the lease.
LEASE_TIMEOUTS_MIN = 4
# Concurrent questions about ids.
ASKED_MAX = 16
# Interval of polls by a relay that commits wake: notices may be lost.
LISTENING_POLL_S = 30.0

T = TypeVar("T")


@dataclass(slots=True)
class RelayStats:
    """Counts since a relay was made. `repeated`: sent messages that the server had already."""

    sent: int = 0
    repeated: int = 0
    failed: int = 0
    doubtful: int = 0
    put_off: int = 0


class Relay:
    """Moves the rows of an outbox. Several may run at once.

    Arguments:
        engine: the user's database, synchronous or asynchronous. SQLite in memory works in the thread that created the
            table.
        server: HOST:PORT; None: DUETIME_SERVER, else localhost:9800.
        outbox: the outbox with the table; None: `duetime_outbox`.
        window: safe time for repeats: the server surely answers them with the first result. Less than its own window of
            ids: 10 minutes or 1,000,000 ids of a shard, the shorter of both.
        retention: the server's guaranteed retention. A message missing within it was never stored.
        keep: retention of sent rows; 0: they are deleted at once.
        poll: interval of polls if no commit wakes the relay.
        lease: time until the rows of a dead relay are free again.
        batch: rows in one round.
        timeout: longest time of one request.
        clock: Unix milliseconds; None: the database's.
    """

    def __init__(
        self,
        engine: "Engine | AsyncEngine",
        server: str | None = None,
        *,
        outbox: Outbox | None = None,
        window: Length = "5m",
        retention: Length = "1h",
        keep: Length = "0s",
        poll: Length = "1s",
        lease: Length = "60s",
        batch: int = BATCH_MAX,
        timeout: Length = "10s",
        clock: Callable[[Connection], int] | None = None,
    ) -> None:
        batch = whole("batch", batch, BATCH_MAX)
        self._lease_s, timeout_s = seconds(lease, "lease"), seconds(timeout, "timeout")
        if self._lease_s < LEASE_TIMEOUTS_MIN * timeout_s:
            text = f"{self._lease_s:g} s is below {LEASE_TIMEOUTS_MIN} timeouts of {timeout_s:g} s"
            raise InvalidArgument.of("lease", text)
        self._engine = engine
        # A database of SQLite in memory belongs to its connection, and the pool has one for each thread.
        self._stays_in_thread = isinstance(engine, Engine) and isinstance(engine.pool, SingletonThreadPool)
        self._server = resolve_server(server)
        self._outbox = outbox or Outbox(MetaData())
        self._rows = Rows(self._outbox)
        self._clock = clock or self._rows.now
        self._trust = Trust(
            timedelta(seconds=seconds(window, "window")), timedelta(seconds=seconds(retention, "retention"))
        )
        self._keep_ms = milliseconds(keep, "keep")
        self._poll_s = seconds(poll, "poll")
        self._batch = batch
        self._timeout_s = timeout_s
        self._stats = RelayStats()
        self._wake = asyncio.Event()
        self._stopping = False
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def stats(self) -> RelayStats:
        """A copy."""
        return replace(self._stats)

    def run(self, *, drain: bool = False) -> None:
        """Moves rows until SIGTERM, SIGINT or `stop`; then it finishes the current round. A second signal aborts the
        round: its rows are sent again after the lease. `drain`: it also ends when no rows are left to move."""
        with contextlib.suppress(asyncio.CancelledError):
            asyncio.run(self._run_with_signals(drain))

    async def run_async(self, *, drain: bool = False) -> None:
        """As `run`, in an event loop and without signals."""
        self._check_thread()
        self._loop = asyncio.get_running_loop()
        listener = CommitListener(self._engine, self._outbox.channel, self._wake)
        try:
            async with (
                AsyncProducer(self._server, timeout=timedelta(seconds=self._timeout_s)) as producer,
                AsyncFinder(self._server, timeout=timedelta(seconds=self._timeout_s)) as finder,
                asyncio.TaskGroup() as tasks,
            ):
                listening = tasks.create_task(listener.run())
                await self._work(producer, finder, listener, drain)
                listening.cancel()
        finally:
            self._loop = None

    def stop(self) -> None:
        """Makes the relay end after the current round. Callable from any thread; idempotent."""
        self._stopping = True
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended
                loop.call_soon_threadsafe(self._wake.set)

    async def _run_with_signals(self, drain: bool) -> None:
        work = asyncio.current_task()
        assert work is not None

        def on_signal() -> None:
            if self._stopping:
                work.cancel()
            self.stop()

        with Signals(on_signal):
            await self.run_async(drain=drain)

    async def _work(self, producer: AsyncProducer, finder: AsyncFinder, listener: CommitListener, drain: bool) -> None:
        faults = 0
        while not self._stopping:
            self._wake.clear()
            error: Exception | None = None
            try:
                count, away = await self._round(producer, finder)
                if away:
                    error = Unavailable(f"the server at {self._server} accepts no messages", reason="UNAVAILABLE")
                elif not count and drain:
                    return
                elif not count:
                    await self._rest(listener)
            except (DBAPIError, PoolTimeout) as fault:
                error = fault
            if error is None:
                faults = 0
                continue
            faults += 1
            log.warning("%s; trying again", " ".join(str(error).split()))
            # Commits do not shorten this pause: they would make it a busy loop.
            await pause(backoff_s(faults))

    async def _round(self, producer: AsyncProducer, finder: AsyncFinder) -> tuple[int, bool]:
        """Moves one batch; returns its number of rows, and whether the server is unavailable."""
        claim, loop = secrets.token_hex(8), asyncio.get_running_loop()
        lease_ends = loop.time() + self._lease_s
        claims, now = await self._claim(claim)
        if not claims:
            return await self._in_transaction(lambda connection: self._purge(connection)), False
        claimed = claims.rows
        verdicts, unsent = await self._ask(finder, claimed, now)
        for row in claims.unreadable:
            verdicts[row.id] = RowVerdict(FAILED, row.why)
            log.error("%s for %s is %s: %s", row.message_id, row.topic, FAILED, row.why)
        outcomes: Sequence[Receipt | DueTimeError] = ()
        # After a process was suspended since the claim, the rows belong to others.
        if unsent and loop.time() < lease_ends - 2 * self._timeout_s:
            outcomes = await producer.send_many([row.message for row in unsent], errors="return")
            judged = of_outcomes(outcomes, [row.attempts for row in unsent], now)
            verdicts |= {row.id: verdict for row, verdict in zip(unsent, judged, strict=True)}
        await self._settle(claim, verdicts)
        self._count(claimed, verdicts, outcomes)
        return len(claimed) + len(claims.unreadable), is_away(outcomes)

    async def _claim(self, claim: str) -> tuple[ClaimedRows, int]:
        def work(connection: Connection) -> tuple[ClaimedRows, int]:
            now = self._clock(connection)
            until = now + int(self._lease_s * 1000)
            return self._rows.claim(connection, claim, now, until, self._batch), now

        return await self._in_transaction(work)

    async def _ask(
        self, finder: AsyncFinder, claimed: Sequence[ClaimedRow], now: int
    ) -> tuple[dict[int, RowVerdict], list[ClaimedRow]]:
        """Asks for the ids of rows possibly sent too long ago; returns verdicts, and the rows that can be sent."""
        turns = asyncio.Semaphore(ASKED_MAX)
        late = Unavailable("no answer in time", reason="UNAVAILABLE")
        # By row. Answers that came before the timeout count: the next round then asks only about the others.
        answers: dict[int, FoundMessage | DueTimeError | None] = {}

        async def ask(row: ClaimedRow) -> None:
            async with turns:
                try:
                    answers[row.id] = await _not_replaced(finder, row.message)
                except DueTimeError as error:
                    answers[row.id] = error

        old = [row for row in claimed if not self._trust.repeats(row.handed_at_ms, now)]
        verdicts: dict[int, RowVerdict] = {}
        if old:
            with contextlib.suppress(TimeoutError):
                async with deadlines.within(self._timeout_s):
                    await asyncio.gather(*map(ask, old))
            for row in old:
                verdict = self._trust.of_answer(answers.get(row.id, late), row.handed_at_ms or now, now)
                if verdict is not None:
                    verdicts[row.id] = verdict
            absent = [row.id for row in old if row.id not in verdicts]
            if absent:
                await self._in_transaction(lambda connection: self._rows.hand_again(connection, absent, now))
            _hold_up_keys(claimed, verdicts)
        return verdicts, [row for row in claimed if row.id not in verdicts]

    async def _settle(self, claim: str, verdicts: dict[int, RowVerdict]) -> None:
        def work(connection: Connection) -> None:
            keep_until = self._clock(connection) + self._keep_ms if self._keep_ms else 0
            self._rows.settle(connection, claim, verdicts, keep_until)
            self._purge(connection)

        await self._in_transaction(work)

    def _purge(self, connection: Connection) -> int:
        return self._rows.purge(connection, self._clock(connection), self._batch)

    def _count(
        self, claimed: Sequence[ClaimedRow], verdicts: dict[int, RowVerdict], outcomes: Sequence[Receipt | DueTimeError]
    ) -> None:
        states = [verdict.state for verdict in verdicts.values()]
        self._stats.sent += states.count(SENT)
        self._stats.repeated += sum(isinstance(outcome, Receipt) and outcome.duplicate for outcome in outcomes)
        self._stats.failed += states.count(FAILED)
        self._stats.doubtful += states.count(DOUBTFUL)
        self._stats.put_off += states.count(WAITING)
        for row in claimed:
            verdict = verdicts.get(row.id)
            if verdict is not None and verdict.state in (FAILED, DOUBTFUL):
                log.error("%s for %s is %s: %s", row.message.id, row.message.topic, verdict.state, verdict.error)

    async def _rest(self, listener: CommitListener) -> None:
        """Waits until a commit wakes the relay, a row becomes free, or the next poll."""
        wait_s = LISTENING_POLL_S if listener.on else self._poll_s

        def until_free(connection: Connection) -> float:
            now = self._clock(connection)
            free_at = self._rows.next_at(connection, now)
            return wait_s if free_at is None else min((free_at - now) / 1000, wait_s)

        with contextlib.suppress(TimeoutError):
            async with deadlines.within(await self._in_transaction(until_free)):
                await self._wake.wait()

    def _check_thread(self) -> None:
        """Raises: InvalidArgument: the outbox is in the memory of another thread's connection."""
        table = self._outbox.table
        if self._stays_in_thread and not inspect(self._engine).has_table(table.name, table.schema):
            text = (
                f"has no table {table.name} in this thread: SQLite in memory has a database for each thread."
                " Run the relay in the thread that created the table, or use a file"
            )
            raise InvalidArgument.of("engine", text)

    async def _in_transaction(self, work: Callable[[Connection], T]) -> T:
        if isinstance(self._engine, Engine):
            if self._stays_in_thread:
                return _transact(self._engine, work)
            return await asyncio.to_thread(_transact, self._engine, work)
        async with self._engine.begin() as connection:
            return await connection.run_sync(work)


async def _not_replaced(finder: AsyncFinder, message: Message) -> FoundMessage | None:
    """The server's message with the id; None: another one has replaced it since. Raises: DueTimeError."""
    found = await finder.get(message.id, topic=message.topic)
    if found.state == "cancelled":
        # A history takes `receive` on everything. Without it, a replaced message counts as cancelled.
        with contextlib.suppress(NotFound, PermissionDenied):
            events = reversed((await finder.trace(message.id, topic=message.topic)).events)
            if next((event.kind for event in events if event.kind in ("cancelled", "replaced")), "") == "replaced":
                return None
    return found


def _hold_up_keys(claimed: Sequence[ClaimedRow], verdicts: dict[int, RowVerdict]) -> None:
    """Puts off the unsent rows behind a row that waits, if they have its order key."""
    held: dict[str, RowVerdict] = {}
    for row in claimed:
        verdict = verdicts.get(row.id)
        if verdict is None and row.order_key in held:
            verdicts[row.id] = held[row.order_key]
        elif verdict is not None and verdict.state == WAITING and row.order_key:
            held[row.order_key] = verdict


def _transact(engine: Engine, work: Callable[[Connection], T]) -> T:
    with engine.begin() as connection:
        return work(connection)
