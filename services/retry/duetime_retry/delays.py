"""How a copy waits for its delay: in its level's lane, or in a lane for any time. Pure.

A delay that is a level's counts from the moment of storing, as RocketMQ's timetable does. Any other ends at `now` plus
the delay, exactly, by the shard's clock: `now` is when the lease was looked at, so the way to the log costs nothing.
"""

from dataclasses import dataclass

from duetime_format.levels import DelayLevels


@dataclass(frozen=True, slots=True)
class Wait:
    """`level` 0: no level's lane. `due_at_ms` 0: no lane for any time. Both: it comes back at once."""

    level: int = 0
    due_at_ms: int = 0


def wait_of(delay_ms: int, now_ms: int, levels: DelayLevels) -> Wait:
    """`now_ms`: the shard's clock at which the delay begins."""
    if not delay_ms:
        return Wait()
    level = levels.level_of(delay_ms)
    return Wait(due_at_ms=now_ms + delay_ms) if level is None else Wait(level)
