"""Dead letters newest first: the queues of %DLQ%group, each read backward, merged by time."""

import asyncio
import heapq
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from duetime_retry.letters import LetterCriteria, ShardQueue, StoredDeadLetter

# Above every offset.
END = 10**18 - 1

# pull(place, offset, before, max_bytes): letters of a queue from `offset` to before `before`, oldest first, and the
# `before` of the next pull, which is at most `offset` after the last.
Pull = Callable[[ShardQueue, int, int, int], Awaitable[tuple[Sequence[StoredDeadLetter], int]]]
# bound(place, time in Unix ms): the first offset of a queue at that time.
Bound = Callable[[ShardQueue, int], Awaitable[int]]


@dataclass
class _Tail:
    """The unread part of a queue, down to the offset `first`."""

    place: ShardQueue
    # The next pull ends before it.
    before: int
    first: int = 0
    # Pulled ones, oldest first.
    letters: list[StoredDeadLetter] = field(default_factory=list)


class NewestFirst:
    """One walk over a group's dead letters. `take` drops the letter that `newest` shows."""

    def __init__(self, pull: Pull, bound: Bound, criteria: LetterCriteria, bytes_max: int) -> None:
        """`bytes_max`: of all queues' pulled letters, except that each queue has one of any size."""
        self._pull = pull
        self._bound = bound
        self._criteria = criteria
        self._bytes_max = bytes_max
        self._tails: list[_Tail] = []
        self._heap: list[tuple[int, int]] = []

    async def start(self, places: Sequence[ShardQueue], cursors: Mapping[int, int] | None) -> None:
        """Starts at the end, or at `cursors` of an earlier walk. Raises: DueTimeError: a shard does not answer."""
        places = [place for place in places if cursors is None or place.queue in cursors]
        self._tails = [_Tail(place, cursors[place.queue] if cursors else END) for place in places]
        await asyncio.gather(*(self._open(tail, is_new=cursors is None) for tail in self._tails))
        self._heap = [(_order(tail), index) for index, tail in enumerate(self._tails) if tail.letters]
        heapq.heapify(self._heap)

    @property
    def newest(self) -> StoredDeadLetter | None:
        """The newest letter that was not taken, whether it fits the filter or not; None: none is left."""
        return self._tails[self._heap[0][1]].letters[-1] if self._heap else None

    async def take(self) -> None:
        index = heapq.heappop(self._heap)[1]
        tail = self._tails[index]
        tail.letters.pop()
        if not tail.letters:
            await self._fill(tail)
        if tail.letters:
            heapq.heappush(self._heap, (_order(tail), index))

    @property
    def cursors(self) -> Mapping[int, int]:
        """The end of the unread part of each queue that has one."""
        return {tail.place.queue: tail.letters[-1].offset + 1 for tail in self._tails if tail.letters}

    async def _open(self, tail: _Tail, *, is_new: bool) -> None:
        if self._criteria.from_ms > 0:
            tail.first = await self._bound(tail.place, self._criteria.from_ms)
        if is_new and self._criteria.to_ms > 0:
            tail.before = await self._bound(tail.place, self._criteria.to_ms + 1)
        await self._fill(tail)

    async def _fill(self, tail: _Tail) -> None:
        bytes_max = max(self._bytes_max // len(self._tails), 1)
        while not tail.letters and tail.before > tail.first:
            letters, tail.before = await self._pull(tail.place, tail.first, tail.before, bytes_max)
            tail.letters = list(letters)


def _order(tail: _Tail) -> int:
    return -tail.letters[-1].record.stored_at_ms
