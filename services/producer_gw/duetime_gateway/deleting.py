"""DeleteTopic: what is left of a topic is counted and ended, then all shards delete it, then the database.

    counted ──▶ closed on all shards, counted again ──▶ marked in the database ──▶ what is left ends
            ──▶ deleted on all shards ──▶ gone from the database

Until it is marked, nothing has changed: shards that were closed open by themselves. From then on nobody finds the
topic, and whoever calls again goes on from there. Shards tell it from one of its name that is made later by its
generation.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

import structlog
from duetime.v1 import consumer_pb2, gateway_pb2, pending_pb2, store_pb2, transactions_pb2
from duetime_core.errors import DueTimeError, FailedPrecondition, InvalidArgument, Unsupported, Violation
from duetime_core.metadata import Stored
from duetime_format import record
from duetime_format.admission import topic_violations
from duetime_format.limits import PENDING_COUNT_MAX, TRANSACTIONS_PAGE_MAX
from duetime_format.names import is_system_topic, retry_topic

from duetime_gateway.answers import raise_first
from duetime_gateway.pending.matching import CancelPart
from duetime_gateway.quotas.keeper import Keeper
from duetime_gateway.quotas.limits import Of
from duetime_gateway.routing.catalog import TopicCatalog, topic_not_found
from duetime_gateway.routing.topics import Topics
from duetime_gateway.rules import refuse
from duetime_gateway.shards.retry import RetryClient
from duetime_gateway.shards.shard import Shard
from duetime_gateway.shards.shards import Shards

log = structlog.get_logger()

LOOK, CLOSE, OPEN, DELETE = (
    store_pb2.DELETION_STAGE_UNSPECIFIED,
    store_pb2.DELETION_STAGE_CLOSE,
    store_pb2.DELETION_STAGE_OPEN,
    store_pb2.DELETION_STAGE_DELETE,
)
# What is left ends, and a shard has something again: no more often.
ROUNDS_MAX = 4
_LETTERS_MAX = 1_024
# Calls to retry services count for this caller.
DELETIONS = "deletions of topics"
_ROLLBACK = transactions_pb2.DECISION_ROLLBACK
_RETRY_TOPIC = record.RETRY_TOPIC


@dataclass(slots=True)
class _Left:
    """What is left of a topic on all shards."""

    pending: int = 0
    transactions: int = 0
    groups: dict[str, gateway_pb2.TopicGroup] = field(default_factory=dict)
    # The highest generation of which a shard has deleted a topic of this name; -1: none has.
    deleted_generation: int = -1

    @classmethod
    def of(cls, answers: Sequence[store_pb2.DeleteStoredTopicResponse]) -> "_Left":
        """By what the shards answer. A group that a shard does not know yet has all to read there."""
        names = sorted({own.group for answer in answers for own in answer.groups})
        left = cls(groups={name: gateway_pb2.TopicGroup(group=name) for name in names})
        for answer in answers:
            left.pending += answer.pending_count
            left.deleted_generation = max(left.deleted_generation, answer.deleted_generation)
            here = {own.group: own for own in answer.groups}
            for name, known in left.groups.items():
                own = here.get(name, gateway_pb2.TopicGroup(unread_count=answer.message_count))
                known.unread_count += own.unread_count
                known.in_flight_count += own.in_flight_count
                known.retry_count += own.retry_count
        return left

    def response(self) -> gateway_pb2.DeleteTopicResponse:
        groups = [one for _, one in sorted(self.groups.items()) if any(_counts(one))]
        return gateway_pb2.DeleteTopicResponse(
            pending_count=self.pending, transaction_count=self.transactions, groups=groups
        )


def _counts(one: gateway_pb2.TopicGroup) -> tuple[int, ...]:
    return one.unread_count, one.in_flight_count, one.retry_count, one.dead_letter_count


class TopicDeletion:
    """Deletes topics, one at a time."""

    def __init__(
        self, topics: Topics, catalog: TopicCatalog, shards: Shards, retry: RetryClient, quotas: Keeper
    ) -> None:
        self._topics = topics
        self._catalog = catalog
        self._shards = shards
        self._retry = retry
        self._quotas = quotas
        self._lock = asyncio.Lock()

    async def delete(self, request: gateway_pb2.DeleteTopicRequest) -> gateway_pb2.DeleteTopicResponse:
        """What ended with the topic, or with `dry_run` would.

        Raises:
            InvalidArgument: a bad name, or a system topic's.
            NotFound: there is no such topic.
            FailedPrecondition: it is not empty.
            DueTimeError: a shard, the retry service or the database does not answer: called again, it goes on.
        """
        name = request.name
        _check(name)
        async with self._lock:
            stored = (await self._catalog.find([name])).get(name)
            if stored is None:
                raise topic_not_found(name)
            left = await self._count(name, stored, LOOK)
            if request.dry_run:
                return left.response()
            if not stored.is_deleting:
                left = await self._begin(name, stored, left, force=request.force)
            self._topics.drop(name, stored.generation)
            generation = await self._delete(name, stored, left)
            await self._catalog.end_deletion(name, generation)
            await self._quotas.remove(Of("topic", name))
            log.info("topic deleted", topic=name, generation=generation, pending=left.pending)
            return left.response()

    async def _begin(self, name: str, stored: Stored, left: _Left, *, force: bool) -> _Left:
        """Marks it in the database, once it is empty or that does not matter. Returns what is left then."""
        if not force:
            _check_empty(name, left)
        try:
            left = await self._count(name, stored, CLOSE)
            if not force:
                _check_empty(name, left)
            await self._catalog.begin_deletion(name)
        except DueTimeError:
            await self._open(name)
            raise
        return left

    async def _open(self, name: str) -> None:
        """On the shards that answer; on others it opens by itself."""
        request = store_pb2.DeleteStoredTopicRequest(name=name, stage=OPEN)
        asked = (shard.store.ask("DeleteTopic", request) for shard in self._shards.all())
        for answer in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(answer, BaseException) and not isinstance(answer, DueTimeError):
                raise answer

    async def _delete(self, name: str, stored: Stored, left: _Left) -> int:
        """Returns the generation that shards have deleted."""
        generation = stored.generation
        if left.deleted_generation > generation:
            # The database is one of earlier days.
            generation = left.deleted_generation + 1
        for _ in range(ROUNDS_MAX):
            await self._end_what_is_left(name, await self._count(name, stored, CLOSE))
            try:
                await self._stage(name, generation, DELETE)
                return generation
            except FailedPrecondition as error:
                # A shard that was started anew meanwhile has taken messages.
                refused = error
        raise refused

    # --- counting ---------------------------------------------------------------------------------------------------

    async def _stage(
        self, name: str, generation: int, stage: "store_pb2.DeletionStage"
    ) -> list[store_pb2.DeleteStoredTopicResponse]:
        request = store_pb2.DeleteStoredTopicRequest(name=name, generation=generation, stage=stage)
        asked = (shard.store.ask("DeleteTopic", request) for shard in self._shards.all())
        return raise_first(await asyncio.gather(*asked, return_exceptions=True))

    async def _count(self, name: str, stored: Stored, stage: "store_pb2.DeletionStage") -> _Left:
        left = _Left.of(await self._stage(name, stored.generation, stage))
        for shard in self._shards.all():
            async for page in _transactions(shard, name):
                left.transactions += len(page)
            for group, known in left.groups.items():
                async for count in _retries(shard, group, name):
                    known.retry_count += count
        for group, known in left.groups.items():
            known.dead_letter_count = await self._dead_letters(group, name)
        return left

    async def _dead_letters(self, group: str, name: str) -> int:
        wanted = consumer_pb2.DeadLetterFilter(group=group, topic=name)
        request, count = consumer_pb2.ListDeadLettersRequest(filter=wanted, max_count=_LETTERS_MAX), 0
        while True:
            try:
                data = await self._retry.forward("ListDeadLetters", request.SerializeToString(), None, DELETIONS)
            except Unsupported:
                # Without a retry service there are none.
                return 0
            answer = consumer_pb2.ListDeadLettersResponse.FromString(data)
            count += len(answer.letters)
            if not answer.next_page:
                return count
            request.page = answer.next_page

    # --- ending -----------------------------------------------------------------------------------------------------

    async def _end_what_is_left(self, name: str, left: _Left) -> None:
        """Transactions first: one that is committed meanwhile may be pending."""
        shards = self._shards.all()
        if left.transactions:
            raise_first(await asyncio.gather(*(_roll_back(shard, name) for shard in shards), return_exceptions=True))
        if left.pending:
            raise_first(await asyncio.gather(*(_cancel(shard, name) for shard in shards), return_exceptions=True))
        for group, known in left.groups.items():
            if known.dead_letter_count:
                await self._discard(group, name)

    async def _discard(self, group: str, name: str) -> None:
        wanted = consumer_pb2.DeadLetterFilter(group=group, topic=name)
        request = consumer_pb2.DiscardRequest(filter=wanted)
        async for _ in self._retry.stream("DiscardDeadLetters", request.SerializeToString(), None, DELETIONS):
            pass


def _check(name: str) -> None:
    refuse(list(topic_violations("name", name, system=True)))
    if is_system_topic(name):
        text = f"topic {name} is DueTime's own, or a group's: it is not deleted"
        raise InvalidArgument([Violation("name", text)], reason="TOPIC_IS_SYSTEM")


def _check_empty(name: str, left: _Left) -> None:
    """Raises: FailedPrecondition: says what is left, and of whom."""
    found = [
        f"{count} {what}" for count, what in ((left.pending, "pending"), (left.transactions, "undecided")) if count
    ]
    for group, one in sorted(left.groups.items()):
        words = zip(_counts(one), ("unread", "under a lease", "in retry", "dead"), strict=True)
        own = [f"{count} {what}" for count, what in words if count]
        if own:
            found.append(f"of group {group} {', '.join(own)}")
    if found:
        text = f"topic {name} is not empty: {'; '.join(found)}. force deletes it all the same"
        raise FailedPrecondition(text, reason="TOPIC_NOT_EMPTY")


# --- one shard -------------------------------------------------------------------------------------------------------


async def _transactions(shard: Shard, name: str) -> AsyncIterator[Sequence[store_pb2.HalfTransaction]]:
    """The open and given up ones that go to the topic, some at a time."""
    request = transactions_pb2.ListTransactionsRequest(topic=name, page_size=TRANSACTIONS_PAGE_MAX)
    while True:
        answer: store_pb2.ListHalvesResponse = await shard.store.ask("ListTransactions", request)
        if answer.halves:
            yield answer.halves
        if not answer.next_page_token:
            return
        request.page_token = answer.next_page_token


async def _roll_back(shard: Shard, name: str) -> None:
    async for page in _transactions(shard, name):
        by_group: dict[str, store_pb2.EndTransactionsRequest] = {}
        for one in page:
            group = one.transaction.group
            request = by_group.setdefault(group, store_pb2.EndTransactionsRequest(group=group, given_up=True))
            request.offsets.append(one.half.offset)
            request.positions.append(one.half.position)
            request.message_ids.append(one.transaction.message_id.encode())
            request.decisions.append(_ROLLBACK)
        for request in by_group.values():
            await shard.store.ask("EndTransactions", request)


async def _cancel(shard: Shard, name: str) -> None:
    """Cancels all that is pending."""
    part, wanted = CancelPart(shard), pending_pb2.PendingFilter(topic=name)
    while not part.done:
        await part.step(wanted, dry_run=False)


async def _retries(shard: Shard, group: str, name: str) -> AsyncIterator[int]:
    """How many retries of the topic wait in lanes, page by page; the shard cancels them with the topic."""
    wanted = pending_pb2.PendingFilter(topic=retry_topic(group))
    request = pending_pb2.ListPendingRequest(filter=wanted, max_count=PENDING_COUNT_MAX, omit_bodies=True)
    while True:
        answer: pending_pb2.ListPendingResponse = await shard.store.ask("ListPending", request)
        yield sum(one.message.properties.get(_RETRY_TOPIC) == name for one in answer.messages)
        if not answer.next_page_token:
            return
        request.page_token = answer.next_page_token
