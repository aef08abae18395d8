"""Lists transactions shard by shard, and finds single ones."""

import asyncio
from zlib import crc32

from duetime.v1 import store_pb2
from duetime.v1 import transactions_pb2 as pb
from duetime_core.errors import Ambiguous, DueTimeError, NotFound
from duetime_format import limits

from duetime_gateway.deadlines import shared_timeout_of, timeout_of
from duetime_gateway.routing.places import QueueLocator
from duetime_gateway.shards.shard import Shard
from duetime_gateway.shards.shards import Shards
from duetime_gateway.transactions.admission import check_get, check_list
from duetime_gateway.transactions.ending import transaction_not_found
from duetime_gateway.transactions.names import TransactionName, parse, text_of
from duetime_gateway.transactions.tokens import TransactionCursor, decode, encode

# Most requests for one page: matches of a filter may be far apart. Then the page is short, and its token continues it.
ROUNDS_MAX = 64


class TransactionList:
    """Returns pages that name missing shards; and single transactions with the record of the half message."""

    def __init__(self, shards: Shards, places: QueueLocator, *, timeout_ms: int) -> None:
        self._shards = shards
        self._places = places
        self._timeout_ms = timeout_ms

    async def page(
        self, request: pb.ListTransactionsRequest, remaining_ms: float | None
    ) -> pb.ListTransactionsResponse:
        """The first transactions after the token, shard after shard; shards that do not answer are listed.

        Raises:
            DueTimeError: bad fields, or an error of a shard that answers.
        """
        check_list(request)
        asked = pb.ListTransactionsRequest()
        asked.CopyFrom(request)
        asked.ClearField("page_size")
        asked.ClearField("page_token")
        digest = crc32(asked.SerializeToString(deterministic=True))
        numbers = self._shards.numbers
        place: TransactionCursor | None = TransactionCursor(numbers[0])
        if request.page_token:
            place = decode(request.page_token, digest, numbers)
        page = pb.ListTransactionsResponse()
        most = request.page_size or limits.TRANSACTIONS_PAGE_DEFAULT
        timeout_ms = shared_timeout_of(self._timeout_ms, remaining_ms)
        now = asyncio.get_running_loop().time
        began = now()
        for _ in range(ROUNDS_MAX):
            left = most - len(page.transactions)
            # A shard that hangs costs this page its time: the next page is asked of the shards after it.
            left_ms = timeout_ms - (now() - began) * 1000.0
            if place is None or not left or left_ms <= 0:
                break
            asked.page_size, asked.page_token = left, place.token
            answer = await self._part(place.shard, asked, left_ms)
            if answer is None:
                page.unreachable_shards.append(place.shard)
                place = self._next(place, "")
                continue
            for one in answer.halves:
                page.transactions.append(await self._public(place.shard, one))
            place = self._next(place, answer.next_page_token)
        page.next_page_token = "" if place is None else encode(digest, place)
        return page

    async def _part(
        self, shard: int, asked: pb.ListTransactionsRequest, timeout_ms: float
    ) -> store_pb2.ListHalvesResponse | None:
        """The shard's part; None: it does not answer."""
        try:
            answer: store_pb2.ListHalvesResponse = await self._shards.get(shard).store.ask(
                "ListTransactions", asked, timeout_ms
            )
        except DueTimeError as error:
            if not error.retriable:
                raise
            return None
        return answer

    def _next(self, place: TransactionCursor, token: str) -> TransactionCursor | None:
        if token:
            return TransactionCursor(place.shard, token)
        return next((TransactionCursor(number) for number in self._shards.numbers if number > place.shard), None)

    async def _public(self, shard: int, found: store_pb2.HalfTransaction) -> pb.Transaction:
        """The public form: with the transaction's id and the topic's queue number."""
        one = found.transaction
        one.transaction_id = text_of(TransactionName(shard, found.half.offset, found.half.position, one.message_id))
        one.shard = shard
        route = await self._places.renumbered(one.topic)
        if route is not None:
            one.queue = route.queue_at(shard, one.queue)
        return one

    async def get(self, text: str, topic: str, remaining_ms: float | None) -> store_pb2.GetHalfResponse:
        """One transaction, by its id or the id of its message, with public numbers. `topic`: its destination; empty:
        any.

        Raises:
            NotFound: there is none.
            Ambiguous: a message's id without a topic, and transactions of several topics have it.
            DueTimeError: a bad id or topic, or a shard that may have it does not answer.
        """
        check_get(text, topic)
        timeout_ms = timeout_of(self._timeout_ms, remaining_ms)
        name = parse(text)
        found = None
        if name is not None and name.shard in self._shards.numbers:
            found = await self._by_name(name, timeout_ms)
        shard, answer = found or await self._by_message(text, topic, timeout_ms)
        if topic and answer.half.transaction.topic not in ("", topic):
            raise transaction_not_found(f"{text} is the id of one for another topic than {topic}")
        transaction = await self._public(shard, answer.half)
        if answer.HasField("sent"):
            answer.sent.shard, answer.sent.queue = shard, transaction.queue
        return answer

    async def _by_name(self, name: TransactionName, timeout_ms: float) -> tuple[int, store_pb2.GetHalfResponse] | None:
        half = store_pb2.Half(offset=name.offset, position=name.position)
        found = await _ask(self._shards.get(name.shard), store_pb2.GetHalfRequest(half=half), timeout_ms)
        if isinstance(found, NotFound) or (
            not isinstance(found, DueTimeError) and found.half.transaction.message_id != name.message_id
        ):
            return None
        if isinstance(found, DueTimeError):
            raise found
        return name.shard, found

    async def _by_message(
        self, message_id: str, topic: str, timeout_ms: float
    ) -> tuple[int, store_pb2.GetHalfResponse]:
        """The latest transaction with this message id and topic."""
        request = store_pb2.GetHalfRequest(message_id=message_id, topic=topic)
        shards = await self._places.shards_of(topic)
        answers = await asyncio.gather(*(_ask(shard, request, timeout_ms) for shard in shards))
        found = [
            (shard.number, answer)
            for shard, answer in zip(shards, answers, strict=True)
            if not isinstance(answer, DueTimeError)
        ]
        for answer in answers:
            if isinstance(answer, DueTimeError) and answer.reason == Ambiguous.reason:
                raise answer
        topics = {answer.half.transaction.topic for _, answer in found} - {""}
        if not topic and len(topics) > 1:
            raise Ambiguous(message_id, sorted(topics))
        if found:
            return max(found, key=lambda one: one[1].half.transaction.prepared_at_ms)
        for answer in answers:
            if isinstance(answer, DueTimeError) and not isinstance(answer, NotFound):
                raise answer
        raise transaction_not_found(f"{message_id} is neither a transaction's id nor a message's")


async def _ask(
    shard: Shard, request: store_pb2.GetHalfRequest, timeout_ms: float
) -> store_pb2.GetHalfResponse | DueTimeError:
    """Returns the shard's answer, or NotFound."""
    try:
        answer: store_pb2.GetHalfResponse = await shard.store.ask("GetTransaction", request, timeout_ms)
    except DueTimeError as error:
        if error.reason == "TRANSACTION_NOT_FOUND":
            return transaction_not_found(error.text)
        return error
    return answer
