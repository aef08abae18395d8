"""Timers of a 5.x broker's directory: counted and listed, but not delivered.

    timerwheel            1,209,600 slots of 32 bytes: i64 time / 1000 | i64 first, i64 last position in the timer log
                          | i32 count | i32 magic; slot of a time: time / 1000 % number of slots
    timerlog/<20 digits> units of 52 bytes: i32 size | i64 previous unit of the slot, -1: none | i32 magic | i64 time of
                          entry | i32 ms from there to the slot's time | i64 record position | i32 its size
                          | i32 hash of its topic | i64 0
    config/timercheck     4 i64: last slot read, end of the timer log, next unit of the timers' queue, the master's

A slot's units form a chain, newest first. Magic bits: 1 always, 2 rolled (due beyond the wheel's range), 4 the mark
that cancels another one.

Source: RocketMQ 5.3.3 TimerMessageStore, TimerWheel, Slot, TimerLog, TimerCheckpoint.
"""

from struct import Struct
from typing import Any

import numpy as np
from duetime_format.names import TIMER_TOPIC

from duetime_shard.disk import ShardFiles
from duetime_shard.files import LogFiles
from duetime_shard.shard import DirectoryState

_SLOT = np.dtype([("time", ">i8"), ("first", ">i8"), ("last", ">i8"), ("count", ">i4"), ("magic", ">i4")])
_UNIT = Struct(">iqiqiqiiq")
_UNIT_NAMES = ("size", "prevPos", "magic", "enqueueTimeMs", "delayMs", "physicalOffset", "recordSize", "topicHash")
_CHECK = Struct(">qqqq")
_CHECK_NAMES = ("lastReadTimeMs", "lastTimerLogFlushPos", "lastTimerQueueOffset", "masterTimerQueueOffset")


def timers(state: DirectoryState, *, listed: bool) -> dict[str, Any] | None:
    """The timers in the wheel, and the number not in it yet; `slots` only if `listed`. None: there is no wheel."""
    data = state.files.content("timerwheel")
    if data is None:
        return None
    wheel = np.frombuffer(data, _SLOT, len(data) // _SLOT.itemsize)
    check = _check(state.files)
    live = wheel[(wheel["time"] > 0) & (wheel["last"] >= 0)]
    live = live[live["time"] * 1000 >= check["lastReadTimeMs"]]
    live = live[np.argsort(live["time"], kind="stable")]
    queue = state.queues.get((TIMER_TOPIC, 0))
    found: dict[str, Any] = {
        **check,
        "pending": int(live["count"].sum()),
        "notInWheel": max(queue.max_offset - check["lastTimerQueueOffset"], 0) if queue else 0,
    }
    if listed:
        log = LogFiles(state.files, "timerlog")
        found["slots"] = [_slot(log, slot) for slot in live]
    return found


def _check(files: ShardFiles) -> dict[str, int]:
    data = files.read("config/timercheck", 0, _CHECK.size)
    return dict(zip(_CHECK_NAMES, _CHECK.unpack(data.ljust(_CHECK.size, b"\0")), strict=True))


def _slot(log: LogFiles, slot: np.void) -> dict[str, Any]:
    units = []
    position, limit = int(slot["last"]), log.size + log.min_position
    # Each step leads to an older unit, so damaged bytes cannot create a cycle.
    while 0 <= position < limit:
        data = log.read(position, _UNIT.size)
        if len(data) < _UNIT.size:
            break
        fields = dict(zip(_UNIT_NAMES, _UNIT.unpack(data), strict=False))
        if fields["size"] != _UNIT.size:
            break
        units.append({"pos": position, **fields})
        position, limit = fields["prevPos"], position
    times = {"timeMs": int(slot["time"]) * 1000, "num": int(slot["count"])}
    return {**times, "firstPos": int(slot["first"]), "lastPos": int(slot["last"]), "units": units}
