"""Operators' calls about a group on this shard: describe, reset, delete."""

from collections.abc import Callable

from duetime.v1 import consumer_pb2
from duetime_core.errors import FailedPrecondition, InvalidArgument, Violation, refuse
from duetime_format.errors import within
from duetime_format.events import PlaceKey
from duetime_format.names import dlq_topic, retry_topic

from duetime_store.groups.groups import GroupRegistry
from duetime_store.groups.holds import GroupPlace
from duetime_store.groups.offsets import CommittedOffsets, check_group
from duetime_store.groups.retries import WaitingRetries
from duetime_store.groups.superseding import CopySuperseder, SupersededCopies
from duetime_store.queues.consumequeue import ConsumeQueue
from duetime_store.queues.lites import Lites
from duetime_store.reading.offsets import first_stored_at, first_with_time
from duetime_store.reading.turns import ScanTurns, YieldingScan
from duetime_store.writing.flusher import Flusher
from duetime_store.writing.store import Store

# Receivers seen within these times are members, and keep the group from being deleted.
MEMBER_MS = 600_000
IN_USE_MS = 60_000


class GroupAdmin:
    """See proto/duetime/v1/store.proto for the promises of each call."""

    def __init__(
        self,
        store: Store,
        groups: GroupRegistry,
        offsets: CommittedOffsets,
        retries: WaitingRetries,
        flusher: Flusher,
        turns: ScanTurns,
        lites: Lites,
        *,
        shard: int,
    ) -> None:
        self._lites = lites
        self._store = store
        self._queues = store.queues
        self._clock = store.clock
        self._log = store.log
        self._flusher = flusher
        self._retries = retries
        self._superseding = CopySuperseder(store, groups, offsets, retries, flusher, turns)
        self._turns = turns
        self._groups = groups
        self._offsets = offsets
        self._shard = shard

    async def describe(self, group: str) -> consumer_pb2.GroupDescription:
        check_group(group)
        found = consumer_pb2.GroupDescription(group=consumer_pb2.Group(name=group))
        places: dict[tuple[bool, str, int], list[GroupPlace]] = {}
        lites: dict[tuple[str, int], list[GroupPlace]] = {}
        for place in self._groups.progress.of_group(group):
            key = place.key
            if key.is_lite:
                lites.setdefault((key.queue_topic, key.queue), []).append(place)
            else:
                places.setdefault((key.is_retry, key.queue_topic, key.queue), []).append(place)
        with self._turns.walk() as walk:
            walk.start()
            for (_, topic, number), own in sorted(places.items()):
                queue = self._queues.get_bytes(topic.encode(), number)
                found.queues.append(await self._queue(walk, queue, own))
                await walk.turn_if_over()
            for (topic, number), own in sorted(lites.items()):
                queue = self._queues.get_bytes(topic.encode(), number)
                found.queues.append(self._lite_queue(queue, own))
                await walk.turn_if_over()
        now_ms, active = self._clock.now_ms(), self._groups.activity.get(group)
        if active is not None:
            found.acks_per_s, found.receives_per_s = active.acks.per_s(now_ms), active.receives.per_s(now_ms)
            for (name, topic), seen_at_ms in reversed(active.members.items()):
                if now_ms - seen_at_ms < MEMBER_MS:
                    found.members.add(name=name, topic=topic, seen_at_ms=seen_at_ms)
        found.lapsed_messages = self._groups.progress.lapsed[group]
        found.dead_letters = self._dead_letters(group)
        if self._retries.is_counting:
            found.counting_shards.append(self._shard)
        else:
            found.next_retry_at_ms = await self._retries.first_due_at_ms(group)
            found.waiting_retries = self._retries.count(group)
        return found

    async def _queue(
        self, walk: YieldingScan, queue: ConsumeQueue, places: list[GroupPlace]
    ) -> consumer_pb2.GroupQueue:
        """A retry queue has a place for each topic of the group: their outstanding messages are added up."""
        frontier = min(place.frontier for place in places)
        committed = min(place.committed for place in places)
        outstanding = sum(len(place.entries) for place in places)
        # Messages after the frontier count already: one topic's retries are ahead of another's.
        below = outstanding
        if len(places) > 1:
            below = sum(offset < frontier for place in places for offset in place.entries)
        leased = sum(place.leased for place in places)
        max_offset = queue.max_offset
        row = consumer_pb2.GroupQueue(
            topic=queue.topic,
            queue=queue.queue,
            shard=self._shard,
            min_offset=queue.min_offset,
            max_offset=max_offset,
            next_offset=frontier,
            committed_offset=committed,
            lag=max_offset - max(frontier, queue.min_offset) + below,
            in_flight=leased,
            waiting=outstanding - leased,
        )
        if row.lag:
            _, stored_at_ms = await first_with_time(walk, self._log, queue, committed, max_offset)
            row.oldest_unacked_at_ms = stored_at_ms or 0
        return row

    def _lite_queue(self, queue: ConsumeQueue, places: list[GroupPlace]) -> consumer_pb2.GroupQueue:
        """The group's lite topics in a queue of their parent, added up: an offset of them all is that of the one that
        is furthest."""
        unread = 0
        for place in places:
            lite = self._lites.get(place.key.topic)
            unread += 0 if lite is None else lite.unread(queue.queue, place.frontier)
        outstanding, leased = sum(len(place.entries) for place in places), sum(place.leased for place in places)
        reached = max(place.frontier for place in places)
        return consumer_pb2.GroupQueue(
            topic=queue.topic,
            queue=queue.queue,
            shard=self._shard,
            min_offset=queue.min_offset,
            max_offset=queue.max_offset,
            next_offset=reached,
            committed_offset=reached,
            lag=unread + outstanding,
            in_flight=leased,
            waiting=outstanding - leased,
        )

    def _dead_letters(self, group: str) -> int:
        topic, count = dlq_topic(group), 0
        for queue in self._queues.of_topic(topic):
            gone = self._groups.gone.count(topic, queue.queue, queue.min_offset, queue.max_offset)
            count += queue.max_offset - queue.min_offset - gone
        return count

    async def reset(self, request: consumer_pb2.ResetGroupRequest) -> consumer_pb2.ResetGroupResponse:
        """Staged on return."""
        check_group(request.name)
        wanted = request.WhichOneof("to")
        if wanted is None:
            raise InvalidArgument([Violation("to", "is not set")])
        group, topic = request.name, request.topic
        moves: list[tuple[consumer_pb2.QueueNumber, int]] = []
        with self._turns.walk() as walk:
            walk.start()
            for number in request.queues:
                queue = self._queues.find(topic, number.shard_queue)
                moves.append((number, await self._target(walk, request, queue)))
        superseded = SupersededCopies(group, topic, {number.queue: offset for number, offset in moves})
        found = await self._superseding.find(superseded)
        # If the group receives the topic, reset and ends are one step: no copy is delivered between the two.
        if not request.dry_run:
            self._superseding.prepare(found)
        response = consumer_pb2.ResetGroupResponse()
        committed = self._offsets.find(group, topic)
        receives = self._groups.receives(group, topic)
        for number, offset in moves:
            places = self._places(group, topic, number.shard_queue)
            row = response.queues.add(queue=number.queue, shard=self._shard, to_offset=offset)
            row.from_offset = min((one.committed for one in places), default=committed.get(number.shard_queue, 0))
            row.leases_ended = sum(one.leased for one in places)
            if receives and not request.dry_run:
                # A queue that the group has not received from yet gets its place now.
                keys = [one.key for one in places] or [PlaceKey(group, topic, topic, number.shard_queue)]
                for key in keys:
                    self._groups.reset(key, offset)
        if not receives and not request.dry_run:
            self._offsets.commit(group, topic, {number.shard_queue: offset for number, offset in moves})
        if not request.dry_run and superseded.can_be:
            marks = self._superseding.end(found, group)
            await self._superseding.end_later(superseded, marks)
        counts = superseded.counts()
        for row in response.queues:
            row.retries_ended = counts[row.queue]
        return response

    def _places(self, group: str, queue_topic: str, queue: int) -> list[GroupPlace]:
        """The group's places in a queue: in one of %RETRY%group, one for each topic that the group receives."""
        places = self._groups.progress.of_group(group)
        return [place for place in places if (place.key.queue_topic, place.key.queue) == (queue_topic, queue)]

    async def _target(self, walk: YieldingScan, request: consumer_pb2.ResetGroupRequest, queue: ConsumeQueue) -> int:
        wanted = request.WhichOneof("to")
        if wanted == "at_ms":
            return await first_stored_at(walk, self._log, queue, request.at_ms)
        if wanted == "offset":
            note = f" of queue {queue.queue} of {queue.topic}"
            refuse(within("offset", request.offset, queue.min_offset, queue.max_offset, note=note))
            return request.offset
        return queue.max_offset if wanted == "latest" else queue.min_offset

    async def delete(self, request: consumer_pb2.DeleteGroupRequest, forget: Callable[[str], None]) -> None:
        """Staged on return; `forget` removes the group's configuration.

        Raises:
            FailedPrecondition: it is in use.
        """
        check_group(request.name)
        active, now_ms = self._groups.activity.get(request.name), self._clock.now_ms()
        if active is not None and not request.force:
            seen = {name for (name, _), at_ms in active.members.items() if now_ms - at_ms < IN_USE_MS}
            if seen:
                raise FailedPrecondition(
                    f"group {request.name} has {len(seen)} receivers of the last minute, such as {min(seen)}",
                    reason="GROUP_IN_USE",
                )
        self._groups.delete(request.name)
        # A later group of this name must not get messages that this one handled: copies in lanes end, and those in
        # %RETRY%group count as read. Its leases are gone, so no copy follows the staged ones.
        self._store.stage_events()
        await self._flusher.durable()
        self._retries.cancel(await self._retries.find(request.name))
        await self._flusher.durable()
        back = retry_topic(request.name)
        ends = {queue.queue: queue.max_offset for queue in self._queues.of_topic(back)}
        self._offsets.delete(request.name, {back: ends} if ends else {})
        forget(request.name)
        await self._flusher.events_durable()
