"""A shard's directory opened without a process around it, whose puts are made durable by hand; and a store node."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from duetime_core.clock import Clock, Timer
from duetime_format import record
from duetime_format.names import TIMER_TOPIC
from duetime_format.properties import decode_properties, encode_properties
from duetime_format.restore import PulledEntry, UnrestorableEntry, quarantine, restore
from duetime_store.files.directory import StoreDirectory
from duetime_store.files.disk import Disk
from duetime_store.files.worker import FileWorker
from duetime_store.lanes.alarm import ClockAlarm, ShardClock
from duetime_store.metrics import StoreMetrics
from duetime_store.reading.reader import Reader
from duetime_store.reading.turns import ScanTurns, YieldingScan
from duetime_store.recovery.checkpoint import write as write_checkpoint
from duetime_store.recovery.recovery import OpenedStore, checkpoint_of, open_store
from duetime_store.recovery.saving import id_keeper
from duetime_store.settings import StoreSettings
from duetime_store.writing.staging import PutOutcome
from duetime_store.writing.store import Store

from tests.store.here import Here
from tests.store.running import MIB, Running


def unhurried() -> YieldingScan:
    """A step that is never over."""
    walk = ScanTurns(lambda: 1.0).walk()
    walk.start()
    return walk


def reader_of(store: Store, metrics: StoreMetrics, turns: ScanTurns | None = None) -> Reader:
    return Reader(store.log, store.lanes, store.clock, ClockAlarm(store.clock), metrics, turns or ScanTurns())


class HandClock(Clock):
    """A wall clock that tests set; it wakes no waiters."""

    def __init__(self) -> None:
        self.wall_ms = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.wall_ms

    def monotonic_ms(self) -> float:
        return float(self.wall_ms)

    def call_later(self, delay_ms: float, callback: Callable[[], object]) -> Timer:
        raise AssertionError("nothing waits in these tests")


class Shard:
    """A directory that can be opened, crashed and opened again."""

    # The next opening uses it.
    disk: Disk | None = None

    def __init__(self, root: Path, clock: HandClock, **settings: object) -> None:
        self.root = root
        self.clock = clock
        self.settings = StoreSettings.model_validate(
            {"data_dir": root, "delay_levels": "1s 5s", "segment_bytes": MIB, "queue_file_units": 100, **settings}
        )
        self.open()

    def open(self) -> OpenedStore:
        self.directory = StoreDirectory(self.root, self.disk)
        try:
            self.opened = open_store(self.directory, self.settings, ShardClock(self.clock), Here())
        except BaseException:
            self.directory.close()
            raise
        self.store = self.opened.store
        return self.opened

    def put(self, *records: bytes, batches: Sequence[int] = ()) -> PutOutcome:
        """Puts records and makes them durable."""
        outcome = self.store.put(b"".join(records), batches)
        self.flush()
        return outcome

    def put_entries(self, *records: bytes, lane: int, first_entry: int) -> PutOutcome:
        """Puts records for entries of a lane durably."""
        outcome = self.stage_entries(*records, lane=lane, first_entry=first_entry)
        self.flush()
        return outcome

    def stage_entries(self, *records: bytes, lane: int, first_entry: int) -> PutOutcome:
        intake = self.store.admit(b"".join(records))
        return self.store.restore(intake, self.store.lanes[lane], first_entry + np.arange(intake.count))

    def flush(self) -> None:
        batch = self.store.take()
        if batch is not None:
            for segment in self.store.log.write(batch.runs):
                segment.flush()
            self.store.publish(batch, self.clock.now_ms())

    def checkpoint(self) -> None:
        write_checkpoint(self.directory.disk, self.directory.checkpoint, checkpoint_of(self.store))

    def checkpoint_ids(self) -> None:
        """A checkpoint with the file of recent ids."""
        write = id_keeper(self.store, FileWorker(self.directory, Here())).capture()
        assert write is not None
        asyncio.run(write())
        self.checkpoint()

    def crash(self) -> None:
        """The process dies; written data stays."""
        self.store.lanes.close()
        self.store.queues.shared.close()
        self.store.log.close()
        self.directory.close()

    def reopen(self) -> OpenedStore:
        self.crash()
        return self.open()

    def pulled(self, topic: str = "orders", queue: int = 0) -> list[record.Record]:
        """Everything that a reader of a queue sees."""
        found = self.store.queues.find(topic, queue)
        records = []
        while len(units := found.read(found.min_offset + len(records), 1)):
            records.append(record.decode(self.store.read_record(*units[["position", "size"]].tolist()[0])))
        return records

    def pulled_some(self, topic: str = "orders", queue: int = 0) -> list[record.Record]:
        """Reads the last 10 readable messages of a queue."""
        _, units = self.store.queues.find(topic, queue).last(10)
        found = [self.store.read_record(position, size) for position, size, _ in units.tolist()]
        return [record.decode(data) for data in found if data]

    def restore(self, level: int, first: int, count: int) -> PutOutcome:
        """Restores entries [first, first + count) as a scheduler does."""
        return self.put_entries(restored(self.store, level, first, count), lane=level, first_entry=first)


def restored(store: Store, level: int, first: int, count: int) -> bytes:
    """Records that a scheduler puts for entries [first, first + count); unrestorable entries are put aside."""
    parts = []
    for number, (position, size, due_at_ms) in enumerate(store.lanes[level].queue.read(first, count).tolist(), first):
        entry = PulledEntry(level, number, due_at_ms, store.read_record(position, size))
        try:
            parts.append(restore(entry))
        except UnrestorableEntry as error:
            parts.append(quarantine(entry, str(error)))
    return b"".join(parts)


def sent(
    message_id: str,
    *,
    topic: str = "orders",
    queue: int = 0,
    level: int = 0,
    body: bytes = b"body",
    sys_flag: int = 0,
    **own: str,
) -> bytes:
    """A record as a gateway sends it. `own`: further properties."""
    properties = {"TAGS": "paid", "UNIQ_KEY": message_id} | own
    if level:
        properties |= record.deferral(level, topic, queue)
        topic, queue = "SCHEDULE_TOPIC_XXXX", level - 1
    marked = record.with_crc_mark(encode_properties(properties))
    return record.encode(record.Record(topic, queue, body, marked, sys_flag=sys_flag))


def timer(
    message_id: str,
    out: int,
    *,
    topic: str = "orders",
    queue: int = 0,
    key: str = "",
    lane: int = 0,
    body: bytes = b"body",
    born_at_ms: int = 0,
) -> bytes:
    """A record for any time as a gateway sends it; `out`: ms of delay, or the last ms before the due time."""
    asked = {"TIMER_DELAY_MS": str(out)} if out < 10**12 else {"TIMER_DELIVER_MS": str(out + 1)}
    properties = {"UNIQ_KEY": message_id, **({"KEYS": key} if key else {}), **asked}
    properties |= {"TIMER_OUT_MS": f"{out:013}", "REAL_TOPIC": topic, "REAL_QID": str(queue)}
    marked = record.with_crc_mark(encode_properties(properties))
    return record.encode(record.Record(TIMER_TOPIC, lane, body, marked, born_at_ms=born_at_ms))


def sealed(data: bytes) -> bytes:
    """A record with its CRC in the mark at its end, as the store keeps it."""
    return data[:-11] + record.crc_digits(data[:-20]) + data[-1:]


def ids(records: list[record.Record]) -> list[str]:
    return [decode_properties(found.properties)["UNIQ_KEY"] for found in records]


def log_file(shard: Shard) -> Path:
    return shard.root / "commitlog" / ("0" * 20)


def remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 0x40]))


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def shard(tmp_path: Path, clock: HandClock) -> Iterator[Shard]:
    shard = Shard(tmp_path / "store", clock)
    yield shard
    shard.crash()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Running]:
    async with Running(tmp_path / "store") as running:
        yield running
