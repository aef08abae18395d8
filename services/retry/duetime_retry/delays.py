"""How a copy waits for its delay: on a lane, then hidden for the rest. Pure.

    delay d, from `now` by the shard's clock         1s lane  5s lane  10s lane ...
    |------------- largest level <= d --------------|--- rest: hidden until DT_VISIBLE_AT = now + d ---|

The copy is stored at s >= now, so its lane gives it back at s + level and it is seen at max(s + level, now + d): never
before now + d, and later by at most s - now, the time from the failure to the log. A longer rest absorbs that. Below
the lowest level there is no lane: the copy is in its topic at once, and the rest is the whole delay.
"""

from dataclasses import dataclass

from duetime_format.levels import DelayLevels


@dataclass(frozen=True, slots=True)
class Wait:
    """`level` 0: no lane. `visible_at_ms` 0: no rest to wait for after the lane."""

    level: int = 0
    visible_at_ms: int = 0


def wait_of(delay_ms: int, now_ms: int, levels: DelayLevels) -> Wait:
    """`now_ms`: the shard's clock at which the delay begins."""
    level, longest_ms = 0, 0
    for number, level_ms in enumerate(levels.delays_ms, 1):
        if longest_ms < level_ms <= delay_ms:
            level, longest_ms = number, level_ms
    return Wait(level, now_ms + delay_ms if delay_ms > longest_ms else 0)
