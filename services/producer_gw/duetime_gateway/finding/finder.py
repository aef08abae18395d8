"""Finding messages by key and id over the shards that may have them, and a queue's offset at a time."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

import grpc
from duetime.v1 import consumer_pb2, gateway_pb2
from duetime_core.errors import DueTimeError, NotFound
from duetime_format import limits
from duetime_format.names import is_system_topic

from duetime_gateway.routing.reader import Reader, place_of
from duetime_gateway.sending.admission import check_get, check_query, check_search
from duetime_gateway.shards.shard import Shard, Shards

_Answer = TypeVar("_Answer")
_Request = TypeVar("_Request", gateway_pb2.GetMessageRequest, consumer_pb2.TraceMessageRequest)
_NOT_FOUND = grpc.StatusCode.NOT_FOUND


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
        answers = await self._ask(Shard.get_message, request, remaining_ms)
        found = [answer for answer in answers if isinstance(answer, gateway_pb2.FoundMessage)]
        if found:
            # One of a user's topic rather than its retry or dead letter; of several the newest.
            best = min(found, key=lambda one: (is_system_topic(one.message.topic), -one.message.stored_at_ms))
            await self._renumber([best])
            return best
        raise _nowhere(request.id, answers)

    async def trace(
        self, request: consumer_pb2.TraceMessageRequest, remaining_ms: float | None
    ) -> consumer_pb2.TraceMessageResponse:
        """The life of a message on all shards, oldest first; a shard that does not answer is told as a gap.

        Raises:
            NotFound: all shards have answered, and none has it.
            DueTimeError: none has it, and one did not answer; bad fields; no such topic.
        """
        answers = await self._ask(Shard.trace_message, request, remaining_ms)
        told = [answer for answer in answers if isinstance(answer, consumer_pb2.TraceMessageResponse)]
        if not told:
            raise _nowhere(request.id, answers)
        gaps = [gap for one in told for gap in one.gaps]
        silent = [one for one in answers if isinstance(one, DueTimeError) and one.status is not _NOT_FOUND]
        gaps += [f"a shard does not answer, so that events may be missing: {error.text}" for error in silent]
        # Stable: those of one shard stay in its order.
        events = sorted((event for one in told for event in one.events), key=lambda event: event.at_ms)
        numbers = {(event.topic, event.shard, event.queue): event.queue for event in events if event.topic}
        for place in numbers:
            numbers[place] = await self._public_queue(*place)
        for event in events:
            event.queue = numbers.get((event.topic, event.shard, event.queue), event.queue)
        return consumer_pb2.TraceMessageResponse(id=told[0].id, events=events, gaps=gaps)

    async def search(
        self, request: gateway_pb2.SearchOffsetRequest, remaining_ms: float | None
    ) -> gateway_pb2.SearchOffsetResponse:
        """Raises: DueTimeError: bad fields, no such topic or queue, or what the shard answered."""
        check_search(request)
        places = await self._reader.places(request.topic)
        number, request.queue = place_of(places, request.topic, request.queue)
        shard = await self._reader.ready_shard(number, request.topic)
        return await shard.search_offset(request, self._timeout(remaining_ms))

    async def _ask(
        self,
        call: Callable[[Shard, _Request, float], Awaitable[_Answer]],
        request: _Request,
        remaining_ms: float | None,
    ) -> list[_Answer | DueTimeError]:
        """Of all shards that may have a message. Raises: DueTimeError: bad fields, no such topic."""
        check_get(request)
        shards = await self._holders(request.topic) if request.topic else self._shards.all()
        timeout_ms = self._timeout(remaining_ms)
        return await _answers(call(shard, request, timeout_ms) for shard in shards)

    async def _holders(self, topic: str) -> list[Shard]:
        """The shards that have queues of a topic. Raises: NotFound, Unavailable."""
        places = await self._reader.places(topic)
        return [self._shards.get(number) for number in sorted({number for number, _ in places.values()})]

    async def _renumber(self, found: Iterable[gateway_pb2.FoundMessage]) -> None:
        """Messages carry their queue's number on the shard; users know it by the topic's."""
        for one in found:
            one.message.queue = await self._public_queue(one.message.topic, one.shard, one.message.queue)

    async def _public_queue(self, topic: str, shard: int, queue: int) -> int:
        try:
            places = await self._reader.places(topic)
        except NotFound:
            # A topic of a broker's own, which has no route.
            return queue
        return next((number for number, place in places.items() if place == (shard, queue)), queue)

    def _timeout(self, remaining_ms: float | None) -> float:
        return self._timeout_ms if remaining_ms is None else min(remaining_ms, self._timeout_ms)


async def _answers(calls: Iterable[Awaitable[_Answer]]) -> list[_Answer | DueTimeError]:
    """Errors as values: that one shard fails is no matter where another one has the message."""

    async def answer(call: Awaitable[_Answer]) -> _Answer | DueTimeError:
        try:
            return await call
        except DueTimeError as error:
            return error

    return list(await asyncio.gather(*map(answer, calls)))


def _nowhere(message_id: str, answers: Iterable[object]) -> DueTimeError:
    """What is wrong where no shard has a message."""
    for answer in answers:
        if isinstance(answer, DueTimeError) and answer.status is not _NOT_FOUND:
            return answer
    return NotFound(f"no message {message_id}", reason="MESSAGE_NOT_FOUND")
