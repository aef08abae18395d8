"""Counts pending messages of topics with such a quota; each store's count is exact.

The stores are asked once a second, only about topics with pending messages or with delayed sends by any gateway since.
Between counts, messages accepted here are added, and messages that fall due are not subtracted.
"""

import asyncio

from duetime.v1 import pending_pb2
from duetime_core.telemetry.defects import outcome

from duetime_gateway.quotas.meters import PendingMeter
from duetime_gateway.quotas.quotas import Quotas
from duetime_gateway.routing.places import QueueLocator
from duetime_gateway.shards.shards import Shards

TIMEOUT_MS = 2_000


class PendingCounts:
    """Asks the shards for counts."""

    def __init__(self, quotas: Quotas, places: QueueLocator, shards: Shards) -> None:
        self._quotas = quotas
        self._places = places
        self._shards = shards

    async def refresh(self) -> None:
        """Counts again. A shard that does not answer keeps its last count; a topic that does not exist has none."""
        for of, meter in list(self._quotas.meters.items()):
            pending = meter.pending
            if pending is None:
                continue
            others = any(told[of].pending_per_s for told in self._quotas.others.values() if of in told)
            if pending.counted is None or pending.since or pending.count or others:
                await self._count(of.name, pending)

    async def _count(self, topic: str, pending: PendingMeter) -> None:
        before = pending.since
        places, error = await outcome(lambda: self._places.of(topic), "quotas")
        if error is not None or places is None:
            return
        numbers = sorted({shard for shard, _ in places.values()})
        counted = dict(pending.counted or {})
        answers = await asyncio.gather(*(self._ask(one, topic) for one in numbers))
        counted |= {number: count for number, count in zip(numbers, answers, strict=True) if count is not None}
        pending.note(counted, before)

    async def _ask(self, number: int, topic: str) -> int | None:
        request = pending_pb2.BacklogRequest(topic=topic, all_lanes_together=True)
        store = self._shards.get(number).store
        answer, _ = await outcome(lambda: store.ask("Backlog", request, TIMEOUT_MS), "quotas")
        return None if answer is None else int(answer.pending_count)
