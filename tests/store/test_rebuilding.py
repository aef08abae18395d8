"""Units of queues rebuilt from records of the log, case by case."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple, Protocol

import numpy as np
import pytest
from duetime_format import layout
from duetime_format.columns import Key
from duetime_format.deletions import Deletion
from duetime_format.halves import COMMITTED, end_tag
from duetime_format.levels import DelayLevels
from duetime_format.names import HALF_TOPIC, SCHEDULE_TOPIC
from duetime_format.units import FILLER_SIZE, UNIT_TYPE, Units
from duetime_shard import shard as state
from duetime_shard.disk import LocalFiles, ShardFiles
from duetime_shard.files import QueueFiles
from duetime_shard.queues import QueueImage
from duetime_shard.rebuilding import QueueRecords, RebuildableQueue, UnitRebuilder
from duetime_store.files.disk import Disk
from duetime_store.queues import queues
from duetime_store.queues.deletions import Deletions
from duetime_store.queues.topics import ShardTopics, TopicLimits
from duetime_store.recovery.replay import LogDamage
from duetime_store.writing.staging import OK
from hypothesis import given
from hypothesis import strategies as st

from tests.store.conftest import Shard, log_file, sealed, sent

ORDERS, LANE, HALVES = (b"orders", 0), (SCHEDULE_TOPIC.encode(), 0), (HALF_TOPIC.encode(), 0)
# Position and bytes of a record; its tagsCode.
SIZE, DUE_AT_MS = 200, 1_700_000_000_000


class Queues(Protocol):
    """The queues of a store, or those of a reader of its directory."""

    def get(self, topic: bytes, queue: int) -> RebuildableQueue:
        """The queue, made if needed."""

    def deleted_at(self, topic: str) -> int:
        """The position of the topic's deletion, or -1."""

    def delete(self, deletion: Deletion) -> None:
        """Deletes a topic."""

    def units(self, key: Key) -> tuple[int, Units]:
        """First offset and units, gaps included; KeyError: there is no such queue."""


class StoreQueues:
    def __init__(self, folder: Path) -> None:
        topics = ShardTopics({}, TopicLimits(100, 100), {})
        self._queues = queues.Queues(Disk(), folder, 100, topics, files_max=8, deletions=Deletions())
        self.get, self.deleted_at = self._queues.get_bytes, self._queues.deletions.position

    def delete(self, deletion: Deletion) -> None:
        self._queues.deletions.add(deletion)
        for queue in self._queues.drop(deletion.topic):
            queue.reset()

    def units(self, key: Key) -> tuple[int, Units]:
        if (queue := self._queues.known(*key)) is None:
            raise KeyError(key)
        queue.publish_all()
        return queue.min_offset, queue.read_at(np.arange(queue.min_offset, queue.max_offset))


class ImageQueues:
    def __init__(self, files: ShardFiles | None = None) -> None:
        """`files`: the directory with the files of queues; none by default."""
        self._files = files
        self._queues: dict[Key, QueueImage] = {}
        self._deleted: dict[str, int] = {}

    def get(self, topic: bytes, queue: int) -> QueueImage:
        if (topic, queue) not in self._queues:
            name = topic.decode()
            files = QueueFiles.none(name, queue) if self._files is None else QueueFiles(self._files, name, queue)
            self._queues[topic, queue] = QueueImage(files)
        return self._queues[topic, queue]

    def deleted_at(self, topic: str) -> int:
        return self._deleted.get(topic, -1)

    def delete(self, deletion: Deletion) -> None:
        self._deleted[deletion.topic] = deletion.position
        for queue in self._queues.values():
            queue.forget(deletion.position)

    def units(self, key: Key) -> tuple[int, Units]:
        queue = self._queues[key]
        queue.settle(0, 1 << 40)
        units = np.full(queue.max_offset - queue.min_offset, np.array((0, FILLER_SIZE, 0), UNIT_TYPE))
        for offsets, own in queue.read():
            assert (np.diff(offsets) > 0).all()
            units[offsets - queue.min_offset] = own
        return queue.min_offset, units


class Log:
    """Records, each with the next position, and the queues rebuilt from them."""

    def __init__(self, queues: Queues) -> None:
        self.queues = queues
        self.damage = LogDamage()
        self.rebuilder = UnitRebuilder(queues.get, queues.deleted_at, self.damage.add)
        self.position = 10_000

    def make_units(self, count: int) -> Units:
        units = np.zeros(count, UNIT_TYPE)
        units["position"] = np.arange(count) * SIZE + self.position
        units["size"], units["tags"] = SIZE, DUE_AT_MS
        self.position += count * SIZE
        return units

    def add(self, key: Key, *offsets: int, older: bool = False, restored: bool = False) -> list[int]:
        """Adds a run of records. Returns their positions."""
        units, count = self.make_units(len(offsets)), len(offsets)
        masks = np.full(count, older), np.full(count, restored)
        self.rebuilder.add(key, QueueRecords(np.array(offsets), units, *masks))
        return units["position"].tolist()

    def positions(self, key: Key) -> list[int]:
        """The position of each unit of a queue; -1 for a filler."""
        _, units = self.queues.units(key)
        return np.where(units["size"] == FILLER_SIZE, -1, units["position"]).tolist()

    @property
    def counts(self) -> tuple[int, int, int]:
        """Units, repeated records, damaged places."""
        return self.rebuilder.unit_count, self.rebuilder.repeated_count, self.damage.count


@pytest.fixture(params=["store", "image"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Log:
    return Log(StoreQueues(tmp_path) if request.param == "store" else ImageQueues())


def test_first_records_take_their_offsets(log: Log) -> None:
    assert log.add(ORDERS, 0, 1) + log.add(ORDERS, 2) == log.positions(ORDERS)
    assert log.counts == (3, 0, 0)


def test_lost_records_leave_fillers(log: Log) -> None:
    first, last = log.add(ORDERS, 0, 3)
    assert log.positions(ORDERS) == [first, -1, -1, last]


@pytest.mark.parametrize("key", [LANE, HALVES], ids=["lane", "halves"])
def test_copy_replaces_its_record(log: Log, key: Key) -> None:
    first, second, third = log.add(key, 0, 1, 2)
    copies = log.add(key, 0, 2, older=True)
    assert log.positions(key) == [copies[0], second, copies[1]]
    assert {first, third}.isdisjoint(log.positions(key))
    assert log.counts == (5, 0, 0)


def test_copy_without_its_record_makes_the_queue_again(log: Log) -> None:
    """The record has left the log; those between copies were restored."""
    later = log.add(LANE, 7)
    copies = log.add(LANE, 2, 5, older=True)
    assert log.queues.units(LANE)[0] == 2
    assert log.positions(LANE) == [copies[0], -1, -1, copies[1], -1, later[0]]


def test_copy_with_the_store_time_of_others_is_known_by_its_empty_place(log: Log) -> None:
    (first, last), (copy,) = log.add(LANE, 0, 2), log.add(LANE, 1)
    assert log.positions(LANE) == [first, copy, last]
    assert log.add(LANE, 0) != [first]
    assert log.positions(LANE) == [first, copy, last], "another record has that place"
    assert log.counts == (3, 1, 0)


def test_copy_of_a_half_message_keeps_the_mark_of_its_end(log: Log) -> None:
    log.add(HALVES, 0, 1)
    queue = log.queues.get(*HALVES)
    marked = queue.read_rebuilt(np.array([1]))
    marked["tags"] = end_tag(COMMITTED, 9_000)
    queue.repoint(np.array([1]), marked)
    log.add(HALVES, 0, 1, older=True)
    assert log.queues.units(HALVES)[1]["tags"].tolist() == [DUE_AT_MS, end_tag(COMMITTED, 9_000)]


def test_record_that_a_start_wrote_again_fills_its_place(log: Log) -> None:
    first, last = log.add(ORDERS, 0, 2)
    (again,) = log.add(ORDERS, 1, restored=True)
    assert log.positions(ORDERS) == [first, again, last]
    assert log.counts == (3, 0, 0)


def test_record_written_again_within_one_run_fills_its_place(log: Log) -> None:
    positions = log.add(ORDERS, 0, 2, 3, 1, restored=True)
    assert log.positions(ORDERS) == [positions[0], positions[3], positions[1], positions[2]]


@pytest.mark.parametrize("restored", [True, False])
def test_first_of_two_records_at_one_offset_counts(log: Log, restored: bool) -> None:
    expected = log.add(ORDERS, 0, 1, 2)
    log.add(ORDERS, 1, restored=restored)
    assert log.positions(ORDERS) == expected
    assert log.counts == (3, 1, 0)


@pytest.mark.parametrize("key", [(b"orders", -1), (b"orders", 65_536), (b"a b", 0), (SCHEDULE_TOPIC.encode(), 256)])
def test_stray_of_an_impossible_queue_is_damage(log: Log, key: Key) -> None:
    (position,) = log.add(key, 0)
    with pytest.raises(KeyError):
        log.queues.units(key)
    assert log.counts == (0, 0, 1)
    assert log.damage.places[0].startswith(f"{position}: it claims to be message 0 of queue {key[1]}")


@pytest.mark.parametrize("offset", [-1, 1 << 40])
def test_stray_at_an_impossible_offset_is_damage_and_hides_no_other(log: Log, offset: int) -> None:
    first, _, last = log.add(ORDERS, 0, offset, 1)
    assert log.positions(ORDERS) == [first, last]
    assert log.counts == (2, 0, 1)


def test_records_before_the_deletion_of_their_topic_have_no_unit(log: Log) -> None:
    log.add(ORDERS, 0, 1)
    log.queues.delete(Deletion("orders", 1, (2,), log.position))
    _, *later = log.add(ORDERS, 2, 2, 3)
    assert log.positions(ORDERS) == later


def test_damaged_record_keeps_its_place_until_an_intact_one_claims_it(log: Log) -> None:
    (first,) = log.add(ORDERS, 0)
    damaged = log.make_units(1)
    log.rebuilder.add_damaged(ORDERS, 1, damaged)
    assert log.positions(ORDERS) == [first, int(damaged["position"][0])]
    (second,) = log.add(ORDERS, 1)
    assert log.positions(ORDERS) == [first, second]


def test_place_of_a_damaged_record_is_filled_by_the_one_written_again(log: Log) -> None:
    (first,) = log.add(ORDERS, 0)
    log.rebuilder.add_damaged(ORDERS, 1, log.make_units(1))
    (later,), (again,) = log.add(ORDERS, 2), log.add(ORDERS, 1, restored=True)
    assert log.positions(ORDERS) == [first, again, later]


def test_stray_is_told_by_records_that_the_files_have(shard: Shard) -> None:
    """The third record of four claims to be the tenth: the queue file has all four units."""
    outcome = shard.put(*(sent(name, body=bytes(1_000)) for name in "ABCD"))
    assert outcome.statuses == [OK] * 4
    ((position, size, _),) = shard.store.queues.find("orders", 0).read(2, 1).tolist()
    data = bytearray(shard.store.read_record(position, size))
    data[layout.QUEUE_OFFSET_AT : layout.QUEUE_OFFSET_AT + 8] = (9).to_bytes(8, "big")
    with log_file(shard).open("r+b") as file:
        file.seek(position)
        file.write(sealed(bytes(data)))
    found = state.read(shard.root, DelayLevels.parse("1s 5s"))
    assert found.queues["orders", 0].max_offset == 4
    ((at, text),) = found.damaged
    assert (at, text.split(",")[0]) == (position, "it claims to be message 9 of queue 0 of b'orders'")


class Step(NamedTuple):
    """A record: the next one after some lost ones, a lost one that a start wrote again, another at its offset, or one
    too far ahead."""

    kind: str
    number: int

    def offset(self, reached: int) -> int:
        if self.kind == "next":
            return reached + self.number
        return 100 + self.number if self.kind == "stray" else self.number


STEPS = st.lists(
    st.builds(Step, st.sampled_from(["next", "next", "again", "repeated", "stray"]), st.integers(0, 3)),
    min_size=1,
    max_size=8,
)


@given(runs=st.lists(STEPS, max_size=6), published=st.integers(0, 6))
def test_queues_with_files_that_end_in_the_middle_agree(runs: list[list[Step]], published: int) -> None:
    """The log is read from its beginning, as by a reader of the directory."""
    with TemporaryDirectory() as folder:
        stored, added, reached = Log(StoreQueues(Path(folder) / "consumequeue")), list[QueueRecords](), 1
        image = None
        for number, steps in enumerate([[Step("next", -1)], *runs]):
            if number == published + 1:
                stored.queues.units(ORDERS)
                image = Log(ImageQueues(LocalFiles(Path(folder))))
                ends = image.queues.get(*ORDERS).next_offset
            offsets = []
            for step in steps:
                offsets.append(step.offset(reached))
                if step.kind == "next":
                    reached = offsets[-1] + 1
            no, restored = np.zeros(len(steps), np.bool_), np.array([step.kind == "again" for step in steps])
            added.append(QueueRecords(np.array(offsets), stored.make_units(len(steps)), no, restored))
            stored.rebuilder.add(ORDERS, added[-1])
        if image is None:
            return
        reserved = QueueFiles(LocalFiles(Path(folder)), "orders", 0).reserved(0)
        for records in added:
            absent = records.offsets >= ends
            for index, offset in enumerate(records.offsets.tolist()):
                position = int(records.units["position"][index])
                absent[index] |= bool(records.restored[index]) and reserved.get(offset, position) < position
            if (absent[:-1] & ~absent[1:]).any():
                absent[:] = True
            if absent.any():
                image.rebuilder.add(ORDERS, records.at(absent))
        assert stored.positions(ORDERS) == image.positions(ORDERS)


RECORDS = st.lists(st.tuples(st.integers(-1, 12), st.booleans(), st.booleans()), min_size=1, max_size=8)


@given(runs=st.lists(st.tuples(st.sampled_from([ORDERS, LANE, HALVES]), RECORDS, st.booleans()), max_size=8))
def test_both_kinds_of_queues_agree(runs: list[tuple[Key, list[tuple[int, bool, bool]], bool]]) -> None:
    """The last record of a run may be damaged: it takes the next offset, as in a walk."""
    with TemporaryDirectory() as folder:
        logs = [Log(StoreQueues(Path(folder))), Log(ImageQueues())]
        for key, records, is_damaged in runs:
            for log in logs:
                units, (offsets, older, restored) = log.make_units(len(records)), zip(*records, strict=True)
                masks = np.array(older), np.array(restored)
                log.rebuilder.add(key, QueueRecords(np.array(offsets), units, *masks))
                if is_damaged:
                    log.rebuilder.add_damaged(key, log.queues.get(*key).next_offset, log.make_units(1))
            assert logs[0].counts == logs[1].counts
            (first, units), (image_first, image_units) = (log.queues.units(key) for log in logs)
            there = units["size"] != FILLER_SIZE
            assert (there == (image_units["size"] != FILLER_SIZE)).all()
            assert (first, units[there].tolist()) == (image_first, image_units[there].tolist())
