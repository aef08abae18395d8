"""The tagsCode of a unit, from its record: a tag's hash, or in a lane the due time, by level or the record's own."""

import re
from collections.abc import Iterable, Sequence

import numpy as np
from duetime_format import record, timers
from duetime_format.changes import StateChange
from duetime_format.columns import Ints, RecordRun
from duetime_format.names import SCHEDULE_TOPIC, TIMER_TOPIC
from duetime_format.properties import value_of
from duetime_format.record import Record

from duetime_shard.history import LevelHistory

_LANES, _TIMERS = SCHEDULE_TOPIC.encode(), TIMER_TOPIC.encode()
_DELAY, _TAGS = record.DELAY.encode(), record.TAGS.encode()
# Syntax of Java's Integer.parseInt.
_NUMBER = re.compile(rb"[+-]?[0-9]{1,10}")


def hash_of_tags(found: Record) -> int:
    """The hash of a record's tag; 0 without one."""
    tags = value_of(found.properties, _TAGS)
    return record.tags_code(tags) if tags else 0


class TagsCodes:
    """Computes tagsCodes with the level table that applied at a position."""

    def __init__(self, history: LevelHistory) -> None:
        self.history = history

    def learn(self, changed: Iterable[tuple[int, Sequence[StateChange]]]) -> None:
        """Takes the changes of state of a run, before its tagsCodes are computed. See LevelHistory.learned."""
        self.history = self.history.learned(changed)

    def of(self, run: RecordRun) -> Ints:
        """The tagsCode of every record of a run."""
        in_lane, in_timers = run.within((_LANES,)), np.flatnonzero(run.within((_TIMERS,)))
        if not in_lane.any() and not len(in_timers):
            return run.tags_codes
        codes = run.tags_codes.copy()
        codes[in_timers] = timers.dues(run, in_timers)
        odd = np.flatnonzero(in_lane & (run.levels < 0))
        in_lane &= run.levels > 0
        stored_at_ms = run.stored_at_ms[in_lane]
        codes[in_lane] = stored_at_ms + self.history.delays_ms(
            run.levels[in_lane], run.positions[in_lane], stored_at_ms
        )
        for index in odd.tolist():
            text = value_of(run.properties(index), _DELAY)
            codes[index] = self._code(
                text, int(run.positions[index]), int(run.stored_at_ms[index]), int(run.tags_codes[index])
            )
        return codes

    def of_record(self, found: Record) -> int:
        """The tagsCode of one record."""
        if found.topic == TIMER_TOPIC:
            return timers.due_at_ms(found)
        code = hash_of_tags(found)
        if found.topic != SCHEDULE_TOPIC:
            return code
        return self._code(value_of(found.properties, _DELAY), found.position, found.stored_at_ms, code)

    def _code(self, delay: bytes, position: int, stored_at_ms: int, code: int) -> int:
        level = int(delay) if _NUMBER.fullmatch(delay) else 0
        if level <= 0:
            return code
        return self.history.due_at_ms(level, position, stored_at_ms)
