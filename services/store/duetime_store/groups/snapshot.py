"""The state of all groups as one file, so that a start replays only the journal's end.

    0 4s "DTG1"   4 u32 CRC-32 of all behind it   8 i64 journal offset from which events are to be replayed
    16 u64 last lease   24 u32 leases that ended   28 u32 bytes of dead letters that are gone   32 u32 places
    then: ended leases, dead letters (gone.py), places

    ended     u64 lease, u8 flags (1 reset), u8 length, group, u32 count, ranges that came back
    place     i32 queue, u8 ordered, i64 frontier, u32 leases, u32 holds, three names (u8 length each): group, topic,
              queue's topic
    lease     u64 id, i64 received, u16 most attempts, u8 flags (1 ordered, 2 taken), u32 count, ranges that came back
    hold      u8 state, u64 lease (0: none), u32 attempt, i64 until, u8 expired deliveries, u32 bytes of history,
              u32 ranges; expired (i64, i64), history, ranges (journal.py)

Big-endian. The file may be ahead of the log: events are absolute, and the log's end tells the rest. It is captured in
one step, by copying the dicts of outstanding messages, and written at leisure on another thread.
"""

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from struct import Struct

from duetime_core.ondisk.gone import GoneLetters
from duetime_format.errors import Damaged
from duetime_format.events import Key
from duetime_format.ranges import RANGE, offsets_of, ranges

from duetime_store.files.disk import Disk
from duetime_store.groups.memory import Ended
from duetime_store.groups.state import Hold, Lease, Place, Progress

FILE = "duetimeGroups"

_MARK_CRC = Struct(">4sI")
_MARK = b"DTG1"
_HEAD = Struct(">qQIII")
_ENDED = Struct(">QBB")
_COUNT = Struct(">I")
_PLACE = Struct(">iBqII")
_LEASE = Struct(">QqHB")
_HOLD = Struct(">BQIqBII")
_PAIR = Struct(">qq")
_ORDERED, _TAKEN = 1, 2


@dataclass(slots=True)
class Captured:
    """What the loop has copied; nothing of it changes any more."""

    journal_offset: int
    last_lease_id: int
    ended: list[tuple[int, Ended]]
    gone: bytes
    # Each with its frontier and outstanding.
    places: list[tuple[Place, int, dict[int, Hold]]]
    # Of leases from which something came back.
    returned: dict[int, list[int]]


@dataclass(slots=True)
class Loaded:
    journal_offset: int
    progress: Progress
    gone: GoneLetters


def capture(progress: Progress, gone: GoneLetters, journal_offset: int) -> Captured:
    return Captured(
        journal_offset,
        progress.last_lease_id,
        list(progress.ended.leases.items()),
        gone.encode(),
        [(place, place.frontier, place.entries.copy()) for place in progress.places.values()],
        {lease.id: sorted(lease.returned) for lease in progress.leases.values() if lease.returned},
    )


def committed(captured: Captured) -> list[int]:
    """Of each place: all before it is done."""
    return [min(entries, default=frontier) for _, frontier, entries in captured.places]


def encode(captured: Captured) -> bytes:
    parts = [
        _HEAD.pack(
            captured.journal_offset,
            captured.last_lease_id,
            len(captured.ended),
            len(captured.gone),
            len(captured.places),
        )
    ]
    for lease_id, ended in captured.ended:
        group = ended.group.encode()
        parts += (_ENDED.pack(lease_id, ended.was_reset, len(group)), group, _counted(sorted(ended.returned)))
    parts.append(captured.gone)
    for place, frontier, entries in captured.places:
        parts += _place(place, frontier, entries, captured.returned)
    body = b"".join(parts)
    return _MARK_CRC.pack(_MARK, zlib.crc32(body)) + body


def _counted(offsets: list[int]) -> bytes:
    data = ranges(offsets)
    return _COUNT.pack(len(data) // RANGE.size) + data


def _place(place: Place, frontier: int, entries: dict[int, Hold], returned: dict[int, list[int]]) -> Iterator[bytes]:
    key = place.key
    holds: dict[Hold, list[int]] = {}
    for offset, hold in entries.items():
        own = holds.get(hold)
        if own is None:
            holds[hold] = [offset]
        else:
            own.append(offset)
    leases = {hold.lease.id: hold.lease for hold in holds if hold.lease is not None}
    yield _PLACE.pack(key.queue, place.ordered, frontier, len(leases), len(holds))
    for name in (key.group.encode(), key.topic.encode(), key.queue_topic.encode()):
        yield bytes([len(name)]) + name
    for lease in leases.values():
        flags = _ORDERED * lease.ordered | _TAKEN * lease.is_taken
        yield _LEASE.pack(lease.id, lease.received_at_ms, lease.max_attempts, flags)
        yield _counted(returned.get(lease.id, []))
    for hold, offsets in holds.items():
        offsets.sort()
        data = ranges(offsets)
        lease_id = hold.lease.id if hold.lease is not None else 0
        counts = len(hold.expired), len(hold.history), len(data) // RANGE.size
        yield _HOLD.pack(hold.state, lease_id, hold.attempt, hold.until_ms, *counts)
        yield b"".join([_PAIR.pack(*pair) for pair in hold.expired])
        yield hold.history
        yield data


class _Cursor:
    def __init__(self, data: bytes, at: int) -> None:
        self.data, self.at = data, at

    def read(self, layout: Struct) -> tuple[int, ...]:
        values = layout.unpack_from(self.data, self.at)
        self.at += layout.size
        return values

    def bytes(self, count: int) -> bytes:
        if self.at + count > len(self.data):
            raise Damaged("cut short")
        self.at += count
        return self.data[self.at - count : self.at]

    def name(self) -> str:
        return self.bytes(self.bytes(1)[0]).decode()

    def offsets(self, count: int) -> list[int]:
        return offsets_of(self.bytes(count * RANGE.size))


def decode(data: bytes) -> Loaded:
    """Raises: Damaged."""
    if len(data) < _MARK_CRC.size + _HEAD.size:
        raise Damaged(f"{len(data)} bytes are too few")
    mark, crc = _MARK_CRC.unpack_from(data)
    if mark != _MARK:
        raise Damaged(f"it begins with {mark!r}")
    if zlib.crc32(memoryview(data)[_MARK_CRC.size :]) != crc:
        raise Damaged("it does not match its CRC")
    try:
        return _decode(_Cursor(data, _MARK_CRC.size))
    except (struct.error, UnicodeDecodeError, KeyError) as error:
        raise Damaged(f"it can't be read: {error!r}") from error


def _decode(cursor: _Cursor) -> Loaded:
    journal_offset, last_lease_id, ended_count, gone_bytes, place_count = cursor.read(_HEAD)
    progress = Progress()
    progress.last_lease_id = last_lease_id
    for _ in range(ended_count):
        lease_id, was_reset, length = cursor.read(_ENDED)
        group = cursor.bytes(length).decode()
        returned = frozenset(cursor.offsets(*cursor.read(_COUNT)))
        progress.ended.add(lease_id, Ended(group, returned, was_reset=bool(was_reset)))
    gone = GoneLetters.decode(cursor.bytes(gone_bytes))
    for _ in range(place_count):
        queue, ordered, frontier, lease_count, hold_count = cursor.read(_PLACE)
        key = Key(cursor.name(), cursor.name(), cursor.name(), queue)
        place = progress.place(key, frontier)
        place.ordered = bool(ordered)
        _decode_place(cursor, progress, place, lease_count, hold_count)
    return Loaded(journal_offset, progress, gone)


def _decode_place(cursor: _Cursor, progress: Progress, place: Place, lease_count: int, hold_count: int) -> None:
    leases: dict[int, Lease | None] = {0: None}
    for _ in range(lease_count):
        lease_id, received, most, flags = cursor.read(_LEASE)
        lease = Lease(lease_id, place, received, most, ordered=bool(flags & _ORDERED), is_taken=bool(flags & _TAKEN))
        returned = cursor.offsets(*cursor.read(_COUNT))
        if returned:
            lease.came_back(returned)
        leases[lease_id] = progress.leases[lease_id] = lease
    for _ in range(hold_count):
        state, lease_id, attempt, until_ms, pair_count, history_bytes, range_count = cursor.read(_HOLD)
        expired = tuple((received, ended) for received, ended in [cursor.read(_PAIR) for _ in range(pair_count)])
        history = cursor.bytes(history_bytes)
        hold = Hold(
            place,
            state,
            cursor.offsets(range_count),
            attempt=attempt,
            until_ms=until_ms,
            lease=leases[lease_id],
            expired=expired,
            history=history,
        )
        progress.hold(hold)


def read(path: Path) -> Loaded | None:
    """None: there is no file.

    Raises:
        Damaged: it is not whole.
        OSError: it can't be read.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    return decode(data)


def write(disk: Disk, path: Path, captured: Captured) -> None:
    """Replaces the file; durable on return."""
    temporary = path.with_suffix(".tmp")
    disk.write_file(temporary, encode(captured), durable=True)
    disk.replace(temporary, path)
    disk.sync_directory(path.parent)
