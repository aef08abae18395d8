"""Counts messages without a body: brokers reject them from producers, and fail on them in a log."""

import numpy as np
from duetime_format.columns import Ints, RecordRun
from duetime_format.lanes import lane_of
from duetime_format.record import Record
from duetime_shard.pending import PendingLane
from duetime_shard.walk import Item

_BODY_CRC = np.arange(8, 12)


class EmptyBodies:
    """Takes the records of a log. A pending message may be in it several times, and counts once."""

    def __init__(self, lanes: dict[int, PendingLane]) -> None:
        self._lanes = lanes
        self._in_lanes: dict[int, set[int]] = {}
        self.other_count = 0

    @property
    def pending_count(self) -> int:
        count = 0
        for number, entries in self._in_lanes.items():
            if number in self._lanes:
                pending = [own for own, _ in self._lanes[number].pending()]
                count += int(np.isin(np.concatenate([np.empty(0, np.int64), *pending]), list(entries)).sum())
        return count

    def see(self, item: Item) -> None:
        if isinstance(item, RecordRun):
            for index in np.flatnonzero(_body_crcs(item) == 0).tolist():
                self._count(item.record(index))

    def _count(self, found: Record) -> None:
        # A CRC may be 0 by chance.
        if found.body:
            return
        lane = lane_of(found.topic, found.queue)
        if lane is None:
            self.other_count += 1
        else:
            self._in_lanes.setdefault(lane, set()).add(found.queue_offset)


def _body_crcs(run: RecordRun) -> Ints:
    data = np.frombuffer(run.data, np.uint8)
    crcs: Ints = data[run.starts[:, None] + _BODY_CRC].view(">i4")[:, 0].astype(np.int64)
    return crcs
