"""What stands in the tagsCode of a unit, by the record: a tag's hash, in a lane the due time."""

import re

import numpy as np
from duetime_core import record
from duetime_core.names import SCHEDULE_TOPIC
from duetime_core.record import Record

from duetime_store.columns import Ints, Run, last_value
from duetime_store.directory import LevelHistory

_LANES = SCHEDULE_TOPIC.encode()
_DELAY, _TAGS = record.DELAY.encode(), record.TAGS.encode()
# As Java's Integer.parseInt.
_NUMBER = re.compile(rb"[+-]?[0-9]{1,10}")


class TagsCodes:
    """By the level table that was in force at a position."""

    def __init__(self, history: LevelHistory) -> None:
        self._history = history

    def of(self, run: Run) -> Ints:
        """Of every record of a run."""
        lanes = np.array([topic == _LANES for topic, _ in run.keys], np.bool_)
        if not lanes.any():
            return run.tags_codes
        codes = run.tags_codes.copy()
        in_lane = lanes[run.key_of]
        odd = np.flatnonzero(in_lane & (run.levels < 0))
        in_lane &= run.levels > 0
        since = np.array([position for position, _ in self._history.since])
        table_of = np.maximum(np.searchsorted(since, run.positions, "right") - 1, 0)
        for number in np.unique(table_of[in_lane]).tolist():
            levels = self._history.since[number][1]
            rows = in_lane & (table_of == number)
            delays = np.array([0, *levels.delays_ms])
            codes[rows] = run.stored_at_ms[rows] + delays[np.minimum(run.levels[rows], levels.highest)]
        for index in odd.tolist():
            text = last_value(run.properties(index), _DELAY)
            codes[index] = self._code(
                text, int(run.positions[index]), int(run.stored_at_ms[index]), int(run.tags_codes[index])
            )
        return codes

    def of_record(self, found: Record) -> int:
        """Of one record."""
        tags = last_value(found.properties, _TAGS)
        code = record.tags_code(tags) if tags else 0
        if found.topic != SCHEDULE_TOPIC:
            return code
        return self._code(last_value(found.properties, _DELAY), found.position, found.stored_at_ms, code)

    def _code(self, delay: bytes, position: int, stored_at_ms: int, code: int) -> int:
        level = int(delay) if _NUMBER.fullmatch(delay) else 0
        if level <= 0:
            return code
        levels = self._history.at(position)
        return stored_at_ms + levels.delay_ms(min(level, levels.highest))
