"""The level tables of a directory's data, and when each applied."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from duetime_core.errors import StartupError
from duetime_format.changes import LEVELS, StateChange
from duetime_format.levels import DelayLevels
from duetime_format.units import Ints

_I64_MAX = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class LevelChange:
    """A level table, and the log position and store time from which it applied."""

    position: int
    at_ms: int
    levels: DelayLevels


@dataclass(frozen=True)
class LevelHistory:
    """The level tables over time.

    A lane entry's due time is its store time plus the delay of the table at that time, also when queues are rebuilt
    after a change. Position and store time give the same table, except for a record that retention has appended again:
    its position is later than its time, and its own table is the earlier one.
    """

    since: tuple[LevelChange, ...]

    @classmethod
    def of(cls, levels: DelayLevels) -> "LevelHistory":
        """A history with a single table."""
        return cls((LevelChange(0, 0, levels),))

    def at(self, position: int, stored_at_ms: int) -> DelayLevels:
        return self.since[int(self._tables(np.array([position]), np.array([stored_at_ms]))[0])].levels

    def delays_ms(self, levels: Ints, positions: Ints, stored_at_ms: Ints | None = None) -> Ints:
        """The delay of each entry by its table; above the highest level, the highest's. Without store times: by
        position."""
        tables = self._tables(positions, stored_at_ms) if len(self.since) > 1 else None
        delays_ms = self._known_ms[0][np.clip(levels, 1, len(self._known_ms[0])) - 1]
        for number, known_ms in enumerate(self._known_ms[1:], 1):
            own = tables == number
            delays_ms[own] = known_ms[np.clip(levels[own], 1, len(known_ms)) - 1]
        return delays_ms

    def due_at_ms(self, level: int, position: int, stored_at_ms: int) -> int:
        """The due time of one record; above the highest level, by the highest."""
        return stored_at_ms + self.at(position, stored_at_ms).delay_at_most_ms(level)

    @cached_property
    def _known_ms(self) -> list[Ints]:
        """The delays of each table."""
        return [np.array(since.levels.delays_ms) for since in self.since]

    def _tables(self, positions: Ints, stored_at_ms: Ints | None) -> Ints:
        reached = np.searchsorted([since.position for since in self.since], positions, "right")
        if stored_at_ms is not None:
            reached = np.minimum(reached, np.searchsorted([since.at_ms for since in self.since], stored_at_ms, "right"))
        return np.maximum(reached - 1, 0)

    @property
    def current(self) -> DelayLevels:
        return self.since[-1].levels

    def changed(self, position: int, at_ms: int, levels: DelayLevels) -> "LevelHistory":
        kept = tuple(since for since in self.since if since.position < position)
        return LevelHistory((*kept, LevelChange(position, at_ms, levels)))

    def learned(self, changed: Iterable[tuple[int, Sequence[StateChange]]]) -> "LevelHistory":
        """With the later tables among the changes of records, given by log position."""
        history = self
        for position, rows in changed:
            for row in rows:
                if row.kind == LEVELS and row.value is not None and position >= history.since[-1].position:
                    text, at_ms = row.value
                    if (levels := DelayLevels.parse(text)) != history.current:
                        history = history.changed(position, at_ms, levels)
        return history

    def check(self, levels: DelayLevels, *, accept: bool) -> None:
        """Raises: StartupError: the data has another table than `levels`, and `accept` is False."""
        if self.current != levels and not accept:
            raise StartupError(
                f"the data was written with delay levels '{self.current}', this process has '{levels}'; "
                "start with --accept-delay-levels true to continue with the new table"
            )

    @classmethod
    def load(cls, value: Mapping[str, Any] | None, levels: DelayLevels, *, accept: bool) -> "LevelHistory | None":
        """From the content of duetimeStore.json. None: the history is unknown.

        Raises:
            StartupError: the data has another table, and `accept` is False.
        """
        try:
            entries = value["levels"] if value is not None else ()
            since = [
                LevelChange(
                    int(entry["fromPosition"]), int(entry.get("fromMs", 0)), DelayLevels.parse(entry["delayLevels"])
                )
                for entry in entries
            ]
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
            return None
        if not since or not all(0 <= number <= _I64_MAX for one in since for number in (one.position, one.at_ms)):
            return None
        history = cls(tuple(since))
        history.check(levels, accept=accept)
        return history
