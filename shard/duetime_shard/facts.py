"""The facts that records of the log state about a shard, besides the units of their queues.

record                                              fact
outside the lanes, names an entry by DT_ENTRY       restored: the entry has got its place in a queue, or in quarantine
of rmq_sys_wheel_timer, names an entry              replaced: the record is pending in place of that entry
of DT_CANCELLED                                     cancelled: the entries of its rows
of DT_PLANS                                         planned: places promised to entries
of DT_DELETED                                       deleted: the queues of a topic restart after it
of DT_STATE                                         changed: topics; offsets, settings and pauses of groups
an op record, given up, or with a commit's flag     decided: the end of a half message

A copy is a record that retention has appended again, with its own queue offset and store time: the time is older than
those before it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from duetime_format import changes, deletions, ends, halves, layout, plans
from duetime_format.changes import StateChange
from duetime_format.columns import Ints, Key, RecordRun
from duetime_format.deletions import Deletion
from duetime_format.errors import DamagedBytes
from duetime_format.lanes import LANE_TOPIC_NAMES, LANE_TOPICS, lane_of
from duetime_format.names import (
    CANCELLED_TOPIC,
    DELETED_TOPIC,
    FOREIGN_TOPICS,
    GIVEN_UP_TOPIC,
    OP_TOPIC,
    PLANS_TOPIC,
    STATE_TOPIC,
    TIMER_TOPIC,
    is_name,
)
from duetime_format.plans import Plan
from duetime_format.record import Record
from duetime_format.units import Mask

T = TypeVar("T")

_CANCELLED, _PLANS, _DELETED, _STATE = (
    (topic.encode(), 0) for topic in (CANCELLED_TOPIC, PLANS_TOPIC, DELETED_TOPIC, STATE_TOPIC)
)
_TIMERS, _DECIDING = (TIMER_TOPIC.encode(),), (OP_TOPIC.encode(), GIVEN_UP_TOPIC.encode())
# Placeholder for an offset.
NOWHERE = -1
# Topics whose records retention appends again, with their queue offset.
MOVED_TOPICS = LANE_TOPICS | FOREIGN_TOPICS
# Larger numbers of a queue are damage: RocketMQ has no limit, but no broker has a topic with more queues.
QUEUE_ID_MAX = 65_535
NO_ROWS = np.empty((5, 0), np.int64)


@dataclass(slots=True)
class Facts:
    """The facts of one run, in the order of its records.

    restored, replaced, cancelled   rows lane, entry, due time, position of the record, and 1 for a copy
    """

    # Mask of the run's records.
    copied: Mask
    restored: Ints = field(default_factory=lambda: NO_ROWS)
    replaced: Ints = field(default_factory=lambda: NO_ROWS)
    cancelled: Ints = field(default_factory=lambda: NO_ROWS)
    # Plans and the store times of their records.
    planned: list[tuple[int, Plan]] = field(default_factory=list)
    deleted: list[Deletion] = field(default_factory=list)
    # Positions of records, and their changes of state.
    changed: list[tuple[int, list[StateChange]]] = field(default_factory=list)
    # Position and description of each unreadable record.
    damage: list[tuple[int, str]] = field(default_factory=list)
    # The same of plans, which are no damage: no message needs one, but for its place after a power cut.
    unread_plans: list[tuple[int, str]] = field(default_factory=list)


def facts_of(run: RecordRun, before_ms: int = 0) -> Facts:
    """`before_ms`: the largest store time before the run."""
    facts = Facts(run.stored_at_ms < np.maximum(np.maximum.accumulate(run.stored_at_ms), before_ms))
    if run.entries is not None:
        rows = np.concatenate([run.entries, run.positions[None], facts.copied[None].astype(np.int64)])
        facts.restored = rows[:, are_restored(run)]
        facts.replaced = rows[:, (run.entries[0] >= 0) & run.within(_TIMERS)]
    facts.cancelled = np.concatenate([NO_ROWS, *_read(run, _CANCELLED, _cancelled, facts.damage)], axis=1)
    facts.planned = list(_read(run, _PLANS, _planned, facts.unread_plans))
    facts.deleted = list(_read(run, _DELETED, _deleted, facts.damage))
    facts.changed = list(_read(run, _STATE, _changed, facts.damage))
    return facts


def are_restored(run: RecordRun) -> Mask:
    """Mask of the records with entries of their own; those in lanes name the ones that they replace."""
    if run.entries is None:
        return np.zeros(run.count, np.bool_)
    mask: Mask = (run.entries[0] >= 0) & ~run.within(LANE_TOPIC_NAMES)
    return mask


def is_queue(topic: str, queue: int) -> bool:
    """Whether a record can belong to this queue: damage that no CRC reveals must not create queues."""
    there = lane_of(topic, queue) is not None if topic in LANE_TOPICS else 0 <= queue <= QUEUE_ID_MAX
    return there and is_name(topic)


def is_possible(offsets: Ints, positions: Ints) -> Mask:
    """Whether offsets are plausible: every record of a queue takes space in the log before the next one."""
    possible: Mask = (offsets >= 0) & (offsets <= positions // layout.RECORD_BYTES_MIN)
    return possible


def decided(run: RecordRun) -> tuple[Ints, list[tuple[int, str]]]:
    """The ends of half messages of queue 0, and damage as in Facts.

    Returns:
        Rows offset (NOWHERE: not named, as in brokers' commits), code (duetime_format.halves), index of the record, and
        1 for an op record. Brokers ignore op records that they can't read; ours are damage.
    """
    rows, damage = list[tuple[int, int, int, int]](), list[tuple[int, str]]()
    for index in np.flatnonzero(may_decide(run)).tolist():
        found = run.record(index)
        if found.topic == OP_TOPIC:
            code = halves.decision_of(found.properties)
            try:
                rows += [(offset, code, index, 1) for offset in halves.ended_by(found.body) if not found.queue]
            except DamagedBytes as error:
                if code != halves.ENDED:
                    damage.append((found.position, error.text))
        elif found.topic == GIVEN_UP_TOPIC:
            offset = halves.half_of(found.properties)
            rows.append((NOWHERE if offset is None else offset, halves.GIVEN_UP, index, 0))
        else:
            offset = halves.commits(found.sys_flag, found.properties)
            if offset is not None or (found.prepared_transaction_offset and halves.half_of(found.properties) is None):
                rows.append((NOWHERE if offset is None else offset, halves.COMMITTED, index, 0))
    return np.array(rows, np.int64).reshape(-1, 4).T, damage


def may_decide(run: RecordRun) -> Mask:
    """Mask of the records that may end half messages."""
    return run.within(_DECIDING) | are_committed(run)


def are_committed(run: RecordRun) -> Mask:
    """Mask of the records with a commit's flag."""
    mask: Mask = run.flags & layout.SYS_TRANSACTION == layout.SYS_TRANSACTION_COMMIT
    return mask


def by_lane(rows: Ints) -> Iterator[tuple[int, Ints]]:
    """Lanes, and the rest of their rows."""
    lanes = rows[0]
    if lanes.size and (lanes == lanes[0]).all():
        yield int(lanes[0]), rows[1:]
        return
    for lane in np.unique(lanes).tolist():
        yield lane, rows[1:, lanes == lane]


def _read(run: RecordRun, key: Key, read: Callable[[Record], T], damage: list[tuple[int, str]]) -> Iterator[T]:
    """The readable records of a queue, each by `read`; adds the others to `damage`."""
    for found in map(run.record, run.rows(key)):
        try:
            yield read(found)
        except DamagedBytes as error:
            damage.append((found.position, f"record of {found.topic}: {error.text}"))


def _cancelled(found: Record) -> Ints:
    ended = ends.decode(found.body)
    rows = np.zeros((5, len(ended)), np.int64)
    rows[:3] = ended["lane"], ended["entry"], ended["due"]
    rows[3] = found.position
    return rows


def _planned(found: Record) -> tuple[int, Plan]:
    return found.stored_at_ms, plans.decode(found.body)


def _deleted(found: Record) -> Deletion:
    return deletions.decode(found.body, found.position)


def _changed(found: Record) -> tuple[int, list[StateChange]]:
    return found.position, changes.decode(found.body)
