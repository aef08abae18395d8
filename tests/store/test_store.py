"""The shard's state: places, lanes, fencing, repeated sends."""

import zlib

import pytest
from duetime_core.errors import InvalidArgument, NotFound, Overloaded, ReadOnly, StartupError
from duetime_format import record
from duetime_store.writing.staging import DUPLICATE, GAP, NOT_DUE, OK, REFUSED

from tests.store.conftest import HandClock, Shard, ids, restored, sent


def test_records_get_consecutive_offsets_and_positions(shard: Shard) -> None:
    outcome = shard.put(sent("A"), sent("B"), sent("C", queue=1))
    assert outcome.queue_offsets == [0, 1, 0]
    first, second = shard.pulled()
    assert (first.position, second.position) == (0, first.size)
    assert (first.queue_offset, second.queue_offset) == (0, 1)
    assert first.stored_at_ms == shard.clock.wall_ms


def test_nothing_is_visible_before_it_is_durable(shard: Shard) -> None:
    shard.store.put(sent("A"))
    assert shard.pulled() == []
    shard.flush()
    assert ids(shard.pulled()) == ["A"]


def test_a_put_during_a_flush_waits_for_the_next(shard: Shard) -> None:
    shard.store.put(sent("A"))
    batch = shard.store.take()
    shard.store.put(sent("B"))
    shard.store.log.write(batch.runs)
    shard.store.publish(batch, 0)
    assert ids(shard.pulled()) == ["A"]
    shard.flush()
    assert ids(shard.pulled()) == ["A", "B"]


def test_delayed_record_is_due_after_its_level(shard: Shard) -> None:
    outcome = shard.put(sent("A", level=2))
    assert outcome.due_at_ms == [shard.clock.wall_ms + 5_000]
    assert shard.store.lanes[2].pending_count == 1
    assert shard.store.lanes[2].queue.read(0, 1)["tags"].tolist() == [shard.clock.wall_ms + 5_000]


def test_level_above_the_table_is_refused_alone(shard: Shard) -> None:
    outcome = shard.put(sent("A"), sent("B", level=3), sent("C"))
    assert outcome.statuses == [OK, REFUSED, OK]
    assert outcome.faults == {1: "level 3 is above the highest, 2"}
    assert ids(shard.pulled()) == ["A", "C"]


def test_entry_is_not_restored_before_its_time(shard: Shard) -> None:
    shard.put(sent("A", level=1))
    shard.clock.wall_ms += 999
    assert shard.restore(1, 0, 1).statuses == [NOT_DUE]
    shard.clock.wall_ms += 1
    assert shard.restore(1, 0, 1).statuses == [OK]
    assert ids(shard.pulled()) == ["A"]


def test_entry_is_restored_once(shard: Shard) -> None:
    shard.put(sent("A", level=1), sent("B", level=1))
    shard.clock.wall_ms += 1_000
    assert shard.restore(1, 0, 2).statuses == [OK, OK]
    again = shard.restore(1, 0, 2)
    assert again.statuses == [DUPLICATE, DUPLICATE]
    assert again.watermark == 2
    assert ids(shard.pulled()) == ["A", "B"]


def test_entry_behind_a_missing_one_is_a_gap(shard: Shard) -> None:
    shard.put(sent("A", level=1), sent("B", level=1), sent("C", level=1))
    shard.clock.wall_ms += 1_000
    assert shard.restore(1, 1, 2).statuses == [GAP, GAP]
    assert shard.restore(1, 0, 1).statuses == [OK]
    assert shard.restore(1, 0, 3).statuses == [DUPLICATE, OK, OK]


def test_entry_that_does_not_exist_is_a_gap(shard: Shard) -> None:
    restored = record.encode(record.Record("orders", 0, b"", record.lane_entry(1, 0, 0)))
    assert shard.put_entries(restored, lane=1, first_entry=0).statuses == [GAP]


def test_restored_record_that_names_another_entry_is_refused(shard: Shard) -> None:
    shard.put(sent("A", level=1))
    shard.clock.wall_ms += 1_000
    wrong = record.encode(record.Record("orders", 0, b"", record.lane_entry(1, 7, shard.clock.wall_ms)))
    assert shard.put_entries(wrong, lane=1, first_entry=0).statuses == [REFUSED]
    assert shard.store.lanes[1].pending_count == 1


def test_sent_record_can_not_name_a_lane_entry(shard: Shard) -> None:
    forged = record.encode(record.Record("orders", 0, b"", record.lane_entry(1, 0, 0)))
    assert shard.put(forged).statuses == [REFUSED]


def test_quarantined_entry_is_counted_apart(shard: Shard) -> None:
    shard.put(sent("A", level=1).replace(b"REAL_QID\x010", b"REAL_QID\x01x"))
    shard.clock.wall_ms += 1_000
    assert shard.restore(1, 0, 1).statuses == [OK]
    lane = shard.store.lanes[1]
    assert (lane.quarantined_count, lane.lateness.count, lane.pending_count) == (1, 0, 0)


def test_watermark_moves_when_the_restored_record_is_durable(shard: Shard) -> None:
    shard.put(sent("A", level=1))
    shard.clock.wall_ms += 1_000
    shard.stage_entries(restored(shard.store, 1, 0, 1), lane=1, first_entry=0)
    assert (shard.store.lanes[1].watermark, shard.store.lanes[1].reached) == (0, 1)
    shard.flush()
    assert shard.store.lanes[1].watermark == 1


def test_lateness_is_counted_from_due_to_durable(shard: Shard) -> None:
    shard.put(sent("A", level=1))
    shard.clock.wall_ms += 1_007
    shard.restore(1, 0, 1)
    assert shard.store.lanes[1].lateness.percentiles_ms() == (7.0, 7.0)


@pytest.mark.parametrize("level", [0, 1])
def test_repeated_send_is_answered_with_its_first_result(shard: Shard, level: int) -> None:
    shard.put(sent("A", level=level), sent("B", level=level))
    shard.clock.wall_ms += 50
    first_due = shard.clock.wall_ms - 50 + 1_000 if level else 0
    outcome = shard.put(sent("B", level=level), sent("C", level=level))
    assert outcome.statuses == [DUPLICATE, OK]
    assert outcome.queue_offsets == [1, 2]
    assert outcome.due_at_ms[0] == first_due
    assert outcome.duplicate_queues == {0: 0}


def test_repeated_send_is_known_before_it_is_durable_and_after_a_crash(shard: Shard) -> None:
    shard.store.put(sent("A"))
    assert shard.store.put(sent("A")).statuses == [DUPLICATE]
    shard.flush()
    shard.checkpoint()
    shard.reopen()
    assert shard.put(sent("A")).statuses == [DUPLICATE]
    assert ids(shard.pulled()) == ["A"]


def test_repeated_send_is_distinguished_from_an_equal_hash(shard: Shard) -> None:
    # CRC-32 of both is the same.
    one, other = "plumless", "buckeroo"
    assert zlib.crc32(one.encode()) == zlib.crc32(other.encode())
    shard.put(sent(one), sent(other))
    assert shard.put(sent(one), sent(other)).queue_offsets == [0, 1]


def test_send_with_a_used_id_is_always_a_repetition(shard: Shard) -> None:
    shard.put(sent("A"))
    assert shard.put(sent("A")).statuses == [DUPLICATE]


def test_wall_clock_that_steps_back_shifts_nothing(shard: Shard, clock: HandClock) -> None:
    shard.put(sent("A", level=1))
    stored_at_ms = clock.wall_ms
    clock.wall_ms -= 262_000
    outcome = shard.put(sent("B", level=1))
    assert outcome.stored_at_ms == stored_at_ms
    clock.wall_ms += 2_000
    assert shard.restore(1, 0, 1).statuses == [NOT_DUE]
    clock.wall_ms = stored_at_ms + 1_000
    assert shard.restore(1, 0, 2).statuses == [OK, OK]


def test_time_does_not_go_back_over_a_restart(shard: Shard, clock: HandClock) -> None:
    shard.put(sent("A"))
    stored_at_ms = clock.wall_ms
    clock.wall_ms -= 60_000
    shard.reopen()
    assert shard.put(sent("B")).stored_at_ms == stored_at_ms
    assert shard.store.clock.behind_ms == 60_000


@pytest.mark.parametrize("junk", [b"junk", bytes(200), sent("A")[:-1], sent("A") + b"x"])
def test_bytes_that_are_no_records_are_refused_whole(shard: Shard, junk: bytes) -> None:
    with pytest.raises(InvalidArgument, match="no whole record at byte"):
        shard.put(junk)
    assert shard.store.take() is None


def test_refused_and_repeated_records_leave_no_gaps(shard: Shard) -> None:
    shard.put(sent("A"))
    outcome = shard.put(sent("B"), sent("C", level=3), sent("A"), sent("D", level=2), sent("E", queue=1), sent("F"))
    assert outcome.statuses == [OK, REFUSED, DUPLICATE, OK, OK, OK]
    assert outcome.queue_offsets == [1, -1, 0, 0, 0, 2]
    assert outcome.due_at_ms == [0, 0, 0, shard.clock.wall_ms + 5_000, 0, 0]
    assert ids(shard.pulled()) == ["A", "B", "F"]
    last = shard.pulled()[-1]
    assert (
        shard.store.published_end
        == last.position + last.size
        == sum(len(sent(n)) for n in "ABEF") + len(sent("D", level=2))
    )


def test_entries_before_and_behind_one_that_is_refused(shard: Shard) -> None:
    shard.put(*(sent(f"D{n}", level=1, queue=n % 2) for n in range(5)))
    shard.clock.wall_ms += 1_000
    shard.restore(1, 0, 1)
    records = [restored(shard.store, 1, n, 1) for n in (0, 1, 2, 1, 4)]
    outcome = shard.put_entries(*records, lane=1, first_entry=0)
    assert outcome.statuses == [DUPLICATE, OK, OK, REFUSED, GAP]
    assert outcome.queue_offsets == [-1, 0, 1, -1, -1]
    assert outcome.watermark == 3
    assert list(outcome.faults) == [3]


def test_record_larger_than_a_segment_is_refused_alone(shard: Shard) -> None:
    outcome = shard.put(sent("A", body=bytes(1024 * 1024)), sent("B"))
    assert outcome.statuses == [REFUSED, OK]
    assert "a segment of this shard holds 1048568" in outcome.faults[0]


def test_too_many_waiting_bytes_are_refused(tmp_path, clock: HandClock) -> None:
    shard = Shard(tmp_path / "s", clock, waiting_bytes_max=1024 * 1024)
    shard.store.put(sent("A", body=bytes(900_000)))
    with pytest.raises(Overloaded, match="wait for the flush"):
        shard.store.put(sent("B", body=bytes(900_000)))
    shard.flush()
    shard.put(sent("B", body=bytes(900_000)))
    shard.crash()


def test_failed_flush_refuses_everything_from_then_on(shard: Shard) -> None:
    shard.put(sent("A"))
    shard.store.fail("writing the log: Input/output error")
    with pytest.raises(ReadOnly, match="Input/output error"):
        shard.put(sent("B"))
    assert ids(shard.pulled()) == ["A"]


def test_unknown_lane_and_queue_are_named(shard: Shard) -> None:
    with pytest.raises(NotFound, match="lane 3 is not one of"):
        shard.put_entries(sent("A"), lane=3, first_entry=0)
    with pytest.raises(NotFound, match="topic nope is not known"):
        shard.pulled("nope")
    shard.put(sent("A"))
    with pytest.raises(NotFound, match="queue 1 is not within 0 and 0 of topic orders"):
        shard.pulled("orders", 1)


def test_directory_is_held_by_one_store(shard: Shard) -> None:
    with pytest.raises(StartupError, match="is in use by another process"):
        Shard(shard.root, shard.clock)


def test_records_fill_segments_and_queue_files(shard: Shard) -> None:
    body = bytes(9_000)
    for number in range(250):
        shard.put(sent(f"{number}", body=body))
    assert ids(shard.pulled()) == [f"{number}" for number in range(250)]
    segments = sorted((shard.root / "commitlog").iterdir())
    assert [path.name for path in segments] == [f"{n * 1024 * 1024:020d}" for n in range(3)]
    assert all(path.stat().st_size == 1024 * 1024 for path in segments)
    assert len(list((shard.root / "consumequeue/orders/0").iterdir())) == 3
    shard.reopen()
    assert ids(shard.pulled()) == [f"{number}" for number in range(250)]


def test_one_put_may_span_segments(shard: Shard) -> None:
    shard.put(*(sent(f"{number}", body=bytes(9_000)) for number in range(250)))
    assert ids(shard.pulled()) == [f"{number}" for number in range(250)]
    (shard.root / "checkpoint").unlink(missing_ok=True)
    assert shard.reopen().report.records == 250
    assert ids(shard.pulled()) == [f"{number}" for number in range(250)]
