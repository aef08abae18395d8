"""Finding messages by key and id over the shards that may have them, and a queue's offset at a time."""

import asyncio
from collections.abc import Iterable

import grpc
from duetime.v1 import gateway_pb2
from duetime_core import limits
from duetime_core.errors import DueTimeError, NotFound
from duetime_core.names import is_system_topic

from duetime_gateway.admission import check_get, check_query, check_search
from duetime_gateway.reader import Reader, place_of
from duetime_gateway.shards import Shard, Shards


class Finder:
    """Asks all shards at once; an answer is whole or an error, never silently less."""

    def __init__(self, reader: Reader, shards: Shards, *, timeout_ms: int) -> None:
        self._reader = reader
        self._shards = shards
        self._timeout_ms = timeout_ms

    async def query(
        self, request: gateway_pb2.QueryMessagesRequest, remaining_ms: float | None
    ) -> gateway_pb2.QueryMessagesResponse:
        """The newest ones of all shards, newest first.

        Raises:
            DueTimeError: bad fields, no such topic, or what a shard answered.
        """
        check_query(request)
        shards = await self._holders(request.topic)
        timeout_ms = self._timeout(remaining_ms)
        answers = await asyncio.gather(*(shard.query_messages(request, timeout_ms) for shard in shards))
        # A shard that has more tells nothing of what lies before its last one, where others' are not the next then.
        since_ms = max((answer.messages[-1].message.stored_at_ms for answer in answers if answer.more), default=0)
        # Stable: those of one shard stay in its order.
        found = sorted(
            (one for answer in answers for one in answer.messages if one.message.stored_at_ms >= since_ms),
            key=lambda one: -one.message.stored_at_ms,
        )
        chosen: list[gateway_pb2.FoundMessage] = []
        size = 0
        for one in found[: request.max_count or limits.QUERY_COUNT_DEFAULT]:
            size += one.ByteSize()
            if chosen and size > limits.PULL_BYTES_MAX:
                break
            chosen.append(one)
        more = len(chosen) < len(found) or any(answer.more for answer in answers)
        await self._renumber(chosen)
        return gateway_pb2.QueryMessagesResponse(messages=chosen, more=more)

    async def get(self, request: gateway_pb2.GetMessageRequest, remaining_ms: float | None) -> gateway_pb2.FoundMessage:
        """The message of whichever shard has it.

        Raises:
            NotFound: all shards have answered, and none has it.
            DueTimeError: none has it, and one did not answer; bad fields; no such topic.
        """
        check_get(request)
        shards = await self._holders(request.topic) if request.topic else self._shards.all()
        timeout_ms = self._timeout(remaining_ms)
        answers = await asyncio.gather(*(_answer(shard, request, timeout_ms) for shard in shards))
        found = [answer for answer in answers if isinstance(answer, gateway_pb2.FoundMessage)]
        if found:
            # One of a user's topic rather than its retry or dead letter; of several the newest.
            best = min(found, key=lambda one: (is_system_topic(one.message.topic), -one.message.stored_at_ms))
            await self._renumber([best])
            return best
        for answer in answers:
            if isinstance(answer, DueTimeError) and answer.status is not grpc.StatusCode.NOT_FOUND:
                raise answer
        raise NotFound(f"no message {request.id}", reason="MESSAGE_NOT_FOUND")

    async def search(
        self, request: gateway_pb2.SearchOffsetRequest, remaining_ms: float | None
    ) -> gateway_pb2.SearchOffsetResponse:
        """Raises: DueTimeError: bad fields, no such topic or queue, or what the shard answered."""
        check_search(request)
        places = await self._reader.places(request.topic)
        number, request.queue = place_of(places, request.topic, request.queue)
        shard = await self._reader.ready_shard(number, request.topic)
        return await shard.search_offset(request, self._timeout(remaining_ms))

    async def _holders(self, topic: str) -> list[Shard]:
        """The shards that have queues of a topic. Raises: NotFound, Unavailable."""
        places = await self._reader.places(topic)
        return [self._shards.get(number) for number in sorted({number for number, _ in places.values()})]

    async def _renumber(self, found: Iterable[gateway_pb2.FoundMessage]) -> None:
        """Messages carry their queue's number on the shard; users know it by the topic's."""
        for one in found:
            try:
                places = await self._reader.places(one.message.topic)
            except NotFound:
                # A topic of a broker's own, which has no route.
                continue
            place = (one.shard, one.message.queue)
            one.message.queue = next((queue for queue, other in places.items() if other == place), place[1])

    def _timeout(self, remaining_ms: float | None) -> float:
        return self._timeout_ms if remaining_ms is None else min(remaining_ms, self._timeout_ms)


async def _answer(
    shard: Shard, request: gateway_pb2.GetMessageRequest, timeout_ms: float
) -> gateway_pb2.FoundMessage | DueTimeError:
    """Errors as values: that one shard fails is no matter where another one has the message."""
    try:
        return await shard.get_message(request, timeout_ms)
    except DueTimeError as error:
        return error
