"""DeleteTopic: counts and ends the contents of a topic, then deletes it on all shards, then in the database.

    counted ──▶ closed on all shards, counted again ──▶ marked in the database ──▶ contents end
            ──▶ deleted on all shards ──▶ deleted from the database

A failure before the mark changes nothing: closed shards reopen by themselves. After the mark the topic is no longer
found, and a repeated call continues. Shards distinguish it from a later topic of the same name by its generation.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

import structlog
from duetime.v1 import consumer_pb2, gateway_pb2, pending_pb2, store_pb2, transactions_pb2
from duetime_core.errors import DueTimeError, FailedPrecondition, InvalidArgument, Unsupported, Violation, refuse
from duetime_core.metadata import DatabaseTopic
from duetime_format import record
from duetime_format.admission import topic_violations
from duetime_format.limits import PENDING_COUNT_MAX, TRANSACTIONS_PAGE_MAX
from duetime_format.names import is_system_topic, retry_topic

from duetime_gateway.answers import raise_first
from duetime_gateway.pending.matching import CancelPart
from duetime_gateway.quotas.keeper import QuotaKeeper
from duetime_gateway.quotas.limits import QuotaOwner
from duetime_gateway.routing.catalog import TopicCatalog, topic_not_found
from duetime_gateway.routing.topics import TopicRegistry
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
# Most rounds of ending contents, if a shard gets new ones each time.
ROUNDS_MAX = 4
_LETTERS_MAX = 1_024
# Calls to retry services count for this caller.
DELETIONS = "deletions of topics"
_ROLLBACK = transactions_pb2.DECISION_ROLLBACK
_RETRY_TOPIC = record.RETRY_TOPIC


@dataclass(slots=True)
class _TopicContents:
    """The contents of a topic on all shards."""

    pending: int = 0
    transactions: int = 0
    groups: dict[str, gateway_pb2.TopicGroup] = field(default_factory=dict)
    # The highest generation of a topic with this name deleted by a shard; -1: none.
    deleted_generation: int = -1

    @classmethod
    def of(cls, answers: Sequence[store_pb2.DeleteStoredTopicResponse]) -> "_TopicContents":
        """Sums up the shards' answers. If a shard does not know a group yet, all its messages are unread there."""
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
        self, topics: TopicRegistry, catalog: TopicCatalog, shards: Shards, retry: RetryClient, quotas: QuotaKeeper
    ) -> None:
        self._topics = topics
        self._catalog = catalog
        self._shards = shards
        self._retry = retry
        self._quotas = quotas
        self._lock = asyncio.Lock()

    async def delete(self, request: gateway_pb2.DeleteTopicRequest) -> gateway_pb2.DeleteTopicResponse:
        """Returns the deleted contents, or with `dry_run` those to be deleted.

        Raises:
            InvalidArgument: an invalid name, or a system topic.
            NotFound: there is no such topic.
            FailedPrecondition: it is not empty.
            DueTimeError: a shard, the retry service or the database does not answer; a repeated call continues.
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
            await self._quotas.remove(QuotaOwner("topic", name))
            log.info("topic deleted", topic=name, generation=generation, pending=left.pending)
            return left.response()

    async def _begin(self, name: str, stored: DatabaseTopic, left: _TopicContents, *, force: bool) -> _TopicContents:
        """Marks it in the database, if it is empty or `force` is set. Returns its contents then."""
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
        """Reopens the topic on reachable shards; on others it reopens by itself."""
        request = store_pb2.DeleteStoredTopicRequest(name=name, stage=OPEN)
        asked = (shard.store.ask("DeleteTopic", request) for shard in self._shards.all())
        for answer in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(answer, BaseException) and not isinstance(answer, DueTimeError):
                raise answer

    async def _delete(self, name: str, stored: DatabaseTopic, left: _TopicContents) -> int:
        """Returns the deleted generation."""
        generation = stored.generation
        if left.deleted_generation > generation:
            # The database was restored from an older state.
            generation = left.deleted_generation + 1
        for _ in range(ROUNDS_MAX):
            await self._end_what_is_left(name, await self._count(name, stored, CLOSE))
            try:
                await self._stage(name, generation, DELETE)
                return generation
            except FailedPrecondition as error:
                # A restarted shard has accepted messages.
                refused = error
        raise refused

    # --- counting ---------------------------------------------------------------------------------------------------

    async def _stage(
        self, name: str, generation: int, stage: "store_pb2.DeletionStage"
    ) -> list[store_pb2.DeleteStoredTopicResponse]:
        request = store_pb2.DeleteStoredTopicRequest(name=name, generation=generation, stage=stage)
        asked = (shard.store.ask("DeleteTopic", request) for shard in self._shards.all())
        return raise_first(await asyncio.gather(*asked, return_exceptions=True))

    async def _count(self, name: str, stored: DatabaseTopic, stage: "store_pb2.DeletionStage") -> _TopicContents:
        left = _TopicContents.of(await self._stage(name, stored.generation, stage))
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

    async def _end_what_is_left(self, name: str, left: _TopicContents) -> None:
        """Ends transactions first: one committed meanwhile may be pending."""
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
        text = f"topic {name} belongs to DueTime or to a group: it cannot be deleted"
        raise InvalidArgument([Violation("name", text)], reason="TOPIC_IS_SYSTEM")


def _check_empty(name: str, left: _TopicContents) -> None:
    """Raises: FailedPrecondition: lists the contents and their groups."""
    found = [
        f"{count} {what}" for count, what in ((left.pending, "pending"), (left.transactions, "undecided")) if count
    ]
    for group, one in sorted(left.groups.items()):
        words = zip(_counts(one), ("unread", "under a lease", "in retry", "dead"), strict=True)
        own = [f"{count} {what}" for count, what in words if count]
        if own:
            found.append(f"of group {group} {', '.join(own)}")
    if found:
        text = f"topic {name} is not empty: {'; '.join(found)}. force deletes it anyway"
        raise FailedPrecondition(text, reason="TOPIC_NOT_EMPTY")


# --- one shard -------------------------------------------------------------------------------------------------------


async def _transactions(shard: Shard, name: str) -> AsyncIterator[Sequence[store_pb2.HalfTransaction]]:
    """The open and given-up transactions for the topic, page by page."""
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
    """Cancels all pending messages."""
    part, wanted = CancelPart(shard), pending_pb2.PendingFilter(topic=name)
    while not part.done:
        await part.step(wanted, dry_run=False)


async def _retries(shard: Shard, group: str, name: str) -> AsyncIterator[int]:
    """The number of retries of the topic in lanes, page by page; the shard cancels them with the topic."""
    wanted = pending_pb2.PendingFilter(topic=retry_topic(group))
    request = pending_pb2.ListPendingRequest(filter=wanted, max_count=PENDING_COUNT_MAX, omit_bodies=True)
    while True:
        answer: pending_pb2.ListPendingResponse = await shard.store.ask("ListPending", request)
        yield sum(one.message.properties.get(_RETRY_TOPIC) == name for one in answer.messages)
        if not answer.next_page_token:
            return
        request.page_token = answer.next_page_token
