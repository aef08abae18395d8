"""Finds messages by key and id over the shards that may have them, and a queue's offset at a time.

Results use the store's contract: query results and traces are merged from several shards, others are forwarded.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

import grpc
from duetime.v1 import consumer_pb2, gateway_pb2
from duetime_core.errors import Ambiguous, DueTimeError, NotFound
from duetime_format import limits
from duetime_format.names import is_system_topic

from duetime_gateway.deadlines import timeout_of
from duetime_gateway.finding.admission import check_id, check_query, check_search
from duetime_gateway.queries import IdQuery, KeyQuery, OffsetSearch
from duetime_gateway.routing.places import QueueLocator, place_of
from duetime_gateway.shards.client import StoreClient

_Answer = TypeVar("_Answer")
_NOT_FOUND = grpc.StatusCode.NOT_FOUND


class GatewayFinder:
    """Asks all shards at once; an answer is complete or an error, never silently partial."""

    def __init__(self, places: QueueLocator, *, timeout_ms: int) -> None:
        self._places = places
        self._timeout_ms = timeout_ms

    async def query(self, query: KeyQuery, remaining_ms: float | None) -> gateway_pb2.QueryMessagesResponse:
        """The newest matching messages of all shards, newest first.

        Raises:
            DueTimeError: bad fields, no such topic, or an error of a shard.
        """
        check_query(query)
        shards = await self._places.shards_of(query.topic)
        timeout_ms = timeout_of(self._timeout_ms, remaining_ms)
        answers = await asyncio.gather(*(shard.store.query_messages(query, timeout_ms) for shard in shards))
        # If a shard has more, its older messages are unknown: drop other shards' messages older than its last one.
        since_ms = max((answer.messages[-1].message.stored_at_ms for answer in answers if answer.more), default=0)
        # Stable: messages of one shard keep its order.
        found = sorted(
            (one for answer in answers for one in answer.messages if one.message.stored_at_ms >= since_ms),
            key=lambda one: -one.message.stored_at_ms,
        )
        chosen: list[gateway_pb2.FoundMessage] = []
        size = 0
        for one in found[: query.max_count or limits.QUERY_COUNT_DEFAULT]:
            size += one.ByteSize()
            if chosen and size > limits.PULL_BYTES_MAX:
                break
            chosen.append(one)
        more = len(chosen) < len(found) or any(answer.more for answer in answers)
        await self._renumber(chosen)
        return gateway_pb2.QueryMessagesResponse(messages=chosen, more=more)

    async def get(self, query: IdQuery, remaining_ms: float | None) -> gateway_pb2.FoundMessage:
        """The message, from the shard that has it.

        Raises:
            NotFound: all shards have answered without it.
            DueTimeError: not found, and a shard did not answer; bad fields; no such topic.
        """
        answers = await self._ask(StoreClient.get_message, query, remaining_ms)
        found = [answer for answer in answers if isinstance(answer, gateway_pb2.FoundMessage)]
        _check_ambiguity(query, answers, {one.message.topic for one in found})
        if found:
            # Prefer a user's topic to its retry or dead letter topics, then the newest.
            best = min(found, key=lambda one: (is_system_topic(one.message.topic), -one.message.stored_at_ms))
            await self._renumber([best])
            return best
        raise _nowhere(query.id, answers)

    async def trace(self, query: IdQuery, remaining_ms: float | None) -> consumer_pb2.TraceMessageResponse:
        """The life of a message on all shards, oldest first; a shard that does not answer is listed as a gap.

        Raises:
            NotFound: all shards have answered without it.
            DueTimeError: not found, and a shard did not answer; bad fields; no such topic.
        """
        answers = await self._ask(StoreClient.trace_message, query, remaining_ms)
        traces = [answer for answer in answers if isinstance(answer, consumer_pb2.TraceMessageResponse)]
        _check_ambiguity(query, answers, {event.topic for one in traces for event in one.events})
        if not traces:
            raise _nowhere(query.id, answers)
        gaps = [gap for one in traces for gap in one.gaps]
        silent = [one for one in answers if isinstance(one, DueTimeError) and one.status is not _NOT_FOUND]
        gaps += [f"a shard does not answer, so that events may be missing: {error.text}" for error in silent]
        # Stable: events of one shard keep its order.
        events = sorted((event for one in traces for event in one.events), key=lambda event: event.at_ms)
        numbers = {(event.topic, event.shard, event.queue): event.queue for event in events if event.topic}
        for place in numbers:
            numbers[place] = await self._places.public_queue(*place)
        for event in events:
            event.queue = numbers.get((event.topic, event.shard, event.queue), event.queue)
        return consumer_pb2.TraceMessageResponse(id=traces[0].id, events=events, gaps=gaps)

    async def search(self, search: OffsetSearch, remaining_ms: float | None) -> int:
        """The offset of a queue at a time or at an end.

        Raises: DueTimeError: bad fields, no such topic or queue, or an error of the shard.
        """
        check_search(search)
        assert search.at is not None, "check_search refuses it"
        places = await self._places.of(search.topic)
        number, shard_queue = place_of(places, search.topic, search.queue)
        shard = await self._places.ready_shard(number, search.topic)
        timeout_ms = timeout_of(self._timeout_ms, remaining_ms)
        return await shard.store.search_offset(search.topic, shard_queue, search.at, timeout_ms)

    async def _ask(
        self,
        call: Callable[[StoreClient, IdQuery, float], Awaitable[_Answer]],
        query: IdQuery,
        remaining_ms: float | None,
    ) -> list[_Answer | DueTimeError]:
        """Asks all shards that may have a message. Raises: DueTimeError: bad fields, no such topic."""
        check_id(query)
        shards = await self._places.shards_of(query.topic)
        timeout_ms = timeout_of(self._timeout_ms, remaining_ms)
        return await _answers(call(shard.store, query, timeout_ms) for shard in shards)

    async def _renumber(self, found: Iterable[gateway_pb2.FoundMessage]) -> None:
        """Replaces the shards' queue numbers in messages by the topic's."""
        for one in found:
            one.message.queue = await self._places.public_queue(one.message.topic, one.shard, one.message.queue)


async def _answers(calls: Iterable[Awaitable[_Answer]]) -> list[_Answer | DueTimeError]:
    """Returns errors as values: a failing shard does not matter if another one has the message."""

    async def answer(call: Awaitable[_Answer]) -> _Answer | DueTimeError:
        try:
            return await call
        except DueTimeError as error:
            return error

    return list(await asyncio.gather(*map(answer, calls)))


def _check_ambiguity(query: IdQuery, answers: Iterable[object], topics: set[str]) -> None:
    """Raises: Ambiguous, or a shard's own: the id alone occurs in several topics."""
    for answer in answers:
        if isinstance(answer, DueTimeError) and answer.reason == Ambiguous.reason:
            raise answer
    of_users = {topic for topic in topics if not is_system_topic(topic)}
    if not query.topic and len(of_users) > 1:
        raise Ambiguous(query.id, sorted(of_users))


def _nowhere(message_id: str, answers: Iterable[object]) -> DueTimeError:
    """The error if no shard has a message."""
    for answer in answers:
        if isinstance(answer, DueTimeError) and answer.status is not _NOT_FOUND:
            return answer
    return NotFound(f"no message {message_id}", reason="MESSAGE_NOT_FOUND")
