"""One flipped bit anywhere in records and units: only the message that it hits may be lost; no message is early or
comes twice, the store keeps running, and the damage is counted.

`DUETIME_TEST_FLIPS=all` flips one bit of every byte instead of some.
"""

import asyncio
import os
import random
import shutil
from collections import Counter
from pathlib import Path

import pytest
from duetime.v1 import store_pb2
from duetime_format import layout, record
from duetime_format.properties import decode_properties
from duetime_scheduler.batch import make_batch
from duetime_store.lanes.attendance import WaitingPull
from duetime_store.metrics import StoreMetrics
from duetime_store.reading.filters import Filter
from duetime_store.reading.reader import DueBatch, PullResult
from duetime_store.writing.staging import DUPLICATE, OK
from prometheus_client import CollectorRegistry

from tests.seeds import seed
from tests.store.conftest import HandClock, Shard, reader_of, sent

START_MS = 1_700_000_000_000
DELAYS_MS = {1: 1_000, 2: 5_000}
TOPICS = [("orders", 0), ("orders", 1), ("refunds", 0)]
WHOLE = os.environ.get("DUETIME_TEST_FLIPS") == "all"
SOME = [15, pytest.param(150, marks=pytest.mark.proof)]


class Drained:
    """A directory opened and emptied, message by message, as scheduler and consumers do it."""

    def __init__(self, root: Path) -> None:
        self.clock = HandClock()
        self.clock.wall_ms = START_MS + 2_000
        self.registry = CollectorRegistry()
        self.early: list[str] = []
        self.shard = Shard(root, self.clock)
        try:
            metrics = StoreMetrics(self.registry)
            metrics.damaged.inc(self.shard.opened.report.damage.count)
            self.reader = reader_of(self.shard.store, metrics)
            for wall_ms in (2_000, 4_999, 5_000, 6_999, 7_000, 20_000):
                self.clock.wall_ms = START_MS + wall_ms
                for level in DELAYS_MS:
                    self._restore(level)
            self.found = [one for topic, queue in TOPICS for one in self._pull(topic, queue)]
            self.quarantined = len(self._pull("DT_QUARANTINE", 0))
        finally:
            self.shard.crash()

    @property
    def ids(self) -> Counter[str]:
        return Counter(decode_properties(one.properties).get("UNIQ_KEY", "?") for one in self.found)

    @property
    def noticed(self) -> float:
        names = ("duetime_store_records_damaged_total", "duetime_store_units_repaired_total")
        return sum(self.registry.get_sample_value(name) or 0 for name in names)

    def _restore(self, level: int) -> None:
        """Restores due entries; each answer has to advance the lane."""
        lane = self.shard.store.lanes[level]
        while (due := self._due(level)).sizes:
            answer = store_pb2.PullDueResponse(
                first_entry=int(due.entries[0]), records=due.records, sizes=due.sizes, due_at_ms=due.due_at_ms
            )
            batch = make_batch(level, answer)
            outcome = self.shard.put_entries(batch.records, lane=level, first_entry=batch.first)
            # A damaged restored record is restored again; later ones exist.
            assert {OK, DUPLICATE} >= set(outcome.statuses), (outcome.statuses, outcome.faults)
            # Those after it may be restored already.
            assert lane.watermark >= batch.first + batch.count

    def _due(self, level: int) -> DueBatch:
        async def ask() -> DueBatch:
            return await self.reader.pull_due(level, WaitingPull("", b"", has_lease=True), 100, 1 << 20, 0)

        return asyncio.run(ask())

    def _pull(self, topic: str, number: int) -> list[record.Record]:
        queue = self.shard.store.queues.find(topic, number)
        records: list[record.Record] = []
        offset = queue.min_offset
        while offset < queue.max_offset:
            pulled = self._pulled(queue, offset)
            assert pulled.next_offset > offset
            offset, at = pulled.next_offset, 0
            for size in pulled.sizes:
                records.append(record.decode(pulled.records, at))
                at += size
        return records

    def _pulled(self, queue: object, offset: int) -> PullResult:
        async def ask() -> list[PullResult]:
            return await self.reader.pull([(queue, offset)], Filter.parse(""), 100, lambda: 1 << 20, 0)  # type: ignore[list-item]

        return asyncio.run(ask())[0]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty messages: plain ones, restored ones, due ones and pending ones on two lanes."""
    root = tmp_path_factory.mktemp("flips") / "store"
    clock = HandClock()
    clock.wall_ms = START_MS
    shard = Shard(root, clock)
    shard.put(sent("P0"), sent("P1", queue=1), sent("P2"), sent("P3", topic="refunds"))
    shard.put(sent("D0", level=1), sent("E0", level=2), sent("D1", level=1, queue=1))
    clock.wall_ms += 1_000
    restore(shard, 1, 2)
    shard.put(sent("P4"), sent("E1", level=2, topic="refunds"))
    clock.wall_ms += 1_000
    shard.put(sent("E2", level=2), sent("D2", level=1), sent("P5", queue=1), sent("E3", level=2), sent("D3", level=1))
    shard.put(sent("D4", level=1, topic="refunds"), sent("P6", topic="refunds"))
    shard.checkpoint()
    shard.crash()
    return root


def restore(shard: Shard, level: int, count: int) -> None:
    units = shard.store.lanes[level].queue.read(0, count)
    found = [shard.store.read_record(position, size) for position, size, _ in units.tolist()]
    due = store_pb2.PullDueResponse(
        records=b"".join(found), sizes=[len(one) for one in found], due_at_ms=units["tags"].tolist()
    )
    assert shard.put_entries(make_batch(level, due).records, lane=level, first_entry=0).statuses == [0] * count


PLAIN = {f"P{n}" for n in range(7)}
ALL = PLAIN | {f"D{n}" for n in range(5)} | {f"E{n}" for n in range(4)}
STORED_MS = {"D0": 0, "D1": 0, "D2": 2_000, "D3": 2_000, "D4": 2_000, "E0": 0, "E1": 1_000, "E2": 2_000, "E3": 2_000}


def due_at_ms(message_id: str) -> int:
    return START_MS + STORED_MS[message_id] + DELAYS_MS[1 if message_id[0] == "D" else 2]


def assert_at_most_one_lost(drained: Drained) -> None:
    ids = drained.ids
    assert set(ids) <= ALL
    assert max(ids.values()) == 1
    lost = ALL - set(ids)
    assert len(lost) <= 1, lost
    assert drained.quarantined <= 1
    for one in drained.found:
        name = decode_properties(one.properties)["UNIQ_KEY"]
        assert one.body == b"body"
        if name not in PLAIN:
            assert due_at_ms(name) <= one.stored_at_ms <= max(due_at_ms(name), START_MS + 20_000)
            # The next drain is the latest time.
            assert one.stored_at_ms <= due_at_ms(name) + 13_000


def is_read(directory: Path, path: Path, at: int) -> bool:
    """Whether the byte is read when the directory is opened at its checkpoint and drained.

    The lane's copies of restored messages are never read. The tag's hash in a unit of a topic is read by filters alone.
    """
    if path.parent.parent.name == "SCHEDULE_TOPIC_XXXX":
        return not (path.parent.name == "0" and at < 2 * 20)
    if path.parent.name != "commitlog":
        return at % 20 < 12
    log, start = path.read_bytes(), 0
    while start + layout.SIZE_MAGIC.unpack_from(log, start)[0] <= at:
        start += layout.SIZE_MAGIC.unpack_from(log, start)[0]
    found = record.decode(log, start)
    return not (found.topic == "SCHEDULE_TOPIC_XXXX" and found.queue == 0 and found.queue_offset < 2)


def used_bytes(root: Path) -> list[tuple[Path, int]]:
    """All bytes of records and units."""
    log = root / "commitlog" / ("0" * 20)
    places = [(log, at) for at in range(len(log.read_bytes().rstrip(b"\0")))]
    for path in sorted((root / "consumequeue").rglob("0" * 20)):
        units = path.read_bytes()
        # The last unit's tags may end with zeros.
        count = max(at // 20 + 1 for at, byte in enumerate(units) if byte)
        places += [(path, at) for at in range(20 * count)]
    return places


def chosen(places: list[tuple[Path, int]], count: int) -> list[tuple[Path, int, int]]:
    dice = random.Random(seed())
    some = places if WHOLE else dice.sample(places, count)
    return [(path, at, dice.randrange(8)) for path, at in some]


def flipped(directory: Path, copy: Path, path: Path, at: int, bit: int) -> Path:
    """A copy of the directory with one bit changed."""
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(directory, copy)
    target = copy / path.relative_to(directory)
    with target.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1 << bit]))
    return copy


def test_undamaged_directory_is_drained_whole(directory: Path, tmp_path: Path) -> None:
    copy = tmp_path / "store"
    shutil.copytree(directory, copy)
    drained = Drained(copy)
    assert drained.ids == Counter(ALL)
    assert (drained.noticed, drained.quarantined) == (0, 0)


@pytest.mark.timeout(3_600 if WHOLE else 600)
@pytest.mark.parametrize("count", SOME)
@pytest.mark.parametrize("with_checkpoint", [True, False])
def test_flipped_bit_costs_one_message_at_most(
    directory: Path, tmp_path: Path, with_checkpoint: bool, count: int
) -> None:
    """With a checkpoint readers have to find it, without one recovery has to."""
    for path, at, bit in chosen(used_bytes(directory), count):
        copy = flipped(directory, tmp_path / "store", path, at, bit)
        if not with_checkpoint:
            (copy / "checkpoint").unlink()
        try:
            drained = Drained(copy)
            assert_at_most_one_lost(drained)
            if with_checkpoint and is_read(directory, path, at):
                # A unit may also have led recovery to read the whole log.
                assert drained.noticed or drained.shard.opened.report.whole_log
            if not with_checkpoint and path.parent.name == "commitlog":
                # Where the last record is no record any more, it looks like a torn write.
                assert drained.noticed or drained.shard.opened.report.cut_bytes
        except BaseException:
            print(path.relative_to(directory), at, bit)
            raise
