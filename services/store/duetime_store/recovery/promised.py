"""Keeps the promises of plans (writing/promises.py): the last step of a recovery.

A reader may have seen a restored record that a power cut lost. The plan is in the log, and so is the pending record, so
the entry gets the same place again. Whether a reader saw it is unknown and does not matter: it was due.

    the entry is restored or has ended             nothing to do: it has a place, or needs none
    an earlier entry of its lane is pending        it had no place yet
    a later plan gives the place to another entry  the plan was given up before the entry had it
    a later plan gives the entry another place     likewise
    the place holds another record                 the entry had not got it
    the entry is not due                           it had no place yet
    a schedule has a next occurrence               its record is not readable before its flush

"Due" is by the shard's clock. If that was set back since, it advances to the time of the plan, at most PLAN_MS_MAX
after the log's latest time: the start alone has taken longer.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import structlog
from duetime_format import record
from duetime_format.columns import Key
from duetime_format.errors import DamagedBytes
from duetime_format.placing import place
from duetime_format.plans import PLAN_MS_MAX, Plan
from duetime_format.restore import PulledEntry, UnrestorableEntry, restore
from duetime_format.units import FILLER, UNIT_TYPE, dues_of

from duetime_store.lanes.lane import PENDING, ShardLane
from duetime_store.log.intake import Intake, parse
from duetime_store.queues.consumequeue import ConsumeQueue
from duetime_store.writing.occurrences import has_next
from duetime_store.writing.staging import OK
from duetime_store.writing.store import Store

log = structlog.get_logger()


class _PromisedEntry(NamedTuple):
    made_at_ms: int
    lane: ShardLane
    entry: int
    key: Key
    offset: int


def keep_promises(store: Store, plans: Iterable[tuple[int, Plan]]) -> int:
    """Gives entries the places again in which readers may have seen them. Returns their number; all is durable on
    return.

    Raises:
        OSError: there is no room for them.
    """
    promised = list(_pending(store, plans))
    # If two plans name one place, or one entry, the later counts.
    of_place = {(one.key, one.offset): index for index, one in enumerate(promised)}
    of_entry = {(one.lane.number, one.entry): index for index, one in enumerate(promised)}
    last = sorted(set(of_place.values()) & set(of_entry.values()))
    count = sum(_keep(store, promised[index]) for index in last)
    batch = store.take()
    if batch is not None:
        for segment in store.log.write(batch.runs):
            segment.flush()
        store.publish(batch, store.clock.now_ms())
        if count:
            log.warning("messages written again in their promised places", count=count)
    return count


def _pending(store: Store, plans: Iterable[tuple[int, Plan]]) -> Iterator[_PromisedEntry]:
    """The rows of pending entries."""
    known = [(made_at_ms, plan) for made_at_ms, plan in plans if plan.lane in store.lanes]
    of_lane: dict[int, list[int]] = {}
    for index, (_, plan) in enumerate(known):
        of_lane.setdefault(plan.lane, []).append(index)
    rows = [plan.rows for _, plan in known]
    for number, own in of_lane.items():
        # One lookup for all: nearly none is pending.
        joined = np.concatenate([rows[index] for index in own])
        is_pending = store.lanes[number].states(joined["entry"].astype(np.int64)) == PENDING
        ends = np.cumsum([len(rows[index]) for index in own])
        for index, mask in zip(own, np.split(is_pending, ends[:-1]), strict=True):
            rows[index] = rows[index][mask]
    for (made_at_ms, plan), left in zip(known, rows, strict=True):
        for number, entry, offset in left.tolist():
            yield _PromisedEntry(made_at_ms, store.lanes[plan.lane], entry, plan.queues[number], offset)


def _keep(store: Store, one: _PromisedEntry) -> bool:
    """Stages the restored record of an entry, if it may have had its place."""
    lane, entries = one.lane, np.array([one.entry])
    units = lane.units(entries)
    due_at_ms = int(dues_of(units["tags"])[0])
    if not lane.fence(entries).is_next[0] or not _is_due(store, due_at_ms, one.made_at_ms):
        return False
    position, size, _ = units[0].item()
    try:
        intake = parse(restore(PulledEntry(lane.number, one.entry, due_at_ms, store.read_record(position, size))))
    except (DamagedBytes, UnrestorableEntry):
        return False
    if intake.keys != [one.key] or has_next(intake, lane, store.clock.now_ms()):
        # The flush with a next occurrence has a record without a promise: no reader has seen any of it.
        return False
    queue = store.queues.get_bytes(*one.key)
    if queue.next_offset == one.offset:
        return store.restore(intake, lane, entries).statuses == [OK]
    if not _is_free(store, queue, one.offset):
        return False
    _fill(store, intake, one, queue, due_at_ms)
    return True


def _is_due(store: Store, due_at_ms: int, made_at_ms: int) -> bool:
    clock = store.clock
    if due_at_ms > clock.now_ms() and due_at_ms <= made_at_ms + PLAN_MS_MAX and clock.behind_ms:
        clock.seen(due_at_ms)
    return due_at_ms <= clock.now_ms()


def _is_free(store: Store, queue: ConsumeQueue, offset: int) -> bool:
    """Whether a place in the queue holds no readable record. Places before the queue's first unit hold none: retention
    deletes a plan before the records after it, so a power cut lost those."""
    if offset < queue.min_offset:
        return True
    if offset >= queue.max_offset:
        return False
    position, size, _ = queue.read(offset, 1)[0].item()
    try:
        record.decode(store.read_record(position, size))
    except DamagedBytes:
        return True
    return False


def _fill(store: Store, intake: Intake, one: _PromisedEntry, queue: ConsumeQueue, due_at_ms: int) -> None:
    """Stages the record for a place that the queue has passed: a power cut lost it and kept the records after it."""
    entries, offsets = np.array([one.entry]), np.array([one.offset])
    if one.offset < queue.min_offset:
        queue.rebuild_copies(offsets, np.frombuffer(FILLER, UNIT_TYPE))
    placed = place(intake, np.zeros(1, np.int64), offsets.tolist(), [0], store.clock.now_ms())
    store.move(queue, offsets, np.frombuffer(placed.units, UNIT_TYPE).copy(), bytes(placed.data))
    one.lane.stage(entries, one.lane.units(entries))
    store.staged.restored.append(store.ledger.leaving(one.lane, intake, entries, np.array([due_at_ms])))
