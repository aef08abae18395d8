"""`duetime store verify` of schedules: chains that damage by hand has broken or doubled."""

from pathlib import Path

import numpy as np
from duetime_format import record
from duetime_format.levels import DelayLevels
from duetime_format.schedules import ALL, SKIP
from duetime_store.offline.verify import verify
from duetime_store.writing import occurrences

from tests.store.conftest import Shard, log_file, sealed, sent
from tests.store.scheduling import LANE, MINUTE_MS, begin, every, occur


def damages(root: Path) -> list[str]:
    return [str(one) for one in verify(root, DelayLevels.parse("1s 5s")).damages]


def passing(shard: Shard, count: int, by_ms: int = MINUTE_MS) -> None:
    for _ in range(count):
        shard.clock.wall_ms += by_ms
        occur(shard)
        shard.flush()


def rewrite(shard: Shard, entry: int, old: bytes, new: bytes) -> None:
    """Changes bytes of a lane entry's record, and its CRC."""
    position, size, _ = shard.store.lanes[LANE].units(np.array([entry]))[0].item()
    data = shard.store.read_record(position, size)
    assert old in data
    changed = sealed(data.replace(old, new))
    record.decode(changed)
    shard.crash()
    with log_file(shard).open("r+b") as file:
        file.seek(position)
        file.write(changed)


def test_sound_chains_are_not_reported(shard: Shard) -> None:
    now_ms = shard.clock.now_ms()
    times = (now_ms + MINUTE_MS, now_ms + 2 * MINUTE_MS)
    begin(shard, every(shard.store, MINUTE_MS, name="each"))
    begin(shard, every(shard.store, MINUTE_MS, name="late", missed=ALL))
    begin(shard, every(shard.store, MINUTE_MS, name="skipped", missed=SKIP))
    begin(shard, every(shard.store, 0, name="listed", at_ms=times, planned=times[0]))
    begin(shard, every(shard.store, 0, name="missed", at_ms=times, planned=times[0]))
    begin(shard, occurrences.paused(every(shard.store, MINUTE_MS, name="paused")))
    shard.put(sent("with LE\x01 in it", body=b"LE\x01DT_SCHEDULE\x01"))
    passing(shard, 1, 3 * MINUTE_MS)
    passing(shard, 4)
    shard.reopen()
    passing(shard, 2)
    shard.crash()
    report = verify(shard.root, DelayLevels.parse("1s 5s"))
    assert (report.damages, report.schedules, report.paused_schedules) == ([], 4, 1)
    shard.open()


def test_a_delivered_occurrence_without_a_next_one_is_reported(shard: Shard) -> None:
    begin(shard, every(shard.store, MINUTE_MS, name="other"))
    begin(shard, every(shard.store, MINUTE_MS))
    passing(shard, 3)
    planned = shard.clock.now_ms()
    rewrite(shard, 7, b"DT_SCHEDULE\x01", b"XX_SCHEDULE\x01")
    (found,) = damages(shard.root)
    assert f"schedule 'report' has no occurrence after this one, planned for {planned} (orders queue 0" in found
    shard.open()


def test_two_pending_occurrences_of_a_schedule_are_reported(shard: Shard) -> None:
    begin(shard, every(shard.store, MINUTE_MS, name="raport"))
    begin(shard, every(shard.store, MINUTE_MS))
    passing(shard, 2)
    rewrite(shard, 4, b"raport", b"report")
    found = damages(shard.root)
    shard.open()
    assert "schedule 'report' of topic 'orders' has 3 pending occurrences (rmq_sys_wheel_timer queue 0" in found[-1]


def test_a_chain_that_ran_twice_is_reported_once(shard: Shard) -> None:
    begin(shard, every(shard.store, MINUTE_MS, name="raport"))
    begin(shard, every(shard.store, MINUTE_MS))
    passing(shard, 3)
    for entry in (0, 2, 4):
        rewrite(shard, entry, b"raport", b"report")
        shard.open()
    shard.crash()
    assert sum("pending occurrences" in one for one in damages(shard.root)) == 1
    shard.open()


def test_a_broken_chain_alone_in_its_lane_is_reported(shard: Shard) -> None:
    begin(shard, every(shard.store, MINUTE_MS))
    passing(shard, 1)
    rewrite(shard, 1, b"DT_SCHEDULE\x01", b"XX_SCHEDULE\x01")
    (found,) = damages(shard.root)
    assert "schedule 'report' has no occurrence after this one" in found
    shard.open()


def test_a_next_occurrence_at_another_time_is_reported(shard: Shard) -> None:
    begin(shard, every(shard.store, MINUTE_MS))
    passing(shard, 3)
    at_ms = shard.clock.now_ms()
    rewrite(shard, 3, b'"planned":%d' % (at_ms + MINUTE_MS), b'"planned":%d' % (at_ms + MINUTE_MS + 1))
    (found,) = damages(shard.root)
    assert f"schedule 'report' has a next occurrence at another time, planned for {at_ms} (orders queue 0" in found
    shard.open()
