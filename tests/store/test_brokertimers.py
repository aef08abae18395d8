"""Which timers of a 5.x broker's directory are pending, by its timer log, timercheck and log."""

from pathlib import Path

import numpy as np
import pytest
from duetime_format.levels import DEFAULT_DELAY_LEVELS, DelayLevels
from duetime_format.names import TIMER_TOPIC
from duetime_format.units import UNIT_TYPE, Ints, joined
from duetime_shard.brokers import timers as brokertimers
from duetime_shard.disk import LocalFiles
from duetime_shard.shard import DirectoryState, read

from tests.format import golden
from tests.store.wheel import DELETES, ROLLED, START_MS, Wheel

SECOND = 1_000
DAY = 86_400 * SECOND
READ_MS = START_MS + 10 * SECOND


@pytest.fixture
def wheel(tmp_path: Path) -> Wheel:
    return Wheel(tmp_path)


def pending_of(state: DirectoryState) -> Ints | None:
    parts = list(state.queues[TIMER_TOPIC, 0].read())
    offsets, units = np.concatenate([part for part, _ in parts]), joined(units for _, units in parts)
    return brokertimers.pending(state.files, offsets, units, state.log.read)


@pytest.mark.parametrize("name", golden.params("5.3.3"))
def test_pending_are_those_of_the_manifest(name: str, tmp_path: Path) -> None:
    state = read(golden.unpack(name, tmp_path), DelayLevels.parse(DEFAULT_DELAY_LEVELS))
    found = pending_of(state)
    assert found is not None
    assert found.tolist() == sorted(unit["queueOffset"] for unit in golden.pending_timers(name))
    # The broker counts a mark as minus one.
    assert len(golden.pending_timers(name, has_receives=True)) == golden.summary(name)["timer"]["pending"]


def test_directory_of_duetime_without_timercheck_has_no_timers_of_a_broker(tmp_path: Path) -> None:
    nothing = np.empty(0, np.int64)
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "duetimeStore.json").write_text('{"shard":0,"levels":[]}')
    assert brokertimers.pending(LocalFiles(tmp_path), nothing, np.empty(0, UNIT_TYPE), lambda *_: b"") is None


def test_slots_to_be_read_are_pending_and_others_are_not(wheel: Wheel) -> None:
    for number, slot_ms in enumerate((READ_MS - SECOND, READ_MS, READ_MS + DAY)):
        wheel.enter(wheel.timer(f"id{number}", slot_ms), slot_ms)
    assert wheel.pending(read_ms=READ_MS, queue_offset=3) == [1, 2]


def test_timers_not_in_the_wheel_yet_are_pending(wheel: Wheel) -> None:
    """After a kill the wheel may be behind the queue, and timercheck behind the timer log."""
    for number in range(4):
        wheel.timer(f"id{number}", READ_MS + SECOND)
    wheel.enter(0, READ_MS - SECOND)
    wheel.enter(1, READ_MS + SECOND)
    wheel.enter(2, READ_MS + SECOND)
    assert wheel.pending(read_ms=READ_MS, queue_offset=1) == [1, 2, 3]


def test_timer_without_a_unit_before_the_queue_offset_was_delivered_at_once(wheel: Wheel) -> None:
    wheel.timer("past", READ_MS - DAY)
    wheel.enter(wheel.timer("later", READ_MS + DAY), READ_MS + DAY)
    assert wheel.pending(read_ms=READ_MS, queue_offset=2) == [1]


def test_timers_due_while_the_broker_was_down_are_pending(wheel: Wheel) -> None:
    """A broker forgets timers older than seven days."""
    wheel.enter(wheel.timer("old", READ_MS), READ_MS)
    assert wheel.pending(read_ms=READ_MS, queue_offset=1, written_ms=START_MS) == [0]


@pytest.mark.parametrize("key", ["id0", "orders+id0"])
def test_recalled_timer_and_its_mark_have_ended(wheel: Wheel, key: str) -> None:
    for number in range(2):
        wheel.enter(wheel.timer(f"id{number}", READ_MS), READ_MS)
    wheel.enter(wheel.timer("id0", READ_MS, deletes=key), READ_MS, magic=DELETES)
    assert wheel.pending(read_ms=READ_MS, queue_offset=3) == [1]


def test_mark_that_is_not_in_the_wheel_yet_counts(wheel: Wheel) -> None:
    wheel.enter(wheel.timer("id0", READ_MS), READ_MS)
    wheel.timer("id0", READ_MS, deletes="orders+id0")
    assert wheel.pending(read_ms=READ_MS, queue_offset=1) == []


@pytest.mark.parametrize(("key", "out_ms"), [("mail+id0", READ_MS), ("id1", READ_MS), ("orders+id0", READ_MS + SECOND)])
def test_mark_of_another_topic_id_or_slot_ends_nothing(wheel: Wheel, key: str, out_ms: int) -> None:
    wheel.enter(wheel.timer("id0", READ_MS), READ_MS)
    wheel.enter(wheel.timer("id0", out_ms, deletes=key), out_ms, magic=DELETES)
    assert wheel.pending(read_ms=READ_MS, queue_offset=2) == [0]


def test_rolled_timer_and_its_rolled_mark_meet(wheel: Wheel) -> None:
    """Beyond the wheel's reach both wait in slots of their own."""
    wheel.enter(wheel.timer("id0", READ_MS + 9 * DAY), READ_MS + DAY, magic=ROLLED)
    wheel.enter(wheel.timer("id0", READ_MS + 9 * DAY, deletes="id0"), READ_MS + 2 * DAY, magic=ROLLED | DELETES)
    assert wheel.pending(read_ms=READ_MS, queue_offset=2) == []


def test_of_a_rolled_timer_the_newest_record_counts(wheel: Wheel) -> None:
    """A kill leaves the slot of the older one to be read again."""
    out_ms = READ_MS + 9 * DAY
    wheel.enter(wheel.timer("id0", out_ms, rolls=1), READ_MS, magic=ROLLED)
    wheel.enter(wheel.timer("id1", out_ms, rolls=1), READ_MS, magic=ROLLED)
    wheel.timer("id0", out_ms, rolls=2)
    assert wheel.pending(read_ms=READ_MS, queue_offset=2) == [1, 2]


def test_one_id_sent_twice_is_two_timers(wheel: Wheel) -> None:
    for _ in range(2):
        wheel.enter(wheel.timer("id0", READ_MS), READ_MS)
    assert wheel.pending(read_ms=READ_MS, queue_offset=2) == [0, 1]


def test_timer_with_a_copy_in_the_log_was_delivered(wheel: Wheel) -> None:
    """A killed broker had delivered part of its current slot, and would deliver that part again."""
    for number in range(2):
        wheel.enter(wheel.timer(f"id{number}", READ_MS), READ_MS)
    wheel.deliver(0)
    assert wheel.pending(read_ms=READ_MS, queue_offset=2) == [1]


def test_timer_delivered_from_rocksdb_has_ended(wheel: Wheel) -> None:
    """That engine leaves timercheck and timer log alone, and delivers without the wheel's marks, a little early."""
    for number in range(3):
        wheel.timer(f"id{number}", START_MS + 1_999)
    wheel.deliver(0, from_rocksdb=True)
    wheel.deliver(1, topic="%RETRY%group", from_rocksdb=True)
    assert wheel.pending(read_ms=0, queue_offset=0) == [1, 2]


def test_one_id_in_two_topics_is_two_timers_in_rocksdb(wheel: Wheel) -> None:
    for topic in ("orders", "mail"):
        wheel.timer("id0", READ_MS, topic=topic)
    wheel.deliver(1, topic="mail", from_rocksdb=True)
    assert wheel.pending(read_ms=0, queue_offset=0) == [0]


def test_timer_that_rocksdb_rolled_is_its_newest_record(wheel: Wheel) -> None:
    """One that was sent twice has one key there."""
    for number in ("id0", "id0", "id1"):
        wheel.timer(number, READ_MS + DAY)
    for _ in range(70):
        wheel.timer("id0", READ_MS + DAY, labelled=True)
        wheel.timer("id1", READ_MS + DAY, labelled=True)
    assert wheel.pending(read_ms=0, queue_offset=0) == [141, 142]


def test_rolled_timer_of_rocksdb_that_was_recalled_or_delivered_has_ended(wheel: Wheel) -> None:
    for number in range(3):
        wheel.timer(f"id{number}", READ_MS + DAY)
        wheel.timer(f"id{number}", READ_MS + DAY, labelled=True)
    wheel.timer("id0", READ_MS + DAY, deletes="orders+id0")
    wheel.deliver(2, from_rocksdb=True)
    assert wheel.pending(read_ms=0, queue_offset=0) == [5]


def test_unit_of_a_record_that_is_not_there_is_passed_over(wheel: Wheel) -> None:
    wheel.enter(wheel.timer("id0", READ_MS), READ_MS)
    wheel.units.append((1 << 40, 200, 0))
    wheel.enter(1, READ_MS)
    assert wheel.pending(read_ms=READ_MS, queue_offset=2) == [0]
