"""Brings the counts of pending messages up to date: the table as of the checkpoint, and the log after it.

If there is no such table, or its counts do not match the lanes' pending entries, lanes are recounted: those with few
entries at once, others by the surveyor (pending/surveyor.py) while the shard serves.
"""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import structlog
from duetime_format.lanes import is_timer_lane
from duetime_format.units import FILLER_SIZE, Ints, dues_of
from duetime_shard.laneends import LaneEndReader

from duetime_store.counting import countfile
from duetime_store.counting.counts import Counts
from duetime_store.counting.ledger import Ledger
from duetime_store.counting.records import RecordTopics
from duetime_store.files.directory import StoreDirectory
from duetime_store.lanes.lane import ShardLane
from duetime_store.lanes.lanes import ShardLanes
from duetime_store.lanes.order.topics import TopicNumbers
from duetime_store.log.commitlog import CommitLog
from duetime_store.recovery.checkpoint import Checkpoint

log = structlog.get_logger()

# Entries of all lanes counted before the shard serves: a tenth of a second.
AT_ONCE_MAX = 50_000
_STEP_ENTRIES = 8_192


def make_ledger(directory: StoreDirectory, commit_log: CommitLog, now_ms: int) -> Ledger:
    """A ledger with an empty table."""
    numbers = TopicNumbers(directory.disk, directory.timers / "topics")
    return Ledger(Counts(now_ms, followed=numbers.retries), numbers, RecordTopics(commit_log, numbers))


def load_counts(
    ledger: Ledger,
    folder: Path,
    point: Checkpoint | None,
    firsts: Mapping[int, int],
    ends: LaneEndReader,
    lanes: ShardLanes,
) -> None:
    """Fills the ledger's table.

    Args:
        point: the checkpoint to which the queues were brought before the log was read.
        firsts: by lane, the entry after the last one at that checkpoint.
        ends: those of records after it.
    """
    started = time.perf_counter()
    counts = ledger.counts
    saved, reason = countfile.read(folder, point.position) if point else (None, "the whole log was read")
    if saved is None:
        counts.suspects = {lane.number for lane in lanes if lane.pending_count}
    else:
        countfile.fill(counts, saved, ledger.numbers.number)
        for lane in lanes:
            first = firsts.get(lane.number, 0)
            _come(ledger, lane, first)
            _leave(ledger, lane, first, *ends.ends(lane.number).left)
        ledger.check(lanes)
        reason = "counts do not add up"
    wanted = sorted(counts.suspects)
    at_once = _few([lanes[number] for number in wanted])
    for lane in at_once:
        ledger.recount(lane)
    if wanted:
        entries = sum(lanes[number].pending_count for number in wanted)
        took_ms = int((time.perf_counter() - started) * 1000)
        log.warning("recounting pending messages", reason=reason, lanes=wanted, entries=entries, took_ms=took_ms)


def _few(lanes: Sequence[ShardLane]) -> list[ShardLane]:
    """The lanes that are counted at once."""
    chosen, left = [], AT_ONCE_MAX
    for lane in sorted(lanes, key=lambda lane: lane.pending_count):
        left -= lane.pending_count
        if left < 0:
            break
        chosen.append(lane)
    return chosen


def _come(ledger: Ledger, lane: ShardLane, first: int) -> None:
    """Counts the entries from `first` on."""
    stop = lane.queue.max_offset
    for at in range(max(first, lane.queue.min_offset), stop, _STEP_ENTRIES):
        entries = np.arange(at, min(at + _STEP_ENTRIES, stop))
        _change(ledger, lane, entries, dues_of(lane.units(entries)["tags"]), 1)


def _leave(ledger: Ledger, lane: ShardLane, first: int, entries: Ints, dues: Ints) -> None:
    """Subtracts entries. For those before `first` the log has the due times: a crash may have torn an end mark in the
    unit. Later ones count as in their new units, even if their records are damaged or lost."""
    there = (entries >= lane.queue.min_offset) & (entries < lane.queue.max_offset)
    entries, dues = entries[there], dues[there]
    come = entries >= first
    dues[come] = dues_of(lane.units(entries[come])["tags"])
    for at in range(0, len(entries), _STEP_ENTRIES):
        _change(ledger, lane, entries[at : at + _STEP_ENTRIES], dues[at : at + _STEP_ENTRIES], -1)


def _change(ledger: Ledger, lane: ShardLane, entries: Ints, dues: Ints, by: int) -> None:
    units = lane.units(entries)
    there = units["size"] > 0
    if is_timer_lane(lane.number):
        # Nothing is pending there (TimerLane).
        there &= units["size"] != FILLER_SIZE
    if there.any():
        ledger.counts.change(lane.number, entries[there], dues[there], ledger.records.of(units[there]), by)
