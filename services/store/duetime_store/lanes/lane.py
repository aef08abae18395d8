"""A lane: the queue of one delay level, its watermark, and how late its messages were."""

from collections import deque

import numpy as np
import numpy.typing as npt

from duetime_store.lanes.attendance import Attendance
from duetime_store.queues.consumequeue import ConsumeQueue

# Upper bounds of the lateness histogram in ms.
LATE_BUCKETS_MS = np.array(
    [1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000, 300_000, 3_600_000]
)
LATE_WINDOW = 1_024


class Lane:
    """Entries of level `level`, in order of due time.

        restored            appended, not durable     pending
        0 ... watermark ............ appended ................ queue.max_offset

    `appended` fences: an entry below it is a duplicate, one above it a gap. `watermark` is its durable copy.

    A crash in the middle of a batch may leave the record of a later entry without that of an earlier one. So recovery
    may find entries restored behind the watermark: they are `ahead`, and duplicates too when their turn comes.
    """

    def __init__(self, level: int, queue: ConsumeQueue) -> None:
        self.level = level
        self.queue = queue
        self.watermark = queue.min_offset
        self.appended = queue.min_offset
        self.ahead: frozenset[int] = frozenset()
        self.quarantined_count = 0
        self.restored_count = 0
        self.attendance = Attendance()
        self.late_counts = np.zeros(len(LATE_BUCKETS_MS) + 1, np.int64)
        self.late_sum_ms = 0.0
        self._late_window: deque[float] = deque(maxlen=LATE_WINDOW)

    def advance(self, offset: int) -> None:
        """Recovery: everything below `offset` is restored."""
        self.watermark = self.appended = max(self.watermark, offset)

    def recover(self, entries: npt.NDArray[np.int64]) -> None:
        """Recovery: these are restored, in any order."""
        entries = np.unique(entries)
        entries = entries[(entries >= self.watermark) & (entries < self.queue.max_offset)]
        in_order = int((entries == self.watermark + np.arange(len(entries))).sum())
        self.advance(self.watermark + in_order)
        self.ahead = frozenset(entries[in_order:].tolist())

    def behind_ahead(self, entry: int) -> int:
        """The first entry from here on that is not ahead."""
        while entry in self.ahead:
            entry += 1
        return entry

    def publish(self, offset: int) -> None:
        """Everything below `offset` is restored, durably."""
        self.watermark = max(self.watermark, offset)
        if self.ahead:
            self.ahead = frozenset(entry for entry in self.ahead if entry >= self.watermark)

    def observe(self, due_at_ms: npt.NDArray[np.int64], now_ms: float) -> None:
        """Counts restored messages by how late they are durable in their topic."""
        late = now_ms - due_at_ms.astype(np.float64)
        self.late_counts += np.bincount(np.searchsorted(LATE_BUCKETS_MS, late), minlength=len(self.late_counts))
        self.late_sum_ms += float(late.sum())
        self.restored_count += len(late)
        self._late_window.extend(late[-LATE_WINDOW:].tolist())

    def late_percentiles_ms(self) -> tuple[float, float]:
        """p50 and p99 over the last 1,024 restored messages; -1 when there are none."""
        if not self._late_window:
            return -1.0, -1.0
        p50, p99 = np.percentile(np.array(self._late_window), (50, 99))
        return float(p50), float(p99)

    @property
    def pending_count(self) -> int:
        """Entries not yet restored: exact."""
        return self.queue.max_offset - self.watermark - len(self.ahead)

    def count_due(self, by_ms: int) -> int:
        """Entries not yet restored that are due at `by_ms`: exact, as entries are in order of due time."""
        end = self.queue.first_due_after(by_ms, self.watermark)
        return end - self.watermark - sum(entry < end for entry in self.ahead)

    def next_due_at_ms(self) -> int | None:
        """When the first entry falls due that no put has come to; None: there is none."""
        head = self.queue.read(self.appended, 1)
        return int(head["tags"][0]) if len(head) else None

    def dues(self, now_ms: int) -> tuple[int, int]:
        """(due time of the oldest pending entry, first due time ahead of now), 0 where there is none."""
        head = self.queue.read(self.watermark, 1)
        ahead = self.queue.read(self.queue.first_due_after(now_ms, self.watermark), 1)
        return (int(head["tags"][0]) if len(head) else 0), (int(ahead["tags"][0]) if len(ahead) else 0)
