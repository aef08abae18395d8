"""Cancels the messages that match a filter: on all shards at once, page by page."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from duetime.v1 import pending_pb2 as pb
from duetime_core.clock import Clock
from duetime_core.rpc.calls import refused
from duetime_format.limits import PENDING_COUNT_MAX
from duetime_format.names import is_system_topic

from duetime_gateway.pending.admission import check_cancel_matching
from duetime_gateway.pending.asking import Holders
from duetime_gateway.pending.jobs import Part, ShardJobs


@dataclass(slots=True)
class CancelPart(Part):
    """A shard's part of the work."""

    seen_count: int = 0
    matched_count: int = 0
    cancelled_count: int = 0
    fired_count: int = 0
    # Due time before which all messages have been examined.
    due_at_ms: int = 0

    async def step(self, wanted: pb.PendingFilter, dry_run: bool) -> None:
        request = pb.ListPendingRequest(
            filter=wanted, max_count=PENDING_COUNT_MAX, page_token=self.token, names_only=True
        )
        page: pb.ListPendingResponse = await self.shard.store.ask("ListPending", request)
        # Skip messages to system topics: retries have fired, and others are not users'.
        found = [one for one in page.messages if not is_system_topic(one.message.topic)]
        self.seen_count += page.seen_count
        self.matched_count += len(found)
        if found and not dry_run:
            refs = [
                pb.PendingRef(
                    message_id=one.message.id,
                    topic=one.message.topic,
                    shard=self.shard.number,
                    lane=one.lane,
                    entry=one.message.offset,
                )
                for one in found
            ]
            answer: pb.CancelResponse = await self.shard.store.ask("Cancel", pb.CancelRequest(messages=refs))
            self._count(answer.results)
        last_due_at_ms = page.messages[-1].message.due_at_ms if page.messages else 0
        self.due_at_ms = max(self.due_at_ms, page.due_at_ms, last_due_at_ms)
        self.turn(page.next_page_token)

    def _count(self, results: Sequence[pb.CancelResult]) -> None:
        """Counts results. Raises: DueTimeError: the shard does not have one of the messages."""
        for result in results:
            self.cancelled_count += result.status == pb.CANCEL_STATUS_CANCELLED
            self.fired_count += result.status == pb.CANCEL_STATUS_ALREADY_FIRED
        for result in results:
            if result.HasField("fault"):
                raise refused(result.fault)


class MatchCanceller:
    """The running calls of CancelMatching."""

    def __init__(self, holders: Holders, clock: Clock) -> None:
        self._holders = holders
        self._jobs = ShardJobs(clock, "calls of CancelMatching are running", reason="CANCELS_EXHAUSTED")
        self.end = self._jobs.end

    async def cancel(
        self, wanted: pb.PendingFilter, caller: str, *, dry_run: bool
    ) -> AsyncGenerator[pb.CancelProgress, None]:
        """Yields the progress, about once a second and at the end.

        Raises:
            DueTimeError: bad fields, no such topic, too many such calls; or a shard's error, once the others are done.
                Earlier progress has counted all cancelled messages.
        """
        check_cancel_matching(wanted)
        parts = [CancelPart(shard) for shard in await self._holders.of_topic(wanted.topic)]
        work = self._jobs.run(caller, parts, lambda part: part.step(wanted, dry_run), _progress)
        async with aclosing(work) as told:
            async for one in told:
                yield one


def _progress(parts: Sequence[CancelPart]) -> pb.CancelProgress:
    left = [part.due_at_ms for part in parts if not part.done]
    return pb.CancelProgress(
        seen_count=sum(part.seen_count for part in parts),
        matched_count=sum(part.matched_count for part in parts),
        cancelled_count=sum(part.cancelled_count for part in parts),
        fired_count=sum(part.fired_count for part in parts),
        due_at_ms=min(left, default=max((part.due_at_ms for part in parts), default=0)),
        done=not left,
    )
