"""The room that pending messages need to come out: each is appended a second time when it is due.

Sends are refused while less is free, or else a disk that was filled with delayed messages would have none for them.
"""

from duetime_store.writing.store import Store

# A restored message's unit, its entries in the index, and what its record may have more than the lane's.
EXTRA_BYTES = 128
# Of what is needed, for what files lose at their ends.
MARGIN = 1 / 32


class Room:
    """Asks the lanes."""

    def __init__(self, store: Store) -> None:
        self._store = store
        # As of the last count.
        self.needed_bytes = 0
        self.pending_count = 0

    async def count(self) -> None:
        needed = pending = 0
        for lane in self._store.lanes:
            size, count = await lane.measure()
            needed += size + count * EXTRA_BYTES
            pending += count
        self.needed_bytes, self.pending_count = int(needed * (1 + MARGIN)), pending
