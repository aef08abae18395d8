"""Failed messages of a group that wait for their next attempt: listed, delivered now, or discarded.

They are pending messages for %RETRY%group, and are listed as such. An end runs on all shards at once, page by page.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from duetime.v1 import consumer_pb2 as pb
from duetime.v1 import message_pb2, pending_pb2, store_pb2
from duetime_core.clock import Clock
from duetime_core.metadata import GroupTable
from duetime_core.rpc.calls import refused
from duetime_format import limits, record
from duetime_format.names import retry_topic

from duetime_gateway.pending.admission import check_list_retries, check_retry_filter
from duetime_gateway.pending.jobs import Part, ShardJobs
from duetime_gateway.pending.listing import PendingLister
from duetime_gateway.shards.shards import Shards


@dataclass(frozen=True, slots=True)
class _RetryMatcher:
    """A parsed filter."""

    topic: str
    error: str
    ids: frozenset[str]

    @classmethod
    def of(cls, given: pb.RetryFilter) -> "_RetryMatcher":
        return cls(given.topic, given.error.casefold(), frozenset(given.ids))

    def fits(self, one: pending_pb2.PendingMessage) -> bool:
        if self.ids and one.message.id not in self.ids:
            return False
        if self.topic not in ("", _origin_of(one.message)):
            return False
        return not self.error or self.error in _error_of(one.attempts).casefold()


@dataclass(slots=True)
class _RetryPart(Part):
    """A shard's part of an end."""

    matched_count: int = 0
    ended_count: int = 0
    gone_count: int = 0

    async def step(self, group: str, wanted: _RetryMatcher, due_from_ms: int, *, discard: bool, dry_run: bool) -> None:
        page: pending_pb2.ListPendingResponse = await self.shard.store.ask(
            "ListPending",
            pending_pb2.ListPendingRequest(
                filter=pending_pb2.PendingFilter(topic=retry_topic(group), due_from_ms=due_from_ms),
                max_count=limits.PENDING_COUNT_MAX,
                page_token=self.token,
                omit_bodies=True,
            ),
        )
        found = [one for one in page.messages if wanted.fits(one)]
        self.matched_count += len(found)
        if found and not dry_run:
            request = store_pb2.EndStoredRetriesRequest(group=group, discard=discard)
            request.lanes.extend(one.lane for one in found)
            request.entries.extend(one.message.offset for one in found)
            answer: store_pb2.EndStoredRetriesResponse = await self.shard.store.ask("EndRetries", request)
            self.ended_count += answer.ended_count
            self.gone_count += answer.gone_count
            if answer.HasField("fault"):
                raise refused(answer.fault)
        self.turn(page.next_page_token)


class WaitingRetryResolver:
    """The waiting retries of all groups, and the running calls that end some."""

    def __init__(self, groups: GroupTable, listing: PendingLister, shards: Shards, clock: Clock) -> None:
        self._groups = groups
        self._listing = listing
        self._shards = shards
        self._clock = clock
        self._jobs = ShardJobs(clock, "calls of RetryNow and DiscardRetries are running", reason="RETRIES_EXHAUSTED")
        self.end_streams = self._jobs.end

    async def page(self, request: pb.ListRetriesRequest, remaining_ms: float | None) -> pb.ListRetriesResponse:
        """Lists waiting retries.

        Raises:
            DueTimeError: bad fields, no such group, or an error of a shard.
        """
        check_list_retries(request)
        await self._groups.get(request.filter.group)
        asked = pending_pb2.ListPendingRequest(
            filter=pending_pb2.PendingFilter(topic=retry_topic(request.filter.group)),
            max_count=request.max_count,
            page_token=request.page_token,
            omit_bodies=request.omit_bodies,
        )
        page = await self._listing.merged(self._shards.all(), asked, remaining_ms)
        wanted = _RetryMatcher.of(request.filter)
        retries = [_retry_of(one) for one in page.messages if wanted.fits(one)]
        return pb.ListRetriesResponse(retries=retries, next_page_token=page.next_page_token)

    async def end(
        self, request: pb.EndRetriesRequest, caller: str, *, discard: bool
    ) -> AsyncGenerator[pb.EndRetriesProgress, None]:
        """Yields the progress, about once a second and at the end.

        Raises:
            DueTimeError: bad fields, no such group, too many such calls; or a shard's error, once the others are done.
        """
        check_retry_filter(request.filter)
        group, wanted = request.filter.group, _RetryMatcher.of(request.filter)
        await self._groups.get(group)
        # A due retry is already being delivered.
        due_from_ms = 0 if discard else self._clock.now_ms() + 1
        parts = [_RetryPart(shard) for shard in self._shards.all()]
        work = self._jobs.run(
            caller,
            parts,
            lambda part: part.step(group, wanted, due_from_ms, discard=discard, dry_run=request.dry_run),
            _progress,
        )
        async with aclosing(work) as told:
            async for one in told:
                yield one


def _progress(parts: Sequence[_RetryPart]) -> pb.EndRetriesProgress:
    return pb.EndRetriesProgress(
        matched_count=sum(part.matched_count for part in parts),
        ended_count=sum(part.ended_count for part in parts),
        gone_count=sum(part.gone_count for part in parts),
        done=all(part.done for part in parts),
    )


def _retry_of(one: pending_pb2.PendingMessage) -> pb.WaitingRetry:
    retry = pb.WaitingRetry(shard=one.shard, lane=one.lane, entry=one.message.offset, attempts=one.attempts)
    retry.message.CopyFrom(one.message)
    message = retry.message
    message.topic, message.queue, message.offset = _origin_of(message), 0, 0
    message.properties.pop(record.RETRY_TOPIC, None)
    return retry


def _origin_of(message: message_pb2.StoredMessage) -> str:
    return message.properties.get(record.RETRY_TOPIC, "")


def _error_of(attempts: Sequence[pb.FailedAttempt]) -> str:
    """`TYPE: message` of the last attempt; empty: unknown."""
    return f"{attempts[-1].error.type}: {attempts[-1].error.message}" if attempts else ""
