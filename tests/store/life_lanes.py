"""Checks of a shard's lanes after a crash against the model of its lives (life.py)."""

from typing import TYPE_CHECKING

import numpy as np
from duetime_format.units import FILLER_SIZE
from duetime_store.lanes.timerlane import TimerLane

if TYPE_CHECKING:
    from tests.store.life import Life

LEVELS = 2
# The lane of messages for any time.
TIMERS = 1_000
MANY = 100_000
Found = dict[tuple[int, int], str]


def check_levels(life: "Life", entries: Found, restored: Found) -> None:
    for level in range(1, LEVELS + 1):
        lane = life.store.lanes[level]
        count = lane.queue.max_offset - lane.queue.min_offset
        done = {number for one, number in restored if one == level and number >= lane.queue.min_offset}
        assert lane.watermark == lane.reached
        known = {*range(lane.queue.min_offset, lane.watermark), *lane.progress().ahead.tolist()}
        assert done == known, f"lane {level} is at {lane.progress()}, restored are {done}"
        assert lane.watermark >= life.restored[level], f"lane {level} forgot what was answered as restored"
        assert lane.pending_count == count - len(done)
        # Without a flush between them, the entry may be lost and its restored record kept.
        torn = () if life.sync else ("",)
        assert all(entries[level, number] in (restored[level, number], *torn) for number in done)
        life.restored[level] = lane.watermark


def check_timers(life: "Life", entries: Found, restored: Found) -> None:
    lane = life.store.lanes[TIMERS]
    assert isinstance(lane, TimerLane)
    done = {number for one, number in restored if one == TIMERS}
    known = {number: message_id for (one, number), message_id in entries.items() if one == TIMERS}
    assert life.timers <= done, f"forgot what was answered as restored: {life.timers - done}"
    # As in `check_levels`: without a flush between them the entry may be lost.
    assert done <= known.keys() or not life.sync
    done &= known.keys()
    units = lane.queue.read_at(np.array(sorted(known), np.int64))
    gone = lane.progress().gone(np.array(sorted(known), np.int64), units["tags"].astype(np.int64))
    fillers = {number for number, unit in zip(sorted(known), units.tolist(), strict=True) if unit[1] == FILLER_SIZE}
    assert {number for number, is_gone in zip(sorted(known), gone.tolist(), strict=True) if is_gone} >= done
    pending = sorted(
        (unit[2], number)
        for number, unit in zip(sorted(known), units.tolist(), strict=True)
        if number not in done | fillers and unit[2] >= 0
    )
    head = lane.head(b"", MANY)
    assert [*zip(head.units["tags"].tolist(), head.entries.tolist(), strict=True)] == pending
    assert lane.pending_count == len(pending)
    for index in (0, len(pending) // 2) if pending else ():
        assert lane.pending_before(pending[index][1]) == index
    torn = () if life.sync else ("",)
    assert all(known[number] in (restored[TIMERS, number], *torn) for number in done)
    life.timers = done
