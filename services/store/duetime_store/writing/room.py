"""The disk space that pending messages need to be restored: each is appended a second time when it is due.

Sends are refused while less is free: otherwise a disk full of delayed messages could not deliver them.
"""

from duetime_store.writing.store import Store

# A restored message's unit, its index entries, and the bytes by which its record may exceed the lane's.
EXTRA_BYTES = 128
# Share added for bytes that files lose at their ends.
MARGIN = 1 / 32


class RestoreRoom:
    """What restoring all pending messages takes, as the lanes count it."""

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
