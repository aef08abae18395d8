"""The lateness of a lane's messages: the time from due to durable in their topic."""

import numpy as np
from duetime_format.units import Ints

# Upper bounds of the histogram in ms.
LATE_BUCKETS_MS = np.array(
    [1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000, 300_000, 3_600_000]
)
_BOUNDS = LATE_BUCKETS_MS.astype(np.float64)
LATE_WINDOW = 1_024


class LaneLateness:
    """A histogram and a window of recent values, updated per batch, never per message."""

    def __init__(self) -> None:
        self.count = 0
        self.sum_ms = 0.0
        # One for each bucket, and one for everything later.
        self.counts = np.zeros(len(LATE_BUCKETS_MS) + 1, np.int64)
        self._window = np.empty(0)

    def observe(self, due_at_ms: Ints, now_ms: float) -> None:
        late = now_ms - due_at_ms.astype(np.float64)
        self.counts += np.bincount(np.searchsorted(_BOUNDS, late), minlength=len(self.counts))
        self.sum_ms += float(late.sum())
        self.count += len(late)
        self._window = np.concatenate((self._window, late[-LATE_WINDOW:]))[-LATE_WINDOW:]

    def percentiles_ms(self) -> tuple[float, float]:
        """p50 and p99 over the last LATE_WINDOW restored messages; -1 if there are none."""
        if not len(self._window):
            return -1.0, -1.0
        p50, p99 = np.percentile(self._window, (50, 99))
        return float(p50), float(p99)
