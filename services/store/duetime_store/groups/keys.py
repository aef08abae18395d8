"""Slots of keys: the messages of one key that a group may have leased at a time, in one topic. Memory only.

    new, or returned    its key has a free slot: leased    else: parked
    parked              a slot becomes free: returned, with the slot
    leased              done, dead, or replaced by its copy: the slot is free    returned: it keeps the slot

A key is the sharding key of a message; messages without one need no slot. A parked message is a returned one that no
fetch finds. Its place has scanned it, so later messages of other keys are delivered. After a start returned messages
are found again, and parked again.
"""

import asyncio
import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import numpy as np
from duetime_format import record
from duetime_format.columns import values

from duetime_store.groups.fetch import Fetcher, FetchRequest
from duetime_store.groups.holds import GroupPlace
from duetime_store.groups.lines import WaiterLines
from duetime_store.groups.permits import GroupPermits
from duetime_store.reading.turns import YieldingScan

# Parked messages of one group and topic. At the limit no new messages are scanned.
PARKED_MAX = 10_000
# Records of leased messages read in one step.
_PIECE = 256
_NAMES = (record.SHARDING_KEY.encode(),)

# The number of a place, and an offset.
_Name = tuple[int, int]


class KeyGate:
    """The slots of one group in one topic."""

    def __init__(self, limit: int, wake: Callable[[], None]) -> None:
        """`wake` is called when a parked message is returned."""
        self.limit = limit
        self._wake = wake
        # Places whose leased messages are known; one receive at a time adds others.
        self.places: set[GroupPlace] = set()
        self._joining = asyncio.Lock()
        # Keys of messages with a slot.
        self._slots: dict[_Name, bytes] = {}
        self._counts: dict[bytes, int] = {}
        self._parked: dict[_Name, bytes] = {}
        # Heaps of parked messages by key; some may no longer be parked.
        self._waiting: dict[bytes, list[tuple[int, int, GroupPlace]]] = {}

    @property
    def parked_count(self) -> int:
        return len(self._parked)

    @property
    def is_full(self) -> bool:
        """Whether no further message should be parked."""
        return len(self._parked) >= PARKED_MAX

    def judge(
        self, place: GroupPlace, offsets: Sequence[int], records: bytes, sizes: list[int]
    ) -> tuple[list[bytes | None], list[int]]:
        """The key of each message (None: it has none), and the indices of those that would need more than the free
        slots, if they were leased in this order."""
        found: list[int] = []
        keys = _keys_of(records, sizes)
        taken: Counter[bytes] = Counter()
        for index, (offset, key) in enumerate(zip(offsets, keys, strict=True)):
            if key is None or (place.number, offset) in self._slots:
                continue
            if self._counts.get(key, 0) + taken[key] < self.limit:
                taken[key] += 1
            else:
                found.append(index)
        return keys, found

    def take(self, place: GroupPlace, offsets: Iterable[int], keys: Iterable[bytes | None]) -> None:
        """Gives leased messages their slots."""
        for offset, key in zip(offsets, keys, strict=True):
            name = place.number, offset
            if key is not None and name not in self._slots:
                self._forget_parked(place, name)
                self._slots[name] = key
                self._counts[key] = self._counts.get(key, 0) + 1

    def park(self, place: GroupPlace, keys: Mapping[int, bytes | None]) -> None:
        """Parks returned messages, by offset, that a fetch has taken from their place."""
        for offset, key in keys.items():
            name = place.number, offset
            if key is not None and name not in self._parked:
                self._parked[name] = key
                place.parked += 1
                heapq.heappush(self._waiting.setdefault(key, []), (offset, place.number, place))

    def release(self, place: GroupPlace, offsets: Iterable[int]) -> None:
        """Frees the slots of messages that are neither leased nor returned any more."""
        freed: set[bytes] = set()
        for offset in offsets:
            name = place.number, offset
            key = self._slots.pop(name, None)
            if key is None:
                self._forget_parked(place, name)
                continue
            freed.add(key)
            self._counts[key] -= 1
            if not self._counts[key]:
                del self._counts[key]
        self._return_parked(freed)

    def _forget_parked(self, place: GroupPlace, name: _Name) -> None:
        if self._parked.pop(name, None) is not None:
            place.parked -= 1

    def _return_parked(self, keys: Iterable[bytes]) -> None:
        """Gives free slots to the first parked messages, which are returned."""
        returned = False
        for key in keys:
            waiting = self._waiting.get(key)
            while waiting and self._counts.get(key, 0) < self.limit:
                offset, number, place = heapq.heappop(waiting)
                if (number, offset) in self._parked:
                    self.take(place, (offset,), (key,))
                    place.put_again((offset,))
                    returned = True
            if not waiting:
                self._waiting.pop(key, None)
        if returned:
            self._wake()

    async def join(self, places: Iterable[GroupPlace], fetcher: Fetcher, walk: YieldingScan) -> None:
        """Gives the leased messages of places their slots, at the first receive with the limit."""
        async with self._joining:
            for place in places:
                if place not in self.places:
                    place.keys = self
                    await self._join(place, fetcher, walk)
                    self.places.add(place)

    async def _join(self, place: GroupPlace, fetcher: Fetcher, walk: YieldingScan) -> None:
        queue = fetcher.queue(place)
        leased = sorted(offset for offset, hold in place.entries.items() if hold.lease is not None)
        for at in range(0, len(leased), _PIECE):
            piece = np.array(leased[at : at + _PIECE], np.int64)
            records, sizes, _, _ = fetcher.reader.read(queue, piece, queue.read_at(piece))
            there = [offset for offset, size in zip(piece.tolist(), sizes, strict=True) if size]
            keys = dict(zip(there, _keys_of(records, [size for size in sizes if size]), strict=True))
            # Some may have ended in between.
            still = [offset for offset in there if (hold := place.entries.get(offset)) is not None and hold.lease]
            self.take(place, still, [keys[offset] for offset in still])
            await walk.turn_if_over()

    def change(self, limit: int) -> None:
        """Sets another number of slots for each key."""
        if limit != self.limit:
            self.limit = limit
            self._return_parked(list(self._waiting))

    def close(self) -> None:
        """Returns all parked messages: there is no limit any more."""
        self.limit = 1 << 62
        self._return_parked(list(self._waiting))
        for place in self.places:
            place.keys = None
        self._wake()


class KeyGates:
    """The gates of all groups with a limit by key."""

    def __init__(self, permits: GroupPermits, lines: WaiterLines) -> None:
        self._permits = permits
        self._lines = lines
        self._gates: dict[tuple[str, str], KeyGate] = {}

    def find(self, asked: FetchRequest) -> KeyGate | None:
        """The gate for a receive; None: its keys have no limit. Order has its own locks."""
        limit = self._permits.limit_of(asked.group, asked.topic)
        if limit is None or not limit.per_key or asked.ordered:
            return None
        key = asked.group, asked.topic
        found = self._gates.get(key)
        if found is None:
            found = self._gates[key] = KeyGate(limit.per_key, partial(self._lines.wake, *key))
        return found

    def refresh(self, group: str) -> None:
        """Applies changed limits of the group."""
        for key, gate in list(self._gates.items()):
            if key[0] == group:
                limit = self._permits.limit_of(*key)
                if limit is not None and limit.per_key:
                    gate.change(limit.per_key)
                else:
                    del self._gates[key]
                    gate.close()

    def forget_topic(self, topic: str) -> None:
        """Removes the gates of a deleted topic."""
        for key in [key for key in self._gates if key[1] == topic]:
            self._gates.pop(key).close()

    def parked(self) -> dict[str, int]:
        """Parked messages by limited group. Other threads call it too."""
        found: dict[str, int] = {}
        for (group, _), gate in list(self._gates.items()):
            found[group] = found.get(group, 0) + gate.parked_count
        return found


def _keys_of(records: bytes, sizes: list[int]) -> list[bytes | None]:
    return values(records, sizes, _NAMES)[0]
