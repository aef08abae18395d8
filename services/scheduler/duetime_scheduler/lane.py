"""Serves one lane in a loop: pulls entries that fall due soon, restores them, puts them.

    pull (waits until AHEAD_MS / 2 before the due time) ──▶ restore ──▶ put, which the store holds until it is due
      ▲                                                                    │
      └─────────────── the next batch, while the last is put ──────────────┘

The restorer has no important state: the store rejects entries that are restored already, cancelled or not next, so a
restorer may die, be doubled or repeat itself at any point. After any trouble it resumes at the store's position.
"""

import asyncio
import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter, time_ns

import grpc
from duetime.v1 import store_pb2, store_pb2_grpc
from duetime_core.clock import Clock
from duetime_core.rpc.calls import UnreadableAnswer, readable
from duetime_core.telemetry import tracing
from duetime_core.telemetry.defects import defect
from duetime_core.telemetry.logs import sparing
from duetime_format.lanes import is_timer_lane

from duetime_scheduler.batch import EntryBatch, OutOfStep, make_batch
from duetime_scheduler.metrics import SchedulerMetrics

log = sparing()

BATCH_COUNT_MAX = 2048
BATCH_BYTES_MAX = 4 * 1024 * 1024
WAIT_MS = 10_000
# How long before its due time an entry may be pulled. Half of it is the time that pull, restoring and put may take
# without being late; entries that fall due in the other half go together.
AHEAD_MS = 50
# After an entry of a lane for any time has overtaken held ones, less is held for this long: every such arrival makes
# all held entries be pulled again.
OVERTAKEN_AHEAD_MS = 10
OVERTAKEN_MS = 2_000
# Maximum restarts of a lane without a pause, if nothing is restored in between.
OVERTAKEN_COUNT_MAX = 3
# Batches on their way to the store or held there: one being written, one being staged, and one being restored. The
# store gives other lanes their turn between them.
FLIGHTS_MAX = 3
BACKOFF_MS_MIN = 50
BACKOFF_MS_MAX = 2_000

_FENCED = (store_pb2.PUT_STATUS_GAP, store_pb2.PUT_STATUS_NOT_DUE)
_REFUSED = store_pb2.PUT_STATUS_REFUSED
_DUPLICATE = store_pb2.PUT_STATUS_DUPLICATE
_CANCELLED = store_pb2.PUT_STATUS_CANCELLED


class EarlierEntryArrived(OutOfStep):
    """An entry has arrived that falls due before those being put."""


@dataclass(slots=True)
class Flight:
    """A batch that is being put."""

    batch: EntryBatch
    began_ns: int
    answer: "asyncio.Task[store_pb2.RestoreResponse]"


class Restorer:
    """The loop of one lane. Runs until it is cancelled; retries after errors of the store."""

    def __init__(
        self,
        store: store_pb2_grpc.StoreStub,
        shard: int,
        level: int,
        clock: Clock,
        metrics: SchedulerMetrics,
        *,
        timeout_ms: int,
        me: str = "",
        has_lease: Callable[[], bool] = lambda: True,
    ) -> None:
        """`me` and `has_lease` identify the caller to the store."""
        self._store = store
        self._me = me
        self._has_lease = has_lease
        self._shard = shard
        self._level = level
        self._clock = clock
        self._metrics = metrics
        self._timeout_s = timeout_ms / 1000
        self._backoff_ms = BACKOFF_MS_MIN
        self._overtaken_at_ms = -math.inf
        # Counted since the last restored entry.
        self._overtaken_count = 0
        # Whether the store has rejected a record that it keeps: it is then quarantined here.
        self._needs_records = False
        labels = (str(shard), str(level))
        self._restored = metrics.restored.labels(*labels)
        self._duplicates = metrics.duplicates.labels(*labels)
        self._cancelled = metrics.cancelled.labels(*labels)
        self._quarantined = metrics.quarantined.labels(*labels)
        self._put_seconds = metrics.put_seconds.labels(str(shard))

    async def run(self) -> None:
        """Serves the lane forever."""
        while True:
            try:
                await self._serve()
            except EarlierEntryArrived:
                self._overtaken_at_ms = self._clock.monotonic_ms()
                self._overtaken_count += 1
                if self._overtaken_count <= OVERTAKEN_COUNT_MAX:
                    continue
            except (OutOfStep, UnreadableAnswer) as error:
                log.warning("lane out of step", shard=self._shard, lane=self._level, reason=str(error))
            except grpc.aio.AioRpcError as error:
                log.warning(
                    "store call failed",
                    shard=self._shard,
                    lane=self._level,
                    code=error.code().name,
                    details=error.details(),
                    pause_ms=self._backoff_ms,
                )
            except Exception as error:
                # A defect, such as an impossible answer, must not affect other lanes.
                defect(error, "lane", shard=self._shard, lane=self._level)
            # Jitter, so that the lanes of a recovered shard do not all call at once.
            await self._clock.sleep(self._backoff_ms * random.uniform(0.5, 1.0))
            self._backoff_ms = min(self._backoff_ms * 2, BACKOFF_MS_MAX)

    async def _serve(self) -> None:
        """Serves from the store's position, until an error."""
        flights: deque[Flight] = deque()
        pull: asyncio.Task[store_pb2.PullDueResponse | None] | None = None
        try:
            while True:
                if pull is None and len(flights) < FLIGHTS_MAX:
                    # Once all puts are answered, the store's position counts, regardless of this loop's assumptions.
                    pull = asyncio.create_task(self._pull(flights[-1].batch if flights else None))
                waiting = {pull, flights[0].answer if flights else None} - {None}
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)  # type: ignore[type-var]
                if flights and flights[0].answer.done():
                    await self._land(flights)
                    landed = flights.popleft()
                    if tracing.active is not None:
                        self._trace(tracing.active, landed)
                    self._backoff_ms, self._needs_records = BACKOFF_MS_MIN, False
                elif pull is not None and pull.done():
                    due, pull = pull.result(), None
                    if due is not None and (due.sizes or due.kept_count):
                        batch = make_batch(self._level, due)
                        flights.append(Flight(batch, time_ns(), self._launch(batch)))
        finally:
            if pull is not None:
                pull.cancel()
            for flight in flights:
                flight.answer.cancel()

    async def _pull(self, after: EntryBatch | None) -> store_pb2.PullDueResponse | None:
        """The entries after a batch, once the first is due soon; None if there was none within the deadline."""
        request = store_pb2.PullDueRequest(
            lane=self._level,
            next=after.next if after else b"",
            max_count=BATCH_COUNT_MAX,
            max_bytes=BATCH_BYTES_MAX,
            wait_ms=WAIT_MS,
            ahead_ms=self._ahead_ms,
            scheduler=self._me,
            without_lease=not self._has_lease(),
            # Spans are made from records.
            may_keep=not self._needs_records and tracing.active is None,
        )
        try:
            due: store_pb2.PullDueResponse = await self._store.PullDue(
                request, timeout=WAIT_MS / 1000 + self._timeout_s
            )
        except grpc.aio.AioRpcError as error:
            # The store waits by its own clock, which may differ from this process's.
            if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
                return None
            self._count_error("PullDue", error)
            raise
        return readable(due, f"shard {self._shard}")

    @property
    def _ahead_ms(self) -> int:
        is_overtaken = self._clock.monotonic_ms() < self._overtaken_at_ms + OVERTAKEN_MS
        return OVERTAKEN_AHEAD_MS if is_overtaken else AHEAD_MS

    def _launch(self, batch: EntryBatch, first: int = 0) -> "asyncio.Task[store_pb2.RestoreResponse]":
        """Begins to put a batch from index `first` on."""
        request = self._request(batch, batch.from_index(first), first, batch.count)
        self._metrics.batch.observe(batch.count - first)
        return asyncio.create_task(self._put(request))

    def _request(self, batch: EntryBatch, records: bytes, start: int, stop: int) -> store_pb2.RestoreRequest:
        """The request that puts the entries [start, stop) of a batch; if the store keeps it, all entries."""
        if batch.is_kept:
            return store_pb2.RestoreRequest(lane=self._level, first_entry=batch.first, kept_count=batch.count)
        numbers = batch.entries.numbers[start:stop].tolist()
        entries = () if batch.is_consecutive else numbers
        return store_pb2.RestoreRequest(records=records, lane=self._level, first_entry=numbers[0], entries=entries)

    async def _put(self, request: store_pb2.RestoreRequest) -> store_pb2.RestoreResponse:
        started = perf_counter()
        answer: store_pb2.RestoreResponse = await self._store.Restore(request, timeout=self._timeout_s)
        self._put_seconds.observe(perf_counter() - started)
        return readable(answer, f"shard {self._shard}")

    async def _land(self, flights: deque[Flight]) -> None:
        """Returns once the store's lane is past the whole first batch, which the store has answered.

        Raises:
            OutOfStep, grpc.aio.AioRpcError: it may or may not be; resume at the store's position.
        """
        flight = flights[0]
        first = await self._settled(flight, 0)
        if first == flight.batch.count:
            return
        # The batches after it were rejected for a gap.
        for later in list(flights)[1:]:
            later.answer.cancel()
        while first < flight.batch.count:
            flight.answer = self._launch(flight.batch, first)
            first = await self._settled(flight, first)
        for later in list(flights)[1:]:
            later.answer = self._launch(later.batch)

    async def _settled(self, flight: Flight, first: int) -> int:
        """The first record, from `first` on, that has to be put again."""
        try:
            answer = await flight.answer
        except grpc.aio.AioRpcError as error:
            self._count_error("Restore", error)
            if error.code() != grpc.StatusCode.INVALID_ARGUMENT:
                raise
            self._need_records(flight.batch, str(error.details()))
            await self._find_malformed(flight.batch, first)
            return first
        return self._settle(flight.batch, first, answer)

    async def _find_malformed(self, batch: EntryBatch, first: int) -> None:
        """Handles a put that the store could not read as records: sends them one by one, and replaces the first
        rejected one.

        Single records may be stored, but their entries are not settled here: the next put finds them as duplicates.
        """
        for index, data in enumerate(batch.split()[first:], first):
            request = self._request(batch, data, index, index + 1)
            try:
                await self._store.Restore(request, timeout=self._timeout_s)
            except grpc.aio.AioRpcError as error:
                if error.code() != grpc.StatusCode.INVALID_ARGUMENT:
                    raise
                batch.quarantine(index, f"the store rejected it: {error.details()}")
                return
        raise OutOfStep("the store rejected the records together and none of them alone")

    def _settle(self, batch: EntryBatch, first: int, answer: store_pb2.RestoreResponse) -> int:
        """Counts the outcomes of the records from `first` on. Returns the first that has to be put again."""
        if not answer.statuses or answer.statuses[0] not in _FENCED:
            self._overtaken_count = 0
        if not answer.statuses and not batch.quarantined:
            self._restored.inc(batch.count - first)
            return batch.count
        statuses = answer.statuses or [store_pb2.PUT_STATUS_OK] * (batch.count - first)
        for index, status in enumerate(statuses, first):
            if status in _FENCED:
                name = store_pb2.PutStatus.Name(status).removeprefix("PUT_STATUS_")
                self._metrics.out_of_step.labels(str(self._shard), str(self._level), name).inc()
                text = f"{name} at entry {batch.entries.numbers[index]}, watermark {answer.watermark}"
                # New entries of a level always come after all others.
                is_overtaken = status == store_pb2.PUT_STATUS_GAP and is_timer_lane(self._level)
                raise EarlierEntryArrived(text) if is_overtaken else OutOfStep(text)
            if status == _REFUSED:
                self._need_records(batch, answer.faults[index - first].message)
                batch.quarantine(index, f"the store rejected it: {answer.faults[index - first].message}")
                return index
            if status == _DUPLICATE:
                self._duplicates.inc()
            elif status == _CANCELLED:
                self._cancelled.inc()
            else:
                (self._quarantined if index in batch.quarantined else self._restored).inc()
        return batch.count

    def _need_records(self, batch: EntryBatch, refusal: str) -> None:
        """Asks for records, to quarantine one. Raises: OutOfStep: the store has the records; they are pulled next."""
        if batch.is_kept:
            self._needs_records = True
            raise OutOfStep(f"the store rejects a record that it keeps: {refusal}")

    def _trace(self, active: tracing.ProcessTracer, landed: Flight) -> None:
        """Makes spans of the messages restored now."""
        entries = landed.batch.entries
        lane = {"duetime.shard": self._shard, "duetime.lane": self._level}
        active.messages("restore", entries.records, entries.sizes, landed.began_ns, **lane)

    def _count_error(self, call: str, error: grpc.aio.AioRpcError) -> None:
        self._metrics.errors.labels(str(self._shard), call, error.code().name).inc()
