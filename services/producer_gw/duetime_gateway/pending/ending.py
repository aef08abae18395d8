"""Cancels and reschedules named messages."""

from collections.abc import Iterable, Sequence

from duetime.v1 import pending_pb2 as pb
from duetime.v1 import store_pb2
from duetime_core.clock import Clock
from duetime_core.errors import DueTimeError, InvalidArgument
from duetime_format import limits, record

from duetime_gateway.deadlines import shared_timeout_of
from duetime_gateway.pending.admission import check_count, reschedule_violations
from duetime_gateway.pending.asking import Holders, ask
from duetime_gateway.routing.topics import TopicRegistry
from duetime_gateway.shards.shard import Shard

# Share of a call's time in which shards look up the topics of ids; a shard that hangs may take it twice.
LOCATED_BY = 0.4


class PendingResolver:
    """Ends the current wait of messages: cancels or reschedules them."""

    def __init__(
        self, holders: Holders, topics: TopicRegistry, clock: Clock, *, timeout_ms: int, body_bytes_min: int = 0
    ) -> None:
        self._holders = holders
        self._topics = topics
        self._clock = clock
        self._timeout_ms = timeout_ms
        self._body_bytes_min = body_bytes_min

    async def cancel(self, refs: Sequence[pb.PendingRef], remaining_ms: float | None) -> list[pb.CancelResult]:
        """One result per message. Raises: InvalidArgument: too many, or none."""
        check_count(len(refs), limits.CANCEL_COUNT_MAX)
        timeout_ms = shared_timeout_of(self._timeout_ms, remaining_ms)
        holders, named, timeout_ms = await self._find(refs, timeout_ms)

        async def call(shard: Shard, indices: list[int]) -> Sequence[pb.CancelResult]:
            request = pb.CancelRequest(messages=[named[index] for index in indices])
            answer: pb.CancelResponse = await shard.store.ask("Cancel", request, timeout_ms)
            return answer.results

        return await ask(holders, call, pb.CancelResult)

    async def _find(
        self, refs: Sequence[pb.PendingRef], timeout_ms: float
    ) -> tuple[list[list[Shard] | DueTimeError], list[pb.PendingRef], float]:
        """The shards that may have each message, the references to send them, and the time left."""
        named, faults = await self._holders.locate(refs, timeout_ms * LOCATED_BY)
        # A topic named by a shard may have lost its route: all shards are asked.
        holders = await self._holders.of(refs)
        left_ms = timeout_ms * (1 - LOCATED_BY) if any(not ref.topic and not ref.lane for ref in refs) else timeout_ms
        return [faults.get(index, one) for index, one in enumerate(holders)], named, left_ms

    async def reschedule(
        self, messages: Sequence[pb.Reschedule], remaining_ms: float | None
    ) -> list[pb.RescheduleResult]:
        """One result per message, as `cancel`."""
        check_count(len(messages), limits.REPLACE_COUNT_MAX)
        timeout_ms = shared_timeout_of(self._timeout_ms, remaining_ms)
        holders, named, timeout_ms = await self._find([one.message for one in messages], timeout_ms)
        messages = [_about(one, ref) for one, ref in zip(messages, named, strict=True)]
        right = [one for one, held in zip(messages, holders, strict=True) if not isinstance(held, DueTimeError)]
        most_ms = await self._max_delays_ms({one.message.topic for one in right if one.message.topic})
        now_ms, least = self._clock.now_ms(), self._body_bytes_min
        for index, one in enumerate(messages):
            if isinstance(holders[index], DueTimeError):
                continue
            if violations := reschedule_violations(one, now_ms, most_ms.get(one.message.topic, 0), least):
                holders[index] = InvalidArgument(violations, reason="MESSAGE_INVALID")

        async def call(shard: Shard, indices: list[int]) -> Sequence[pb.RescheduleResult]:
            request = store_pb2.ReplaceRequest()
            for index in indices:
                replacement = request.replacements.add(message=messages[index].message)
                replacement.reschedule.CopyFrom(_as_stores_take_it(messages[index]))
            answer: store_pb2.ReplaceResponse = await shard.store.ask("Replace", request, timeout_ms)
            return [_result_of(shard.number, one) for one in answer.results]

        return await ask(holders, call, pb.RescheduleResult)

    async def _max_delays_ms(self, topics: Iterable[str]) -> dict[str, int]:
        """Longest delay by topic, for topics with a route. A message named only by its id has a limit of ten years."""
        found: dict[str, int] = {}
        for topic in topics:
            try:
                found[topic] = (await self._topics.route_to_read(topic)).max_delay_ms
            except DueTimeError:
                # Messages of deleted topics are rescheduled anyway, also while the database is unavailable.
                continue
        return found


def _about(asked: pb.Reschedule, ref: pb.PendingRef) -> pb.Reschedule:
    """The reschedule with the reference as its message."""
    if asked.message == ref:
        return asked
    about = pb.Reschedule()
    about.CopyFrom(asked)
    about.message.CopyFrom(ref)
    return about


def _as_stores_take_it(asked: pb.Reschedule) -> pb.Reschedule:
    """Raises a time so far in the past that stores would read it as a delay, to one that is still past."""
    if asked.HasField("deliver_at_ms") and asked.deliver_at_ms <= record.TIMER_OUT_MIN:
        asked.deliver_at_ms = record.TIMER_OUT_MIN + 1
    return asked


def _result_of(shard: int, answer: store_pb2.ReplaceResult) -> pb.RescheduleResult:
    if answer.HasField("fault"):
        return pb.RescheduleResult(fault=answer.fault)
    if answer.status != pb.RESCHEDULE_STATUS_RESCHEDULED:
        return pb.RescheduleResult(status=answer.status)
    return pb.RescheduleResult(
        status=answer.status,
        shard=shard,
        lane=answer.lane,
        entry=answer.entry,
        deliver_at_ms=answer.due_at_ms,
        was_past=answer.was_past,
        stored_bytes=answer.stored_bytes,
    )
