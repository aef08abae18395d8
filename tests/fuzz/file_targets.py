"""Files of a store's directory, a broker's or ours: JSON, checkpoint, plans of order, indexes, ids, counts, the log."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from duetime_core.errors import StartupError
from duetime_format.errors import DamagedBytes
from duetime_format.group_file import GroupFileHead
from duetime_format.group_file import encode as group_file
from duetime_format.lanes import LanePlace
from duetime_format.levels import DelayLevels
from duetime_shard import checkpoint, configs, topics
from duetime_shard import walk as scan
from duetime_shard.batches import scan_whole
from duetime_shard.brokers import timers as brokertimers
from duetime_shard.gone import GoneDeadLetters
from duetime_shard.history import LevelHistory
from duetime_store.counting import countfile
from duetime_store.files import derived
from duetime_store.files.disk import Disk
from duetime_store.finding.index import ENTRY, HEADER, SLOT_BYTES, IndexFile
from duetime_store.groups import snapshot
from duetime_store.lanes.order import manifest
from duetime_store.lanes.order.rows import OrderRows
from duetime_store.lanes.order.runs import SortedRun, write_run
from duetime_store.log import idfile
from duetime_store.log.recent import Ids

from tests.fuzz.seeds import NAMES, RUNS, sealed_file, sealed_run
from tests.fuzz.target import outcome, target

T = TypeVar("T")
LEVELS = DelayLevels.parse("1s 5s 10s")

JSON = [
    '{"offsetTable":{"\N{SUPERSCRIPT TWO}":1}}'.encode(),
    b'{"levels":[{"fromPosition":Infinity,"delayLevels":"1s"}]}',
    b'{"offsetTable":{"1":5,"2":0},"duetimeCrc32":1}',
    b'{offsetTable:{1:5,2:7},"dataVersion":{"counter":1}}',
    b'{"topicConfigTable":{"orders":{"readQueueNums":4,"writeQueueNums":4,"perm":6}}}',
    b'{"subscriptionGroupTable":{"g":{"groupName":"g","retryMaxTimes":16,"consumeEnable":true}}}',
    b'{"levels":[{"fromPosition":0,"fromMs":0,"delayLevels":"1s 5s 10s"},{"fromPosition":9,"delayLevels":"1s"}]}',
]


@target(JSON, [b"Infinity", b"NaN", b"null", b"[", b"{", b'"', b"true", b"1e400", b'"\xc2\xb2":1', b"9" * 30])
def configs_of_a_broker(data: bytes) -> None:
    try:
        value = configs.parse(data.decode())
    except (ValueError, RecursionError):
        return
    configs.crc_of(value)
    offsets = configs.delay_offsets(value)
    assert all(type(offset) is int and 0 <= offset < 1 << 63 for offset in offsets.values())
    assert all(type(count) is int and 0 <= count < 1 << 31 for count in configs.topic_counts(value).values())
    for entry in configs.groups(value).values():
        configs.count_of(entry, "retryMaxTimes")
    history, _ = outcome(lambda: LevelHistory.load(value, LEVELS, accept=False), StartupError)
    if history is not None:
        history.delays_ms(np.array([1, 3]), np.array([0, 10]), np.array([0, 5]))


POINT = checkpoint.Checkpoint(5, 3, 9, (1, 2), 7, 8, (LanePlace(4, 5),))


def _sealed_slot(data: bytes) -> bytes:
    """The bytes as the first slot of a file, with a CRC that fits where its counts do."""
    level_count, place_count = (int.from_bytes(data[at : at + 4], "big") % 8 for at in (56, 60))
    fields = data[8:56].ljust(48, b"\0") + level_count.to_bytes(4, "big") + place_count.to_bytes(4, "big")
    fields += data[64:].ljust(8 * level_count + 16 * place_count, b"\0")[: 8 * level_count + 16 * place_count]
    return sealed_file(b"DTC3" + bytes(4) + fields)


@target([POINT.encode(1), bytes(64) + POINT.encode(2)], [b"DTC2", b"DTC3", b"DTCP"], _sealed_slot)
def checkpoints(data: bytes) -> None:
    for content in (data, bytes(checkpoint.SLOTS_AT[0]) + data):
        for serial, _, point in checkpoint.slots(content):
            if point.places is not None and serial >= 0:
                assert checkpoint.slots(bytes(checkpoint.SLOTS_AT[0]) + point.encode(serial))[0][2] == point
        checkpoint.damaged_slots(content)
    brokertimers.TimerCheck.decode(data)


def _sealed_lines(data: bytes) -> bytes:
    texts = [line.partition(b" ")[2] or line for line in data.split(b"\n")]
    return b"".join(b"%08x %s\n" % (topics.zlib.crc32(text), text) for text in texts)


@target([topics.encode({"orders": 8, "paid": 1})], [b"null", b"[", b"{}", b"1e5", b'"x"'], _sealed_lines)
def lines_of_topics(data: bytes) -> None:
    counts, damaged, _ = topics.decode(data)
    assert damaged <= data.count(b"\n") + 1
    assert all(type(name) is str and type(count) is int for name, count in counts.items())


GONE = GoneDeadLetters()
GONE.taken([("%DLQ%g", 0, 5), ("%DLQ%g", 0, 9)])
GROUPS = group_file(
    GroupFileHead(5, 9, 1, len(GONE.encode()), 1),
    snapshot.ENDED.pack(3, 0, 1)
    + b"g"
    + snapshot.COUNT.pack(0)
    + GONE.encode()
    + snapshot._PLACE.pack(1, 0, 7, 1, 1)
    + b"\1g\6orders\6orders"
    + snapshot._LEASE.pack(4, 5, 16, 0)
    + snapshot.COUNT.pack(0)
    + snapshot._HOLD.pack(1, 4, 1, 9, 0, 0, 1)
    + snapshot.RANGE.pack(3, 2),
)


@target([GROUPS], seal=sealed_file)
def states_of_groups(data: bytes) -> None:
    outcome(lambda: snapshot.decode(data), DamagedBytes)
    outcome(lambda: snapshot.group_file.gone_letters(data), DamagedBytes)


@target([GONE.encode()])
def dead_letters_that_are_gone(data: bytes) -> None:
    found, _ = outcome(lambda: GoneDeadLetters.decode(data), DamagedBytes)
    if found is not None:
        for topic, queue in found.queues():
            found.count(topic, queue, 0, 1 << 40)
        GoneDeadLetters.decode(found.encode())


COUNTS = derived.sealed(
    countfile.MAGIC,
    countfile.VERSION,
    [countfile._HEAD.pack(1, 1, 1, 5), countfile._LANE.pack(1, 0, 9, 1000), b"\0\6orders", bytes(16)],
)
IDS = idfile.encode(idfile.Block(Ids(np.array([1, 2]), np.array([0, 90]), [(5, 2)]), 0, 200))


@target([manifest.Manifest(5, 6, 7, 1, ((1, 4), (2, 5))).encode(), COUNTS, IDS, IDS + IDS], seal=sealed_file)
def derived_files(data: bytes) -> None:
    found = manifest.decode(data)
    assert found is None or found.encode() == data
    outcome(lambda: countfile.decode(data), DamagedBytes)
    outcome(lambda: list(idfile.decode(data)), DamagedBytes)


class _File:
    """A file in memory that is opened by a path."""

    def __init__(self) -> None:
        self._fd = os.memfd_create("fuzz")
        self.path = Path(f"/proc/self/fd/{self._fd}")

    def write(self, data: bytes) -> None:
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, data, 0)


FILE, DISK = _File(), Disk()


def _run_seed() -> bytes:
    column = np.arange(5)
    narrow = column.astype(np.uint32)
    write_run(DISK, FILE.path, [OrderRows(column + 1_000, column, narrow, narrow)])
    return FILE.path.read_bytes()


def _sealed_order(data: bytes) -> bytes:
    """A run of up to 1,024 rows whose sums fit."""
    crc, count = topics.zlib.crc32, max((len(data) - 44) // 24, 1)
    rows = data[4 : 4 + 24 * count].ljust(24 * count, b"\0")
    index, tail = data[-40:-16].rjust(24, b"\0"), count.to_bytes(8, "big")
    return crc(rows).to_bytes(4, "big") + rows + index + b"DTR1" + crc(tail, crc(index)).to_bytes(4, "big") + tail


@target([_run_seed()], [b"DTR1"], _sealed_order, cost=2)
def runs_of_order(data: bytes) -> None:
    FILE.write(data)
    run, _ = outcome(lambda: SortedRun(DISK, FILE.path, 1), DamagedBytes)
    if run is None:
        return
    try:
        outcome(
            lambda: (run.read(0, run.count), run.rank(LanePlace(1_002, 2)), run.pending_to(LanePlace(0, 0))),
            DamagedBytes,
        )
    finally:
        run.close()


INDEX = HEADER.pack(1_000, 2_000, 0, 90, 1, 2) + bytes(SLOT_BYTES * 3) + bytes(ENTRY.size) + ENTRY.pack(7, 0, 1, 0)
INDEX = INDEX.ljust(HEADER.size + 3 * (SLOT_BYTES + 4 * ENTRY.size), b"\0")


@target([INDEX], cost=2)
def index_files(data: bytes) -> None:
    FILE.write(data)
    file, _ = outcome(lambda: IndexFile(FILE.path), DamagedBytes)
    if file is None:
        return
    try:
        for wanted in (0, 1, 7, -1):
            assert sum(1 for _ in file.chain(wanted)) <= file.shape.entry_count
        file.times_ms(file.entries())
        file.slots()
    finally:
        file.close()


@dataclass
class _Segment:
    """A log of one file, in memory."""

    data: bytes
    base: int = 0

    @property
    def end(self) -> int:
        return len(self.data)

    def read_file(self, position: int, length: int) -> bytes:
        return self.data[position : position + length]

    def next_data(self, position: int) -> int | None:
        return position if position < len(self.data) else None

    def segment_from(self, position: int) -> "_Segment | None":
        return self if position < len(self.data) else None


@target([sealed_run(data) for data in RUNS], [*NAMES, b"\xda\xa3\x20\xa7", b"\xcb\xd4\x31\x94"], sealed_run, cost=4)
def walks_over_a_log(data: bytes) -> None:
    segment = _Segment(data)
    for walk in (scan.scan_runs, scan_whole):
        at = 0
        for item in _listed(lambda walk=walk: walk(segment, 0)):  # type: ignore[misc]
            assert scan.item_end(item) > at or scan.item_end(item) == at == 0
            at = scan.item_end(item)
        assert at <= len(data)


def _listed(read: Callable[[], T]) -> T:
    return list(read())  # type: ignore[call-overload, no-any-return]
