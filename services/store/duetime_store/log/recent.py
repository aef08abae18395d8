"""The window of the newest messages' ids: a second send of one of them is answered with the first one's place.

Each id has a serial number. A ring has its hash, its log position and the serial of its predecessor in its bucket; a
table has the newest serial of each bucket:

    heads   bucket ──▶ newest serial        ring   serial & mask ──▶ hash, position, serial before it in the bucket
                                                        │
                                                        └──▶ older one ──▶ … ──▶ one that is outside of the window

Expired ids are not removed: chains go from newer to older, so a walk ends at the first serial that is too old, and the
ring overwrites it. An id takes 16 bytes in the ring and 8 in the table (both rounded up to a power of two: 48 at most).
A hit is a hint: the record's own topic and id decide.

Source: the hash chains of LZ77 compressors (zlib, deflate.c).
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar, cast

import numpy as np
import numpy.typing as npt
from duetime_format.compiled import twin

Ints = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.uint32]
Value = TypeVar("Value", bound=np.generic)

# Positions tried for one id: those of copies with the same topic and id, and of ids with an equal hash.
CANDIDATES_MAX = 64
# Ids that came within this time leave the window together; until then the record's own time decides.
GRAIN_MS = 1_000
_MIX = 0x9E37_79B1
_U32 = 0xFFFF_FFFF


def look(hashes: Ints, heads: Numbers, ring: Numbers, before: Numbers, following: int, count: int) -> list[int]:
    """Indices of the hashes that are among the newest `count` of the window, or repeated in `hashes`; -1: no id.

    Args:
        following: the next serial.
    """
    found = set(_repeated(hashes).tolist())
    places = np.flatnonzero(hashes >= 0)
    mask, sought = len(ring) - 1, hashes[places].astype(np.uint32)
    serials = heads[_buckets(sought, len(heads))]
    past = np.zeros(len(places), np.uint32)
    while len(places):
        ages = np.uint32(following & _U32) - serials
        live = np.flatnonzero((ages > past) & (ages <= count))
        hit = ring[serials[live] & mask] == sought[live]
        found.update(places[live[hit]].tolist())
        left = live[~hit]
        places, sought, past = places[left], sought[left], ages[left]
        serials = before[serials[left] & mask]
    return sorted(found)


def link(
    hashes: Ints, heads: Numbers, ring: Numbers, before: Numbers, following: int, positions: Ints, places: Ints
) -> None:
    """Adds ids, at most as many as the ring holds; the first one gets the serial `following`. Their `positions` go to
    `places`, the ring's."""
    serials = (np.arange(len(hashes)) + following).astype(np.uint32)
    at, buckets = serials & (len(ring) - 1), _buckets(hashes.astype(np.uint32), len(heads))
    order = np.argsort(buckets, kind="stable")
    inner = np.flatnonzero(buckets[order[1:]] == buckets[order[:-1]]) + 1
    olders = heads[buckets]
    olders[order[inner]] = serials[order[inner - 1]]
    ring[at], before[at], places[at] = hashes.astype(np.uint32), olders, positions
    # The last assignment to a place counts: the newest.
    heads[buckets] = serials


def _buckets(hashes: Numbers, count: int) -> Numbers:
    """Buckets of hashes, out of `count`, a power of two from 2 on."""
    return cast("Numbers", (hashes * np.uint32(_MIX)) >> np.uint32(33 - count.bit_length()))


def _repeated(hashes: Ints) -> Ints:
    """Indices of hashes that equal an earlier one."""
    order = np.argsort(hashes, kind="stable")
    again: Ints = order[1:][hashes[order[1:]] == hashes[order[:-1]]]
    return again[hashes[again] >= 0]


_compiled = twin("duetime_store.log._recent")
quickest_look = look if _compiled is None else _compiled.look
quickest_link = link if _compiled is None else _compiled.link


@dataclass(slots=True)
class IdGrain:
    """Ids that came within GRAIN_MS: the first one's serial, and the times of the first and the last."""

    serial: int
    first_ms: int
    last_ms: int


@dataclass(frozen=True, slots=True)
class Ids:
    """Ids in the order of the log. `grains`: (time of the last id, count), one after the other."""

    hashes: Ints
    positions: Ints
    grains: list[tuple[int, int]]


class RecentIds:
    """See the module. Belongs to the event loop's thread."""

    def __init__(self, count_max: int, window_ms: int) -> None:
        """`count_max` 0: nothing is remembered."""
        self.count_max = count_max
        self.window_ms = window_ms
        # Sizes are powers of two. Pages that were never written to take no memory.
        capacity = 1 << max(count_max - 1, 0).bit_length()
        self._hashes = np.empty(capacity, np.uint32)
        self._before = np.empty(capacity, np.uint32)
        self._positions = np.empty(capacity, np.int64)
        self._heads = np.zeros(2 * capacity, np.uint32)
        # The next serial. Serials are kept modulo 2^32; the 0 in an unused head is outside of the window.
        self._next = capacity + 1
        self._first = self._next
        self._grains: deque[IdGrain] = deque()
        # Time of the last id that the maximum count has pushed out.
        self._pushed_out_ms: int | None = None

    @property
    def count(self) -> int:
        """Ids in the window."""
        return self._next - self._first

    def reach_ms(self, now_ms: int) -> int:
        """The time within which a repeated send is certain to be recognized."""
        if not self.count_max:
            return 0
        if self._pushed_out_ms is None:
            return self.window_ms
        return min(max(now_ms - self._pushed_out_ms, 0), self.window_ms)

    def add_all(self, id_hashes: Ints, positions: Ints, now_ms: int) -> None:
        """Adds ids that come now; positions ascend, also from call to call."""
        self.expire(now_ms)
        if not self.count_max or not len(id_hashes):
            return
        grain = self._grains[-1] if self._grains else None
        if grain is None or now_ms - grain.first_ms >= GRAIN_MS:
            grain = IdGrain(self._next, now_ms, now_ms)
            self._grains.append(grain)
        grain.last_ms = max(grain.last_ms, now_ms)
        for at in range(0, len(id_hashes), self.count_max):
            self._add(id_hashes[at : at + self.count_max], positions[at : at + self.count_max])

    def _add(self, id_hashes: Ints, positions: Ints) -> None:
        """Adds at most as many as the window holds."""
        own, places = np.ascontiguousarray(id_hashes), np.ascontiguousarray(positions)
        quickest_link(own, self._heads, self._hashes, self._before, self._next, places, self._positions)
        self._next += len(positions)
        if self.count > self.count_max:
            self._push_out(self._next - self.count_max)

    def _push_out(self, first: int) -> None:
        """Drops the ids before this serial."""
        self._first = first
        grains = self._grains
        while len(grains) > 1 and grains[1].serial <= first:
            self._pushed_out_ms = grains.popleft().last_ms
        if grains and grains[0].serial < first:
            # Some of these are left.
            self._pushed_out_ms = grains[0].last_ms
            grains[0].serial = first

    def load(self, ids: Ids) -> None:
        """Adds a file's ids to an empty window."""
        if not self.count_max:
            return
        at = 0
        for last_ms, count in ids.grains:
            self._grains.append(IdGrain(self._next + at, last_ms, last_ms))
            at += count
        dropped = max(len(ids.hashes) - self.count_max, 0)
        if dropped:
            self._next += dropped
            self._push_out(self._next)
        self._add(ids.hashes[dropped:], ids.positions[dropped:])
        if self.count == self.count_max:
            # Others may have been pushed out before.
            self._pushed_out_ms = self._grains[0].last_ms

    def expire(self, now_ms: int) -> None:
        """Drops expired ids."""
        grains = self._grains
        while grains and grains[0].last_ms + self.window_ms <= now_ms:
            grains.popleft()
            self._first = grains[0].serial if grains else self._next
        if self._pushed_out_ms is not None and self._pushed_out_ms + self.window_ms <= now_ms:
            self._pushed_out_ms = None

    def cut(self, position: int) -> None:
        """Removes ids whose records are at or after a position: they were not stored."""
        mask, shift = len(self._positions) - 1, 33 - len(self._heads).bit_length()
        while self._next > self._first and self._positions[(self._next - 1) & mask] >= position:
            self._next -= 1
            at = self._next & mask
            self._heads[(int(self._hashes[at]) * _MIX & _U32) >> shift] = self._before[at]
        while self._grains and self._grains[-1].serial >= self._next:
            self._grains.pop()

    def look(self, id_hashes: Ints) -> list[int]:
        """Indices of those that are in the window, or repeated among these, ascending; -1: no id."""
        if not self.count_max:
            return []
        return list(quickest_look(id_hashes, self._heads, self._hashes, self._before, self._next, self.count))

    def find(self, id_hashes: Sequence[int]) -> dict[int, list[int]]:
        """Possible positions of messages with these hashes, oldest first, by hash: the newest CANDIDATES_MAX of
        each."""
        mask, shift = len(self._positions) - 1, 33 - len(self._heads).bit_length()
        found: dict[int, list[int]] = {}
        for value in set(id_hashes):
            places: list[int] = []
            serial, past = int(self._heads[(value * _MIX & _U32) >> shift]), 0
            while past < (age := (self._next - serial) & _U32) <= self.count and len(places) < CANDIDATES_MAX:
                at = serial & mask
                if self._hashes[at] == value:
                    places.append(int(self._positions[at]))
                past, serial = age, int(self._before[at])
            found[value] = places[::-1]
        return found

    def oldest_position(self, default: int) -> int:
        """The position of the oldest message remembered."""
        return int(self._positions[self._first & (len(self._positions) - 1)]) if self.count else default

    def between(self, start: int, stop: int) -> Ids:
        """Copies of the ids whose records are at log positions in [start, stop)."""
        low, high = self._serial_at(start), self._serial_at(stop)
        serials = [max(grain.serial, low) for grain in self._grains] + [max(self._next, low)]
        sizes = [min(end, high) - min(begin, high) for begin, end in pairwise(serials)]
        grains = [(grain.last_ms, size) for grain, size in zip(self._grains, sizes, strict=True) if size]
        hashes = self._slice(self._hashes, low, high).astype(np.int64)
        return Ids(hashes, self._slice(self._positions, low, high), grains)

    def _slice(self, column: npt.NDArray[Value], low: int, high: int) -> npt.NDArray[Value]:
        """A copy of the column's values of the serials [low, high)."""
        at = low & (len(column) - 1)
        room = min(high - low, len(column) - at)
        return np.concatenate([column[at : at + room], column[: high - low - room]])

    def _serial_at(self, position: int) -> int:
        """The first serial whose record is at or after the position."""
        low, high, mask = self._first, self._next, len(self._positions) - 1
        while low < high:
            middle = (low + high) // 2
            if self._positions[middle & mask] < position:
                low = middle + 1
            else:
                high = middle
        return low
