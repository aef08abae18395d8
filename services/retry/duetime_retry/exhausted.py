"""Takes over messages whose last lease ended unacknowledged, shard by shard, and makes them dead letters.

    TakeExhausted (waits for the first) ─▶ decide ─▶ settle ─▶ again

The store leases them to the taker, without counting a delivery: messages that are not settled can be taken again, by
this process or another one. So several retry services share the work, and one that dies delays it by TAKEN_MS. A
message whose own policy allows more deliveries than its receiver did is redelivered instead.
"""

import asyncio
import random
from functools import partial

from duetime.v1 import store_pb2
from duetime_core.clock import Clock
from duetime_core.telemetry.defects import outcome
from duetime_core.telemetry.logs import sparing

from duetime_retry.decision import Decider, FailureDetails
from duetime_retry.metrics import RetryMetrics
from duetime_retry.settling import by_group
from duetime_retry.stores import Stores

log = sparing()

TAKE_COUNT_MAX = 256
WAIT_MS = 20_000
# Lease of taken messages: some deadlines of calls.
TAKEN_MS = 60_000
BACKOFF_MS_MIN = 50
BACKOFF_MS_MAX = 2_000


class Collector:
    """The loop of one shard. Ends at `stop`, after settling the messages that it has taken."""

    def __init__(self, shard: int, stores: Stores, decider: Decider, clock: Clock, metrics: RetryMetrics) -> None:
        self._shard = shard
        self._stores = stores
        self._decider = decider
        self._clock = clock
        self._metrics = metrics
        self._stopping = asyncio.Event()
        self._backoff_ms = BACKOFF_MS_MIN

    def stop(self) -> None:
        self._stopping.set()

    async def run(self) -> None:
        stopping = asyncio.create_task(self._stopping.wait())
        take: asyncio.Task[store_pb2.GetLeasedResponse | None] | None = None
        try:
            while not self._stopping.is_set():
                take = asyncio.create_task(self._take())
                await asyncio.wait({take, stopping}, return_when=asyncio.FIRST_COMPLETED)
                # A call that is ended here gives its leases back.
                if take.done() and (taken := take.result()) is not None and taken.leased:
                    await self._settle(taken)
        finally:
            stopping.cancel()
            if take is not None:
                take.cancel()

    async def _take(self) -> store_pb2.GetLeasedResponse | None:
        """The next messages, after waiting; None: there are none, or, after a pause, the shard does not answer."""
        taken, error = await outcome(
            lambda: self._stores.take_exhausted(self._shard, TAKE_COUNT_MAX, WAIT_MS, TAKEN_MS), "TakeExhausted"
        )
        if error is not None:
            code = error.status.name
            self._metrics.poll_errors.labels(str(self._shard), code).inc()
            log.warning(
                "exhausted messages not taken",
                shard=self._shard,
                code=code,
                error=error.text,
                pause_ms=self._backoff_ms,
            )
            # Jitter, so that the callers of a recovered shard do not all call at once.
            await self._clock.sleep(self._backoff_ms * random.uniform(0.5, 1.0))
            self._backoff_ms = min(self._backoff_ms * 2, BACKOFF_MS_MAX)
            return None
        self._backoff_ms = BACKOFF_MS_MIN
        return taken

    async def _settle(self, taken: store_pb2.GetLeasedResponse) -> None:
        self._metrics.exhausted.labels(str(self._shard)).inc(len(taken.leased))
        for group, leased in by_group(taken.leased).items():
            deal_with = partial(
                self._decider.deal_with, self._shard, group, taken.now_ms, leased, [FailureDetails()] * len(leased)
            )
            results, error = await outcome(deal_with, "settling exhausted messages", shard=self._shard, group=group)
            faults = [result.fault.message for result in results or () if result.HasField("fault")]
            faults += [error.text] * len(leased) if error is not None else []
            if faults:
                log.warning(
                    "exhausted messages not settled: they are taken again later",
                    shard=self._shard,
                    group=group,
                    messages=len(faults),
                    error=faults[0],
                )
