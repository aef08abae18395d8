"""Positions for the records of a put: consecutive, and none across the end of a segment. Pure."""

import numpy as np
from duetime_format import layout

from duetime_store.log.commitlog import CommitLog
from duetime_store.log.intake import Intake


def runs_in(log: CommitLog, end: int, intake: Intake) -> tuple[list[tuple[int, int, int]], int]:
    """(runs, end of the log after them), for records that begin at `end`.

    Each run (start, stop, shift) is within one segment: records [start, stop), placed `shift` bytes further in the log
    than in the put. A batch is within one run.
    """
    total = len(intake.data)
    if log.place(end, total) == end:
        return [(0, intake.count, end)], end + total
    starts, ends = intake.starts, intake.starts + intake.sizes
    joined = dict(intake.batches.tolist())
    runs, first = [], 0
    while first < intake.count:
        start = int(starts[first])
        position = log.place(end, int(ends[joined.get(first, first + 1) - 1]) - start)
        room = log.segment_bytes - position % log.segment_bytes - layout.BLANK_BYTES
        stop = int(np.searchsorted(ends, start + room, "right"))
        stop = next((begin for begin, after in joined.items() if begin < stop < after), stop)
        runs.append((first, stop, position - start))
        end = position + int(ends[stop - 1]) - start
        first = stop
    return runs, end
