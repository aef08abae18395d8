"""Lists the pending messages of all shards in order of due time.

Each shard returns a page. Pages are merged up to the end of the earliest one, since later messages of its shard are
unknown. The rest of a page is requested again, without messages cancelled meanwhile.
"""

import asyncio
import math
from collections.abc import Mapping, Sequence
from zlib import crc32

from duetime.v1 import pending_pb2 as pb
from duetime_format import limits

from duetime_gateway.deadlines import timeout_of
from duetime_gateway.pending.admission import check_list
from duetime_gateway.pending.asking import Holders
from duetime_gateway.pending.tokens import PendingPosition, ShardCursor, decode, encode
from duetime_gateway.routing.places import QueueLocator
from duetime_gateway.shards.shard import Shard

# Requests for one page: matches of a filter may be far apart.
ROUNDS_MAX = 4
# Time after which a search by key sends no more requests: few messages match, so the page is short rather than late.
PAGE_S = 0.04


class PendingLister:
    """Returns complete pages or an error, never silently less."""

    def __init__(self, holders: Holders, places: QueueLocator, *, timeout_ms: int) -> None:
        self._holders = holders
        self._places = places
        self._timeout_ms = timeout_ms

    async def page(self, request: pb.ListPendingRequest, remaining_ms: float | None) -> pb.ListPendingResponse:
        """The first messages after the token.

        Raises:
            DueTimeError: bad fields, no such topic, or an error of a shard.
        """
        check_list(request)
        return await self.merged(await self._holders.of_topic(request.filter.topic), request, remaining_ms)

    async def merged(
        self, of: Sequence[Shard], request: pb.ListPendingRequest, remaining_ms: float | None
    ) -> pb.ListPendingResponse:
        """A page of these shards. Raises: DueTimeError: an invalid token, or an error of a shard."""
        shards = {shard.number: shard for shard in of}
        digest = crc32(request.filter.SerializeToString(deterministic=True))
        if request.page_token:
            cursors = decode(request.page_token, digest, shards.keys())
        else:
            cursors = dict.fromkeys(shards, ShardCursor())
        timeout_ms = timeout_of(self._timeout_ms, remaining_ms)
        page, count_max, bytes_left = pb.ListPendingResponse(), request.max_count, limits.PULL_BYTES_MAX
        count_max = count_max or limits.PENDING_COUNT_DEFAULT
        now = asyncio.get_running_loop().time
        began = now()
        for _ in range(ROUNDS_MAX):
            count = count_max - len(page.messages)
            answers = await asyncio.gather(
                *(_ask(shards[number], request, cursor, count_max, timeout_ms) for number, cursor in cursors.items())
            )
            part, cursors = merge(dict(zip(cursors, answers, strict=True)), cursors, count, bytes_left)
            page.MergeFrom(part)
            bytes_left -= part.ByteSize()
            is_full = len(page.messages) == count_max or bytes_left < limits.PULL_BYTES_MAX // 2
            if not cursors or is_full or (request.filter.key and now() - began >= PAGE_S):
                break
        page.next_page_token = encode(digest, cursors)
        await self._renumber(page.messages)
        return page

    async def _renumber(self, messages: Sequence[pb.PendingMessage]) -> None:
        """Replaces the shards' queue numbers in messages by the topic's."""
        known: dict[tuple[str, int, int], int] = {}
        for one in messages:
            place = one.message.topic, one.shard, one.message.queue
            if place not in known:
                known[place] = await self._places.public_queue(*place)
            one.message.queue = known[place]


async def _ask(
    shard: Shard, request: pb.ListPendingRequest, cursor: ShardCursor, count: int, timeout_ms: float
) -> pb.ListPendingResponse:
    part = pb.ListPendingRequest(
        filter=request.filter,
        max_count=count,
        page_token=cursor.token,
        omit_bodies=request.omit_bodies,
        schedules_only=request.schedules_only,
    )
    answer: pb.ListPendingResponse = await shard.store.ask("ListPending", part, timeout_ms)
    return answer


def merge(
    answers: Mapping[int, pb.ListPendingResponse],
    cursors: Mapping[int, ShardCursor],
    count_max: int,
    bytes_max: int = limits.PULL_BYTES_MAX,
) -> tuple[pb.ListPendingResponse, dict[int, ShardCursor]]:
    """The next messages of all shards, at least one, and the cursor of each shard with more."""
    fresh = {number: _after(answer.messages, cursors[number].after) for number, answer in answers.items()}
    until_ms = min((_looked_until_ms(answer) for answer in answers.values()), default=math.inf)
    # Sort by due time, then by shard: messages of one shard keep its order.
    merged = sorted(
        (one.message.due_at_ms, number, at) for number, found in fresh.items() for at, one in enumerate(found)
    )
    response = pb.ListPendingResponse(seen_count=sum(answer.seen_count for answer in answers.values()))
    taken = dict.fromkeys(answers, 0)
    size = 0
    for due_at_ms, number, at in merged[:count_max]:
        one = fresh[number][at]
        size += one.ByteSize()
        if due_at_ms > until_ms or (response.messages and size > bytes_max):
            break
        one.shard = number
        response.messages.append(one)
        taken[number] += 1
    left: dict[int, ShardCursor] = {}
    for number, answer in answers.items():
        found, count = fresh[number], taken[number]
        if count < len(found):
            after = _place_of(found[count - 1]) if count else cursors[number].after
            left[number] = ShardCursor(cursors[number].token, after)
        elif answer.next_page_token:
            # A shorter page that ends before the place has nothing new.
            left[number] = ShardCursor(answer.next_page_token, None if found else cursors[number].after)
    return response, left


def _after(messages: Sequence[pb.PendingMessage], place: PendingPosition | None) -> Sequence[pb.PendingMessage]:
    return messages if place is None else [one for one in messages if _place_of(one) > place]


def _looked_until_ms(answer: pb.ListPendingResponse) -> float:
    """The due time up to which all messages of the shard have been listed."""
    if not answer.next_page_token:
        return math.inf
    return max(answer.due_at_ms, answer.messages[-1].message.due_at_ms if answer.messages else 0)


def _place_of(one: pb.PendingMessage) -> PendingPosition:
    return PendingPosition(one.message.due_at_ms, one.lane, one.message.offset)
