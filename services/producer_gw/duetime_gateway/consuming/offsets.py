"""Offsets of consumer groups; each shard keeps those of its queues."""

import asyncio
from collections.abc import Mapping, Sequence

from duetime_gateway.answers import raise_first
from duetime_gateway.consuming.admission import check_commit
from duetime_gateway.queries import Position
from duetime_gateway.routing.places import QueueLocator, place_of
from duetime_gateway.rules import check_topic


class OffsetRouter:
    """Commits and reads offsets, split by shard."""

    def __init__(self, places: QueueLocator) -> None:
        self._places = places

    async def commit(self, group: str, topic: str, positions: Sequence[Position], caller: str) -> None:
        """Durable on return; new offsets count for the caller. After an error some shards may have committed; it is
        safe to retry.

        Raises:
            DueTimeError: bad fields, no such topic or queue, or an error of a shard.
        """
        check_commit(topic, positions)
        places = await self._places.of(topic)
        parts: dict[int, list[tuple[int, int, int]]] = {}
        for queue, offset in positions:
            shard, shard_queue = place_of(places, topic, queue)
            parts.setdefault(shard, []).append((queue, offset, shard_queue))

        async def commit(number: int) -> None:
            shard = await self._places.ready_shard(number, topic)
            await shard.store.commit_offsets(group, topic, parts[number], caller)

        # Wait for all: an error of one leaves no call running.
        raise_first(await asyncio.gather(*map(commit, parts), return_exceptions=True))

    async def find(self, group: str, topic: str) -> list[Position]:
        """Offsets by queue; queues without one are omitted.

        Raises:
            DueTimeError: bad fields, no such topic, or an error of a shard.
        """
        check_topic("topic", topic)
        places = await self._places.of(topic)
        shards = sorted({shard for shard, _ in places.values()})

        async def ask(number: int) -> Mapping[int, int]:
            shard = await self._places.ready_shard(number, topic)
            return await shard.store.get_offsets(group, topic)

        answers = dict(
            zip(shards, raise_first(await asyncio.gather(*map(ask, shards), return_exceptions=True)), strict=True)
        )
        return [
            Position(queue, answers[shard][shard_queue])
            for queue, (shard, shard_queue) in places.items()
            if shard_queue in answers[shard]
        ]
