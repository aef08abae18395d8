"""Decides whether this scheduler should be restarted: a lane that it serves is overdue and does not move."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping

import grpc
from duetime.v1 import gateway_pb2, store_pb2, store_pb2_grpc
from duetime_core.clock import Clock

from duetime_scheduler.sharing import LaneKey

# Shorter than the timeout of a probe.
ASK_TIMEOUT_S = 2.0


class Liveness:
    """Inspects the lanes on request, and remembers since when each watermark has not moved.

    A lane is stuck when one of its entries has been due for `stuck_ms` by its store's clock, and its watermark has not
    moved for as long by this process's clock. A store that does not answer or rejects writes blocks its lanes by
    itself: these do not count.
    """

    def __init__(self, stores: Mapping[int, store_pb2_grpc.StoreStub], clock: Clock, *, stuck_ms: int) -> None:
        self._stores = stores
        self._clock = clock
        self._stuck_ms = stuck_ms
        # Watermark, and the monotonic time at which it was first seen there.
        self._seen: dict[LaneKey, tuple[int, float]] = {}

    async def why(self, served: Collection[LaneKey]) -> str:
        """The stuck lanes among those served, in words; empty: none."""
        self._seen = {key: seen for key, seen in self._seen.items() if key in served}
        shards = sorted({shard for shard, _ in served})
        found = await asyncio.gather(*(self._inspect(shard, served) for shard in shards))
        return "; ".join(filter(None, found))

    async def _inspect(self, shard: int, served: Collection[LaneKey]) -> str:
        try:
            state, answer = await asyncio.gather(
                self._stores[shard].Describe(store_pb2.DescribeRequest(), timeout=ASK_TIMEOUT_S),
                self._stores[shard].ListLanes(gateway_pb2.ListLanesRequest(), timeout=ASK_TIMEOUT_S),
            )
        except grpc.aio.AioRpcError:
            state = answer = None
        if state is None or answer is None or state.refusal:
            self._seen = {key: seen for key, seen in self._seen.items() if key[0] != shard}
            return ""
        still = [
            f"lane {shard}/{lane.level} has been overdue for {state.now_ms - lane.oldest_due_at_ms} ms"
            for lane in answer.lanes
            if (shard, lane.level) in served and self._stands(shard, lane, state.now_ms)
        ]
        return "; ".join(still)

    def _stands(self, shard: int, lane: gateway_pb2.Lane, now_ms: int) -> bool:
        key, monotonic_ms = (shard, lane.level), self._clock.monotonic_ms()
        if not lane.oldest_due_at_ms or now_ms - lane.oldest_due_at_ms < self._stuck_ms:
            self._seen.pop(key, None)
            return False
        watermark, since_ms = self._seen.get(key, (-1, 0.0))
        if watermark != lane.watermark:
            self._seen[key] = lane.watermark, monotonic_ms
            return False
        return monotonic_ms - since_ms >= self._stuck_ms
