"""Counts heard checks of open transactions from the log."""

import numpy as np
import structlog
from duetime_format import checks, record
from duetime_format.errors import DamagedBytes
from duetime_format.names import CHECKS_TOPIC
from duetime_format.units import FILLER_SIZE

from duetime_store.transactions.table import OpenTransactions
from duetime_store.writing.store import Store

log = structlog.get_logger()

_TOPIC = CHECKS_TOPIC.encode()
_STEP_UNITS = 1_024


def load_checks(store: Store, table: OpenTransactions, from_position: int) -> None:
    """Applies the records from a position of the log on; those already in the table change nothing.

    Raises:
        OSError.
    """
    queue = store.queues.known(_TOPIC, 0)
    if queue is None:
        return
    for first in range(max(queue.end_before(from_position), queue.min_offset), queue.max_offset, _STEP_UNITS):
        units = queue.read(first, min(_STEP_UNITS, queue.max_offset - first))
        for position, size, _ in units.tolist():
            if size == FILLER_SIZE:
                continue
            try:
                rows = checks.decode(record.decode(store.read_record(position, size)).body)
            except DamagedBytes as error:
                log.error("record of checks damaged: its checks do not count", position=position, damage=error.text)
                continue
            offsets, nexts, heard = (rows[name].astype(np.int64) for name in ("offset", "next", "checks"))
            table.replay_heard(offsets, heard, nexts)
