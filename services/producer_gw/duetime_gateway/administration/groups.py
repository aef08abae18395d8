"""Administers groups: their settings in the metadata database and their offsets in the shards."""

import asyncio
from collections.abc import Mapping, Sequence

from duetime.v1 import consumer_pb2, store_pb2
from duetime_core.clock import Clock
from duetime_core.errors import DueTimeError, FailedPrecondition, NotFound, Unavailable
from duetime_core.metadata import GroupTable
from duetime_format.names import is_group_topic

from duetime_gateway.administration.admission import (
    PauseRequest,
    check_declared,
    check_limit,
    check_new_group,
    check_pause,
    check_reset,
    check_update_group,
)
from duetime_gateway.administration.pauses import DeliveryPauses, PauseIncomplete, joined
from duetime_gateway.answers import raise_first
from duetime_gateway.routing.places import QueueLocator, place_of
from duetime_gateway.rules import check_group
from duetime_gateway.shards.shards import Shards

MEMBERS_MAX = 1_000
# A group is in use if a receiver was seen within this time.
IN_USE_MS = 60_000


class ConsumerGroups:
    """Administers groups; asks all shards at once."""

    def __init__(self, groups: GroupTable, places: QueueLocator, shards: Shards, clock: Clock) -> None:
        self._groups = groups
        self._places = places
        self._shards = shards
        self._clock = clock
        self._pauses = DeliveryPauses(places, shards)

    async def create(self, group: consumer_pb2.Group, owner: str) -> consumer_pb2.Group:
        """Raises: DueTimeError: bad fields, the group exists with other settings, or the database does not answer."""
        check_new_group(group)
        if group.start == consumer_pb2.GROUP_START_LATEST:
            group.start_at_ms = await self._now_ms()
        return self._announce(await self._groups.create(group, owner))

    async def _now_ms(self) -> int:
        """The earliest time among the shards' clocks: no shard stores later messages before it."""
        asked = (shard.store.ask("Describe", store_pb2.DescribeRequest()) for shard in self._shards.all())
        answers = await asyncio.gather(*asked, return_exceptions=True)
        clocks = [answer.now_ms for answer in answers if isinstance(answer, store_pb2.DescribeResponse)]
        return min((now_ms for now_ms in clocks if now_ms), default=self._clock.now_ms())

    async def update(self, request: consumer_pb2.UpdateGroupRequest) -> consumer_pb2.Group:
        """Raises: DueTimeError: bad fields, no such group, or the database does not answer."""
        check_update_group(request)
        return self._announce(await self._groups.update(request.name, request.retry))

    async def limit(self, request: consumer_pb2.LimitGroupRequest) -> consumer_pb2.Group:
        """The group with another limit, which the answering shards know on return.

        Raises:
            FailedPrecondition: `per_key` for an ordered group.
            DueTimeError: bad fields, no such group or topic, too many limits, or the database does not answer.
        """
        check_limit(request)
        if request.limit.topic and (request.limit.HasField("rate") or request.limit.per_key):
            await self._places.of(request.limit.topic)
        if request.limit.per_key:
            _check_unordered(await self._groups.get(request.name))
        return await self._announced(await self._groups.limit(request.name, request.limit))

    async def declare(self, request: consumer_pb2.DeclareGroupLimitsRequest, owner: str) -> consumer_pb2.Group:
        """As `limit`, for the declared limits of a group, which is created if it does not exist."""
        check_declared(request)
        group = await self._groups.ensure(request.name, owner)
        if any(limit.per_key for limit in request.limits):
            _check_unordered(group)
        return await self._announced(await self._groups.declare(request.name, request.limits))

    async def _announced(self, group: consumer_pb2.Group) -> consumer_pb2.Group:
        """The group, once reachable shards know it."""
        await asyncio.gather(*(shard.groups.announced(group) for shard in self._shards.all() if shard.reached))
        return group

    def _announce(self, group: consumer_pb2.Group) -> consumer_pb2.Group:
        """Announces the group to reachable shards; the others learn it when the group receives from them."""
        for shard in self._shards.all():
            if shard.reached:
                shard.groups.announce(group)
        return group

    async def list(self) -> consumer_pb2.ListGroupsResponse:
        """Raises: Unavailable."""
        return consumer_pb2.ListGroupsResponse(groups=await self._groups.list())

    async def describe(self, name: str) -> consumer_pb2.GroupDescription:
        """Combines the group's state on all reachable shards.

        Raises:
            DueTimeError: no such group, or a shard returned an error.
        """
        check_group("name", name)
        description = consumer_pb2.GroupDescription(group=await self._groups.get(name))
        members: dict[tuple[str, str], consumer_pb2.GroupMember] = {}
        queues: list[consumer_pb2.GroupQueue] = []
        found = await self._describe(name)
        for number, answer in found.items():
            if answer is None:
                description.unreachable_shards.append(number)
                continue
            for queue in answer.queues:
                queue.shard = number
                queues.append(queue)
            for member in answer.members:
                seen = members.setdefault((member.name, member.topic), member)
                seen.seen_at_ms = max(seen.seen_at_ms, member.seen_at_ms)
            description.acks_per_s += answer.acks_per_s
            description.receives_per_s += answer.receives_per_s
            description.dead_letters += answer.dead_letters
            description.waiting_retries += answer.waiting_retries
            description.lapsed_messages += answer.lapsed_messages
            description.counting_shards.extend(number for _ in answer.counting_shards)
            dues = [one for one in (description.next_retry_at_ms, answer.next_retry_at_ms) if one]
            description.next_retry_at_ms = min(dues, default=0)
        answers = [answer for answer in found.values() if answer is not None]
        description.pauses.extend(joined(pause for answer in answers for pause in answer.pauses))
        await self._renumber(queues)
        description.queues.extend(sorted(queues, key=lambda one: (is_group_topic(one.topic), one.topic, one.queue)))
        latest = sorted(members.values(), key=lambda one: -one.seen_at_ms)
        description.members.extend(latest[:MEMBERS_MAX])
        return description

    async def _describe(self, name: str) -> Mapping[int, consumer_pb2.GroupDescription | None]:
        """Descriptions by shard; None: the shard does not answer."""
        request = consumer_pb2.DescribeGroupRequest(name=name)
        answers = await asyncio.gather(
            *(shard.store.ask("DescribeGroup", request) for shard in self._shards.all()), return_exceptions=True
        )
        found = {}
        for number, answer in zip(self._shards.numbers, answers, strict=True):
            if isinstance(answer, BaseException) and not (isinstance(answer, DueTimeError) and answer.retriable):
                raise answer
            found[number] = None if isinstance(answer, BaseException) else answer
        return found

    async def _renumber(self, queues: Sequence[consumer_pb2.GroupQueue]) -> None:
        """Replaces the shards' own queue numbers by those of the topic."""
        for topic in {queue.topic for queue in queues}:
            try:
                places = await self._places.of(topic)
            except NotFound:
                # A topic created by a broker has no route.
                continue
            numbers = {place: queue for queue, place in places.items()}
            for queue in queues:
                if queue.topic == topic:
                    queue.queue = numbers.get((queue.shard, queue.queue), queue.queue)

    async def reset(self, request: consumer_pb2.ResetGroupRequest) -> consumer_pb2.ResetGroupResponse:
        """Returns the changes made, or with `dry_run` those to be made. After an error some shards may have reset; it
        is safe to retry.

        Raises:
            DueTimeError: bad fields, no such group, topic or queue, or an error of a shard.
        """
        check_reset(request)
        await self._groups.get(request.name)
        places = await self._places.of(request.topic)
        if request.HasField("queue"):
            places = {request.queue: place_of(places, request.topic, request.queue)}
        parts: dict[int, consumer_pb2.ResetGroupRequest] = {}
        for queue, (shard, number) in places.items():
            if shard not in parts:
                parts[shard] = consumer_pb2.ResetGroupRequest()
                parts[shard].CopyFrom(request)
                del parts[shard].queues[:]
            parts[shard].queues.add(queue=queue, shard_queue=number)

        async def reset(number: int) -> consumer_pb2.ResetGroupResponse:
            shard = await self._places.ready_shard(number, request.topic)
            answer: consumer_pb2.ResetGroupResponse = await shard.store.ask("ResetGroup", parts[number])
            for queue in answer.queues:
                queue.shard = number
            return answer

        answers = raise_first(await asyncio.gather(*map(reset, parts), return_exceptions=True))
        queues = sorted((queue for answer in answers for queue in answer.queues), key=lambda one: one.queue)
        return consumer_pb2.ResetGroupResponse(queues=queues)

    async def change_pause(self, request: PauseRequest) -> consumer_pb2.GroupPauses:
        """Pauses or resumes a group: see `DeliveryPauses.change`. An outage of the database does not prevent it.

        Raises:
            PauseIncomplete: some shards or the database do not answer.
            DueTimeError: as `change`, or no such group.
        """
        check_pause(request)
        try:
            await self._groups.get(request.name)
        except Unavailable as error:
            _, failed = await self._pauses.change(request)
            raise PauseIncomplete(failed, error) from error
        answer, failed = await self._pauses.change(request)
        # Shards that join later learn this pause. Pauses of single topics don't concern them: they have none of these.
        whole = next((pause for pause in answer.pauses if not pause.topic), None)
        try:
            await self._announced(await self._groups.pause(request.name, whole))
        except Unavailable as error:
            raise PauseIncomplete(failed, error) from error
        if failed:
            raise PauseIncomplete(failed)
        return answer

    async def delete(self, request: consumer_pb2.DeleteGroupRequest) -> None:
        """Deletes a group. Idempotent: also if some shards have already deleted it.

        Raises:
            FailedPrecondition: the group is in use.
            DueTimeError: bad fields, or a shard or the database does not answer.
        """
        check_group("name", request.name)
        if not request.force:
            await self._check_unused(request.name)
        asked = (shard.groups.forget(request.name) for shard in self._shards.all())
        raise_first(await asyncio.gather(*asked, return_exceptions=True))
        # The database row goes last: until every shard has deleted the group, it can be found and deleted again.
        await self._groups.delete(request.name)

    async def _check_unused(self, name: str) -> None:
        """Runs before any shard deletes the group: their judgements could differ."""
        since_ms = self._clock.now_ms() - IN_USE_MS
        answers = [answer for answer in (await self._describe(name)).values() if answer is not None]
        seen = {member.name for answer in answers for member in answer.members if member.seen_at_ms > since_ms}
        if seen:
            some = ", ".join(sorted(seen)[:3]) + (", ..." if len(seen) > 3 else "")
            text = f"group {name} is in use: receivers were seen within a minute ({some}); force deletes it anyway"
            raise FailedPrecondition(text, reason="GROUP_IN_USE")


def _check_unordered(group: consumer_pb2.Group) -> None:
    """Raises: FailedPrecondition."""
    if group.ordered:
        text = f"group {group.name} is ordered: one lease for each queue is its only limit by key"
        raise FailedPrecondition(text, reason="GROUP_ORDERED")
