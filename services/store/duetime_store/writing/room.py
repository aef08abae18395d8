"""Disk space reserved for restores: each pending message is appended a second time when it falls due.

Sends are rejected while less is free: otherwise a disk full of delayed messages could not deliver them.
"""

from duetime_store.lanes.lanes import ShardLanes

# A restored message's unit, its index entries, and the maximum growth of its record.
EXTRA_BYTES = 128
# Share added for unused bytes at the ends of files.
MARGIN = 1 / 32


class RestoreRoom:
    """The space that restoring all pending messages takes, as counted by the lanes."""

    def __init__(self, lanes: ShardLanes) -> None:
        self._lanes = lanes
        # Values of the last count.
        self.needed_bytes = 0
        self.pending_count = 0

    async def count(self) -> None:
        needed = pending = 0
        for lane in self._lanes:
            size, count = await lane.measure()
            needed += size + count * EXTRA_BYTES
            pending += count
        self.needed_bytes, self.pending_count = int(needed * (1 + MARGIN)), pending
