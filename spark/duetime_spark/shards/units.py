"""Ranges of a queue's units for tasks: from its files, or made from the log by the snapshot."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from duetime_format.units import UNIT, UNIT_TYPE, Ints, Units
from duetime_shard.disk import ShardFiles

from duetime_spark.shards.snapshot import QueueView


@dataclass(frozen=True, slots=True)
class UnitWindow:
    """Messages [start, stop) of a queue. `made`: messages with units not in its files yet."""

    topic: str
    queue: int
    start: int
    stop: int
    files_max: int
    file_bytes: int
    made_offsets: bytes = b""
    made_units: bytes = b""

    def __len__(self) -> int:
        return self.stop - self.start

    def read(self, files: ShardFiles, rows_max: int) -> Iterator[tuple[Ints, Units]]:
        """Offsets and units, at most `rows_max` at a time, without units removed by retention."""
        at, end = self.start, min(self.stop, self.files_max)
        while at < end:
            units = read_units(files, self, at, min(rows_max, end - at))
            if not len(units):
                at = min(at - at % self.file_units + self.file_units, end)  # retention has removed its file
                continue
            yield np.arange(at, at + len(units)), units
            at += len(units)
        if self.made_offsets:
            offsets, units = np.frombuffer(self.made_offsets, "<i8"), np.frombuffer(self.made_units, UNIT_TYPE)
            for start in range(0, len(offsets), rows_max):
                yield offsets[start : start + rows_max], units[start : start + rows_max]

    @property
    def file_units(self) -> int:
        return max(self.file_bytes // UNIT.size, 1)


def read_units(files: ShardFiles, queue: UnitWindow | QueueView, offset: int, count: int) -> Units:
    """Up to `count` units from `offset` on; fewer at the end of a file, none if retention has removed it."""
    if not queue.file_bytes:
        return np.empty(0, UNIT_TYPE)
    at = offset * UNIT.size
    base = at - at % queue.file_bytes
    length = min(count * UNIT.size, base + queue.file_bytes - at)
    data = files.read(f"consumequeue/{queue.topic}/{queue.queue}/{base:020d}", at - base, length)
    return np.frombuffer(data, UNIT_TYPE, len(data) // UNIT.size)


def window_of(queue: QueueView, start: int, stop: int) -> UnitWindow:
    """The part [start, stop) of a queue, clipped to its bounds."""
    start, stop = max(start, queue.min_offset), min(stop, queue.max_offset)
    stop = max(stop, start)
    made_offsets, made_units = b"", b""
    if stop > queue.files_max and queue.made_offsets:
        offsets, units = queue.made
        low, high = np.searchsorted(offsets, [max(start, queue.files_max), stop]).tolist()
        made_offsets, made_units = offsets[low:high].tobytes(), units[low:high].tobytes()
    return UnitWindow(
        queue.topic, queue.queue, start, stop, queue.files_max, queue.file_bytes, made_offsets, made_units
    )


def cut(queue: QueueView, start: int, stop: int, rows: int) -> Iterator[UnitWindow]:
    """The part [start, stop) of a queue in windows of at most `rows` messages."""
    start, stop = max(start, queue.min_offset), min(stop, queue.max_offset)
    while start < stop:
        end = min(start + rows, stop)
        yield window_of(queue, start, end)
        start = end


def first_at(files: ShardFiles, queue: QueueView, low: int, high: int, position: int) -> tuple[int, int | None]:
    """The first message in [low, high) with its record at or after a position, by binary search as if positions
    ascended; and the record's position, None if its unit is gone."""
    found = None
    while low < high:
        middle = (low + high) // 2
        if middle >= queue.files_max:
            units = np.frombuffer(window_of(queue, middle, middle + 1).made_units, UNIT_TYPE)
        else:
            units = read_units(files, queue, middle, 1)
        place = int(units["position"][0]) if len(units) else None
        if place is not None and place < position:
            low = middle + 1
        else:
            high, found = middle, place
    return low, found
