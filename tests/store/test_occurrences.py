"""Occurrences of schedules: the next one is stored in one step with the restored one, and each occurs once."""

from dataclasses import replace
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
from duetime_format import record
from duetime_format.columns import entry_of
from duetime_format.levels import DELAY_MS_MAX, DelayLevels
from duetime_format.plans import PLAN_MS_MAX
from duetime_format.properties import as_text, value_of
from duetime_format.schedules import ALL, SKIP, schedule_of
from duetime_store.log.intake import parse
from duetime_store.offline.export import export_directory
from duetime_store.offline.verify import verify
from duetime_store.writing import occurrences
from duetime_store.writing.planner import PAUSE_MS
from duetime_store.writing.promising import promise
from duetime_store.writing.staging import CANCELLED, DUPLICATE, NOT_DUE, OK

from tests.store.conftest import HandClock, Shard, ids, log_file, restored, sent
from tests.store.counted import check_counts
from tests.store.scheduling import LANE, MINUTE_MS, begin, every, occur, pending, planned

DAY_MS = 86_400_000
START = HandClock().now_ms()


def fall_due(shard: Shard) -> None:
    shard.clock.wall_ms = pending(shard.store)[0].planned


def test_next_occurrence_comes_with_the_restored_one(shard: Shard) -> None:
    begin(shard, every(shard.store, MINUTE_MS))
    for number in range(1, 4):
        assert occur(shard).statuses == []
        shard.clock.wall_ms += MINUTE_MS
        assert occur(shard).statuses == [OK]
        shard.flush()
        assert [one.planned for one in pending(shard.store)] == [START + (number + 1) * MINUTE_MS]
        check_counts(shard.store)
    assert planned(shard) == [START + number * MINUTE_MS for number in (1, 2, 3)]
    found = shard.pulled()
    assert len(set(ids(found))) == 3
    assert {one.body for one in found} == {b"body"}
    assert [entry_of(one)[1] for one in found] == [0, 1, 2]  # type: ignore[index]


def test_an_early_restore_makes_no_next_occurrence(shard: Shard) -> None:
    begin(shard, every(shard.store, MINUTE_MS))
    assert shard.stage_entries(restored(shard.store, LANE, 0, 1), lane=LANE, first_entry=0).statuses == [NOT_DUE]
    shard.flush()
    assert len(pending(shard.store)) == 1
    assert shard.store.lanes[LANE].queue.max_offset == 1


def test_a_second_restore_makes_no_second_next_one(shard: Shard) -> None:
    begin(shard, every(shard.store, MINUTE_MS))
    shard.clock.wall_ms += MINUTE_MS
    again = restored(shard.store, LANE, 0, 1)
    assert occur(shard).statuses == [OK]
    assert shard.stage_entries(again, lane=LANE, first_entry=0).statuses == [DUPLICATE]
    shard.flush()
    assert shard.stage_entries(again, lane=LANE, first_entry=0).statuses == [DUPLICATE]
    shard.flush()
    assert len(pending(shard.store)) == len(planned(shard)) == 1


def test_occurrences_among_other_messages_keep_the_lanes_order(shard: Shard) -> None:
    begin(shard, every(shard.store, 1_000, name="a"))
    shard.put(sent("plain"), sent("level", level=1))
    begin(shard, every(shard.store, 1_000, name="b"))
    shard.clock.wall_ms += 1_000
    assert occur(shard).statuses == [OK, OK]
    shard.restore(1, 0, 1)
    shard.flush()
    assert [one.planned for one in pending(shard.store)] == [START + 2_000] * 2
    assert shard.restore(1, 0, 1).statuses == [DUPLICATE]
    assert sorted(ids(shard.pulled()))[-2:] == ["level", "plain"]
    shard.reopen()
    assert len(planned(shard)) == 2
    check_counts(shard.store)


def spans(shard: Shard) -> list[tuple[int, int]]:
    """(position, size) of the next occurrence and of the restored one, which are a batch."""
    lane = shard.store.lanes[LANE]
    following = lane.units(np.array([lane.queue.max_offset - 1]))[0].item()[:2]
    topic = shard.store.queues.find("orders", 0)
    return [following, topic.read(topic.max_offset - 1, 1)[0].item()[:2]]


# The part of each record that a power cut keeps.
KEPT = [(0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (0.5, 0.0), (0.5, 1.0), (1.0, 0.5), (0.0, 0.5), (1.0, 0.99), (0.99, 1.0)]


@pytest.mark.parametrize("more", [False, True])
@pytest.mark.parametrize("kept", KEPT)
def test_a_torn_write_leaves_the_occurrence_pending(shard: Shard, kept: tuple[float, float], more: bool) -> None:
    begin(shard, every(shard.store, MINUTE_MS), body=b"body" * 1_000)
    shard.clock.wall_ms += MINUTE_MS
    assert occur(shard).statuses == [OK]
    shard.flush()
    torn = spans(shard)
    if more:
        shard.put(sent("later"))
    shard.crash()
    with log_file(shard).open("r+b") as file:
        for (position, size), share in zip(torn, kept, strict=True):
            file.seek(position + int(size * share))
            file.write(bytes(size - int(size * share)))
    shard.open()
    assert planned(shard) == []
    assert [one.planned for one in pending(shard.store)] == [START + MINUTE_MS]
    assert occur(shard).statuses == [OK]
    shard.flush()
    shard.reopen()
    assert planned(shard) == [START + MINUTE_MS]
    assert [one.planned for one in pending(shard.store)] == [START + 2 * MINUTE_MS]
    check_counts(shard.store)
    shard.crash()
    # The erased batch is a gap if records follow it.
    assert len(verify(shard.root, DelayLevels.parse("1s 5s")).damages) == more * (kept != (1.0, 1.0))
    shard.open()


def test_a_killed_process_leaves_both(shard: Shard) -> None:
    begin(shard, every(shard.store, MINUTE_MS))
    for _ in range(3):
        fall_due(shard)
        assert occur(shard).statuses == [OK]
        shard.flush()
        shard.reopen()
    assert planned(shard) == [START + number * MINUTE_MS for number in (1, 2, 3)]
    assert [one.planned for one in pending(shard.store)] == [START + 4 * MINUTE_MS]


def test_a_dropped_batch_drops_both(shard: Shard) -> None:
    begin(shard, every(shard.store, MINUTE_MS))
    fall_due(shard)
    assert occur(shard).statuses == [OK]
    shard.store.undo()
    assert len(pending(shard.store)) == 1
    assert occur(shard).statuses == [OK]
    shard.flush()
    assert planned(shard) == [START + MINUTE_MS]
    assert len(pending(shard.store)) == 1


def test_a_promised_occurrence_is_not_readable_before_its_flush(shard: Shard) -> None:
    begin(shard, every(shard.store, MINUTE_MS))
    shard.put(sent("before"))
    shard.clock.wall_ms += MINUTE_MS - PLAN_MS_MAX
    records = restored(shard.store, LANE, 0, 1)
    promise(shard.store, parse(records), shard.store.lanes[LANE], np.array([0]))
    shard.flush()
    shard.clock.wall_ms += PLAN_MS_MAX
    assert occur(shard).statuses == [OK]
    assert not shard.store.staged.is_promised
    shard.flush()
    torn = spans(shard)
    shard.crash()
    with log_file(shard).open("r+b") as file:
        for position, size in torn:
            file.seek(position)
            file.write(bytes(size))
    shard.open()
    assert planned(shard) == []
    assert occur(shard).statuses == [OK]
    shard.flush()
    assert planned(shard) == [START + MINUTE_MS]
    assert len(pending(shard.store)) == 1


def test_a_promised_last_occurrence_gets_its_place_again(shard: Shard) -> None:
    shard.put(sent("before"))
    begin(shard, every(shard.store, 0, at_ms=(START + MINUTE_MS,), planned=START + MINUTE_MS))
    shard.clock.wall_ms += MINUTE_MS - PLAN_MS_MAX
    records = restored(shard.store, LANE, 0, 1)
    promise(shard.store, parse(records), shard.store.lanes[LANE], np.array([0]))
    shard.flush()
    shard.clock.wall_ms += PLAN_MS_MAX
    assert occur(shard).statuses == [OK]
    assert shard.store.staged.is_promised
    shard.flush()
    topic = shard.store.queues.find("orders", 0)
    position, size, _ = topic.read(1, 1)[0].item()
    shard.crash()
    with log_file(shard).open("r+b") as file:
        file.seek(position)
        file.write(bytes(size))
    shard.open()
    assert planned(shard) == [START + MINUTE_MS]
    assert pending(shard.store) == []


def test_a_cron_expression_follows_its_zone(shard: Shard) -> None:
    """Over the end of summer time."""
    rule = {"cron": "30 2 * * *", "zone": "Europe/Berlin", "start_at_ms": 0}
    begin(shard, every(shard.store, 0, planned=utc("2024-10-26T00:30"), **rule))
    for _ in range(3):
        fall_due(shard)
        assert occur(shard).statuses == [OK]
        shard.flush()
    assert planned(shard) == [utc("2024-10-26T00:30"), utc("2024-10-27T00:30"), utc("2024-10-28T01:30")]


def utc(text: str) -> int:
    return int(datetime.fromisoformat(f"{text}+00:00").timestamp()) * 1_000


def test_listed_times_end_the_schedule(shard: Shard) -> None:
    times = tuple(START + number * MINUTE_MS for number in (1, 5))
    begin(shard, every(shard.store, 0, at_ms=times, planned=times[0]))
    for number in range(2):
        fall_due(shard)
        assert occur(shard).statuses == [OK]
        shard.flush()
        assert planned(shard) == [*times[: number + 1]]
    assert pending(shard.store) == []


# --- missed ones ----------------------------------------------------------------------------------------------------


def test_one_missed_occurrence_is_delivered_late(shard: Shard) -> None:
    begin(shard, every(shard.store, MINUTE_MS))
    shard.clock.wall_ms += 10 * MINUTE_MS + 5
    assert occur(shard).statuses == [OK]
    shard.flush()
    assert planned(shard) == [START + MINUTE_MS]
    assert [one.planned for one in pending(shard.store)] == [START + 11 * MINUTE_MS]


def test_all_missed_occurrences_are_delivered(shard: Shard) -> None:
    begin(shard, every(shard.store, MINUTE_MS, missed=ALL))
    shard.clock.wall_ms += 3 * MINUTE_MS + 5
    for _ in range(3):
        assert occur(shard).statuses == [OK]
        shard.flush()
        shard.clock.wall_ms += 1
    assert planned(shard) == [START + number * MINUTE_MS for number in (1, 2, 3)]
    assert [one.planned for one in pending(shard.store)] == [START + 4 * MINUTE_MS]
    assert occur(shard).statuses == []


def test_thousands_of_missed_occurrences_are_delivered_once(shard: Shard) -> None:
    """40 schedules have 60 each; one has a name with escapes."""
    names = ['odd "name"', *(f"s{number}" for number in range(39))]
    for name in names:
        begin(shard, every(shard.store, 1_000, name=name, missed=ALL))
    shard.clock.wall_ms += 60_000
    while (outcome := occur(shard)).statuses:
        assert set(outcome.statuses) == {OK}
        shard.flush()
        # A past time falls due with the next ms.
        shard.clock.wall_ms += 1
    found = delivered(shard)
    times: dict[str, list[int]] = {}
    for one in found:
        schedule = schedule_of(one.properties)
        assert schedule is not None
        times.setdefault(schedule.name, []).append(schedule.planned)
    assert times == {name: [START + second * 1_000 for second in range(1, 61)] for name in names}
    assert len({as_text(value_of(one.properties, b"UNIQ_KEY")) for one in found}) == 2_400
    assert [one.planned for one in pending(shard.store)] == [START + 61_000] * 40
    check_counts(shard.store)


def delivered(shard: Shard) -> list[record.Record]:
    """Records of the topic."""
    queue, found = shard.store.queues.find("orders", 0), list[record.Record]()
    while len(found) < queue.max_offset:
        # A read ends with its file.
        units = queue.read(len(found), queue.max_offset - len(found)).tolist()
        found += [record.decode(shard.store.read_record(*unit[:2])) for unit in units]
    return found


@pytest.mark.parametrize(("late_ms", "is_delivered"), [(60_000, True), (60_001, False)])
def test_a_late_occurrence_is_skipped(shard: Shard, late_ms: int, is_delivered: bool) -> None:
    begin(shard, every(shard.store, DAY_MS, missed=SKIP))
    shard.clock.wall_ms += DAY_MS + late_ms
    assert occur(shard).statuses == [OK if is_delivered else CANCELLED]
    shard.flush()
    assert planned(shard) == [START + DAY_MS] * is_delivered
    assert [one.planned for one in pending(shard.store)] == [START + 2 * DAY_MS]
    shard.reopen()
    assert [one.planned for one in pending(shard.store)] == [START + 2 * DAY_MS]
    check_counts(shard.store)


def test_a_late_last_occurrence_is_skipped(shard: Shard) -> None:
    begin(shard, every(shard.store, 0, at_ms=(START + 1_000,), planned=START + 1_000, missed=SKIP))
    shard.clock.wall_ms += DAY_MS
    assert occur(shard).statuses == [CANCELLED]
    shard.flush()
    shard.reopen()
    assert planned(shard) == pending(shard.store) == []


def test_skipped_ones_do_not_hold_up_others(shard: Shard) -> None:
    for name, missed in (("a", SKIP), ("b", "one"), ("c", SKIP), ("d", "one")):
        begin(shard, every(shard.store, MINUTE_MS, name=name, missed=missed))
    shard.clock.wall_ms += DAY_MS + 1
    assert occur(shard).statuses == [CANCELLED, OK, CANCELLED, OK]
    shard.flush()
    assert len(planned(shard)) == 2
    assert {one.name for one in pending(shard.store)} == {"a", "b", "c", "d"}


def test_a_paused_schedule_is_never_delivered(shard: Shard) -> None:
    begin(shard, occurrences.paused(every(shard.store, MINUTE_MS)))
    shard.clock.wall_ms += DELAY_MS_MAX
    assert occur(shard).statuses == [CANCELLED]
    shard.flush()
    (one,) = pending(shard.store)
    assert (one.paused, one.planned) == (True, 0)
    assert shard.store.lanes[LANE].next_due_at_ms() == shard.clock.wall_ms + PAUSE_MS


def test_a_rule_that_is_not_understood_any_more_pauses_the_schedule(shard: Shard) -> None:
    begin(shard, every(shard.store, 0, cron="bad", zone="UTC", planned=START + MINUTE_MS))
    fall_due(shard)
    assert occur(shard).statuses == [OK]
    shard.flush()
    assert planned(shard) == [START + MINUTE_MS]
    (one,) = pending(shard.store)
    assert one.paused
    assert "bad" in one.fault


def test_an_export_has_the_pending_occurrence_and_continues(shard: Shard, tmp_path: Path) -> None:
    begin(shard, every(shard.store, MINUTE_MS))
    fall_due(shard)
    assert occur(shard).statuses == [OK]
    shard.flush()
    shard.crash()
    export_directory(shard.root, tmp_path / "export", DelayLevels.parse("1s 5s"), accept_damage=False, now_ms=START)
    shard.open()
    copy = Shard(tmp_path / "export", shard.clock)
    assert planned(copy) == [START + MINUTE_MS]
    assert [one.planned for one in pending(copy.store)] == [START + 2 * MINUTE_MS]
    fall_due(copy)
    assert occur(copy).statuses == [OK]
    copy.flush()
    assert planned(copy) == [START + MINUTE_MS, START + 2 * MINUTE_MS]
    assert len(pending(copy.store)) == 1
    copy.crash()


# --- copies ---------------------------------------------------------------------------------------------------------


def test_a_copy_continues_nothing(shard: Shard) -> None:
    """A record without DT_UPSERT, as in retries, and one whose schedule can't be read."""
    begin(shard, every(shard.store, MINUTE_MS))
    position, size, _ = shard.store.lanes[LANE].units(np.array([0]))[0].item()
    own = record.decode(shard.store.read_record(position, size))
    dropped = b"DT_UPSERT", b"__CRC32#", b"UNIQ_KEY"
    parts = [part for part in own.properties.split(b"\x02") if part and not part.startswith(dropped)]
    copy = replace(own, properties=record.with_crc_mark(b"\x02".join([b"UNIQ_KEY\x01copy", *parts])))
    assert shard.put(record.encode(copy)).statuses == [OK]
    fall_due(shard)
    assert occur(shard).statuses == [OK, OK]
    shard.flush()
    assert len(planned(shard)) == 2
    assert len(pending(shard.store)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"name":1}',
        '{"name":"x","at_ms":["a"]}',
        '{"name":"x","planned":"1"}',
        '{"name":"x","planned":-1}',
        '{"name":"x","every_ms":99999999999999}',
    ],
)
def test_an_unreadable_schedule_is_none(text: str) -> None:
    assert schedule_of(f"A\x01b\x02DT_SCHEDULE\x01{text}".encode()) is None


def test_a_schedule_reads_as_it_was_written(tmp_path: Path) -> None:
    shard = Shard(tmp_path / "s", HandClock())
    one = every(shard.store, MINUTE_MS, name="Bérlin", fault="\x01 a \x02", at_ms=(1, 2), extra=True)
    assert schedule_of(b"DT_SCHEDULE\x01" + one.encode()) == one
    assert not {1, 2} & set(one.encode())
    shard.crash()


def test_a_skipped_occurrence_whose_replacement_is_refused_is_delivered(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To end it would end its schedule."""
    begin(shard, every(shard.store, MINUTE_MS, missed=SKIP))
    shard.clock.wall_ms += 3 * MINUTE_MS
    # As after a restart with fewer lanes: the replacement's lane takes no sends.
    monkeypatch.setattr(type(shard.store), "timer_lane_count", 0)
    assert occur(shard).statuses == [OK]
    shard.flush()
    assert len(pending(shard.store)) == 1


@pytest.mark.parametrize(
    "value",
    [
        '{"name":"x","every_ms":1,"planned":1,"missed":"all"}',
        r'{"name":"\ud800","every_ms":1000,"planned":1}',
        '{"name":"x","every_ms":1000,"zone":5}',
    ],
)
def test_odd_schedules_are_none(value: str) -> None:
    assert schedule_of(b"DT_SCHEDULE\x01" + value.encode() + b"\x02") is None


def test_a_property_of_another_broker_does_not_block_a_level(shard: Shard) -> None:
    forged = {record.SCHEDULE: '{"name":"x","every_ms":1000,"planned":1}', record.UPSERT: "0000000000001"}
    shard.store.stage_own(sent("x", level=1, **forged))
    shard.flush()
    shard.clock.wall_ms += MINUTE_MS
    taken = restored(shard.store, 1, 0, 1)
    assert shard.stage_entries(taken, lane=1, first_entry=0).statuses == [OK]
    shard.flush()
    assert len(shard.pulled()) == 1
