"""The planned times of next occurrences, many at a time. Pure.

The times of intervals are computed as columns. Those of other rules are remembered, as many schedules share a rule.
"""

import json
from collections.abc import Callable

import numpy as np
from duetime_core.planning import time_after
from duetime_format.columns import Ints, RecordRun
from duetime_format.following import (
    AT_INTERVAL,
    BY_RULE,
    EVERY_MS,
    KIND,
    MISSED,
    MISSED_POLICIES,
    ODD,
    PLANNED,
    RULE_AT,
    RULE_END,
    SAME_AS,
    START_AT_MS,
)
from duetime_format.levels import DELAY_MS_MAX
from duetime_format.schedules import ALL, StoredSchedule
from duetime_format.units import Mask

# Times of rules that are remembered: 10 MB.
TIMES_MAX = 32_768
# Each takes up to 0.2 ms.
SLOW_AT_ONCE = 64
# A paused occurrence waits this long: the longest delay, less a day for clocks that are set.
PAUSE_MS = DELAY_MS_MAX - 86_400_000
# A value instead of a time: the schedule needs another look.
UNPLANNED = -1
_ALL = MISSED_POLICIES.index(ALL)


class OccurrencePlanner:
    """Plans the next occurrences of schedules. Belongs to the event loop's thread."""

    def __init__(self, times_max: int = TIMES_MAX, time_of: Callable[[bytes, int], int] | None = None) -> None:
        """`time_of`: the first time of a rule's fields after a moment, Unix ms; 0: none, UNPLANNED: an error."""
        self._times_max = times_max
        self._time_of = time_of or _time_of
        self._times: dict[tuple[bytes, int], int] = {}

    def plan(self, run: RecordRun, readings: Ints, now_ms: int) -> Ints:
        """The planned times of the occurrences that follow; 0: there is none, UNPLANNED: see duetime_store.writing.
        occurrences.next_of.

        Args:
            readings: of the run's records (duetime_format.following).
        """
        kinds, moments = readings[KIND], readings[PLANNED]
        planned = _interval_times(readings, moments)
        is_ruled = kinds == BY_RULE
        ruled = np.flatnonzero(is_ruled)
        if len(ruled):
            planned[ruled] = self._rule_times(run, readings, ruled)
        late = (planned > 0) & (planned <= now_ms) & (readings[MISSED] != _ALL)
        if late.any():
            planned = np.where(late, _interval_times(readings, np.full(run.count, now_ms)), planned)
            ruled = np.flatnonzero(late & is_ruled)
            planned[ruled] = self._rule_times(run, readings, ruled, now_ms)
        # After an early delivery the next occurrence has to name the moment of its planning (StoredSchedule.after).
        planned[(planned - now_ms > PAUSE_MS) | (is_ruled & (moments > now_ms))] = UNPLANNED
        return planned

    def count_at_once(self, run: RecordRun, readings: Ints) -> int:
        """The number of the first records that are planned in some ms: few of them have a time to be computed."""
        kinds = readings[KIND]
        if (kinds <= AT_INTERVAL).all():
            return run.count
        is_slow = kinds == ODD
        ruled = _firsts(readings, kinds == BY_RULE)
        new: set[tuple[bytes, int]] = set()
        for row, (at_ms, begin, end) in zip(
            ruled, readings[[PLANNED, RULE_AT, RULE_END]][:, ruled].T.tolist(), strict=True
        ):
            if (one := (run.data[begin:end], at_ms)) not in self._times and one not in new:
                new.add(one)
                is_slow[row] = True
        slow = np.flatnonzero(is_slow)
        return run.count if len(slow) <= SLOW_AT_ONCE else int(slow[SLOW_AT_ONCE])

    def _rule_times(self, run: RecordRun, readings: Ints, rows: Ints, now_ms: int | None = None) -> Ints:
        """The first times of the rows' rules after their planned times, or after `now_ms`."""
        firsts = _firsts(readings, rows)
        times = np.zeros(run.count, np.int64)
        times[firsts] = [
            self._time(run.data[begin:end], moment_ms if now_ms is None else now_ms)
            for begin, end, moment_ms in readings[[RULE_AT, RULE_END, PLANNED]][:, firsts].T.tolist()
        ]
        found: Ints = times[readings[SAME_AS, rows]]
        return found

    def _time(self, rule: bytes, moment_ms: int) -> int:
        known = self._times.get((rule, moment_ms))
        if known is None:
            while len(self._times) >= self._times_max:
                # The oldest.
                del self._times[next(iter(self._times))]
            known = self._times[rule, moment_ms] = self._time_of(rule, moment_ms)
        return known


def _firsts(readings: Ints, rows: Ints | Mask) -> Ints:
    """The records, ascending, that some of the rows name as SAME_AS."""
    is_first = np.zeros(readings.shape[1], np.bool_)
    is_first[readings[SAME_AS, rows]] = True
    return np.flatnonzero(is_first)


def _interval_times(readings: Ints, moments: Ints) -> Ints:
    """The first times at intervals after moments; 0 for other rows."""
    every, start = readings[EVERY_MS], readings[START_AT_MS]
    past = moments - start
    times: Ints = np.where(past < 0, start, moments - past % np.maximum(every, 1) + every)
    times[readings[KIND] != AT_INTERVAL] = 0
    return times


def _time_of(rule: bytes, moment_ms: int) -> int:
    fields = json.loads(b'{"name":""%b}' % rule)
    if "at_ms" in fields:
        fields["at_ms"] = tuple(fields["at_ms"])
    try:
        return time_after(StoredSchedule(**fields), moment_ms) or 0
    except ValueError:
        return UNPLANNED
