"""Ascending offsets as runs of neighbours: (first i64, count u32) each, big-endian."""

from collections.abc import Iterator
from struct import Struct

from duetime_format.errors import DamagedBytes

RANGE = Struct(">qI")
# Twelve bytes may name four thousand million offsets. A lease has RECEIVE_COUNT_MAX, an event no more than one scan.
OFFSETS_MAX = 1 << 20


def ranges(offsets: list[int]) -> bytes:
    """The bytes of ascending offsets."""
    count = len(offsets)
    if not count:
        return b""
    first = offsets[0]
    if offsets[-1] - first == count - 1:
        return RANGE.pack(first, count)
    parts, start, expected = [], first, first
    for offset in offsets:
        if offset != expected:
            parts.append(RANGE.pack(start, expected - start))
            start = offset
        expected = offset + 1
    parts.append(RANGE.pack(start, expected - start))
    return b"".join(parts)


def ranges_of(data: bytes) -> Iterator[tuple[int, int]]:
    """First offset and count of each. Raises: DamagedBytes."""
    if len(data) % RANGE.size:
        raise DamagedBytes(f"{len(data)} bytes are not whole ranges")
    return RANGE.iter_unpack(data)


def offsets_of(data: bytes) -> list[int]:
    """All offsets of the ranges. Raises: DamagedBytes."""
    if (total := count_of(data)) > OFFSETS_MAX:
        raise DamagedBytes(f"{len(data)} bytes of ranges name {total} offsets; the limit is {OFFSETS_MAX}")
    found: list[int] = []
    for first, count in ranges_of(data):
        found += range(first, first + count)
    return found


def count_of(data: bytes) -> int:
    """The number of offsets in the ranges. Raises: DamagedBytes."""
    if len(data) == RANGE.size:
        return int.from_bytes(data[8:], "big")
    return sum(count for _, count in ranges_of(data))


def are_ascending(data: bytes) -> bool:
    """Whether each range begins after its predecessor, and has offsets, from 0 on. Raises: DamagedBytes."""
    end = 0
    for first, count in ranges_of(data):
        if first < end or not count:
            return False
        end = first + count
    return True
