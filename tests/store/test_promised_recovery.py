"""Records that were read before a flush and then lost power: the plan gives them the same places again."""

from pathlib import Path

import numpy as np
import pytest
from duetime_format import record
from duetime_format.levels import DelayLevels
from duetime_format.names import PLANS_TOPIC
from duetime_format.plans import PLAN_MS_MAX
from duetime_store.lanes.lane import PENDING
from duetime_store.log.intake import parse
from duetime_store.offline.export import export_directory
from duetime_store.offline.verify import verify
from duetime_store.writing.ends import cancel
from duetime_store.writing.promising import promise
from duetime_store.writing.staging import OK
from duetime_store.writing.store import Store

from tests.power_disk import PowerDisk, Unlucky
from tests.store.conftest import HandClock, Shard, ids, log_file, remove, restored, sent, timer

LEVEL_MS = 1_000


class Killed(BaseException):
    """A kill -9."""


class Cut(Shard):
    """A shard whose power is cut; `lose` names the lost part of its log."""

    def promise(self, lane: int, first: int, count: int) -> None:
        """Promises entries their places, durably."""
        entries = np.arange(first, first + count)
        promise(self.store, parse(restored(self.store, lane, first, count)), self.store.lanes[lane], entries)
        self.flush()

    def fill(self, names: str) -> None:
        """Entries of lane 1, which fall due in PLAN_MS_MAX."""
        self.put(*(sent(name, level=1, body=name.encode() * 100) for name in names))
        self.clock.wall_ms += LEVEL_MS - PLAN_MS_MAX

    def fall_due(self, lane: int, first: int, count: int) -> None:
        """Restores and publishes entries by a promise."""
        self.clock.wall_ms += PLAN_MS_MAX
        outcome = self.stage_entries(restored(self.store, lane, first, count), lane=lane, first_entry=first)
        assert outcome.statuses == [OK] * count
        assert self.store.staged.is_promised
        self.flush()

    def places(self, topic: str = "orders") -> list[tuple[int, int]]:
        """(position, size) of a topic's records."""
        queue = self.store.queues.find(topic, 0)
        return [unit[:2] for unit in queue.read_at(np.arange(queue.min_offset, queue.max_offset)).tolist()]

    def lose_and_kill(self, *spans: tuple[int, int]) -> None:
        """As `lose`; the next start is killed when it has written records again."""

        def kill(*_: object) -> None:
            raise Killed

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Store, "publish", kill)
            with pytest.raises(Killed):
                self.lose(*spans)
        (self.root / "abort").touch()

    def lose(self, *spans: tuple[int, int]) -> None:
        """The process dies, and loses these bytes of the log: (position, count)."""
        self.crash()
        with log_file(self).open("r+b") as file:
            for position, count in spans:
                file.seek(position)
                file.write(bytes(count))
        self.open()


@pytest.fixture
def cut(tmp_path: Path, clock: HandClock) -> Cut:
    return Cut(tmp_path / "store", clock)


def contents(shard: Shard) -> list[tuple[str, int, bytes]]:
    found = shard.pulled()
    return [(name, one.queue_offset, one.body) for name, one in zip(ids(found), found, strict=True)]


def damages(shard: Shard) -> list[str]:
    shard.crash()
    report = verify(shard.root, DelayLevels.parse("1s 5s"))
    shard.open()
    return [str(damage) for damage in report.damages]


@pytest.mark.parametrize("kept", [0.0, 0.2, 0.5, 0.99])
@pytest.mark.parametrize("is_there_before", [False, True])
def test_a_lost_or_torn_record_has_its_place_again(cut: Cut, kept: float, is_there_before: bool) -> None:
    if is_there_before:
        cut.put(sent("before"))
        cut.checkpoint()
    else:
        cut.store.queues.counts.grow("orders", 1)
    cut.fill("AB")
    cut.promise(1, 0, 2)
    cut.fall_due(1, 0, 2)
    seen = contents(cut)
    spans = [(position + int(size * kept), size - int(size * kept)) for position, size in cut.places()[-2:]]
    cut.lose(*spans)
    assert contents(cut) == seen
    assert cut.store.lanes[1].watermark == 2
    assert cut.opened.report.promised >= 1
    cut.reopen()
    assert contents(cut) == seen
    assert damages(cut) == []
    assert cut.restore(1, 0, 2).statuses == [1, 1]


@pytest.mark.parametrize("first", [0, 150])
def test_first_records_of_a_queue_have_their_places_again(cut: Cut, first: int) -> None:
    """The power cut also lost the queue's files, and kept the message after them; `first`: their offset, in the first
    or second file of the queue."""
    cut.store.queues.counts.grow("orders", 1)
    if first:
        cut.put(*(sent(f"before {number}") for number in range(first)))
    cut.fill("AB")
    cut.promise(1, 0, 2)
    cut.fall_due(1, 0, 2)
    cut.put(*(sent(f"after {number}") for number in range(110)))
    seen = contents(cut)
    remove(cut.root / "consumequeue" / "orders")
    cut.lose(*cut.places()[: first + 2])
    assert contents(cut) == seen[first:]
    assert cut.opened.report.promised == 2
    cut.reopen()
    assert contents(cut) == seen[first:]
    assert all(damage.startswith("commitlog/") for damage in damages(cut))


def test_record_is_written_again_for_any_time_and_in_order(cut: Cut) -> None:
    cut.store.queues.counts.grow("orders", 1)
    cut.put(timer("late", 1_004), timer("soon", 1_000))
    cut.clock.wall_ms += 1_000
    lane, entries = cut.store.lanes[1_000], np.array([1, 0])
    head = lane.head(b"", 2)
    assert head.entries.tolist() == entries.tolist()
    records = [restored(cut.store, 1_000, entry, 1) for entry in (1, 0)]
    promise(cut.store, parse(b"".join(records)), lane, entries)
    cut.flush()
    cut.clock.wall_ms += 5
    assert cut.store.restore(parse(b"".join(records)), lane, entries).statuses == [OK, OK]
    cut.flush()
    seen = contents(cut)
    assert [one[0] for one in seen] == ["soon", "late"]
    cut.lose(*cut.places())
    assert contents(cut) == seen
    assert cut.store.lanes[1_000].pending_count == 0
    assert damages(cut) == []


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_place_is_filled_that_later_messages_have_outlived(cut: Cut, checkpoint: bool) -> None:
    cut.put(sent("before"))
    cut.fill("AB")
    cut.promise(1, 0, 2)
    cut.fall_due(1, 0, 2)
    seen = contents(cut)
    cut.put(sent("after"))
    lost = cut.places()[1:3]
    cut.lose(*lost)
    assert contents(cut)[:3] == seen
    assert ids(cut.pulled()) == ["before", "A", "B", "after"]
    tags = cut.store.queues.find("orders", 0).read(0, 4)["tags"].tolist()
    assert tags == [tags[0], tags[0], tags[0], tags[0]]
    gap = [f"commitlog/{0:020} at {lost[0][0]}: no record at position {lost[0][0]}"]
    assert damages(cut) == gap
    if checkpoint:
        cut.checkpoint()
    cut.put(sent("last"))
    cut.reopen()
    assert ids(cut.pulled()) == ["before", "A", "B", "after", "last"]
    assert cut.opened.report.promised == 0
    assert damages(cut) == gap


def test_a_damaged_record_that_keeps_its_place_gives_it_back(cut: Cut) -> None:
    cut.put(sent("before"))
    cut.fill("A")
    cut.promise(1, 0, 1)
    cut.fall_due(1, 0, 1)
    cut.put(sent("after"))
    position, _ = cut.places()[1]
    # Its structure is intact, its body lost.
    cut.lose((position + 100, 40))
    for _ in range(2):
        assert ids(cut.pulled()) == ["before", "A", "after"]
        assert [one.body for one in cut.pulled()][1] == b"A" * 100
        cut.reopen()


def test_the_first_place_of_a_queue_is_filled_again(cut: Cut) -> None:
    cut.store.queues.counts.grow("orders", 1)
    cut.fill("A")
    cut.promise(1, 0, 1)
    cut.fall_due(1, 0, 1)
    cut.put(sent("after"))
    position, _ = cut.places()[0]
    # Its structure is intact, its body lost.
    cut.lose((position + 100, 40))
    assert ids(cut.pulled()) == ["A", "after"]


def test_a_record_that_is_written_again_is_flushed(cut: Cut) -> None:
    cut.put(sent("before"))
    cut.fill("A")
    cut.promise(1, 0, 1)
    cut.fall_due(1, 0, 1)
    disk = cut.disk = PowerDisk(cut.root, Unlucky())
    cut.lose(cut.places()[1])
    assert ids(cut.pulled()) == ["before", "A"]
    written = log_file(cut).read_bytes()
    cut.crash()
    disk.close_all()
    disk.lose()
    assert log_file(cut).read_bytes() == written


def test_without_its_plan_an_entry_is_pending_again(cut: Cut) -> None:
    cut.put(sent("before"))
    cut.fill("A")
    cut.promise(1, 0, 1)
    (plan,) = cut.places(PLANS_TOPIC)
    cut.lose(plan)
    assert ids(cut.pulled()) == ["before"]
    assert cut.store.lanes[1].states(np.array([0])).tolist() == [PENDING]


def test_an_entry_that_is_not_due_has_no_place_yet(cut: Cut) -> None:
    cut.put(sent("before"))
    cut.fill("A")
    cut.promise(1, 0, 1)
    cut.clock.wall_ms += PLAN_MS_MAX - 1
    cut.reopen()
    assert ids(cut.pulled()) == ["before"]
    cut.clock.wall_ms += 1
    cut.put(sent("between"))
    assert cut.restore(1, 0, 1).statuses == [OK]
    assert ids(cut.pulled()) == ["before", "between", "A"]


def test_a_clock_set_back_keeps_all_places(cut: Cut) -> None:
    cut.put(sent("before"))
    cut.fill("A")
    cut.promise(1, 0, 1)
    cut.fall_due(1, 0, 1)
    due_at_ms = cut.clock.wall_ms
    seen = contents(cut)
    cut.clock.wall_ms -= 3_600_000
    cut.lose(cut.places()[1])
    assert contents(cut) == seen
    assert cut.pulled()[1].stored_at_ms == due_at_ms == cut.store.clock.now_ms()


def test_record_at_a_lost_promises_place_stays(cut: Cut) -> None:
    cut.put(sent("before"))
    cut.fill("AB")
    cut.promise(1, 0, 2)
    cut.put(sent("between"))
    cut.clock.wall_ms += PLAN_MS_MAX
    cut.stage_entries(restored(cut.store, 1, 0, 2), lane=1, first_entry=0)
    assert not cut.store.staged.is_promised
    cut.flush()
    cut.lose(*cut.places()[2:])
    assert ids(cut.pulled()) == ["before", "between"]
    assert cut.store.lanes[1].pending_count == 2


def test_of_two_plans_for_a_place_the_later_one_counts(cut: Cut) -> None:
    cut.put(sent("before"))
    cut.put(sent("A", level=1), timer("B", LEVEL_MS - 1))
    cut.clock.wall_ms += LEVEL_MS - PLAN_MS_MAX
    cut.promise(1, 0, 1)
    # The call that holds A ends, and B is given the place.
    cut.store.promises.forget(cut.store.lanes[1])
    cut.promise(1_000, 0, 1)
    cut.fall_due(1_000, 0, 1)
    seen = contents(cut)
    assert [one[0] for one in seen] == ["before", "B"]
    cut.lose(cut.places()[1])
    assert contents(cut) == seen
    assert cut.store.lanes[1].pending_count == 1


def test_of_two_plans_for_an_entry_the_later_one_counts(cut: Cut) -> None:
    cut.put(sent("before"))
    cut.put(sent("A", level=1), timer("B", LEVEL_MS - 1))
    cut.clock.wall_ms += LEVEL_MS - PLAN_MS_MAX
    # B is given place 1, and A place 2, until the calls that hold them end; then A is given place 1.
    for lane in (1_000, 1):
        cut.promise(lane, 0, 1)
    for lane in (1_000, 1):
        cut.store.promises.forget(cut.store.lanes[lane])
    cut.promise(1, 0, 1)
    cut.fall_due(1, 0, 1)
    seen = contents(cut)
    assert [one[:2] for one in seen] == [("before", 0), ("A", 1)]
    cut.put(sent("torn"))
    cut.put(sent("after"))
    cut.lose(*cut.places()[1:3])
    found = record.decode(cut.store.read_record(*cut.places()[1]))
    assert (ids([found]), found.queue_offset, found.body) == ([seen[1][0]], *seen[1][1:])


def test_an_entry_that_is_promised_again_has_one_promise(cut: Cut) -> None:
    cut.put(sent("before"))
    cut.fill("ABC")
    cut.promise(1, 0, 3)
    cut.promise(1, 0, 3)
    cut.fall_due(1, 0, 3)
    seen = contents(cut)
    assert [offset for _, offset, _ in seen] == [0, 1, 2, 3]
    cut.lose(*cut.places()[1:])
    assert contents(cut) == seen


def test_a_cancelled_entry_gets_no_place(cut: Cut) -> None:
    cut.put(sent("before"))
    cut.fill("AB")
    cut.promise(1, 0, 2)
    lane = cut.store.lanes[1]
    cancel(cut.store, [(lane, np.array([0]), lane.units(np.array([0]))["tags"].astype(np.int64))])
    cut.flush()
    cut.clock.wall_ms += PLAN_MS_MAX
    cut.reopen()
    assert ids(cut.pulled()) == ["before"]
    assert cut.store.lanes[1].pending_count == 1
    assert cut.restore(1, 1, 1).statuses == [OK]
    assert ids(cut.pulled()) == ["before", "B"]


def test_places_are_given_again_over_the_end_of_a_segment(cut: Cut) -> None:
    cut.put(sent("before"))
    cut.fill("ABCD")
    room = cut.store.log.segment_bytes - cut.store.published_end
    cut.put(sent("big", topic="other", body=bytes(room - 1_000)))
    cut.promise(1, 0, 4)
    cut.fall_due(1, 0, 4)
    seen, places = contents(cut), cut.places()[1:]
    assert len({position // cut.store.log.segment_bytes for position, _ in places}) == 2
    cut.crash()
    for position, size in places:
        base = position - position % cut.settings.segment_bytes
        with (cut.root / "commitlog" / f"{base:020}").open("r+b") as file:
            file.seek(position - base)
            file.write(bytes(size))
    cut.open()
    assert contents(cut) == seen
    assert damages(cut) == []


def test_a_plan_that_is_no_plan_is_told_and_is_no_damage(cut: Cut, tmp_path: Path) -> None:
    found = record.Record(PLANS_TOPIC, 0, b"\x01\x00", record.with_crc_mark(b""))
    cut.store.stage_own(record.encode(found))
    cut.flush()
    cut.reopen()
    assert cut.opened.report.damage.count == 0
    cut.crash()
    levels = DelayLevels.parse("1s 5s")
    report = verify(cut.root, levels)
    assert report.is_sound
    assert [note for note in report.notes if "1 plans can't be read" in note]
    exported = export_directory(cut.root, tmp_path / "exported", levels, accept_damage=False)
    assert exported.report.is_sound
