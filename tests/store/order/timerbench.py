"""A timer lane on a queue and a log in memory, and its order on disk."""

import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import numpy as np
from duetime_format.lanes import LanePlace
from duetime_format.names import TIMER_TOPIC
from duetime_format.properties import encode_properties
from duetime_format.record import Record, encode
from duetime_format.units import UNIT_TYPE, Ints
from duetime_shard.laneends import LaneEnds
from duetime_store.files.disk import Disk
from duetime_store.lanes.alarm import ShardClock
from duetime_store.lanes.order.order import LaneOrder
from duetime_store.lanes.order.topics import TopicNumbers
from duetime_store.lanes.timerlane import NOTHING, TimerLane
from duetime_store.lanes.timerorder import Reach
from duetime_store.lanes.timerrows import RowReader
from duetime_store.log.commitlog import CommitLog
from duetime_store.queues.consumequeue import ConsumeQueue

from tests.store.order.threads import Held
from tests.store.test_lanes import ListQueue

NOW_MS = 1_000_000
TOPICS = ("orders", "payments", "%RETRY%group")


class TimerQueue(ListQueue):
    """Holds any units that it is given."""

    topic, queue = TIMER_TOPIC, 0

    def append(self, units: np.ndarray) -> None:
        self.units = np.concatenate([self.units, units], dtype=UNIT_TYPE)

    def continue_at(self, offset: int) -> None:
        assert offset <= self.max_offset

    def wake(self) -> None:
        """There are no waiters."""


class BytesLog:
    """Records by position."""

    def __init__(self) -> None:
        self.data = bytearray(b"\0" * 8)
        # Due times by entry.
        self.dues: dict[int, int] = {}

    def add(self, entry: int, due_at_ms: int, topic: str, key: str) -> tuple[int, int, int]:
        """The record's unit."""
        properties = {"REAL_TOPIC": topic, "REAL_QID": "0", **({"KEYS": key} if key else {})}
        asked = {"TIMER_DELIVER_MS": str(due_at_ms), "TIMER_OUT_MS": f"{due_at_ms - 1:013}"}
        text = encode_properties({**asked, **properties})
        found = Record(TIMER_TOPIC, 0, b"body", text, queue_offset=entry, position=len(self.data))
        encoded = encode(found)
        self.data += encoded
        self.dues[entry] = due_at_ms
        return found.position, len(encoded), due_at_ms

    def read(self, position: int, length: int) -> bytes:
        return bytes(self.data[position : position + length])


class HandClock(ShardClock):
    def __init__(self) -> None:
        self.at_ms = NOW_MS

    def now_ms(self) -> int:
        return self.at_ms


@dataclass
class Bench:
    """A lane with the parts that it needs."""

    root: Path
    queue: TimerQueue = field(default_factory=TimerQueue)
    log: BytesLog = field(default_factory=BytesLog)
    clock: HandClock = field(default_factory=HandClock)
    threads: Held = field(default_factory=lambda: Held(at_once=True))

    def make(self) -> TimerLane:
        self.topics = TopicNumbers(Disk(), self.root / "topics")
        order = LaneOrder(Disk(), self.root / "0", self.topics, self.threads, memtable_rows=16)
        log = cast("CommitLog", self.log)
        rows = RowReader(log, self.topics)
        return TimerLane(1000, cast("ConsumeQueue", self.queue), order, log, self.clock, rows)

    def recover(
        self,
        position: int | None = None,
        place: LanePlace = NOTHING,
        found: Ints | None = None,
        ended: list[tuple[int, Ints]] | None = None,
    ) -> TimerLane:
        """`ended`: positions of records, and the entries that they end."""
        lane = self.make()
        ends = LaneEnds()
        if found is not None:
            ends.restored = self._rows(len(self.log.data), found)
        for at, entries in ended or ():
            ends.cancelled = np.concatenate([ends.cancelled, self._rows(at, entries)], axis=1)
        lane.recover(place, ends, Reach(position, len(self.log.data)))
        return lane

    def _rows(self, position: int, entries: Ints) -> Ints:
        dues = [self.log.dues[entry] for entry in entries.tolist()]
        return np.stack([entries, np.array(dues, np.int64), np.full_like(entries, position), np.zeros_like(entries)])

    def add(self, lane: TimerLane, *delays_ms: int) -> None:
        """Stores and publishes entries."""
        dues = np.array([self.clock.at_ms + delay_ms for delay_ms in delays_ms])
        lane.arriving(dues)
        self.publish(lane, dues)

    def publish(self, lane: TimerLane, dues: Ints) -> None:
        first = self.queue.max_offset
        units = np.zeros(len(dues), UNIT_TYPE)
        entries = np.arange(first, first + len(dues))
        for index, (entry, due) in enumerate(zip(entries.tolist(), dues.tolist(), strict=True)):
            units[index] = self.log.add(entry, due, TOPICS[entry % 3], f"k{entry % 5}" if entry % 5 else "")
        self.queue.append(units)
        topics = np.array([self.topics.number(TOPICS[entry % 3].encode()) for entry in entries.tolist()])
        keys = np.array([key_of(entry) for entry in entries.tolist()])
        lane.added(entries, dues, topics, keys)

    def restore(self, lane: TimerLane, count: int) -> list[int]:
        entries = lane.head(b"", count).entries
        if len(entries):
            lane.stage(entries, lane.units(entries))
            lane.publish(entries)
        return entries.tolist()


def key_of(entry: int) -> int:
    return zlib.crc32(f"k{entry % 5}".encode()) if entry % 5 else 0


def ints(*values: int) -> Ints:
    return np.array(values, np.int64)
