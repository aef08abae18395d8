"""Serves one lane: waits for its head to fall due, restores, puts; again and again.

    pull (waits for the due moment) ──▶ restore ──▶ put ──▶ watermark moves
      ▲                                             │
      └─── the next batch, while a large one is put ┘

The restorer keeps nothing that matters: the store refuses what is restored already and what is not next, so a
restorer may die, be doubled or repeat itself at any point. After any trouble it begins again from the store's
watermark.
"""

import random
from typing import TypeAlias

import grpc
import structlog
from duetime.v1 import store_pb2, store_pb2_grpc
from duetime_core.clock import Clock

from duetime_scheduler.batch import Batch, OutOfStep, make_batch
from duetime_scheduler.metrics import SchedulerMetrics

log = structlog.get_logger()

BATCH_COUNT_MAX = 512
BATCH_BYTES_MAX = 4 * 1024 * 1024
WAIT_MS = 10_000
# From this size on the next batch is pulled while one is put. Below it, pulling after the put gathers what falls due
# meanwhile: fewer, larger batches, and half the calls.
AHEAD_COUNT_MIN = 32
BACKOFF_MS_MIN = 50
BACKOFF_MS_MAX = 2_000

_FENCED = (store_pb2.PUT_STATUS_GAP, store_pb2.PUT_STATUS_NOT_DUE)
_REFUSED = store_pb2.PUT_STATUS_REFUSED
_DUPLICATE = store_pb2.PUT_STATUS_DUPLICATE

Pull: TypeAlias = "grpc.aio.UnaryUnaryCall[store_pb2.PullDueRequest, store_pb2.PullDueResponse]"


class Restorer:
    """The loop of one lane. Runs until it is cancelled; errors of the store are waited out."""

    def __init__(
        self,
        store: store_pb2_grpc.StoreStub,
        shard: int,
        level: int,
        clock: Clock,
        metrics: SchedulerMetrics,
        *,
        timeout_ms: int,
    ) -> None:
        self._store = store
        self._shard = shard
        self._level = level
        self._clock = clock
        self._metrics = metrics
        self._timeout_s = timeout_ms / 1000
        self._backoff_ms = BACKOFF_MS_MIN
        labels = (str(shard), str(level))
        self._restored = metrics.restored.labels(*labels)
        self._duplicates = metrics.duplicates.labels(*labels)
        self._quarantined = metrics.quarantined.labels(*labels)

    async def run(self) -> None:
        """Serves the lane for ever."""
        while True:
            try:
                await self._serve()
            except OutOfStep as error:
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
            # Jitter, so that the lanes of a shard that comes back do not all call at once.
            await self._clock.sleep(self._backoff_ms * random.uniform(0.5, 1.0))
            self._backoff_ms = min(self._backoff_ms * 2, BACKOFF_MS_MAX)

    async def _serve(self) -> None:
        """From the watermark on, until something goes wrong."""
        pull: Pull | None = self._pull(0)
        try:
            while True:
                due = await self._answer(pull or self._pull(0))
                if due is None or not due.sizes:
                    # All puts are answered here: the store's watermark is the truth, whatever this loop believed.
                    pull = None
                    continue
                batch = make_batch(self._level, due)
                pull = self._pull(batch.end) if batch.count >= AHEAD_COUNT_MIN else None
                await self._put(batch)
                pull = pull or self._pull(batch.end)
                self._backoff_ms = BACKOFF_MS_MIN
        finally:
            if pull is not None:
                pull.cancel()

    def _pull(self, after: int) -> "Pull":
        """Starts a long poll for the entries from `after` on."""
        request = store_pb2.PullDueRequest(
            lane=self._level, after=after, max_count=BATCH_COUNT_MAX, max_bytes=BATCH_BYTES_MAX, wait_ms=WAIT_MS
        )
        call: Pull = self._store.PullDue(request, timeout=WAIT_MS / 1000 + self._timeout_s)
        return call

    async def _answer(self, pull: "Pull") -> store_pb2.PullDueResponse | None:
        """None when nothing fell due within the deadline."""
        try:
            return await pull
        except grpc.aio.AioRpcError as error:
            # The store waits by its own clock, which need not keep pace with this process's.
            if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
                return None
            self._count_error("PullDue", error)
            raise

    async def _put(self, batch: Batch) -> None:
        """Returns once the watermark is past the whole batch.

        Raises:
            OutOfStep, grpc.aio.AioRpcError: it may or may not be; begin again from the watermark.
        """
        first = 0
        while first < batch.count:
            answer = await self._put_records(batch, first)
            if answer is not None:
                first = self._settle(batch, first, answer)

    async def _put_records(self, batch: Batch, first: int) -> store_pb2.PutMessageResponse | None:
        """Puts what is left of a batch; None when a record in it turned out to be none, and was replaced."""
        request = store_pb2.PutMessageRequest(
            records=batch.behind(first), lane=self._level, first_entry=batch.first + first
        )
        self._metrics.batch.observe(batch.count - first)
        try:
            answer: store_pb2.PutMessageResponse = await self._store.PutMessage(request, timeout=self._timeout_s)
        except grpc.aio.AioRpcError as error:
            self._count_error("PutMessage", error)
            if error.code() != grpc.StatusCode.INVALID_ARGUMENT:
                raise
            await self._find_malformed(batch, first)
            return None
        return answer

    async def _find_malformed(self, batch: Batch, first: int) -> None:
        """The store took the whole put for no records: asks one by one, and replaces the first that is none.

        The request may be answered, but its entries are not settled here: the next put finds them as duplicates.
        """
        for index, data in enumerate(batch.split()[first:], first):
            request = store_pb2.PutMessageRequest(records=data, lane=self._level, first_entry=batch.first + index)
            try:
                await self._store.PutMessage(request, timeout=self._timeout_s)
            except grpc.aio.AioRpcError as error:
                if error.code() != grpc.StatusCode.INVALID_ARGUMENT:
                    raise
                batch.quarantine(index, f"the store refused it: {error.details()}")
                return
        raise OutOfStep("the store refused the records together and none of them alone")

    def _settle(self, batch: Batch, first: int, answer: store_pb2.PutMessageResponse) -> int:
        """Counts what became of the records from `first` on; returns the first that has to be put again."""
        if not answer.statuses and not batch.quarantined:
            self._restored.inc(batch.count - first)
            return batch.count
        statuses = answer.statuses or [store_pb2.PUT_STATUS_OK] * (batch.count - first)
        for index, status in enumerate(statuses, first):
            if status in _FENCED:
                name = store_pb2.PutStatus.Name(status).removeprefix("PUT_STATUS_")
                self._metrics.out_of_step.labels(str(self._shard), str(self._level), name).inc()
                raise OutOfStep(f"{name} at entry {batch.first + index}, watermark {answer.watermark}")
            if status == _REFUSED:
                batch.quarantine(index, f"the store refused it: {answer.faults[index - first].message}")
                return index
            if status == _DUPLICATE:
                self._duplicates.inc()
            else:
                (self._quarantined if index in batch.quarantined else self._restored).inc()
        return batch.count

    def _count_error(self, call: str, error: grpc.aio.AioRpcError) -> None:
        self._metrics.errors.labels(str(self._shard), call, error.code().name).inc()
