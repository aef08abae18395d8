"""The room that pending messages need to come out: each is appended a second time when it is due.

Sends are refused while less is free, or else a disk that was filled with delayed messages would have none for them.
"""

from dataclasses import dataclass

from duetime_core.clock import turn

from duetime_store.lanes.lane import Lane
from duetime_store.writing.store import Store

# Units looked at before others go first.
LOOK_UNITS = 65_536
# A restored message's unit, its entries in the index, and what its record may have more than the lane's.
EXTRA_BYTES = 128
# Of what is needed, for what files lose at their ends.
MARGIN = 1 / 32


@dataclass(slots=True)
class _Counted:
    """Bytes of a lane's entries [first, behind)."""

    first: int
    behind: int
    bytes: int = 0


class Room:
    """Follows the lanes: each entry's unit is looked at when it came and when it has left, many at a time."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._counted: dict[int, _Counted] = {}
        # As of the last count.
        self.needed_bytes = 0
        self.pending_count = 0

    async def count(self) -> None:
        needed = pending = 0
        for level, lane in self._store.lanes.items():
            counted = self._counted.setdefault(level, _Counted(lane.watermark, lane.watermark))
            await self._follow(lane, counted)
            needed += counted.bytes + (counted.behind - counted.first) * EXTRA_BYTES
            pending += counted.behind - counted.first
        self.needed_bytes, self.pending_count = int(needed * (1 + MARGIN)), pending

    async def _follow(self, lane: Lane, counted: _Counted) -> None:
        watermark, end = lane.watermark, lane.queue.max_offset
        if watermark >= counted.behind:
            counted.first, counted.behind, counted.bytes = watermark, watermark, 0
        while counted.behind < end:
            size, count = _size(lane, counted.behind, end)
            counted.behind += count
            counted.bytes += size
            await turn()
        while counted.first < watermark:
            size, count = _size(lane, counted.first, watermark)
            counted.first += count
            # A damaged one may have become a filler since.
            counted.bytes = max(counted.bytes - size, 0)
            await turn()


def _size(lane: Lane, first: int, end: int) -> tuple[int, int]:
    """The bytes of some entries from `first` on, and how many these are; what can't be read counts as none."""
    units = lane.queue.read(first, min(end - first, LOOK_UNITS))
    return int(units["size"].sum()), len(units) or end - first
