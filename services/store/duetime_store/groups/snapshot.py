"""The state of all groups as one file, so that a start replays only the journal's end.

    head, ended leases, gone dead letters (duetime_format.group_file), places, groups with expired messages

    place     i32 queue, u8 ordered, i64 frontier, u32 leases, u32 holds, three names (u8 length each): group, topic,
              queue's topic
    lease     u64 id, i64 received, u16 most attempts, u8 flags (1 ordered, 2 taken), u32 count, returned ranges
    hold      u8 state, u64 lease (0: none), u32 attempt, i64 until, u8 expired deliveries, u32 bytes of history,
              u32 ranges; expired (i64, i64), history, ranges (duetime_format.ranges)
    groups    u32 count, each u64 messages that had expired, u8 length, group; absent if there are none

Big-endian. The file may be ahead of the log: events are absolute, and the log's end has the rest. It is captured in one
step, by copying the dicts of outstanding messages, and written on another thread.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from struct import Struct

from duetime_format import group_file
from duetime_format.errors import DamagedBytes
from duetime_format.events import PlaceKey
from duetime_format.group_file import COUNT, ENDED, HEAD_BYTES, GroupFileHead
from duetime_format.ranges import RANGE, count_of, offsets_of, ranges
from duetime_shard.gone import GoneDeadLetters

from duetime_store.files.disk import Disk
from duetime_store.groups.holds import GroupPlace, Hold, Lease
from duetime_store.groups.memory import EndedLease
from duetime_store.groups.state import GroupProgress

FILE = group_file.FILE

_PLACE = Struct(">iBqII")
_LEASE = Struct(">QqHB")
_HOLD = Struct(">BQIqBII")
_PAIR = Struct(">qq")
_LAPSED = Struct(">QB")
_ORDERED, _TAKEN = 1, 2
# Maximum messages named in a file: more than any shard has memory for.
_OFFSETS_MAX = 1 << 23


@dataclass(slots=True)
class CapturedGroups:
    """The event loop's copy of the state, which does not change any more."""

    journal_offset: int
    last_lease_id: int
    ended: list[tuple[int, EndedLease]]
    gone: bytes
    # Each with its frontier and outstanding messages.
    places: list[tuple[GroupPlace, int, dict[int, Hold]]]
    # Returned offsets by lease, for leases with any.
    returned: dict[int, list[int]]
    # Expired messages by group.
    lapsed: dict[str, int]


@dataclass(slots=True)
class GroupSnapshot:
    journal_offset: int
    progress: GroupProgress
    gone: GoneDeadLetters


def capture(progress: GroupProgress, gone: GoneDeadLetters, journal_offset: int) -> CapturedGroups:
    return CapturedGroups(
        journal_offset,
        progress.last_lease_id,
        list(progress.ended.leases.items()),
        gone.encode(),
        [(place, place.frontier, place.entries.copy()) for place in progress.places.values()],
        {lease.id: sorted(lease.returned) for lease in progress.leases.values() if lease.returned},
        dict(progress.lapsed),
    )


def committed(captured: CapturedGroups) -> list[int]:
    """The committed offset of each place: all messages before it are done."""
    return [min(entries, default=frontier) for _, frontier, entries in captured.places]


def encode(captured: CapturedGroups) -> bytes:
    counts = len(captured.ended), len(captured.gone), len(captured.places)
    parts: list[bytes] = []
    for lease_id, ended in captured.ended:
        group = ended.group.encode()
        parts += (ENDED.pack(lease_id, ended.was_reset, len(group)), group, _counted(sorted(ended.returned)))
    parts.append(captured.gone)
    for place, frontier, entries in captured.places:
        parts += _place(place, frontier, entries, captured.returned)
    if captured.lapsed:
        parts.append(COUNT.pack(len(captured.lapsed)))
        for name, count in captured.lapsed.items():
            parts += (_LAPSED.pack(count, len(name.encode())), name.encode())
    return group_file.encode(GroupFileHead(captured.journal_offset, captured.last_lease_id, *counts), b"".join(parts))


def _counted(offsets: list[int]) -> bytes:
    data = ranges(offsets)
    return COUNT.pack(len(data) // RANGE.size) + data


def _place(
    place: GroupPlace, frontier: int, entries: dict[int, Hold], returned: dict[int, list[int]]
) -> Iterator[bytes]:
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
        self._offsets = 0

    def read(self, layout: Struct) -> tuple[int, ...]:
        values = layout.unpack_from(self.data, self.at)
        self.at += layout.size
        return values

    def bytes(self, count: int) -> bytes:
        if self.at + count > len(self.data):
            raise DamagedBytes("cut short")
        self.at += count
        return self.data[self.at - count : self.at]

    def name(self) -> str:
        return self.bytes(self.bytes(1)[0]).decode()

    def offsets(self, count: int) -> list[int]:
        data = self.bytes(count * RANGE.size)
        self._offsets += count_of(data)
        if self._offsets > _OFFSETS_MAX:
            raise DamagedBytes(f"it names more than {_OFFSETS_MAX} messages")
        return offsets_of(data)


def decode(data: bytes) -> GroupSnapshot:
    """Raises: DamagedBytes."""
    head = group_file.read_head(data)
    group_file.check_crc(data)
    try:
        return _decode(head, _Cursor(data, HEAD_BYTES))
    except (struct.error, UnicodeDecodeError, KeyError) as error:
        raise DamagedBytes(f"it can't be read: {type(error).__name__}") from error


def _decode(head: GroupFileHead, cursor: _Cursor) -> GroupSnapshot:
    progress = GroupProgress()
    progress.last_lease_id = head.last_lease_id
    for _ in range(head.ended_count):
        lease_id, was_reset, length = cursor.read(ENDED)
        group = cursor.bytes(length).decode()
        returned = frozenset(cursor.offsets(*cursor.read(COUNT)))
        progress.ended.add(lease_id, EndedLease(group, returned, was_reset=bool(was_reset)))
    gone = GoneDeadLetters.decode(cursor.bytes(head.gone_bytes))
    for _ in range(head.place_count):
        queue, ordered, frontier, lease_count, hold_count = cursor.read(_PLACE)
        key = PlaceKey(cursor.name(), cursor.name(), cursor.name(), queue)
        place = progress.place(key, frontier)
        place.ordered = bool(ordered)
        _decode_place(cursor, progress, place, lease_count, hold_count)
    # Earlier versions wrote no more.
    if cursor.at < len(cursor.data):
        for _ in range(*cursor.read(COUNT)):
            lapsed, length = cursor.read(_LAPSED)
            progress.lapsed[cursor.bytes(length).decode()] = lapsed
    return GroupSnapshot(head.journal_offset, progress, gone)


def _decode_place(
    cursor: _Cursor, progress: GroupProgress, place: GroupPlace, lease_count: int, hold_count: int
) -> None:
    leases: dict[int, Lease | None] = {0: None}
    for _ in range(lease_count):
        lease_id, received, most, flags = cursor.read(_LEASE)
        lease = Lease(lease_id, place, received, most, ordered=bool(flags & _ORDERED), is_taken=bool(flags & _TAKEN))
        returned = cursor.offsets(*cursor.read(COUNT))
        if returned:
            lease.came_back(returned)
        leases[lease_id] = progress.leases[lease_id] = lease
    for _ in range(hold_count):
        state, lease_id, attempt, until_ms, pair_count, history_bytes, range_count = cursor.read(_HOLD)
        expired = tuple((received, ended) for received, ended in [cursor.read(_PAIR) for _ in range(pair_count)])
        history = cursor.bytes(history_bytes)
        offsets = cursor.offsets(range_count)
        hold = Hold(place, state, offsets, attempt=attempt, until_ms=until_ms, lease=leases[lease_id])
        hold.expired, hold.history = expired, history
        progress.hold(hold)


def read(path: Path) -> GroupSnapshot | None:
    """None: there is no file.

    Raises:
        DamagedBytes: it is not whole.
        OSError: it can't be read.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    return decode(data)


def write(disk: Disk, path: Path, captured: CapturedGroups) -> None:
    """Replaces the file; durable on return."""
    temporary = path.with_suffix(".tmp")
    disk.write_file(temporary, encode(captured), durable=True)
    disk.replace(temporary, path)
    disk.sync_directory(path.parent)
