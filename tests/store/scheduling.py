"""Schedules put into a store, and their occurrences."""

import numpy as np
from duetime.v1 import schedules_pb2, store_pb2
from duetime_format import record
from duetime_format.schedules import StoredSchedule, pending_schedule, schedule_of
from duetime_format.units import dues_of
from duetime_store.lanes.lane import PENDING
from duetime_store.log.intake import parse
from duetime_store.writing.ends import replace
from duetime_store.writing.missed import pass_missed
from duetime_store.writing.occurrences import occurrence
from duetime_store.writing.staging import OK, PutOutcome
from duetime_store.writing.store import Store

from tests.store.conftest import Shard, restored, timer

LANE = 1_000
MINUTE_MS = 60_000


def every(store: Store, every_ms: int, **own: object) -> StoredSchedule:
    """A schedule of the interval that is made now."""
    now_ms = store.clock.now_ms()
    own = {"name": "report", "every_ms": every_ms, "start_at_ms": now_ms, "planned": now_ms + every_ms} | own
    return StoredSchedule(made_at_ms=now_ms, **own)  # type: ignore[arg-type]


def begin(shard: Shard, schedule: StoredSchedule, body: bytes = b"body") -> None:
    """Stores the first occurrence of a schedule."""
    found = record.decode(timer("first", 1, key=schedule.name, body=body), check_crc=False)
    encoded, _ = occurrence(found, schedule, 0, shard.store.clock.now_ms())
    assert replace(shard.store, encoded, None).statuses == [OK]
    shard.flush()


def pending(store: Store) -> list[StoredSchedule]:
    """The schedules of the lane's pending occurrences."""
    lane = store.lanes[LANE]
    entries = np.arange(lane.queue.min_offset, lane.queue.max_offset)
    found = []
    for position, size, _ in lane.units(entries[lane.states(entries) == PENDING]).tolist():
        schedule = pending_schedule(record.decode(store.read_record(position, size)).properties)
        found += [schedule] if schedule else []
    return found


def occur(shard: Shard) -> PutOutcome:
    """Restores the lane's due entries as the holder does, and stages them."""
    store, lane = shard.store, shard.store.lanes[LANE]
    head = lane.head(b"", 100)
    entries = head.entries[dues_of(head.units["tags"]) <= store.clock.now_ms()]
    intake = parse(b"".join(restored(store, LANE, entry, 1) for entry in entries.tolist()))
    pass_missed(store, intake, lane, entries)
    return store.restore(intake, lane, entries)


def planned(shard: Shard) -> list[int]:
    """The planned times of the delivered occurrences."""
    if "orders" not in shard.store.queues.counts:
        return []
    return [schedule.planned for one in shard.pulled() if (schedule := schedule_of(one.properties))]


def asked(name: str = "report", **own: object) -> store_pb2.PutStoredScheduleRequest:
    """A request for a schedule; each minute, unless `own` has other times. `body`: of its message."""
    body = own.pop("body", b"body")
    assert isinstance(body, bytes)
    create_only = bool(own.pop("create_only", False))
    if not {"every", "at", "cron"} & own.keys():
        own["every"] = schedules_pb2.IntervalTimes(every_ms=MINUTE_MS)
    return store_pb2.PutStoredScheduleRequest(
        record=timer("asked", 1, key=name, body=body),
        schedule=schedules_pb2.Schedule(name=name, **own),  # type: ignore[arg-type]
        create_only=create_only,
    )
