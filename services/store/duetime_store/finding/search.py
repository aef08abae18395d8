"""Finds the records of many pending messages at once, by a word each: an id, or a key of messages that replace.

    the log's tail, read once for all words ──▶ each word's chains in the index ──▶ records published meanwhile

The last piece of the log is read without a turn between it and the answer, so a caller that decides at once has seen
every published record.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import aclosing

import numpy as np
from duetime_format.keys import Rows, key_hash

from duetime_store.finding.finder import FoundRecord, MessageFinder, SearchView, hashes_in_topics
from duetime_store.finding.indexer import keys_between
from duetime_store.reading.turns import YieldingScan
from duetime_store.writing.store import Store

# Bytes of the log read in one piece of a step, and without turns at the end.
_STEP_BYTES = 64 * 1024
_LAST_BYTES = 256 * 1024
# Steps to catch up with a log that grows as fast, before the rest is read at once.
_ROUNDS_MAX = 64
# Hashes that one reading of the tail looks for.
_HASHES_MAX = 65_536


class SearchedWord(ABC):
    """A word to find, and its records found so far."""

    def __init__(self, word: str, lane_topics: Sequence[str], also: bytes = b"") -> None:
        """`lane_topics`: the topics of pending records with the word. `also`: bytes that each wanted record has."""
        self.word, self.also = word, also
        self.hashes = [key_hash(topic, word) for topic in lane_topics]

    @abstractmethod
    def take(self, seen: FoundRecord) -> None:
        """Takes a record with the word, if it is wanted; records may be repeated, and in any order."""

    @property
    @abstractmethod
    def is_done(self) -> bool:
        """Whether no older record in lanes matters."""

    @property
    def other_topics(self) -> Sequence[str] | None:
        """Topics to search if no lane has it; empty: all topics; None: none."""
        return None


class LogSearch:
    """Serves cancels, reschedules and replacing sends."""

    def __init__(self, store: Store, finder: MessageFinder) -> None:
        self._store = store
        self._log = store.log
        self._queues = store.queues
        self._finder = finder

    async def find(self, walk: YieldingScan, wanted: Sequence[SearchedWord], enough_s: float = math.inf) -> int:
        """Finds records for the first ones, as many as it gets to in `enough_s`, or in the time that the tail took; one
        at least. Returns their number. They have then seen all published records, until the caller awaits something.

        Raises:
            Unavailable: too much of the log is not indexed yet.
            Unsupported: this shard builds no index.
            InvalidArgument: an id without a topic is sought in too many.
        """
        view, began_s = await self._finder.view(), walk.lasted_s
        by_hash = _by_hash((one, one.hashes) for one in wanted)
        end = await self._read_tail(walk, view.indexer.position, view.end, by_hash)
        tail_s = walk.lasted_s
        over_s = tail_s + max(enough_s, tail_s - began_s)
        count = 0
        for one in wanted:
            await self._follow(walk, view, one, one.hashes)
            await walk.turn_if_over()
            count += 1
            if walk.lasted_s >= over_s:
                break
        await self._look_in_topics(walk, view, [one for one in wanted[:count] if one.other_topics is not None])
        for _ in range(_ROUNDS_MAX):
            if self._log.published_end - end <= _LAST_BYTES:
                break
            end = await self._read_tail(walk, end, self._log.published_end, by_hash)
        for rows in keys_between(self._store, end, self._log.published_end, _STEP_BYTES):
            self._take_hits(rows, by_hash)
        return count

    async def _look_in_topics(self, walk: YieldingScan, view: SearchView, wanted: Sequence[SearchedWord]) -> None:
        """Searches for words that no lane has: a few at a time, since each may be in any topic."""
        part: list[tuple[SearchedWord, Sequence[int]]] = []
        for number, one in enumerate(wanted, 1):
            topics = one.other_topics or list(self._queues.counts)
            part.append((one, await hashes_in_topics(walk, topics, one.word)))
            if number < len(wanted) and sum(len(hashes) for _, hashes in part) < _HASHES_MAX:
                continue
            await self._read_tail(walk, view.indexer.position, view.end, _by_hash(part))
            for each, hashes in part:
                if each.other_topics is not None:
                    await self._follow(walk, view, each, hashes)
            part.clear()

    async def _follow(self, walk: YieldingScan, view: SearchView, one: SearchedWord, hashes: Sequence[int]) -> None:
        """Follows the chains of the hashes, newest first, as far as it matters."""
        if one.is_done:
            return
        async with aclosing(self._finder.positions_in_files(walk, view, hashes)) as positions:
            async for position in positions:
                seen = self._finder.read(position, one.word, one.also)
                if seen is not None:
                    one.take(seen)
                    if one.is_done:
                        return

    async def _read_tail(
        self, walk: YieldingScan, start: int, end: int, by_hash: Mapping[int, Sequence[SearchedWord]]
    ) -> int:
        """Reads the log from `start` to `end`, in turns. Returns `end`."""
        for rows in keys_between(self._store, start, end, _STEP_BYTES):
            self._take_hits(rows, by_hash)
            await walk.turn_if_over()
        return end

    def _take_hits(self, rows: Rows, by_hash: Mapping[int, Sequence[SearchedWord]]) -> None:
        hits = rows[np.isin(rows["hash"], np.fromiter(by_hash, np.int64, len(by_hash)))]
        for value, position, _ in hits.tolist():
            for one in by_hash[value]:
                seen = self._finder.read(position, one.word, one.also)
                if seen is not None:
                    one.take(seen)


def _by_hash(wanted: Iterable[tuple[SearchedWord, Sequence[int]]]) -> dict[int, list[SearchedWord]]:
    found: dict[int, list[SearchedWord]] = {}
    for one, hashes in wanted:
        for value in hashes:
            found.setdefault(value, []).append(one)
    return found
