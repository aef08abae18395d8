"""PullDue: the answers that give a scheduler a lane's due entries."""

import numpy as np
from duetime.v1 import store_pb2
from duetime_format import limits
from duetime_format.restore import PulledEntries

from duetime_store.lanes.attendance import WaitingPull
from duetime_store.metrics import StoreMetrics
from duetime_store.reading.reader import Reader
from duetime_store.writing.kept import RestoredBatches


class DueEntries:
    """Answers of one store."""

    def __init__(self, reader: Reader, kept: RestoredBatches, metrics: StoreMetrics) -> None:
        self._reader = reader
        self._kept = kept
        self._metrics = metrics

    async def answer(self, request: store_pb2.PullDueRequest) -> store_pb2.PullDueResponse:
        """Raises: as Reader.pull_due."""
        if not request.next:
            # Nothing given out before is in progress any more.
            self._kept.forget(request.lane)
        due = await self._reader.pull_due(
            request.lane,
            WaitingPull(request.scheduler, request.next, has_lease=not request.without_lease),
            min(max(request.max_count, 1), limits.PULL_DUE_COUNT_MAX),
            min(max(request.max_bytes, 1), limits.PULL_BYTES_MAX),
            min(request.wait_ms, limits.WAIT_MS_MAX),
            min(max(request.ahead_ms, 0), limits.AHEAD_MS_MAX),
        )
        self._metrics.messages_out.labels("pull_due").inc(len(due.sizes))
        response = store_pb2.PullDueResponse(
            first_entry=int(due.entries[0]) if len(due.entries) else due.watermark,
            watermark=due.watermark,
            entries=() if (np.diff(due.entries) == 1).all() else due.entries.tolist(),
            next=due.next,
        )
        entries = PulledEntries(request.lane, due.entries, due.records, due.sizes, due.due_at_ms)
        if request.may_keep and self._kept.keep(entries):
            response.kept_count = len(due.entries)
            return response
        self._metrics.bytes_out.labels("pull_due").inc(len(due.records))
        response.records = due.records
        response.sizes.extend(due.sizes)
        response.due_at_ms.extend(due.due_at_ms)
        response.damages.update(due.damages)
        response.damaged_positions.update(due.damaged_positions)
        return response
