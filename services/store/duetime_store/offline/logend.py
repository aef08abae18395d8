"""The end of an exported log: repeats the last entry of a lane if copies of earlier ones come after it.

A starting broker dispatches again the records after the largest position in any queue's last unit; after a kill, those
in its last files. It drops a record at or before the position in its queue's last unit, and one whose offset the queue
has passed; it skips the second check for offset 0. So a copy of a lane's entry 0, made by retention, is dispatched
again, as a new entry, and delivered twice.

    p1  p2  p3  copy of p0                before: the last unit names p3
    p1  p2  p3  copy of p0  copy of p3    now it names the copy of p3, and nothing comes after that

Source: RocketMQ 4.9.7 DefaultMessageStore.start, ConsumeQueue.putMessagePositionInfo.
"""

from collections.abc import Container
from pathlib import Path

from duetime_format import layout, record
from duetime_format.columns import Ints
from duetime_format.errors import DamagedBytes
from duetime_format.units import Units
from duetime_shard.files import LogFiles
from duetime_shard.queues import QueueImage
from duetime_shard.shard import DirectoryState

from duetime_store.files.disk import Disk
from duetime_store.log.segment import file_name

Key = tuple[str, int]


class LogEnd:
    """Changes a copy of the log; `end` is the position after its last record. Durable after `close`."""

    def __init__(self, disk: Disk, folder: Path, segment_bytes: int, end: int) -> None:
        self._disk = disk
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._base, self._fd = -1, -1
        self.end = end

    def append(self, data: bytes | bytearray, properties: bytes) -> int:
        """Appends a record, which ends with `properties`, unchanged except for its position. Returns the position."""
        position = self._place(len(data))
        placed = bytearray(data)
        placed[layout.POSITION_AT : layout.POSITION_AT + 8] = position.to_bytes(8, "big")
        self._write(position, _sealed(placed, properties))
        self.end = position + len(placed)
        return position

    def rewrite(self, position: int, data: bytes, properties: bytes) -> None:
        """Gives the record at a position, `data`, other properties of the same length."""
        changed = bytearray(data)
        changed[len(data) - len(properties) :] = properties
        self._write(position, _sealed(changed, properties))

    def _place(self, size: int) -> int:
        """The position for a record; a mark closes the file that has no room for it."""
        room = -self.end % self._segment_bytes
        if not room or size + layout.BLANK_BYTES <= room:
            return self.end
        self._write(self.end, layout.blank(room))
        return self.end + room

    def _write(self, position: int, data: bytes | bytearray) -> None:
        base = position - position % self._segment_bytes
        if base != self._base:
            self.close()
            self._fd, self._base = self._disk.open(self._folder / file_name(base)), base
            self._disk.truncate(self._fd, self._segment_bytes)
        self._disk.write(self._fd, data, position - base)

    def close(self) -> None:
        """Flushes the changes."""
        if self._fd >= 0:
            self._disk.sync(self._fd)
            self._disk.close(self._fd)
            self._base = self._fd = -1


def _sealed(data: bytearray, properties: bytes) -> bytearray:
    """The record with the digits of its CRC mark, if it has one."""
    if record.has_crc_mark(properties):
        digits = record.crc_digits(memoryview(data)[: -len(record.CRC_MARK)])
        data[-record.CRC_DIGITS - 1 : -1] = digits
    return data


def repeat_last_entries(
    state: DirectoryState, log: LogFiles, end: LogEnd, others: Container[Key] = ()
) -> dict[Key, int]:
    """Appends the last entry of each queue that has records after it, except `others`. Returns its new position by
    queue. `log`: the copy."""
    moved = {}
    for key, newest in sorted(state.newest.items()):
        if key in others:
            continue
        queue = state.queues.get(key)
        last = _last_record(log, queue) if queue is not None else None
        if last is not None and last[0] < newest:
            moved[key] = end.append(last[1], last[2])
    return moved


def _last_record(log: LogFiles, queue: QueueImage) -> tuple[int, bytes, bytes] | None:
    """Position, bytes and properties of the record that the last unit names; None: it has left, or is damaged."""
    for _, units in queue.read(queue.max_offset - 1):
        if len(units):
            position, size, _ = units[-1].tolist()
            data = log.read(position, size)
            try:
                found = record.decode(data)
            except DamagedBytes:
                return None
            return (position, data, found.properties) if found.position == position else None
    return None


def moved_units(offsets: Ints, units: Units, last: int, position: int | None) -> Units:
    """The units, with `position` in the one of offset `last`."""
    if position is None or not len(offsets) or offsets[-1] != last:
        return units
    units = units.copy()
    units["position"][-1] = position
    return units
