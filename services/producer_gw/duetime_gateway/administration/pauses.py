"""Pauses of groups, and of topics for all groups: the stores keep them, and a gateway joins those of its shards."""

import asyncio
from collections.abc import Iterable, Mapping

from duetime.v1 import consumer_pb2, gateway_pb2
from duetime_core.errors import DueTimeError, Unavailable

from duetime_gateway.administration.admission import PauseRequest
from duetime_gateway.routing.places import QueueLocator
from duetime_gateway.rules import check_group_reads
from duetime_gateway.shards.shards import Shards

# Asks for the pauses of topics.
_TOPICS = consumer_pb2.DescribeGroupRequest()


class PauseIncomplete(Unavailable):
    """Some shards, or the metadata database, have not done a pause or resume; the others have."""

    reason = "PAUSE_INCOMPLETE"

    def __init__(self, failed: Mapping[int, DueTimeError], database: DueTimeError | None = None) -> None:
        missing = [f"shard {number} has not done it ({error.text})" for number, error in failed.items()]
        if database is not None:
            missing.append(f"it is not stored for shards that join later ({database.text})")
        done = "the other shards have done it" if failed else "all shards have done it"
        super().__init__(f"{done}, but {'; '.join(missing)}: repeat the call")


class DeliveryPauses:
    """Sets and reads pauses on all shards."""

    def __init__(self, places: QueueLocator, shards: Shards) -> None:
        self._places = places
        self._shards = shards

    async def change(self, request: PauseRequest) -> tuple[consumer_pb2.GroupPauses, Mapping[int, DueTimeError]]:
        """Pauses or resumes a group on all shards, and returns its pauses, and the errors of shards that do not answer.
        `request` has no name: all groups.

        Raises:
            DueTimeError: no such topic, an error that no retry ends, or no shard answers. It is safe to repeat the
                call: some shards may have done it.
        """
        is_pause = isinstance(request, consumer_pb2.PauseGroupRequest)
        if request.topic and is_pause:
            await self._places.of(request.topic)
        call = "PauseGroup" if is_pause else "ResumeGroup"
        asked = (shard.store.ask(call, request) for shard in self._shards.all())
        answers = await asyncio.gather(*asked, return_exceptions=True)
        found: list[consumer_pb2.GroupPauses] = []
        failed: dict[int, DueTimeError] = {}
        for number, answer in zip(self._shards.numbers, answers, strict=True):
            if isinstance(answer, DueTimeError) and answer.retriable:
                failed[number] = answer
            elif isinstance(answer, BaseException):
                raise answer
            else:
                found.append(answer)
        if not found:
            raise next(iter(failed.values()))
        return consumer_pb2.GroupPauses(pauses=joined(pause for one in found for pause in one.pauses)), failed

    async def change_topic(
        self, request: gateway_pb2.PauseTopicRequest | gateway_pb2.ResumeTopicRequest
    ) -> consumer_pb2.GroupPauses:
        """As `change`, for all groups in a topic.

        Raises:
            PauseIncomplete: some shards do not answer.
            DueTimeError: as `change`, or bad fields.
        """
        check_group_reads("name", request.name)
        await self._places.of(request.name)
        wanted: PauseRequest = consumer_pb2.ResumeGroupRequest(topic=request.name)
        if isinstance(request, gateway_pb2.PauseTopicRequest):
            wanted = consumer_pb2.PauseGroupRequest(topic=request.name)
            if (end := request.WhichOneof("end")) is not None:
                setattr(wanted, end, getattr(request, end))
        pauses, failed = await self.change(wanted)
        if failed:
            raise PauseIncomplete(failed)
        return pauses

    async def of_topic(self, name: str) -> consumer_pb2.GroupPause | None:
        """The pause of a topic for all groups. Raises: DueTimeError: no such topic, or an error of a shard of it."""
        numbers = sorted({shard for shard, _ in (await self._places.of(name)).values()})
        asked = (self._shards.get(number).store.ask("DescribeGroup", _TOPICS) for number in numbers)
        found = joined(pause for answer in await asyncio.gather(*asked) for pause in answer.pauses)
        return next((pause for pause in found if pause.topic == name), None)

    async def of_topics(self) -> tuple[Mapping[str, consumer_pb2.GroupPause], list[int]]:
        """The pauses of topics for all groups, and the shards that do not answer."""
        asked = (shard.store.ask("DescribeGroup", _TOPICS) for shard in self._shards.all())
        answers = await asyncio.gather(*asked, return_exceptions=True)
        found: list[consumer_pb2.GroupPause] = []
        missing: list[int] = []
        for number, answer in zip(self._shards.numbers, answers, strict=True):
            if isinstance(answer, DueTimeError):
                missing.append(number)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                found += answer.pauses
        return {pause.topic: pause for pause in joined(found)}, missing


def joined(pauses: Iterable[consumer_pb2.GroupPause]) -> list[consumer_pb2.GroupPause]:
    """The pauses of several shards, by topic: their earliest starts and latest ends."""
    found: dict[tuple[str, bool], consumer_pb2.GroupPause] = {}
    for pause in pauses:
        known = found.setdefault((pause.topic, pause.all_groups), pause)
        known.since_ms = min(known.since_ms, pause.since_ms)
        known.until_ms = max(known.until_ms, pause.until_ms) if known.until_ms and pause.until_ms else 0
    return [pause for _, pause in sorted(found.items())]
