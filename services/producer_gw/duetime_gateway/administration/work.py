"""The work of a group: all messages not yet finished by its receivers."""

import asyncio
from collections.abc import Collection, Sequence

from duetime.v1 import consumer_pb2
from duetime_core.errors import NotFound
from duetime_format.names import is_group_topic

from duetime_gateway.administration.groups import ConsumerGroups
from duetime_gateway.administration.pauses import DeliveryPauses
from duetime_gateway.answers import raise_first
from duetime_gateway.routing.places import QueueBounds, QueueLocator
from duetime_gateway.shards.shards import Shards


class GroupWork:
    """Counts messages that are unread, leased, or waiting for a retry."""

    def __init__(self, groups: ConsumerGroups, places: QueueLocator, shards: Shards, *, timeout_ms: int) -> None:
        self._groups = groups
        self._places = places
        self._shards = shards
        self._pauses = DeliveryPauses(places, shards)
        self._timeout_ms = timeout_ms

    async def count(self, name: str, topics: Collection[str]) -> tuple[int, Sequence[int]]:
        """Counts the messages; also returns the shards without an answer. If there are any, the count is a lower bound.

        A group has no offset in a queue before it first receives from it. The queues of its topics count all the same,
        from the offset at which the group will start. `topics`: further topics, never received from. Messages that a
        pause keeps from receivers do not count, except those with a lease.

        Raises:
            DueTimeError: no such group or topic, or the metadata database does not answer.
        """
        found = await self._groups.describe(name)
        paused = {pause.topic for pause in found.pauses}
        if "" in paused:
            return sum(queue.in_flight for queue in found.queues), found.unreachable_shards
        # A retry topic has retries of all the group's topics.
        count = found.waiting_retries
        count += sum(queue.in_flight if queue.topic in paused else queue.lag for queue in found.queues)
        missing = {*found.unreachable_shards, *found.counting_shards}
        if not missing:
            known = {queue.topic for queue in found.queues if not is_group_topic(queue.topic)}
            unread = (self._unread(found, topic, topic in topics) for topic in known.union(topics) - paused)
            count += sum(raise_first(await asyncio.gather(*unread, return_exceptions=True)))
        return count, sorted(missing)

    async def _unread(self, group: consumer_pb2.GroupDescription, topic: str, is_named: bool) -> int:
        """Messages of the topic in queues without an offset of the group."""
        try:
            if await self._pauses.of_topic(topic):
                return 0
            queues = (await self._places.describe(topic)).queues
        except NotFound:
            if is_named:
                raise
            # A topic created by a broker has no route.
            return 0
        placed = {queue.queue for queue in group.queues if queue.topic == topic}
        fresh = [one for one in queues if one.queue not in placed and one.max_offset > one.min_offset]
        starting = (self._start(group.group, topic, one) for one in fresh)
        starts = raise_first(await asyncio.gather(*starting, return_exceptions=True))
        return sum(one.max_offset - start for one, start in zip(fresh, starts, strict=True))

    async def _start(self, group: consumer_pb2.Group, topic: str, queue: QueueBounds) -> int:
        """The offset at which the group will start in a queue, computed as its store will."""
        shard, number = (await self._places.of(topic))[queue.queue]
        store = self._shards.get(shard).store
        start = (await store.get_offsets(group.name, topic)).get(number)
        if start is None and group.start_at_ms > 0:
            start = await store.search_offset(topic, number, group.start_at_ms, self._timeout_ms)
        return min(max(start or 0, queue.min_offset), queue.max_offset)
