"""The lane for a copy's delay: its level's, or one for any time. Pure.

A delay of a level counts from storing, as in RocketMQ's timetable. Any other ends exactly at `now` plus the delay, by
the shard's clock: `now` is the time at which the lease was read, so the way to the log adds nothing.
"""

from dataclasses import dataclass

from duetime_format.levels import DelayLevels


@dataclass(frozen=True, slots=True)
class Wait:
    """`level` 0: no level's lane. `due_at_ms` 0: no lane for any time. Both: it is redelivered at once."""

    level: int = 0
    due_at_ms: int = 0


def wait_of(delay_ms: int, now_ms: int, levels: DelayLevels) -> Wait:
    """`now_ms`: the shard's clock at which the delay begins."""
    if not delay_ms:
        return Wait()
    level = levels.level_of(delay_ms)
    return Wait(due_at_ms=now_ms + delay_ms) if level is None else Wait(level)
