"""Pending entries that end without being restored: cancelled, or replaced by another record. The steps of the writer.

a cancel      rows of DT_CANCELLED, for entries of any lanes
a replacing   one record of a lane for any time, with the entry that it replaces
"""

from collections.abc import Sequence

import numpy as np
from duetime_format import ends, record, subjects
from duetime_format.ends import END_BYTES
from duetime_format.names import CANCELLED_TOPIC
from duetime_format.record import Record
from duetime_format.units import Ints

from duetime_store.lanes.lane import ShardLane
from duetime_store.lanes.lanes import ShardLanes
from duetime_store.writing.staging import OK, PutOutcome
from duetime_store.writing.store import Store

# Maximum bytes of rows in one record.
RECORD_BYTES = 256 * 1024 // END_BYTES * END_BYTES


def state_of(lanes: ShardLanes, number: int, entry: int) -> int:
    """PENDING, RESTORED, CANCELLED or UNKNOWN (lanes/lane.py)."""
    return int(lanes[number].states(np.array([entry]))[0])


def cancel(store: Store, ended: Sequence[tuple[ShardLane, Ints, Ints]]) -> None:
    """Stages the ends of pending entries (lane, entries, due times), in one record unless they exceed RECORD_BYTES.

    Raises:
        ReadOnly: nothing is staged.
    """
    store.gate.check_write()
    rows = [ends.encode(lane.number, entries, dues) for lane, entries, dues in ended]
    body, now_ms = b"".join(rows), store.clock.now_ms()
    for at in range(0, len(body), RECORD_BYTES):
        part = body[at : at + RECORD_BYTES]
        properties = subjects.properties_of(ends.words_of(part), store.indexed.since(CANCELLED_TOPIC))
        found = Record(CANCELLED_TOPIC, 0, part, properties, born_at_ms=now_ms)
        store.stage_own(record.encode(found))
    for lane, entries, _ in ended:
        _stage(store, lane, entries)


def replace(store: Store, encoded: bytes, place: tuple[int, int] | None) -> PutOutcome:
    """Stages a record and the end of the pending entry that it replaces. `place`: that entry's lane and number, if any.

    Raises:
        As Store.admit.
    """
    intake = store.admit(encoded)
    outcome = PutOutcome.of_nothing(intake.count, OK, store.clock.now_ms())
    for index, fault in store.sent_faults(intake, replace=True).items():
        outcome.refuse(index, fault)
    if outcome.statuses == [OK]:
        stored = PutOutcome([], stored_at_ms=outcome.stored_at_ms)
        store.stage_sent(intake, stored)
        outcome.take_places([0], stored)
        if place is not None:
            lane, entry = place
            _stage(store, store.lanes[lane], np.array([entry]))
    return outcome


def _stage(store: Store, lane: ShardLane, entries: Ints) -> None:
    lane.stage_cancel(entries)
    store.staged.ended.append((lane, entries))
