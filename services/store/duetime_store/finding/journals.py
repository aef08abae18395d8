"""Reads records of a journal (DT_GROUPS, DT_CANCELLED, DT_CHECKS) about given places, oldest first.

    journal   | gone | written without index words: all read, in order | with words: by the index (subjects.py) |
                     ^ first record that may matter                    ^ since

Without an index all are read. Both ways are bounded; unread parts are gaps of the answer.
"""

from collections.abc import AsyncGenerator, Collection
from contextlib import aclosing
from dataclasses import dataclass, field

import numpy as np
from duetime_core.errors import Unavailable
from duetime_format import record, subjects
from duetime_format.keys import hash_codes, key_hashes
from duetime_format.record import Record

from duetime_store.finding.finder import MessageFinder, SearchView
from duetime_store.log.commitlog import CommitLog
from duetime_store.queues.consumequeue import ConsumeQueue
from duetime_store.queues.queues import Queues
from duetime_store.reading.offsets import first_stored_at
from duetime_store.reading.reader import Reader
from duetime_store.reading.turns import YieldingScan
from duetime_store.writing.indexed import IndexedJournals

# Maximum bytes read in order, and maximum records read by the index, for one answer.
BYTES_MAX = 64 * 1024 * 1024
RECORDS_MAX = 16_384
STEP_RECORDS = 16
_STEP_BYTES = 32 * 1024
_TIME_MAX = (1 << 63) - 1

Place = tuple[str, int, int]  # topic, queue on the shard, offset


@dataclass(frozen=True, slots=True)
class Journals:
    """The journals of a shard in the view of one trace."""

    queues: Queues
    log: CommitLog
    indexed: IndexedJournals
    reader: Reader
    finder: MessageFinder
    walk: YieldingScan
    # See `view_of`.
    view: SearchView | None

    def reading(self, topic: str) -> "JournalReading":
        return JournalReading(self, topic)


async def view_of(finder: MessageFinder) -> SearchView | None:
    """None: there is no index, or too much of the log is not indexed yet; journals are then read in order."""
    try:
        return await finder.view() if finder.has_index else None
    except Unavailable:
        return None


@dataclass(slots=True)
class JournalReading:
    """One reading of a journal, and the missing parts of it."""

    _journals: Journals
    _topic: str
    # Retention has deleted records that may have mattered.
    is_front_gone: bool = False
    damaged: int = 0
    # Clauses for users, which begin with a verb.
    gaps: list[str] = field(default_factory=list)

    async def records(self, places: Collection[Place], since_ms: int) -> AsyncGenerator[Record, None]:
        """The records about any of the places, and maybe others, stored at `since_ms` or later."""
        journals = self._journals
        queue = journals.queues.known(self._topic.encode(), 0)
        if queue is None or not queue.max_offset:
            return
        end = queue.max_offset
        indexed = min(journals.indexed.since(self._topic), end) if journals.view is not None else end
        first = await first_stored_at(journals.walk, journals.log, queue, since_ms)
        self.is_front_gone = 0 < first == queue.min_offset
        async with aclosing(self._in_order(queue, first, indexed, since_ms)) as found:
            async for one in found:
                yield one
        if self._journals.view is not None and max(first, indexed) < end:
            async with aclosing(self._by_index(self._journals.view, places, since_ms, indexed)) as found:
                async for one in found:
                    yield one

    async def _in_order(self, queue: ConsumeQueue, offset: int, end: int, read_ms: int) -> AsyncGenerator[Record, None]:
        left = BYTES_MAX
        while offset < end and left > 0:
            units = queue.read(offset, min(STEP_RECORDS, end - offset))
            units = units[: max(int(np.searchsorted(units["size"].cumsum(), _STEP_BYTES)), 1)]
            records, sizes, _, _ = self._journals.reader.read(queue, np.arange(offset, offset + len(units)), units)
            self.damaged += sizes.count(0)
            at = 0
            for size in filter(None, sizes):
                found = record.decode(records, at, check_crc=False)
                at, read_ms = at + size, found.stored_at_ms
                yield found
            offset, left = offset + len(units), left - len(records)
            await self._journals.walk.turn_if_over()
        if offset < end:
            self._cut(read_ms, end - offset)

    def _cut(self, read_ms: int, left_out: int) -> None:
        self.gaps.append(
            f"were read until {read_ms} (Unix ms), {BYTES_MAX} bytes; {left_out} records after that are left out"
        )

    async def _by_index(
        self, view: SearchView, places: Collection[Place], since_ms: int, first: int
    ) -> AsyncGenerator[Record, None]:
        finder, left, read_ms = self._journals.finder, BYTES_MAX, since_ms
        positions = await self._positions(view, places, since_ms)
        for number, position in enumerate(positions):
            if left <= 0:
                self._cut(read_ms, len(positions) - number)
                break
            seen = finder.read(position)
            await self._journals.walk.turn_if_over()
            if seen is None:
                self.damaged += position >= self._journals.log.min_position
            elif seen.record.topic == self._topic and seen.record.queue_offset >= first:
                left, read_ms = left - seen.record.size, seen.record.stored_at_ms
                yield seen.record

    async def _positions(self, view: SearchView, places: Collection[Place], since_ms: int) -> list[int]:
        """Positions of records that may be about the places, ascending."""
        found: list[int] = []
        words = [f"{self._topic}#{word}" for place in places for word in subjects.words_at(*place)]
        hashes = key_hashes(hash_codes(words)).tolist()
        finder = self._journals.finder
        async with aclosing(finder.positions(self._journals.walk, view, hashes, since_ms, _TIME_MAX)) as positions:
            async for position in positions:
                if len(found) == RECORDS_MAX:
                    self.gaps.append(f"have more than {RECORDS_MAX} records; the oldest are left out")
                    break
                found.append(position)
        return sorted(found)
