"""Selects the shards to ask about a message, and combines their answers."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from duetime.v1 import pending_pb2
from duetime_core.errors import Ambiguous, DueTimeError, InvalidArgument, NotFound
from duetime_core.rpc.calls import fault_of

from duetime_gateway.errors import shard_unavailable
from duetime_gateway.pending.admission import ref_violations
from duetime_gateway.routing.places import QueueLocator
from duetime_gateway.shards.shard import Shard
from duetime_gateway.shards.shards import Shards

Result = TypeVar("Result", pending_pb2.CancelResult, pending_pb2.RescheduleResult)

_DONE, _FIRED = pending_pb2.CANCEL_STATUS_CANCELLED, pending_pb2.CANCEL_STATUS_ALREADY_FIRED
assert int(_DONE) == int(pending_pb2.RESCHEDULE_STATUS_RESCHEDULED)
assert int(_FIRED) == int(pending_pb2.RESCHEDULE_STATUS_ALREADY_FIRED)


class Holders:
    """Finds the shards that may have a message."""

    def __init__(self, places: QueueLocator, shards: Shards) -> None:
        self._places = places
        self._shards = shards

    async def locate(
        self, refs: Sequence[pending_pb2.PendingRef], timeout_ms: float
    ) -> tuple[list[pending_pb2.PendingRef], dict[int, DueTimeError]]:
        """Returns the references, with topics added to bare ids where shards know one, and faults for ids found in
        several topics. With a single shard, the shard decides."""
        named = list(refs)
        alone = [index for index, ref in enumerate(refs) if not ref.topic and not ref.lane and not ref_violations(ref)]
        shards = self._shards.all()
        if not alone or len(shards) == 1:
            return named, {}
        request = pending_pb2.CancelRequest(messages=[refs[index] for index in alone], locate=True)

        async def call(shard: Shard, indices: list[int]) -> Sequence[pending_pb2.CancelResult]:
            answer: pending_pb2.CancelResponse = await shard.store.ask("Cancel", request, timeout_ms)
            return answer.results

        every = list(range(len(alone)))
        answers = await asyncio.gather(*(_answered(call, shard, every) for shard in shards))
        faults: dict[int, DueTimeError] = {}
        for index, *told in zip(alone, *answers, strict=True):
            topics = {topic for one in told if not isinstance(one, DueTimeError) for topic in one.topics}
            if len(topics) > 1:
                faults[index] = Ambiguous(refs[index].message_id, sorted(topics))
            elif topics:
                named[index] = pending_pb2.PendingRef(message_id=refs[index].message_id, topic=topics.pop())
        return named, faults

    async def of_topic(self, topic: str) -> list[Shard]:
        """As QueueLocator.shards_of."""
        return await self._places.shards_of(topic)

    async def of(self, refs: Sequence[pending_pb2.PendingRef]) -> list[list[Shard] | DueTimeError]:
        """The shards for each message; an error if its name is invalid or its topic unknown."""
        topics = list({ref.topic for ref in refs if not ref.lane})
        answers = await asyncio.gather(*map(self._of_topic, topics))
        by_topic = dict(zip(topics, answers, strict=True))
        return [self._of(ref, by_topic) for ref in refs]

    async def _of_topic(self, topic: str) -> list[Shard] | DueTimeError:
        try:
            return await self.of_topic(topic)
        except DueTimeError as error:
            return error

    def _of(
        self, ref: pending_pb2.PendingRef, by_topic: Mapping[str, list[Shard] | DueTimeError]
    ) -> list[Shard] | DueTimeError:
        if violations := ref_violations(ref):
            return InvalidArgument(violations, reason="MESSAGE_INVALID")
        if not ref.lane:
            return by_topic[ref.topic]
        if ref.shard not in self._shards.numbers:
            return NotFound(f"shard {ref.shard} is not one of {self._shards.numbers}", reason="SHARD_NOT_FOUND")
        return [self._shards.get(ref.shard)]


async def ask(
    holders: Sequence[list[Shard] | DueTimeError],
    call: Callable[[Shard, list[int]], Awaitable[Sequence[Result]]],
    make: type[Result],
) -> list[Result]:
    """One result per message. `call` asks a shard about the messages with these indices, and returns their results in
    order. A shard that does not answer causes a fault for messages that no other shard has."""
    indices: dict[int, list[int]] = {}
    asked: dict[int, Shard] = {}
    answers: list[list[Result | DueTimeError]] = [[] for _ in holders]
    for index, one in enumerate(holders):
        if isinstance(one, DueTimeError):
            answers[index].append(one)
            continue
        for shard in one:
            asked[shard.number] = shard
            indices.setdefault(shard.number, []).append(index)
    calls = (_answered(call, asked[number], wanted) for number, wanted in indices.items())
    for wanted, results in zip(indices.values(), await asyncio.gather(*calls), strict=True):
        for index, result in zip(wanted, results, strict=True):
            answers[index].append(result)
    return [_result(one, make) for one in answers]


async def _answered(
    call: Callable[[Shard, list[int]], Awaitable[Sequence[Result]]], shard: Shard, indices: list[int]
) -> Sequence[Result | DueTimeError]:
    try:
        results = await call(shard, indices)
    except DueTimeError as error:
        return [error] * len(indices)
    if len(results) != len(indices):
        text = f"shard {shard.number} answered {len(results)} results for {len(indices)} messages"
        return [shard_unavailable(text)] * len(indices)
    return results


def _result(answers: Iterable[Result | DueTimeError], make: type[Result]) -> Result:
    """The best of the shards' answers: the message was pending, has fired, or (if all have answered) was not found."""
    best = min(answers, key=_rank)
    return make(fault=fault_of(best)) if isinstance(best, DueTimeError) else best


def _rank(answer: Result | DueTimeError) -> int:
    if isinstance(answer, DueTimeError) or answer.HasField("fault"):
        return 2
    return 0 if answer.status == _DONE else 1 if answer.status == _FIRED else 3
