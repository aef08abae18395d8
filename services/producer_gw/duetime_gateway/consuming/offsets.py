"""Offsets of consumer groups: kept by the shards, each those of its queues."""

import asyncio
from collections.abc import Sequence
from typing import TypeVar

from duetime.v1 import gateway_pb2
from duetime_core.errors import InvalidArgument

from duetime_gateway.routing.reader import Reader, place_of
from duetime_gateway.sending.admission import positions_violations, topic_violations

Answer = TypeVar("Answer")


class GroupOffsets:
    """Commits and look-ups, split up by shard."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def commit(self, request: gateway_pb2.CommitOffsetsRequest) -> None:
        """Durable on return. After an error those of some shards may be kept; the commit may be repeated.

        Raises:
            DueTimeError: bad fields, no such topic or queue, or what a shard answered.
        """
        found = [*topic_violations("topic", request.topic, system=True), *positions_violations(request.queues)]
        if found:
            raise InvalidArgument(found)
        places = await self._reader.places(request.topic)
        parts: dict[int, gateway_pb2.CommitOffsetsRequest] = {}
        for position in request.queues:
            shard, number = place_of(places, request.topic, position.queue)
            if shard not in parts:
                parts[shard] = gateway_pb2.CommitOffsetsRequest(group=request.group, topic=request.topic)
            parts[shard].queues.add(queue=position.queue, offset=position.offset, shard_queue=number)

        async def commit(shard: int) -> gateway_pb2.CommitOffsetsResponse:
            return await (await self._reader.ready_shard(shard, request.topic)).commit_offsets(parts[shard])

        # All are waited for: an error of one leaves no call behind.
        raise_first(await asyncio.gather(*map(commit, parts), return_exceptions=True))

    async def find(self, request: gateway_pb2.GetOffsetsRequest) -> gateway_pb2.GetOffsetsResponse:
        """Raises: as `commit`."""
        found = list(topic_violations("topic", request.topic, system=True))
        if found:
            raise InvalidArgument(found)
        places = await self._reader.places(request.topic)
        shards = sorted({shard for shard, _ in places.values()})

        async def ask(shard: int) -> gateway_pb2.GetOffsetsResponse:
            return await (await self._reader.ready_shard(shard, request.topic)).get_offsets(request)

        answers = raise_first(await asyncio.gather(*map(ask, shards), return_exceptions=True))
        offsets = {
            (shard, position.shard_queue): position.offset
            for shard, answer in zip(shards, answers, strict=True)
            for position in answer.queues
        }
        response = gateway_pb2.GetOffsetsResponse()
        for queue, place in places.items():
            if place in offsets:
                response.queues.add(queue=queue, offset=offsets[place])
        return response


def raise_first(answers: Sequence[Answer | BaseException]) -> list[Answer]:
    """The answers, if all are."""
    found: list[Answer] = []
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
        found.append(answer)
    return found
