"""Counts messages without a body: brokers take none from their producers, and stumble over those in a log."""

import numpy as np
from duetime_core.ondisk.lanes import Restored
from duetime_core.ondisk.scan import Found
from duetime_core.ondisk.state import Item, State, restored
from duetime_format import record
from duetime_format.columns import Ints, Run
from duetime_format.lanes import level_of
from duetime_format.names import SCHEDULE_TOPIC
from duetime_format.record import Record

_BODY_CRC = np.arange(8, 12)


class EmptyBodies:
    """Takes the records of a log. A pending message may lie in it several times, and counts once."""

    def __init__(self, state: State) -> None:
        self._restored = restored(state)
        self._pending: set[tuple[int, int]] = set()
        self.other_count = 0

    @property
    def pending_count(self) -> int:
        return len(self._pending)

    def see(self, item: Item) -> None:
        if isinstance(item, Run):
            for index in np.flatnonzero(_body_crcs(item) == 0).tolist():
                self._count(record.decode(item.data, int(item.starts[index])))
        elif isinstance(item, Found) and not item.damage:
            self._count(item.record)

    def _count(self, found: Record) -> None:
        # A CRC may be 0 by chance.
        if found.body:
            return
        if found.topic != SCHEDULE_TOPIC:
            self.other_count += 1
            return
        level = level_of(found.queue)
        if found.queue_offset not in self._restored.get(level, Restored()):
            self._pending.add((level, found.queue_offset))


def _body_crcs(run: Run) -> Ints:
    data = np.frombuffer(run.data, np.uint8)
    crcs: Ints = data[run.starts[:, None] + _BODY_CRC].view(">i4")[:, 0].astype(np.int64)
    return crcs
