"""Makes the lanes of a recovered store, by the checkpoint and by the ends that the log has after it."""

from concurrent.futures import Executor

import numpy as np
from duetime_format.changes import LEVELS, StateChange, bodies
from duetime_format.lanes import TIMER_LANE_FIRST, TIMER_LANES_MAX, level_of, queue_of
from duetime_format.levels import DelayLevels
from duetime_format.names import CANCELLED_TOPIC, QUARANTINE_TOPIC, SCHEDULE_TOPIC, STATE_TOPIC, TIMER_TOPIC
from duetime_format.record import Record, encode, with_crc_mark
from duetime_format.units import Ints, dues_of
from duetime_shard.brokers import timers as brokertimers
from duetime_shard.disk import LocalFiles
from duetime_shard.history import LevelHistory
from duetime_shard.laneends import LaneEndReader

from duetime_store.files.directory import StoreDirectory, save_handover
from duetime_store.lanes.levellane import LevelLane
from duetime_store.lanes.order.order import LaneOrder
from duetime_store.lanes.timerlane import NOTHING, TimerLane
from duetime_store.lanes.timerorder import Reach
from duetime_store.lanes.timerrows import RowReader
from duetime_store.log.commitlog import CommitLog
from duetime_store.queues.consumequeue import ConsumeQueue
from duetime_store.recovery.checkpoint import Checkpoint
from duetime_store.settings import StoreSettings
from duetime_store.writing.store import Store


def levels_from_here(
    history: LevelHistory, settings: StoreSettings, commit_log: CommitLog, now_ms: int, *, logged: bool
) -> tuple[LevelHistory, bytes]:
    """The history with this process's table from the end of the log on, and the record to be appended there.

    Args:
        logged: the log of a shard with copies has the table of each leader, since followers have no other way to know
            it. Otherwise the record is empty.

    Raises:
        StartupError: see LevelHistory.check.
    """
    levels, position, row = settings.levels, commit_log.end, b""
    history.check(levels, accept=settings.accept_delay_levels)
    if logged:
        (body,) = bodies([StateChange(LEVELS, "", [str(levels), now_ms])])
        row = encode(Record(STATE_TOPIC, 0, body, with_crc_mark(b""), born_at_ms=now_ms))
        position = commit_log.place(position, len(row))
    return history if history.current == levels else history.changed(position, now_ms, levels), row


def make_levels(
    store: Store, levels: DelayLevels, point: Checkpoint | None, offsets: dict[int, int], ends: LaneEndReader
) -> None:
    """Makes the lanes of levels. `offsets`: of a broker's file, by level."""
    queues = store.queues
    existing = [level_of(queue.queue) for queue in queues.all() if queue.topic == SCHEDULE_TOPIC]
    queues.counts.grow(SCHEDULE_TOPIC, max([18, levels.highest, *existing]))
    queues.counts.grow(QUARANTINE_TOPIC, 1)
    watermarks = dict(enumerate(point.watermarks, 1)) if point else {}
    # Without either, nothing was ever cancelled or replaced here.
    endings = [queue for queue in queues.all() if queue.topic in (CANCELLED_TOPIC, TIMER_TOPIC)]
    may_have_ended = any(queue.max_offset for queue in endings)
    for level in range(1, max([levels.highest, *existing]) + 1):
        queue = queues.get_bytes(SCHEDULE_TOPIC.encode(), queue_of(level))
        lane = LevelLane(level, queue, store.history)
        lane.recover(
            watermarks.get(level, 0),
            offsets.get(level, 0),
            ends.ends(level),
            may_have_ended=may_have_ended,
        )
        store.lanes.add(lane)


def make_timers(
    store: Store,
    directory: StoreDirectory,
    settings: StoreSettings,
    orders: Executor,
    point: Checkpoint | None,
    replayed: LaneEndReader,
) -> None:
    """Makes one lane for each queue that exists or that new messages go to."""
    queues, commit_log, numbers = store.queues, store.log, store.ledger.numbers
    existing = [queue.queue for queue in queues.all() if queue.topic == TIMER_TOPIC]
    count = max([settings.timer_lanes, *(queue + 1 for queue in existing)])
    places = dict(enumerate((point.places or ()) if point else ()))
    handover = brokertimers.handover_at(LocalFiles(directory.root), commit_log.end)
    is_taken_over = handover is not None and handover.position > 0
    reach = Reach(point.position if point and not is_taken_over else None, commit_log.end)
    rows = RowReader(commit_log, numbers)
    for number in range(min(count, TIMER_LANES_MAX)):
        known = queues.known(TIMER_TOPIC.encode(), number)
        queue = known or queues.add(TIMER_TOPIC, number, counted=False)
        order = LaneOrder(directory.disk, directory.timers / str(number), numbers, orders)
        lane = TimerLane(TIMER_LANE_FIRST + number, queue, order, commit_log, store.clock, rows)
        ends = replayed.ends(lane.number)
        if is_taken_over or number not in places:
            ends.add_ended(*_ended_by_broker(directory, commit_log, queue))
        lane.recover(places.get(number, NOTHING), ends, reach)
        store.lanes.add(lane)
    if handover:
        save_handover(handover, directory.disk, directory.config)


def _ended_by_broker(directory: StoreDirectory, commit_log: CommitLog, queue: ConsumeQueue) -> tuple[Ints, Ints]:
    """Entries that are not pending according to a broker's files, if there are any, and their due times."""
    files, offsets = LocalFiles(directory.root), np.arange(queue.min_offset, queue.max_offset)
    units = queue.read_at(offsets)
    pending = brokertimers.pending(files, offsets, units, commit_log.read, queue=queue.queue)
    gone = np.zeros(len(offsets), np.bool_) if pending is None else ~np.isin(offsets, pending)
    return offsets[gone], dues_of(units["tags"][gone])
